"""Gradients of activation functions."""

from mojo_kernels.abi import KernelCall, text_word
from mojo_kernels.math import compute_type, exp, narrow, sigmoid, widen
from mojo_kernels.pointwise.activation import (
    GELU_CUBIC,
    SQRT_2_BY_PI,
    SQRT_HALF,
    number_count,
)
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from mojo_kernels.special import erf

comptime INVERSE_SQRT_2_PI = 0.39894228040143267794
"""1 / sqrt(2 pi)."""


@fieldwise_init
struct _Backward[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 2
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 8 if (
        Self.op == "gelu_backward"
        or Self.op == "silu_backward"
        or Self.op == "elu_backward"
        or Self.op == "softplus_backward"
        or Self.op == "mish_backward"
        or Self.op == "log_sigmoid_backward"
        or Self.op == "logit_backward"
    ) else 1
    comptime compute = compute_type[Self.dtype]()
    var numbers: SIMD[Self.compute, 4]
    var flag: Int32
    """GELU: 1 for the tanh approximation; ELU: 1 if the second operand is the result."""

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return narrow[Self.dtype](self.function(widen(a), widen(b)))

    @inline(.always)
    def function[
        w: SIMDLength
    ](self, grad: SIMD[Self.compute, w], x: SIMD[Self.compute, w]) -> SIMD[
        Self.compute, w
    ]:
        comptime Vector = SIMD[Self.compute, w]
        var zero = Vector(0)
        comptime if Self.op == "threshold_backward":
            return x.le(Vector(self.numbers[0])).select(zero, grad)
        elif Self.op == "gelu_backward":
            var square = x * x
            if self.flag != 0:
                var u = x * (1 + GELU_CUBIC * square)
                var s = 1 / (1 + exp(Vector(-2 * SQRT_2_BY_PI) * u))
                var slope = (2 * SQRT_2_BY_PI) * (1 + (3 * GELU_CUBIC) * square)
                return grad * (s + x * s * (1 - s) * slope)
            var distribution = 0.5 * (1 + erf(x * SQRT_HALF))
            var density = INVERSE_SQRT_2_PI * exp(-0.5 * square)
            return grad * (distribution + x * density)
        elif Self.op == "silu_backward":
            var s = sigmoid(x)
            return grad * s * (1 + x * (1 - s))
        elif Self.op == "sigmoid_backward":
            return grad * (1 - x) * x
        elif Self.op == "tanh_backward":
            return grad * (1 - x * x)
        elif Self.op == "leaky_relu_backward":
            return x.gt(zero).select(grad, grad * self.numbers[0])
        elif Self.op == "elu_backward":
            var negative_scale = self.numbers[0] * self.numbers[1]
            var value: Vector
            if self.flag != 0:
                value = x + negative_scale
            else:
                value = exp(x * self.numbers[2]) * negative_scale
            return x.gt(zero).select(
                grad * self.numbers[1], grad * self.numbers[2] * value
            )
        elif Self.op == "hardtanh_backward":
            var inside = x.gt(Vector(self.numbers[0])) & x.lt(
                Vector(self.numbers[1])
            )
            return inside.select(grad, zero)
        elif Self.op == "hardswish_backward":
            var above = x.ge(Vector(3)).select(grad, grad * (x / 3 + 0.5))
            return x.le(Vector(-3)).select(zero, above)
        elif Self.op == "hardsigmoid_backward":
            var inside = x.gt(Vector(-3)) & x.lt(Vector(3))
            return inside.select(grad * (1.0 / 6), zero)
        elif Self.op == "softplus_backward":
            var scaled = x * self.numbers[0]
            var z = exp(scaled)
            return scaled.gt(Vector(self.numbers[1])).select(
                grad, grad * z / (z + 1)
            )
        elif Self.op == "mish_backward":
            var e = exp(x.gt(Vector(20)).select(Vector(20), x))
            var n = e * (e + 2)
            var t = n / (n + 2)
            return grad * (t + x * sigmoid(x) * (1 - t * t))
        elif Self.op == "log_sigmoid_backward":
            return grad / (1 + exp(x))
        elif Self.op == "softshrink_backward" or Self.op == "hardshrink_backward":
            var size = Vector(self.numbers[0])
            return (x.lt(-size) | x.gt(size)).select(grad, zero)
        elif Self.op == "logit_backward":
            # numbers[0] is eps, -1 without one: then the derivative is NaN outside [0, 1].
            var low = Vector(self.numbers[0])
            var value = grad / (x * (1 - x))
            if self.numbers[0] < 0:
                return (x.lt(zero) | x.gt(Vector(1))).select(
                    Vector(0) / Vector(0), value
                )
            return (x.ge(low) & x.le(1 - low)).select(value, zero)
        else:
            comptime assert False, "no such activation"


def activation_backward[
    op: StaticString, dtype: DType
](call: KernelCall) raises:
    """`grad_input = grad_output * op'(...)`.

    Parameters:
        op: The aten op's name, e.g. "gelu_backward".
        dtype: The type of all tensors, floating; threshold_backward also has integers.

    Args:
        call: Tensors: grad_input, grad_output, and the activation's input (sigmoid, tanh: its output; elu: either).
            Scalars: the schema's, in its order: Numbers; gelu: the text `approximate`; elu: after the Numbers the bool
            `is_result`; logit: eps, an optional float.
    """
    comptime compute = compute_type[dtype]()
    var function = _Backward[op, dtype](SIMD[compute, 4](0), 0)
    comptime for i in range(number_count[op]()):
        function.numbers[i] = call.number[compute](2 * i)
    comptime if op == "gelu_backward":
        function.flag = Int32(
            1 if call.int_scalar(0) == text_word["tanh"]() else 0
        )
    elif op == "elu_backward":
        function.flag = Int32(call.int_scalar(6))
    elif op == "logit_backward":
        function.numbers[0] = -1
        if call.int_scalar(0) != 0:
            function.numbers[0] = call.float_scalar(1).cast[compute]()
    elementwise(call, function)
