"""The gradient of a convolution's weight on GPUs: implicit matrix products whose depth is the targets of all images.

A block sums a tile of target channels and lines, which are source channels times taps, over a part of the depth. A second
kernel adds the parts in order.
"""

from std.sys.info import is_nvidia_gpu

from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from max.gpu.sync import barrier

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.geometry import Gather
from mojo_kernels.convolution.gpu_direct import (
    is_direct_on_gpu,
    weight_gradient_directly_on_gpu,
)
from mojo_kernels.convolution.gpu_problem import (
    INDEX_LIMIT,
    GpuGather,
    check_indices,
    put,
)
from mojo_kernels.matmul.gpu import (
    DEPTH,
    GRID_LIMIT,
    MMA_DEPTH,
    STRIDE,
    THREADS,
    TILE,
    Shared,
    ThreadTile,
    WarpTile,
    shared_memory,
)
from mojo_kernels.matmul.matrix import ceil_div
from mojo_kernels.matmul.tile import TileFormat
from mojo_kernels.reduction.rows import gpu_context

comptime WANTED_BLOCKS = 512
"""Blocks that fill a large GPU; the depth of a weight's gradient is cut until there are as many."""
comptime PART_DEPTH = 1024
"""Targets that are worth a block of a weight's gradient."""


@inline(.always)
def _load_gradient[
    dtype: DType, to: DType, depth: Int, transposed: Bool, stride: Int
](
    problem: GpuGather[dtype],
    group: Int,
    result: Int,
    line: Int,
    start: Int,
    end: Int,
    left: Shared[to],
    right: Shared[to],
):
    """Loads targets of `TILE` channels and their sources for `TILE` lines; one of the targets is the thread's.
    """
    var p = Int(thread_idx.x) % depth
    var exists = start + p < end
    var position = problem.position(start + p if exists else 0)
    var out = (
        problem.gather.out_offset(position)
        + group * problem.gather.results * problem.gather.out_channel
    )
    comptime for step in range(TILE * depth // THREADS):
        var i = step * (THREADS // depth) + Int(thread_idx.x) // depth
        var target = Scalar[dtype](0)
        var source = Scalar[dtype](0)
        if exists:
            if result + i < problem.gather.results:
                target = problem.gather.out.unsafe_load(
                    out + (result + i) * problem.gather.out_channel
                )
            if line + i < problem.gather.depth():
                source = problem.source(group, position, problem.line(line + i))
        put[to, dtype, transposed, stride](left, i, p, target)
        put[to, dtype, transposed, stride](right, i, p, source)


@inline(.always)
def _store_weight[
    dtype: DType
](
    problem: GpuGather[dtype],
    group: Int,
    part: Int,
    result: Int,
    line: Int,
    sum: Scalar[TileFormat[dtype].ACCUMULATE],
):
    """Writes an element of the gradient, or of a part's sums, if it exists."""
    var lines = problem.gather.depth()
    if result >= problem.gather.results or line >= lines:
        return
    if problem.parts == 1:
        problem.gather.weight.unsafe_store(
            problem.weight_offset(group, result, problem.line(line)),
            sum.cast[dtype](),
        )
    else:
        problem.sums.unsafe_store(
            (
                (part * problem.gather.groups + group) * problem.gather.results
                + result
            )
            * lines
            + line,
            sum,
        )


def _weight_kernel[dtype: DType](problem: GpuGather[dtype]):
    """Blocks along x are tiles of lines, along y tiles of target channels, along z groups times parts of the depth.
    """
    var line = Int(block_idx.x) * TILE
    var targets = problem.gather.images * problem.gather.pixels()
    for index in range(
        Int(block_idx.z),
        problem.gather.groups * problem.parts,
        Int(grid_dim.z),
    ):
        var part, group = divmod(index, problem.gather.groups)
        var first = part * problem.share
        var end = min(first + problem.share, targets)
        for result in range(
            Int(block_idx.y) * TILE,
            problem.gather.results,
            Int(grid_dim.y) * TILE,
        ):
            comptime if is_nvidia_gpu() and dtype.is_half_float():
                comptime stride = WarpTile[dtype].STRIDE
                var left = shared_memory[dtype, TILE * stride]()
                var right = shared_memory[dtype, TILE * stride]()
                var tile = WarpTile[dtype]()
                for start in range(first, end, MMA_DEPTH):
                    _load_gradient[dtype, dtype, MMA_DEPTH, False, stride](
                        problem, group, result, line, start, end, left, right
                    )
                    barrier()
                    tile.add_step(left, right)
                    barrier()
                comptime for i in range(tile.ROW_STEPS):
                    comptime for j in range(tile.COLUMN_STEPS):
                        comptime for e in range(4):
                            _store_weight(
                                problem,
                                group,
                                part,
                                result + tile.row(i, e),
                                line + tile.column(j, e),
                                rebind[Scalar[TileFormat[dtype].ACCUMULATE]](
                                    tile.sums[i * tile.COLUMN_STEPS + j][e]
                                ),
                            )
            else:
                comptime accumulate = TileFormat[dtype].ACCUMULATE
                var left = shared_memory[accumulate, DEPTH * STRIDE]()
                var right = shared_memory[accumulate, DEPTH * STRIDE]()
                var tile = ThreadTile[accumulate]()
                for start in range(first, end, DEPTH):
                    _load_gradient[dtype, accumulate, DEPTH, True, STRIDE](
                        problem, group, result, line, start, end, left, right
                    )
                    barrier()
                    tile.add_step(left, right, DEPTH)
                    barrier()
                comptime for i in range(tile.ROWS):
                    comptime for j in range(tile.COLUMNS):
                        _store_weight(
                            problem,
                            group,
                            part,
                            result + tile.row() + i,
                            line + tile.column() + j,
                            tile.sums[i][j],
                        )


def _merge_kernel[dtype: DType](problem: GpuGather[dtype]):
    """Adds the parts' sums in order, an element per thread."""
    var lines = problem.gather.depth()
    var total = problem.gather.groups * problem.gather.results * lines
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < total:
        var sum = problem.sums.unsafe_load(i)
        for part in range(1, problem.parts):
            sum += problem.sums.unsafe_load(part * total + i)
        var row, line = divmod(i, lines)
        var group, result = divmod(row, problem.gather.results)
        problem.gather.weight.unsafe_store(
            problem.weight_offset(group, result, problem.line(line)),
            sum.cast[dtype](),
        )
        i += Int(grid_dim.x) * Int(block_dim.x)


def weight_gradient_on_gpu[
    dtype: DType
](call: KernelCall, gather: Gather[dtype]) raises:
    """Computes the gradient of a convolution's weight on the stream's device.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the stream.
        gather: The convolution; its weight is written, its targets are the gradient of its outputs.

    Raises:
        NotImplementedError: There are 2^31 or more targets, or weights of a channel.
    """
    var targets = gather.images * gather.pixels()
    if targets >= INDEX_LIMIT:
        raise Error(
            "NotImplementedError: the gradient of a convolution's weight over"
            " 2^31 positions; split the batch"
        )
    check_indices(gather)
    if is_direct_on_gpu(gather):
        weight_gradient_directly_on_gpu(call, gather)
        return
    var context = gpu_context(call)
    var problem = GpuGather(gather)
    var lines = gather.depth()
    var columns = ceil_div(lines, TILE)
    var rows = min(ceil_div(gather.results, TILE), GRID_LIMIT)
    problem.parts = max(
        min(
            WANTED_BLOCKS // (columns * rows * gather.groups),
            targets // PART_DEPTH,
        ),
        1,
    )
    problem.share = ceil_div(targets, problem.parts)
    var total = gather.groups * gather.results * lines
    var scratch = context.enqueue_create_buffer[TileFormat[dtype].ACCUMULATE](
        problem.parts * total if problem.parts > 1 else 1
    )
    if problem.parts > 1:
        problem.sums = Data[TileFormat[dtype].ACCUMULATE](
            unsafe_from_address=Int(scratch.unsafe_ptr())
        )
    context.enqueue_function[_weight_kernel[dtype]](
        problem,
        grid_dim=(
            columns,
            rows,
            min(gather.groups * problem.parts, GRID_LIMIT),
        ),
        block_dim=THREADS,
    )
    if problem.parts > 1:
        context.enqueue_function[_merge_kernel[dtype]](
            problem,
            grid_dim=min(ceil_div(total, THREADS), 1 << 16),
            block_dim=THREADS,
        )
    _ = scratch^
