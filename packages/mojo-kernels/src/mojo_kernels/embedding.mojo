"""The gradient of an embedding table. The lookup itself is `indexing.gather_scatter:gather` of slices."""

from max.gpu import block_idx, thread_idx
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.bounds import BoundsReport
from mojo_kernels.indexing.element import GPU_BLOCK
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.reduction.rows import gpu_context, row_each
from std.atomic import Atomic
from std.sys.info import has_accelerator

comptime GRAIN = 16384
"""Elements that are worth a thread."""


def _clear_block[dtype: DType](data: Data[dtype], count: Int64):
    """Sets elements to zero, one per thread."""
    var i = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    if i < Int(count):
        data.unsafe_store(i, Scalar[dtype](0))


def _count_block[
    index: DType
](
    counts: Data[DType.int32],
    indices: Data[index],
    count: Int64,
    table_rows: Int64,
):
    """Counts how often each row of the table was looked up."""
    var i = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    if i < Int(count):
        var row = Int(indices.unsafe_load(i))
        if 0 <= row and row < Int(table_rows):
            _ = Atomic.fetch_add(counts.unsafe_offset(row), Int32(1))


def _add_block[
    dtype: DType, index: DType
](
    sums: Data[compute_type[dtype]()],
    gradient: Data[dtype],
    indices: Data[index],
    counts: Data[DType.int32],
    by_frequency: Int32,
    count: Int64,
    columns: Int64,
    table_rows: Int64,
    padding: Int64,
):
    """Adds each lookup's gradient to its row, one element per thread."""
    comptime compute = compute_type[dtype]()
    var i = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    if i >= Int(count * columns):
        return
    var lookup, column = divmod(i, Int(columns))
    var row = Int(indices.unsafe_load(lookup))
    if row == Int(padding) or row < 0 or row >= Int(table_rows):
        return
    var value = gradient.unsafe_load(i).cast[compute]()
    if by_frequency != 0:
        value /= counts.unsafe_load(row).cast[compute]()
    _ = Atomic.fetch_add(sums.unsafe_offset(row * Int(columns) + column), value)


def _round_block[
    dtype: DType
](target: Data[dtype], sums: Data[compute_type[dtype]()], count: Int64):
    """Converts the sums, one element per thread."""
    var i = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    if i < Int(count):
        target.unsafe_store(i, narrow[dtype](sums.unsafe_load(i)))


def embedding_backward[dtype: DType, index: DType](call: KernelCall) raises:
    """The gradient of the table: each row is the sum of the gradients of its lookups, in the order of the lookups.

    On GPUs the order is that of atomic additions.

    Tensors: the table's gradient [rows, columns], the lookups' gradients [lookups, columns], the indices [lookups], all
    contiguous. Scalars: the padding index, whose row stays zero, or -1; whether each row is divided by the number of its
    lookups.

    Parameters:
        dtype: The element type, floating.
        index: The index type.

    Args:
        call: The call.

    Raises:
        IndexError: An index is out of range, on CPUs.
    """
    comptime compute = compute_type[dtype]()
    var target = call.tensor(0).pointer[dtype]()
    var gradient = call.tensor(1).pointer[dtype]()
    var indices = call.tensor(2).pointer[index]()
    var table_rows = call.tensor(0).size(0)
    var columns = call.tensor(0).size(1)
    var lookups = Int(call.tensor(2).numel)
    var padding = call.int_scalar(0)
    var by_frequency = call.int_scalar(1) != 0
    if table_rows * columns == 0:
        return
    comptime if has_accelerator():
        var context = gpu_context(call)
        var elements = table_rows * columns
        comptime rounds = dtype != compute
        var scratch = context.enqueue_create_buffer[compute](
            elements if rounds else 1
        )
        var sums = Data[compute](
            unsafe_from_address=Int(scratch.unsafe_ptr()) if rounds else Int(
                target
            )
        )
        var frequencies = context.enqueue_create_buffer[DType.int32](
            table_rows if by_frequency else 1
        )
        var counts = Data[DType.int32](
            unsafe_from_address=Int(frequencies.unsafe_ptr())
        )
        context.enqueue_function[_clear_block[compute]](
            sums,
            Int64(elements),
            grid_dim=ceil_div(elements, GPU_BLOCK),
            block_dim=GPU_BLOCK,
        )
        if lookups > 0:
            if by_frequency:
                context.enqueue_function[_clear_block[DType.int32]](
                    counts,
                    Int64(table_rows),
                    grid_dim=ceil_div(table_rows, GPU_BLOCK),
                    block_dim=GPU_BLOCK,
                )
                context.enqueue_function[_count_block[index]](
                    counts,
                    indices,
                    Int64(lookups),
                    Int64(table_rows),
                    grid_dim=ceil_div(lookups, GPU_BLOCK),
                    block_dim=GPU_BLOCK,
                )
            context.enqueue_function[_add_block[dtype, index]](
                sums,
                gradient,
                indices,
                counts,
                Int32(by_frequency),
                Int64(lookups),
                Int64(columns),
                Int64(table_rows),
                Int64(padding),
                grid_dim=ceil_div(lookups * columns, GPU_BLOCK),
                block_dim=GPU_BLOCK,
            )
        comptime if rounds:
            context.enqueue_function[_round_block[dtype]](
                target,
                sums,
                Int64(elements),
                grid_dim=ceil_div(elements, GPU_BLOCK),
                block_dim=GPU_BLOCK,
            )
        _ = scratch^
        _ = frequencies^
    else:
        # A counting sort puts the lookups of each row side by side, in their order: every row is written once.
        var report = BoundsReport()
        var bounds = report.bounds(table_rows)
        var ends = List[Int](length=table_rows + 1, fill=0)
        for i in range(lookups):
            var row = Int(indices.unsafe_load(i))
            if bounds.contains(row):
                ends[row + 1] += 1
        if report.violated():
            raise Error("IndexError: index out of range in self")
        for row in range(table_rows):
            ends[row + 1] += ends[row]
        var order = List[Int](length=lookups, fill=0)
        for i in range(lookups):
            var row = Int(indices.unsafe_load(i))
            order[ends[row]] = i
            ends[row] += 1
        var first_end = ends.unsafe_ptr()
        var first_order = order.unsafe_ptr()

        def some_rows(start: Int, end: Int) {imm}:
            for row in range(start, end):
                var begin = first_end.unsafe_offset(row - 1)[] if row > 0 else 0
                var stop = first_end.unsafe_offset(row)[]
                if row == padding:
                    stop = begin
                var scale = Scalar[compute](1)
                if by_frequency:
                    scale = 1 / Scalar[compute](Int64(max(stop - begin, 1)))
                var row_target = target.unsafe_offset(row * columns)

                def add[w: Int](column: Int) {imm}:
                    var sum = SIMD[compute, w](0)
                    for k in range(begin, stop):
                        sum += gradient.unsafe_load[width=w](
                            first_order.unsafe_offset(k)[] * columns + column
                        ).cast[compute]()
                    row_target.unsafe_store(column, narrow[dtype](sum * scale))

                row_each[0, compute](columns, add)

        parallel_ranges(
            call,
            table_rows,
            GRAIN * table_rows // ((table_rows + lookups) * columns),
            some_rows,
        )
        _ = ends^
        _ = order^
