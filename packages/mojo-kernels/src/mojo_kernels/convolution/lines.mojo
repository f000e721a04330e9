"""Gathers on CPUs whose targets are the rows of the register tile: products of regions of the source with all weights.

The tile's rows are read where they lie, one address for each target; its columns are target channels.
"""

from std.atomic import Atomic
from std.memory import stack_allocation
from std.sys.info import size_of
from std.sys.intrinsics import masked_store

from mojo_kernels.math import narrow
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.geometry import Gather
from mojo_kernels.convolution.packing import Panels
from mojo_kernels.convolution.regions import Regions, is_readable
from mojo_kernels.matmul.matrix import ceil_div, first_lanes
from mojo_kernels.matmul.packed import allocate, release, run
from mojo_kernels.matmul.packing import pack_panel, transpose_square
from mojo_kernels.matmul.tile import TileFormat, multiply_add

comptime BUFFER_ROWS = 512
"""Rows of weights that are transposed at a time."""


def fills_lines[dtype: DType](gather: Gather[dtype]) -> Bool:
    """Whether target channels fill the columns of the tile about as well as its rows.

    Parameters:
        dtype: The element type.

    Args:
        gather: The problem.

    Returns:
        False if more than a quarter of the work would be lost.
    """
    comptime width = TileFormat[dtype].WIDTH
    comptime third = TileFormat[dtype].ROWS // 3
    return (
        3 * ceil_div(gather.results, width) * width
        <= 4 * ceil_div(gather.results, third) * third
    )


def gather_lines[
    dtype: DType
](call: KernelCall, gather: Gather[dtype], parallel: Bool) raises:
    """Computes a gather.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads.
        gather: The problem.
        parallel: Whether to use them.

    Raises:
        If there is no memory for the workspace.
    """
    comptime Format = TileFormat[dtype]
    comptime packed = Format.PACKED
    comptime accumulate = Format.ACCUMULATE
    comptime rows = Format.ROWS
    comptime columns = Format.COLUMNS
    comptime width = Format.WIDTH
    comptime group_size = Format.GROUP

    var regions = Regions.chosen(gather, is_readable(gather))
    var panels = ceil_div(gather.results, columns)
    var threads = Int(call.threads) if parallel else 1
    # Regions of a task, and blocks of panels that are tasks of their own.
    var together = regions.together()
    var blocks = 1
    while threads > 1:
        var tasks = ceil_div(regions.count(), together) * gather.groups * blocks
        if tasks >= 4 * threads:
            break
        if together > 1:
            together = min((together + 1) // 2, ceil_div(regions.count(), 2))
        elif regions.can_halve():
            regions = regions.halved()
        elif blocks * 2 <= panels:
            blocks *= 2
        else:
            break
    var region_count = regions.count()
    together = min(together, region_count)
    var stacks = ceil_div(region_count, together)
    var block_panels = ceil_div(panels, blocks)
    blocks = ceil_div(panels, block_panels)
    var tasks = stacks * gather.groups * blocks
    var workers = min(threads, tasks)

    # The depth as runs of neighbours.
    var taps = gather.taps()
    var x_taps = gather.axes[2].taps
    var runs = taps
    if taps > 0 and regions.merges_taps():
        runs = taps // x_taps
    var run_size = regions.run()
    var run_offsets = allocate[DType.int64](max(runs, 1))
    for index in range(runs):
        var x = 0
        var row = index
        if runs == taps:
            row, x = divmod(index, x_taps)
        var z, y = divmod(row, gather.axes[1].taps)
        run_offsets.unsafe_store(index, Int64(regions.tap_offset(z, y, x)))

    var b_panel = runs * run_size * columns + Panels[dtype].SLACK
    var weights = allocate[packed](gather.groups * panels * b_panel)

    def pack(task: Int) {imm}:
        pack_taps[dtype, columns](
            gather,
            task // panels,
            task % panels * columns,
            regions.channels,
            regions.unfolded,
            weights.unsafe_offset(task * b_panel),
        )

    run(call, parallel, pack, gather.groups * panels)

    # A worker's sources, sums of a panel, and places of sources and targets.
    var copy_size = regions.size + 64 // size_of[Scalar[packed]]()
    var limit = together * regions.height * regions.width + max(rows, width)
    var copies = allocate[packed](
        workers * together * copy_size if not regions.in_place else 1
    )
    var sums = allocate[accumulate](workers * limit * columns)
    var places = allocate[DType.int64](workers * 2 * limit)
    var next = Atomic[Int64](0)

    def work(worker: Int) {imm, mut next}:
        var own = copies.unsafe_offset(worker * together * copy_size)
        var own_sums = sums.unsafe_offset(worker * limit * columns)
        var sources = places.unsafe_offset(worker * 2 * limit)
        var targets = sources.unsafe_offset(limit)
        while True:
            var task = Int(next.fetch_add(1))
            if task >= tasks:
                return
            var rest, block = divmod(task, blocks)
            var stack, group = divmod(rest, gather.groups)
            var base = own
            if regions.in_place:
                base = Data[packed](
                    unsafe_from_address=Int(
                        gather.source.unsafe_offset(
                            group * gather.channels * gather.source_channel
                        )
                    )
                )
            var count = 0
            for i in range(min(together, region_count - stack * together)):
                var region = regions.region(stack * together + i)
                var start = i * copy_size
                if regions.in_place:
                    start = regions.source_offset(region)
                else:
                    regions.copy(
                        region,
                        group * gather.channels,
                        gather.channels,
                        own.unsafe_offset(start),
                    )
                var out = gather.out_offset(region.first)
                for y in range(region.height):
                    var row = start + y * gather.axes[1].step * regions.row
                    var out_row = out + y * gather.axes[1].out_stride
                    for x in range(region.width):
                        sources.unsafe_store(
                            count,
                            Int64(row + x * regions.target_step()),
                        )
                        targets.unsafe_store(
                            count,
                            Int64(out_row + x * gather.axes[2].out_stride),
                        )
                        count += 1
            # The tile reads rows that do not exist, too.
            for i in range(rows):
                sources.unsafe_store(count + i, sources.unsafe_load(count - 1))
            for panel in range(
                block * block_panels, min((block + 1) * block_panels, panels)
            ):
                var channel = panel * columns
                var channels = min(columns, gather.results - channel)
                var right = weights.unsafe_offset(
                    (group * panels + panel) * b_panel
                )
                for i in range(0, count, rows):
                    _multiply_rows[dtype](
                        min(rows, count - i),
                        channels,
                        base,
                        sources.unsafe_offset(i),
                        runs,
                        run_offsets,
                        run_size // group_size,
                        right,
                        own_sums.unsafe_offset(i * columns),
                    )
                _store_panel[dtype](
                    gather,
                    group * gather.results + channel,
                    channels,
                    targets,
                    count,
                    own_sums,
                )

    run(call, parallel, work, workers)
    release(places)
    release(sums)
    release(copies)
    release(weights)
    release(run_offsets)


@inline(.never)
def _multiply_rows[
    dtype: DType
](
    rows: Int,
    columns: Int,
    a: Data[TileFormat[dtype].PACKED],
    places: Data[DType.int64],
    runs: Int,
    run_offsets: Data[DType.int64],
    groups: Int,
    b: Data[TileFormat[dtype].PACKED],
    sums: Data[TileFormat[dtype].ACCUMULATE],
):
    """Multiplies rows at any places with a panel; at the edges only as many thirds of the rows and vectors of columns as exist.
    """
    comptime Format = TileFormat[dtype]
    comptime third = Format.ROWS // 3
    var thirds = ceil_div(rows, third)
    var vectors = ceil_div(columns, Format.WIDTH)
    comptime for i in range(3, 0, -1):
        comptime for j in range(Format.VECTORS, 0, -1):
            if thirds == i and vectors == j:
                _multiply_places[dtype, i * third, j](
                    a, places, runs, run_offsets, groups, b, sums
                )


@inline(.always)
def _multiply_places[
    dtype: DType, rows: Int, vectors: Int
](
    a: Data[TileFormat[dtype].PACKED],
    places: Data[DType.int64],
    runs: Int,
    run_offsets: Data[DType.int64],
    groups: Int,
    b: Data[TileFormat[dtype].PACKED],
    target: Data[TileFormat[dtype].ACCUMULATE],
):
    comptime Format = TileFormat[dtype]
    comptime packed = Format.PACKED
    comptime width = Format.WIDTH
    comptime group = Format.GROUP
    comptime lanes = width * group
    var sums = Array[SIMD[Format.ACCUMULATE, width], rows * vectors](
        fill=SIMD[Format.ACCUMULATE, width](0)
    )
    var left = Array[Data[packed], rows](fill=a)
    comptime for i in range(rows):
        left[i] = a.unsafe_offset(Int(places.unsafe_load(i)))
    var right = b
    for index in range(runs):
        var at = Int(run_offsets.unsafe_load(index))
        for _ in range(groups):
            var row = Array[SIMD[packed, lanes], vectors](
                fill=SIMD[packed, lanes](0)
            )
            comptime for j in range(vectors):
                row[j] = right.unsafe_load[width=lanes](j * lanes)
            comptime for i in range(rows):
                comptime for j in range(vectors):
                    sums[i * vectors + j] = multiply_add[
                        Format.ACCUMULATE, packed, width, group
                    ](
                        left[i].unsafe_offset(at),
                        row[j],
                        sums[i * vectors + j],
                    )
            at += group
            right = right.unsafe_offset(Format.COLUMNS * group)
    comptime for i in range(rows):
        comptime for j in range(vectors):
            target.unsafe_store[width=width](
                i * Format.COLUMNS + j * width, sums[i * vectors + j]
            )


@inline(.never)
def _store_panel[
    dtype: DType
](
    gather: Gather[dtype],
    channel: Int,
    channels: Int,
    places: Data[DType.int64],
    count: Int,
    sums: Data[TileFormat[dtype].ACCUMULATE],
):
    """Adds the bias and writes sums [targets][`COLUMNS`]."""
    comptime Format = TileFormat[dtype]
    comptime accumulate = Format.ACCUMULATE
    comptime width = Format.WIDTH
    comptime columns = Format.COLUMNS
    var out = gather.out.unsafe_offset(channel * gather.out_channel)
    var bias = Array[SIMD[accumulate, width], Format.VECTORS](
        fill=SIMD[accumulate, width](0)
    )
    if gather.has_bias:
        comptime for j in range(Format.VECTORS):
            for lane in range(min(width, channels - j * width)):
                bias[j][lane] = gather.bias.unsafe_load(
                    (channel + j * width + lane) * gather.bias_stride
                ).cast[accumulate]()
    if gather.out_channel == 1:
        for i in range(count):
            var target = out.unsafe_offset(Int(places.unsafe_load(i)))
            comptime for j in range(Format.VECTORS):
                if channels > j * width:
                    var value = narrow[dtype](
                        sums.unsafe_load[width=width](i * columns + j * width)
                        + bias[j]
                    )
                    if channels >= (j + 1) * width:
                        target.unsafe_store[width=width](j * width, value)
                    else:
                        masked_store(
                            value,
                            target.unsafe_offset(j * width),
                            first_lanes[width](channels - j * width),
                        )
        return
    for start in range(0, count, width):
        var lanes = min(count - start, width)
        var first = Int(places.unsafe_load(start))
        var follows = True
        for i in range(1, lanes):
            follows = follows and Int(places.unsafe_load(start + i)) == (
                first + i
            )
        comptime for j in range(Format.VECTORS):
            var existing = min(channels - j * width, width)
            if existing <= 0:
                continue
            var square = Array[SIMD[accumulate, width], width](
                fill=SIMD[accumulate, width](0)
            )
            comptime for i in range(width):
                square[i] = (
                    sums.unsafe_load[width=width](
                        (start + i) * columns + j * width
                    )
                    + bias[j]
                )
            transpose_square(square)
            var here = out.unsafe_offset(first + j * width * gather.out_channel)
            if follows and lanes == width:
                comptime for i in range(width):
                    if i < existing:
                        here.unsafe_store[width=width](
                            i * gather.out_channel, narrow[dtype](square[i])
                        )
            elif follows:
                var mask = first_lanes[width](lanes)
                comptime for i in range(width):
                    if i < existing:
                        masked_store(
                            narrow[dtype](square[i]),
                            here.unsafe_offset(i * gather.out_channel),
                            mask,
                        )
            else:
                comptime for i in range(width):
                    if i < existing:
                        var values = narrow[dtype](square[i])
                        for lane in range(lanes):
                            here.unsafe_store(
                                i * gather.out_channel
                                + Int(places.unsafe_load(start + lane))
                                - first,
                                values[lane],
                            )


def taps_follow[dtype: DType](gather: Gather[dtype]) -> Bool:
    """Whether the weights of a target channel lie side by side, [channel][tap].

    Parameters:
        dtype: The element type.

    Args:
        gather: The weights.

    Returns:
        True for planar weights of a convolution.
    """
    var x = gather.axes[2]
    var y = gather.axes[1]
    var z = gather.axes[0]
    return (
        gather.weight_channel == gather.taps()
        and (x.taps == 1 or x.weight_stride == 1)
        and (y.taps == 1 or y.weight_stride == x.taps)
        and (z.taps == 1 or z.weight_stride == x.taps * y.taps)
    )


@inline(.never)
def pack_taps[
    dtype: DType, lines: Int
](
    gather: Gather[dtype],
    group: Int,
    first: Int,
    padded: Int,
    unfolded: Bool,
    panel: Data[TileFormat[dtype].PACKED],
):
    """Packs the weights of up to `lines` target channels as [tap][channel / pair][lines][pair], zeros for missing ones.

    Parameters:
        dtype: The element type.
        lines: The lines of a panel.

    Args:
        gather: The weights.
        group: The group of channels.
        first: The first target channel in it.
        padded: Source channels, rounded up to pairs; with `unfolded` times taps of a row.
        unfolded: Whether the taps of a row are part of what is rounded up.
        panel: The destination.
    """
    comptime Format = TileFormat[dtype]
    comptime packed = Format.PACKED
    comptime pair = Format.GROUP
    comptime width = Format.WIDTH
    var count = min(lines, gather.results - first)
    var taps = gather.taps()
    var x = gather.axes[2]
    var y = gather.axes[1]
    var z = gather.axes[0]
    var source = gather.weight.unsafe_offset(
        group * gather.weight_group + first * gather.weight_result
    )
    if unfolded:
        _pack_unfolded_taps[dtype, lines](
            gather, group, first, count, padded, panel
        )
        return
    if gather.merged == 1 and (
        gather.weight_channel == 1 or gather.weight_result == 1
    ):
        var target = panel
        for tz in range(z.taps):
            for ty in range(y.taps):
                for tx in range(x.taps):
                    pack_panel[dtype, packed, lines, width, pair](
                        source.unsafe_offset(
                            tz * z.weight_stride
                            + ty * y.weight_stride
                            + tx * x.weight_stride
                        ),
                        gather.weight_result,
                        gather.weight_channel,
                        count,
                        gather.channels,
                        target,
                    )
                    target = target.unsafe_offset(padded * lines)
        return
    if (
        gather.merged == 1
        and taps_follow(gather)
        and taps * pair <= BUFFER_ROWS
    ):
        var memory = stack_allocation[
            BUFFER_ROWS * lines + width, Scalar[packed], alignment=64
        ]()
        var buffer = Data[packed](unsafe_from_address=Int(memory))
        var block = BUFFER_ROWS // (taps * pair) * pair
        for start in range(0, gather.channels, block):
            var channels = min(block, gather.channels - start)
            pack_panel[dtype, packed, lines, width, 1](
                source.unsafe_offset(start * taps),
                gather.weight_result,
                1,
                count,
                channels * taps,
                buffer,
            )
            for channel in range(0, channels, pair):
                for tap in range(taps):
                    var target = panel.unsafe_offset(
                        (tap * padded + start + channel) * lines
                    )
                    var line = buffer.unsafe_offset(
                        (channel * taps + tap) * lines
                    )
                    comptime for j in range(0, lines, width):
                        var even = line.unsafe_load[width=width](j)
                        comptime if pair == 1:
                            target.unsafe_store[width=width](j, even)
                        else:
                            var odd = SIMD[packed, width](0)
                            if channel + 1 < channels:
                                odd = line.unsafe_load[width=width](
                                    taps * lines + j
                                )
                            target.unsafe_store[width=2 * width](
                                2 * j, even.interleave(odd)
                            )
        return
    for channel in range(padded):
        var tap = 0
        for tz in range(z.taps):
            for ty in range(y.taps):
                for tx in range(x.taps):
                    var taps_offset = (
                        tz * z.weight_stride
                        + ty * y.weight_stride
                        + tx * x.weight_stride
                    )
                    var target = panel.unsafe_offset(
                        (tap * padded + channel // pair * pair) * lines
                        + channel % pair
                    )
                    tap += 1
                    if (
                        gather.merged == 1
                        and count == lines
                        and channel < gather.channels
                    ):
                        var here = source.unsafe_offset(
                            taps_offset + channel * gather.weight_channel
                        )
                        comptime for lane in range(lines):
                            target.unsafe_store(
                                lane * pair,
                                here.unsafe_load(
                                    lane * gather.weight_result
                                ).cast[packed](),
                            )
                        continue
                    for lane in range(lines):
                        var value = Scalar[packed](0)
                        if (
                            lane < count
                            and channel < gather.channels
                            and gather.has_weight(first + lane, channel)
                        ):
                            value = gather.weight.unsafe_load(
                                gather.weight_offset(
                                    group, first + lane, channel
                                )
                                + taps_offset
                            ).cast[packed]()
                        target.unsafe_store(lane * pair, value)


@inline(.never)
def _pack_unfolded_taps[
    dtype: DType, lines: Int
](
    gather: Gather[dtype],
    group: Int,
    first: Int,
    count: Int,
    padded: Int,
    panel: Data[TileFormat[dtype].PACKED],
):
    """`pack_taps` as [row of taps][(tap, channel) / pair][lines][pair]."""
    comptime packed = TileFormat[dtype].PACKED
    comptime pair = TileFormat[dtype].GROUP
    var rows = gather.axes[0].taps * gather.axes[1].taps
    for index in range(rows * padded):
        var row, k = divmod(index, padded)
        var z, y = divmod(row, gather.axes[1].taps)
        var x, channel = divmod(k, gather.channels)
        var exists = x < gather.axes[2].taps
        var offset = (
            z * gather.axes[0].weight_stride
            + y * gather.axes[1].weight_stride
            + x * gather.axes[2].weight_stride
        )
        var target = panel.unsafe_offset(
            index // pair * pair * lines + index % pair
        )
        for lane in range(lines):
            var value = Scalar[packed](0)
            if (
                exists
                and lane < count
                and gather.has_weight(first + lane, channel)
            ):
                value = gather.weight.unsafe_load(
                    gather.weight_offset(group, first + lane, channel) + offset
                ).cast[packed]()
            target.unsafe_store(lane * pair, value)
