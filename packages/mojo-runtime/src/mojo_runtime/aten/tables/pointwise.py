"""Elementwise ops: one row per overload that writes to an output; functional and in-place forms follow from it."""

from __future__ import annotations

from typing import Literal

from mojo_runtime.aten.table import ALL, BOOL, FLOATING, INTEGRAL, NUMERIC, Pointwise, Row

Promotion = Literal["common", "float", "bool", "first", "condition", "output"]

UNARY = "pointwise.unary:unary"
BINARY = "pointwise.binary:binary"
TERNARY = "pointwise.ternary:ternary"
COMPARISON = "pointwise.comparison:comparison"
PREDICATE = "pointwise.comparison:predicate"
ACTIVATION = "pointwise.activation:activation"
ACTIVATION_BACKWARD = "pointwise.activation_backward:activation_backward"

# Ops of `pointwise.complex`.
_COMPLEX_UNARY = frozenset(
    [
        "neg",
        "conj_physical",
        "reciprocal",
        "sgn",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "sigmoid",
        "sinc",
    ]
)
_COMPLEX_BINARY = frozenset(["add", "sub", "rsub", "mul", "div", "pow", "lerp_scalar"])
_COMPLEX_TERNARY = frozenset(["addcmul", "addcdiv", "lerp"])
_COMPLEX_COMPARISON = frozenset(["eq", "ne", "logical_and", "logical_or", "logical_xor"])

_SIGNS = (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))


def _unary(
    op: str,
    dtypes: tuple[str, ...],
    promotion: Promotion = "common",
    scalars: tuple[str, ...] = (),
    *,
    name: str = "",
    doc: str,
) -> Pointwise:
    complex_form = f"unary[op={op}]" if op in _COMPLEX_UNARY else ""
    if op in ("abs", "angle"):
        complex_form = f"real[op={op}]"
    if op == "pow_scalar":
        complex_form = op
    return Pointwise(
        name=name or f"{op}.out",
        kernel=UNARY,
        op=op,
        dtypes=dtypes,
        promotion=promotion,
        scalars=scalars,
        complex=complex_form,
        doc=doc,
    )


def _binary(
    name: str,
    op: str,
    dtypes: tuple[str, ...],
    promotion: Promotion = "common",
    inputs: tuple[str, ...] = ("self", "other"),
    scalars: tuple[str, ...] = (),
    *,
    doc: str,
) -> Pointwise:
    return Pointwise(
        name=name,
        kernel=BINARY,
        op=op,
        dtypes=dtypes,
        promotion=promotion,
        inputs=inputs,
        scalars=scalars,
        complex=f"binary[op={op}]" if op in _COMPLEX_BINARY else "",
        doc=doc,
    )


def _ternary(
    name: str,
    op: str,
    dtypes: tuple[str, ...],
    inputs: tuple[str, ...],
    scalars: tuple[str, ...] = (),
    promotion: Promotion = "common",
    *,
    doc: str,
) -> Pointwise:
    return Pointwise(
        name=name,
        kernel=TERNARY,
        op=op,
        dtypes=dtypes,
        promotion=promotion,
        inputs=inputs,
        scalars=scalars,
        complex=f"ternary[op={op}]" if op in _COMPLEX_TERNARY else "bits" if op == "where" else "",
        doc=doc,
    )


def _comparison(op: str, overload: str, doc: str) -> Pointwise:
    return Pointwise(
        name=f"{op}.{overload}",
        kernel=COMPARISON,
        op=op,
        dtypes=ALL,
        promotion="bool",
        inputs=("self", "other"),
        complex=f"comparison[op={op}]" if op in _COMPLEX_COMPARISON else "",
        doc=doc,
    )


def _predicate(name: str, op: str, doc: str) -> Pointwise:
    complex_form = f"predicate[op={op}]" if op in ("logical_not", "isnan", "isinf") else ""
    return Pointwise(name=name, kernel=PREDICATE, op=op, dtypes=ALL, promotion="bool", complex=complex_form, doc=doc)


def _activation(op: str, scalars: tuple[str, ...] = (), dtypes: tuple[str, ...] = FLOATING, *, doc: str) -> Pointwise:
    return Pointwise(name=f"{op}.out", kernel=ACTIVATION, op=op, dtypes=dtypes, scalars=scalars, doc=doc)


def _backward(
    op: str,
    scalars: tuple[str, ...] = (),
    inputs: tuple[str, ...] = ("grad_output", "self"),
    dtypes: tuple[str, ...] = FLOATING,
    *,
    overload: str = ".grad_input",
    tolerance: tuple[float, float] = (1.3e-6, 1e-5),
) -> Pointwise:
    return Pointwise(
        name=op + overload,
        kernel=ACTIVATION_BACKWARD,
        op=op,
        dtypes=dtypes,
        inputs=inputs,
        scalars=scalars,
        tolerance=tolerance,
        doc=f"Gradient of {op.removesuffix('_backward')}.",
    )


_UNARY: tuple[Row, ...] = (
    _unary("abs", NUMERIC, doc="Absolute value."),
    _unary("neg", NUMERIC, doc="Negation."),
    _unary("conj_physical", (), doc="Complex conjugate."),
    _unary("sign", ALL, doc="-1, 0 or 1 by the sign."),
    _unary("sgn", ALL, doc="-1, 0 or 1 by the sign."),
    _unary("floor", NUMERIC, doc="Rounds down."),
    _unary("ceil", NUMERIC, doc="Rounds up."),
    _unary("round", NUMERIC, doc="Rounds to the nearest integer, halves to even."),
    _unary("round_decimals", FLOATING, scalars=("decimals",), name="round.decimals_out", doc="Rounds to decimals."),
    _unary("trunc", NUMERIC, doc="Rounds toward 0."),
    _unary("frac", FLOATING, doc="The fractional part."),
    _unary("relu", NUMERIC, name="relu", doc="max(x, 0)."),
    _unary("relu", NUMERIC, name="relu_", doc="max(x, 0), in place."),
    _unary("bitwise_not", INTEGRAL + BOOL, doc="Bitwise complement."),
    _unary("nan_to_num", ALL, scalars=("nan", "posinf", "neginf"), doc="Replaces NaN and infinities."),
    _unary("sqrt", FLOATING, "float", doc="Square root."),
    _unary("rsqrt", FLOATING, "float", doc="1 / sqrt(x)."),
    _unary("reciprocal", FLOATING, "float", doc="1 / x."),
    _unary("exp", FLOATING, "float", doc="e to the power x."),
    _unary("exp2", FLOATING, "float", doc="2 to the power x."),
    _unary("expm1", FLOATING, "float", doc="exp(x) - 1."),
    _unary("log", FLOATING, "float", doc="Natural logarithm."),
    _unary("log2", FLOATING, "float", doc="Logarithm to base 2."),
    _unary("log10", FLOATING, "float", doc="Logarithm to base 10."),
    _unary("log1p", FLOATING, "float", doc="log(1 + x)."),
    _unary("sin", FLOATING, "float", doc="Sine."),
    _unary("cos", FLOATING, "float", doc="Cosine."),
    _unary("tan", FLOATING, "float", doc="Tangent."),
    _unary("asin", FLOATING, "float", doc="Inverse sine."),
    _unary("acos", FLOATING, "float", doc="Inverse cosine."),
    _unary("atan", FLOATING, "float", doc="Inverse tangent."),
    _unary("sinh", FLOATING, "float", doc="Hyperbolic sine."),
    _unary("cosh", FLOATING, "float", doc="Hyperbolic cosine."),
    _unary("tanh", FLOATING, "float", doc="Hyperbolic tangent."),
    _unary("asinh", FLOATING, "float", doc="Inverse hyperbolic sine."),
    _unary("acosh", FLOATING, "float", doc="Inverse hyperbolic cosine."),
    _unary("atanh", FLOATING, "float", doc="Inverse hyperbolic tangent."),
    _unary("erf", FLOATING, "float", doc="Error function."),
    _unary("erfc", FLOATING, "float", doc="Complementary error function."),
    _unary("erfinv", FLOATING, "float", doc="Inverse error function."),
    _unary("sigmoid", FLOATING, "float", doc="Logistic function."),
    _unary("lgamma", FLOATING, "float", doc="Logarithm of the gamma function."),
    _unary("digamma", FLOATING, "float", doc="Logarithmic derivative of the gamma function."),
    _unary("sinc", FLOATING, "float", doc="sin(pi x) / (pi x)."),
    _unary("special_entr", FLOATING, "float", doc="-x log(x)."),
    _unary("logit", FLOATING, "float", ("eps",), doc="log(x / (1 - x))."),
    _unary(
        "pow_scalar", NUMERIC, "output", ("exponent",), name="pow.Tensor_Scalar_out", doc="Power with one exponent."
    ),
    _unary("clamp", NUMERIC, "output", ("min", "max"), doc="Limits to [min, max]."),
    _unary("hardtanh", NUMERIC, scalars=("min_val", "max_val"), doc="Limits to [min_val, max_val]."),
)

_BINARY: tuple[Row, ...] = (
    _binary("add.out", "add", ALL, scalars=("alpha",), doc="self + alpha * other."),
    _binary("sub.out", "sub", NUMERIC, scalars=("alpha",), doc="self - alpha * other."),
    _binary("rsub.Tensor", "rsub", NUMERIC, scalars=("alpha",), doc="other - alpha * self."),
    _binary("mul.out", "mul", ALL, doc="Product."),
    _binary("div.out", "div", FLOATING, "float", doc="True quotient."),
    _binary("div.out_mode", "div_mode", NUMERIC, "output", scalars=("rounding_mode",), doc="Quotient, rounded."),
    _binary("floor_divide.out", "div_floor", NUMERIC, doc="Quotient, rounded down."),
    _binary("remainder.Tensor_out", "remainder", NUMERIC, doc="Remainder with the divisor's sign."),
    _binary("remainder.Scalar_Tensor", "remainder", NUMERIC, doc="Remainder of a number."),
    _binary("fmod.Tensor_out", "fmod", NUMERIC, doc="Remainder with the dividend's sign."),
    _binary("pow.Tensor_Tensor_out", "pow", NUMERIC, inputs=("self", "exponent"), doc="Power."),
    _binary("pow.Scalar_out", "pow", NUMERIC, inputs=("self", "exponent"), doc="Power of one base."),
    _binary("maximum.out", "maximum", ALL, doc="Maximum; NaN wins."),
    _binary("minimum.out", "minimum", ALL, doc="Minimum; NaN wins."),
    _binary("clamp_min.out", "maximum", ALL, inputs=("self", "min"), doc="Limits from below."),
    _binary("clamp_min.Tensor_out", "maximum", ALL, inputs=("self", "min"), doc="Limits from below."),
    _binary("clamp_max.out", "minimum", ALL, inputs=("self", "max"), doc="Limits from above."),
    _binary("clamp_max.Tensor_out", "minimum", ALL, inputs=("self", "max"), doc="Limits from above."),
    _binary("fmax.out", "fmax", ALL, doc="Maximum; numbers win over NaN."),
    _binary("fmin.out", "fmin", ALL, doc="Minimum; numbers win over NaN."),
    _binary("atan2.out", "atan2", FLOATING, "float", doc="Angle of the point (other, self)."),
    _binary("hypot.out", "hypot", FLOATING, doc="sqrt(self^2 + other^2)."),
    _binary("copysign.out", "copysign", FLOATING, "float", doc="Magnitude of one, sign of the other."),
    _binary("nextafter.out", "nextafter", FLOATING, doc="The next number toward other."),
    _binary("logaddexp.out", "logaddexp", FLOATING, doc="log(exp(self) + exp(other))."),
    _binary("logaddexp2.out", "logaddexp2", FLOATING, doc="log2(2^self + 2^other)."),
    _binary("xlogy.OutTensor", "xlogy", FLOATING, "float", doc="self * log(other), 0 where self is 0."),
    _binary("special_xlog1py.out", "special_xlog1py", FLOATING, "float", doc="self * log1p(other), 0 where self is 0."),
    _binary("heaviside.out", "heaviside", ALL, inputs=("self", "values"), doc="Step function."),
    _binary("gcd.out", "gcd", INTEGRAL, doc="Greatest common divisor."),
    _binary("lcm.out", "lcm", INTEGRAL, doc="Least common multiple."),
    _binary("bitwise_and.Tensor_out", "bitwise_and", INTEGRAL + BOOL, doc="Bitwise and."),
    _binary("bitwise_or.Tensor_out", "bitwise_or", INTEGRAL + BOOL, doc="Bitwise or."),
    _binary("bitwise_xor.Tensor_out", "bitwise_xor", INTEGRAL + BOOL, doc="Bitwise exclusive or."),
    _binary("bitwise_left_shift.Tensor_out", "bitwise_left_shift", INTEGRAL, doc="Shift left."),
    _binary("bitwise_right_shift.Tensor_out", "bitwise_right_shift", INTEGRAL, doc="Shift right."),
    _binary("__lshift__.Tensor", "bitwise_left_shift", INTEGRAL, doc="Shift left."),
    _binary("__lshift__.Scalar", "bitwise_left_shift", INTEGRAL, doc="Shift left."),
    _binary("__rshift__.Tensor", "bitwise_right_shift", INTEGRAL, doc="Shift right."),
    _binary("__rshift__.Scalar", "bitwise_right_shift", INTEGRAL, doc="Shift right."),
    _binary(
        "lerp.Scalar_out", "lerp_scalar", FLOATING, inputs=("self", "end"), scalars=("weight",), doc="Interpolation."
    ),
    _binary("_prelu_kernel", "prelu", FLOATING, inputs=("self", "weight"), doc="PReLU, weights broadcast."),
)

_TERNARY: tuple[Row, ...] = (
    _ternary(
        "where.self_out",
        "where",
        ALL,
        ("condition", "self", "other"),
        promotion="condition",
        doc="Choice by condition.",
    ),
    _ternary(
        "masked_fill_.Scalar", "where", ALL, ("mask", "value", "self"), promotion="condition", doc="Fill where masked."
    ),
    _ternary(
        "masked_fill_.Tensor", "where", ALL, ("mask", "value", "self"), promotion="condition", doc="Fill where masked."
    ),
    _ternary(
        "addcmul.out",
        "addcmul",
        NUMERIC,
        ("self", "tensor1", "tensor2"),
        ("value",),
        doc="self + value * tensor1 * tensor2.",
    ),
    _ternary(
        "addcdiv.out",
        "addcdiv",
        FLOATING,
        ("self", "tensor1", "tensor2"),
        ("value",),
        doc="self + value * tensor1 / tensor2.",
    ),
    _ternary("lerp.Tensor_out", "lerp", FLOATING, ("self", "end", "weight"), doc="Linear interpolation."),
)

_BOOLEAN: tuple[Row, ...] = (
    *(_comparison(op, "Tensor_out", f"self {sign} other.") for op, sign in _SIGNS),
    *(_comparison(op, "Scalar_out", f"self {sign} other, a number.") for op, sign in _SIGNS),
    *(_comparison(f"logical_{op}", "out", f"Logical {op}.") for op in ("and", "or", "xor")),
    _predicate("logical_not.out", "logical_not", "Logical not."),
    _predicate("signbit.out", "signbit", "Whether the sign is negative, of -0 too."),
    _predicate("isnan", "isnan", "Whether NaN."),
    _predicate("isinf", "isinf", "Whether infinite."),
    _predicate("isposinf.out", "isposinf", "Whether plus infinity."),
    _predicate("isneginf.out", "isneginf", "Whether minus infinity."),
)

_ACTIVATION: tuple[Row, ...] = (
    _activation("gelu", ("approximate",), doc="x times the normal distribution function."),
    _activation("silu", doc="x * sigmoid(x)."),
    _activation("mish", doc="x * tanh(softplus(x))."),
    _activation("hardswish", doc="x * min(max(x + 3, 0), 6) / 6."),
    _activation("hardsigmoid", doc="min(max(x + 3, 0), 6) / 6."),
    _activation("softplus", ("beta", "threshold"), doc="log(1 + exp(beta x)) / beta."),
    _activation("elu", ("alpha", "scale", "input_scale"), doc="Exponential linear unit; also SELU and CELU."),
    _activation("leaky_relu", ("negative_slope",), doc="x, or negative_slope * x below 0."),
    _activation("threshold", ("threshold", "value"), NUMERIC, doc="x above the threshold, else the value."),
    _activation("softshrink", ("lambd",), doc="x moved toward 0 by lambd."),
    _activation("hardshrink", ("lambd",), doc="x, or 0 within [-lambd, lambd]."),
    _backward("threshold_backward", ("threshold",), dtypes=NUMERIC),
    # The exponent in the tanh form reaches 40: its rounding error is 4e-6 of the result.
    _backward("gelu_backward", ("approximate",), tolerance=(1e-5, 1e-5)),
    _backward("silu_backward"),
    _backward("mish_backward", overload=""),
    _backward("sigmoid_backward", inputs=("grad_output", "output")),
    _backward("tanh_backward", inputs=("grad_output", "output")),
    _backward("leaky_relu_backward", ("negative_slope",)),
    _backward("elu_backward", ("alpha", "scale", "input_scale", "is_result"), inputs=("grad_output", "self_or_result")),
    _backward("hardtanh_backward", ("min_val", "max_val")),
    _backward("hardswish_backward", overload=""),
    _backward("hardsigmoid_backward"),
    _backward("softplus_backward", ("beta", "threshold")),
    _backward("log_sigmoid_backward"),
    _backward("softshrink_backward", ("lambd",)),
    _backward("hardshrink_backward", ("lambd",), inputs=("grad_out", "self")),
    _backward("logit_backward", ("eps",)),
)

ROWS: tuple[Row, ...] = _UNARY + _BINARY + _TERNARY + _BOOLEAN + _ACTIVATION
