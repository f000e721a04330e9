"""Convolutions on GPUs: implicit matrix products with tiles in shared memory.

A block sums a tile of target channels and targets. Half types use the tensor cores of NVIDIA GPUs, as in the matrix product.
"""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import is_nvidia_gpu

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.sync import barrier

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.geometry import Gather, Position
from mojo_kernels.layout import Divisor
from mojo_kernels.matmul.gpu import (
    DEPTH,
    GRID_LIMIT,
    MMA_DEPTH,
    STRIDE,
    THREADS,
    TILE,
    Shared,
    ThreadTile,
    WarpTile,
    shared_memory,
)
from mojo_kernels.matmul.matrix import ceil_div
from mojo_kernels.matmul.tile import TileFormat
from mojo_kernels.reduction.rows import gpu_context

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
def _load_gather[
    dtype: DType, to: DType, depth: Int, transposed: Bool, stride: Int
](
    problem: GpuGather[dtype],
    group: Int,
    result: Int,
    position: Position,
    exists: Bool,
    start: Int,
    left: Shared[to],
    right: Shared[to],
):
    """Loads the weights of `TILE` target channels and the sources of `TILE` targets, one of which is the thread's.
    """
    var total = problem.gather.depth()
    var lane = Int(thread_idx.x) % TILE
    comptime for step in range(TILE * depth // THREADS):
        var p = step * (THREADS // TILE) + Int(thread_idx.x) // TILE
        var weight = Scalar[dtype](0)
        var source = Scalar[dtype](0)
        if start + p < total:
            var line = problem.line(start + p)
            if exists:
                source = problem.source(group, position, line)
            if result + lane < problem.gather.results:
                weight = problem.gather.weight.unsafe_load(
                    problem.weight_offset(group, result + lane, line)
                )
        put[to, dtype, transposed, stride](left, lane, p, weight)
        put[to, dtype, transposed, stride](right, lane, p, source)


@inline(.always)
def _store_target[
    dtype: DType
](
    problem: GpuGather[dtype],
    group: Int,
    result: Int,
    pixel: Int,
    sum: Scalar[TileFormat[dtype].ACCUMULATE],
):
    """Writes a target if it exists."""
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


def _gather_kernel[dtype: DType](problem: GpuGather[dtype]):
    """Blocks along x are tiles of targets, along y tiles of target channels, along z groups.
    """
    var first_pixel = Int(block_idx.x) * TILE
    var pixel = first_pixel + Int(thread_idx.x) % TILE
    var exists = pixel < problem.gather.images * problem.gather.pixels()
    var position = problem.position(pixel if exists else 0)
    var total = problem.gather.depth()
    for group in range(
        Int(block_idx.z), problem.gather.groups, Int(grid_dim.z)
    ):
        for result in range(
            Int(block_idx.y) * TILE,
            problem.gather.results,
            Int(grid_dim.y) * TILE,
        ):
            comptime if is_nvidia_gpu() and dtype.is_half_float():
                comptime stride = WarpTile[dtype].STRIDE
                var left = shared_memory[dtype, TILE * stride]()
                var right = shared_memory[dtype, TILE * stride]()
                var tile = WarpTile[dtype]()
                for start in range(0, total, MMA_DEPTH):
                    _load_gather[dtype, dtype, MMA_DEPTH, False, stride](
                        problem,
                        group,
                        result,
                        position,
                        exists,
                        start,
                        left,
                        right,
                    )
                    barrier()
                    tile.add_step(left, right)
                    barrier()
                comptime for i in range(tile.ROW_STEPS):
                    comptime for j in range(tile.COLUMN_STEPS):
                        comptime for e in range(4):
                            _store_target(
                                problem,
                                group,
                                result + tile.row(i, e),
                                first_pixel + tile.column(j, e),
                                rebind[Scalar[TileFormat[dtype].ACCUMULATE]](
                                    tile.sums[i * tile.COLUMN_STEPS + j][e]
                                ),
                            )
            else:
                comptime accumulate = TileFormat[dtype].ACCUMULATE
                var left = shared_memory[accumulate, DEPTH * STRIDE]()
                var right = shared_memory[accumulate, DEPTH * STRIDE]()
                var tile = ThreadTile[accumulate]()
                for start in range(0, total, DEPTH):
                    _load_gather[dtype, accumulate, DEPTH, True, STRIDE](
                        problem,
                        group,
                        result,
                        position,
                        exists,
                        start,
                        left,
                        right,
                    )
                    barrier()
                    tile.add_step(left, right, DEPTH)
                    barrier()
                comptime for i in range(tile.ROWS):
                    comptime for j in range(tile.COLUMNS):
                        _store_target(
                            problem,
                            group,
                            result + tile.row() + i,
                            first_pixel + tile.column() + j,
                            tile.sums[i][j],
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


def gather_on_gpu[dtype: DType](call: KernelCall, gather: Gather[dtype]) raises:
    """Computes a gather on the stream's device.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the stream.
        gather: The problem.

    Raises:
        NotImplementedError: An image has 2^31 or more targets, or a target as many products.
    """
    if gather.images * gather.pixels() * gather.results * gather.groups == 0:
        return
    check_indices(gather)
    var most = max((INDEX_LIMIT - TILE) // gather.pixels(), 1)
    var context = gpu_context(call)
    for image in range(0, gather.images, most):
        var some = gather
        some.images = min(most, gather.images - image)
        some.out = gather.out.unsafe_offset(image * gather.out_image)
        some.source = gather.source.unsafe_offset(image * gather.source_image)
        context.enqueue_function[_gather_kernel[dtype]](
            GpuGather(some),
            grid_dim=(
                ceil_div(some.images * some.pixels(), TILE),
                min(ceil_div(some.results, TILE), GRID_LIMIT),
                min(some.groups, GRID_LIMIT),
            ),
            block_dim=THREADS,
        )
