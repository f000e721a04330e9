"""Instructions that the threads of a warp execute together."""

from __future__ import annotations

import numpy as np

from ..parser import Instruction, Operand, Pair, Vector
from .generator import BlockGenerator, unsigned
from .table import translates, unsupported


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vector) else (operand,)


@translates("bar", "barrier")
def warp_barrier(instruction: Instruction, generator: BlockGenerator) -> None:
    """bar.warp.sync; barriers of whole blocks are control flow and do not come here."""
    if instruction.modifiers[1] != "warp":
        raise unsupported(instruction)
    generator.emit("M.warp_barrier(I)")


@translates("shfl")
def shuffle(instruction: Instruction, generator: BlockGenerator) -> None:
    """shfl.sync."""
    destination, *operands = instruction.operands[:4]
    a, b, c = (generator.value(operand, "u32") for operand in operands)
    value, in_range = generator.new(), generator.new()
    mode = instruction.modifiers[2]
    generator.emit(f"{value}, {in_range} = M.shuffle({mode!r}, {a}, {b}, {c}, I, n, {instruction.line})")
    if isinstance(destination, Pair):
        generator.assign(destination.first, value, "u32")
        generator.assign(destination.second, in_range, "pred")
    else:
        generator.assign(destination, value, "u32")


@translates("vote")
def vote(instruction: Instruction, generator: BlockGenerator) -> None:
    """vote.sync: ballot, any, all and uni."""
    mode = instruction.modifiers[2]
    destination, a = instruction.operands[:2]
    predicate = generator.value(a, "pred")
    if mode == "ballot":
        generator.assign(destination, f"M.ballot({predicate}, I, n)", "u32")
    elif mode == "any":
        generator.assign(destination, f"M.ballot({predicate}, I, n) != 0", "pred")
    elif mode == "all":
        generator.assign(destination, f"M.ballot(~np.asarray({predicate}), I, n) == 0", "pred")
    else:
        ballot = generator.let(f"M.ballot({predicate}, I, n)")
        generator.assign(destination, f"({ballot} == 0) | ({ballot} == M.active_mask(I, n))", "pred")


@translates("redux")
def reduce(instruction: Instruction, generator: BlockGenerator) -> None:
    """redux.sync."""
    functions = {"add": "add", "min": "minimum", "max": "maximum"}
    functions |= {name: f"bitwise_{name}" for name in ("and", "or", "xor")}
    function = f"np.{functions[instruction.modifiers[2]]}"
    value = generator.value(instruction.operands[1], instruction.type)
    generator.assign(instruction.operands[0], f"M.warp_reduce({function}, {value}, I, n)", instruction.type)


@translates("match")
def match_any(instruction: Instruction, generator: BlockGenerator) -> None:
    """match.any.sync."""
    if instruction.modifiers[1] != "any":
        raise unsupported(instruction)
    value = generator.value(instruction.operands[1], unsigned(instruction.type))
    generator.assign(instruction.operands[0], f"M.match_any({value}, I, n)", "u32")


@translates("elect")
def elect(instruction: Instruction, generator: BlockGenerator) -> None:
    """elect.sync: the lowest active lane."""
    destination = instruction.operands[0]
    one = generator.constant(np.uint32(1))
    mask = generator.let("M.active_mask(I, n)")
    lowest = generator.let(f"arithmetic.popc(({mask} & (~{mask} + {one})) - {one})")
    if isinstance(destination, Pair):
        generator.assign(destination.first, lowest, "u32")
        generator.assign(destination.second, f"{generator.register('%laneid')} == {lowest}", "pred")
    else:
        generator.assign(destination, lowest, "u32")


@translates("activemask")
def active_mask(instruction: Instruction, generator: BlockGenerator) -> None:
    """activemask."""
    generator.assign(instruction.operands[0], "M.active_mask(I, n)", "u32")


@translates("ldmatrix")
def load_matrices(instruction: Instruction, generator: BlockGenerator) -> None:
    """ldmatrix of one, two or four 8x8 matrices of 16-bit elements."""
    count = next(int(m[1]) for m in instruction.modifiers if m in ("x1", "x2", "x4"))
    destination, address = instruction.operands
    generator.program.note_access("shared", 4)
    transposed = "trans" in instruction.modifiers
    values = generator.let(
        f"M.load_matrices({generator.address(address)}, I, n, {count}, {transposed}, {instruction.line})"
    )
    for i, register in enumerate(_items(destination)):
        generator.assign(register, f"{values}[{i}]", "u32")


@translates("mma")
def multiply_matrices(instruction: Instruction, generator: BlockGenerator) -> None:
    """mma.sync.m16n8kK."""
    shape = next(m for m in instruction.modifiers if m.startswith("m16n8k"))
    _, a_type, _, c_type = instruction.types[:4]
    destination, *operands = instruction.operands[:4]
    a, b, c = ("[" + ", ".join(generator.value(item, "b32") for item in _items(operand)) + "]" for operand in operands)
    values = generator.let(f"M.mma({shape!r}, {a_type!r}, {a}, {b}, {c}, {c_type!r}, I, n, {instruction.line})")
    for i, register in enumerate(_items(destination)):
        generator.assign(register, f"{values}[{i}]", "b32")
