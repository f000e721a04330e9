"""The gradients of attention on GPUs: one kernel for key and value, one for query, each the only writer of its tiles."""

from std.utils.numerics import inf

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.sync import barrier

from mojo_kernels.abi import KernelCall
from mojo_kernels.attention.gpu import (
    add_weighted,
    keep_factors,
    row_sum,
    score_tile,
    store_transposed,
    write_tile,
)
from mojo_kernels.attention.problem import Heads, Problem
from mojo_kernels.math import exp
from mojo_kernels.matmul.gpu import (
    DEPTH,
    GRID_LIMIT,
    STRIDE,
    THREADS,
    TILE,
    Shared,
    ThreadTile,
    shared_memory,
)
from mojo_kernels.matmul.matrix import accumulator, ceil_div


@fieldwise_init
struct _Weights[accumulate: DType](Copyable):
    """A thread's weights and what flows back to the scores, queries as rows."""

    var kept: ThreadTile[Self.accumulate]
    """The weights after dropout."""
    var grads: ThreadTile[Self.accumulate]
    """The gradient of the scores."""


@inline(.always)
def _weights[
    dtype: DType
](
    problem: Problem[dtype],
    batch: Int,
    head: Int,
    first_query: Int,
    first_key: Int,
    grad_out: Heads[dtype],
    query: Heads[dtype],
    key: Heads[dtype],
    value: Heads[dtype],
    output: Heads[dtype],
    logsumexp: Heads[accumulator[dtype]()],
    left_tile: Shared[accumulator[dtype]()],
    right_tile: Shared[accumulator[dtype]()],
) -> _Weights[accumulator[dtype]()]:
    """Computes a tile of weights again, and the gradient of its scores."""
    comptime accumulate = accumulator[dtype]()
    comptime Tile = ThreadTile[accumulate]
    var key_head = head // (problem.heads // problem.key_heads)
    var kept = score_tile(
        problem,
        batch,
        head,
        first_query,
        first_key,
        query.head(batch, head),
        key.head(batch, key_head),
        left_tile,
        right_tile,
    )
    var grads = Tile()
    grads.add_product(
        grad_out.head(batch, head),
        problem.queries,
        first_query,
        value.head(batch, key_head),
        problem.keys,
        first_key,
        problem.value_depth,
        left_tile,
        right_tile,
    )
    comptime for i in range(Tile.ROWS):
        var row = first_query + Tile.row() + i
        # Rows without a query get weight 0.
        var normalizer = inf[accumulate]()
        var correction = Scalar[accumulate](0)
        if row < problem.queries:
            normalizer = logsumexp.at(0, batch, head, row).unsafe_load()
            for feature in range(
                Tile.column() // Tile.COLUMNS, problem.value_depth, Tile.ACROSS
            ):
                correction += (
                    grad_out.at(batch, head, row, feature)
                    .unsafe_load()
                    .cast[accumulate]()
                    * output.at(batch, head, row, feature)
                    .unsafe_load()
                    .cast[accumulate]()
                )
        correction = row_sum(correction)
        var weight = exp(kept.sums[i] - normalizer)
        var grad = grads.sums[i]
        kept.sums[i] = weight
        if problem.dropout > 0:
            var factors = keep_factors(
                problem, batch, head, row, first_key + Tile.column()
            )
            kept.sums[i] *= factors
            grad *= factors
        grads.sums[i] = weight * (grad - correction)
    return _Weights[accumulate](kept^, grads^)


@inline(.always)
def _store[dtype: DType](tile: ThreadTile[dtype], target: Shared[dtype]):
    """Stores a tile as [rows][columns], as the left operand of a product along its rows.
    """
    comptime for i in range(tile.ROWS):
        target.unsafe_store[width=tile.COLUMNS](
            (tile.row() + i) * STRIDE + tile.column(), tile.sums[i]
        )


def _key_and_value[
    dtype: DType
](
    problem: Problem[dtype],
    grad_key: Heads[dtype],
    grad_value: Heads[dtype],
    grad_out: Heads[dtype],
    query: Heads[dtype],
    key: Heads[dtype],
    value: Heads[dtype],
    output: Heads[dtype],
    logsumexp: Heads[accumulator[dtype]()],
):
    """The GPU kernel: blocks along x are tiles of keys, along y tiles of features, along z key heads.
    """
    comptime accumulate = accumulator[dtype]()
    var left_tile = shared_memory[accumulate, TILE * STRIDE]()
    var right_tile = shared_memory[accumulate, DEPTH * STRIDE]()
    var first_key = Int(block_idx.x) * TILE
    var feature = Int(block_idx.y) * TILE
    var shared = problem.heads // problem.key_heads
    for index in range(
        Int(block_idx.z), problem.batch * problem.key_heads, Int(grid_dim.z)
    ):
        var batch = index // problem.key_heads
        var key_head = index % problem.key_heads
        var key_sums = ThreadTile[accumulate]()
        var value_sums = ThreadTile[accumulate]()
        for head in range(key_head * shared, (key_head + 1) * shared):
            # Earlier queries see none of these keys.
            var start = first_key if problem.is_causal else 0
            for first_query in range(start, problem.queries, TILE):
                var weights = _weights(
                    problem,
                    batch,
                    head,
                    first_query,
                    first_key,
                    grad_out,
                    query,
                    key,
                    value,
                    output,
                    logsumexp,
                    left_tile,
                    right_tile,
                )
                if feature < problem.value_depth:
                    _store(weights.kept, left_tile)
                    barrier()
                    add_weighted[dtype](
                        value_sums,
                        left_tile,
                        grad_out.head(batch, head),
                        problem.queries,
                        first_query,
                        problem.value_depth,
                        feature,
                        right_tile,
                    )
                if feature < problem.depth:
                    _store(weights.grads, left_tile)
                    barrier()
                    add_weighted[dtype](
                        key_sums,
                        left_tile,
                        query.head(batch, head),
                        problem.queries,
                        first_query,
                        problem.depth,
                        feature,
                        right_tile,
                    )
        write_tile[dtype](
            key_sums,
            problem.scale,
            grad_key.head(batch, key_head),
            problem.keys,
            first_key,
            problem.depth,
            feature,
        )
        write_tile[dtype](
            value_sums,
            1,
            grad_value.head(batch, key_head),
            problem.keys,
            first_key,
            problem.value_depth,
            feature,
        )


def _query[
    dtype: DType
](
    problem: Problem[dtype],
    grad_query: Heads[dtype],
    grad_out: Heads[dtype],
    query: Heads[dtype],
    key: Heads[dtype],
    value: Heads[dtype],
    output: Heads[dtype],
    logsumexp: Heads[accumulator[dtype]()],
):
    """The GPU kernel: blocks along x are tiles of queries, along y tiles of features, along z heads.
    """
    comptime accumulate = accumulator[dtype]()
    var left_tile = shared_memory[accumulate, TILE * STRIDE]()
    var right_tile = shared_memory[accumulate, DEPTH * STRIDE]()
    var first_query = Int(block_idx.x) * TILE
    var feature = Int(block_idx.y) * TILE
    for index in range(
        Int(block_idx.z), problem.batch * problem.heads, Int(grid_dim.z)
    ):
        var batch = index // problem.heads
        var head = index % problem.heads
        var sums = ThreadTile[accumulate]()
        var visible = problem.visible_keys(first_query + TILE - 1)
        for first_key in range(0, visible, TILE):
            var weights = _weights(
                problem,
                batch,
                head,
                first_query,
                first_key,
                grad_out,
                query,
                key,
                value,
                output,
                logsumexp,
                left_tile,
                right_tile,
            )
            store_transposed(weights.grads, left_tile)
            barrier()
            add_weighted[dtype](
                sums,
                left_tile,
                key.head(batch, head // (problem.heads // problem.key_heads)),
                problem.keys,
                first_key,
                problem.depth,
                feature,
                right_tile,
            )
        write_tile[dtype](
            sums,
            problem.scale,
            grad_query.head(batch, head),
            problem.queries,
            first_query,
            problem.depth,
            feature,
        )


def backward_gpu[
    dtype: DType
](call: KernelCall, problem: Problem[dtype]) raises:
    """Launches the backward kernels; see `backward` for the tensors.

    Parameters:
        dtype: The element type of the operands.

    Args:
        call: Gives the tensors and the stream.
        problem: The options.

    Raises:
        If a launch fails.
    """
    var context = DeviceContext(
        Pointer[NoneType, MutUntrackedOrigin](
            unsafe_from_address=Int(call.device_context)
        )
    )
    var grad_query = Heads[dtype](call.tensor(0))
    var grad_key = Heads[dtype](call.tensor(1))
    var grad_value = Heads[dtype](call.tensor(2))
    var grad_out = Heads[dtype](call.tensor(3))
    var query = Heads[dtype](call.tensor(4))
    var key = Heads[dtype](call.tensor(5))
    var value = Heads[dtype](call.tensor(6))
    var output = Heads[dtype](call.tensor(7))
    var logsumexp = Heads[accumulator[dtype]()](call.tensor(8))
    var key_heads = problem.batch * problem.key_heads
    var features = max(problem.depth, problem.value_depth)
    if key_heads > 0 and problem.keys > 0 and features > 0:
        context.enqueue_function[_key_and_value[dtype]](
            problem,
            grad_key,
            grad_value,
            grad_out,
            query,
            key,
            value,
            output,
            logsumexp,
            grid_dim=(
                ceil_div(problem.keys, TILE),
                ceil_div(features, TILE),
                min(key_heads, GRID_LIMIT),
            ),
            block_dim=THREADS,
        )
    var heads = problem.batch * problem.heads
    if heads > 0 and problem.queries > 0 and problem.depth > 0:
        context.enqueue_function[_query[dtype]](
            problem,
            grad_query,
            grad_out,
            query,
            key,
            value,
            output,
            logsumexp,
            grid_dim=(
                ceil_div(problem.queries, TILE),
                ceil_div(problem.depth, TILE),
                min(heads, GRID_LIMIT),
            ),
            block_dim=THREADS,
        )
