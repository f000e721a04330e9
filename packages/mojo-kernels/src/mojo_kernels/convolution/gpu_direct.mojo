"""Convolutions with few channels per group on GPUs ("depthwise"), where tiles of a matrix product would stay empty.

A thread sums one target; a block sums one weight's gradient.
"""

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.sync import barrier

from mojo_kernels.abi import KernelCall
from mojo_kernels.convolution.geometry import Gather
from mojo_kernels.convolution.gpu_problem import (
    GpuGather,
    Line,
    store_target,
)
from mojo_kernels.matmul.gpu import shared_memory
from mojo_kernels.matmul.matrix import ceil_div
from mojo_kernels.matmul.tile import TileFormat
from mojo_kernels.reduction.rows import gpu_context

comptime BLOCK = 128
"""Threads of a block."""
comptime NARROW = 4
"""Target channels of a group up to which a thread sums one target."""


def is_direct_on_gpu[dtype: DType](gather: Gather[dtype]) -> Bool:
    """Whether a gather, or the gradient of its weight, is to be computed without tiles.

    Parameters:
        dtype: The element type.

    Args:
        gather: The problem.

    Returns:
        True for groups of few channels.
    """
    return (
        gather.groups > 1
        and gather.results <= NARROW
        and gather.channels <= NARROW
    )


def _gather_kernel[dtype: DType](problem: GpuGather[dtype]):
    """A target per thread and step; neighbouring threads have neighbours in memory.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    var pixels = problem.gather.images * problem.gather.pixels()
    var channels = problem.gather.groups * problem.gather.results
    var index = Int(block_idx.x) * BLOCK + Int(thread_idx.x)
    while index < pixels * channels:
        var pixel: Int
        var channel: Int
        if problem.channels_last:
            pixel, channel = divmod(index, channels)
        else:
            channel, pixel = divmod(index, pixels)
        var position = problem.position(pixel)
        var group, result = divmod(channel, problem.gather.results)
        var sum = Scalar[accumulate](0)
        for c in range(problem.gather.channels):
            for z in range(problem.gather.axes[0].taps):
                for y in range(problem.gather.axes[1].taps):
                    for x in range(problem.gather.axes[2].taps):
                        var line = Line(c, z, y, x)
                        sum += (
                            problem.source(group, position, line).cast[
                                accumulate
                            ]()
                            * problem.gather.weight.unsafe_load(
                                problem.weight_offset(group, result, line)
                            ).cast[accumulate]()
                        )
        store_target(problem, group, result, pixel, sum)
        index += Int(grid_dim.x) * BLOCK


def gather_directly_on_gpu[
    dtype: DType
](call: KernelCall, gather: Gather[dtype]) raises:
    """Computes a gather of few channels per group on the stream's device.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the stream.
        gather: The problem, of fewer than 2^31 targets.

    Raises:
        If the launch fails.
    """
    gpu_context(call).enqueue_function[_gather_kernel[dtype]](
        GpuGather(gather),
        grid_dim=min(
            ceil_div(
                gather.images
                * gather.pixels()
                * gather.groups
                * gather.results,
                BLOCK,
            ),
            1 << 20,
        ),
        block_dim=BLOCK,
    )


def _weight_kernel[dtype: DType](problem: GpuGather[dtype]):
    """A block sums one weight: its threads stride over the targets and add up in a tree.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    var shared = shared_memory[accumulate, BLOCK]()
    var lines = problem.gather.depth()
    var thread = Int(thread_idx.x)
    var targets = problem.gather.images * problem.gather.pixels()
    var index = Int(block_idx.x)
    while index < problem.gather.groups * problem.gather.results * lines:
        var channel, k = divmod(index, lines)
        var group, result = divmod(channel, problem.gather.results)
        var line = problem.line(k)
        var sum = Scalar[accumulate](0)
        for pixel in range(thread, targets, BLOCK):
            var position = problem.position(pixel)
            sum += (
                problem.source(group, position, line).cast[accumulate]()
                * problem.gather.out.unsafe_load(
                    problem.gather.out_offset(position)
                    + channel * problem.gather.out_channel
                ).cast[accumulate]()
            )
        shared.unsafe_store(thread, sum)
        barrier()
        var half = BLOCK // 2
        while half > 0:
            if thread < half:
                shared.unsafe_store(
                    thread,
                    shared.unsafe_load(thread)
                    + shared.unsafe_load(thread + half),
                )
            barrier()
            half //= 2
        if thread == 0:
            problem.gather.weight.unsafe_store(
                problem.weight_offset(group, result, line),
                shared.unsafe_load(0).cast[dtype](),
            )
        barrier()
        index += Int(grid_dim.x)


def weight_gradient_directly_on_gpu[
    dtype: DType
](call: KernelCall, gather: Gather[dtype]) raises:
    """The gradient of a weight of few channels per group on the stream's device.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the stream.
        gather: The problem, of fewer than 2^31 targets.

    Raises:
        If the launch fails.
    """
    gpu_context(call).enqueue_function[_weight_kernel[dtype]](
        GpuGather(gather),
        grid_dim=min(gather.groups * gather.results * gather.depth(), 1 << 20),
        block_dim=BLOCK,
    )
