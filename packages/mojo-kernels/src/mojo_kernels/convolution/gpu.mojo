"""Convolutions on GPUs: implicit matrix products with tiles in shared memory.

A block sums a tile of target channels and targets. Half types use the tensor cores of NVIDIA GPUs, as in the matrix product.
"""

from std.sys.info import is_nvidia_gpu

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.sync import barrier

from mojo_kernels.abi import KernelCall
from mojo_kernels.convolution.geometry import Gather, Position
from mojo_kernels.convolution.gpu_direct import (
    gather_directly_on_gpu,
    is_direct_on_gpu,
)
from mojo_kernels.convolution.gpu_problem import (
    INDEX_LIMIT,
    GpuGather,
    check_indices,
    put,
    store_target,
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


@inline(.always)
def _load_gather[
    dtype: DType, to: DType, depth: Int, transposed: Bool, stride: Int
](
    problem: GpuGather[dtype],
    group: Int,
    result: Int,
    position: Position,
    exists: Bool,
    start: Int,
    left: Shared[to],
    right: Shared[to],
):
    """Loads the weights of `TILE` target channels and the sources of `TILE` targets, one of which is the thread's.
    """
    var total = problem.gather.depth()
    var lane = Int(thread_idx.x) % TILE
    comptime for step in range(TILE * depth // THREADS):
        var p = step * (THREADS // TILE) + Int(thread_idx.x) // TILE
        var weight = Scalar[dtype](0)
        var source = Scalar[dtype](0)
        if start + p < total:
            var line = problem.line(start + p)
            if exists:
                source = problem.source(group, position, line)
            if result + lane < problem.gather.results:
                weight = problem.gather.weight.unsafe_load(
                    problem.weight_offset(group, result + lane, line)
                )
        put[to, dtype, transposed, stride](left, lane, p, weight)
        put[to, dtype, transposed, stride](right, lane, p, source)


def _gather_kernel[dtype: DType](problem: GpuGather[dtype]):
    """Blocks along x are tiles of targets, along y tiles of target channels, along z groups.
    """
    var first_pixel = Int(block_idx.x) * TILE
    var pixel = first_pixel + Int(thread_idx.x) % TILE
    var exists = pixel < problem.gather.images * problem.gather.pixels()
    var position = problem.position(pixel if exists else 0)
    var total = problem.gather.depth()
    for group in range(
        Int(block_idx.z), problem.gather.groups, Int(grid_dim.z)
    ):
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
                for start in range(0, total, MMA_DEPTH):
                    _load_gather[dtype, dtype, MMA_DEPTH, False, stride](
                        problem,
                        group,
                        result,
                        position,
                        exists,
                        start,
                        left,
                        right,
                    )
                    barrier()
                    tile.add_step(left, right)
                    barrier()
                comptime for i in range(tile.ROW_STEPS):
                    comptime for j in range(tile.COLUMN_STEPS):
                        comptime for e in range(4):
                            store_target(
                                problem,
                                group,
                                result + tile.row(i, e),
                                first_pixel + tile.column(j, e),
                                rebind[Scalar[TileFormat[dtype].ACCUMULATE]](
                                    tile.sums[i * tile.COLUMN_STEPS + j][e]
                                ),
                            )
            else:
                comptime accumulate = TileFormat[dtype].ACCUMULATE
                var left = shared_memory[accumulate, DEPTH * STRIDE]()
                var right = shared_memory[accumulate, DEPTH * STRIDE]()
                var tile = ThreadTile[accumulate]()
                for start in range(0, total, DEPTH):
                    _load_gather[dtype, accumulate, DEPTH, True, STRIDE](
                        problem,
                        group,
                        result,
                        position,
                        exists,
                        start,
                        left,
                        right,
                    )
                    barrier()
                    tile.add_step(left, right, DEPTH)
                    barrier()
                comptime for i in range(tile.ROWS):
                    comptime for j in range(tile.COLUMNS):
                        store_target(
                            problem,
                            group,
                            result + tile.row() + i,
                            first_pixel + tile.column() + j,
                            tile.sums[i][j],
                        )


def gather_on_gpu[dtype: DType](call: KernelCall, gather: Gather[dtype]) raises:
    """Computes a gather on the stream's device.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the stream.
        gather: The problem.

    Raises:
        NotImplementedError: An image has 2^31 or more targets, or a target as many products.
    """
    if gather.images * gather.pixels() * gather.results * gather.groups == 0:
        return
    check_indices(gather)
    var most = max((INDEX_LIMIT - TILE) // gather.pixels(), 1)
    var context = gpu_context(call)
    for image in range(0, gather.images, most):
        var some = gather
        some.images = min(most, gather.images - image)
        some.out = gather.out.unsafe_offset(image * gather.out_image)
        some.source = gather.source.unsafe_offset(image * gather.source_image)
        if is_direct_on_gpu(some):
            gather_directly_on_gpu(call, some)
            continue
        context.enqueue_function[_gather_kernel[dtype]](
            GpuGather(some),
            grid_dim=(
                ceil_div(some.images * some.pixels(), TILE),
                min(ceil_div(some.results, TILE), GRID_LIMIT),
                min(some.groups, GRID_LIMIT),
            ),
            block_dim=THREADS,
        )
