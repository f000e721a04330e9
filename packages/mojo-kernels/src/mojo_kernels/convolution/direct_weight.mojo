"""The gradient of a weight with a channel or two per group on CPUs ("depthwise"): vectors of neighbours."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.bands import weight_gradient_bands
from mojo_kernels.convolution.direct import GRAIN, SLIDING
from mojo_kernels.convolution.geometry import (
    Axis,
    Gather,
    high_target,
    low_target,
)
from mojo_kernels.convolution.packing import clear_run
from mojo_kernels.math import narrow
from mojo_kernels.matmul.direct import load_some, multiply_add
from mojo_kernels.matmul.packed import allocate, release, run
from mojo_kernels.matmul.tile import TileFormat


def weight_gradient_directly[
    dtype: DType
](call: KernelCall, gather: Gather[dtype]) raises:
    """The gradient of the weight of a gather for which `is_direct`.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads.
        gather: The problem; its targets are the gradient of the outputs, its weight is written.

    Raises:
        If there is no memory for the workspace.
    """
    if gather.is_channels_last():
        _by_channels(call, gather)
        return
    weight_gradient_bands(call, gather)


def _by_channels[dtype: DType](call: KernelCall, gather: Gather[dtype]) raises:
    """A task sums rows of targets into weights [taps][channels] of its own; the lanes are channels.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    comptime vectors = 4
    comptime block = vectors * width
    var inner = gather.axes[2]
    var channels = gather.groups
    var taps = gather.taps()
    var rows = gather.images * gather.axes[0].targets * gather.axes[1].targets
    var size = taps * channels
    var work = rows * inner.targets * size
    var parts = max(min(min(2 * Int(call.threads), rows), work // GRAIN), 1)
    var sums = allocate[accumulate](parts * size)

    def some_rows(part: Int) {imm}:
        var own = sums.unsafe_offset(part * size)
        clear_run(size, own)
        var slides = inner.taps == SLIDING and inner.step == inner.dilation
        for row in range(part * rows // parts, (part + 1) * rows // parts):
            var position = gather.position(row * inner.targets)
            var out = gather.out.unsafe_offset(gather.out_offset(position))
            for tap_row in range(gather.axes[0].taps * gather.axes[1].taps):
                var tz, ty = divmod(tap_row, gather.axes[1].taps)
                var z = gather.axes[0].source(position.z, tz)
                var y = gather.axes[1].source(position.y, ty)
                if not (
                    gather.axes[0].contains(z) and gather.axes[1].contains(y)
                ):
                    continue
                var source = gather.source.unsafe_offset(
                    position.image * gather.source_image
                    + z * gather.axes[0].source_stride
                    + y * gather.axes[1].source_stride
                )
                # Targets for which all taps exist.
                var inside = min(low_target(inner, 0), inner.targets)
                var end = max(
                    min(high_target(inner, inner.taps - 1), inner.targets),
                    inside,
                )
                if not slides:
                    end = inside
                for channel in range(0, channels, block):
                    var sums = own.unsafe_offset(
                        tap_row * inner.taps * channels + channel
                    )
                    var left = out.unsafe_offset(channel * gather.out_channel)
                    var right = source.unsafe_offset(channel)
                    var count = channels - channel
                    var low = inside
                    var high = end
                    if slides and count >= block:
                        comptime for v in range(0, vectors, 2):
                            _slide_targets(
                                inner,
                                low,
                                high,
                                left.unsafe_offset(v * width),
                                right.unsafe_offset(v * width),
                                channels,
                                sums.unsafe_offset(v * width),
                            )
                    else:
                        high = low
                    for tap in range(inner.taps):
                        for side in range(2):
                            var from_ = high if side else low_target(inner, tap)
                            var to = high_target(inner, tap) if side else low
                            if from_ >= to:
                                continue
                            if count >= block:
                                _add_targets[dtype, vectors, True](
                                    inner,
                                    tap,
                                    from_,
                                    to,
                                    count,
                                    left,
                                    right,
                                    sums.unsafe_offset(tap * channels),
                                )
                            else:
                                _add_targets[dtype, vectors, False](
                                    inner,
                                    tap,
                                    from_,
                                    to,
                                    count,
                                    left,
                                    right,
                                    sums.unsafe_offset(tap * channels),
                                )

    run(call, parts > 1, some_rows, parts)
    for tap in range(taps):
        var row, tx = divmod(tap, inner.taps)
        var tz, ty = divmod(row, gather.axes[1].taps)
        var target = gather.weight.unsafe_offset(
            tz * gather.axes[0].weight_stride
            + ty * gather.axes[1].weight_stride
            + tx * inner.weight_stride
        )
        for channel in range(channels):
            var sum = sums.unsafe_load(tap * channels + channel)
            for part in range(1, parts):
                sum += sums.unsafe_load(part * size + tap * channels + channel)
            target.unsafe_store(
                channel * gather.weight_group, narrow[dtype](sum)
            )
    release(sums)


@inline(.always)
def _add_targets[
    dtype: DType, vectors: Int, whole: Bool
](
    axis: Axis,
    tap: Int,
    first: Int,
    end: Int,
    count: Int,
    left: Data[dtype],
    right: Data[dtype],
    sums: Data[TileFormat[dtype].ACCUMULATE],
):
    """Adds the products of a row's targets with a tap's sources to the sums of up to `vectors` vectors of channels.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var total = Array[SIMD[accumulate, width], vectors](
        fill=SIMD[accumulate, width](0)
    )
    for x in range(first, end):
        var target = left.unsafe_offset(x * axis.out_stride)
        var source = right.unsafe_offset(
            axis.source(x, tap) * axis.source_stride
        )
        comptime for v in range(vectors):
            var lanes = max(count - v * width, 0)
            total[v] = multiply_add(
                load_some[dtype, accumulate, width, whole](
                    target.unsafe_offset(v * width), lanes
                ),
                load_some[dtype, accumulate, width, whole](
                    source.unsafe_offset(v * width), lanes
                ),
                total[v],
            )
    comptime for v in range(vectors):
        var sum = sums.unsafe_offset(v * width)
        comptime if whole:
            sum.unsafe_store[width=width](
                0, sum.unsafe_load[width=width]() + total[v]
            )
        else:
            for lane in range(min(width, count - v * width)):
                sum.unsafe_store(lane, sum.unsafe_load(lane) + total[v][lane])


@inline(.never)
def _slide_targets[
    dtype: DType
](
    axis: Axis,
    first: Int,
    end: Int,
    left: Data[dtype],
    right: Data[dtype],
    channels: Int,
    sums: Data[TileFormat[dtype].ACCUMULATE],
):
    """Adds the products of a row's targets with `SLIDING` taps, which all exist and lie a target apart, to the sums of two
    vectors of channels: each source is read once.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    comptime vectors = 2
    comptime Vector = SIMD[accumulate, width]
    if first >= end:
        return
    var total = Array[Vector, SLIDING * vectors](fill=Vector(0))
    var seen = Array[Vector, SLIDING * vectors](fill=Vector(0))
    var step = axis.dilation * axis.source_stride
    var source = right.unsafe_offset(axis.source(first, 0) * axis.source_stride)
    comptime for tap in range(SLIDING - 1):
        comptime for v in range(vectors):
            seen[(tap + 1) * vectors + v] = source.unsafe_load[width=width](
                tap * step + v * width
            ).cast[accumulate]()
    source = source.unsafe_offset((SLIDING - 1) * step)
    var target = left.unsafe_offset(first * axis.out_stride)
    for _ in range(first, end):
        comptime for v in range(vectors):
            comptime for tap in range(SLIDING - 1):
                seen[tap * vectors + v] = seen[(tap + 1) * vectors + v]
            seen[(SLIDING - 1) * vectors + v] = source.unsafe_load[width=width](
                v * width
            ).cast[accumulate]()
            var factor = target.unsafe_load[width=width](v * width).cast[
                accumulate
            ]()
            comptime for tap in range(SLIDING):
                total[tap * vectors + v] = multiply_add(
                    seen[tap * vectors + v], factor, total[tap * vectors + v]
                )
        source = source.unsafe_offset(step)
        target = target.unsafe_offset(axis.out_stride)
    comptime for tap in range(SLIDING):
        comptime for v in range(vectors):
            var sum = sums.unsafe_offset(tap * channels + v * width)
            sum.unsafe_store[width=width](
                0, sum.unsafe_load[width=width]() + total[tap * vectors + v]
            )
