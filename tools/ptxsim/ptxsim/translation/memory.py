"""Loads, stores, atomics and asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import arithmetic
from ..memory import UNSIGNED, Array
from ..parser import SINK, TYPE_SIZE, Address, Immediate, Instruction, Register, Symbol, Vector
from .data import widen
from .generator import BITS, NUMPY, BlockGenerator
from .table import translates, unsupported

_SPACES = ("global", "shared", "local", "param", "const")


def _space(instruction: Instruction) -> str:
    return next((m.split(":")[0] for m in instruction.modifiers[1:] if m.split(":")[0] in _SPACES), "generic")


def _is_strong(instruction: Instruction) -> bool:
    """Volatile and ordered accesses are meant to be concurrent: they are no races."""
    return any(m in instruction.modifiers for m in ("volatile", "relaxed", "acquire", "release", "mmio"))


def _parameter_space(space: str, address: Address, generator: BlockGenerator) -> str:
    """Arguments and results of calls, which are inlined, are local variables."""
    is_own = isinstance(address.base, Symbol) and not generator.program.is_parameter(address.base.name)
    return "local" if space == "param" and is_own else space


@translates("ld", "ldu")
def load(instruction: Instruction, generator: BlockGenerator) -> None:
    """ld, of up to eight elements."""
    destination, address = instruction.operands[:2]
    ptx_type, space = instruction.type, _space(instruction)
    assert isinstance(address, Address)
    space = _parameter_space(space, address, generator)
    size, width = TYPE_SIZE[ptx_type], instruction.vector_width
    generator.program.note_access(space, size)
    values = generator.let(
        f"M.load({space!r}, {generator.address(address)}, I, n, {size}, {width}, {instruction.line},"
        f" {_is_strong(instruction)})"
    )
    for i, register in enumerate(destination.items if isinstance(destination, Vector) else [destination]):
        widen(generator, register, f"{values}[{i}]", ptx_type)


@translates("st")
def store(instruction: Instruction, generator: BlockGenerator) -> None:
    """st, of up to eight elements."""
    address, source = instruction.operands[:2]
    assert isinstance(address, Address)
    space, size = _parameter_space(_space(instruction), address, generator), TYPE_SIZE[instruction.type]
    generator.program.note_access(space, size)
    items = source.items if isinstance(source, Vector) else (source,)
    values = ", ".join(generator.value(item, BITS[size]) for item in items)
    generator.emit(
        f"M.store({space!r}, {generator.address(address)}, I, n, {size}, [{values}], {instruction.line},"
        f" {_is_strong(instruction)})"
    )


class AtomicFunction:
    """The function of an atomic: old bits and operands to new bits.

    Args:
        function: On unsigned arrays.
        integer: Whether additions may be combined in any order.
    """

    def __init__(self, function: Callable[..., Array], integer: bool) -> None:
        self.function, self.integer = function, integer

    def __call__(self, *values: Array) -> Array:
        """Applies it."""
        return self.function(*values)


def _atomic_function(operation: str, ptx_type: str) -> AtomicFunction:
    element = ptx_type.removesuffix("x2")
    dtype, bits = NUMPY[ptx_type], UNSIGNED[TYPE_SIZE[ptx_type]]

    def decode(x: Array) -> Array:
        if element == "bf16":
            return arithmetic.bf16_to_f32(np.ascontiguousarray(x).view(np.uint16))
        return np.ascontiguousarray(x).view(np.float16) if element == "f16" else x.view(dtype)

    def encode(y: Any) -> Array:
        if element == "bf16":
            return arithmetic.f32_to_bf16(y).view(bits)
        return np.asarray(y, np.float16 if element == "f16" else dtype).view(bits)

    functions: dict[str, Callable[..., Any]] = {
        "add": lambda old, v: encode(decode(old) + decode(v)),
        "min": lambda old, v: encode(np.minimum(decode(old), decode(v))),
        "max": lambda old, v: encode(np.maximum(decode(old), decode(v))),
        "and": lambda old, v: old & v,
        "or": lambda old, v: old | v,
        "xor": lambda old, v: old ^ v,
        "exch": lambda old, v: v,
        "cas": lambda old, expected, v: np.where(old == expected, v, old),
        "inc": lambda old, v: np.where(old >= v, bits(0), old + bits(1)).astype(bits),
        "dec": lambda old, v: np.where((old == 0) | (old > v), v, old - bits(1)).astype(bits),
    }
    return AtomicFunction(functions[operation], integer=element[0] in "us" or element in BITS.values())


_ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@translates("atom", "red")
def atomic(instruction: Instruction, generator: BlockGenerator) -> None:
    """atom and red."""
    if instruction.vector_width > 1:
        raise unsupported(instruction)
    destination, address, *sources = ([SINK] if instruction.head == "red" else []) + instruction.operands
    ptx_type, space = instruction.type, _space(instruction)
    size = TYPE_SIZE[ptx_type]
    operation = next(m for m in instruction.modifiers[1:] if m in _ATOMICS)
    generator.program.note_access(space, size)
    function = generator.constant(_atomic_function(operation, ptx_type))
    values = ", ".join(generator.value(source, BITS[size]) for source in sources)
    assert isinstance(destination, Register)
    wanted = destination != SINK and generator.program.is_read(destination.name)
    old = generator.let(
        f"M.atomic({space!r}, {generator.address(address)}, I, n, {size}, {operation!r}, {function}, [{values}],"
        f" {wanted}, {instruction.line})"
    )
    if wanted:
        generator.assign(destination, old, BITS[size])


@translates("cp")
def copy_asynchronously(instruction: Instruction, generator: BlockGenerator) -> None:
    """cp.async from global to shared memory, its groups and waits."""
    modifiers = instruction.modifiers
    if modifiers[1] != "async" or "bulk" in modifiers or "mbarrier" in modifiers:
        raise unsupported(instruction)
    if "commit_group" in modifiers:
        generator.emit("M.commit_copies(I)")
    elif "wait_group" in modifiers:
        count = instruction.operands[0]
        assert isinstance(count, Immediate)
        generator.emit(f"M.wait_for_copies(I, {count.value})")
    elif "wait_all" in modifiers:
        generator.emit("M.wait_for_copies(I, None)")
    else:
        destination, source, size, *rest = instruction.operands
        assert isinstance(size, Immediate)
        hint = any("cache_hint" in modifier for modifier in modifiers)
        source_size = generator.value(rest[0], "u32") if rest and not hint else None
        for space in ("shared", "global"):
            generator.program.note_access(space, 4)
        generator.emit(
            f"M.copy_asynchronously({generator.address(destination)}, {generator.address(source)}, I, n, {size.value},"
            f" {source_size}, {instruction.line})"
        )
