"""The gradient of a weight with a channel or two per group on CPUs ("depthwise"): vectors of neighbours."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.convolution.bands import weight_gradient_bands
from mojo_kernels.convolution.direct import GRAIN
from mojo_kernels.convolution.geometry import Gather
from mojo_kernels.convolution.packing import clear_run
from mojo_kernels.matmul.direct import load_some, multiply_add
from mojo_kernels.matmul.matrix import ceil_div
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
        for row in range(part * rows // parts, (part + 1) * rows // parts):
            var position = gather.position(row * inner.targets)
            var out = gather.out.unsafe_offset(gather.out_offset(position))
            for tap in range(taps):
                var tap_row, tx = divmod(tap, inner.taps)
                var tz, ty = divmod(tap_row, gather.axes[1].taps)
                var z = gather.axes[0].source(position.z, tz)
                var y = gather.axes[1].source(position.y, ty)
                if not (
                    gather.axes[0].contains(z) and gather.axes[1].contains(y)
                ):
                    continue
                var first = inner.source(0, tx)
                var low = ceil_div(max(-first, 0), inner.step)
                var high = min(
                    inner.targets,
                    ceil_div(max(inner.size - first, 0), inner.step),
                )
                var source = gather.source.unsafe_offset(
                    position.image * gather.source_image
                    + z * gather.axes[0].source_stride
                    + y * gather.axes[1].source_stride
                    + first * inner.source_stride
                )
                for channel in range(0, channels, block):

                    @inline(.always)
                    def add_block[whole: Bool]() {imm}:
                        var count = channels - channel
                        var target = own.unsafe_offset(tap * channels + channel)
                        var total = Array[SIMD[accumulate, width], vectors](
                            fill=SIMD[accumulate, width](0)
                        )
                        for x in range(low, high):
                            var left = out.unsafe_offset(
                                x * inner.out_stride
                                + channel * gather.out_channel
                            )
                            var right = source.unsafe_offset(
                                x * inner.step * inner.source_stride + channel
                            )
                            comptime for v in range(vectors):
                                total[v] = multiply_add(
                                    load_some[dtype, accumulate, width, whole](
                                        left.unsafe_offset(v * width),
                                        max(count - v * width, 0),
                                    ),
                                    load_some[dtype, accumulate, width, whole](
                                        right.unsafe_offset(v * width),
                                        max(count - v * width, 0),
                                    ),
                                    total[v],
                                )
                        comptime for v in range(vectors):
                            for lane in range(min(width, count - v * width)):
                                var at = v * width + lane
                                target.unsafe_store(
                                    at,
                                    target.unsafe_load(at) + total[v][lane],
                                )

                    if channels - channel >= block:
                        add_block[True]()
                    else:
                        add_block[False]()

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
                channel * gather.weight_group, sum.cast[dtype]()
            )
    release(sums)
