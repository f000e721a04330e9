"""Logic, shifts and bit fields."""

from __future__ import annotations

from ..parser import TYPE_SIZE, Immediate, Instruction
from .generator import NUMPY, BlockGenerator, unsigned
from .table import translates, unsupported


@translates("and", "or", "xor")
def logic(instruction: Instruction, generator: BlockGenerator) -> None:
    """and, or and xor, on integers and predicates."""
    destination, a, b = instruction.operands
    ptx_type = instruction.type
    operator = {"and": "&", "or": "|", "xor": "^"}[instruction.head]
    generator.assign(destination, f"{generator.value(a, ptx_type)} {operator} {generator.value(b, ptx_type)}", ptx_type)


@translates("not", "cnot")
def negate(instruction: Instruction, generator: BlockGenerator) -> None:
    """not, and cnot: 1 where the operand is 0."""
    destination, a = instruction.operands
    ptx_type = instruction.type
    value = generator.value(a, ptx_type)
    if instruction.head == "cnot":
        value = f"({value} == 0).astype({generator.dtype(ptx_type)})"
    else:
        value = f"~{value}"
    generator.assign(destination, value, ptx_type)


@translates("shl", "shr")
def shift(instruction: Instruction, generator: BlockGenerator) -> None:
    """shl and shr; counts beyond the width are clamped."""
    destination, a, count = instruction.operands
    ptx_type = instruction.type
    if instruction.head == "shr":
        ptx_type = unsigned(ptx_type) if ptx_type[0] != "s" else ptx_type
    value = generator.value(a, ptx_type)
    if isinstance(count, Immediate) and 0 <= count.value < TYPE_SIZE[ptx_type] * 8:
        operator = {"shl": "<<", "shr": ">>"}[instruction.head]
        expression = f"{value} {operator} {generator.constant(NUMPY[ptx_type](count.value))}"
    else:
        expression = f"arithmetic.{instruction.head}({value}, {generator.value(count, 'u32')})"
    generator.assign(destination, expression, ptx_type)


@translates("shf")
def funnel_shift(instruction: Instruction, generator: BlockGenerator) -> None:
    """shf."""
    destination, *operands = instruction.operands
    low, high, count = (generator.value(operand, "u32") for operand in operands)
    left, wrap = instruction.modifiers[1] == "l", "wrap" in instruction.modifiers
    generator.assign(destination, f"arithmetic.funnel_shift({low}, {high}, {count}, {left}, {wrap})", "u32")


@translates("popc", "clz", "bfind")
def count_bits(instruction: Instruction, generator: BlockGenerator) -> None:
    """popc, clz and bfind: 32-bit results."""
    destination, a = instruction.operands
    value = generator.value(a, instruction.type)
    extra = ", True" if "shiftamt" in instruction.modifiers else ""
    generator.assign(destination, f"arithmetic.{instruction.head}({value}{extra})", "u32")


@translates("brev")
def reverse_bits(instruction: Instruction, generator: BlockGenerator) -> None:
    """brev."""
    destination, a = instruction.operands
    generator.assign(destination, f"arithmetic.brev({generator.value(a, instruction.type)})", instruction.type)


@translates("bfe")
def extract_field(instruction: Instruction, generator: BlockGenerator) -> None:
    """bfe."""
    destination, a, position, length = instruction.operands
    ptx_type = instruction.type
    place = f"{generator.value(position, 'u32')}, {generator.value(length, 'u32')}"
    generator.assign(destination, f"arithmetic.bfe({generator.value(a, ptx_type)}, {place})", ptx_type)


@translates("bfi")
def insert_field(instruction: Instruction, generator: BlockGenerator) -> None:
    """bfi."""
    destination, a, b, position, length = instruction.operands
    ptx_type = instruction.type
    place = f"{generator.value(position, 'u32')}, {generator.value(length, 'u32')}"
    values = f"{generator.value(a, ptx_type)}, {generator.value(b, ptx_type)}"
    generator.assign(destination, f"arithmetic.bfi({values}, {place})", ptx_type)


@translates("lop3")
def three_operand_logic(instruction: Instruction, generator: BlockGenerator) -> None:
    """lop3."""
    destination, a, b, c, table = instruction.operands
    assert isinstance(table, Immediate)
    values = ", ".join(generator.value(operand, instruction.type) for operand in (a, b, c))
    generator.assign(destination, f"arithmetic.lop3({values}, {table.value})", instruction.type)


@translates("prmt")
def permute_bytes(instruction: Instruction, generator: BlockGenerator) -> None:
    """prmt in its general mode."""
    if len(instruction.modifiers) > 2:
        raise unsupported(instruction)
    destination, *operands = instruction.operands
    values = ", ".join(generator.value(operand, "u32") for operand in operands)
    generator.assign(destination, f"arithmetic.prmt({values})", "u32")


@translates("dp4a")
def dot_product_of_bytes(instruction: Instruction, generator: BlockGenerator) -> None:
    """dp4a."""
    destination, *operands = instruction.operands
    values = ", ".join(generator.value(operand, "u32") for operand in operands)
    signs = ", ".join(str(ptx_type == "s32") for ptx_type in instruction.types[:2])
    generator.assign(destination, f"arithmetic.dp4a({values}, {signs})", "u32")
