"""The weights of a gather, packed tap by tap as panels of the register tile."""

from std.memory import stack_allocation

from mojo_kernels.abi import Data
from mojo_kernels.convolution.geometry import Gather
from mojo_kernels.matmul.direct import load_some
from mojo_kernels.matmul.packing import pack_panel
from mojo_kernels.matmul.tile import TileFormat
from mojo_kernels.transposition import transpose_square

comptime BUFFER_ROWS = 512
"""Rows of weights that are transposed at a time."""


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


def taps_follow_backwards[dtype: DType](gather: Gather[dtype]) -> Bool:
    """Whether the weights of two channels lie side by side, the last tap first.

    Parameters:
        dtype: The element type.

    Args:
        gather: The weights.

    Returns:
        True for planar weights of a transposed convolution without strides.
    """
    var x = gather.axes[2]
    var y = gather.axes[1]
    var z = gather.axes[0]
    return (
        (x.taps == 1 or x.weight_stride == -1)
        and (y.taps == 1 or y.weight_stride == -x.taps)
        and (z.taps == 1 or z.weight_stride == -x.taps * y.taps)
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
    if gather.merged == 1 and taps_follow_backwards(gather):
        _pack_reversed_taps[dtype, lines](
            gather, source.unsafe_offset(1 - taps), count, padded, panel
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


@inline(.never)
def _pack_reversed_taps[
    dtype: DType, lines: Int
](
    gather: Gather[dtype],
    source: Data[dtype],
    count: Int,
    padded: Int,
    panel: Data[TileFormat[dtype].PACKED],
):
    """`pack_taps` of weights whose taps lie side by side from the last one, at `source`, on.
    """
    comptime packed = TileFormat[dtype].PACKED
    comptime pair = TileFormat[dtype].GROUP
    comptime width = TileFormat[dtype].WIDTH
    comptime Square = Array[SIMD[packed, width], width]
    var taps = gather.taps()
    for channel in range(0, gather.channels, pair):
        for first in range(0, lines, width):
            for tap in range(0, taps, width):

                @inline(.always)
                def transposed(p: Int) {imm} -> Square:
                    var square = Square(fill=SIMD[packed, width](0))
                    if channel + p < gather.channels:
                        var here = source.unsafe_offset(
                            (channel + p) * gather.weight_channel
                            + first * gather.weight_result
                            + tap
                        )
                        comptime for i in range(width):
                            if first + i < count:
                                square[i] = load_some[
                                    dtype, packed, width, False
                                ](
                                    here.unsafe_offset(
                                        i * gather.weight_result
                                    ),
                                    taps - tap,
                                )
                        transpose_square(square)
                    return square^

                var even = transposed(0)
                var target = panel.unsafe_offset(
                    ((taps - 1 - tap) * padded + channel) * lines + first * pair
                )
                comptime if pair == 1:
                    comptime for i in range(width):
                        if tap + i < taps:
                            target.unsafe_store[width=width](
                                -i * padded * lines, even[i]
                            )
                else:
                    var odd = transposed(1)
                    comptime for i in range(width):
                        if tap + i < taps:
                            target.unsafe_store[width=2 * width](
                                -i * padded * lines, even[i].interleave(odd[i])
                            )
