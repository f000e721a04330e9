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
comptime STRIDE = TILE + 4
"""Elements between rows of a tile in shared memory; the padding spreads what is stored along the depth over the banks."""
comptime GRID_LIMIT = 65535
"""The largest extent of a grid along y and z."""
comptime Shared[dtype: DType] = Pointer[
    Scalar[dtype], MutUntrackedOrigin, address_space=AddressSpace.SHARED
]
"""An address in a block's shared memory.

Parameters:
    dtype: The element type.
"""


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
            min(ceil_div(batch.n, TILE), GRID_LIMIT),
            min(batch.count, GRID_LIMIT),
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
def load_tile[
    dtype: DType, to: DType, depth: Int, transposed: Bool, stride: Int
](
    source: Matrix[dtype],
    lines: Int,
    line: Int,
    length: Int,
    start: Int,
    tile: Shared[to],
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


@fieldwise_init
struct ThreadTile[accumulate: DType](Copyable):
    """The part of a `TILE` x `TILE` product that one of `THREADS` threads sums: `ROWS` x `COLUMNS` elements.

    Parameters:
        accumulate: The type of the sums.
    """

    comptime ROWS = 8
    """Rows of a thread."""
    comptime COLUMNS = 4
    """Columns of a thread."""
    comptime ACROSS = TILE // Self.COLUMNS
    """Threads side by side, which share rows: neighbouring lanes of one warp."""

    var sums: Array[SIMD[Self.accumulate, Self.COLUMNS], Self.ROWS]
    """The thread's elements."""

    def __init__(out self):
        """Starts with zeros."""
        self.sums = Array[SIMD[Self.accumulate, Self.COLUMNS], Self.ROWS](
            fill=SIMD[Self.accumulate, Self.COLUMNS](0)
        )

    @staticmethod
    @inline(.always)
    def row() -> Int:
        """The thread's first row.

        Returns:
            A row of the tile.
        """
        return Int(thread_idx.x) // Self.ACROSS * Self.ROWS

    @staticmethod
    @inline(.always)
    def column() -> Int:
        """The thread's first column.

        Returns:
            A column of the tile.
        """
        return Int(thread_idx.x) % Self.ACROSS * Self.COLUMNS

    @inline(.always)
    def add_step(
        mut self,
        left: Shared[Self.accumulate],
        right: Shared[Self.accumulate],
        depth: Int,
    ):
        """Adds the product of two tiles in shared memory.

        Args:
            left: [depth][rows], `STRIDE` elements apart.
            right: [depth][columns], `STRIDE` elements apart.
            depth: The length of the sums.
        """
        for p in range(depth):
            var columns = right.unsafe_load[width=Self.COLUMNS](
                p * STRIDE + Self.column()
            )
            comptime for half in range(Self.ROWS // 4):
                var rows = left.unsafe_load[width=4](
                    p * STRIDE + Self.row() + half * 4
                )
                comptime for i in range(4):
                    self.sums[half * 4 + i] += rows[i] * columns

    @inline(.always)
    def add_product[
        dtype: DType
    ](
        mut self,
        left: Matrix[dtype],
        rows: Int,
        row: Int,
        right: Matrix[dtype],
        columns: Int,
        column: Int,
        depth: Int,
        left_tile: Shared[Self.accumulate],
        right_tile: Shared[Self.accumulate],
    ):
        """Adds `left @ right^T` of two matrices whose rows are lines along the depth.

        Parameters:
            dtype: The element type of the matrices.

        Args:
            left: The left matrix.
            rows: How many rows it has.
            row: The tile's first row.
            right: The right matrix.
            columns: How many rows it has: columns of the product.
            column: The tile's first column.
            depth: How long the lines are.
            left_tile: Shared memory of `DEPTH` x `STRIDE` elements.
            right_tile: Shared memory of `DEPTH` x `STRIDE` elements.
        """
        for start in range(0, depth, DEPTH):
            load_tile[dtype, Self.accumulate, DEPTH, True, STRIDE](
                left, rows, row, depth, start, left_tile
            )
            load_tile[dtype, Self.accumulate, DEPTH, True, STRIDE](
                right, columns, column, depth, start, right_tile
            )
            barrier()
            self.add_step(left_tile, right_tile, DEPTH)
            barrier()


@inline(.always)
def shared_memory[dtype: DType, count: Int]() -> Shared[dtype]:
    """Memory that the threads of a block share.

    Parameters:
        dtype: The element type.
        count: The number of elements.

    Returns:
        Its address, aligned to 16 bytes.
    """
    return stack_allocation[
        count,
        Scalar[dtype],
        alignment=16,
        address_space=AddressSpace.SHARED,
    ]()


@inline(.always)
def _tile[
    dtype: DType
](product: Batch[dtype, TileFormat[dtype].ACCUMULATE], row: Int, column: Int):
    """One tile of the result; each thread sums 8 x 4 elements."""
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    var tile = ThreadTile[accumulate]()
    tile.add_product(
        product.a,
        product.m,
        row,
        product.b.transposed(),
        product.n,
        column,
        product.k,
        shared_memory[accumulate, DEPTH * STRIDE](),
        shared_memory[accumulate, DEPTH * STRIDE](),
    )
    comptime for i in range(tile.ROWS):
        comptime for j in range(tile.COLUMNS):
            product.store(
                row + tile.row() + i,
                column + tile.column() + j,
                tile.sums[i][j],
            )


@fieldwise_init
struct WarpTile[dtype: DType](Copyable):
    """The part of a `TILE` x `TILE` product that one of four warps sums on tensor cores: 32 x 32 elements.

    Parameters:
        dtype: The element type of the operands: a half type.
    """

    comptime STRIDE = MMA_DEPTH + 8
    """Elements between lines of the operands' tiles; with this padding the 32 lanes' loads of a fragment fall on 32 banks.
    """
    comptime ROW_STEPS = 2
    """Fragments of 16 rows."""
    comptime COLUMN_STEPS = 4
    """Fragments of 8 columns."""

    var sums: Array[SIMD[DType.float32, 4], Self.ROW_STEPS * Self.COLUMN_STEPS]
    """This lane's elements of the fragments."""

    def __init__(out self):
        """Starts with zeros."""
        self.sums = Array[
            SIMD[DType.float32, 4], Self.ROW_STEPS * Self.COLUMN_STEPS
        ](fill=SIMD[DType.float32, 4](0))

    @staticmethod
    @inline(.always)
    def row(step: Int, element: Int) -> Int:
        """Where an element of this lane lies.

        Args:
            step: The fragment, from 0 to `ROW_STEPS` - 1.
            element: The element of the fragment, from 0 to 3.

        Returns:
            A row of the tile.
        """
        var warp = Int(thread_idx.x) // 32
        return (
            warp // 2 * 32 + step * 16 + Int(lane_id()) // 4 + element // 2 * 8
        )

    @staticmethod
    @inline(.always)
    def column(step: Int, element: Int) -> Int:
        """Where an element of this lane lies.

        Args:
            step: The fragment, from 0 to `COLUMN_STEPS` - 1.
            element: The element of the fragment, from 0 to 3.

        Returns:
            A column of the tile.
        """
        var warp = Int(thread_idx.x) // 32
        return warp % 2 * 32 + step * 8 + 2 * (Int(lane_id()) % 4) + element % 2

    @inline(.always)
    def add_step(mut self, left: Shared[Self.dtype], right: Shared[Self.dtype]):
        """Adds the product of two tiles in shared memory.

        Args:
            left: [rows][`MMA_DEPTH`], `STRIDE` elements apart.
            right: [columns][`MMA_DEPTH`], `STRIDE` elements apart.
        """
        comptime stride = Self.STRIDE
        var warp = Int(thread_idx.x) // 32
        var group = Int(lane_id()) // 4
        var member = Int(lane_id()) % 4
        var first_row = warp // 2 * 32
        var first_column = warp % 2 * 32
        comptime for p in range(0, MMA_DEPTH, 16):
            var rows = Array[SIMD[Self.dtype, 8], Self.ROW_STEPS](
                fill=SIMD[Self.dtype, 8](0)
            )
            comptime for i in range(Self.ROW_STEPS):
                comptime for r in range(4):
                    var pair = left.unsafe_load[width=2](
                        (first_row + i * 16 + group + r % 2 * 8) * stride
                        + p
                        + 2 * member
                        + r // 2 * 8
                    )
                    rows[i][2 * r] = pair[0]
                    rows[i][2 * r + 1] = pair[1]
            comptime for j in range(Self.COLUMN_STEPS):
                var columns = SIMD[Self.dtype, 4](0)
                comptime for r in range(2):
                    var pair = right.unsafe_load[width=2](
                        (first_column + j * 8 + group) * stride
                        + p
                        + 2 * member
                        + r * 8
                    )
                    columns[2 * r] = pair[0]
                    columns[2 * r + 1] = pair[1]
                comptime for i in range(Self.ROW_STEPS):
                    var sum = self.sums[i * Self.COLUMN_STEPS + j]
                    mma(sum, rows[i], columns, sum)
                    self.sums[i * Self.COLUMN_STEPS + j] = sum


@inline(.always)
def _tile_by_mma[
    dtype: DType
](product: Batch[dtype, TileFormat[dtype].ACCUMULATE], row: Int, column: Int):
    """One tile of the result on tensor cores."""
    comptime stride = WarpTile[dtype].STRIDE
    var a_tile = shared_memory[dtype, TILE * stride]()
    var b_tile = shared_memory[dtype, TILE * stride]()
    var tile = WarpTile[dtype]()
    for start in range(0, product.k, MMA_DEPTH):
        load_tile[dtype, dtype, MMA_DEPTH, False, stride](
            product.a, product.m, row, product.k, start, a_tile
        )
        load_tile[dtype, dtype, MMA_DEPTH, False, stride](
            product.b.transposed(), product.n, column, product.k, start, b_tile
        )
        barrier()
        tile.add_step(a_tile, b_tile)
        barrier()
    comptime for i in range(tile.ROW_STEPS):
        comptime for j in range(tile.COLUMN_STEPS):
            comptime for e in range(4):
                product.store(
                    row + tile.row(i, e),
                    column + tile.column(j, e),
                    rebind[Scalar[TileFormat[dtype].ACCUMULATE]](
                        tile.sums[i * tile.COLUMN_STEPS + j][e]
                    ),
                )
