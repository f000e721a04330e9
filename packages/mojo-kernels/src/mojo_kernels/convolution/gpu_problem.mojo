"""A gather as an argument of GPU kernels: indices into targets, sources and weights."""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder

from mojo_kernels.abi import Data
from mojo_kernels.convolution.geometry import Gather, Position
from mojo_kernels.layout import Divisor
from mojo_kernels.matmul.gpu import Shared
from mojo_kernels.matmul.tile import TileFormat

comptime INDEX_LIMIT = 1 << 31
"""Targets of a launch, and products of a target, stay below this: indices are divided in 32 bits."""
comptime Index = Divisor[DType.uint32]
"""Division of an index."""


@fieldwise_init
struct GpuGather[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """A gather with what its indices are divided by, as an argument of kernels.

    Parameters:
        dtype: The element type.
    """

    comptime device_type: AnyType = Self
    """Kernels receive the struct as it is."""
    comptime ACCUMULATE = TileFormat[Self.dtype].ACCUMULATE
    """The type of sums."""

    var gather: Gather[Self.dtype]
    """The problem."""
    var channels_last: Bool
    """Whether taps are the outer dimension of the depth, so that neighbours along it lie side by side."""
    var inner: Index
    """By the inner dimension of the depth: channels, or taps."""
    var taps_x: Index
    """By the taps of the last axis."""
    var taps_y: Index
    """By the taps of the second axis."""
    var targets_x: Index
    """By the targets of the last axis."""
    var targets_y: Index
    """By the targets of the second axis."""
    var targets_z: Index
    """By the targets of the first axis."""
    var share: Int
    """Targets of a part of the weight gradient's depth."""
    var parts: Int
    """Parts of the weight gradient's depth."""
    var sums: Data[Self.ACCUMULATE]
    """Where the parts' sums go: [parts][groups][results][lines]."""

    def __init__(out self, gather: Gather[Self.dtype]):
        """Prepares the divisions.

        Args:
            gather: The problem; has targets and, for divisions to be used, taps.
        """
        self.gather = gather
        self.channels_last = gather.is_channels_last()
        self.inner = Index(
            max(gather.channels if self.channels_last else gather.taps(), 1)
        )
        self.taps_x = Index(max(gather.axes[2].taps, 1))
        self.taps_y = Index(max(gather.axes[1].taps, 1))
        self.targets_x = Index(gather.axes[2].targets)
        self.targets_y = Index(gather.axes[1].targets)
        self.targets_z = Index(gather.axes[0].targets)
        self.share = 0
        self.parts = 1
        self.sums = Data[Self.ACCUMULATE](unsafe_from_address=Int(gather.out))

    @staticmethod
    def get_type_name() -> String:
        """The name in messages.

        Returns:
            The struct's name.
        """
        return "GpuGather"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def position(self, pixel: Int) -> Position:
        """Splits an index over images and target positions.

        Args:
            pixel: The index.

        Returns:
            The image and the position.
        """
        var index = UInt32(pixel)
        var row = self.targets_x.divide(index)
        var plane = self.targets_y.divide(row)
        var image = self.targets_z.divide(plane)
        return Position(
            Int(image),
            Int(plane - image * self.targets_z.divisor),
            Int(row - plane * self.targets_y.divisor),
            Int(index - row * self.targets_x.divisor),
        )

    @inline(.always)
    def line(self, k: Int) -> Line:
        """Splits an index over source channels and taps.

        Args:
            k: The index.

        Returns:
            The channel and the tap along each axis.
        """
        var index = UInt32(k)
        var outer = self.inner.divide(index)
        var rest = index - outer * self.inner.divisor
        var tap = outer if self.channels_last else rest
        var channel = rest if self.channels_last else outer
        var row = self.taps_x.divide(tap)
        var z = self.taps_y.divide(row)
        return Line(
            Int(channel),
            Int(z),
            Int(row - z * self.taps_y.divisor),
            Int(tap - row * self.taps_x.divisor),
        )

    @inline(.always)
    def source(
        self, group: Int, position: Position, line: Line
    ) -> Scalar[Self.dtype]:
        """What a target reads for a channel and a tap.

        Args:
            group: The group of channels.
            position: The target.
            line: The channel and the tap.

        Returns:
            The element, or zero in the padding.
        """
        var z = self.gather.axes[0].source(position.z, line.z)
        var y = self.gather.axes[1].source(position.y, line.y)
        var x = self.gather.axes[2].source(position.x, line.x)
        if not (
            self.gather.axes[0].contains(z)
            and self.gather.axes[1].contains(y)
            and self.gather.axes[2].contains(x)
        ):
            return 0
        return self.gather.source.unsafe_load(
            position.image * self.gather.source_image
            + (group * self.gather.channels + line.channel)
            * self.gather.source_channel
            + z * self.gather.axes[0].source_stride
            + y * self.gather.axes[1].source_stride
            + x * self.gather.axes[2].source_stride
        )

    @inline(.always)
    def weight_offset(self, group: Int, result: Int, line: Line) -> Int:
        """Where a weight lies.

        Args:
            group: The group of channels.
            result: The target channel in the group.
            line: The source channel and the tap.

        Returns:
            The offset in elements.
        """
        return (
            group * self.gather.weight_group
            + result * self.gather.weight_result
            + line.channel * self.gather.weight_channel
            + line.z * self.gather.axes[0].weight_stride
            + line.y * self.gather.axes[1].weight_stride
            + line.x * self.gather.axes[2].weight_stride
        )


@fieldwise_init
struct Line(TrivialRegisterPassable):
    """A source channel of a group and a tap."""

    var channel: Int
    """The channel."""
    var z: Int
    """The tap along the first axis."""
    var y: Int
    """The tap along the second axis."""
    var x: Int
    """The tap along the third axis."""


@inline(.always)
def put[
    to: DType, dtype: DType, transposed: Bool, stride: Int
](tile: Shared[to], line: Int, depth: Int, value: Scalar[dtype]):
    """Stores an element of a tile.

    Parameters:
        to: The element type of the tile.
        dtype: The type of the value.
        transposed: Whether the tile is [depth][lines] rather than [lines][depth].
        stride: Elements from one row of the tile to the next.

    Args:
        tile: The tile.
        line: The line.
        depth: The position on the line.
        value: The element.
    """
    comptime if transposed:
        tile.unsafe_store(depth * stride + line, value.cast[to]())
    else:
        tile.unsafe_store(line * stride + depth, value.cast[to]())


@inline(.always)
def store_target[
    dtype: DType
](
    problem: GpuGather[dtype],
    group: Int,
    result: Int,
    pixel: Int,
    sum: Scalar[TileFormat[dtype].ACCUMULATE],
):
    """Writes a target, with the bias added, if it exists.

    Parameters:
        dtype: The element type.

    Args:
        problem: The problem.
        group: The group of channels.
        result: The target channel in the group.
        pixel: The index of the target.
        sum: Its products' sum.
    """
    if (
        result >= problem.gather.results
        or pixel >= problem.gather.images * problem.gather.pixels()
    ):
        return
    var channel = group * problem.gather.results + result
    var value = sum
    if problem.gather.has_bias:
        value += problem.gather.bias.unsafe_load(
            channel * problem.gather.bias_stride
        ).cast[TileFormat[dtype].ACCUMULATE]()
    problem.gather.out.unsafe_store(
        problem.gather.out_offset(problem.position(pixel))
        + channel * problem.gather.out_channel,
        value.cast[dtype](),
    )


def check_indices[dtype: DType](gather: Gather[dtype]) raises:
    """Checks that indices fit 32 bits.

    Parameters:
        dtype: The element type.

    Args:
        gather: The problem.

    Raises:
        NotImplementedError: If they don't.
    """
    if gather.pixels() >= INDEX_LIMIT or gather.depth() >= INDEX_LIMIT:
        raise Error(
            "NotImplementedError: a convolution with 2^31 positions of an"
            " image, or weights of a channel; split it"
        )
