"""Arithmetic: add to fma, min and max, transcendental functions, on integers and floats of every width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..parser import Instruction, Operand
from .generator import NUMPY, BlockGenerator, unsigned
from .table import translates, unsupported

HALF_TYPES = ("f16", "bf16", "f16x2", "bf16x2")
FLOAT_TYPES = ("f32", "f64", *HALF_TYPES)


def float_expression(instruction: Instruction, expression: str) -> str:
    """Applies .ftz and .sat to a float32 or float64 result."""
    if "ftz" in instruction.modifiers:
        expression = f"arithmetic.flush({expression})"
    if "sat" in instruction.modifiers:
        expression = f"arithmetic.saturate({expression})"
    return expression


def float_operands(instruction: Instruction, generator: BlockGenerator, operands: Sequence[Operand]) -> list[str]:
    """Float32 or float64 operands, flushed where the instruction says so."""
    values = [generator.value(operand, instruction.type) for operand in operands]
    return [f"arithmetic.flush({value})" for value in values] if "ftz" in instruction.modifiers else values


def half_operation(instruction: Instruction, generator: BlockGenerator, formula: Callable[..., str]) -> None:
    """A 16-bit float operation, evaluated in float64 and rounded once; x2 types are unpacked."""
    ptx_type = instruction.type
    packed = ptx_type.endswith("x2")
    element = ptx_type.removesuffix("x2")
    f16, f64, u16, u32 = (generator.dtype(t) for t in ("f16", "f64", "u16", "u32"))
    destination, *sources = instruction.operands
    values = []
    for source in sources:
        value = generator.value(source, ptx_type)
        if packed:
            value = f"np.array(np.broadcast_to({value}, (n,))).view({u16})"
        if element == "bf16":
            values.append(generator.let(f"arithmetic.bf16_to_f32({value}).astype({f64})"))
        else:
            values.append(generator.let(f"({value}).view({f16}).astype({f64})"))
    expression = formula(*values)
    if "sat" in instruction.modifiers:
        expression = f"arithmetic.saturate({expression})"
    if "relu" in instruction.modifiers:
        expression = f"np.fmax({expression}, 0.0)"
    result = generator.let(expression)
    rounded = f"arithmetic.f64_to_bf16({result})" if element == "bf16" else f"{result}.astype({f16})"
    if packed:
        rounded = f"np.ascontiguousarray({rounded}).view({u32})"
    generator.assign(destination, rounded, ptx_type)


def float_operation(instruction: Instruction, generator: BlockGenerator, formula: Callable[..., str]) -> None:
    """A float operation of any width; the operands follow the destination."""
    if instruction.type in HALF_TYPES:
        half_operation(instruction, generator, formula)
        return
    values = float_operands(instruction, generator, instruction.operands[1:])
    generator.assign(instruction.operands[0], float_expression(instruction, formula(*values)), instruction.type)


def is_float(ptx_type: str) -> bool:
    """Whether a PTX type is a float or a pair of floats."""
    return ptx_type in FLOAT_TYPES


@translates("add", "sub")
def add(instruction: Instruction, generator: BlockGenerator) -> None:
    """add and sub."""
    ptx_type = instruction.type
    sign = "+" if instruction.head == "add" else "-"
    if is_float(ptx_type):
        float_operation(instruction, generator, lambda x, y: f"({x} {sign} {y})")
        return
    if "cc" in instruction.modifiers:
        raise unsupported(instruction)
    destination, a, b = instruction.operands
    if "sat" in instruction.modifiers:
        x, y = generator.value(a, ptx_type), generator.value(b, ptx_type)
        wide = f"{x}.astype({generator.dtype('s64')}) {sign} {y}"
        clipped = f"np.clip({wide}, -2147483648, 2147483647).astype({generator.dtype('s32')})"
        generator.assign(destination, clipped, ptx_type)
        return
    ptx_type = unsigned(ptx_type)
    generator.assign(destination, f"{generator.value(a, ptx_type)} {sign} {generator.value(b, ptx_type)}", ptx_type)


def _product_type(instruction: Instruction) -> str:
    if "wide" in instruction.modifiers:
        return {"u16": "u32", "s16": "u32", "u32": "u64", "s32": "u64"}[instruction.type]
    return unsigned(instruction.type)


def _product(instruction: Instruction, generator: BlockGenerator, a: Operand, b: Operand) -> str:
    """The integer product as `_product_type`."""
    ptx_type = instruction.type
    result = generator.dtype(_product_type(instruction))
    if "wide" in instruction.modifiers:
        wide = generator.dtype({"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}[ptx_type])
        x, y = generator.value(a, ptx_type), generator.value(b, ptx_type)
        return f"({x}.astype({wide}) * {y}.astype({wide})).view({result})"
    if "hi" in instruction.modifiers:
        if ptx_type in ("u64", "s64"):
            return f"arithmetic.mulhi_{ptx_type}({generator.value(a, 'u64')}, {generator.value(b, 'u64')})"
        wide_type, bits = {"u32": ("u64", 32), "s32": ("s64", 32), "u16": ("u32", 16), "s16": ("s32", 16)}[ptx_type]
        wide, shift = generator.dtype(wide_type), generator.constant(NUMPY[wide_type](bits))
        x, y = generator.value(a, ptx_type), generator.value(b, ptx_type)
        high = f"(({x}.astype({wide}) * {y}.astype({wide})) >> {shift})"
        return f"{high}.astype({generator.dtype(ptx_type)}).view({result})"
    ptx_type = unsigned(ptx_type)
    return f"({generator.value(a, ptx_type)} * {generator.value(b, ptx_type)})"


@translates("mul")
def multiply(instruction: Instruction, generator: BlockGenerator) -> None:
    """mul, with .lo, .hi and .wide."""
    if is_float(instruction.type):
        float_operation(instruction, generator, lambda x, y: f"({x} * {y})")
        return
    destination, a, b = instruction.operands
    generator.assign(destination, _product(instruction, generator, a, b), _product_type(instruction))


@translates("mad")
def multiply_add(instruction: Instruction, generator: BlockGenerator) -> None:
    """mad."""
    if is_float(instruction.type):
        fused_multiply_add(instruction, generator)
        return
    destination, a, b, c = instruction.operands
    result = _product_type(instruction)
    product = _product(instruction, generator, a, b)
    generator.assign(destination, f"{product} + {generator.value(c, result)}", result)


@translates("fma")
def fused_multiply_add(instruction: Instruction, generator: BlockGenerator) -> None:
    """fma."""
    ptx_type = instruction.type
    if ptx_type in HALF_TYPES:
        half_operation(instruction, generator, lambda x, y, z: f"({x} * {y} + {z})")
        return
    float_operation(instruction, generator, lambda x, y, z: f"arithmetic.fma_{ptx_type}({x}, {y}, {z})")


@translates("div", "rem")
def divide(instruction: Instruction, generator: BlockGenerator) -> None:
    """div and rem; float division, approximate or not, is rounded correctly."""
    ptx_type = instruction.type
    if is_float(ptx_type):
        float_operation(instruction, generator, lambda x, y: f"({x} / {y})")
        return
    destination, a, b = instruction.operands
    x, y = generator.value(a, ptx_type), generator.value(b, ptx_type)
    generator.emit(f"M.check_divisor({y}, I, n, {instruction.line})")
    function = "divide" if instruction.head == "div" else "remainder"
    generator.assign(destination, f"arithmetic.{function}({x}, {y})", ptx_type)


@translates("min", "max")
def minimum(instruction: Instruction, generator: BlockGenerator) -> None:
    """min and max; floats ignore NaN unless .NaN says otherwise."""
    ptx_type = instruction.type
    name = "np." + {"min": "minimum", "max": "maximum"}[instruction.head]
    if is_float(ptx_type):
        if "NaN" not in instruction.modifiers:
            name = f"np.f{instruction.head}"

        def fold(*values: str) -> str:  # three operands exist too
            result = values[0]
            for value in values[1:]:
                result = f"{name}({result}, {value})"
            return result

        float_operation(instruction, generator, fold)
        return
    destination, a, b = instruction.operands
    generator.assign(destination, f"{name}({generator.value(a, ptx_type)}, {generator.value(b, ptx_type)})", ptx_type)


@translates("abs", "neg")
def sign(instruction: Instruction, generator: BlockGenerator) -> None:
    """abs and neg."""
    formula = {"abs": "np.abs({})", "neg": "(-{})"}[instruction.head]
    if is_float(instruction.type):
        float_operation(instruction, generator, formula.format)
        return
    destination, a = instruction.operands
    generator.assign(destination, formula.format(generator.value(a, instruction.type)), instruction.type)


_FUNCTIONS = {
    "ex2": "np.exp2",
    "lg2": "np.log2",
    "sin": "np.sin",
    "cos": "np.cos",
    "tanh": "np.tanh",
    "sqrt": "np.sqrt",
    "rcp": "np.reciprocal",
    "rsqrt": "arithmetic.reciprocal_square_root",
}


@translates(*_FUNCTIONS)
def transcendental(instruction: Instruction, generator: BlockGenerator) -> None:
    """Roots, reciprocals and the hardware's approximate functions."""
    ptx_type, function = instruction.type, _FUNCTIONS[instruction.head]
    if ptx_type in HALF_TYPES:
        half_operation(instruction, generator, lambda x: f"{function}({x})")
        return
    destination, a = instruction.operands
    x = generator.value(a, ptx_type)
    if ptx_type == "f32":
        noise = f"{instruction.head!r} if M.options.approximate_error else None"
        name = noise if "approx" in instruction.modifiers else "None"
        generator.assign(
            destination, f"arithmetic.approximate({function}, {x}, {'ftz' in instruction.modifiers}, {name})", ptx_type
        )
    else:
        generator.assign(destination, f"{function}({x})", ptx_type)


@translates("copysign")
def copy_sign(instruction: Instruction, generator: BlockGenerator) -> None:
    """copysign: the sign of the first operand, the magnitude of the second."""
    destination, a, b = instruction.operands
    ptx_type = instruction.type
    generator.assign(
        destination, f"np.copysign({generator.value(b, ptx_type)}, {generator.value(a, ptx_type)})", ptx_type
    )


@translates("testp")
def test_property(instruction: Instruction, generator: BlockGenerator) -> None:
    """testp."""
    destination, a = instruction.operands
    value = generator.value(a, instruction.type)
    generator.assign(destination, f"arithmetic.has_property({value}, {instruction.modifiers[1]!r})", "pred")
