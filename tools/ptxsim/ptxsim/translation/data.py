"""Moves, packing, address windows and conversions."""

from __future__ import annotations

import numpy as np

from ..memory import UNSIGNED
from ..parser import SINK, TYPE_SIZE, Instruction, Operand, Pair, Register, Vector
from ..windows import LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW, WINDOW_SHIFT
from .generator import BITS, NUMPY, BlockGenerator, unsigned
from .table import translates, unsupported


@translates("mov")
def move(instruction: Instruction, generator: BlockGenerator) -> None:
    """mov: of a value, or packing and unpacking a vector."""
    destination, source = instruction.operands
    size = TYPE_SIZE[instruction.type]
    if isinstance(source, Vector):
        generator.assign(destination, _packed(generator, source, size), BITS[size])
    elif isinstance(destination, Vector):
        _unpack(generator, destination, source, size)
    elif isinstance(destination, Pair):
        raise unsupported(instruction)
    else:
        ptx_type = "pred" if instruction.type == "pred" else BITS[size]
        if isinstance(source, Register) and generator.program.is_special(source.name):
            register_size = TYPE_SIZE[generator.program.register_type(source.name)]
            if register_size != size:
                expression = f"{generator.register(source.name)}.astype({generator.dtype(ptx_type)})"
                generator.assign(destination, expression, ptx_type)
                return
        generator.assign(destination, generator.value(source, ptx_type), ptx_type, alias=True)


def _packed(generator: BlockGenerator, source: Vector, size: int) -> str:
    element = size // len(source.items)
    ptx_type = BITS[size]
    parts = []
    for i, item in enumerate(source.items):
        part = f"{generator.value(item, BITS[element])}.astype({generator.dtype(ptx_type)})"
        parts.append(f"({part} << {generator.constant(NUMPY[ptx_type](8 * element * i))})" if i else part)
    return " | ".join(parts)


def _unpack(generator: BlockGenerator, destination: Vector, source: Operand, size: int) -> None:
    element = size // len(destination.items)
    value = generator.value(source, BITS[size])
    parts = []
    for i, item in enumerate(destination.items):
        if item != SINK:
            shift = generator.constant(NUMPY[BITS[size]](8 * element * i))
            parts.append((item, generator.let(f"({value} >> {shift}).astype({generator.dtype(BITS[element])})")))
    for item, part in parts:
        generator.assign(item, part, BITS[element], alias=True)


@translates("cvta")
def convert_address(instruction: Instruction, generator: BlockGenerator) -> None:
    """cvta: between a space's addresses and generic ones."""
    destination, source = instruction.operands
    windows = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAMETER_WINDOW}
    space = next((m.split(":")[0] for m in instruction.modifiers if m.split(":")[0] in windows), "global")
    value = generator.value(source, "u64")
    if space == "global":
        generator.assign(destination, value, "u64", alias=True)
        return
    operator = "-" if "to" in instruction.modifiers else "+"
    generator.assign(destination, f"{value} {operator} {generator.constant(np.uint64(windows[space]))}", "u64")


@translates("isspacep")
def is_in_space(instruction: Instruction, generator: BlockGenerator) -> None:
    """isspacep."""
    destination, source = instruction.operands
    windows = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAMETER_WINDOW}
    window = windows.get(instruction.modifiers[1].split(":")[0], 0) >> WINDOW_SHIFT
    shift, wanted = generator.constant(np.uint64(WINDOW_SHIFT)), generator.constant(np.uint64(window))
    generator.assign(destination, f"(({generator.value(source, 'u64')} >> {shift}) == {wanted})", "pred")


def _convert_pair(instruction: Instruction, generator: BlockGenerator, result: str) -> None:
    halves = []
    for operand in instruction.operands[1:3]:  # the upper half first
        value = generator.value(operand, "f32")
        if "relu" in instruction.modifiers:
            value = f"np.fmax({value}, {generator.constant(np.float32(0))})"
        if result == "bf16x2":
            half = f"arithmetic.f32_to_bf16{'_rz' if 'rz' in instruction.modifiers else ''}({value})"
        else:
            half = f"{value}.astype({generator.dtype('f16')}).view({generator.dtype('u16')})"
        halves.append(generator.let(f"{half}.astype({generator.dtype('u32')})"))
    shift = generator.constant(np.uint32(16))
    generator.assign(instruction.operands[0], f"({halves[0]} << {shift}) | {halves[1]}", "b32")


_FLOATS = ("f16", "bf16", "f32", "f64")
_ROUNDINGS = {"rni": "np.rint", "rzi": "np.trunc", "rmi": "np.floor", "rpi": "np.ceil"}


@translates("cvt")
def convert(instruction: Instruction, generator: BlockGenerator) -> None:
    """cvt."""
    modifiers = instruction.modifiers
    if "pack" in modifiers:
        raise unsupported(instruction)
    result, source = instruction.types[:2]
    if result in ("f16x2", "bf16x2"):
        _convert_pair(instruction, generator, result)
        return
    destination, operand = instruction.operands
    rounding = next((m for m in modifiers if m in _ROUNDINGS), None)
    if source in _FLOATS:
        value = generator.value(operand, source)
        if "ftz" in modifiers and source == "f32":
            value = f"arithmetic.flush({value})"
        if source == "bf16":
            value = f"arithmetic.bf16_to_f32({value})"
        if result in _FLOATS:
            _convert_float(instruction, generator, value, rounding)
        else:
            expression = f"arithmetic.float_to_integer({value}, {generator.dtype(result)}, {rounding!r})"
            generator.assign(destination, expression, result)
    else:
        value = generator.value(operand, source if source[0] == "s" else unsigned(source))
        if result in _FLOATS:
            _convert_float(instruction, generator, value, rounding)
        elif "sat" in modifiers:
            dtype = generator.dtype(result)
            generator.assign(destination, f"arithmetic.integer_to_integer_saturating({value}, {dtype})", result)
        elif TYPE_SIZE[result] == TYPE_SIZE[source]:
            same = unsigned(result)
            generator.assign(destination, generator.value(operand, same), same, alias=True)
        else:  # astype wraps, and extends by the signedness of the source
            generator.assign(destination, f"{value}.astype({generator.dtype(result)})", result)


def _convert_float(instruction: Instruction, generator: BlockGenerator, value: str, rounding: str | None) -> None:
    """To a float type; `value` holds the source, bfloat16 as float32."""
    modifiers, destination = instruction.modifiers, instruction.operands[0]
    result, source = instruction.types[:2]
    if rounding:
        value = f"{_ROUNDINGS[rounding]}({value})"
    if {"rm", "rp"} & set(modifiers) or ("rz" in modifiers and result != "bf16"):
        raise unsupported(instruction)
    if "sat" in modifiers:
        value = f"arithmetic.saturate({value})"
    f64 = generator.dtype("f64")
    if result == "bf16":
        if source in ("f32", "bf16"):
            if "relu" in modifiers:
                value = f"np.fmax({value}, {generator.constant(np.float32(0))})"
            value = f"arithmetic.f32_to_bf16{'_rz' if 'rz' in modifiers else ''}({value})"
        else:
            value = f"arithmetic.f64_to_bf16({value}.astype({f64}))"
    elif result == source:
        value = f"({value} + {generator.constant(NUMPY[result](0))})" if not rounding else value
    elif source == "bf16" and result == "f32":
        pass
    elif result == "f16" and source not in _FLOATS:  # through float64, which holds the integer
        value = f"{value}.astype({f64}).astype({generator.dtype(result)})"
    else:
        value = f"{value}.astype({generator.dtype(result)})"
    if "ftz" in modifiers and result == "f32":
        value = f"arithmetic.flush({value})"
    generator.assign(destination, value, result)


def widen(generator: BlockGenerator, register: Operand, value: str, ptx_type: str) -> None:
    """Assigns a loaded value of a type, sign-extended where the register is wider and the type signed."""
    size = TYPE_SIZE[ptx_type]
    wider = isinstance(register, Register) and register != SINK
    if wider and ptx_type[0] == "s":
        assert isinstance(register, Register)
        if TYPE_SIZE[generator.program.register_type(register.name)] > size:
            generator.assign(register, f"{value}.view({generator.dtype(ptx_type)})", ptx_type)
            return
    assert size in UNSIGNED
    generator.assign(register, value, BITS[size])
