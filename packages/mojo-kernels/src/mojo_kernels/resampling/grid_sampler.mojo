"""Sampling of a volume at positions that a grid gives, and its gradients."""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import GPU_BLOCK, GPU_MAX_BLOCKS
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.reduction.rows import gpu_context
from mojo_kernels.resampling.grid_position import GridSampler, dense_volume
from mojo_kernels.resampling.grid_sampler_cpu import (
    GRAIN,
    sample_on_cpu,
    scatter_on_cpu,
)
from mojo_kernels.volume import CHANNEL, Point, Volume
from std.atomic import Atomic
from std.sys.info import has_accelerator


# ---- GPUs -----------------------------------------------------------------------------------------------------------


def _sample_block[dtype: DType](sampler: GridSampler[dtype], count: Int64):
    """One output per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        sampler.sample[1](Point(sampler.output, False, i))
        i += Int(grid_dim.x) * Int(block_dim.x)


def _grid_block[
    dtype: DType
](
    sampler: GridSampler[dtype],
    target: Data[dtype],
    positions: Volume,
    value_stride: Int64,
    count: Int64,
):
    """One position per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(positions, False, i)
        sampler.grid_gradient(target, positions, value_stride, point)
        i += Int(grid_dim.x) * Int(block_dim.x)


def _clear_block[dtype: DType](data: Data[dtype], count: Int64):
    """Sets elements to zero."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        data.unsafe_store(i, Scalar[dtype](0))
        i += Int(grid_dim.x) * Int(block_dim.x)


def _scatter_block[
    dtype: DType
](
    sampler: GridSampler[dtype],
    sums: Data[compute_type[dtype]()],
    count: Int64,
):
    """Adds an output's gradient to the elements that it depends on, one output per thread and step.
    """
    comptime compute = compute_type[dtype]()
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(sampler.output, False, i)
        var gradient = sampler.y.unsafe_load(
            sampler.output.plane(point.n, point.c)
            + sampler.output.at(point.d, point.h, point.w)
        ).cast[compute]()
        # As a contiguous tensor of the input's sizes.
        var plane = sums.unsafe_offset(
            (point.n * sampler.input.size(CHANNEL) + point.c)
            * sampler.input.plane_size()
        )
        var dense = sampler
        dense.input = dense_volume(sampler.input)

        @inline(.always)
        def add(offset: Int, weight: Scalar[compute]) {imm}:
            _ = Atomic.fetch_add(plane.unsafe_offset(offset), weight * gradient)

        dense.each_tap(
            sampler.position[0](point),
            sampler.position[1](point),
            sampler.position[2](point),
            add,
        )
        i += Int(grid_dim.x) * Int(block_dim.x)


def _round_block[
    dtype: DType
](
    target: Data[dtype],
    volume: Volume,
    sums: Data[compute_type[dtype]()],
    count: Int64,
):
    """Converts the sums, which are contiguous."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(volume, False, i)
        target.unsafe_store(
            volume.plane(point.n, point.c)
            + volume.at(point.d, point.h, point.w),
            narrow[dtype](sums.unsafe_load(i)),
        )
        i += Int(grid_dim.x) * Int(block_dim.x)


@inline(.always)
def _blocks(count: Int) -> Int:
    """The grid for a number of threads."""
    return min(ceil_div(count, GPU_BLOCK), GPU_MAX_BLOCKS)


# ---- kernels --------------------------------------------------------------------------------------------------------


def grid_sample[dtype: DType](call: KernelCall) raises:
    """Samples of a volume.

    Tensors: output [batch, channels, spatial outputs], input [batch, channels, spatial inputs] with two or three spatial
    dimensions, grid [batch, spatial outputs, spatial dimensions] of positions from -1 to 1, the width's first. Scalars:
    the interpolation (0 linear, 1 nearest, 2 cubic), the padding (0 zeros, 1 border, 2 reflection), whether -1 and 1 are
    the centres of the outermost elements.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.
    """
    var sampler = GridSampler[dtype](
        call, call.tensor(0), call.tensor(1), call.tensor(2)
    )
    var count = sampler.output.numel()
    if count == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_sample_block[dtype]](
            sampler,
            Int64(count),
            grid_dim=_blocks(count),
            block_dim=GPU_BLOCK,
        )
    else:
        sample_on_cpu(call, sampler)


def grid_sample_backward[dtype: DType](call: KernelCall) raises:
    """The gradients of `grid_sample`.

    On GPUs the input's gradient adds up in the order of atomic additions.

    Tensors: the input's gradient and the grid's gradient, both optional; the output's gradient, the input, the grid.
    Scalars: as of `grid_sample`.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.
    """
    comptime compute = compute_type[dtype]()
    var sampler = GridSampler[dtype](
        call, call.tensor(2), call.tensor(3), call.tensor(4)
    )
    var dx = call.tensor(0)
    var d_grid = call.tensor(1)
    comptime if has_accelerator():
        var context = gpu_context(call)
        var outputs = sampler.output.numel()
        if not dx.is_absent() and dx.numel > 0:
            var elements = Int(dx.numel)
            var collects = dtype != compute or not dx.is_contiguous()
            var scratch = context.enqueue_create_buffer[compute](
                elements if collects else 1
            )
            var sums = Data[compute](
                unsafe_from_address=Int(
                    scratch.unsafe_ptr()
                ) if collects else Int(dx.data)
            )
            context.enqueue_function[_clear_block[compute]](
                sums,
                Int64(elements),
                grid_dim=_blocks(elements),
                block_dim=GPU_BLOCK,
            )
            if outputs > 0:
                context.enqueue_function[_scatter_block[dtype]](
                    sampler,
                    sums,
                    Int64(outputs),
                    grid_dim=_blocks(outputs),
                    block_dim=GPU_BLOCK,
                )
            if collects:
                context.enqueue_function[_round_block[dtype]](
                    dx.pointer[dtype](),
                    Volume(dx, Int(sampler.spatial)),
                    sums,
                    Int64(elements),
                    grid_dim=_blocks(elements),
                    block_dim=GPU_BLOCK,
                )
            _ = scratch^
        if not d_grid.is_absent() and d_grid.numel > 0:
            var gradient = GridSampler[dtype](
                call, call.tensor(2), call.tensor(3), d_grid
            )
            var count = gradient.positions.numel()
            context.enqueue_function[_grid_block[dtype]](
                sampler,
                gradient.grid,
                gradient.positions,
                gradient.value_stride,
                Int64(count),
                grid_dim=_blocks(count),
                block_dim=GPU_BLOCK,
            )
    else:
        if not dx.is_absent() and dx.numel > 0:
            scatter_on_cpu(call, sampler, dx)
        if not d_grid.is_absent() and d_grid.numel > 0:
            var gradient = GridSampler[dtype](
                call, call.tensor(2), call.tensor(3), d_grid
            )

            def some_positions(start: Int, end: Int) {imm}:
                for i in range(start, end):
                    sampler.grid_gradient(
                        gradient.grid,
                        gradient.positions,
                        gradient.value_stride,
                        Point(gradient.positions, False, i),
                    )

            parallel_ranges(
                call,
                gradient.positions.numel(),
                GRAIN // max(sampler.output.size(CHANNEL), 1),
                some_positions,
            )
