"""Running sums and products along a dimension."""

from max.gpu import block_idx, thread_idx
from max.gpu.sync import barrier
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.copy import convert
from mojo_kernels.layout import OffsetCalculator
from mojo_kernels.pointwise.function import (
    from_storage,
    storage_type,
    to_storage,
)
from mojo_kernels.reduction.plan import wrap_dimension
from mojo_kernels.reduction.rows import ROW_BLOCK, Rows, gpu_context
from std.memory import AddressSpace, stack_allocation
from std.sys.info import has_accelerator
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
    """The sum or product of two running values."""
    comptime if op == "cumsum":
        return a + b
    else:
        return a * b


@inline(.always)
def _neutral[op: StaticString, dtype: DType]() -> Scalar[dtype]:
    """The running value before the first element."""
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
    else:
        data.unsafe_store(offset, value.cast[storage_type[out]()]())


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
    """The sum or product of the elements up to each one.

    Tensors: output, input, of the same sizes and any strides. Scalars: the dimension.

    Parameters:
        op: "cumsum" or "cumprod".
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

        def row[across: Int](offsets: StaticTuple[Int, 2]) {imm}:
            comptime w = max(across, 1)
            var running = SIMD[accumulator, w](_neutral[op, accumulator]())
            for i in range(n):
                running = _join[op](
                    running,
                    _read[dtype, out, w](input, offsets[1] + i * strides[1]),
                )
                _write[out](output, offsets[0] + i * strides[0], running)

        rows.each[accumulator](call, GRAIN, row)
