"""Tensors [batch, channels, depth, height, width], whatever of it they have, and loops over them."""

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.math import compute_type
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import is_gpu
from std.utils.static_tuple import StaticTuple

comptime BATCH = 0
"""Position of the batch among a volume's dimensions."""
comptime CHANNEL = 1
"""Position of the channels."""
comptime SPATIAL = 2
"""Position of the first spatial dimension; three follow, the last is the fastest of a contiguous tensor."""


struct Volume(DevicePassable, TrivialRegisterPassable):
    """Sizes and strides of a tensor with up to three spatial dimensions; missing ones, and a missing batch, have size 1.
    """

    comptime device_type: AnyType = Self
    """The type on the device."""

    var sizes: StaticTuple[Int64, 5]
    """Batch, channels, depth, height, width."""
    var strides: StaticTuple[Int64, 5]
    """In elements."""

    def __init__(out self, tensor: Tensor, spatial: Int):
        """Views a tensor.

        Args:
            tensor: [..., channels, spatial dimensions].
            spatial: The number of spatial dimensions, 1 to 3.
        """
        self.sizes = StaticTuple[Int64, 5](fill=1)
        self.strides = StaticTuple[Int64, 5](fill=0)
        var ndim = Int(tensor.ndim)
        for i in range(ndim):
            var to = 5 - spatial + i - (ndim - spatial)
            if i < ndim - spatial:
                to = SPATIAL + i - (ndim - spatial)
            self.sizes[to] = Int64(tensor.size(i))
            self.strides[to] = Int64(tensor.stride(i))

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "Volume"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def size(self, dimension: Int) -> Int:
        """A size.

        Args:
            dimension: From `BATCH` to `SPATIAL + 2`.

        Returns:
            The number of elements along it.
        """
        return Int(self.sizes[dimension])

    @inline(.always)
    def stride(self, dimension: Int) -> Int:
        """A stride.

        Args:
            dimension: From `BATCH` to `SPATIAL + 2`.

        Returns:
            The distance in elements between neighbours along it.
        """
        return Int(self.strides[dimension])

    @inline(.always)
    def numel(self) -> Int:
        """The number of elements.

        Returns:
            The product of the sizes.
        """
        return self.size(BATCH) * self.size(CHANNEL) * self.plane_size()

    @inline(.always)
    def plane_size(self) -> Int:
        """The number of elements of a channel of a sample.

        Returns:
            The product of the spatial sizes.
        """
        return self.size(2) * self.size(3) * self.size(4)

    @inline(.always)
    def plane(self, n: Int, c: Int) -> Int:
        """Where a channel of a sample starts.

        Args:
            n: The sample.
            c: The channel.

        Returns:
            The offset in elements.
        """
        return n * self.stride(BATCH) + c * self.stride(CHANNEL)

    @inline(.always)
    def at(self, d: Int, h: Int, w: Int) -> Int:
        """Where a point of a plane lies.

        Args:
            d: Its depth.
            h: Its row.
            w: Its column.

        Returns:
            The offset in elements from the start of the plane.
        """
        return d * self.stride(2) + h * self.stride(3) + w * self.stride(4)

    @inline(.always)
    def in_plane(self, index: Int) -> Int:
        """Where the element with a row-major index over the spatial dimensions lies.

        Args:
            index: From 0 to `plane_size() - 1`.

        Returns:
            The offset in elements from the start of the plane.
        """
        var row, w = split(index, self.size(4))
        var d, h = split(row, self.size(3))
        return self.at(d, h, w)

    @inline(.always)
    def row_major_plane(self) -> Bool:
        """Whether `in_plane(index)` is `index * stride(4)`.

        Returns:
            True for contiguous and channels-last tensors.
        """
        return (
            self.size(3) == 1 or self.stride(3) == self.size(4) * self.stride(4)
        ) and (
            self.size(2) == 1
            or self.stride(2) == self.size(3) * self.size(4) * self.stride(4)
        )

    @inline(.always)
    def channels_last(self) -> Bool:
        """Whether neighbouring channels are neighbours in memory.

        Returns:
            True if vectors lie along the channels.
        """
        return self.stride(CHANNEL) == 1 and (
            self.size(CHANNEL) > 1 and self.stride(4) != 1
        )


@fieldwise_init
struct Point(TrivialRegisterPassable):
    """A position in a volume."""

    var n: Int
    """The sample."""
    var c: Int
    """The channel."""
    var d: Int
    """The depth."""
    var h: Int
    """The row."""
    var w: Int
    """The column."""

    def __init__(out self, volume: Volume, channels_last: Bool, i: Int):
        """The i-th element of a volume, for GPU threads.

        Args:
            volume: The sizes.
            channels_last: Whether channels are the fastest dimension of the count, else columns are.
            i: From 0 to `volume.numel() - 1`.
        """
        var rest = i
        self.c = 0
        if channels_last:
            rest, self.c = split(rest, volume.size(CHANNEL))
        rest, self.w = split(rest, volume.size(4))
        rest, self.h = split(rest, volume.size(3))
        rest, self.d = split(rest, volume.size(2))
        self.n = rest
        if not channels_last:
            self.n, self.c = split(rest, volume.size(CHANNEL))


@inline(.always)
def split(a: Int, b: Int) -> Tuple[Int, Int]:
    """Quotient and remainder, on GPUs in 32 bits where both numbers fit.

    Args:
        a: Not negative.
        b: Positive.

    Returns:
        `(a // b, a % b)`.
    """
    comptime if is_gpu():
        if (a | b) < (1 << 31):
            var quotient = Int(UInt32(a) // UInt32(b))
            return (quotient, a - quotient * b)
    var quotient = Int(UInt64(a) // UInt64(b))
    return (quotient, a - quotient * b)


@inline(.always)
def load_lanes[
    dtype: DType, //, w: Int, step: Int
](data: Data[dtype], offset: Int) -> SIMD[compute_type[dtype](), w]:
    """Loads neighbours, or every second element, in the type that computes.

    Parameters:
        dtype: The element type.
        w: How many.
        step: 1, or 2: then `2 * w` elements must be readable.

    Args:
        data: The tensor.
        offset: The first element.

    Returns:
        The values.
    """
    comptime if step == 2:
        var pairs = data.unsafe_load[width=2 * w](offset).deinterleave()
        return pairs[0].slice[w]().cast[compute_type[dtype]()]()
    else:
        return data.unsafe_load[width=w](offset).cast[compute_type[dtype]()]()


struct ScalarReader(Movable):
    """Reads the scalars of a call in turn."""

    var position: Int
    """The next word."""

    def __init__(out self, position: Int):
        """Starts at a word.

        Args:
            position: Its number.
        """
        self.position = position

    def next(mut self, call: KernelCall) -> Int:
        """Reads a word.

        Args:
            call: The call.

        Returns:
            Its value.
        """
        self.position += 1
        return call.int_scalar(self.position - 1)

    def next_spatial(
        mut self,
        call: KernelCall,
        spatial: Int,
        missing: Int,
        default: StaticTuple[Int64, 3],
    ) -> StaticTuple[Int64, 3]:
        """Reads an int[] with a value per spatial dimension, or one for all.

        Args:
            call: The call.
            spatial: The number of spatial dimensions.
            missing: The value of those that the tensors do not have.
            default: What an empty list stands for.

        Returns:
            Values for depth, height and width.
        """
        var count = self.next(call)
        if count == 0:
            return default
        var values = StaticTuple[Int64, 3](fill=Int64(missing))
        for i in range(spatial):
            values[3 - spatial + i] = Int64(
                call.int_scalar(self.position + (i if count > 1 else 0))
            )
        self.position += count
        return values
