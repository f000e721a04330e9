"""Fills of a whole tensor with one value."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import (
    ElementFunction,
    from_storage,
    storage_type,
    to_storage,
)


@fieldwise_init
struct _Fill[dtype: DType](ElementFunction):
    comptime arity = 0
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1
    var value: Scalar[storage_type[Self.dtype]()]

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return from_storage[Self.dtype](
            SIMD[storage_type[Self.dtype](), w](self.value)
        )


def fill[dtype: DType](call: KernelCall) raises:
    """Writes a value to every element.

    Parameters:
        dtype: The output's type.

    Args:
        call: Tensors: output. Scalars: value, a Number.
    """
    elementwise(call, _Fill[dtype](to_storage(call.number[dtype](0))))
