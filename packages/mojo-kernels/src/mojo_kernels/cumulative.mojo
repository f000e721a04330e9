"""Running sums, products, extrema and logarithms of sums of exponentials along a dimension."""

from max.gpu import block_idx, thread_idx
from max.gpu.sync import barrier
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.copy import convert
from mojo_kernels.layout import OffsetCalculator
from mojo_kernels.math import LN_2, exp, log1p, narrow
from mojo_kernels.pointwise.function import (
    from_storage,
    storage_type,
    to_storage,
)
from mojo_kernels.reduction.plan import wrap_dimension
from mojo_kernels.reduction.rows import ROW_BLOCK, Rows, gpu_context
from mojo_kernels.reduction.transposed_rows import each_transposed_row
from std.memory import AddressSpace, stack_allocation
from std.sys.info import has_accelerator, simd_width_of
from std.utils.numerics import inf, isnan
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 16384
"""Elements that are worth a thread."""


@inline(.always)
def _accumulator[out: DType]() -> DType:
    """The type of the running value: float64 for floats on CPUs as in torch, float32 on GPUs, int64 for integers.
    """
    comptime if out.is_floating_point():
        comptime if out == DType.float64 or not has_accelerator():
            return DType.float64
        else:
            return DType.float32
    else:
        return DType.int64


@inline(.always)
def _join[
    op: StaticString, dtype: DType, w: SIMDLength
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The running value of two ranges that follow each other."""
    comptime if op == "cumsum":
        return a + b
    elif op == "cumprod":
        return a * b
    else:
        # Equal infinities have no difference.
        var larger = a.gt(b).select(a, b)
        var smaller = a.gt(b).select(b, a)
        return a.eq(b).select(a + LN_2, larger + log1p(exp(smaller - larger)))


@inline(.always)
def _neutral[op: StaticString, dtype: DType]() -> Scalar[dtype]:
    """The running value before the first element."""
    comptime if op == "logcumsumexp":
        return -inf[dtype]()
    else:
        return 0 if op == "cumsum" else 1


@inline(.always)
def _read[
    dtype: DType, out: DType, w: Int
](data: Data[storage_type[dtype]()], offset: Int) -> SIMD[
    _accumulator[out](), w
]:
    """Loads elements, converts them to the output's type as torch does, then to the accumulator's.
    """
    var value = convert[out](
        from_storage[dtype](data.unsafe_load[width=w](offset))
    )
    return to_storage(value).cast[_accumulator[out]()]()


@inline(.always)
def _write[
    out: DType, dtype: DType, w: SIMDLength
](data: Data[storage_type[out]()], offset: Int, value: SIMD[dtype, w]):
    """Stores running values."""
    comptime if out == DType.bool:
        data.unsafe_store(offset, (~value.eq(0)).cast[storage_type[out]()]())
    elif out.is_half_float():
        # Rounded twice, as in torch: no instruction makes half types of float64.
        data.unsafe_store(
            offset,
            narrow[storage_type[out]()](value.cast[DType.float32]()),
        )
    else:
        data.unsafe_store(offset, value.cast[storage_type[out]()]())


@inline(.always)
def _scan[
    op: StaticString, dtype: DType, w: SIMDLength
](values: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The running values of the lanes of a vector (Hillis and Steele)."""
    comptime n = Int(w)
    comptime before = SIMD[dtype, n](_neutral[op, dtype]())
    var result = values._refine[new_size=n]()
    comptime for round in range(4):
        comptime distance = 1 << round
        comptime if distance < n:
            result = _join[op](
                before.join(result)
                .slice[n, offset=n - distance]()
                ._refine[new_size=n](),
                result,
            )
    return result._refine[new_size=w]()


def _scan_block[
    op: StaticString, dtype: DType, out: DType
](
    output: Data[storage_type[out]()],
    output_stride: Int64,
    input: Data[storage_type[dtype]()],
    input_stride: Int64,
    n: Int64,
    rows: OffsetCalculator[2, DType.uint64],
):
    """Scans one row per block, `ROW_BLOCK` elements at a time (Hillis and Steele).
    """
    comptime accumulator = _accumulator[out]()
    var shared = stack_allocation[
        2 * ROW_BLOCK, Scalar[accumulator], address_space=AddressSpace.SHARED
    ]()
    var offsets = rows.offsets(UInt64(block_idx.x))
    var thread = Int(thread_idx.x)
    var before = _neutral[op, accumulator]()
    var start = 0
    while start < Int(n):
        var i = start + thread
        var value = _neutral[op, accumulator]()
        if i < Int(n):
            value = _read[dtype, out, 1](
                input, offsets[1] + i * Int(input_stride)
            )
        shared.unsafe_store(thread, value)
        barrier()
        var source = 0
        var distance = 1
        while distance < ROW_BLOCK:
            var joined = shared.unsafe_load(source + thread)
            if thread >= distance:
                joined = _join[op](
                    shared.unsafe_load(source + thread - distance), joined
                )
            source = ROW_BLOCK - source
            shared.unsafe_store(source + thread, joined)
            barrier()
            distance *= 2
        if i < Int(n):
            _write[out](
                output,
                offsets[0] + i * Int(output_stride),
                _join[op](before, shared.unsafe_load(source + thread)),
            )
        before = _join[op](before, shared.unsafe_load(source + ROW_BLOCK - 1))
        barrier()
        start += ROW_BLOCK


def cumulative[
    op: StaticString, dtype: DType, out: DType
](call: KernelCall) raises:
    """The sum, product or logarithm of the sum of exponentials of the elements up to each one.

    Tensors: output, input, of the same sizes and any strides. Scalars: the dimension.

    Parameters:
        op: "cumsum", "cumprod" or, for floating types, "logcumsumexp".
        dtype: The input's element type.
        out: The output's element type; elements are converted to it first.

    Args:
        call: The call.

    Raises:
        IndexError: The dimension is out of range.
        NotImplementedError: On GPUs, rows over more than 8 dimensions that do not merge.
    """
    var dimension = wrap_dimension(call.int_scalar(0), Int(call.tensor(0).ndim))
    if call.tensor(0).numel == 0:
        return
    var rows = Rows[2](call, dimension)
    var output = call.tensor(0).pointer[storage_type[out]()]()
    var input = call.tensor(1).pointer[storage_type[dtype]()]()
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_scan_block[op, dtype, out]](
            output,
            Int64(rows.strides[0]),
            input,
            Int64(rows.strides[1]),
            Int64(rows.length),
            rows.calculator(),
            grid_dim=rows.space.numel,
            block_dim=ROW_BLOCK,
        )
    else:
        comptime accumulator = _accumulator[out]()
        var strides = rows.strides
        var n = rows.length

        @inline(.always)
        def scan[
            across: Int, source: DType
        ](
            y: Data[storage_type[out]()],
            x: Data[storage_type[source]()],
            stride: Int,
        ) {imm}:
            comptime w = max(across, 1)
            var running = SIMD[accumulator, w](_neutral[op, accumulator]())
            var i = 0
            comptime if across == 0:
                comptime lanes = simd_width_of[accumulator]()
                var before = _neutral[op, accumulator]()
                while i + lanes <= n:
                    var values = _join[op](
                        SIMD[accumulator, lanes](before),
                        _scan[op](_read[source, out, lanes](x, i)),
                    )
                    _write[out](y, i, values)
                    before = values[lanes - 1]
                    i += lanes
                running = before
            while i < n:
                running = _join[op](
                    running, _read[source, out, w](x, i * stride)
                )
                _write[out](y, i * strides[0], running)
                i += 1

        def row[across: Int](offsets: StaticTuple[Int, 2]) {imm}:
            scan[across, dtype](
                output.unsafe_offset(offsets[0]),
                input.unsafe_offset(offsets[1]),
                strides[1],
            )

        def moved_row(offsets: StaticTuple[Int, 2]) {imm}:
            var at = output.unsafe_offset(offsets[0])
            scan[0, out](at, at, 1)

        def convert_input[
            w: Int
        ](values: SIMD[storage_type[dtype](), w]) {} -> SIMD[
            storage_type[out](), w
        ]:
            return to_storage(convert[out](from_storage[dtype](values)))

        if each_transposed_row(
            rows, call, GRAIN, input, output, convert_input, moved_row
        ):
            return
        rows.each[accumulator](call, GRAIN, row)


@inline(.always)
def _takes_over[
    op: StaticString, dtype: DType, w: SIMDLength
](later: SIMD[dtype, w], earlier: SIMD[dtype, w]) -> SIMD[DType.bool, w]:
    """Whether an element replaces the extremum before it: NaN always, equals too.
    """
    var better: SIMD[DType.bool, w]
    comptime if op == "cummax":
        better = later.ge(earlier)
    else:
        better = later.le(earlier)
    comptime if dtype.is_floating_point():
        return isnan(later) | (better & ~isnan(earlier))
    else:
        return better


def _extremum_block[
    op: StaticString, dtype: DType
](
    values: Data[dtype],
    indices: Data[DType.int64],
    input: Data[dtype],
    strides: StaticTuple[Int64, 3],
    n: Int64,
    rows: OffsetCalculator[3, DType.uint64],
):
    """Scans one row per block, `ROW_BLOCK` elements at a time; position -1 stands for nothing.
    """
    var shared = stack_allocation[
        2 * ROW_BLOCK, Scalar[dtype], address_space=AddressSpace.SHARED
    ]()
    var positions = stack_allocation[
        2 * ROW_BLOCK, Int64, address_space=AddressSpace.SHARED
    ]()
    var offsets = rows.offsets(UInt64(block_idx.x))
    var thread = Int(thread_idx.x)
    var before = Scalar[dtype](0)
    var before_position = Int64(-1)
    var start = 0
    while start < Int(n):
        var i = start + thread
        var value = Scalar[dtype](0)
        var position = Int64(-1)
        if i < Int(n):
            value = input.unsafe_load(offsets[2] + i * Int(strides[2]))
            position = Int64(i)
        shared.unsafe_store(thread, value)
        positions.unsafe_store(thread, position)
        barrier()
        var source = 0
        var distance = 1
        while distance < ROW_BLOCK:
            value = shared.unsafe_load(source + thread)
            position = positions.unsafe_load(source + thread)
            if thread >= distance:
                var earlier = shared.unsafe_load(source + thread - distance)
                if position >= 0 and not Bool(_takes_over[op](value, earlier)):
                    value = earlier
                    position = positions.unsafe_load(source + thread - distance)
            source = ROW_BLOCK - source
            shared.unsafe_store(source + thread, value)
            positions.unsafe_store(source + thread, position)
            barrier()
            distance *= 2
        if i < Int(n):
            value = shared.unsafe_load(source + thread)
            position = positions.unsafe_load(source + thread)
            if before_position >= 0 and not Bool(
                _takes_over[op](value, before)
            ):
                value = before
                position = before_position
            values.unsafe_store(offsets[0] + i * Int(strides[0]), value)
            indices.unsafe_store(offsets[1] + i * Int(strides[1]), position)
        # Of a row's last piece nobody reads the extremum.
        var last = shared.unsafe_load(source + ROW_BLOCK - 1)
        if before_position < 0 or Bool(_takes_over[op](last, before)):
            before = last
            before_position = positions.unsafe_load(source + ROW_BLOCK - 1)
        barrier()
        start += ROW_BLOCK


def extremum[op: StaticString, dtype: DType](call: KernelCall) raises:
    """The maximum or minimum of the elements up to each one, and its last position. NaN wins.

    Tensors: values, positions (int64), input, of the same sizes and any strides. Scalars: the dimension.

    Parameters:
        op: "cummax" or "cummin".
        dtype: The element type.

    Args:
        call: The call.

    Raises:
        IndexError: The dimension is out of range.
        NotImplementedError: On GPUs, rows over more than 8 dimensions that do not merge.
    """
    comptime storage = storage_type[dtype]()
    var dimension = wrap_dimension(call.int_scalar(0), Int(call.tensor(0).ndim))
    if call.tensor(0).numel == 0:
        return
    var rows = Rows[3](call, dimension)
    var values = call.tensor(0).pointer[storage]()
    var indices = call.tensor(1).pointer[DType.int64]()
    var input = call.tensor(2).pointer[storage]()
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_extremum_block[op, storage]](
            values,
            indices,
            input,
            StaticTuple[Int64, 3](
                Int64(rows.strides[0]),
                Int64(rows.strides[1]),
                Int64(rows.strides[2]),
            ),
            Int64(rows.length),
            rows.calculator(),
            grid_dim=rows.space.numel,
            block_dim=ROW_BLOCK,
        )
    else:
        var strides = rows.strides
        var n = rows.length

        def row[across: Int](offsets: StaticTuple[Int, 3]) {imm}:
            comptime w = max(across, 1)
            var best = input.unsafe_load[width=w](offsets[2])
            var position = SIMD[DType.int64, w](0)
            for i in range(n):
                var value = input.unsafe_load[width=w](
                    offsets[2] + i * strides[2]
                )
                var newer = _takes_over[op](value, best)
                best = newer.select(value, best)
                position = newer.select(
                    SIMD[DType.int64, w](Int64(i)), position
                )
                values.unsafe_store(offsets[0] + i * strides[0], best)
                indices.unsafe_store(offsets[1] + i * strides[1], position)

        rows.each[storage](call, GRAIN, row)
