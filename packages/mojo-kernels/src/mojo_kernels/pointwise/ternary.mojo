"""Elementwise functions of three operands."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.arithmetic import maximum, minimum
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.pointwise.binary import lerp_function
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction


@fieldwise_init
struct _Where[dtype: DType](ElementFunction):
    comptime arity = 3
    comptime First = DType.bool
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return a._refine[DType.bool]().select(b, c)


@fieldwise_init
struct _Ternary[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 3
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 2
    comptime compute = compute_type[Self.dtype]()
    var value: Scalar[Self.compute]

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = a.cast[Self.compute]()
        var y = b.cast[Self.compute]()
        var z = c.cast[Self.compute]()
        comptime if Self.op == "addcmul":
            return narrow[Self.dtype](x + self.value * y * z)
        elif Self.op == "addcdiv":
            return narrow[Self.dtype](x + self.value * y / z)
        elif Self.op == "lerp":
            return narrow[Self.dtype](lerp_function(x, y, z))
        elif Self.op == "clamp":
            return narrow[Self.dtype](minimum(maximum(x, y), z))
        else:
            comptime assert False, "no such function of three operands"


def ternary[op: StaticString, dtype: DType](call: KernelCall) raises:
    """`output = op(first, second, third)`.

    Parameters:
        op: "addcmul", "addcdiv", "lerp" (start, end, weight), "clamp" (input, min, max) or "where".
        dtype: The type of all tensors; where: of all but the condition, which is bool.

    Args:
        call: Tensors: output, first, second, third. Scalars: value, a Number, for addcmul and addcdiv; else none.
    """
    comptime if op == "where":
        elementwise(call, _Where[dtype]())
    elif op == "addcmul" or op == "addcdiv":
        elementwise(
            call,
            _Ternary[op, dtype](call.number[compute_type[dtype]()](0)),
        )
    else:
        elementwise(call, _Ternary[op, dtype](0))
