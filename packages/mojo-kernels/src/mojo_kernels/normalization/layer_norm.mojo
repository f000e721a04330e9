"""Layer and RMS normalization and their gradients, over the last dimensions of contiguous tensors.

With xhat = (x - mean) rstd, y = xhat weight + bias and g = dy weight, for rows of n elements:
dx = rstd (g - sum(g) / n - xhat sum(g xhat) / n), dweight = sum over rows of dy xhat, dbias = sum over rows of dy.
RMS normalization (not `centered`) takes the mean as 0: rstd is that of the root mean square, and dx has no sum(g).
"""

from max.gpu import block_idx, thread_idx
from max.gpu.sync import barrier
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type, narrow, sqrt
from mojo_kernels.reduction.rows import (
    ROW_BLOCK,
    RowView,
    gpu_context,
    row_each,
    row_sum,
)
from std.memory import AddressSpace, stack_allocation
from std.sys.info import has_accelerator, is_gpu

comptime GRAIN = 16384
"""Elements that are worth a thread."""
comptime FLUSH = 256
"""Rows whose parameter gradients add up before they join the total, which bounds rounding errors."""
comptime COLUMN_LANES = 32
"""Columns that a GPU block sums over rows."""
comptime ROW_LANES = 8
"""Threads of a GPU block that share a column."""


@inline(.always)
def _forward_row[
    dtype: DType, across: Int, centered: Bool
](
    y: RowView[dtype, across],
    input: RowView[dtype, across],
    weight: RowView[dtype, across],
    bias: RowView[dtype, across],
    has_weight: Bool,
    has_bias: Bool,
    n: Int,
    eps: Scalar[compute_type[dtype]()],
) -> Tuple[Scalar[compute_type[dtype]()], Scalar[compute_type[dtype]()]]:
    """Normalizes one row and returns its mean and reciprocal standard deviation.
    """
    comptime compute = compute_type[dtype]()

    def value[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        return input.load[compute, w](i)

    var count = Scalar[compute](Int64(n))
    var mean = Scalar[compute](0)
    comptime if centered:
        mean = row_sum[across, compute](n, value)[0] / count

    def square[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        var deviation = value[w](i) - mean
        return deviation * deviation

    var variance = row_sum[across, compute](n, square)[0] / count
    var rstd = 1 / sqrt(variance + eps)

    def finish[w: Int](i: Int) {imm}:
        var result = (value[w](i) - mean) * rstd
        if has_weight:
            result *= weight.load[compute, w](i)
        if has_bias:
            result += bias.load[compute, w](i)
        y.store(i, result)

    row_each[across, compute](n, finish)
    return mean, rstd


def _forward_block[
    dtype: DType, centered: Bool
](
    y: Data[dtype],
    mean: Data[compute_type[dtype]()],
    rstd: Data[compute_type[dtype]()],
    input: Data[dtype],
    weight: Data[dtype],
    bias: Data[dtype],
    has_weight: Int32,
    has_bias: Int32,
    n: Int64,
    eps: Scalar[compute_type[dtype]()],
):
    """One row per block."""
    var row = Int(block_idx.x)
    var statistics = _forward_row[centered=centered](
        RowView[across=1](y.unsafe_offset(row * Int(n)), 1),
        RowView[across=1](input.unsafe_offset(row * Int(n)), 1),
        RowView[across=1](weight, 1),
        RowView[across=1](bias, 1),
        has_weight != 0,
        has_bias != 0,
        Int(n),
        eps,
    )
    if thread_idx.x == 0:
        comptime if centered:
            mean.unsafe_store(row, statistics[0])
        rstd.unsafe_store(row, statistics[1])


def forward[dtype: DType, centered: Bool = True](call: KernelCall) raises:
    """Normalizes rows.

    Tensors: output [rows, columns]; mean and rstd [rows], float32 for half types; input [rows, columns]; weight and bias
    [columns], both optional; all contiguous. Scalars: rows, columns, eps.

    Parameters:
        dtype: The element type, floating.
        centered: Whether the mean is subtracted; if not, it is absent.

    Args:
        call: The call.
    """
    comptime compute = compute_type[dtype]()
    var y = call.tensor(0).pointer[dtype]()
    var mean = call.tensor(1).pointer[compute]()
    var rstd = call.tensor(2).pointer[compute]()
    var input = call.tensor(3).pointer[dtype]()
    var weight = call.tensor(4).pointer[dtype]()
    var bias = call.tensor(5).pointer[dtype]()
    var has_weight = not call.tensor(4).is_absent()
    var has_bias = not call.tensor(5).is_absent()
    var rows = call.int_scalar(0)
    var n = call.int_scalar(1)
    var eps = call.float_scalar(2).cast[compute]()
    if rows == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_forward_block[dtype, centered]](
            y,
            mean,
            rstd,
            input,
            weight,
            bias,
            Int32(has_weight),
            Int32(has_bias),
            Int64(n),
            eps,
            grid_dim=rows,
            block_dim=ROW_BLOCK,
        )
    else:

        def some_rows(start: Int, end: Int) {imm}:
            for row in range(start, end):
                var statistics = _forward_row[centered=centered](
                    RowView[across=0](y.unsafe_offset(row * n), 1),
                    RowView[across=0](input.unsafe_offset(row * n), 1),
                    RowView[across=0](weight, 1),
                    RowView[across=0](bias, 1),
                    has_weight,
                    has_bias,
                    n,
                    eps,
                )
                comptime if centered:
                    mean.unsafe_store(row, statistics[0])
                rstd.unsafe_store(row, statistics[1])

        parallel_ranges(call, rows, GRAIN // max(n, 1), some_rows)


@inline(.always)
def _backward_row[
    dtype: DType, across: Int, centered: Bool
](
    dx: RowView[dtype, across],
    dweight: RowView[compute_type[dtype](), across],
    dbias: RowView[compute_type[dtype](), across],
    dy: RowView[dtype, across],
    input: RowView[dtype, across],
    mean: Scalar[compute_type[dtype]()],
    rstd: Scalar[compute_type[dtype]()],
    weight: RowView[dtype, across],
    wants_dx: Bool,
    has_weight: Bool,
    n: Int,
):
    """The gradient of one row; on CPUs also adds its share of the parameters' gradients.
    """
    comptime compute = compute_type[dtype]()

    def gradient[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        var g = dy.load[compute, w](i)
        if has_weight:
            g *= weight.load[compute, w](i)
        return g

    def normalized[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        return (input.load[compute, w](i) - mean) * rstd

    def product[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        return gradient[w](i) * normalized[w](i)

    var mean_gradient = Scalar[compute](0)
    var mean_product = Scalar[compute](0)
    if wants_dx:
        var count = Scalar[compute](Int64(n))
        comptime if centered:
            mean_gradient = row_sum[across, compute](n, gradient)[0] / count
        mean_product = row_sum[across, compute](n, product)[0] / count

    def finish[w: Int](i: Int) {imm}:
        var xhat = normalized[w](i)
        if wants_dx:
            dx.store(
                i,
                rstd * (gradient[w](i) - mean_gradient - xhat * mean_product),
            )
        comptime if not is_gpu():
            var g = dy.load[compute, w](i)
            dweight.store(i, dweight.load[compute, w](i) + g * xhat)
            dbias.store(i, dbias.load[compute, w](i) + g)

    row_each[across, compute](n, finish)


def _backward_block[
    dtype: DType, centered: Bool
](
    dx: Data[dtype],
    dy: Data[dtype],
    input: Data[dtype],
    mean: Data[compute_type[dtype]()],
    rstd: Data[compute_type[dtype]()],
    weight: Data[dtype],
    has_weight: Int32,
    n: Int64,
):
    """The input's gradient, one row per block."""
    comptime compute = compute_type[dtype]()
    var row = Int(block_idx.x)
    var center = Scalar[compute](0)
    comptime if centered:
        center = mean.unsafe_load(row)
    # CPUs add up the parameters' gradients, here nothing is written there.
    _backward_row[centered=centered](
        RowView[across=1](dx.unsafe_offset(row * Int(n)), 1),
        RowView[across=1](rstd, 1),
        RowView[across=1](rstd, 1),
        RowView[across=1](dy.unsafe_offset(row * Int(n)), 1),
        RowView[across=1](input.unsafe_offset(row * Int(n)), 1),
        center,
        rstd.unsafe_load(row),
        RowView[across=1](weight, 1),
        True,
        has_weight != 0,
        Int(n),
    )


def _parameter_block[
    dtype: DType, centered: Bool
](
    partial: Data[compute_type[dtype]()],
    dy: Data[dtype],
    input: Data[dtype],
    mean: Data[compute_type[dtype]()],
    rstd: Data[compute_type[dtype]()],
    rows: Int64,
    columns: Int64,
    share: Int64,
):
    """Sums `share` rows of `COLUMN_LANES` columns into `partial` [chunks, 2, columns]: dweight, then dbias.
    """
    comptime compute = compute_type[dtype]()
    comptime lanes = COLUMN_LANES * ROW_LANES
    var shared = stack_allocation[
        2 * lanes, Scalar[compute], address_space=AddressSpace.SHARED
    ]()
    var column = Int(block_idx.x) * COLUMN_LANES + Int(thread_idx.x)
    var dweight = Scalar[compute](0)
    var dbias = Scalar[compute](0)
    if column < Int(columns):
        var row = Int(block_idx.y) * Int(share) + Int(thread_idx.y)
        var end = min(Int(rows), (Int(block_idx.y) + 1) * Int(share))
        while row < end:
            var i = row * Int(columns) + column
            var g = dy.unsafe_load(i).cast[compute]()
            var x = input.unsafe_load(i).cast[compute]()
            comptime if centered:
                x -= mean.unsafe_load(row)
            dweight += g * x * rstd.unsafe_load(row)
            dbias += g
            row += ROW_LANES
    var lane = Int(thread_idx.y) * COLUMN_LANES + Int(thread_idx.x)
    shared.unsafe_store(lane, dweight)
    shared.unsafe_store(lanes + lane, dbias)
    barrier()
    if thread_idx.y == 0 and column < Int(columns):
        for k in range(1, ROW_LANES):
            dweight += shared.unsafe_load(k * COLUMN_LANES + lane)
            dbias += shared.unsafe_load(lanes + k * COLUMN_LANES + lane)
        var target = 2 * Int(block_idx.y) * Int(columns) + column
        partial.unsafe_store(target, dweight)
        partial.unsafe_store(target + Int(columns), dbias)


def _combine_block[
    dtype: DType
](
    dweight: Data[dtype],
    dbias: Data[dtype],
    partial: Data[compute_type[dtype]()],
    wants_dweight: Int32,
    wants_dbias: Int32,
    columns: Int64,
    chunks: Int64,
):
    """Adds up the chunks of `_parameter_block`, one column per thread."""
    comptime compute = compute_type[dtype]()
    var column = Int(block_idx.x) * ROW_BLOCK + Int(thread_idx.x)
    if column >= Int(columns):
        return
    var weight_sum = Scalar[compute](0)
    var bias_sum = Scalar[compute](0)
    for chunk in range(Int(chunks)):
        var source = 2 * chunk * Int(columns) + column
        weight_sum += partial.unsafe_load(source)
        bias_sum += partial.unsafe_load(source + Int(columns))
    if wants_dweight != 0:
        dweight.unsafe_store(column, narrow[dtype](weight_sum))
    if wants_dbias != 0:
        dbias.unsafe_store(column, narrow[dtype](bias_sum))


def backward[dtype: DType, centered: Bool = True](call: KernelCall) raises:
    """The gradients of layer or RMS normalization.

    Tensors: dx [rows, columns], dweight and dbias [columns], each optional; dy and input [rows, columns]; mean and rstd
    [rows], float32 for half types; weight [columns], optional; all contiguous. Scalars: rows, columns.

    Parameters:
        dtype: The element type, floating.
        centered: Whether the mean is subtracted; if not, it is absent.

    Args:
        call: The call.
    """
    comptime compute = compute_type[dtype]()
    var dx = call.tensor(0).pointer[dtype]()
    var dweight = call.tensor(1).pointer[dtype]()
    var dbias = call.tensor(2).pointer[dtype]()
    var dy = call.tensor(3).pointer[dtype]()
    var input = call.tensor(4).pointer[dtype]()
    var mean = call.tensor(5).pointer[compute]()
    var rstd = call.tensor(6).pointer[compute]()
    var weight = call.tensor(7).pointer[dtype]()
    var wants_dx = not call.tensor(0).is_absent()
    var wants_dweight = not call.tensor(1).is_absent()
    var wants_dbias = not call.tensor(2).is_absent()
    var has_weight = not call.tensor(7).is_absent()
    var rows = call.int_scalar(0)
    var n = call.int_scalar(1)
    if n == 0:
        return
    comptime if has_accelerator():
        var context = gpu_context(call)
        if wants_dx and rows > 0:
            context.enqueue_function[_backward_block[dtype, centered]](
                dx,
                dy,
                input,
                mean,
                rstd,
                weight,
                Int32(has_weight),
                Int64(n),
                grid_dim=rows,
                block_dim=ROW_BLOCK,
            )
        if wants_dweight or wants_dbias:
            var chunks = max(min(rows // 64, 64), 1)
            var partial = context.enqueue_create_buffer[compute](2 * chunks * n)
            var scratch = Data[compute](
                unsafe_from_address=Int(partial.unsafe_ptr())
            )
            context.enqueue_function[_parameter_block[dtype, centered]](
                scratch,
                dy,
                input,
                mean,
                rstd,
                Int64(rows),
                Int64(n),
                Int64(ceil_div(rows, chunks)),
                grid_dim=(ceil_div(n, COLUMN_LANES), chunks),
                block_dim=(COLUMN_LANES, ROW_LANES),
            )
            context.enqueue_function[_combine_block[dtype]](
                dweight,
                dbias,
                scratch,
                Int32(wants_dweight),
                Int32(wants_dbias),
                Int64(n),
                Int64(chunks),
                grid_dim=ceil_div(n, ROW_BLOCK),
                block_dim=ROW_BLOCK,
            )
            _ = partial^
    else:
        var tasks = max(min(Int(call.threads), rows * n // GRAIN), 1)
        var share = ceil_div(rows, tasks)
        # Per task: the total of dweight and dbias, then that of the rows since the last flush.
        var sums = List[Scalar[compute]](length=tasks * 4 * n, fill=0)
        var scratch = sums.unsafe_ptr()

        def some_rows(task: Int) {imm}:
            var total = Data[compute](
                unsafe_from_address=Int(scratch.unsafe_offset(task * 4 * n))
            )
            var recent = total.unsafe_offset(2 * n)
            var start = task * share
            for row in range(start, min(start + share, rows)):
                var center = Scalar[compute](0)
                comptime if centered:
                    center = mean.unsafe_load(row)
                _backward_row[centered=centered](
                    RowView[across=0](dx.unsafe_offset(row * n), 1),
                    RowView[across=0](recent, 1),
                    RowView[across=0](recent.unsafe_offset(n), 1),
                    RowView[across=0](dy.unsafe_offset(row * n), 1),
                    RowView[across=0](input.unsafe_offset(row * n), 1),
                    center,
                    rstd.unsafe_load(row),
                    RowView[across=0](weight, 1),
                    wants_dx,
                    has_weight,
                    n,
                )
                if (row - start) % FLUSH == FLUSH - 1:
                    _flush(total, recent, 2 * n)
            _flush(total, recent, 2 * n)

        call.parallel(some_rows, tasks)
        for i in range(n):
            var weight_sum = Scalar[compute](0)
            var bias_sum = Scalar[compute](0)
            for task in range(tasks):
                weight_sum += scratch.unsafe_load(task * 4 * n + i)
                bias_sum += scratch.unsafe_load(task * 4 * n + n + i)
            if wants_dweight:
                dweight.unsafe_store(i, narrow[dtype](weight_sum))
            if wants_dbias:
                dbias.unsafe_store(i, narrow[dtype](bias_sum))
        _ = sums^


@inline(.always)
def _flush[dtype: DType](total: Data[dtype], recent: Data[dtype], n: Int):
    """Moves recent sums to the total."""

    def add[w: Int](i: Int) {imm}:
        total.unsafe_store(
            i, total.unsafe_load[width=w](i) + recent.unsafe_load[width=w](i)
        )
        recent.unsafe_store(i, SIMD[dtype, w](0))

    row_each[0, dtype](n, add)
