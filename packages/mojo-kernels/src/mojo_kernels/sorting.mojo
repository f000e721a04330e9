"""Stable sorting along a dimension, whole or of the first k elements. NaN is larger than every number."""

from max.gpu import block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import OffsetCalculator, ceil_div
from mojo_kernels.pointwise.function import storage_type
from mojo_kernels.reduction.plan import wrap_dimension
from mojo_kernels.reduction.rows import Rows, gpu_context
from std.sys.info import has_accelerator
from std.utils.numerics import isnan
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 2048
"""Elements that are worth a thread."""
comptime RUN = 16
"""Elements that are sorted by insertion before runs are merged."""
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


def _first[
    dtype: DType
](row: _Row[dtype], n: Int, k: Int, best: Data[DType.int64]):
    """Finds the positions of the first `k` elements by insertion into a sorted list.
    """
    var found = 0
    for i in range(n):
        if found == k and not row.precedes(i, Int(best.unsafe_load(k - 1))):
            continue
        var place = min(found, k - 1)
        while place > 0 and row.precedes(i, Int(best.unsafe_load(place - 1))):
            best.unsafe_store(place, best.unsafe_load(place - 1))
            place -= 1
        best.unsafe_store(place, Int64(i))
        found = min(found + 1, k)


def _merge_sort[
    dtype: DType
](
    row: _Row[dtype],
    n: Int,
    positions: Data[DType.int64],
    scratch: Data[DType.int64],
) -> Data[DType.int64]:
    """Sorts all positions, and returns which of the two arrays holds them."""
    for start in range(0, n, RUN):
        for i in range(start, min(start + RUN, n)):
            var place = i
            while place > start and row.precedes(
                i, Int(positions.unsafe_load(place - 1))
            ):
                positions.unsafe_store(place, positions.unsafe_load(place - 1))
                place -= 1
            positions.unsafe_store(place, Int64(i))
    var source = positions
    var target = scratch
    var length = RUN
    while length < n:
        for start in range(0, n, 2 * length):
            var left = start
            var middle = min(start + length, n)
            var right = middle
            var end = min(start + 2 * length, n)
            for i in range(start, end):
                var takes_left = right == end or (
                    left < middle
                    and row.precedes(
                        Int(source.unsafe_load(left)),
                        Int(source.unsafe_load(right)),
                    )
                )
                if takes_left:
                    target.unsafe_store(i, source.unsafe_load(left))
                    left += 1
                else:
                    target.unsafe_store(i, source.unsafe_load(right))
                    right += 1
        swap(source, target)
        length *= 2
    return source


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
        NotImplementedError: On GPUs, rows over more than 8 dimensions that do not merge.
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

        def row[across: Int](offsets: StaticTuple[Int, 3]) {imm}:
            for r in range(max(across, 1)):
                var line = _Row[storage](
                    input.unsafe_offset(offsets[2] + r), strides[2], descending
                )
                var memory = List[Int64](
                    length=k if _is_small(k, n) else 2 * n, fill=0
                )
                var positions = Data[DType.int64](
                    unsafe_from_address=Int(memory.unsafe_ptr())
                )
                var sorted = positions
                if _is_small(k, n):
                    _first(line, n, k, positions)
                else:
                    sorted = _merge_sort(
                        line, n, positions, positions.unsafe_offset(n)
                    )
                for j in range(k):
                    var position = sorted.unsafe_load(j)
                    values.unsafe_store(
                        offsets[0] + r + j * strides[0],
                        line.data.unsafe_load(Int(position) * strides[2]),
                    )
                    indices.unsafe_store(
                        offsets[1] + r + j * strides[1], position
                    )
                _ = memory^

        rows.each[storage](call, max(GRAIN * k // n, 1), row)


@inline(.always)
def _is_small(k: Int, n: Int) -> Bool:
    """Whether insertion finds the first `k` of `n` elements sooner than sorting all.
    """
    return k * 8 <= n and k <= 256
