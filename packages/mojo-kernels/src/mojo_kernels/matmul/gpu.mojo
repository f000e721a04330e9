"""Matrix products on GPUs: tiles of the operands in shared memory, sums in registers.

Half types use the tensor cores of NVIDIA GPUs (mma.sync); everything else, on every vendor's GPUs, takes the portable path.
"""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory import AddressSpace, stack_allocation
from std.sys.info import is_nvidia_gpu

from max.gpu import block_idx, grid_dim, lane_id, thread_idx
from max.gpu.compute.mma import mma
from max.gpu.host import DeviceContext
from max.gpu.sync import barrier

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.matmul.matrix import Batch, Matrix, Update, ceil_div
from mojo_kernels.matmul.tile import TileFormat

comptime THREADS = 128
"""Threads of a block."""
comptime TILE = 64
"""Rows and columns of the result that a block computes."""
comptime DEPTH = 16
"""Depth of a tile on the portable path."""
comptime MMA_DEPTH = 32
"""Depth of a tile for tensor cores: two steps of mma.m16n8k16."""
comptime _GRID_LIMIT = 65535


def multiply_batch_gpu[
    dtype: DType
](call: KernelCall, batch: Batch[dtype, TileFormat[dtype].ACCUMULATE]) raises:
    """Computes a batch of products on the GPU of the call.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the stream.
        batch: The products.

    Raises:
        If the launch fails.
    """
    if batch.count == 0 or batch.m == 0 or batch.n == 0:
        return
    var context = DeviceContext(
        Pointer[NoneType, MutUntrackedOrigin](
            unsafe_from_address=Int(call.device_context)
        )
    )
    context.enqueue_function[_products[dtype]](
        batch,
        grid_dim=(
            ceil_div(batch.m, TILE),
            min(ceil_div(batch.n, TILE), _GRID_LIMIT),
            min(batch.count, _GRID_LIMIT),
        ),
        block_dim=THREADS,
    )


def _products[dtype: DType](batch: Batch[dtype, TileFormat[dtype].ACCUMULATE]):
    """The GPU kernel: blocks along x are tiles of rows, along y tiles of columns, along z products.
    """
    var row = Int(block_idx.x) * TILE
    for index in range(Int(block_idx.z), batch.count, Int(grid_dim.z)):
        var product = batch.product(index)
        for column in range(
            Int(block_idx.y) * TILE, batch.n, Int(grid_dim.y) * TILE
        ):
            comptime if is_nvidia_gpu() and dtype.is_half_float():
                _tile_by_mma[dtype](product, row, column)
            else:
                _tile[dtype](product, row, column)


@inline(.always)
def _load_tile[
    dtype: DType, to: DType, depth: Int, transposed: Bool, stride: Int
](
    source: Matrix[dtype],
    lines: Int,
    line: Int,
    length: Int,
    start: Int,
    tile: Pointer[
        Scalar[to], MutUntrackedOrigin, address_space=AddressSpace.SHARED
    ],
):
    """Loads `TILE` lines (rows of the matrix) of `depth` elements, zeros outside.

    Neighbouring threads load neighbours in memory: along the lines, or across them.

    Parameters:
        dtype: The element type of the matrix.
        to: The element type of the tile.
        depth: Elements of a line.
        transposed: Whether the tile is [depth][lines] instead of [lines][depth].
        stride: Elements from one row of the tile to the next.

    Args:
        source: The matrix.
        lines: How many lines it has.
        line: The first line.
        length: How long they are.
        start: Where on the lines the tile begins.
        tile: The destination.
    """
    var along = source.column_stride == 1
    comptime for step in range(TILE * depth // THREADS):
        var index = step * THREADS + Int(thread_idx.x)
        var i = index // depth if along else index % TILE
        var p = index % depth if along else index // TILE
        var value = Scalar[to](0)
        if line + i < lines and start + p < length:
            value = source.at(line + i, start + p).unsafe_load().cast[to]()
        comptime if transposed:
            tile.unsafe_store(p * stride + i, value)
        else:
            tile.unsafe_store(i * stride + p, value)


@inline(.always)
def _tile[
    dtype: DType
](product: Batch[dtype, TileFormat[dtype].ACCUMULATE], row: Int, column: Int):
    """One tile of the result; each thread sums 8 x 4 elements."""
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime rows = 8
    comptime columns = 4
    # The padding spreads what is stored along the depth over the banks.
    comptime stride = TILE + 4
    var a_tile = stack_allocation[
        DEPTH * stride,
        accumulate,
        alignment=16,
        address_space=AddressSpace.SHARED,
    ]()
    var b_tile = stack_allocation[
        DEPTH * stride,
        accumulate,
        alignment=16,
        address_space=AddressSpace.SHARED,
    ]()
    var first_row = Int(thread_idx.x) // (TILE // columns) * rows
    var first_column = Int(thread_idx.x) % (TILE // columns) * columns
    var sums = Array[SIMD[accumulate, columns], rows](
        fill=SIMD[accumulate, columns](0)
    )
    for start in range(0, product.k, DEPTH):
        _load_tile[dtype, accumulate, DEPTH, True, stride](
            product.a, product.m, row, product.k, start, a_tile
        )
        _load_tile[dtype, accumulate, DEPTH, True, stride](
            product.b.transposed(), product.n, column, product.k, start, b_tile
        )
        barrier()
        for p in range(DEPTH):
            var right = b_tile.unsafe_load[width=columns](
                p * stride + first_column
            )
            comptime for half in range(rows // 4):
                var left = a_tile.unsafe_load[width=4](
                    p * stride + first_row + half * 4
                )
                comptime for i in range(4):
                    sums[half * 4 + i] += left[i] * right
        barrier()
    comptime for i in range(rows):
        comptime for j in range(columns):
            product.store(
                row + first_row + i, column + first_column + j, sums[i][j]
            )


@inline(.always)
def _tile_by_mma[
    dtype: DType
](product: Batch[dtype, TileFormat[dtype].ACCUMULATE], row: Int, column: Int):
    """One tile of the result on tensor cores; each of four warps sums 32 x 32 elements.
    """
    # With this padding the 32 lanes' loads of a fragment fall on 32 banks.
    comptime stride = MMA_DEPTH + 8
    comptime row_steps = 2
    comptime column_steps = 4
    var a_tile = stack_allocation[
        TILE * stride, dtype, alignment=16, address_space=AddressSpace.SHARED
    ]()
    var b_tile = stack_allocation[
        TILE * stride, dtype, alignment=16, address_space=AddressSpace.SHARED
    ]()
    var warp = Int(thread_idx.x) // 32
    var group = Int(lane_id()) // 4
    var member = Int(lane_id()) % 4
    var first_row = warp // 2 * 32
    var first_column = warp % 2 * 32
    var sums = Array[SIMD[DType.float32, 4], row_steps * column_steps](
        fill=SIMD[DType.float32, 4](0)
    )
    for start in range(0, product.k, MMA_DEPTH):
        _load_tile[dtype, dtype, MMA_DEPTH, False, stride](
            product.a, product.m, row, product.k, start, a_tile
        )
        _load_tile[dtype, dtype, MMA_DEPTH, False, stride](
            product.b.transposed(), product.n, column, product.k, start, b_tile
        )
        barrier()
        comptime for p in range(0, MMA_DEPTH, 16):
            var left = Array[SIMD[dtype, 8], row_steps](fill=SIMD[dtype, 8](0))
            comptime for i in range(row_steps):
                comptime for r in range(4):
                    var pair = a_tile.unsafe_load[width=2](
                        (first_row + i * 16 + group + r % 2 * 8) * stride
                        + p
                        + 2 * member
                        + r // 2 * 8
                    )
                    left[i][2 * r] = pair[0]
                    left[i][2 * r + 1] = pair[1]
            comptime for j in range(column_steps):
                var right = SIMD[dtype, 4](0)
                comptime for r in range(2):
                    var pair = b_tile.unsafe_load[width=2](
                        (first_column + j * 8 + group) * stride
                        + p
                        + 2 * member
                        + r * 8
                    )
                    right[2 * r] = pair[0]
                    right[2 * r + 1] = pair[1]
                comptime for i in range(row_steps):
                    var sum = sums[i * column_steps + j]
                    mma(sum, left[i], right, sum)
                    sums[i * column_steps + j] = sum
        barrier()
    comptime for i in range(row_steps):
        comptime for j in range(column_steps):
            comptime for e in range(4):
                product.store(
                    row + first_row + i * 16 + group + e // 2 * 8,
                    column + first_column + j * 8 + 2 * member + e % 2,
                    rebind[Scalar[TileFormat[dtype].ACCUMULATE]](
                        sums[i * column_steps + j][e]
                    ),
                )
