"""The gradients of attention, from the weights that are computed again out of the scores and their logsumexp.

With P the weights, dP = grad_out @ value^T and D = sum(grad_out * out) of a query:
dS = P * (dP - D), grad_value = P^T @ grad_out, grad_key = scale * dS^T @ query, grad_query = scale * dS @ key
(Dao et al., "FlashAttention", 2022, appendix B).
"""

from std.memory import stack_allocation
from std.sys.info import has_accelerator
from std.utils.numerics import inf

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.attention.gpu_backward import backward_gpu
from mojo_kernels.attention.lanes import (
    KEY_BLOCK,
    Lanes,
    finish_scores,
    keep_factors,
    multiply,
    pack_lines,
    store_lanes,
)
from mojo_kernels.attention.problem import Heads, Problem
from mojo_kernels.math import exp, narrow
from mojo_kernels.matmul.matrix import Matrix, accumulator, ceil_div
from mojo_kernels.matmul.packed import allocate, release


def backward[dtype: DType](call: KernelCall) raises:
    """Computes the gradients of query, key and value.

    Tensors: grad_query, grad_key, grad_value, grad_out, query, key, value, out,
    logsumexp, mask: shapes as in `forward`, gradients like what they belong to.
    Scalars as in `forward`, and the same.

    Parameters:
        dtype: The element type of all but logsumexp and mask.

    Args:
        call: The call.

    Raises:
        ValueError: If the sizes do not fit together.
    """
    var problem = Problem[dtype](
        call, call.tensor(4), call.tensor(5), call.tensor(6), call.tensor(9)
    )
    comptime if has_accelerator():
        backward_gpu(call, problem)
    else:
        _backward_cpu(call, problem)


@fieldwise_init
struct _Scratch[dtype: DType](TrivialRegisterPassable):
    """A task's memory: panels of the head's keys and values, sums of their gradients, panels of a block of queries.
    """

    comptime ACCUMULATE = accumulator[Self.dtype]()

    var key_lines: Data[Self.ACCUMULATE]
    """Key as panels [depth][keys of a tile]."""
    var key_features: Data[Self.ACCUMULATE]
    """Key as panels [keys][features of a tile]."""
    var value_lines: Data[Self.ACCUMULATE]
    """Value as panels [value depth][keys of a tile]."""
    var grad_key: Data[Self.ACCUMULATE]
    """[feature panels][keys][features of a panel]."""
    var grad_value: Data[Self.ACCUMULATE]
    """[feature panels][keys][features of a panel]."""
    var query_lanes: Data[Self.ACCUMULATE]
    """Query as [depth][queries]."""
    var query_features: Data[Self.ACCUMULATE]
    """Query as panels [queries][features of a panel]."""
    var grad_out_lanes: Data[Self.ACCUMULATE]
    """Gradient of the output as [value depth][queries]."""
    var grad_out_features: Data[Self.ACCUMULATE]
    """Gradient of the output as panels [queries][features of a panel]."""
    var out_lanes: Data[Self.ACCUMULATE]
    """The output as [value depth][queries]."""
    var grad_query: Data[Self.ACCUMULATE]
    """[depth][queries]."""

    @staticmethod
    def layout(
        problem: Problem[Self.dtype], base: Data[Self.ACCUMULATE]
    ) -> Tuple[Self, Int]:
        """Places everything behind an address.

        Args:
            problem: The sizes.
            base: The address.

        Returns:
            The places and the number of elements they need.
        """
        comptime rows = Lanes[Self.dtype].ROWS
        comptime width = Lanes[Self.dtype].WIDTH
        comptime queries = Lanes[Self.dtype].QUERIES
        var key_panels = ceil_div(problem.keys, rows)
        var keys = key_panels * rows
        var depth_panels = ceil_div(problem.depth, queries)
        var value_panels = ceil_div(problem.value_depth, queries)
        var size = 0

        def place(count: Int) {mut size, imm} -> Data[Self.ACCUMULATE]:
            var here = base.unsafe_offset(size)
            size += ceil_div(count, width) * width
            return here

        var scratch = Self(
            place(key_panels * (rows * problem.depth + width)),
            place(
                ceil_div(problem.depth, rows) * (rows * problem.keys + width)
            ),
            place(key_panels * (rows * problem.value_depth + width)),
            place(depth_panels * keys * queries),
            place(value_panels * keys * queries),
            place(queries * problem.depth + width),
            place(depth_panels * (queries * queries + width)),
            place(queries * problem.value_depth + width),
            place(value_panels * (queries * queries + width)),
            place(queries * problem.value_depth + width),
            place(queries * ceil_div(problem.depth, width) * width),
        )
        return scratch, size


def _backward_cpu[
    dtype: DType
](call: KernelCall, problem: Problem[dtype]) raises:
    comptime accumulate = accumulator[dtype]()
    var grad_query = Heads[dtype](call.tensor(0))
    var grad_key = Heads[dtype](call.tensor(1))
    var grad_value = Heads[dtype](call.tensor(2))
    var grad_out = Heads[dtype](call.tensor(3))
    var query = Heads[dtype](call.tensor(4))
    var key = Heads[dtype](call.tensor(5))
    var value = Heads[dtype](call.tensor(6))
    var output = Heads[dtype](call.tensor(7))
    var logsumexp = call.tensor(8)
    var shared = problem.heads // problem.key_heads

    # Key heads are independent: what they add to is theirs alone. Where there are
    # fewer than threads, several tasks with sums of their own share one.
    var heads = problem.batch * problem.key_heads
    var threads = Int(call.threads)
    var blocks = ceil_div(problem.queries, Lanes[dtype].QUERIES)
    var parts = max(min(threads // max(heads, 1), blocks), 1)
    var group = 1 if parts > 1 else max(ceil_div(heads, 8 * threads), 1)
    var tasks = ceil_div(heads, group) * parts
    var nowhere = Data[accumulate](unsafe_from_address=Int(call.scalars))
    var size = _Scratch[dtype].layout(problem, nowhere)[1]
    var memory = allocate[accumulate](tasks * size)

    @inline(.always)
    def scratch_of(task: Int) {imm} -> _Scratch[dtype]:
        return _Scratch[dtype].layout(
            problem, memory.unsafe_offset(task * size)
        )[0]

    def store(index: Int, task: Int) {imm}:
        var batch = index // problem.key_heads
        var key_head = index % problem.key_heads
        var scratch = scratch_of(task)
        _store_lines[dtype](
            scratch.grad_key,
            parts,
            size,
            problem.scale,
            grad_key.head(batch, key_head),
            problem.keys,
            problem.depth,
        )
        _store_lines[dtype](
            scratch.grad_value,
            parts,
            size,
            1,
            grad_value.head(batch, key_head),
            problem.keys,
            problem.value_depth,
        )

    def differentiate(task: Int) {imm}:
        var scratch = scratch_of(task)
        var part = task % parts
        var first_index = task // parts * group
        for index in range(first_index, min(first_index + group, heads)):
            var batch = index // problem.key_heads
            var key_head = index % problem.key_heads
            _pack_key_head(
                problem,
                key.head(batch, key_head),
                value.head(batch, key_head),
                scratch,
            )
            for head in range(key_head * shared, (key_head + 1) * shared):
                for block in range(part, blocks, parts):
                    var first = block * Lanes[dtype].QUERIES
                    _differentiate_block(
                        problem,
                        batch,
                        head,
                        first,
                        query.head(batch, head).block(first, 0),
                        output.head(batch, head).block(first, 0),
                        grad_out.head(batch, head).block(first, 0),
                        logsumexp.pointer[accumulate]().unsafe_offset(
                            batch * logsumexp.stride(0)
                            + head * logsumexp.stride(1)
                            + first * logsumexp.stride(2)
                        ),
                        logsumexp.stride(2),
                        grad_query.head(batch, head).block(first, 0),
                        scratch,
                    )
            if parts == 1:
                store(index, task)

    def combine(index: Int) {imm}:
        store(index, index * parts)

    call.parallel(differentiate, tasks)
    if parts > 1:
        call.parallel(combine, heads)
    release(memory)


def _pack_key_head[
    dtype: DType
](
    problem: Problem[dtype],
    key: Matrix[dtype],
    value: Matrix[dtype],
    scratch: _Scratch[dtype],
):
    """Packs a key head for all its blocks of queries and clears the sums of its gradients.
    """
    comptime rows = Lanes[dtype].ROWS
    comptime width = Lanes[dtype].WIDTH
    comptime queries = Lanes[dtype].QUERIES
    comptime accumulate = accumulator[dtype]()
    var key_panels = ceil_div(problem.keys, rows)
    for panel in range(key_panels):
        pack_lines[dtype, rows](
            key.block(panel * rows, 0),
            problem.keys - panel * rows,
            problem.depth,
            scratch.key_lines.unsafe_offset(
                panel * (rows * problem.depth + width)
            ),
        )
        pack_lines[dtype, rows](
            value.block(panel * rows, 0),
            problem.keys - panel * rows,
            problem.value_depth,
            scratch.value_lines.unsafe_offset(
                panel * (rows * problem.value_depth + width)
            ),
        )
    for panel in range(ceil_div(problem.depth, rows)):
        pack_lines[dtype, rows](
            key.transposed().block(panel * rows, 0),
            problem.depth - panel * rows,
            problem.keys,
            scratch.key_features.unsafe_offset(
                panel * (rows * problem.keys + width)
            ),
        )
    comptime zeros = SIMD[accumulate, queries](0)
    for i in range(ceil_div(problem.depth, queries) * key_panels * rows):
        scratch.grad_key.unsafe_store[width=queries](i * queries, zeros)
    for i in range(ceil_div(problem.value_depth, queries) * key_panels * rows):
        scratch.grad_value.unsafe_store[width=queries](i * queries, zeros)


def _differentiate_block[
    dtype: DType
](
    problem: Problem[dtype],
    batch: Int,
    head: Int,
    first: Int,
    query: Matrix[dtype],
    output: Matrix[dtype],
    grad_out: Matrix[dtype],
    logsumexp: Data[accumulator[dtype]()],
    logsumexp_stride: Int,
    grad_query: Matrix[dtype],
    scratch: _Scratch[dtype],
):
    """Adds one block of queries to the gradients of key and value, and writes its own.
    """
    comptime accumulate = accumulator[dtype]()
    comptime rows = Lanes[dtype].ROWS
    comptime width = Lanes[dtype].WIDTH
    comptime queries = Lanes[dtype].QUERIES
    comptime Block = SIMD[accumulate, queries]
    var count = min(queries, problem.queries - first)
    var padded_keys = ceil_div(problem.keys, rows) * rows
    var depth_panels = ceil_div(problem.depth, queries)
    var value_panels = ceil_div(problem.value_depth, queries)

    pack_lines[dtype, queries](query, count, problem.depth, scratch.query_lanes)
    pack_lines[dtype, queries](
        grad_out, count, problem.value_depth, scratch.grad_out_lanes
    )
    pack_lines[dtype, queries](
        output, count, problem.value_depth, scratch.out_lanes
    )
    for panel in range(depth_panels):
        pack_lines[dtype, queries](
            query.transposed().block(panel * queries, 0),
            problem.depth - panel * queries,
            count,
            scratch.query_features.unsafe_offset(
                panel * (queries * queries + width)
            ),
        )
    for panel in range(value_panels):
        pack_lines[dtype, queries](
            grad_out.transposed().block(panel * queries, 0),
            problem.value_depth - panel * queries,
            count,
            scratch.grad_out_features.unsafe_offset(
                panel * (queries * queries + width)
            ),
        )
    # Lanes without a query get weight 0.
    var normalizer = Block(inf[accumulate]())
    for i in range(count):
        normalizer[i] = logsumexp.unsafe_load(i * logsumexp_stride)
    var correction = Block(0)
    for i in range(problem.value_depth):
        correction += scratch.grad_out_lanes.unsafe_load[width=queries](
            i * queries
        ) * scratch.out_lanes.unsafe_load[width=queries](i * queries)
    for i in range(ceil_div(problem.depth, rows) * rows):
        scratch.grad_query.unsafe_store[width=queries](i * queries, Block(0))

    var weights_stack = stack_allocation[
        KEY_BLOCK * queries, Scalar[accumulate], alignment=64
    ]()
    var weights = Data[accumulate](unsafe_from_address=Int(weights_stack))
    var grads_stack = stack_allocation[
        KEY_BLOCK * queries, Scalar[accumulate], alignment=64
    ]()
    var grads = Data[accumulate](unsafe_from_address=Int(grads_stack))
    var factors_stack = stack_allocation[
        KEY_BLOCK * queries, Scalar[accumulate], alignment=64
    ]()
    var factors = Data[accumulate](unsafe_from_address=Int(factors_stack))
    var visible = problem.visible_keys(first + count - 1)
    for first_key in range(0, visible, KEY_BLOCK):
        var size = min(KEY_BLOCK, visible - first_key)
        for i in range(0, size, rows):
            var panel = (first_key + i) // rows
            multiply[dtype, row_step=1, depth_step=rows, adds=False](
                problem.depth,
                scratch.key_lines.unsafe_offset(
                    panel * (rows * problem.depth + width)
                ),
                scratch.query_lanes,
                weights.unsafe_offset(i * queries),
                queries,
            )
            multiply[dtype, row_step=1, depth_step=rows, adds=False](
                problem.value_depth,
                scratch.value_lines.unsafe_offset(
                    panel * (rows * problem.value_depth + width)
                ),
                scratch.grad_out_lanes,
                grads.unsafe_offset(i * queries),
                queries,
            )
        finish_scores(problem, batch, head, first, first_key, size, weights)
        if problem.dropout > 0:
            keep_factors(problem, batch, head, first, first_key, size, factors)
        for i in range(size):
            var weight = exp(
                weights.unsafe_load[width=queries](i * queries) - normalizer
            )
            var grad = grads.unsafe_load[width=queries](i * queries)
            var kept = weight
            if problem.dropout > 0:
                var factor = factors.unsafe_load[width=queries](i * queries)
                grad *= factor
                kept *= factor
            weights.unsafe_store[width=queries](i * queries, kept)
            grads.unsafe_store[width=queries](
                i * queries, weight * (grad - correction)
            )
        # The last tile may be larger than the number of keys.
        for i in range(size, ceil_div(size, rows) * rows):
            weights.unsafe_store[width=queries](i * queries, Block(0))
            grads.unsafe_store[width=queries](i * queries, Block(0))
        for i in range(0, size, rows):
            for panel in range(value_panels):
                multiply[dtype, row_step=queries, depth_step=1, adds=True](
                    count,
                    weights.unsafe_offset(i * queries),
                    scratch.grad_out_features.unsafe_offset(
                        panel * (queries * queries + width)
                    ),
                    scratch.grad_value.unsafe_offset(
                        (panel * padded_keys + first_key + i) * queries
                    ),
                    queries,
                )
            for panel in range(depth_panels):
                multiply[dtype, row_step=queries, depth_step=1, adds=True](
                    count,
                    grads.unsafe_offset(i * queries),
                    scratch.query_features.unsafe_offset(
                        panel * (queries * queries + width)
                    ),
                    scratch.grad_key.unsafe_offset(
                        (panel * padded_keys + first_key + i) * queries
                    ),
                    queries,
                )
        for panel in range(ceil_div(problem.depth, rows)):
            multiply[dtype, row_step=1, depth_step=rows, adds=True](
                size,
                scratch.key_features.unsafe_offset(
                    panel * (rows * problem.keys + width) + first_key * rows
                ),
                grads,
                scratch.grad_query.unsafe_offset(panel * rows * queries),
                queries,
            )
    store_lanes[dtype](
        scratch.grad_query,
        Block(problem.scale),
        grad_query,
        count,
        problem.depth,
    )


def _store_lines[
    dtype: DType
](
    source: Data[accumulator[dtype]()],
    parts: Int,
    part_size: Int,
    factor: Scalar[accumulator[dtype]()],
    target: Matrix[dtype],
    lines: Int,
    features: Int,
):
    """Writes the sum of `parts` sums, panels [lines][features of a panel] to a matrix [lines, features].
    """
    comptime rows = Lanes[dtype].ROWS
    comptime queries = Lanes[dtype].QUERIES
    var padded = ceil_div(lines, rows) * rows
    for first in range(0, features, queries):
        var count = min(queries, features - first)
        for i in range(lines):
            var at = (first // queries * padded + i) * queries
            var sum = source.unsafe_load[width=queries](at)
            for part in range(1, parts):
                sum += source.unsafe_load[width=queries](at + part * part_size)
            var row = narrow[dtype](sum * factor)
            var place = target.at(i, first)
            if count == queries and target.column_stride == 1:
                place.unsafe_store[width=queries](row)
            else:
                for j in range(count):
                    place.unsafe_store(j * target.column_stride, row[j])
