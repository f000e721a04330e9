"""Copies of sources and weights into the panels that the register tile of the matrix product reads.

No more than a cache-sized block of the matrix of all targets' sources ("im2col") ever exists.
"""

from std.math import iota
from std.sys.info import size_of
from std.sys.intrinsics import masked_load, masked_store

from mojo_kernels.abi import Data
from mojo_kernels.convolution.geometry import Gather
from mojo_kernels.matmul.matrix import ceil_div, first_lanes
from mojo_kernels.matmul.packed import DEPTH_BYTES
from mojo_kernels.matmul.packing import pack_panel
from mojo_kernels.matmul.tile import TileFormat


struct Panels[dtype: DType]:
    """Sizes of packed panels.

    Parameters:
        dtype: The element type of the tensors.
    """

    comptime Format = TileFormat[Self.dtype]
    """The register tile's format."""
    comptime DEPTH = DEPTH_BYTES // size_of[Scalar[Self.Format.PACKED]]()
    """Elements of a slice of the depth."""
    comptime LINE = Self.DEPTH + 64 // size_of[Scalar[Self.Format.PACKED]]()
    """Elements between the lines of a block; the padding spreads lines over the sets of the cache."""
    comptime SLACK = Self.Format.WIDTH * Self.Format.GROUP
    """Elements that packing may write past a panel."""


# ---- weights ---------------------------------------------------------------------------------------------------------


@inline(.never)
def pack_weight[
    dtype: DType, lines: Int
](
    gather: Gather[dtype],
    group: Int,
    first: Int,
    panel: Data[TileFormat[dtype].PACKED],
):
    """Packs the weights of up to `lines` target channels as [depth / pair][lines][pair], zeros for missing ones.

    Parameters:
        dtype: The element type.
        lines: The lines of a panel.

    Args:
        gather: The weights.
        group: The group of channels.
        first: The first target channel in it.
        panel: The destination.
    """
    comptime Format = TileFormat[dtype]
    comptime pair = Format.GROUP
    var count = min(lines, gather.results - first)
    var source = gather.weight.unsafe_offset(
        group * gather.weight_group + first * gather.weight_result
    )
    # The dimensions of the depth, outermost first, merged where the strides allow it.
    var sizes = Array[Int, 4](fill=1)
    var strides = Array[Int, 4](fill=0)
    var last = -1
    for i in range(4):
        var axis = i - 1
        var size = gather.channels
        var stride = gather.weight_channel
        if axis >= 0:
            size = gather.axes[axis].taps
            stride = gather.axes[axis].weight_stride
        if size == 1:
            continue
        if last >= 0 and strides[last] == size * stride:
            sizes[last] *= size
            strides[last] = stride
        else:
            last += 1
            sizes[last] = size
            strides[last] = stride
    var depth = gather.depth()
    if last <= 0:
        pack_panel[dtype, Format.PACKED, lines, Format.WIDTH, pair](
            source, gather.weight_result, strides[0], count, depth, panel
        )
        return
    var coordinates = Array[Int, 4](fill=0)
    var offset = 0

    @inline(.always)
    def next_row() {mut coordinates, mut offset, imm} -> Data[dtype]:
        var here = source.unsafe_offset(offset)
        var d = last
        offset += strides[d]
        coordinates[d] += 1
        while d > 0 and coordinates[d] == sizes[d]:
            coordinates[d] = 0
            offset += strides[d - 1] - sizes[d] * strides[d]
            d -= 1
            coordinates[d] += 1
        return here

    comptime vectors = (lines & (lines - 1)) == 0
    for k in range(0, depth, pair):
        var row = panel.unsafe_offset(k * lines)
        comptime for p in range(pair):
            if k + p >= depth:
                for lane in range(lines):
                    row.unsafe_store(lane * pair + p, 0)
                continue
            var here = next_row()
            comptime if vectors and pair == 1:
                if count == lines and gather.weight_result == 1:
                    row.unsafe_store[width=lines](
                        0, here.unsafe_load[width=lines]().cast[Format.PACKED]()
                    )
                    continue
            if count == lines:
                comptime for lane in range(lines):
                    row.unsafe_store(
                        lane * pair + p,
                        here.unsafe_load(lane * gather.weight_result).cast[
                            Format.PACKED
                        ](),
                    )
            else:
                for lane in range(lines):
                    var value = Scalar[Format.PACKED](0)
                    if lane < count:
                        value = here.unsafe_load(
                            lane * gather.weight_result
                        ).cast[Format.PACKED]()
                    row.unsafe_store(lane * pair + p, value)


# ---- planar sources: neighbouring targets are the lanes -----------------------------------------------------------


@fieldwise_init
struct Segment(TrivialRegisterPassable):
    """The lanes of a panel whose sources lie on one row of the source, for one tap.
    """

    var offset: Int
    """Where lane 0 would lie: elements from the first image's channel."""
    var low: Int32
    """The first lane that exists."""
    var high: Int32
    """The lane behind the last one that exists."""


comptime Segments = Pointer[Segment, MutUntrackedOrigin]
"""An array of segments."""
comptime Counts = Pointer[Int32, MutUntrackedOrigin]
"""An array of positions in an array of segments."""


def segment_limit[dtype: DType](gather: Gather[dtype], lanes: Int) -> Int:
    """How many segments a panel can have per tap.

    Parameters:
        dtype: The element type.

    Args:
        gather: The sizes.
        lanes: The lanes of a panel.

    Returns:
        The number of rows that so many neighbours can touch.
    """
    return min(lanes, lanes // max(gather.axes[2].targets, 1) + 2)


@inline(.never)
def find_segments[
    dtype: DType
](
    gather: Gather[dtype],
    pixel: Int,
    count: Int,
    segments: Segments,
    starts: Counts,
):
    """Lists, for each tap, where the sources of neighbouring targets lie.

    Parameters:
        dtype: The element type.

    Args:
        gather: The sizes.
        pixel: The first target.
        count: The number of targets.
        segments: Room for `taps * segment_limit` segments.
        starts: Receives `taps + 1` positions in `segments`, where those of a tap start.
    """
    var inner = gather.axes[2]
    var found: Int32 = 0
    var tap = 0
    var start = gather.position(pixel)
    for tz in range(gather.axes[0].taps):
        for ty in range(gather.axes[1].taps):
            for tx in range(inner.taps):
                starts.unsafe_store(tap, found)
                tap += 1
                var position = start
                var lane = 0
                while lane < count:
                    var length = min(inner.targets - position.x, count - lane)
                    var z = gather.axes[0].source(position.z, tz)
                    var y = gather.axes[1].source(position.y, ty)
                    if gather.axes[0].contains(z) and gather.axes[1].contains(
                        y
                    ):
                        var x = inner.source(position.x, tx)
                        var low = lane
                        low += steps_over(-x, inner.step)
                        var high = lane + min(
                            length, steps_over(inner.size - x, inner.step)
                        )
                        if low < high:
                            segments.unsafe_offset(Int(found))[] = Segment(
                                position.image * gather.source_image
                                + z * gather.axes[0].source_stride
                                + y * gather.axes[1].source_stride
                                + (x - lane * inner.step) * inner.source_stride,
                                Int32(low),
                                Int32(high),
                            )
                            found += 1
                    lane += length
                    position.x += length - 1
                    position.advance(gather)
    starts.unsafe_store(tap, found)


@inline(.always)
def lanes_between[width: Int](low: Int, high: Int) -> SIMD[DType.bool, width]:
    """The mask of some lanes.

    Parameters:
        width: The number of lanes, at most 128.

    Args:
        low: The first lane that is set.
        high: The lane behind the last one.

    Returns:
        The mask.
    """
    comptime Lanes = SIMD[DType.uint8, width]
    return (iota[DType.uint8, width]() - Lanes(UInt8(low))).lt(
        Lanes(UInt8(high - low))
    )


@inline(.always)
def _load_segments[
    dtype: DType, width: Int, step: Int
](
    source: Data[dtype], stride: Int, segments: Segments, start: Int, end: Int
) -> SIMD[dtype, width]:
    """One row of a panel: the sources of neighbouring targets for a channel and a tap, zeros where there is none.

    `step` is the distance of neighbours if it is 1 or 2, else 0 for any `stride`.
    """
    var row = SIMD[dtype, width](0)
    for i in range(start, end):
        var segment = segments.unsafe_offset(i)[]
        var low = Int(segment.low)
        var high = Int(segment.high)
        var here = source.unsafe_offset(segment.offset)
        comptime if step == 1:
            if high - low == width:
                row = here.unsafe_load[width=width]()
            else:
                row = masked_load[width](
                    here, lanes_between[width](low, high), row
                )
        elif step == 2:
            var both = masked_load[2 * width](
                here,
                lanes_between[2 * width](2 * low, 2 * high - 1),
                SIMD[dtype, 2 * width](0),
            ).deinterleave()
            row = lanes_between[width](low, high).select(
                rebind[SIMD[dtype, width]](both[0]), row
            )
        else:
            for lane in range(low, high):
                row[lane] = here.unsafe_load(lane * stride)
    return row


@inline(.never)
def pack_planar[
    dtype: DType, step: Int
](
    source: Data[dtype],
    channel_stride: Int,
    stride: Int,
    taps: Int,
    segments: Segments,
    starts: Counts,
    first: Int,
    depth: Int,
    panel: Data[TileFormat[dtype].PACKED],
):
    """Packs a slice of the depth, channels times taps, for `COLUMNS` neighbouring targets: [depth / pair][lanes][pair].

    Parameters:
        dtype: The element type.
        step: Elements between the sources of neighbours, if 1 or 2, else 0.

    Args:
        source: The first channel of the group in the first image.
        channel_stride: Elements between channels.
        stride: Elements between the sources of neighbours.
        taps: The number of taps.
        segments: Where sources lie, by `find_segments`.
        starts: Where a tap's segments start.
        first: The first row of the depth.
        depth: The number of rows.
        panel: The destination.
    """
    comptime Format = TileFormat[dtype]
    comptime width = Format.COLUMNS
    comptime pair = Format.GROUP
    var tap = first % taps
    var here = source.unsafe_offset(first // taps * channel_stride)

    @inline(.always)
    def next_row() {mut tap, mut here, imm} -> SIMD[dtype, width]:
        var row = _load_segments[dtype, width, step](
            here,
            stride,
            segments,
            Int(starts.unsafe_load(tap)),
            Int(starts.unsafe_load(tap + 1)),
        )
        tap += 1
        if tap == taps:
            tap = 0
            here = here.unsafe_offset(channel_stride)
        return row

    comptime if pair == 1:
        for k in range(depth):
            panel.unsafe_store[width=width](
                k * width, next_row().cast[Format.PACKED]()
            )
    else:
        for k in range(0, depth, 2):
            var even = next_row().cast[Format.PACKED]()
            var odd = SIMD[Format.PACKED, width](0)
            if k + 1 < depth:
                odd = next_row().cast[Format.PACKED]()
            panel.unsafe_store[width=2 * width](k * width, even.interleave(odd))


# ---- channels-last sources: a target's sources are a line ---------------------------------------------------------


@inline(.always)
def steps_over(distance: Int, step: Int) -> Int:
    """How many steps it takes to get past a distance, without a division for the usual steps.

    Args:
        distance: The distance; none needs a step if it is negative.
        step: The step, positive.

    Returns:
        The distance divided by the step, rounded up.
    """
    if step == 1:
        return max(distance, 0)
    if step == 2:
        return (max(distance, 0) + 1) >> 1
    return ceil_div(max(distance, 0), step)


@inline(.always)
def copy_run[
    dtype: DType, to: DType
](source: Data[dtype], stride: Int, count: Int, target: Data[to]):
    """Copies elements to neighbours, converted.

    Parameters:
        dtype: The source's type.
        to: The target's type.

    Args:
        source: The first element.
        stride: Elements between sources.
        count: How many.
        target: Where they go.
    """
    comptime width = 16
    var i = 0
    if stride == 1:
        while i + width <= count:
            target.unsafe_store[width=width](
                i, source.unsafe_load[width=width](i).cast[to]()
            )
            i += width
        if i < count:
            var mask = first_lanes[width](count - i)
            masked_store(
                masked_load[width](
                    source.unsafe_offset(i), mask, SIMD[dtype, width](0)
                ).cast[to](),
                target.unsafe_offset(i),
                mask,
            )
    else:
        while i < count:
            target.unsafe_store(i, source.unsafe_load(i * stride).cast[to]())
            i += 1


@inline(.always)
def clear_run[dtype: DType](count: Int, target: Data[dtype]):
    """Writes zeros.

    Parameters:
        dtype: The target's type.

    Args:
        count: How many.
        target: Where they go.
    """
    comptime width = 16
    var i = 0
    while i + width <= count:
        target.unsafe_store[width=width](i, SIMD[dtype, width](0))
        i += width
    if i < count:
        masked_store(
            SIMD[dtype, width](0),
            target.unsafe_offset(i),
            first_lanes[width](count - i),
        )
