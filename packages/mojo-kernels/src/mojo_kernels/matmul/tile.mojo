"""The register tile: the innermost loop of the packed product."""

from std.memory import bitcast
from std.sys.info import CompilationTarget, simd_width_of
from std.sys.intrinsics import llvm_intrinsic

from mojo_kernels.abi import Data
from mojo_kernels.matmul.matrix import accumulator


struct TileFormat[dtype: DType]:
    """How operands are packed and how large a tile of the result one pass keeps in registers.

    The tile has `ROWS` x `COLUMNS` elements: as many accumulators as leave room
    for a row of B and one broadcast element of A.

    Parameters:
        dtype: The element type of the operands.
    """

    comptime ACCUMULATE = accumulator[Self.dtype]()
    """The type of the sums."""
    comptime DOT_PAIRS = (
        Self.dtype == DType.bfloat16
        and CompilationTarget._has_feature["avx512bf16"]()
    )
    """Whether one instruction multiplies pairs of elements and adds them."""
    comptime GROUP = 2 if Self.DOT_PAIRS else 1
    """Neighbours along the depth that are packed side by side."""
    comptime PACKED = Self.dtype if Self.DOT_PAIRS else Self.ACCUMULATE
    """The element type of packed panels."""
    comptime WIDTH = simd_width_of[Self.ACCUMULATE]()
    """Lanes of an accumulator."""
    comptime VECTORS = 2
    """Vectors per row of the tile."""
    comptime ROWS = 12 if (
        CompilationTarget.has_avx512f() or CompilationTarget.has_neon()
    ) else 6
    """Rows of the tile: 24 accumulators of 32 registers, or 12 of 16."""
    comptime COLUMNS = Self.VECTORS * Self.WIDTH
    """Columns of the tile."""


@inline(.always)
def multiply_add[
    accumulate: DType, packed: DType, width: Int, group: Int
](
    a: Data[packed],
    b: SIMD[packed, width * group],
    sum: SIMD[accumulate, width],
) -> SIMD[accumulate, width]:
    """Adds the products of one element (or pair) of A with a vector of B.

    Parameters:
        accumulate: The type of the sums.
        packed: The type of the operands.
        width: The number of sums.
        group: 1, or 2 for pairs of bfloat16.

    Args:
        a: One group of A.
        b: `width` groups of B.
        sum: The sums so far.

    Returns:
        The new sums.
    """
    comptime if group == 2:
        comptime assert accumulate == DType.float32
        var pair = Data[DType.uint32](unsafe_from_address=Int(a)).unsafe_load()
        var pairs = bitcast[packed, width * group](
            SIMD[DType.uint32, width](pair)
        )
        return llvm_intrinsic[
            "llvm.x86.avx512bf16.dpbf16ps.512", SIMD[accumulate, width]
        ](sum, pairs, b)
    else:
        var element = SIMD[accumulate, width](
            a.unsafe_load().cast[accumulate]()
        )
        var vector = rebind[SIMD[accumulate, width]](b)
        comptime if accumulate.is_floating_point():
            return element.fma(vector, sum)
        else:
            return element * vector + sum


@inline(.always)
def multiply_tile[
    accumulate: DType,
    packed: DType,
    *,
    rows: Int,
    vectors: Int,
    width: Int,
    group: Int = 1,
    row_step: Int,
    depth_step: Int,
    b_step: Int = vectors * width * group,
    adds: Bool = False,
](
    depth: Int,
    a: Data[packed],
    b: Data[packed],
    tile: Data[accumulate],
    tile_stride: Int,
):
    """Multiplies a packed panel of A with a packed panel of B; the sums stay in registers.

    Parameters:
        accumulate: The type of the sums.
        packed: The type of the operands.
        rows: Rows of the tile.
        vectors: Vectors per row of the tile.
        width: Lanes of a vector of sums.
        group: Neighbours along the depth that are packed side by side.
        row_step: Elements from one row of A to the next.
        depth_step: Elements from one group of A to the next along the depth.
        b_step: Elements from one row of B to the next.
        adds: Whether the sums start from what the tile holds.

    Args:
        depth: The number of groups along the depth.
        a: The left panel.
        b: The right panel: `depth` x `vectors * width` groups.
        tile: Where the sums go.
        tile_stride: Elements from one row of the tile to the next.
    """
    comptime Vector = SIMD[accumulate, width]
    var sums = Array[Vector, rows * vectors](fill=Vector(0))
    comptime if adds:
        comptime for i in range(rows):
            comptime for j in range(vectors):
                sums[i * vectors + j] = tile.unsafe_load[width=width](
                    i * tile_stride + j * width
                )
    var left = a
    var right = b
    for _ in range(depth):
        var row = Array[SIMD[packed, width * group], vectors](
            fill=SIMD[packed, width * group](0)
        )
        comptime for j in range(vectors):
            row[j] = right.unsafe_load[width=width * group](j * width * group)
        comptime for i in range(rows):
            comptime for j in range(vectors):
                sums[i * vectors + j] = multiply_add[
                    accumulate, packed, width, group
                ](
                    left.unsafe_offset(i * row_step),
                    row[j],
                    sums[i * vectors + j],
                )
        left = left.unsafe_offset(depth_step)
        right = right.unsafe_offset(b_step)
    comptime for i in range(rows):
        comptime for j in range(vectors):
            tile.unsafe_store[width=width](
                i * tile_stride + j * width, sums[i * vectors + j]
            )
