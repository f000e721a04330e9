"""Stable sorting along a dimension, whole or of the first k elements. NaN is larger than every number."""

from max.gpu import block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import (
    Cursor,
    OffsetCalculator,
    ceil_div,
    parallel_ranges,
)
from mojo_kernels.pointwise.function import storage_type
from mojo_kernels.radix import (
    first_of_row,
    packed_type,
    position_bits,
    position_of,
    sort_row,
)
from mojo_kernels.reduction.plan import wrap_dimension
from mojo_kernels.reduction.rows import Rows, gpu_context
from std.sys.info import has_accelerator
from std.utils.numerics import isnan
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 2048
"""Elements that are worth a thread."""
comptime GPU_BLOCK = 256
"""Threads of a block."""
comptime GPU_MAX_BLOCKS = 1 << 16
"""Blocks of a launch; threads loop over what is left."""


@inline(.always)
def _precedes[
    dtype: DType
](
    a: Scalar[dtype],
    a_index: Int,
    b: Scalar[dtype],
    b_index: Int,
    descending: Bool,
) -> Bool:
    """Whether element `a` comes before element `b`; equal elements keep their order.
    """
    comptime if dtype.is_floating_point():
        var a_is_nan = Bool(isnan(a))
        var b_is_nan = Bool(isnan(b))
        if a_is_nan or b_is_nan:
            if a_is_nan and b_is_nan:
                return a_index < b_index
            return a_is_nan == descending
    if a == b:
        return a_index < b_index
    return Bool(a > b) if descending else Bool(a < b)


@fieldwise_init
struct _Row[dtype: DType](TrivialRegisterPassable):
    """The elements of a row, compared by their positions."""

    var data: Data[Self.dtype]
    var stride: Int
    var descending: Bool

    @inline(.always)
    def precedes(self, a: Int, b: Int) -> Bool:
        """Whether the element at position `a` comes before that at `b`."""
        return _precedes(
            self.data.unsafe_load(a * self.stride),
            a,
            self.data.unsafe_load(b * self.stride),
            b,
            self.descending,
        )


def _positions_kernel(
    positions: Data[DType.int64], count: Int64, padded: Int64
):
    """Numbers the elements of padded rows."""
    var i = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    while i < Int(count):
        positions.unsafe_store(i, Int64(i % Int(padded)))
        i += Int(grid_dim.x) * GPU_BLOCK


def _exchange_kernel[
    dtype: DType
](
    positions: Data[DType.int64],
    input: Data[dtype],
    rows: OffsetCalculator[3, DType.uint64],
    stride: Int64,
    n: Int64,
    padded: Int64,
    count: Int64,
    block: Int64,
    distance: Int64,
    descending: Int32,
):
    """One step of Batcher's bitonic sort on every row, one pair per thread."""
    var pair = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    while pair < Int(count):
        var half = Int(distance)
        var i = pair // half * 2 * half + pair % half
        var j = i + half
        var a = Int(positions.unsafe_load(i))
        var b = Int(positions.unsafe_load(j))
        var row = _Row[dtype](
            input.unsafe_offset(rows.offsets(UInt64(i // Int(padded)))[2]),
            Int(stride),
            descending != 0,
        )
        # Padding, positions from n on, comes last.
        var in_order: Bool
        if a >= Int(n) or b >= Int(n):
            in_order = a < b
        else:
            in_order = row.precedes(a, b)
        var upwards = (i % Int(padded)) // Int(block) % 2 == 0
        if in_order != upwards:
            positions.unsafe_store(i, Int64(b))
            positions.unsafe_store(j, Int64(a))
        pair += Int(grid_dim.x) * GPU_BLOCK


def _output_kernel[
    dtype: DType
](
    values: Data[dtype],
    indices: Data[DType.int64],
    input: Data[dtype],
    positions: Data[DType.int64],
    rows: OffsetCalculator[3, DType.uint64],
    strides: StaticTuple[Int64, 3],
    k: Int64,
    padded: Int64,
    count: Int64,
):
    """Writes the first `k` elements of every row and their positions."""
    var i = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    while i < Int(count):
        var row, j = divmod(i, Int(k))
        var position = positions.unsafe_load(row * Int(padded) + j)
        var offsets = rows.offsets(UInt64(row))
        values.unsafe_store(
            offsets[0] + j * Int(strides[0]),
            input.unsafe_load(offsets[2] + Int(position) * Int(strides[2])),
        )
        indices.unsafe_store(offsets[1] + j * Int(strides[1]), position)
        i += Int(grid_dim.x) * GPU_BLOCK


def sort[dtype: DType](call: KernelCall) raises:
    """The first elements along a dimension in sorted order, and their positions.

    Tensors: values and positions (int64), of the same sizes, which along the dimension may be smaller than the input's; the
    input. Any strides. Scalars: the dimension, whether the largest come first.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.

    Raises:
        IndexError: The dimension is out of range.
        NotImplementedError: On GPUs, rows over more than 8 dimensions that do not merge; on CPUs, rows of 2^32 elements.
    """
    comptime storage = storage_type[dtype]()
    var input_tensor = call.tensor(2)
    var dimension = wrap_dimension(call.int_scalar(0), Int(input_tensor.ndim))
    if call.tensor(0).numel == 0:
        return
    var rows = Rows[3](call, dimension)
    var k = rows.length
    var n = input_tensor.size(dimension) if input_tensor.ndim > 0 else 1
    var descending = call.int_scalar(1) != 0
    var values = call.tensor(0).pointer[storage]()
    var indices = call.tensor(1).pointer[DType.int64]()
    var input = input_tensor.pointer[storage]()
    var strides = rows.strides
    comptime if has_accelerator():
        var context = gpu_context(call)
        var padded = 1
        while padded < n:
            padded *= 2
        var total = rows.space.numel * padded
        var scratch = context.enqueue_create_buffer[DType.int64](total)
        var positions = Data[DType.int64](
            unsafe_from_address=Int(scratch.unsafe_ptr())
        )
        context.enqueue_function[_positions_kernel](
            positions,
            Int64(total),
            Int64(padded),
            grid_dim=min(ceil_div(total, GPU_BLOCK), GPU_MAX_BLOCKS),
            block_dim=GPU_BLOCK,
        )
        var calculator = rows.calculator()
        var block = 2
        while block <= padded:
            var distance = block // 2
            while distance > 0:
                context.enqueue_function[_exchange_kernel[storage]](
                    positions,
                    input,
                    calculator,
                    Int64(strides[2]),
                    Int64(n),
                    Int64(padded),
                    Int64(total // 2),
                    Int64(block),
                    Int64(distance),
                    Int32(descending),
                    grid_dim=min(
                        ceil_div(total // 2, GPU_BLOCK), GPU_MAX_BLOCKS
                    ),
                    block_dim=GPU_BLOCK,
                )
                distance //= 2
            block *= 2
        var count = rows.space.numel * k
        context.enqueue_function[_output_kernel[storage]](
            values,
            indices,
            input,
            positions,
            calculator,
            StaticTuple[Int64, 3](
                Int64(strides[0]), Int64(strides[1]), Int64(strides[2])
            ),
            Int64(k),
            Int64(padded),
            Int64(count),
            grid_dim=min(ceil_div(count, GPU_BLOCK), GPU_MAX_BLOCKS),
            block_dim=GPU_BLOCK,
        )
        _ = scratch^
    else:
        comptime packed = packed_type[storage]()
        comptime limit = 1 << position_bits[storage]() if position_bits[
            storage
        ]() < 63 else Int.MAX
        if n > limit:
            raise Error(
                "NotImplementedError: sorting more than ", limit, " elements"
            )
        var count = rows.space.numel
        var is_small = k * 4 <= n and k <= 256
        # Many rows share the threads, or the threads share each row.
        var threads = 1 if count >= Int(call.threads) else Int(call.threads)

        def some_rows(start: Int, end: Int) {imm}:
            var memory = List[Scalar[packed]](
                length=k if is_small else 2 * n, fill=0
            )
            var numbers = Data[packed](
                unsafe_from_address=Int(memory.unsafe_ptr())
            )
            var cursor = Cursor(rows.space, start)
            for _ in range(start, end):
                var offsets = cursor.offsets
                var row = input.unsafe_offset(offsets[2])
                var sorted = numbers
                if is_small:
                    first_of_row(row, strides[2], n, k, descending, numbers)
                else:
                    sorted = sort_row(
                        call, row, strides[2], n, descending, numbers, threads
                    )
                for j in range(k):
                    var position = position_of[storage](sorted.unsafe_load(j))
                    values.unsafe_store(
                        offsets[0] + j * strides[0],
                        row.unsafe_load(position * strides[2]),
                    )
                    indices.unsafe_store(
                        offsets[1] + j * strides[1], Int64(position)
                    )
                cursor.advance(rows.space)
            _ = memory^

        var work = n // 8 if is_small else n
        if threads > 1:
            some_rows(0, count)
        else:
            parallel_ranges(call, count, GRAIN // max(work, 1), some_rows)
