"""Softmax and log-softmax over one dimension, and their gradients."""

from max.gpu import block_idx
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import OffsetCalculator
from mojo_kernels.math import compute_type, exp, log, narrow
from mojo_kernels.reduction.plan import wrap_dimension
from mojo_kernels.reduction.rows import (
    ROW_BLOCK,
    Rows,
    RowView,
    gpu_context,
    row_each,
    row_max,
    row_sum,
    spread,
)
from mojo_kernels.reduction.transposed_rows import each_transposed_row
from std.collections import Array
from std.sys.info import has_accelerator, is_gpu
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 8192
"""Elements that are worth a thread."""
comptime STAGED = 4096
"""Exponentials that wait on the stack, where the output cannot hold them."""


@inline(.always)
def _softmax_row[
    op: StaticString, dtype: DType, out: DType, across: Int
](y: RowView[out, across], x: RowView[dtype, across], n: Int):
    """Normalizes one row: exp(x - max) / sum(exp(x - max)), or its logarithm.
    """
    comptime compute = compute_type[dtype]()
    # On CPUs the exponentials wait: in the output, where it holds them without rounding.
    comptime if op == "softmax" and not is_gpu():
        comptime if out == compute:
            _normalize_row[op](y, x, rebind[RowView[compute, across]](y), n)
        else:
            comptime lanes = max(across, 1)
            var stack = Array[Scalar[compute], STAGED](uninitialized=True)
            var address = Int(stack.unsafe_ptr())
            var heap = List[Scalar[compute]]()
            if n * lanes > STAGED:
                heap.reserve(n * lanes)
                address = Int(heap.unsafe_ptr())
            _normalize_row[op](
                y,
                x,
                RowView[across=across](
                    Data[compute](unsafe_from_address=address), lanes
                ),
                n,
            )
            _ = heap^
    else:
        var nowhere = Data[compute](unsafe_from_address=Int(y.data))
        _normalize_row[op, waits=False](
            y, x, RowView[across=across](nowhere, 0), n
        )


@inline(.always)
def _normalize_row[
    dtype: DType,
    out: DType,
    across: Int,
    //,
    op: StaticString,
    waits: Bool = True,
](
    y: RowView[out, across],
    x: RowView[dtype, across],
    terms: RowView[compute_type[dtype](), across],
    n: Int,
):
    """Normalizes one row, with room for the exponentials if they wait there."""
    comptime compute = compute_type[dtype]()

    def value[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        return x.load[compute, w](i)

    var largest = row_max[across, compute](n, value)

    def term[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        var e = exp(value[w](i) - spread[w](largest))
        comptime if waits:
            terms.store(i, e)
        return e

    var total = row_sum[across, compute](n, term)
    comptime if op == "log_softmax":
        total = log(total)
    else:
        total = 1 / total

    def finish[w: Int](i: Int) {imm}:
        comptime if op == "log_softmax":
            y.store(i, value[w](i) - spread[w](largest) - spread[w](total))
        elif waits:
            y.store(i, terms.load[compute, w](i) * spread[w](total))
        else:
            y.store(i, exp(value[w](i) - spread[w](largest)) * spread[w](total))

    row_each[across, compute](n, finish)


@inline(.always)
def _gradient_row[
    op: StaticString, dtype: DType, out: DType, across: Int
](
    dx: RowView[out, across],
    dy: RowView[dtype, across],
    y: RowView[dtype, across],
    n: Int,
):
    """The gradient of one row: (dy - sum(dy y)) y, or dy - sum(dy) exp(y) of the logarithm.
    """
    comptime compute = compute_type[dtype]()

    def term[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        comptime if op == "softmax":
            return dy.load[compute, w](i) * y.load[compute, w](i)
        else:
            return dy.load[compute, w](i)

    var total = row_sum[across, compute](n, term)

    def finish[w: Int](i: Int) {imm}:
        var gradient = dy.load[compute, w](i)
        var result = y.load[compute, w](i)
        comptime if op == "softmax":
            dx.store(i, (gradient - spread[w](total)) * result)
        else:
            dx.store(i, gradient - spread[w](total) * exp(result))

    row_each[across, compute](n, finish)


def _softmax_block[
    op: StaticString, dtype: DType, out: DType
](
    y: Data[out],
    y_stride: Int64,
    x: Data[dtype],
    x_stride: Int64,
    n: Int64,
    rows: OffsetCalculator[2, DType.uint64],
):
    """One row per block."""
    var offsets = rows.offsets(UInt64(block_idx.x))
    _softmax_row[op](
        RowView[across=1](y.unsafe_offset(offsets[0]), Int(y_stride)),
        RowView[across=1](x.unsafe_offset(offsets[1]), Int(x_stride)),
        Int(n),
    )


def _gradient_block[
    op: StaticString, dtype: DType, out: DType
](
    dx: Data[out],
    dx_stride: Int64,
    dy: Data[dtype],
    dy_stride: Int64,
    y: Data[dtype],
    y_stride: Int64,
    n: Int64,
    rows: OffsetCalculator[3, DType.uint64],
):
    """One row per block."""
    var offsets = rows.offsets(UInt64(block_idx.x))
    _gradient_row[op](
        RowView[across=1](dx.unsafe_offset(offsets[0]), Int(dx_stride)),
        RowView[across=1](dy.unsafe_offset(offsets[1]), Int(dy_stride)),
        RowView[across=1](y.unsafe_offset(offsets[2]), Int(y_stride)),
        Int(n),
    )


def softmax[
    op: StaticString, dtype: DType, out: DType = dtype
](call: KernelCall) raises:
    """Softmax along a dimension.

    Tensors: output, input, of the same sizes and any strides. Scalars: the dimension.

    Parameters:
        op: "softmax" or "log_softmax".
        dtype: The input's type, floating.
        out: The output's type: the same, or float32 for a half type.

    Args:
        call: The call.

    Raises:
        IndexError: The dimension is out of range.
    """
    var dimension = wrap_dimension(call.int_scalar(0), Int(call.tensor(0).ndim))
    if call.tensor(0).numel == 0:
        return
    var rows = Rows[2](call, dimension)
    var y = call.tensor(0).pointer[out]()
    var x = call.tensor(1).pointer[dtype]()
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_softmax_block[op, dtype, out]](
            y,
            Int64(rows.strides[0]),
            x,
            Int64(rows.strides[1]),
            Int64(rows.length),
            rows.calculator(),
            grid_dim=rows.space.numel,
            block_dim=ROW_BLOCK,
        )
    else:
        var strides = rows.strides
        var n = rows.length

        def row[across: Int](offsets: StaticTuple[Int, 2]) {imm}:
            _softmax_row[op](
                RowView[across=across](y.unsafe_offset(offsets[0]), strides[0]),
                RowView[across=across](x.unsafe_offset(offsets[1]), strides[1]),
                n,
            )

        def convert[w: Int](values: SIMD[dtype, w]) {} -> SIMD[out, w]:
            return narrow[out](values)

        def moved_row(offsets: StaticTuple[Int, 2]) {imm}:
            var at = RowView[across=0](y.unsafe_offset(offsets[0]), 1)
            _softmax_row[op](at, at, n)

        if each_transposed_row(rows, call, GRAIN, x, y, convert, moved_row):
            return
        rows.each[compute_type[dtype]()](call, GRAIN, row)


def softmax_backward[
    op: StaticString, dtype: DType, out: DType = dtype
](call: KernelCall) raises:
    """The gradient of softmax along a dimension.

    Tensors: the input's gradient, the output's gradient, the output, of the same sizes and any strides. Scalars: the
    dimension.

    Parameters:
        op: "softmax" or "log_softmax".
        dtype: The type of the output and its gradient, floating.
        out: The type of the input's gradient: the same, or a half type for float32.

    Args:
        call: The call.

    Raises:
        IndexError: The dimension is out of range.
    """
    var dimension = wrap_dimension(call.int_scalar(0), Int(call.tensor(0).ndim))
    if call.tensor(0).numel == 0:
        return
    var rows = Rows[3](call, dimension)
    var dx = call.tensor(0).pointer[out]()
    var dy = call.tensor(1).pointer[dtype]()
    var y = call.tensor(2).pointer[dtype]()
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_gradient_block[op, dtype, out]](
            dx,
            Int64(rows.strides[0]),
            dy,
            Int64(rows.strides[1]),
            y,
            Int64(rows.strides[2]),
            Int64(rows.length),
            rows.calculator(),
            grid_dim=rows.space.numel,
            block_dim=ROW_BLOCK,
        )
    else:
        var strides = rows.strides
        var n = rows.length

        def row[across: Int](offsets: StaticTuple[Int, 3]) {imm}:
            _gradient_row[op](
                RowView[across=across](
                    dx.unsafe_offset(offsets[0]), strides[0]
                ),
                RowView[across=across](
                    dy.unsafe_offset(offsets[1]), strides[1]
                ),
                RowView[across=across](y.unsafe_offset(offsets[2]), strides[2]),
                n,
            )

        comptime if out == dtype:

            def same[w: Int](values: SIMD[dtype, w]) {} -> SIMD[out, w]:
                return values._refine[out]()

            def moved_row(offsets: StaticTuple[Int, 3]) {imm}:
                _gradient_row[op](
                    RowView[across=0](dx.unsafe_offset(offsets[0]), 1),
                    rebind[RowView[dtype, 0]](
                        RowView[across=0](dx.unsafe_offset(offsets[0]), 1)
                    ),
                    RowView[across=0](y.unsafe_offset(offsets[2]), 1),
                    n,
                )

            if each_transposed_row(rows, call, GRAIN, dy, dx, same, moved_row):
                return
        rows.each[compute_type[dtype]()](call, GRAIN, row)
