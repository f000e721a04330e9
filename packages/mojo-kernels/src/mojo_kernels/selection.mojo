"""Order statistics along a dimension: the element that would stand at a place of the sorted row, without sorting it.

Elements become the unsigned numbers by which radix.mojo sorts. On CPUs a row's numbers are told apart by their bytes, from
the highest on, and only those that share all bytes so far with the wanted one are kept; on GPUs, where a block handles a row,
by their bits, and nothing is stored.
"""

from max.gpu import block_idx, thread_idx
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import (
    MAX_GPU_DIMENSIONS,
    Cursor,
    IndexSpace,
    OffsetCalculator,
    parallel_ranges,
)
from mojo_kernels.math import unsigned_type
from mojo_kernels.pointwise.function import storage_type
from mojo_kernels.radix import RADIX, sort_key
from mojo_kernels.reduction.plan import wrap_dimension
from mojo_kernels.reduction.rows import ROW_BLOCK, gpu_context, row_sum
from std.sys.info import has_accelerator, simd_width_of, size_of
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 8192
"""Elements that are worth a thread."""
comptime FEW = 24
"""So few numbers are sorted."""
comptime KTH = 0
"""The element at a given place."""
comptime MEDIAN = 1
"""The lower median; the first NaN, if there is one."""
comptime NAN_MEDIAN = 2
"""The lower median of what is not NaN."""


@inline(.always)
def _place(kind: Int, k: Int, n: Int, missing: Int) -> Int:
    """Where the wanted element would stand in the sorted row, of whose `n` elements the last `missing` are NaN.
    """
    if kind == KTH:
        return k
    if kind == MEDIAN and missing > 0:
        return n - missing
    return max(n - missing - 1, 0) // 2


def _select[
    key: DType
](keys: Data[key], n: Int, place: Int) -> Tuple[Scalar[key], Int]:
    """The number at a place of the sorted numbers, and how many of its equals stand before it. The numbers are moved.
    """
    var count = n
    var rest = place
    var counts = Array[Int, RADIX](fill=0)
    var shift = size_of[key]() * 8
    while count > FEW and shift > 0:
        shift -= 8
        var bits = Scalar[key](shift)

        @inline(.always)
        def digit(i: Int) {imm} -> Int:
            return Int((keys.unsafe_load(i) >> bits).cast[DType.uint8]())

        for d in range(RADIX):
            counts.unsafe_get(d) = 0
        for i in range(count):
            counts.unsafe_get(digit(i)) += 1
        var wanted = 0
        while rest >= counts.unsafe_get(wanted):
            rest -= counts.unsafe_get(wanted)
            wanted += 1
        if counts.unsafe_get(wanted) == count:
            continue
        var kept = 0
        for i in range(count):
            # Written whether it is kept or not: that is quicker than a branch.
            var number = keys.unsafe_load(i)
            var matches = digit(i) == wanted
            keys.unsafe_store(kept, number)
            kept += Int(matches)
        count = kept
    if shift == 0:
        return keys.unsafe_load(0), rest
    for i in range(1, count):
        var number = keys.unsafe_load(i)
        var j = i
        while j > 0 and keys.unsafe_load(j - 1) > number:
            keys.unsafe_store(j, keys.unsafe_load(j - 1))
            j -= 1
        keys.unsafe_store(j, number)
    var found = keys.unsafe_load(rest)
    var before = 0
    while before < rest and keys.unsafe_load(rest - before - 1) == found:
        before += 1
    return found, before


@fieldwise_init
struct _Row[dtype: DType](TrivialRegisterPassable):
    """The elements of a row as numbers."""

    comptime key = unsigned_type[Self.dtype]()
    var data: Data[Self.dtype]
    var stride: Int
    var n: Int

    @inline(.always)
    def load[w: Int](self, i: Int) -> SIMD[Self.key, w]:
        """The numbers at positions `i` to `i + w - 1`, which are neighbours in memory where `w` > 1.
        """
        return sort_key(self.data.unsafe_load[width=w](i * self.stride), False)

    def position(self, number: Scalar[Self.key], before: Int) -> Int:
        """Where a number stands of which `before` equals stand before it."""
        comptime w = simd_width_of[Self.dtype]() * 2
        var rest = before
        var i = 0
        if self.stride == 1 and before == 0:
            while (
                i + w <= self.n
                and not self.load[w](i)
                .eq(SIMD[Self.key, w](number))
                .reduce_or()
            ):
                i += w
        while True:
            if self.load[1](i) == number:
                if rest == 0:
                    return i
                rest -= 1
            i += 1

    def find(self, kind: Int, k: Int, keys: Data[Self.key]) -> Int:
        """The position of the wanted element; `keys` is room for the row."""
        comptime w = simd_width_of[Self.dtype]()
        var missing = 0
        var i = 0
        if self.stride == 1:
            while i + w <= self.n:
                keys.unsafe_store(i, self.load[w](i))
                i += w
        while i < self.n:
            keys.unsafe_store(i, self.load[1](i))
            i += 1
        comptime if Self.dtype.is_floating_point():
            if kind != KTH:
                for j in range(self.n):
                    missing += Int(keys.unsafe_load(j) == Scalar[Self.key].MAX)
        var found = _select(keys, self.n, _place(kind, k, self.n, missing))
        return self.position(found[0], found[1])


def _select_block[
    dtype: DType
](
    values: Data[dtype],
    indices: Data[DType.int64],
    input: Data[dtype],
    rows: OffsetCalculator[3, DType.uint64],
    stride: Int64,
    n: Int64,
    kind: Int64,
    k: Int64,
):
    """One row per block: the number bit by bit, then its position bit by bit.
    """
    comptime key = unsigned_type[dtype]()
    var offsets = rows.offsets(UInt64(block_idx.x))
    var length = Int(n)
    var row = _Row[dtype](input.unsafe_offset(offsets[2]), Int(stride), length)
    var missing = 0
    comptime if dtype.is_floating_point():

        def is_nan[w: Int](i: Int) {imm} -> SIMD[DType.int64, w]:
            return (
                row.load[w](i)
                .eq(SIMD[key, w](Scalar[key].MAX))
                .cast[DType.int64]()
            )

        missing = Int(row_sum[1, DType.int64](length, is_nan))
    var rest = _place(Int(kind), Int(k), length, missing)
    var number = Scalar[key](0)
    for bit in range(size_of[dtype]() * 8 - 1, -1, -1):
        var shift = Scalar[key](bit)

        def is_less[w: Int](i: Int) {imm} -> SIMD[DType.int64, w]:
            return (
                (row.load[w](i) >> shift)
                .eq(SIMD[key, w](number >> shift))
                .cast[DType.int64]()
            )

        var less = Int(row_sum[1, DType.int64](length, is_less))
        if rest >= less:
            rest -= less
            number |= Scalar[key](1) << shift
    # The first position up to which more than `rest` elements equal the number.
    var low = 0
    var high = length - 1
    while low < high:
        var middle = (low + high) // 2

        def equals[w: Int](i: Int) {imm} -> SIMD[DType.int64, w]:
            return row.load[w](i).eq(SIMD[key, w](number)).cast[DType.int64]()

        if Int(row_sum[1, DType.int64](middle + 1, equals)) > rest:
            high = middle
        else:
            low = middle + 1
    if thread_idx.x == 0:
        values.unsafe_store(offsets[0], row.data.unsafe_load(low * row.stride))
        indices.unsafe_store(offsets[1], Int64(low))


def select[dtype: DType](call: KernelCall) raises:
    """An order statistic along a dimension and its position, the first of those of equal elements that sort stably there.

    Tensors: values and positions (int64), of the input's sizes, without the dimension or with one element along it; the
    input. Any strides. Scalars: the dimension; 0 for the element at a place, 1 for the lower median or the first NaN, 2 for
    the lower median of what is not NaN; the place from 1, if it is the first. NaN is larger than every number.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.

    Raises:
        IndexError: The dimension is out of range.
        NotImplementedError: On GPUs, rows over more than 8 dimensions that do not merge.
    """
    comptime storage = storage_type[dtype]()
    var source = call.tensor(2)
    var ndim = Int(source.ndim)
    var dimension = wrap_dimension(call.int_scalar(0), ndim)
    var kind = call.int_scalar(1)
    var k = call.int_scalar(2) - 1 if kind == KTH else 0
    if call.tensor(0).numel == 0:
        return
    var space = IndexSpace[3]()
    var n = 1
    var stride = 1
    var kept = Int(call.tensor(0).ndim) == ndim
    for d in range(ndim):
        if d == dimension:
            n = source.size(d)
            stride = source.stride(d)
            continue
        var e = d if kept or d < dimension else d - 1
        var strides = StaticTuple[Int, 3]()
        strides[0] = call.tensor(0).stride(e)
        strides[1] = call.tensor(1).stride(e)
        strides[2] = source.stride(d)
        space.append(source.size(d), strides)
    var values = call.tensor(0).pointer[storage]()
    var indices = call.tensor(1).pointer[DType.int64]()
    var input = source.pointer[storage]()
    comptime if has_accelerator():
        if space.ndim > MAX_GPU_DIMENSIONS:
            raise Error(
                "NotImplementedError: rows over ",
                space.ndim,
                " dimensions that do not merge; call contiguous() first",
            )
        gpu_context(call).enqueue_function[_select_block[storage]](
            values,
            indices,
            input,
            OffsetCalculator[3, DType.uint64](space),
            Int64(stride),
            Int64(n),
            Int64(kind),
            Int64(k),
            grid_dim=space.numel,
            block_dim=ROW_BLOCK,
        )
    else:

        def some_rows(start: Int, end: Int) {imm}:
            var memory = List[Scalar[unsigned_type[storage]()]](
                length=n, fill=0
            )
            var keys = Data[unsigned_type[storage]()](
                unsafe_from_address=Int(memory.unsafe_ptr())
            )
            var cursor = Cursor(space, start)
            for _ in range(start, end):
                var row = _Row[storage](
                    input.unsafe_offset(cursor.offsets[2]), stride, n
                )
                var position = row.find(kind, k, keys)
                values.unsafe_store(
                    cursor.offsets[0], row.data.unsafe_load(position * stride)
                )
                indices.unsafe_store(cursor.offsets[1], Int64(position))
                cursor.advance(space)
            _ = memory^

        parallel_ranges(call, space.numel, GRAIN // max(n, 1), some_rows)
