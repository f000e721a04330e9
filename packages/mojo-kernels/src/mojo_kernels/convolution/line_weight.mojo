"""The gradient of a weight on CPUs whose lines, taps times channels, are the rows of the register tile.

Its columns are target channels, its depth targets: sources are read where they lie, one address for each target. Where
the tile multiplies pairs along the depth, they are two images.
"""

from std.atomic import Atomic

from mojo_kernels.math import narrow
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.geometry import (
    Gather,
    high_target,
    low_target,
)
from mojo_kernels.convolution.lines import fills_lines
from mojo_kernels.convolution.packing import clear_run
from mojo_kernels.convolution.regions import (
    Regions,
    copy_positions,
    has_padding,
    is_readable,
    spread,
)
from mojo_kernels.convolution.tap_packing import taps_follow
from mojo_kernels.matmul.matrix import ceil_div, first_lanes
from mojo_kernels.matmul.packed import allocate, release, run
from mojo_kernels.matmul.tile import TileFormat, multiply_add
from mojo_kernels.transposition import transpose_square
from std.sys.intrinsics import masked_store

comptime RESULTS = 64
"""About the target channels of a task."""
comptime SUMS = 1 << 16
"""Sums of a task, which stay in the second-level cache."""
comptime CHUNK = 128
"""Targets that are summed before the next tile."""


def has_lines[dtype: DType](gather: Gather[dtype]) -> Bool:
    """Whether lines, target channels and images fill the tile about as well as any others would.

    Parameters:
        dtype: The element type.

    Args:
        gather: The problem.

    Returns:
        False if a third of the work or more would be lost.
    """
    comptime third = TileFormat[dtype].ROWS // 3
    var run = gather.channels
    if gather.axes[2].dilation == 1:
        run *= gather.axes[2].taps
    comptime if TileFormat[dtype].GROUP == 2:
        if 3 * ceil_div(gather.images, 2) * 2 > 4 * gather.images:
            return False
    return fills_lines(gather) and 3 * ceil_div(run, third) * third <= 4 * run


def weight_gradient_lines[
    dtype: DType
](call: KernelCall, gather: Gather[dtype], parallel: Bool) raises:
    """The gradient of a gather's weight.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads.
        gather: The problem; its targets are the gradient of the outputs, its weight is written.
        parallel: Whether to use threads.

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
    comptime pairs = group_size == 2

    var taps = gather.taps()
    var threads = Int(call.threads) if parallel else 1
    # Blocks of target channels, and of source channels with all taps.
    var result_blocks = ceil_div(gather.results, RESULTS + RESULTS // 2)
    var result_block = (
        ceil_div(ceil_div(gather.results, result_blocks), width) * width
    )
    result_blocks = ceil_div(gather.results, result_block)
    var channel_blocks = ceil_div(
        gather.channels, max(SUMS // (taps * result_block), 1)
    )
    var channel_block = ceil_div(gather.channels, channel_blocks)
    if channel_blocks > 1:
        channel_block = ceil_div(channel_block, rows // 3) * (rows // 3)
    channel_blocks = ceil_div(gather.channels, channel_block)
    var part_of = gather
    part_of.channels = channel_block
    # The tile reads whole thirds of its rows, of a source of the caller none that do not exist.
    var in_place = (
        not pairs and is_readable(gather) and channel_block % (rows // 3) == 0
    )
    var regions = Regions[dtype, pairs].chosen(part_of, in_place)
    var blocks = gather.groups * channel_blocks * result_blocks
    var wanted = 1
    if threads > 1 and blocks < 3 * threads:
        wanted = ceil_div(4 * threads, blocks)
    while wanted > regions.count() and regions.can_halve():
        regions = regions.halved()
    var together = min(regions.together(), ceil_div(regions.count(), wanted))
    var stacks = ceil_div(regions.count(), together)
    var parts = min(wanted, stacks)
    var tasks = blocks * parts
    var workers = min(threads, tasks)

    var runs = taps
    var run_size = channel_block
    # Of small images, taps leave out targets whose source is padding.
    var skips = (
        regions.is_whole()
        and has_padding(gather)
        and channel_block % (rows // 3) == 0
    )
    if regions.merges_taps() and channel_blocks == 1 and not skips:
        run_size *= gather.axes[2].taps
        runs = taps // gather.axes[2].taps
    # The dY of a target: channels, or pairs of them.
    var line = result_block * group_size
    line += spread[packed](line)
    var lines = taps * channel_block
    var block_sums = lines * result_block
    var sums = allocate[accumulate](
        (tasks if parts > 1 else workers) * block_sums
    )
    var limit = together * regions.height * regions.width
    # Whole cache lines, and what the tile reads behind the last line.
    var copy_size = ceil_div(regions.size + rows * group_size, 64) * 64
    var own_size = limit * line + together * copy_size
    var copies = allocate[packed](workers * own_size)
    var places = allocate[DType.int64](workers * 2 * limit)
    var next = Atomic[Int64](0)

    def work(worker: Int) {imm, mut next}:
        var own_targets = copies.unsafe_offset(worker * own_size)
        var own_copies = own_targets.unsafe_offset(limit * line)
        var sources = places.unsafe_offset(worker * 2 * limit)
        var targets = sources.unsafe_offset(limit)
        while True:
            var task = Int(next.fetch_add(1))
            if task >= tasks:
                return
            var index, part = divmod(task, parts)
            var more, channel_index = divmod(index, channel_blocks)
            var group, result_index = divmod(more, result_blocks)
            var channel = channel_index * channel_block
            var channels = min(channel_block, gather.channels - channel)
            var result = result_index * result_block
            var results = min(result_block, gather.results - result)
            var own = sums.unsafe_offset(
                (task if parts > 1 else worker) * block_sums
            )
            clear_run(block_sums, own)
            var base = own_copies
            if in_place:
                base = Data[packed](
                    unsafe_from_address=Int(
                        gather.source.unsafe_offset(
                            (group * gather.channels + channel)
                            * gather.source_channel
                        )
                    )
                )
            for stack in range(
                part * stacks // parts, (part + 1) * stacks // parts
            ):
                var count = 0
                var stacked = min(together, regions.count() - stack * together)
                for i in range(stacked):
                    var region = regions.region(stack * together + i)
                    var start = i * copy_size
                    if in_place:
                        start = regions.source_offset(region)
                    else:
                        regions.copy(
                            region,
                            group * gather.channels + channel,
                            channels,
                            own_copies.unsafe_offset(start),
                        )
                    var second = 0
                    comptime if pairs:
                        if region.first.image + 1 < gather.images:
                            second = gather.out_image
                    var out = gather.out.unsafe_offset(
                        gather.out_offset(region.first)
                        + (group * gather.results + result) * gather.out_channel
                    )
                    for y in range(region.height):
                        copy_positions[dtype, pairs](
                            out.unsafe_offset(y * gather.axes[1].out_stride),
                            gather.axes[2].out_stride,
                            gather.out_channel,
                            region.width,
                            results,
                            result_block,
                            second,
                            own_targets.unsafe_offset(count * line),
                            line,
                        )
                        var row = start + y * gather.axes[1].step * regions.row
                        for x in range(region.width):
                            sources.unsafe_store(
                                count,
                                Int64(row + x * regions.target_step()),
                            )
                            targets.unsafe_store(count, Int64(count * line))
                            count += 1
                for index in range(runs):
                    var x = 0
                    var row = index
                    if runs == taps:
                        row, x = divmod(index, gather.axes[2].taps)
                    var z, y = divmod(row, gather.axes[1].taps)
                    var here = base.unsafe_offset(regions.tap_offset(z, y, x))
                    if skips:
                        count = _list_targets(
                            regions,
                            stacked,
                            copy_size,
                            y,
                            x,
                            line,
                            sources,
                            targets,
                        )
                    var size = run_size if channel_blocks == 1 else channels
                    for first in range(0, count, CHUNK):
                        for j in range(0, results, columns):
                            for i in range(0, size, rows):
                                _add_lines[dtype](
                                    min(rows, size - i),
                                    min(columns, results - j),
                                    min(CHUNK, count - first),
                                    here.unsafe_offset(i * group_size),
                                    sources.unsafe_offset(first),
                                    own_targets.unsafe_offset(j * group_size),
                                    targets.unsafe_offset(first),
                                    own.unsafe_offset(
                                        (index * run_size + i) * result_block
                                        + j
                                    ),
                                    result_block,
                                )
            if parts == 1:
                _store_lines[dtype](
                    gather,
                    group,
                    result,
                    results,
                    channel,
                    channels,
                    channel_block,
                    own,
                    result_block,
                )

    run(call, parallel, work, workers)
    release(places)
    release(copies)

    if parts > 1:

        def store(index: Int) {imm}:
            var own = sums.unsafe_offset(index * parts * block_sums)
            for i in range(0, block_sums, width):
                var sum = own.unsafe_load[width=width](i)
                for part in range(1, parts):
                    sum += own.unsafe_load[width=width](part * block_sums + i)
                own.unsafe_store[width=width](i, sum)
            var more, channel_index = divmod(index, channel_blocks)
            var group, result_index = divmod(more, result_blocks)
            var channel = channel_index * channel_block
            var result = result_index * result_block
            _store_lines[dtype](
                gather,
                group,
                result,
                min(result_block, gather.results - result),
                channel,
                min(channel_block, gather.channels - channel),
                channel_block,
                own,
                result_block,
            )

        run(call, parallel, store, blocks)
    release(sums)


@inline(.never)
def _list_targets[
    dtype: DType, pairs: Bool
](
    regions: Regions[dtype, pairs],
    count: Int,
    copy_size: Int,
    y_tap: Int,
    x_tap: Int,
    line: Int,
    sources: Data[DType.int64],
    targets: Data[DType.int64],
) -> Int:
    """Lists where the first tap's sources and the targets lie of those targets of whole regions for which a tap exists.
    """
    var x_axis = regions.gather.axes[2]
    var y_axis = regions.gather.axes[1]
    var low = low_target(x_axis, x_tap)
    var high = high_target(x_axis, x_tap)
    var found = 0
    for i in range(count):
        for y in range(regions.height):
            if not y_axis.contains(y_axis.source(y, y_tap)):
                continue
            var source = i * copy_size + y * y_axis.step * regions.row
            var target = (i * regions.height + y) * regions.width
            for x in range(low, high):
                sources.unsafe_store(
                    found, Int64(source + x * regions.target_step())
                )
                targets.unsafe_store(found, Int64((target + x) * line))
                found += 1
    return found


@inline(.never)
def _add_lines[
    dtype: DType
](
    rows: Int,
    columns: Int,
    depth: Int,
    a: Data[TileFormat[dtype].PACKED],
    places: Data[DType.int64],
    b: Data[TileFormat[dtype].PACKED],
    b_places: Data[DType.int64],
    sums: Data[TileFormat[dtype].ACCUMULATE],
    stride: Int,
):
    """Adds products of lines at the places of targets with the targets to sums; at the edges only as many thirds of the
    rows and vectors of columns as exist.
    """
    comptime Format = TileFormat[dtype]
    comptime third = Format.ROWS // 3
    var thirds = ceil_div(rows, third)
    var vectors = ceil_div(columns, Format.WIDTH)
    comptime for i in range(3, 0, -1):
        comptime for j in range(Format.VECTORS, 0, -1):
            if thirds == i and vectors == j:
                _add_places[dtype, i * third, j](
                    rows, depth, a, places, b, b_places, sums, stride
                )


@inline(.always)
def _add_places[
    dtype: DType, rows: Int, vectors: Int
](
    existing: Int,
    depth: Int,
    a: Data[TileFormat[dtype].PACKED],
    places: Data[DType.int64],
    b: Data[TileFormat[dtype].PACKED],
    b_places: Data[DType.int64],
    target: Data[TileFormat[dtype].ACCUMULATE],
    stride: Int,
):
    comptime Format = TileFormat[dtype]
    comptime packed = Format.PACKED
    comptime width = Format.WIDTH
    comptime group = Format.GROUP
    comptime lanes = width * group
    var sums = Array[SIMD[Format.ACCUMULATE, width], rows * vectors](
        fill=SIMD[Format.ACCUMULATE, width](0)
    )
    for p in range(depth):
        var left = a.unsafe_offset(Int(places.unsafe_load(p)))
        var right = b.unsafe_offset(Int(b_places.unsafe_load(p)))
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
                    left.unsafe_offset(i * group),
                    row[j],
                    sums[i * vectors + j],
                )
    comptime for i in range(rows):
        if i < existing:
            comptime for j in range(vectors):
                var at = i * stride + j * width
                target.unsafe_store[width=width](
                    at,
                    target.unsafe_load[width=width](at) + sums[i * vectors + j],
                )


@inline(.never)
def _store_lines[
    dtype: DType
](
    gather: Gather[dtype],
    group: Int,
    result: Int,
    results: Int,
    channel: Int,
    channels: Int,
    channel_block: Int,
    sums: Data[TileFormat[dtype].ACCUMULATE],
    stride: Int,
):
    """Writes the weights of a block of sums, [taps][channel block][results]."""
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var taps = gather.taps()
    var x = gather.axes[2]
    var y = gather.axes[1]
    var z = gather.axes[0]
    var target = gather.weight.unsafe_offset(
        group * gather.weight_group
        + result * gather.weight_result
        + channel * gather.weight_channel
    )
    if gather.merged == 1 and (
        gather.weight_channel == 1 or taps_follow(gather)
    ):
        # Neighbours in memory: the channels of a tap, or the taps of all channels.
        var follow = taps_follow(gather)
        for tap in range(1 if follow else taps):
            var row, tx = divmod(tap, x.taps)
            var tz, ty = divmod(row, y.taps)
            var line = target.unsafe_offset(
                tz * z.weight_stride
                + ty * y.weight_stride
                + tx * x.weight_stride
            )
            var count = channels * taps if follow else channels
            for first in range(0, results, width):
                var lanes = min(results - first, width)
                for start in range(0, count, width):
                    var existing = min(count - start, width)
                    var square = Array[SIMD[accumulate, width], width](
                        fill=SIMD[accumulate, width](0)
                    )
                    comptime for i in range(width):
                        if i < existing:
                            var index = tap * channel_block + start + i
                            if follow:
                                var c, t = divmod(start + i, taps)
                                index = t * channel_block + c
                            square[i] = sums.unsafe_load[width=width](
                                index * stride + first
                            )
                    transpose_square(square)
                    var mask = first_lanes[width](existing)
                    comptime for i in range(width):
                        if i < lanes:
                            masked_store(
                                narrow[dtype](square[i]),
                                line.unsafe_offset(
                                    (first + i) * gather.weight_result + start
                                ),
                                mask,
                            )
        return
    for tap in range(taps):
        var row, tx = divmod(tap, x.taps)
        var tz, ty = divmod(row, y.taps)
        var offset = (
            tz * z.weight_stride + ty * y.weight_stride + tx * x.weight_stride
        )
        for c in range(channels):
            for m in range(results):
                if gather.has_weight(result + m, channel + c):
                    gather.weight.unsafe_store(
                        gather.weight_offset(group, result + m, channel + c)
                        + offset,
                        narrow[dtype](
                            sums.unsafe_load(
                                (tap * channel_block + c) * stride + m
                            )
                        ),
                    )
