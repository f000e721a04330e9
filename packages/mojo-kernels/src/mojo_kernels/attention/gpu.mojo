"""Attention on GPUs: tiles of scores in registers, weights in shared memory, any number of features.

A block has `THREADS` threads and works on tiles of `TILE` queries and `TILE` keys, like the matrix product.
"""

from std.utils.numerics import inf, neg_inf

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.attention.problem import (
    MASK_BOOL,
    MASK_FLOAT,
    MASK_NONE,
    MASK_SAME,
    Heads,
    Problem,
)
from mojo_kernels.math import exp, log
from mojo_kernels.matmul.gpu import (
    DEPTH,
    GRID_LIMIT,
    STRIDE,
    THREADS,
    TILE,
    Shared,
    ThreadTile,
    load_tile,
    shared_memory,
)
from mojo_kernels.matmul.matrix import Matrix, accumulator, ceil_div
from mojo_kernels.random.philox import philox

comptime FEATURE_TILES = 2
"""Tiles of features of the output that a block sums; more features are other blocks' work."""


@inline(.always)
def masked_score[
    dtype: DType
](
    problem: Problem[dtype],
    batch: Int,
    head: Int,
    query: Int,
    key: Int,
    product: Scalar[accumulator[dtype]()],
) -> Scalar[accumulator[dtype]()]:
    """Scales the product of a query and a key and applies the mask.

    Parameters:
        dtype: The element type of the operands.

    Args:
        problem: The options.
        batch: The batch entry.
        head: The query head.
        query: The query; need not exist.
        key: The key; need not exist.
        product: Their product.

    Returns:
        The score, minus infinity for a pair that does not exist or is forbidden.
    """
    comptime accumulate = accumulator[dtype]()
    comptime forbidden = neg_inf[accumulate]()
    if query >= problem.queries or key >= problem.keys:
        return forbidden
    if problem.is_causal and key > query:
        return forbidden
    var score = product * problem.scale
    if problem.mask_kind != MASK_NONE:
        var element = Int(problem.mask.at(batch, head, query, key)) - Int(
            problem.mask.data
        )
        var base = Int(problem.mask.data)
        if problem.mask_kind == MASK_BOOL:
            if problem.mask.data.unsafe_load(element) == 0:
                return forbidden
        elif problem.mask_kind == MASK_SAME:
            score += (
                Data[dtype](unsafe_from_address=base)
                .unsafe_load(element)
                .cast[accumulate]()
            )
        else:
            score += (
                Data[DType.float32](unsafe_from_address=base)
                .unsafe_load(element)
                .cast[accumulate]()
            )
    return score


@inline(.always)
def score_tile[
    dtype: DType
](
    problem: Problem[dtype],
    batch: Int,
    head: Int,
    first_query: Int,
    first_key: Int,
    query: Matrix[dtype],
    key: Matrix[dtype],
    left_tile: Shared[accumulator[dtype]()],
    right_tile: Shared[accumulator[dtype]()],
) -> ThreadTile[accumulator[dtype]()]:
    """Computes a tile of scores, queries as rows.

    Parameters:
        dtype: The element type of the operands.

    Args:
        problem: The options.
        batch: The batch entry.
        head: The query head.
        first_query: The tile's first query.
        first_key: The tile's first key.
        query: The head's queries.
        key: The head's keys.
        left_tile: Shared memory of `DEPTH` x `STRIDE` elements.
        right_tile: Shared memory of `DEPTH` x `STRIDE` elements.

    Returns:
        The scores.
    """
    var tile = ThreadTile[accumulator[dtype]()]()
    tile.add_product(
        query,
        problem.queries,
        first_query,
        key,
        problem.keys,
        first_key,
        problem.depth,
        left_tile,
        right_tile,
    )
    comptime for i in range(tile.ROWS):
        comptime for j in range(tile.COLUMNS):
            tile.sums[i][j] = masked_score(
                problem,
                batch,
                head,
                first_query + tile.row() + i,
                first_key + tile.column() + j,
                tile.sums[i][j],
            )
    return tile^


@inline(.always)
def keep_factors[
    dtype: DType
](problem: Problem[dtype], batch: Int, head: Int, query: Int, key: Int) -> SIMD[
    accumulator[dtype](), 4
]:
    """What dropout multiplies the weights of four neighbouring keys with, as on the CPU.

    Parameters:
        dtype: The element type of the operands.

    Args:
        problem: The options.
        batch: The batch entry.
        head: The query head.
        query: The query.
        key: The first key, a multiple of 4.

    Returns:
        0, or 1 / (1 - p).
    """
    var row = (batch * problem.heads + head) * problem.queries + query
    var bits = philox[1](
        problem.seed, SIMD[DType.uint64, 1](UInt64(row)), problem.draw(key)
    )
    return problem.keep_factor[4](
        SIMD[DType.uint32, 4](bits.x, bits.y, bits.z, bits.w_bits)
    )


@inline(.always)
def row_sum[dtype: DType](value: Scalar[dtype]) -> Scalar[dtype]:
    """Adds the values of the threads that share rows.

    Parameters:
        dtype: The type of the values.

    Args:
        value: This thread's.

    Returns:
        The sum, in all of them.
    """
    var sum = value
    comptime for step in range(4):
        sum += shuffle_xor(sum, UInt32(1 << step))
    return sum


@inline(.always)
def row_max[dtype: DType](value: Scalar[dtype]) -> Scalar[dtype]:
    """The largest of the values of the threads that share rows.

    Parameters:
        dtype: The type of the values.

    Args:
        value: This thread's.

    Returns:
        The maximum, in all of them.
    """
    var largest = value
    comptime for step in range(4):
        largest = max(largest, shuffle_xor(largest, UInt32(1 << step)))
    return largest


@inline(.always)
def add_weighted[
    dtype: DType
](
    mut tile: ThreadTile[accumulator[dtype]()],
    weights: Shared[accumulator[dtype]()],
    lines: Matrix[dtype],
    count: Int,
    first: Int,
    features: Int,
    feature: Int,
    right_tile: Shared[accumulator[dtype]()],
):
    """Adds the product of weights in shared memory and lines of features.

    Parameters:
        dtype: The element type of the lines.

    Args:
        tile: The sums.
        weights: [`TILE` lines][rows of the tile], `STRIDE` elements apart.
        lines: [lines, features].
        count: How many lines exist.
        first: The first line.
        features: How many features exist.
        feature: The tile's first feature.
        right_tile: Shared memory of `DEPTH` x `STRIDE` elements.
    """
    for start in range(0, min(TILE, count - first), DEPTH):
        load_tile[dtype, accumulator[dtype](), DEPTH, True, STRIDE](
            lines.transposed(),
            features,
            feature,
            count,
            first + start,
            right_tile,
        )
        barrier()
        tile.add_step(weights.unsafe_offset(start * STRIDE), right_tile, DEPTH)
        barrier()


@inline(.always)
def store_transposed[
    dtype: DType
](tile: ThreadTile[dtype], target: Shared[dtype]):
    """Stores a tile as [columns][rows], as the left operand of a product along its columns.

    Parameters:
        dtype: The type of the sums.

    Args:
        tile: The tile.
        target: Shared memory of `TILE` x `STRIDE` elements.
    """
    comptime for j in range(tile.COLUMNS):
        comptime for half in range(tile.ROWS // 4):
            var rows = SIMD[dtype, 4](0)
            comptime for i in range(4):
                rows[i] = tile.sums[half * 4 + i][j]
            target.unsafe_store[width=4](
                (tile.column() + j) * STRIDE + tile.row() + half * 4, rows
            )


@inline(.always)
def write_tile[
    dtype: DType
](
    tile: ThreadTile[accumulator[dtype]()],
    factor: Scalar[accumulator[dtype]()],
    target: Matrix[dtype],
    rows: Int,
    row: Int,
    columns: Int,
    column: Int,
):
    """Writes a tile to a matrix, as far as the matrix goes.

    Parameters:
        dtype: The element type of the matrix.

    Args:
        tile: The sums.
        factor: What to multiply them with.
        target: The matrix.
        rows: Its rows.
        row: The tile's first row.
        columns: Its columns.
        column: The tile's first column.
    """
    comptime for i in range(tile.ROWS):
        comptime for j in range(tile.COLUMNS):
            var to_row = row + tile.row() + i
            var to_column = column + tile.column() + j
            if to_row < rows and to_column < columns:
                target.at(to_row, to_column).unsafe_store(
                    (tile.sums[i][j] * factor).cast[dtype]()
                )


def forward_gpu[dtype: DType](call: KernelCall, problem: Problem[dtype]) raises:
    """Launches the forward kernel; see `forward` for the tensors.

    Parameters:
        dtype: The element type of the operands.

    Args:
        call: Gives the tensors and the stream.
        problem: The options.

    Raises:
        If the launch fails.
    """
    var heads = problem.batch * problem.heads
    if heads == 0 or problem.queries == 0:
        return
    var context = DeviceContext(
        Pointer[NoneType, MutUntrackedOrigin](
            unsafe_from_address=Int(call.device_context)
        )
    )
    context.enqueue_function[_forward[dtype]](
        problem,
        Heads[dtype](call.tensor(0)),
        Heads[accumulator[dtype]()](call.tensor(1)),
        Heads[dtype](call.tensor(2)),
        Heads[dtype](call.tensor(3)),
        Heads[dtype](call.tensor(4)),
        grid_dim=(
            ceil_div(problem.queries, TILE),
            max(ceil_div(problem.value_depth, FEATURE_TILES * TILE), 1),
            min(heads, GRID_LIMIT),
        ),
        block_dim=THREADS,
    )


def _forward[
    dtype: DType
](
    problem: Problem[dtype],
    output: Heads[dtype],
    logsumexp: Heads[accumulator[dtype]()],
    query: Heads[dtype],
    key: Heads[dtype],
    value: Heads[dtype],
):
    """The GPU kernel: blocks along x are tiles of queries, along y features of the output, along z heads.
    """
    comptime accumulate = accumulator[dtype]()
    comptime Tile = ThreadTile[accumulate]
    comptime Rows = Array[Scalar[accumulate], Tile.ROWS]
    # Operands of the scores and, later, the weights.
    var weights = shared_memory[accumulate, TILE * STRIDE]()
    var right_tile = shared_memory[accumulate, DEPTH * STRIDE]()
    var first_query = Int(block_idx.x) * TILE
    var first_feature = Int(block_idx.y) * FEATURE_TILES * TILE
    for index in range(
        Int(block_idx.z), problem.batch * problem.heads, Int(grid_dim.z)
    ):
        var batch = index // problem.heads
        var head = index % problem.heads
        var key_head = head // (problem.heads // problem.key_heads)
        var values = value.head(batch, key_head)
        var sums = Array[Tile, FEATURE_TILES](fill=Tile())
        var maximum = Rows(fill=neg_inf[accumulate]())
        var total = Rows(fill=0)
        var visible = problem.visible_keys(first_query + TILE - 1)
        for first_key in range(0, visible, TILE):
            var tile = score_tile(
                problem,
                batch,
                head,
                first_query,
                first_key,
                query.head(batch, head),
                key.head(batch, key_head),
                weights,
                right_tile,
            )
            comptime for i in range(Tile.ROWS):
                var largest = max(
                    maximum[i], row_max(tile.sums[i].reduce_max())
                )
                # Where all keys so far are forbidden, the weights must be 0, not NaN.
                var shift = largest
                if largest == neg_inf[accumulate]():
                    shift = 0
                var decay = exp(maximum[i] - shift)
                maximum[i] = largest
                var row = exp(tile.sums[i] - shift)
                total[i] = total[i] * decay + row_sum(row.reduce_add())
                if problem.dropout > 0:
                    row *= keep_factors(
                        problem,
                        batch,
                        head,
                        first_query + Tile.row() + i,
                        first_key + Tile.column(),
                    )
                tile.sums[i] = row
                comptime for part in range(FEATURE_TILES):
                    sums[part].sums[i] *= decay
            store_transposed(tile, weights)
            barrier()
            comptime for part in range(FEATURE_TILES):
                if first_feature + part * TILE < problem.value_depth:
                    add_weighted[dtype](
                        sums[part],
                        weights,
                        values,
                        problem.keys,
                        first_key,
                        problem.value_depth,
                        first_feature + part * TILE,
                        right_tile,
                    )
        comptime for i in range(Tile.ROWS):
            var unseen = total[i] == 0
            var factor = 0 if unseen else 1 / total[i]
            comptime for part in range(FEATURE_TILES):
                sums[part].sums[i] *= factor
            var row = first_query + Tile.row() + i
            if (
                block_idx.y == 0
                and Tile.column() == 0
                and row < problem.queries
            ):
                var result = inf[accumulate]()
                if not unseen:
                    result = maximum[i] + log(total[i])
                # A tensor of three dimensions: its rows are heads.
                logsumexp.at(0, batch, head, row).unsafe_store(result)
        comptime for part in range(FEATURE_TILES):
            write_tile[dtype](
                sums[part],
                1,
                output.head(batch, head),
                problem.queries,
                first_query,
                problem.value_depth,
                first_feature + part * TILE,
            )
