"""Attention: `out = softmax(scale * query @ key^T + mask) @ value` for every head.

The scores are never stored: blocks of keys are visited one after another with a running maximum and sum, after
Dao et al., "FlashAttention" (2022).
"""

from std.memory import stack_allocation
from std.sys.info import has_accelerator
from std.utils.numerics import inf, neg_inf

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.attention.gpu import forward_gpu
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
from mojo_kernels.math import exp, log
from mojo_kernels.matmul.matrix import Matrix, accumulator, ceil_div
from mojo_kernels.matmul.packed import allocate, release

comptime TASKS_PER_THREAD = 8
"""Tasks into which the work is cut, so that no thread waits long for another."""


def forward[dtype: DType](call: KernelCall) raises:
    """Computes attention and, for the backward pass, the logarithm of the softmax's denominator.

    Tensors: out [b, h, q, e], logsumexp [b, h, q] float32
    (float64 for float64), query [b, h, q, d],
    key [b, g, k, d], value [b, g, k, e], mask broadcastable to [b, h, q, k] or
    absent: bool (False forbids), or float32 or `dtype` (added). Any strides; g
    divides h. Scalars: is_causal, scale (float), dropout_p (float), seed, offset.

    Parameters:
        dtype: The element type of out, query, key and value.

    Args:
        call: The call.

    Raises:
        ValueError: If the sizes do not fit together.
    """
    var problem = Problem[dtype](
        call, call.tensor(2), call.tensor(3), call.tensor(4), call.tensor(5)
    )
    comptime if has_accelerator():
        forward_gpu(call, problem)
    else:
        _forward_cpu(call, problem)


def _forward_cpu[
    dtype: DType
](call: KernelCall, problem: Problem[dtype]) raises:
    comptime accumulate = accumulator[dtype]()
    comptime rows = Lanes[dtype].ROWS
    comptime width = Lanes[dtype].WIDTH
    comptime queries = Lanes[dtype].QUERIES
    var output = Heads[dtype](call.tensor(0))
    var logsumexp = call.tensor(1)
    var query = Heads[dtype](call.tensor(2))
    var key = Heads[dtype](call.tensor(3))
    var value = Heads[dtype](call.tensor(4))

    var key_panel = rows * problem.depth + width
    var key_panels = ceil_div(problem.keys, rows)
    var value_panel = rows * problem.keys + width
    var value_panels = ceil_div(problem.value_depth, rows)
    var key_size = key_panels * key_panel
    var head_size = key_size + value_panels * value_panel
    var key_heads = problem.batch * problem.key_heads
    var packed = allocate[accumulate](key_heads * head_size)

    def pack(task: Int) {imm}:
        var head = task // 2
        var batch = head // problem.key_heads
        var target = packed.unsafe_offset(head * head_size)
        if task % 2 == 0:
            var source = key.head(batch, head % problem.key_heads)
            for panel in range(key_panels):
                pack_lines[dtype, rows](
                    source.block(panel * rows, 0),
                    problem.keys - panel * rows,
                    problem.depth,
                    target.unsafe_offset(panel * key_panel),
                )
        else:
            var source = value.head(batch, head % problem.key_heads)
            for panel in range(value_panels):
                pack_lines[dtype, rows](
                    source.transposed().block(panel * rows, 0),
                    problem.value_depth - panel * rows,
                    problem.keys,
                    target.unsafe_offset(key_size + panel * value_panel),
                )

    var query_blocks = ceil_div(problem.queries, queries)
    var blocks = problem.batch * problem.heads * query_blocks
    # Each task has scratch memory of its own.
    var group = max(ceil_div(blocks, TASKS_PER_THREAD * Int(call.threads)), 1)
    var tasks = ceil_div(blocks, group)
    var scratch_size = queries * (
        problem.depth + ceil_div(problem.value_depth, width) * width + 1
    )
    var scratch = allocate[accumulate](tasks * scratch_size)

    def attend(task: Int) {imm}:
        for index in range(task * group, min((task + 1) * group, blocks)):
            var head = index // query_blocks % problem.heads
            var batch = index // query_blocks // problem.heads
            var first = index % query_blocks * queries
            var key_head = head // (problem.heads // problem.key_heads)
            var keys = packed.unsafe_offset(
                (batch * problem.key_heads + key_head) * head_size
            )
            _attend_block(
                problem,
                batch,
                head,
                first,
                query.head(batch, head).block(first, 0),
                keys,
                keys.unsafe_offset(key_size),
                output.head(batch, head).block(first, 0),
                logsumexp.pointer[accumulate]().unsafe_offset(
                    batch * logsumexp.stride(0)
                    + head * logsumexp.stride(1)
                    + first * logsumexp.stride(2)
                ),
                logsumexp.stride(2),
                scratch.unsafe_offset(task * scratch_size),
            )

    call.parallel(pack, key_heads * 2)
    call.parallel(attend, tasks)
    release(scratch)
    release(packed)


def _attend_block[
    dtype: DType
](
    problem: Problem[dtype],
    batch: Int,
    head: Int,
    first: Int,
    query: Matrix[dtype],
    keys: Data[accumulator[dtype]()],
    values: Data[accumulator[dtype]()],
    output: Matrix[dtype],
    logsumexp: Data[accumulator[dtype]()],
    logsumexp_stride: Int,
    scratch: Data[accumulator[dtype]()],
):
    """One block of queries against all keys that it can see."""
    comptime accumulate = accumulator[dtype]()
    comptime rows = Lanes[dtype].ROWS
    comptime width = Lanes[dtype].WIDTH
    comptime vectors = Lanes[dtype].VECTORS
    comptime queries = Lanes[dtype].QUERIES
    comptime Block = SIMD[accumulate, queries]
    var key_panel = rows * problem.depth + width
    var value_panel = rows * problem.keys + width
    var value_panels = ceil_div(problem.value_depth, rows)
    var sum_rows = ceil_div(problem.value_depth, width) * width

    var scores_stack = stack_allocation[
        KEY_BLOCK * queries, Scalar[accumulate], alignment=64
    ]()
    var scores = Data[accumulate](unsafe_from_address=Int(scores_stack))
    var count = min(queries, problem.queries - first)
    var sums = scratch
    var query_panel = sums.unsafe_offset(queries * sum_rows)
    pack_lines[dtype, queries](query, count, problem.depth, query_panel)
    for i in range(sum_rows):
        sums.unsafe_store[width=queries](i * queries, Block(0))
    var maximum = Block(neg_inf[accumulate]())
    var total = Block(0)
    var visible = problem.visible_keys(first + count - 1)
    for first_key in range(0, visible, KEY_BLOCK):
        var size = min(KEY_BLOCK, visible - first_key)
        for i in range(0, size, rows):
            multiply[dtype, row_step=1, depth_step=rows, adds=False](
                problem.depth,
                keys.unsafe_offset((first_key + i) // rows * key_panel),
                query_panel,
                scores.unsafe_offset(i * queries),
                queries,
            )
        finish_scores(problem, batch, head, first, first_key, size, scores)
        var new_maximum = maximum
        for i in range(size):
            new_maximum = max(
                new_maximum, scores.unsafe_load[width=queries](i * queries)
            )
        # Where all keys so far are forbidden, the weights must be 0, not NaN.
        var shift = new_maximum.eq(Block(neg_inf[accumulate]())).select(
            Block(0), new_maximum
        )
        var decay = exp(maximum - shift)
        total *= decay
        maximum = new_maximum
        for i in range(size):
            var weight = exp(
                scores.unsafe_load[width=queries](i * queries) - shift
            )
            total += weight
            scores.unsafe_store[width=queries](i * queries, weight)
        if problem.dropout > 0:
            var factors_stack = stack_allocation[
                KEY_BLOCK * queries, Scalar[accumulate], alignment=64
            ]()
            var factors = Data[accumulate](
                unsafe_from_address=Int(factors_stack)
            )
            keep_factors(problem, batch, head, first, first_key, size, factors)
            for i in range(size):
                scores.unsafe_store[width=queries](
                    i * queries,
                    scores.unsafe_load[width=queries](i * queries)
                    * factors.unsafe_load[width=queries](i * queries),
                )
        if first_key > 0:
            for i in range(problem.value_depth):
                sums.unsafe_store[width=queries](
                    i * queries,
                    sums.unsafe_load[width=queries](i * queries) * decay,
                )
        for panel in range(value_panels):
            multiply[dtype, row_step=1, depth_step=rows, adds=True](
                size,
                values.unsafe_offset(panel * value_panel + first_key * rows),
                scores,
                sums.unsafe_offset(panel * rows * queries),
                queries,
            )
    var unseen = total.eq(Block(0))
    store_lanes[dtype](
        sums,
        unseen.select(Block(0), 1 / total),
        output,
        count,
        problem.value_depth,
    )
    var result = unseen.select(Block(inf[accumulate]()), maximum + log(total))
    for i in range(count):
        logsumexp.unsafe_store(i * logsumexp_stride, result[i])
