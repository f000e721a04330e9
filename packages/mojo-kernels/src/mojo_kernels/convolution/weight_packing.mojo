"""Copies of targets and sources into panels, for products whose depth is the targets of all images."""

from mojo_kernels.abi import Data
from mojo_kernels.convolution.geometry import Gather
from mojo_kernels.convolution.packing import Segments, clear_run, copy_run
from mojo_kernels.matmul.matrix import ceil_div
from mojo_kernels.matmul.packing import pack_panel
from mojo_kernels.matmul.tile import TileFormat


@inline(.never)
def pack_targets[
    dtype: DType, lines: Int
](
    gather: Gather[dtype],
    targets: Data[dtype],
    pixel: Int,
    count: Int,
    channels: Int,
    panel: Data[TileFormat[dtype].PACKED],
):
    """Packs targets of up to `lines` channels as [target / pair][lines][pair], zeros for missing ones.

    Parameters:
        dtype: The element type.
        lines: The lines of a panel.

    Args:
        gather: The sizes.
        targets: The first of the channels in the first image.
        pixel: The first target.
        count: The number of targets.
        channels: How many of the channels exist.
        panel: The destination.
    """
    comptime Format = TileFormat[dtype]
    comptime pair = Format.GROUP
    var first = gather.position(pixel)
    var inner = gather.axes[2].out_stride
    var rows_follow = (
        gather.axes[1].targets == 1
        or gather.axes[1].out_stride == gather.axes[2].targets * inner
    ) and (
        gather.axes[0].targets == 1
        or gather.axes[0].out_stride
        == gather.axes[1].targets * gather.axes[2].targets * inner
    )
    var images_follow = (
        gather.images == 1 or gather.out_image == gather.pixels() * inner
    )
    var at = pixel % gather.pixels()
    if rows_follow and (images_follow or at + count <= gather.pixels()):
        pack_panel[dtype, Format.PACKED, lines, Format.WIDTH, pair](
            targets.unsafe_offset(gather.out_offset(first)),
            gather.out_channel,
            inner,
            channels,
            count,
            panel,
        )
        return
    if rows_follow:
        # Image by image, as long as pairs do not straddle them.
        var image_size = gather.pixels()
        if pair == 1 or (at % 2 == 0 and image_size % 2 == 0):
            var done = 0
            while done < count:
                var here = min(
                    image_size - (pixel + done) % image_size, count - done
                )
                pack_panel[dtype, Format.PACKED, lines, Format.WIDTH, pair](
                    targets.unsafe_offset(
                        gather.out_offset(gather.position(pixel + done))
                    ),
                    gather.out_channel,
                    inner,
                    channels,
                    here,
                    panel.unsafe_offset(done * lines),
                )
                done += here
            return
    var position = first
    for k in range(ceil_div(count, pair) * pair):
        var row = panel.unsafe_offset(k // pair * pair * lines + k % pair)
        if k >= count:
            for lane in range(lines):
                row.unsafe_store(lane * pair, 0)
            continue
        var here = targets.unsafe_offset(gather.out_offset(position))
        for lane in range(channels):
            row.unsafe_store(
                lane * pair,
                here.unsafe_load(lane * gather.out_channel).cast[
                    Format.PACKED
                ](),
            )
        for lane in range(channels, lines):
            row.unsafe_store(lane * pair, 0)
        position.advance(gather)


@inline(.never)
def pack_source_line[
    dtype: DType, packed: DType
](
    source: Data[dtype],
    stride: Int,
    segments: Segments,
    start: Int,
    end: Int,
    count: Int,
    line: Data[packed],
):
    """Packs the sources of neighbouring targets for one channel and tap, zeros where there is none.

    Parameters:
        dtype: The element type.
        packed: The type to convert to.

    Args:
        source: The channel in the first image.
        stride: Elements between the sources of neighbours.
        segments: Where sources lie, by `find_segments`.
        start: The tap's first segment.
        end: The segment behind the tap's last one.
        count: The number of targets.
        line: The destination.
    """
    var done = 0
    for i in range(start, end):
        var segment = segments.unsafe_offset(i)[]
        var low = Int(segment.low)
        clear_run(low - done, line.unsafe_offset(done))
        done = Int(segment.high)
        copy_run(
            source.unsafe_offset(segment.offset + low * stride),
            stride,
            done - low,
            line.unsafe_offset(low),
        )
    clear_run(count - done, line.unsafe_offset(done))


@inline(.never)
def find_offsets[
    dtype: DType
](gather: Gather[dtype], pixel: Int, count: Int, offsets: Data[DType.int64],):
    """Lists where the sources of targets lie, for each tap.

    Parameters:
        dtype: The element type.

    Args:
        gather: The sizes.
        pixel: The first target.
        count: The number of targets.
        offsets: Receives [taps][count] elements from the first image's channel; -1 for none.
    """
    var position = gather.position(pixel)
    for i in range(count):
        var tap = 0
        var image = position.image * gather.source_image
        for tz in range(gather.axes[0].taps):
            var z = gather.axes[0].source(position.z, tz)
            for ty in range(gather.axes[1].taps):
                var y = gather.axes[1].source(position.y, ty)
                var exists = gather.axes[0].contains(z) and gather.axes[
                    1
                ].contains(y)
                var row = (
                    image
                    + z * gather.axes[0].source_stride
                    + y * gather.axes[1].source_stride
                )
                for tx in range(gather.axes[2].taps):
                    var x = gather.axes[2].source(position.x, tx)
                    offsets.unsafe_store(
                        tap * count + i,
                        Int64(
                            row + x * gather.axes[2].source_stride if exists
                            and gather.axes[2].contains(x) else -1
                        ),
                    )
                    tap += 1
        position.advance(gather)


@inline(.never)
def pack_sources[
    dtype: DType
](
    gather: Gather[dtype],
    source: Data[dtype],
    offsets: Data[DType.int64],
    first: Int,
    lines: Int,
    count: Int,
    panel: Data[TileFormat[dtype].PACKED],
):
    """Packs up to `COLUMNS` lines, taps times channels, as [target / pair][lines][pair]; missing lines are undefined.

    Parameters:
        dtype: The element type.

    Args:
        gather: The sizes.
        source: The first channel of the group in the first image.
        offsets: Where sources lie, by `find_offsets`.
        first: The first line.
        lines: How many lines exist.
        count: The number of targets.
        panel: The destination.
    """
    comptime Format = TileFormat[dtype]
    comptime columns = Format.COLUMNS
    comptime pair = Format.GROUP
    comptime width = Format.WIDTH
    var done = 0
    while done < lines:
        var tap, channel = divmod(first + done, gather.channels)
        var size = min(gather.channels - channel, lines - done)
        var list = offsets.unsafe_offset(tap * count)
        var base = source.unsafe_offset(channel * gather.source_channel)
        for k in range(count):
            var row = panel.unsafe_offset(
                k // pair * pair * columns + done * pair + k % pair
            )
            var offset = Int(list.unsafe_load(k))
            comptime if pair == 1:
                if offset < 0:
                    clear_run(size, row)
                elif gather.source_channel == 1 and size == columns:
                    comptime for j in range(0, columns, width):
                        row.unsafe_store[width=width](
                            j,
                            base.unsafe_load[width=width](offset + j).cast[
                                Format.PACKED
                            ](),
                        )
                else:
                    copy_run(
                        base.unsafe_offset(offset),
                        gather.source_channel,
                        size,
                        row,
                    )
            else:
                if gather.source_channel == 1 and size == columns:
                    if k % 2 == 0:
                        var even = SIMD[Format.PACKED, columns](0)
                        var odd = SIMD[Format.PACKED, columns](0)
                        if offset >= 0:
                            even = base.unsafe_load[width=columns](offset).cast[
                                Format.PACKED
                            ]()
                        if k + 1 < count:
                            var next = Int(list.unsafe_load(k + 1))
                            if next >= 0:
                                odd = base.unsafe_load[width=columns](
                                    next
                                ).cast[Format.PACKED]()
                        row.unsafe_store[width=2 * columns](
                            0, even.interleave(odd)
                        )
                else:
                    for lane in range(size):
                        var value = Scalar[Format.PACKED](0)
                        if offset >= 0:
                            value = base.unsafe_load(
                                offset + lane * gather.source_channel
                            ).cast[Format.PACKED]()
                        row.unsafe_store(lane * pair, value)
        done += size
    comptime if pair == 2:
        if count % 2 == 1:
            var row = panel.unsafe_offset(count // 2 * 2 * columns + 1)
            for lane in range(lines):
                row.unsafe_store(lane * 2, 0)
