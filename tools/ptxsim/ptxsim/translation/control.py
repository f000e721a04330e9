"""Comparisons, selections, traps and calls."""

from __future__ import annotations

from ..parser import TYPE_SIZE, Instruction, Operand, Pair, Symbol
from .arithmetic import is_float
from .generator import BITS, BlockGenerator, unsigned
from .table import translates, unsupported

_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
_UNORDERED_INVERSE = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
_COMPARISONS = frozenset((*_ORDERED, *_UNSIGNED, *_UNORDERED_INVERSE, "equ", "neu", "num", "nan"))


def _comparison(instruction: Instruction, generator: BlockGenerator, ptx_type: str, a: Operand, b: Operand) -> str:
    name = next(modifier for modifier in instruction.modifiers[1:] if modifier in _COMPARISONS)
    if ptx_type.endswith("x2"):
        raise unsupported(instruction)
    if not is_float(ptx_type):
        if ptx_type[0] == "b" and name not in ("eq", "ne"):
            ptx_type = unsigned(ptx_type)
        return f"({generator.value(a, ptx_type)} {(_ORDERED | _UNSIGNED)[name]} {generator.value(b, ptx_type)})"
    x, y = generator.value(a, ptx_type), generator.value(b, ptx_type)
    if ptx_type == "bf16":
        x, y = f"arithmetic.bf16_to_f32({x})", f"arithmetic.bf16_to_f32({y})"
    if "ftz" in instruction.modifiers:
        x, y = f"arithmetic.flush({x})", f"arithmetic.flush({y})"
    number = f"(({x} == {x}) & ({y} == {y}))"
    if name == "num":
        return number
    if name == "nan":
        return f"(~{number})"
    if name == "ne":
        return f"(({x} != {y}) & {number})"
    if name == "neu":
        return f"({x} != {y})"
    if name == "equ":
        return f"(({x} == {y}) | ~{number})"
    if name in _UNORDERED_INVERSE:
        return f"(~({x} {_UNORDERED_INVERSE[name]} {y}))"
    return f"({x} {_ORDERED[name]} {y})"


@translates("setp")
def set_predicate(instruction: Instruction, generator: BlockGenerator) -> None:
    """setp, with a second destination and a third predicate operand."""
    destination, a, b = instruction.operands[:3]
    result = generator.let(_comparison(instruction, generator, instruction.type, a, b))
    combine = next((m for m in instruction.modifiers[2:] if m in ("and", "or", "xor")), None)
    positive, negative = result, f"~{result}"
    if combine:
        operator = {"and": "&", "or": "|", "xor": "^"}[combine]
        other = generator.value(instruction.operands[3], "pred")
        positive, negative = f"{result} {operator} {other}", f"(~{result}) {operator} {other}"
    if isinstance(destination, Pair):
        positive, negative = generator.let(positive), generator.let(negative)
        generator.assign(destination.first, f"{positive} & True", "pred")
        generator.assign(destination.second, f"{negative} & True", "pred")
    else:
        generator.assign(destination, positive, "pred", alias=not combine)


@translates("set")
def set_number(instruction: Instruction, generator: BlockGenerator) -> None:
    """set: 1.0 or all ones where the comparison holds."""
    result, source = instruction.types[:2]
    destination, a, b = instruction.operands[:3]
    condition = _comparison(instruction, generator, source, a, b)
    if result == "f32":
        generator.assign(destination, f"{condition}.astype({generator.dtype('f32')})", result)
    else:
        u32 = generator.dtype("u32")
        generator.assign(destination, f"np.where({condition}, {u32}(0xFFFFFFFF), {u32}(0))", "u32")


@translates("selp")
def select(instruction: Instruction, generator: BlockGenerator) -> None:
    """selp."""
    destination, a, b, predicate = instruction.operands
    ptx_type = BITS[TYPE_SIZE[instruction.type]]
    condition = generator.value(predicate, "pred")
    generator.assign(
        destination, f"np.where({condition}, {generator.value(a, ptx_type)}, {generator.value(b, ptx_type)})", ptx_type
    )


@translates("slct")
def select_by_sign(instruction: Instruction, generator: BlockGenerator) -> None:
    """slct."""
    destination, a, b, c = instruction.operands
    ptx_type, sign_type = instruction.types[:2]
    ptx_type = BITS[TYPE_SIZE[ptx_type]]
    values = f"{generator.value(a, ptx_type)}, {generator.value(b, ptx_type)}"
    generator.assign(destination, f"np.where({generator.value(c, sign_type)} >= 0, {values})", ptx_type)


@translates("trap")
def trap(instruction: Instruction, generator: BlockGenerator) -> None:
    """trap."""
    generator.emit(f"M.trap(I, n, {instruction.line})")


@translates("call")
def call(instruction: Instruction, generator: BlockGenerator) -> None:
    """call: vprintf is skipped; functions of the module have been inlined."""
    if not any(isinstance(operand, Symbol) and operand.name == "vprintf" for operand in instruction.operands):
        raise unsupported(instruction)
