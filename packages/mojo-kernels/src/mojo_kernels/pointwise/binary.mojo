"""Elementwise functions of two operands of the same dtype."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.math import compute_type, widen
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction


@fieldwise_init
struct _Binary[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 2
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1
    var alpha: Scalar[compute_type[Self.dtype]()]

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        comptime if Self.op == "add":
            return (widen(a) + widen(b) * self.alpha).cast[Self.dtype]()
        else:
            return (widen(a) * widen(b)).cast[Self.dtype]()


def binary[op: StaticString, dtype: DType](call: KernelCall) raises:
    comptime compute = compute_type[dtype]()
    elementwise(call, _Binary[op, dtype](call.number[compute](0)))
