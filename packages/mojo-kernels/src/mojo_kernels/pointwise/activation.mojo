"""Activation functions."""

from mojo_kernels.abi import KernelCall, text_word
from mojo_kernels.math import compute_type, exp, expm1, log1p, narrow, widen
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from mojo_kernels.special import erf

comptime SQRT_HALF = 0.70710678118654752440
"""sqrt(1 / 2)."""
comptime SQRT_2_BY_PI = 0.79788456080286535588
"""sqrt(2 / pi)."""
comptime GELU_CUBIC = 0.044715
"""The cubic term of the tanh approximation of GELU."""


@inline(.always)
def number_count[op: StaticString]() -> Int:
    """How many Numbers an activation and its backward read.

    Parameters:
        op: The aten op's name.

    Returns:
        The number of Numbers among its scalars.
    """
    comptime if op == "elu" or op == "elu_backward":
        return 3
    elif (
        op == "softplus"
        or op == "threshold"
        or op == "softplus_backward"
        or op == "hardtanh_backward"
    ):
        return 2
    elif (
        op == "leaky_relu"
        or op == "softshrink"
        or op == "hardshrink"
        or op == "threshold_backward"
        or op == "leaky_relu_backward"
        or op == "softshrink_backward"
        or op == "hardshrink_backward"
    ):
        return 1
    else:
        return 0


@inline(.always)
def hard_gate[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """`min(max(x + 3, 0), 6)`; NaN stays.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        Values from 0 to 6.
    """
    comptime Vector = SIMD[dtype, w]
    var shifted = x + 3
    shifted = shifted.lt(Vector(0)).select(Vector(0), shifted)
    return shifted.gt(Vector(6)).select(Vector(6), shifted)


@fieldwise_init
struct _Activation[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1 if (
        Self.op == "leaky_relu"
        or Self.op == "threshold"
        or Self.op == "softshrink"
        or Self.op == "hardshrink"
        or Self.op == "hardswish"
        or Self.op == "hardsigmoid"
    ) else 8
    comptime compute = compute_type[Self.dtype]()
    var numbers: SIMD[Self.compute, 4]
    var approximate: Int32
    """GELU: 1 for the tanh approximation."""

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return narrow[Self.dtype](self.function(widen(a)))

    @inline(.always)
    def function[
        w: SIMDLength
    ](self, x: SIMD[Self.compute, w]) -> SIMD[Self.compute, w]:
        comptime Vector = SIMD[Self.compute, w]
        var zero = Vector(0)
        comptime if Self.op == "gelu":
            if self.approximate != 0:
                # x (1 + tanh(u)) / 2 = x sigmoid(2 u)
                var u = x * (1 + GELU_CUBIC * (x * x))
                return x / (1 + exp(Vector(-2 * SQRT_2_BY_PI) * u))
            return (0.5 * x) * (1 + erf(x * SQRT_HALF))
        elif Self.op == "silu":
            return x / (1 + exp(-x))
        elif Self.op == "mish":
            # With e = exp(x), tanh(log(1 + e)) = n / (n + 2) for n = e (e + 2).
            var e = exp(x.gt(Vector(20)).select(Vector(20), x))
            var n = e * (e + 2)
            return x * (n / (n + 2))
        elif Self.op == "hardswish":
            return x * hard_gate(x) * (1.0 / 6)
        elif Self.op == "hardsigmoid":
            return hard_gate(x) * (1.0 / 6)
        elif Self.op == "softplus":
            var scaled = x * self.numbers[0]
            return scaled.gt(Vector(self.numbers[1])).select(
                x, log1p(exp(scaled)) / self.numbers[0]
            )
        elif Self.op == "elu":
            var negative = expm1(x * self.numbers[2]) * (
                self.numbers[0] * self.numbers[1]
            )
            return x.le(zero).select(negative, x * self.numbers[1])
        elif Self.op == "leaky_relu":
            return x.gt(zero).select(x, x * self.numbers[0])
        elif Self.op == "log_sigmoid":
            var smaller = x.gt(zero).select(zero, x)
            return smaller - log1p(exp(-abs(x)))
        elif Self.op == "threshold":
            return x.le(Vector(self.numbers[0])).select(
                Vector(self.numbers[1]), x
            )
        elif Self.op == "softshrink":
            var size = Vector(self.numbers[0])
            var low = x.lt(-size).select(x + size, x * 0)
            return x.gt(size).select(x - size, low)
        elif Self.op == "hardshrink":
            var size = Vector(self.numbers[0])
            return (x.ge(-size) & x.le(size)).select(zero, x)
        else:
            comptime assert False, "no such activation"


def activation[op: StaticString, dtype: DType](call: KernelCall) raises:
    """`output = op(input)` for an activation function.

    Parameters:
        op: The aten op's name: "gelu", "silu", "mish", "hardswish", "hardsigmoid", "softplus", "elu", "leaky_relu",
            "log_sigmoid", "threshold", "softshrink" or "hardshrink".
        dtype: A floating type; threshold also has integers.

    Args:
        call: Tensors: output, input. Scalars: the schema's, in its order; Numbers, for gelu the text `approximate`.
    """
    comptime compute = compute_type[dtype]()
    var function = _Activation[op, dtype](SIMD[compute, 4](0), 0)
    comptime for i in range(number_count[op]()):
        function.numbers[i] = call.number[compute](2 * i)
    comptime if op == "gelu":
        function.approximate = Int32(
            1 if call.int_scalar(0) == text_word["tanh"]() else 0
        )
    elementwise(call, function)
