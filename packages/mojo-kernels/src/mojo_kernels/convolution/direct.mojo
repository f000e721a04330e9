"""Gathers with a channel or two per group on CPUs ("depthwise"), without matrix products: vectors of neighbours.

Planar tensors make neighbouring targets the lanes (bands.mojo), channels-last tensors neighbouring channels.
"""

from std.sys.intrinsics import masked_store

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.bands import gather_bands
from mojo_kernels.convolution.geometry import Gather, Position
from mojo_kernels.convolution.packing import copy_run, steps_over
from mojo_kernels.layout import parallel_ranges
from mojo_kernels.math import narrow
from mojo_kernels.matmul.direct import load_some, multiply_add
from mojo_kernels.matmul.matrix import first_lanes
from mojo_kernels.matmul.packed import allocate, release
from mojo_kernels.matmul.tile import TileFormat

comptime GRAIN = 1 << 16
"""Multiplications that are worth a thread."""
comptime VECTORS = 2
"""Vectors of channels that are summed together."""
comptime NEIGHBOURS = 4
"""Targets that are summed together."""
comptime SLIDING = 3
"""Taps along a row whose sources, where neighbouring targets have them in common, are read once."""


def is_direct[dtype: DType](gather: Gather[dtype]) -> Bool:
    """Whether a gather, or the gradient of its weight, is too narrow for matrix products.

    Parameters:
        dtype: The element type.

    Args:
        gather: The problem.

    Returns:
        True if the functions of this file are to be used.
    """
    if gather.is_channels_last():
        return (
            gather.results == 1
            and gather.channels == 1
            and gather.out_channel == 1
        )
    return gather.results <= 2 and gather.channels <= 2


def gather_directly[
    dtype: DType
](call: KernelCall, gather: Gather[dtype]) raises:
    """Computes a gather for which `is_direct`.

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
        _gather_channels(call, gather)
        return
    gather_bands(call, gather)


def _gather_channels[
    dtype: DType
](call: KernelCall, gather: Gather[dtype]) raises:
    """Row by row, the lanes being channels."""
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var channels = gather.groups
    var taps = gather.taps()
    var inner = gather.axes[2]
    # [taps][channels], and the bias behind them.
    var weights = allocate[accumulate]((taps + 1) * channels)
    var bias = weights.unsafe_offset(taps * channels)
    var tap = 0
    for tz in range(gather.axes[0].taps):
        for ty in range(gather.axes[1].taps):
            for tx in range(inner.taps):
                copy_run(
                    gather.weight.unsafe_offset(
                        tz * gather.axes[0].weight_stride
                        + ty * gather.axes[1].weight_stride
                        + tx * inner.weight_stride
                    ),
                    gather.weight_group,
                    channels,
                    weights.unsafe_offset(tap * channels),
                )
                tap += 1
    for channel in range(channels):
        var value = Scalar[accumulate](0)
        if gather.has_bias:
            value = gather.bias.unsafe_load(channel * gather.bias_stride).cast[
                accumulate
            ]()
        bias.unsafe_store(channel, value)

    def some_rows(start: Int, end: Int) {imm}:
        for row in range(start, end):
            var position = gather.position(row * inner.targets)
            for channel in range(0, channels, VECTORS * width):
                var count = channels - channel
                var x = 0
                while x < inner.targets:
                    # Neighbours whose taps all exist share the weights.
                    if (
                        count >= VECTORS * width
                        and x + NEIGHBOURS <= inner.targets
                        and inner.source(x, 0) >= 0
                        and inner.source(
                            x + NEIGHBOURS - 1, max(inner.taps - 1, 0)
                        )
                        < inner.size
                    ):
                        _sum_channels[dtype, NEIGHBOURS, True](
                            gather, weights, position, x, channel, count
                        )
                        x += NEIGHBOURS
                    else:
                        if count >= VECTORS * width:
                            _sum_channels[dtype, 1, True](
                                gather, weights, position, x, channel, count
                            )
                        else:
                            _sum_channels[dtype, 1, False](
                                gather, weights, position, x, channel, count
                            )
                        x += 1

    parallel_ranges(
        call,
        gather.images * gather.axes[0].targets * gather.axes[1].targets,
        max(GRAIN // (channels * max(taps, 1) * inner.targets), 1),
        some_rows,
    )
    release(weights)


@inline(.always)
def _sum_channels[
    dtype: DType, targets: Int, whole: Bool
](
    gather: Gather[dtype],
    weights: Data[TileFormat[dtype].ACCUMULATE],
    position: Position,
    x: Int,
    channel: Int,
    count: Int,
):
    """Computes `VECTORS` vectors of channels of neighbouring targets of a row.

    With more than one target or `whole` vectors, all taps along the row, or all channels, exist.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var inner = gather.axes[2]
    var channels = gather.groups
    var bias = weights.unsafe_offset(gather.taps() * channels + channel)
    var first = inner.source(x, 0)
    var low = steps_over(-first, inner.dilation)
    var high = min(inner.taps, steps_over(inner.size - first, inner.dilation))
    var sums = Array[SIMD[accumulate, width], targets * VECTORS](
        fill=SIMD[accumulate, width](0)
    )
    comptime for v in range(VECTORS):
        var start = load_some[accumulate, accumulate, width, whole](
            bias.unsafe_offset(v * width), max(count - v * width, 0)
        )
        comptime for i in range(targets):
            sums[i * VECTORS + v] = start
    var neighbour = inner.step * inner.source_stride
    var tap_step = inner.dilation * inner.source_stride
    for tz in range(gather.axes[0].taps):
        var z = gather.axes[0].source(position.z, tz)
        if not gather.axes[0].contains(z):
            continue
        for ty in range(gather.axes[1].taps):
            var y = gather.axes[1].source(position.y, ty)
            if not gather.axes[1].contains(y):
                continue
            var here = gather.source.unsafe_offset(
                position.image * gather.source_image
                + z * gather.axes[0].source_stride
                + y * gather.axes[1].source_stride
                + (first + low * inner.dilation) * inner.source_stride
                + channel
            )
            var factors = weights.unsafe_offset(
                ((tz * gather.axes[1].taps + ty) * inner.taps + low) * channels
                + channel
            )
            comptime if targets > 1:
                if inner.taps == SLIDING and neighbour == tap_step:
                    _slide_channels[dtype, targets](
                        here, factors, channels, neighbour, sums
                    )
                    continue
            for _ in range(low, high):
                comptime for v in range(VECTORS):
                    var factor = load_some[
                        accumulate, accumulate, width, whole
                    ](
                        factors.unsafe_offset(v * width),
                        max(count - v * width, 0),
                    )
                    comptime for i in range(targets):
                        sums[i * VECTORS + v] = multiply_add(
                            load_some[dtype, accumulate, width, whole](
                                here.unsafe_offset(i * neighbour + v * width),
                                max(count - v * width, 0),
                            ),
                            factor,
                            sums[i * VECTORS + v],
                        )
                here = here.unsafe_offset(tap_step)
                factors = factors.unsafe_offset(channels)
    var out = gather.out.unsafe_offset(
        gather.out_offset(Position(position.image, position.z, position.y, x))
        + channel
    )
    comptime for i in range(targets):
        comptime for v in range(VECTORS):
            var target = out.unsafe_offset(i * inner.out_stride + v * width)
            comptime if whole:
                target.unsafe_store[width=width](
                    0, narrow[dtype](sums[i * VECTORS + v])
                )
            else:
                masked_store(
                    narrow[dtype](sums[i * VECTORS + v]),
                    target,
                    first_lanes[width](max(count - v * width, 0)),
                )


@inline(.always)
def _slide_channels[
    dtype: DType, targets: Int
](
    source: Data[dtype],
    weights: Data[TileFormat[dtype].ACCUMULATE],
    channels: Int,
    neighbour: Int,
    mut sums: Array[
        SIMD[TileFormat[dtype].ACCUMULATE, TileFormat[dtype].WIDTH],
        targets * VECTORS,
    ],
):
    """Adds `SLIDING` taps at a distance of one source to whole vectors of channels of neighbouring targets.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    comptime for v in range(VECTORS):
        var factors = Array[SIMD[accumulate, width], SLIDING](
            fill=SIMD[accumulate, width](0)
        )
        comptime for tap in range(SLIDING):
            factors[tap] = weights.unsafe_load[width=width](
                tap * channels + v * width
            )
        comptime for i in range(targets + SLIDING - 1):
            var value = source.unsafe_load[width=width](
                i * neighbour + v * width
            ).cast[accumulate]()
            comptime for tap in range(SLIDING):
                comptime if i - tap >= 0 and i - tap < targets:
                    sums[(i - tap) * VECTORS + v] = multiply_add(
                        value, factors[tap], sums[(i - tap) * VECTORS + v]
                    )
