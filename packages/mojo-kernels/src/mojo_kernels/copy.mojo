"""Strided copies: of bits within a dtype, and with conversion between dtypes."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import (
    MAX_GPU_DIMENSIONS,
    IndexSpace,
    OffsetCalculator,
    ceil_div,
    parallel_ranges,
)
from mojo_kernels.math import narrow
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from mojo_kernels.transposition import tile_edge, transpose_band
from max.gpu import block_idx, thread_idx
from max.gpu.host import DeviceContext
from max.gpu.sync import barrier
from std.memory import AddressSpace, stack_allocation
from std.sys.info import has_accelerator, size_of
from std.utils.static_tuple import StaticTuple

comptime _PARALLEL_BYTES = 262144
"""How many bytes of a transposition are worth a thread of the CPU."""
comptime _GPU_TILE = 32
"""The edge of the square that a GPU block transposes."""
comptime _GPU_BLOCK = 256
"""Threads of the block."""


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
            return narrow[destination](x)
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
    var space = IndexSpace[2](call)
    var plane = _Plane(space)
    if plane.rows >= tile_edge[dtype]() and plane.columns >= tile_edge[dtype]():
        comptime if has_accelerator():
            if plane.outer.ndim <= MAX_GPU_DIMENSIONS:
                _transpose_on_gpu[dtype](call, plane)
                return
        else:
            _transpose_on_cpu[dtype](call, plane)
            return
    elementwise(call, _Convert[dtype, dtype]())


# ---- transposition --------------------------------------------------------------------------------------------------


struct _Plane:
    """The two dimensions of a copy whose output runs along one and whose input along the other.

    Element (row, column) lies at `row * row_stride + column` of the output and at `row + column * column_stride` of the
    input.
    """

    var rows: Int
    """0 where the copy is no transposition."""
    var columns: Int
    var row_stride: Int
    var column_stride: Int
    var outer: IndexSpace[2]
    """The other dimensions of output and input."""

    def __init__(out self, space: IndexSpace[2]):
        """Looks for the plane in the index space of output and input."""
        self.rows = 0
        self.columns = 0
        self.row_stride = 0
        self.column_stride = 0
        self.outer = IndexSpace[2]()
        var last = space.ndim - 1
        if space.numel == 0 or last < 1:
            return
        if space.stride(last, 0) != 1 or space.stride(last, 1) == 1:
            return
        var along = -1
        for d in range(last):
            if space.stride(d, 1) == 1:
                along = d
        if along < 0:
            return
        self.rows = space.sizes.unsafe_get(along)
        self.columns = space.sizes.unsafe_get(last)
        self.row_stride = space.stride(along, 0)
        self.column_stride = space.stride(last, 1)
        for d in range(last):
            if d != along:
                self.outer.append(
                    space.sizes.unsafe_get(d),
                    StaticTuple[Int, 2](space.stride(d, 0), space.stride(d, 1)),
                )


def _transpose_on_cpu[dtype: DType](call: KernelCall, plane: _Plane):
    """Copies by tiles that are vectors on both sides."""
    comptime n = tile_edge[dtype]()
    var output = call.tensor(0).pointer[dtype]()
    var input = call.tensor(1).pointer[dtype]()
    var bands = ceil_div(plane.rows, n)

    def run(start: Int, end: Int) {imm}:
        for band in range(start, end):
            var offsets = plane.outer.offsets(band // bands)
            var first_row = band % bands * n
            var height = min(n, plane.rows - first_row)
            var target = output.unsafe_offset(
                offsets[0] + first_row * plane.row_stride
            )
            var source = input.unsafe_offset(offsets[1] + first_row)

            @inline(.always)
            def load[w: Int](offset: Int) {imm} -> SIMD[dtype, w]:
                return source.unsafe_load[width=w](offset)

            transpose_band(
                target,
                plane.row_stride,
                plane.column_stride,
                height,
                plane.columns,
                load,
            )

    var band_bytes = n * plane.columns * size_of[dtype]()
    parallel_ranges(
        call,
        plane.outer.numel * bands,
        ceil_div(_PARALLEL_BYTES, band_bytes),
        run,
    )


def _transpose_kernel[
    dtype: DType
](
    output: Data[dtype],
    input: Data[dtype],
    rows: Int64,
    columns: Int64,
    row_stride: Int64,
    column_stride: Int64,
    outer: OffsetCalculator[2, DType.uint64],
):
    """One tile per block, through shared memory, so that neighbouring threads read and write neighbours.
    """
    comptime lines = _GPU_BLOCK // _GPU_TILE
    # A column more than the tile has, so that threads of a warp hit different banks.
    comptime pitch = _GPU_TILE + 1
    var tile = stack_allocation[
        _GPU_TILE * pitch, Scalar[dtype], address_space=AddressSpace.SHARED
    ]()
    var row_tiles = ceil_div(Int(rows), _GPU_TILE)
    var column_tiles = ceil_div(Int(columns), _GPU_TILE)
    var rest = Int(block_idx.x)
    var first_column = rest % column_tiles * _GPU_TILE
    rest //= column_tiles
    var first_row = rest % row_tiles * _GPU_TILE
    var offsets = outer.offsets(UInt64(rest // row_tiles))
    var x = Int(thread_idx.x) % _GPU_TILE
    var y = Int(thread_idx.x) // _GPU_TILE
    comptime for j in range(0, _GPU_TILE, lines):
        var row = first_row + x
        var column = first_column + y + j
        if row < Int(rows) and column < Int(columns):
            tile.unsafe_store(
                (y + j) * pitch + x,
                input.unsafe_load(
                    offsets[1] + row + column * Int(column_stride)
                ),
            )
    barrier()
    comptime for j in range(0, _GPU_TILE, lines):
        var row = first_row + y + j
        var column = first_column + x
        if row < Int(rows) and column < Int(columns):
            output.unsafe_store(
                offsets[0] + row * Int(row_stride) + column,
                tile.unsafe_load(x * pitch + y + j),
            )


def _transpose_on_gpu[dtype: DType](call: KernelCall, plane: _Plane) raises:
    """Launches a block per tile."""
    var context = DeviceContext(
        Pointer[NoneType, MutUntrackedOrigin](
            unsafe_from_address=Int(call.device_context)
        )
    )
    context.enqueue_function[_transpose_kernel[dtype]](
        call.tensor(0).pointer[dtype](),
        call.tensor(1).pointer[dtype](),
        Int64(plane.rows),
        Int64(plane.columns),
        Int64(plane.row_stride),
        Int64(plane.column_stride),
        OffsetCalculator[2, DType.uint64](plane.outer),
        grid_dim=plane.outer.numel
        * ceil_div(plane.rows, _GPU_TILE)
        * ceil_div(plane.columns, _GPU_TILE),
        block_dim=_GPU_BLOCK,
    )
