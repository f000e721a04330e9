"""Strided copies: of bits within a dtype, and with conversion between dtypes."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import Cursor, IndexSpace, ceil_div, parallel_ranges
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from std.collections import Array
from std.sys.info import has_accelerator, size_of
from std.utils.static_tuple import StaticTuple

comptime _PARALLEL_BYTES = 262144
"""How many bytes of a transposition are worth a thread."""


@inline(.always)
def convert[
    source: DType, w: SIMDLength, //, destination: DType
](x: SIMD[source, w]) -> SIMD[destination, w]:
    """Converts as torch does: floats toward 0 to integers, anything but 0 to True, to half types through float32.

    Parameters:
        source: The type of the values.
        w: The vector width.
        destination: The type to convert to.

    Args:
        x: The values.

    Returns:
        The converted values. Floats outside the range of an integer type give what the target's conversion to
        32 (64) bits gives, cut to the type's size.
    """
    comptime if source == destination:
        return x._refine[destination]()
    elif destination == DType.bool:
        # Not `ne`, which is False for NaN.
        return (~x.eq(SIMD[source, w](0)))._refine[destination]()
    elif source == DType.bool:
        return x.cast[DType.uint8]().cast[destination]()
    elif destination.is_half_float() or source.is_half_float():
        comptime if source == DType.float32 or destination == DType.float32:
            return x.cast[destination]()
        else:
            return convert[destination](x.cast[DType.float32]())
    elif source.is_floating_point() and destination.is_integral():
        comptime if size_of[destination]() < 4:
            return x.cast[DType.int32]().cast[destination]()
        elif destination == DType.uint32:
            return x.cast[DType.int64]().cast[destination]()
        else:
            return x.cast[destination]()
    else:
        return x.cast[destination]()


@fieldwise_init
struct _Convert[source: DType, destination: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.source
    comptime Rest = Self.source
    comptime Output = Self.destination
    comptime cost = 1

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return convert[Self.destination](a)


def cast[source: DType, destination: DType](call: KernelCall) raises:
    """Copies with conversion.

    Parameters:
        source: The input's type.
        destination: The output's type.

    Args:
        call: Tensors: output, input, with the same sizes. No scalars.
    """
    elementwise(call, _Convert[source, destination]())


def copy[dtype: DType](call: KernelCall) raises:
    """Copies elements of 1, 2, 4 or 8 bytes.

    Parameters:
        dtype: An unsigned integer type of the elements' size.

    Args:
        call: Tensors: output, input, with the same sizes and dtype. No scalars.
    """
    comptime if not has_accelerator():
        if _transpose[dtype](call):
            return
    elementwise(call, _Convert[dtype, dtype]())


# ---- transposition on the CPU ---------------------------------------------------------------------------------------


@inline(.always)
def _tile[dtype: DType]() -> Int:
    """The edge of the square that is transposed in registers: a cache line, but at most 16.
    """
    return min(16, 64 // size_of[dtype]())


@inline(.always)
def _transpose_tile[
    dtype: DType
](
    output: Data[dtype],
    output_stride: Int,
    input: Data[dtype],
    input_stride: Int,
):
    """Transposes a full tile whose rows are vectors in the input and in the output.

    The perfect shuffle of rows i and i + n/2, log2(n) times, takes row r column c to row c column r.
    """
    comptime n = _tile[dtype]()
    var rows = StaticTuple[SIMD[dtype, n], n](fill=0)
    comptime for i in range(n):
        rows[i] = input.unsafe_load[width=n](i * input_stride)
    comptime rounds = 4 if n == 16 else 3
    comptime for _ in range(rounds):
        var shuffled = StaticTuple[SIMD[dtype, n], n](fill=0)
        comptime for i in range(n // 2):
            var pair = rows[i].interleave(rows[i + n // 2])
            shuffled[2 * i] = rebind[SIMD[dtype, n]](pair.slice[n, offset=0]())
            shuffled[2 * i + 1] = rebind[SIMD[dtype, n]](
                pair.slice[n, offset=n]()
            )
        rows = shuffled
    comptime for i in range(n):
        output.unsafe_store(i * output_stride, rows[i])


def _transpose[dtype: DType](call: KernelCall) -> Bool:
    """Copies if the output's fastest dimension is not the input's: by tiles that are vectors on both sides.

    Returns:
        False, with nothing done, for other layouts.
    """
    comptime n = _tile[dtype]()
    var space = IndexSpace[2](call)
    if space.numel == 0 or space.ndim < 2:
        return False
    var last = space.ndim - 1
    if space.stride(last, 0) != 1 or space.stride(last, 1) == 1:
        return False
    var along = -1
    for d in range(last):
        if space.stride(d, 1) == 1 and space.sizes.unsafe_get(d) >= n:
            along = d
    if along < 0 or space.sizes.unsafe_get(last) < n:
        return False

    var columns = space.sizes.unsafe_get(last)
    var column_stride = space.stride(last, 1)
    var rows = space.sizes.unsafe_get(along)
    var row_stride = space.stride(along, 0)
    var outer = IndexSpace[2]()
    for d in range(last):
        if d != along:
            outer.append(
                space.sizes.unsafe_get(d),
                StaticTuple[Int, 2](space.stride(d, 0), space.stride(d, 1)),
            )
    var output = call.tensor(0).pointer[dtype]()
    var input = call.tensor(1).pointer[dtype]()
    var bands = ceil_div(rows, n)

    def run(start: Int, end: Int) {imm}:
        for band in range(start, end):
            var offsets = outer.offsets(band // bands)
            var first_row = band % bands * n
            var height = min(n, rows - first_row)
            var target = output.unsafe_offset(
                offsets[0] + first_row * row_stride
            )
            var source = input.unsafe_offset(offsets[1] + first_row)
            var column = 0
            if height == n:
                while column + n <= columns:
                    _transpose_tile(
                        target.unsafe_offset(column),
                        row_stride,
                        source.unsafe_offset(column * column_stride),
                        column_stride,
                    )
                    column += n
            for c in range(column, columns):
                for r in range(height):
                    target.unsafe_store(
                        r * row_stride + c,
                        source.unsafe_load(c * column_stride + r),
                    )

    var band_bytes = n * columns * size_of[dtype]()
    parallel_ranges(
        call,
        outer.numel * bands,
        ceil_div(_PARALLEL_BYTES, band_bytes),
        run,
    )
    return True
