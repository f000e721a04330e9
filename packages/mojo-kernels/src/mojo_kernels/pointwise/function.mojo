"""What a pointwise kernel computes: a function of one element's operands, and how values lie in memory."""

from mojo_kernels.abi import Data
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder


trait ElementFunction(DevicePassable, TrivialRegisterPassable):
    """What a pointwise kernel does to the operands of one element, for a vector of elements at once.

    Values of dtype bool arrive as vectors of bool and are stored as bytes 0 and 1.
    """

    comptime arity: Int
    """The number of inputs, from 0 to 3."""
    comptime First: DType
    """The first input's type."""
    comptime Rest: DType
    """The other inputs' type."""
    comptime Output: DType
    """The output's type."""
    comptime cost: Int
    """About how many times dearer than an addition; decides how many elements are worth a thread."""
    comptime device_type: AnyType = Self
    """The type on the device."""

    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        """Computes a vector of elements.

        Parameters:
            w: How many.

        Args:
            a: The first input.
            b: The second input; meaningless where the arity is less.
            c: The third input; meaningless where the arity is less.

        Returns:
            The output.
        """
        ...

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "ElementFunction"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)


@inline(.always)
def storage_type[dtype: DType]() -> DType:
    """How values of a type lie in memory.

    Parameters:
        dtype: The element type.

    Returns:
        uint8 for bool, whose bytes are 0 and 1; else the type itself.
    """
    comptime if dtype == DType.bool:
        return DType.uint8
    else:
        return dtype


comptime Storage[dtype: DType] = Data[storage_type[dtype]()]
"""The address of elements as they lie in memory."""


@inline(.always)
def from_storage[
    dtype: DType, w: SIMDLength
](value: SIMD[storage_type[dtype](), w]) -> SIMD[dtype, w]:
    """Turns loaded values into values of the element type.

    Parameters:
        dtype: The element type.
        w: The vector width.

    Args:
        value: What was loaded.

    Returns:
        The values.
    """
    comptime if dtype == DType.bool:
        return value.ne(0)._refine[dtype]()
    else:
        return value._refine[dtype]()


@inline(.always)
def to_storage[
    dtype: DType, w: SIMDLength
](value: SIMD[dtype, w]) -> SIMD[storage_type[dtype](), w]:
    """Turns values into what is stored.

    Parameters:
        dtype: The element type.
        w: The vector width.

    Args:
        value: The values.

    Returns:
        What to store.
    """
    return value.cast[storage_type[dtype]()]()
