"""Gathers on CPUs: implicit matrix products, block by block of targets.

Targets are the rows of the tile (lines.mojo), but where tensors are planar and there is a single tap, or too few target
channels to fill its columns: there targets are its columns.
"""

from std.atomic import Atomic
from std.sys.info import size_of

from mojo_kernels.math import narrow
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.geometry import Gather, Position
from mojo_kernels.convolution.lines import fills_lines, gather_lines
from mojo_kernels.convolution.packing import (
    Counts,
    Panels,
    Segment,
    Segments,
    find_segments,
    pack_planar,
    pack_weight,
    segment_limit,
)
from mojo_kernels.matmul.matrix import ceil_div
from mojo_kernels.matmul.packed import (
    PARALLEL_WORK,
    allocate,
    release,
    run,
)
from mojo_kernels.matmul.tile import TileFormat, multiply_tile

comptime COLUMN_PANELS = 4
"""Panels of targets that a task packs at a time, where targets are columns."""
comptime CHANNELS = 480
"""Target channels that a task sums at a time: a multiple of the tile's rows and columns."""


@inline(.never)
def add_panels[
    dtype: DType, lines: Bool
](
    rows: Int,
    columns: Int,
    depth: Int,
    a: Data[TileFormat[dtype].PACKED],
    b: Data[TileFormat[dtype].PACKED],
    sums: Data[TileFormat[dtype].ACCUMULATE],
    stride: Int,
):
    """Adds the product of two panels to sums; at the edges only as many thirds of the rows and vectors of columns as exist.

    Parameters:
        dtype: The element type of the operands.
        lines: Whether a is [rows][`LINE`] rather than [depth / pair][rows][pair].

    Args:
        rows: How many rows exist.
        columns: How many columns exist.
        depth: The number of groups along the depth.
        a: The left panel.
        b: The right panel.
        sums: `ROWS` x `COLUMNS` sums; others than the existing ones may change.
        stride: Elements between rows of sums.
    """
    comptime Format = TileFormat[dtype]
    comptime third = Format.ROWS // 3
    var thirds = ceil_div(rows, third)
    var vectors = ceil_div(columns, Format.WIDTH)
    comptime for i in range(3, 0, -1):
        comptime for j in range(Format.VECTORS, 0, -1):
            if thirds == i and vectors == j:
                multiply_tile[
                    Format.ACCUMULATE,
                    Format.PACKED,
                    rows=i * third,
                    vectors=j,
                    width=Format.WIDTH,
                    group=Format.GROUP,
                    row_step=Panels[dtype].LINE if lines else Format.GROUP,
                    depth_step=Format.GROUP if lines else Format.ROWS
                    * Format.GROUP,
                    b_step=Format.COLUMNS * Format.GROUP,
                    adds=True,
                ](depth, a, b, sums, stride)


@fieldwise_init
struct _Blocks(TrivialRegisterPassable):
    """How a gather is cut into tasks: groups, blocks of target channels, blocks of targets.
    """

    var pixels: Int
    """Targets over all images."""
    var pixel_block: Int
    """Targets of a task."""
    var channel_block: Int
    """Target channels of a task."""
    var pixel_blocks: Int
    var channel_blocks: Int
    var count: Int
    """The number of tasks."""

    def __init__(
        out self,
        groups: Int,
        pixels: Int,
        channels: Int,
        panel: Int,
        panels: Int,
        channel_panel: Int,
        wanted: Int,
    ):
        """Halves blocks, of targets first, until there are enough tasks."""
        self.pixels = pixels
        self.channel_block = min(
            CHANNELS, ceil_div(channels, channel_panel) * channel_panel
        )
        var n = min(panels, ceil_div(pixels, panel))
        while True:
            self.pixel_block = n * panel
            self.pixel_blocks = ceil_div(pixels, self.pixel_block)
            self.channel_blocks = ceil_div(channels, self.channel_block)
            self.count = groups * self.pixel_blocks * self.channel_blocks
            if self.count >= wanted:
                break
            if n > 1:
                n = (n + 1) // 2
            elif self.channel_block > 2 * channel_panel:
                self.channel_block = (
                    ceil_div(self.channel_block, 2 * channel_panel)
                    * channel_panel
                )
            else:
                break


def gather_on_cpu[dtype: DType](call: KernelCall, gather: Gather[dtype]) raises:
    """Computes a gather.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads.
        gather: The problem.

    Raises:
        If there is no memory for the workspace.
    """
    if gather.images * gather.pixels() * gather.results * gather.groups == 0:
        return
    if gather.is_channels_last():
        var merged = gather
        merged.merge_groups(TileFormat[dtype].WIDTH)
        gather_lines(call, merged, _is_parallel(gather))
    elif gather.taps() > 1 and fills_lines(gather):
        gather_lines(call, gather, _is_parallel(gather))
    else:
        _gather_planar(call, gather)


def _is_parallel[dtype: DType](gather: Gather[dtype]) -> Bool:
    return (
        gather.images
        * gather.pixels()
        * gather.groups
        * gather.results
        * max(gather.depth(), 1)
        >= PARALLEL_WORK // 2
    )


def _packed_weights[
    dtype: DType, lines: Int
](
    call: KernelCall,
    gather: Gather[dtype],
    panel: Int,
    parallel: Bool,
) raises -> Data[TileFormat[dtype].PACKED]:
    """All panels of weights, `panel` elements apart, those of a group after another.
    """
    var panels = ceil_div(gather.results, lines)
    var weights = allocate[TileFormat[dtype].PACKED](
        gather.groups * panels * panel
    )

    def pack(task: Int) {imm}:
        pack_weight[dtype, lines](
            gather,
            task // panels,
            task % panels * lines,
            weights.unsafe_offset(task * panel),
        )

    run(call, parallel, pack, gather.groups * panels)
    return weights


@inline(.always)
def bytes_at[
    dtype: DType
](memory: Data[DType.uint8], offset: Int) -> Data[dtype]:
    """A part of a workspace.

    Parameters:
        dtype: The element type.

    Args:
        memory: The workspace.
        offset: Where the part starts, in bytes.

    Returns:
        The typed address.
    """
    return Data[dtype](unsafe_from_address=Int(memory) + offset)


@inline(.always)
def aligned(bytes: Int) -> Int:
    """A size rounded up to whole cache lines.

    Args:
        bytes: The size.

    Returns:
        A multiple of 64.
    """
    return ceil_div(bytes, 64) * 64


def _gather_planar[
    dtype: DType
](call: KernelCall, gather: Gather[dtype]) raises:
    comptime Format = TileFormat[dtype]
    comptime packed = Format.PACKED
    comptime accumulate = Format.ACCUMULATE
    comptime rows = Format.ROWS
    comptime columns = Format.COLUMNS
    comptime pair = Format.GROUP
    comptime slice = Panels[dtype].DEPTH
    comptime block = columns * COLUMN_PANELS
    comptime b_panel = columns * slice + Panels[dtype].SLACK

    var taps = gather.taps()
    var depth = gather.depth()
    var parallel = _is_parallel(gather)
    # Panels are packed at the same time: what one writes past its end must not reach the next.
    var a_panel = ceil_div(depth, pair) * pair * rows + Panels[dtype].SLACK
    var weights = _packed_weights[dtype, rows](call, gather, a_panel, parallel)
    var threads = Int(call.threads) if parallel else 1
    var blocks = _Blocks(
        gather.groups,
        gather.images * gather.pixels(),
        gather.results,
        columns,
        COLUMN_PANELS,
        rows,
        4 * threads if threads > 1 else 1,
    )
    var workers = min(threads, blocks.count)
    var limit = segment_limit(gather, columns)
    var segments_bytes = aligned(taps * limit * size_of[Segment]())
    var starts_bytes = aligned((taps + 1) * 4)
    var lists_bytes = segments_bytes + starts_bytes
    var b_bytes = aligned(COLUMN_PANELS * b_panel * size_of[Scalar[packed]]())
    var sums_bytes = aligned(
        blocks.channel_block * block * size_of[Scalar[accumulate]]()
    )
    var worker_bytes = b_bytes + sums_bytes + COLUMN_PANELS * lists_bytes
    var workspace = allocate[DType.uint8](workers * worker_bytes)
    var next = Atomic[Int64](0)
    var a_panels = ceil_div(gather.results, rows)
    var lane_stride = gather.axes[2].step * gather.axes[2].source_stride

    def work(worker: Int) {imm, mut next}:
        var memory = workspace.unsafe_offset(worker * worker_bytes)
        var b_packed = bytes_at[packed](memory, 0)
        var sums = bytes_at[accumulate](memory, b_bytes)
        var lists = memory.unsafe_offset(b_bytes + sums_bytes)
        var listed = -1
        while True:
            var task = Int(next.fetch_add(1))
            if task >= blocks.count:
                return
            # Groups of the same targets follow each other: their sources lie alike.
            var rest, channel_block = divmod(task, blocks.channel_blocks)
            var pixel_block, group = divmod(rest, gather.groups)
            var pixel = pixel_block * blocks.pixel_block
            var count = min(blocks.pixel_block, blocks.pixels - pixel)
            var channel = channel_block * blocks.channel_block
            var channels = min(blocks.channel_block, gather.results - channel)
            var source = gather.source.unsafe_offset(
                group * gather.channels * gather.source_channel
            )
            for i in range(ceil_div(channels, rows) * rows):
                var start = Scalar[accumulate](0)
                if gather.has_bias and i < channels:
                    start = gather.bias.unsafe_load(
                        (group * gather.results + channel + i)
                        * gather.bias_stride
                    ).cast[accumulate]()
                comptime for j in range(0, block, Format.WIDTH):
                    sums.unsafe_store[width=Format.WIDTH](
                        i * block + j, SIMD[accumulate, Format.WIDTH](start)
                    )
            var panels = ceil_div(count, columns)
            for j in range(panels if pixel_block != listed else 0):
                var list = lists.unsafe_offset(j * lists_bytes)
                find_segments(
                    gather,
                    pixel + j * columns,
                    min(columns, count - j * columns),
                    Segments(unsafe_from_address=Int(list)),
                    Counts(unsafe_from_address=Int(list) + segments_bytes),
                )
            listed = pixel_block
            for first in range(0, depth, slice):
                var length = min(slice, depth - first)
                for j in range(panels):
                    var list = lists.unsafe_offset(j * lists_bytes)
                    var segments = Segments(unsafe_from_address=Int(list))
                    var starts = Counts(
                        unsafe_from_address=Int(list) + segments_bytes
                    )
                    var panel = b_packed.unsafe_offset(j * b_panel)

                    @inline(.always)
                    def pack[step: Int]() {imm}:
                        pack_planar[dtype, step](
                            source,
                            gather.source_channel,
                            lane_stride,
                            taps,
                            segments,
                            starts,
                            first,
                            length,
                            panel,
                        )

                    if lane_stride == 1:
                        pack[1]()
                    elif lane_stride == 2:
                        pack[2]()
                    else:
                        pack[0]()
                for i in range(0, channels, rows):
                    var left = weights.unsafe_offset(
                        (group * a_panels + (channel + i) // rows) * a_panel
                        + first * rows
                    )
                    for j in range(panels):
                        add_panels[dtype, False](
                            min(rows, channels - i),
                            min(columns, count - j * columns),
                            ceil_div(length, pair),
                            left,
                            b_packed.unsafe_offset(j * b_panel),
                            sums.unsafe_offset(i * block + j * columns),
                            block,
                        )
            _store_planar[dtype, block](
                gather,
                pixel,
                count,
                group * gather.results + channel,
                channels,
                sums,
            )

    run(call, parallel, work, workers)
    release(workspace)
    release(weights)


@inline(.never)
def _store_planar[
    dtype: DType, block: Int
](
    gather: Gather[dtype],
    pixel: Int,
    count: Int,
    channel: Int,
    channels: Int,
    sums: Data[TileFormat[dtype].ACCUMULATE],
):
    """Writes sums [channels][block], row by row of the target."""
    comptime width = TileFormat[dtype].WIDTH
    var inner = gather.axes[2]
    var row = inner.targets
    # Rows that follow each other without gaps are one.
    if gather.axes[1].out_stride == row * inner.out_stride or (
        gather.axes[1].targets == 1
    ):
        row *= gather.axes[1].targets
        if gather.axes[0].out_stride == row * inner.out_stride or (
            gather.axes[0].targets == 1
        ):
            row *= gather.axes[0].targets
    var lane = 0
    while lane < count:
        var length = min(row - (pixel + lane) % row, count - lane)
        var out = gather.out.unsafe_offset(
            gather.out_offset(gather.position(pixel + lane))
            + channel * gather.out_channel
        )
        for i in range(channels):
            var target = out.unsafe_offset(i * gather.out_channel)
            var values = sums.unsafe_offset(i * block + lane)
            var j = 0
            if inner.out_stride == 1:
                while j + width <= length:
                    target.unsafe_store[width=width](
                        j, narrow[dtype](values.unsafe_load[width=width](j))
                    )
                    j += width
            while j < length:
                target.unsafe_store(
                    j * inner.out_stride, narrow[dtype](values.unsafe_load(j))
                )
                j += 1
        lane += length
