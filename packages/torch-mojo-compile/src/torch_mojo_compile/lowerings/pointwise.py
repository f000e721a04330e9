"""Elementwise ops that MAX has and fuses. The rest (special functions, bit operations) are kernels' rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from max.dtype import DType
from max.graph import TensorValue, ops

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.dtypes import to_max
from torch_mojo_compile.lowerings.table import Node, cast, in_float32, lower_row, lowering

Unary = Callable[[TensorValue], TensorValue]
Binary = Callable[[TensorValue, TensorValue], TensorValue]


def _unary(function: Unary, doc: str) -> Callable[..., TensorValue]:
    def lower(node: Node, x: TensorValue) -> TensorValue:
        return function(node.tensor(x))

    lower.__doc__ = doc
    return lower


def _with_nan(function: Unary) -> Unary:
    """A function of MAX that clamps its argument and so loses NaN."""
    return lambda x: ops.where(ops.is_nan(x), x, function(x))


def _relu(x: TensorValue) -> TensorValue:
    # Unlike MAX's, NaN stays.
    zero = ops.constant(0, x.dtype, x.device)
    return ops.where(ops.greater(zero, x), zero, x)


def _negative(x: TensorValue) -> TensorValue:
    if not x.dtype.is_unsigned_integral():
        return ops.negate(x)
    # MAX negates no unsigned numbers; the largest one is -1.
    return x * ops.constant((1 << 8 * x.dtype.size_in_bytes) - 1, x.dtype, x.device)


def _difference(a: TensorValue, b: TensorValue) -> TensorValue:
    # MAX makes a negation of 0 - b.
    return a + _negative(b) if a.dtype.is_unsigned_integral() else a - b


UNARY: dict[str, tuple[Unary, str]] = {
    "log": (ops.log, "Natural logarithm."),
    "log1p": (ops.log1p, "Natural logarithm of 1 + x."),
    "sqrt": (ops.sqrt, "Square root."),
    "rsqrt": (ops.rsqrt, "Reciprocal of the square root."),
    "sin": (ops.sin, "Sine."),
    "cos": (ops.cos, "Cosine."),
    "erf": (ops.erf, "Error function."),
    "sigmoid": (_with_nan(ops.sigmoid), "Logistic function."),
    "silu": (ops.silu, "x * sigmoid(x)."),
    "neg": (_negative, "Negative."),
    "relu": (_relu, "Maximum of x and 0."),
    "abs": (lambda x: x if x.dtype.is_unsigned_integral() else ops.abs(x), "Absolute value."),
    "floor": (ops.floor, "Largest integer not above x."),
    "ceil": (ops.ceil, "Smallest integer not below x."),
    "trunc": (ops.trunc, "Integer part."),
    "reciprocal": (lambda x: ops.div(ops.constant(1, x.dtype, x.device), x), "1 / x."),
    "square": (lambda x: x * x, "x * x."),
}
for _name, (_function, _doc) in UNARY.items():
    lowering(f"{_name}.default")(_unary(_function, _doc))


# MAX's is far off in float16.
lowering("tanh.default")(in_float32(_unary(_with_nan(ops.tanh), "Hyperbolic tangent.")))


def _exp(x: TensorValue) -> TensorValue:
    # MAX's clamps its argument to +-88.4, and so is finite at infinity; the square of the half's is not.
    root = ops.exp(x * ops.constant(0.5, x.dtype, x.device))
    return root * root


@lowering("exp.default")
@in_float32
def exp(node: Node, x: TensorValue) -> TensorValue:
    """Exponential."""
    return lower_row(node, x) if node.dtype == DType.float64 else _with_nan(_exp)(node.tensor(x))


@lowering("floor.default", "ceil.default", "trunc.default")
def rounded(node: Node, x: TensorValue) -> TensorValue:
    """Rounds floats; integers are whole already."""
    if x.dtype.is_integral():
        return x
    name = node.name
    return UNARY[name][0](x)


def _binary(function: Binary, doc: str, of_bools: Binary | None = None) -> Callable[..., TensorValue]:
    def lower(node: Node, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
        if node.dtype == DType.bool and of_bools is not None:
            return of_bools(node.tensor(a), node.tensor(b))
        left, right = node.tensor(a), node.tensor(b)
        if alpha != 1:
            right = right * node.tensor(alpha)
        return function(left, right)

    lower.__doc__ = doc
    return in_float32(lower)


lowering("add.Tensor", "add.Scalar")(_binary(ops.add, "Sum.", ops.logical_or))
lowering("sub.Tensor", "sub.Scalar")(_binary(_difference, "Difference."))
lowering("div.Tensor", "div.Scalar", "true_divide.Tensor")(_binary(ops.div, "Quotient."))


@lowering("mul.Tensor", "mul.Scalar")
@in_float32
def mul(node: Node, a: Any, b: Any) -> TensorValue:
    """Product."""
    left, right = node.tensor(a), node.tensor(b)
    if node.dtype == DType.bool:
        return ops.logical_and(left, right)
    if node.dtype.is_float() and not isinstance(b, TensorValue | torch.SymInt | torch.SymFloat) and b == 0:
        # MAX makes 0 of x * 0, whatever x is.
        return custom_mojo_ops.binary("mul", left, right, node.shape)
    return ops.mul(left, right)


@lowering("rsub.Tensor", "rsub.Scalar")
@in_float32
def rsub(node: Node, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
    """b - alpha * a."""
    left = node.tensor(a)
    return _difference(node.tensor(b), left if alpha == 1 else left * node.tensor(alpha))


@in_float32
def _cube(node: Node, x: TensorValue) -> TensorValue:
    base = node.tensor(x)
    return base * base * base


@lowering("pow.Tensor_Scalar")
def pow_scalar(node: Node, x: TensorValue, exponent: Any) -> TensorValue:
    """Power with a number; small ones by multiplication."""
    base = node.tensor(x)
    if exponent == 2:
        return base * base
    if exponent == 3:
        return _cube(node, x)
    if exponent == 0.5 and base.dtype.is_float():
        return ops.sqrt(base)
    if exponent == 1:
        return base
    if exponent == -1 and base.dtype.is_float():
        return ops.div(node.tensor(1), base)
    return lower_row(node, x, exponent)


def _compared(node: Node) -> DType:
    """The dtype in which torch compares the two arguments."""
    return to_max(torch.result_type(node.argument(0), node.argument(1)))


def _comparison(function: Binary, doc: str, of_itself: Unary | None = None) -> Callable[..., TensorValue]:
    def lower(node: Node, a: TensorValue, b: Any) -> TensorValue:
        if a is b and a.dtype.is_float() and of_itself is not None:
            # MAX takes a value to be equal to itself, which NaN is not.
            infinity = ops.constant(math.inf, a.dtype, a.device)
            return of_itself(ops.greater_equal(infinity, ops.abs(a)))
        dtype = _compared(node)
        if dtype == DType.bool:
            # MAX orders no bools.
            dtype = DType.uint8
        return function(node.tensor(a, dtype), node.tensor(b, dtype))

    lower.__doc__ = doc
    return lower


lowering("eq.Tensor", "eq.Scalar")(_comparison(ops.equal, "Whether equal.", lambda number: number))
lowering("ne.Tensor", "ne.Scalar")(
    _comparison(lambda a, b: ops.logical_not(ops.equal(a, b)), "Whether not equal.", ops.logical_not)
)
lowering("gt.Tensor", "gt.Scalar")(_comparison(ops.greater, "Whether greater."))
lowering("ge.Tensor", "ge.Scalar")(_comparison(ops.greater_equal, "Whether greater or equal.", lambda number: number))
lowering("lt.Tensor", "lt.Scalar")(_comparison(lambda a, b: ops.greater(b, a), "Whether less."))
lowering("le.Tensor", "le.Scalar")(
    _comparison(lambda a, b: ops.greater_equal(b, a), "Whether less or equal.", lambda number: number)
)


def _truth(node: Node, x: Any) -> TensorValue:
    return node.tensor(x, DType.bool)


@lowering("logical_not.default")
def logical_not(node: Node, x: TensorValue) -> TensorValue:
    """Whether zero."""
    return ops.logical_not(_truth(node, x))


def _logical(function: Binary, doc: str) -> Callable[..., TensorValue]:
    def lower(node: Node, a: TensorValue, b: TensorValue) -> TensorValue:
        return function(_truth(node, a), _truth(node, b))

    lower.__doc__ = doc
    return lower


lowering("logical_and.default")(_logical(ops.logical_and, "Whether both are not zero."))
lowering("logical_or.default")(_logical(ops.logical_or, "Whether one is not zero."))
lowering("logical_xor.default")(_logical(ops.logical_xor, "Whether just one is not zero."))


def _bitwise(function: Binary, doc: str) -> Callable[..., TensorValue]:
    def lower(node: Node, a: Any, b: Any) -> TensorValue:
        if node.dtype != DType.bool:
            return lower_row(node, a, b)
        return function(_truth(node, a), _truth(node, b))

    lower.__doc__ = doc
    return lower


lowering("bitwise_and.Tensor")(_bitwise(ops.logical_and, "Bits set in both."))
lowering("bitwise_or.Tensor")(_bitwise(ops.logical_or, "Bits set in one."))
lowering("bitwise_xor.Tensor")(_bitwise(ops.logical_xor, "Bits set in just one."))


@lowering("bitwise_and.Scalar", "bitwise_or.Scalar", "bitwise_xor.Scalar")
def bitwise_scalar(node: Node, x: TensorValue, other: Any) -> TensorValue:
    """Bits of a tensor and a number."""
    name = node.name
    value = node.tensor(other)
    if node.dtype == DType.bool:
        function = {"bitwise_and": ops.logical_and, "bitwise_or": ops.logical_or, "bitwise_xor": ops.logical_xor}
        return function[name](_truth(node, x), _truth(node, value))
    return custom_mojo_ops.binary(name, node.tensor(x), value, node.shape)


@lowering("bitwise_not.default")
def bitwise_not(node: Node, x: TensorValue) -> TensorValue:
    """All bits flipped."""
    return ops.logical_not(x) if x.dtype == DType.bool else lower_row(node, x)


@lowering("isnan.default")
def isnan(node: Node, x: TensorValue) -> TensorValue:
    """Whether NaN."""
    return ops.is_nan(x) if x.dtype.is_float() else ops.broadcast_to(node.tensor(False), node.shape)


@lowering("isinf.default")
def isinf(node: Node, x: TensorValue) -> TensorValue:
    """Whether infinite."""
    return ops.is_inf(x) if x.dtype.is_float() else ops.broadcast_to(node.tensor(False), node.shape)


@lowering("gelu.default")
def gelu(node: Node, x: TensorValue, approximate: str = "none") -> TensorValue:
    """Gaussian error linear unit, computed in float32 for half types."""
    wide = cast(x, DType.float32) if x.dtype.size_in_bytes < 4 else x

    def constant(value: float) -> TensorValue:
        return ops.constant(value, wide.dtype, wide.device)

    if approximate == "tanh":
        inner = constant(math.sqrt(2 / math.pi)) * (wide + constant(0.044715) * wide * wide * wide)
        return cast(constant(0.5) * wide * (constant(1) + ops.tanh(inner)), x.dtype)
    return cast(constant(0.5) * wide * (constant(1) + ops.erf(wide * constant(math.sqrt(0.5)))), x.dtype)


@lowering("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(node: Node, condition: TensorValue, a: Any, b: Any) -> TensorValue:
    """Elements of one tensor where a condition holds, of another elsewhere."""
    return ops.where(cast(condition, DType.bool), node.tensor(a), node.tensor(b))


@lowering("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(node: Node, x: TensorValue, mask: TensorValue, value: Any) -> TensorValue:
    """A number where a mask is set."""
    return ops.where(mask, node.tensor(value), node.tensor(x))


@lowering("threshold_backward.default")
def threshold_backward(node: Node, grad: TensorValue, x: TensorValue, threshold: Any) -> TensorValue:
    """The gradient where x is not at or below a threshold; at NaN too."""
    below = ops.greater_equal(node.tensor(threshold, x.dtype), x)
    return ops.where(below, node.tensor(0), node.tensor(grad))


@lowering("_to_copy.default", "prims.convert_element_type.default", "to.dtype")
def to_copy(node: Node, x: TensorValue, *_: Any, **__: Any) -> TensorValue:
    """Conversion to another dtype or device."""
    converted = cast(x, node.dtype)
    return converted if converted.device == node.device else ops.transfer_to(converted, node.device)


@lowering("addcmul.default")
@in_float32
def addcmul(node: Node, x: TensorValue, a: TensorValue, b: TensorValue, *, value: Any = 1) -> TensorValue:
    """x + value * a * b."""
    # In torch's order, which decides where a product is beyond the largest number.
    scaled = node.tensor(a) if value == 1 else node.tensor(value) * node.tensor(a)
    return node.tensor(x) + scaled * node.tensor(b)


@lowering("prims.fma.default")
@in_float32
def fma(node: Node, a: TensorValue, b: TensorValue, c: TensorValue) -> TensorValue:
    """a * b + c, into which torch takes addcmul apart."""
    return node.tensor(a) * node.tensor(b) + node.tensor(c)


@lowering("addcdiv.default")
@in_float32
def addcdiv(node: Node, x: TensorValue, a: TensorValue, b: TensorValue, *, value: Any = 1) -> TensorValue:
    """x + value * a / b."""
    quotient = node.tensor(a) if value == 1 else node.tensor(a) * node.tensor(value)
    return node.tensor(x) + ops.div(quotient, node.tensor(b))


@lowering("lerp.Scalar", "lerp.Tensor")
def lerp(node: Node, start: TensorValue, end: TensorValue, weight: Any) -> TensorValue:
    """start + weight * (end - start), from the nearer end as in torch."""
    return lower_row(node, start, end, weight) if isinstance(weight, TensorValue) else _lerp(node, start, end, weight)


@in_float32
def _lerp(node: Node, start: TensorValue, end: TensorValue, weight: Any) -> TensorValue:
    difference = node.tensor(end) - node.tensor(start)
    if abs(weight) < 0.5:
        return node.tensor(start) + node.tensor(weight) * difference
    return node.tensor(end) - difference * node.tensor(1 - weight)


@lowering("remainder.Scalar", "fmod.Scalar")
def remainder_scalar(node: Node, x: TensorValue, other: Any) -> TensorValue:
    """Remainder of a division by a number."""
    name = node.name
    return custom_mojo_ops.binary(name, node.tensor(x), node.tensor(other), node.shape)


@lowering("clamp.Tensor")
def clamp_tensor(
    node: Node, x: TensorValue, low: TensorValue | None = None, high: TensorValue | None = None
) -> TensorValue:
    """Elements held between those of two tensors; NaN wins."""
    value = node.tensor(x)
    for bound, name in ((low, "maximum"), (high, "minimum")):
        if bound is not None:
            value = custom_mojo_ops.binary(name, value, node.tensor(bound), node.shape)
    return value
