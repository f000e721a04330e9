"""Gathers on CPUs whose targets are the rows of the register tile: products of regions of the source with all weights.

The tile's rows are read where they lie, one address for each target; its columns are target channels.
"""

from std.atomic import Atomic
from std.sys.info import size_of
from std.sys.intrinsics import masked_store

from mojo_kernels.math import narrow
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.geometry import Axis, Gather
from mojo_kernels.convolution.packing import Panels
from mojo_kernels.convolution.regions import Regions, is_readable
from mojo_kernels.convolution.tap_packing import pack_taps
from mojo_kernels.matmul.matrix import ceil_div, first_lanes
from mojo_kernels.matmul.packed import allocate, release, run
from mojo_kernels.matmul.tile import TileFormat, multiply_add
from mojo_kernels.transposition import transpose_square

comptime MAX_CLASSES = 32
"""Classes of targets that are told apart."""
comptime CLASS = 5
"""Words of a class: its first run, the number of runs, groups of a run, its first target, the number of targets."""


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

    var taps = gather.taps()
    var classes = allocate[DType.int64](CLASS * MAX_CLASSES)
    var run_offsets = allocate[DType.int64](2 * max(taps, 1) * MAX_CLASSES)
    var pattern = allocate[DType.int64](regions.height * regions.width)
    var class_count = _find_classes(
        regions, together, classes, run_offsets, pattern
    )
    var skips = class_count > 1
    var b_panel = regions.depth() * columns + Panels[dtype].SLACK
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
    var places = allocate[DType.int64](workers * 3 * limit)
    var next = Atomic[Int64](0)

    def work(worker: Int) {imm, mut next}:
        var own = copies.unsafe_offset(worker * together * copy_size)
        var own_sums = sums.unsafe_offset(worker * limit * columns)
        var sources = places.unsafe_offset(worker * 3 * limit)
        var targets = sources.unsafe_offset(limit)
        var slots = targets.unsafe_offset(limit)
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
            var stacked = min(together, region_count - stack * together)
            for i in range(stacked):
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
                        slots.unsafe_store(count, Int64(count))
                        count += 1
            if skips:
                var size = regions.height * regions.width
                var at = 0
                for c in range(class_count):
                    var class_ = classes.unsafe_offset(c * CLASS)
                    var first = Int(class_.unsafe_load(3))
                    var end = first + Int(class_.unsafe_load(4))
                    for i in range(stacked):
                        for e in range(first, end):
                            var slot = Int(pattern.unsafe_load(e))
                            var y, x = divmod(slot, regions.width)
                            sources.unsafe_store(
                                at,
                                Int64(
                                    i * copy_size
                                    + y * gather.axes[1].step * regions.row
                                    + x * regions.target_step()
                                ),
                            )
                            slots.unsafe_store(at, Int64(i * size + slot))
                            at += 1
            # The tile reads rows that do not exist, too.
            for i in range(rows):
                sources.unsafe_store(count + i, sources.unsafe_load(count - 1))
                slots.unsafe_store(count + i, slots.unsafe_load(count - 1))
            for panel in range(
                block * block_panels, min((block + 1) * block_panels, panels)
            ):
                var channel = panel * columns
                var channels = min(columns, gather.results - channel)
                var right = weights.unsafe_offset(
                    (group * panels + panel) * b_panel
                )
                for c in range(class_count):
                    var class_ = classes.unsafe_offset(c * CLASS)
                    var first = 0
                    var end = count
                    if skips:
                        first = Int(class_.unsafe_load(3)) * stacked
                        end = first + Int(class_.unsafe_load(4)) * stacked
                    for i in range(first, end, rows):
                        _multiply_rows[dtype](
                            min(rows, end - i),
                            channels,
                            base,
                            sources.unsafe_offset(i),
                            slots.unsafe_offset(i),
                            Int(class_.unsafe_load(1)),
                            run_offsets.unsafe_offset(
                                2 * Int(class_.unsafe_load(0))
                            ),
                            Int(class_.unsafe_load(2)),
                            right,
                            own_sums,
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
    release(pattern)
    release(run_offsets)
    release(classes)


@inline(.always)
def _inside(axis: Axis, target: Int) -> Tuple[Int, Int]:
    """The first tap of a target that exists, and the one behind the last."""
    var first = axis.source(target, 0)
    var low = min(ceil_div(max(-first, 0), axis.dilation), axis.taps)
    var high = min(
        ceil_div(max(axis.size - first, 0), axis.dilation), axis.taps
    )
    return low, max(high, low)


@inline(.always)
def _is_new(axis: Axis, target: Int) -> Bool:
    """Whether no target before has the same taps."""
    var low, high = _inside(axis, target)
    for other in range(target):
        var other_low, other_high = _inside(axis, other)
        if low == other_low and high == other_high:
            return False
    return True


def _find_classes[
    dtype: DType
](
    regions: Regions[dtype],
    together: Int,
    classes: Data[DType.int64],
    runs: Data[DType.int64],
    pattern: Data[DType.int64],
) -> Int:
    """Lists the depth as runs of neighbours: where sources and weights of each start.

    Of small images, targets whose taps are partly outside of the source are classes of their own, without those taps,
    if that saves work; `pattern` receives the targets of a region, class by class.
    """
    comptime group = TileFormat[dtype].GROUP
    comptime columns = TileFormat[dtype].COLUMNS
    comptime third = TileFormat[dtype].ROWS // 3
    var gather = regions.gather
    var x = gather.axes[2]
    var y = gather.axes[1]
    var taps = gather.taps()
    var merges = regions.merges_taps()

    @inline(.always)
    def add_runs(
        first: Int, y_low: Int, y_high: Int, x_low: Int, x_high: Int
    ) {imm} -> Int:
        var found = first
        for tz in range(gather.axes[0].taps):
            for ty in range(y_low, y_high):
                for tx in range(x_low, x_low + 1 if merges else x_high):
                    var row = tz * y.taps + ty
                    var tap = row if regions.unfolded else row * x.taps + tx
                    runs.unsafe_store(
                        2 * found, Int64(regions.tap_offset(tz, ty, tx))
                    )
                    runs.unsafe_store(
                        2 * found + 1, Int64(tap * regions.channels * columns)
                    )
                    found += 1
        return found - first

    if regions.is_whole() and not regions.unfolded and taps > 1:
        var count = 0
        var found = 0
        var targets = 0
        var work = 0
        for y0 in range(y.targets):
            if not _is_new(y, y0):
                continue
            var y_low, y_high = _inside(y, y0)
            for x0 in range(x.targets):
                if count == MAX_CLASSES or not _is_new(x, x0):
                    continue
                var x_low, x_high = _inside(x, x0)
                var class_ = classes.unsafe_offset(count * CLASS)
                var here = add_runs(found, y_low, y_high, x_low, x_high)
                var size = regions.channels
                if merges:
                    size *= x_high - x_low
                class_.unsafe_store(0, Int64(found))
                class_.unsafe_store(1, Int64(here))
                class_.unsafe_store(2, Int64(size // group))
                class_.unsafe_store(3, Int64(targets))
                found += here
                var first = targets
                for y1 in range(y.targets):
                    var low, high = _inside(y, y1)
                    if low != y_low or high != y_high:
                        continue
                    for x1 in range(x.targets):
                        var left, right = _inside(x, x1)
                        if left == x_low and right == x_high:
                            pattern.unsafe_store(
                                targets, Int64(y1 * x.targets + x1)
                            )
                            targets += 1
                class_.unsafe_store(4, Int64(targets - first))
                work += (
                    ceil_div((targets - first) * together, third) * here * size
                )
                count += 1
        var all = (
            ceil_div(y.targets * x.targets * together, third)
            * taps
            * regions.channels
        )
        if targets == y.targets * x.targets and 33 * work < 32 * all:
            return count
    classes.unsafe_store(0, 0)
    classes.unsafe_store(
        1,
        Int64(add_runs(0, 0, y.taps, 0, x.taps) if taps > 0 else 0),
    )
    classes.unsafe_store(2, Int64(regions.run() // group))
    return 1


@inline(.never)
def _multiply_rows[
    dtype: DType
](
    rows: Int,
    columns: Int,
    a: Data[TileFormat[dtype].PACKED],
    places: Data[DType.int64],
    slots: Data[DType.int64],
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
                    a, places, slots, runs, run_offsets, groups, b, sums
                )


@inline(.always)
def _multiply_places[
    dtype: DType, rows: Int, vectors: Int
](
    a: Data[TileFormat[dtype].PACKED],
    places: Data[DType.int64],
    slots: Data[DType.int64],
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
    for index in range(runs):
        var at = Int(run_offsets.unsafe_load(2 * index))
        var right = b.unsafe_offset(Int(run_offsets.unsafe_load(2 * index + 1)))
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
        var line = target.unsafe_offset(
            Int(slots.unsafe_load(i)) * Format.COLUMNS
        )
        comptime for j in range(vectors):
            line.unsafe_store[width=width](j * width, sums[i * vectors + j])


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
