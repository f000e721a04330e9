"""Blocks of scores on CPUs, [keys][queries] with the queries in vector lanes.

With queries in lanes the softmax needs no sum across lanes, and weights are already laid out as the right operand of the
product with the values.
"""

from std.memory import stack_allocation
from std.sys.info import CompilationTarget, simd_width_of
from std.utils.numerics import neg_inf

from mojo_kernels.abi import Data
from mojo_kernels.attention.problem import (
    MASK_BOOL,
    MASK_FLOAT,
    MASK_NONE,
    MASK_SAME,
    Problem,
)
from mojo_kernels.math import narrow
from mojo_kernels.matmul.matrix import Matrix, accumulator
from mojo_kernels.matmul.packing import pack_panel
from mojo_kernels.matmul.tile import multiply_tile
from mojo_kernels.random.philox import philox, subsequences, uniform_float32
from mojo_kernels.transposition import transpose_square

comptime KEY_BLOCK = 128
"""Keys whose scores are kept at a time."""


struct Lanes[dtype: DType]:
    """The shape of tiles.

    Parameters:
        dtype: The element type of the operands.
    """

    comptime ACCUMULATE = accumulator[Self.dtype]()
    """The type of scores and sums."""
    comptime WIDTH = simd_width_of[Self.ACCUMULATE]()
    """Lanes of a vector."""
    comptime VECTORS = 2
    """Vectors of queries in a block."""
    comptime QUERIES = Self.VECTORS * Self.WIDTH
    """Queries of a block."""
    comptime ROWS = 8 if (
        CompilationTarget.has_avx512f() or CompilationTarget.has_neon()
    ) else 4
    """Rows of a register tile: keys or features, whose counts are mostly multiples of 8."""


@inline(.always)
def multiply[
    dtype: DType, *, row_step: Int, depth_step: Int, adds: Bool
](
    depth: Int,
    a: Data[accumulator[dtype]()],
    b: Data[accumulator[dtype]()],
    tile: Data[accumulator[dtype]()],
    tile_stride: Int,
):
    """One register tile of a product; see `multiply_tile`.

    Parameters:
        dtype: The element type of the operands.
        row_step: Elements from one row of a to the next.
        depth_step: Elements from one column of a to the next.
        adds: Whether to add to what the tile holds.

    Args:
        depth: The length of the sums.
        a: The left panel.
        b: The right panel.
        tile: Where the sums go.
        tile_stride: Elements from one row of the tile to the next.
    """
    multiply_tile[
        accumulator[dtype](),
        accumulator[dtype](),
        rows=Lanes[dtype].ROWS,
        vectors=Lanes[dtype].VECTORS,
        width=Lanes[dtype].WIDTH,
        row_step=row_step,
        depth_step=depth_step,
        adds=adds,
    ](depth, a, b, tile, tile_stride)


def pack_lines[
    dtype: DType, lines: Int
](
    source: Matrix[dtype],
    count: Int,
    depth: Int,
    panel: Data[accumulator[dtype]()],
):
    """Packs rows of a matrix as [depth][lines], zero where there are no more rows.

    Parameters:
        dtype: The element type.
        lines: The rows of a full panel.

    Args:
        source: The matrix, starting at the first row.
        count: The number of rows that exist.
        depth: The number of columns.
        panel: The destination, with room for a vector behind it.
    """
    pack_panel[dtype, accumulator[dtype](), lines, Lanes[dtype].WIDTH, 1](
        source.data,
        source.row_stride,
        source.column_stride,
        min(count, lines),
        depth,
        panel,
    )


def store_lanes[
    dtype: DType
](
    source: Data[accumulator[dtype]()],
    factor: SIMD[accumulator[dtype](), Lanes[dtype].QUERIES],
    target: Matrix[dtype],
    count: Int,
    features: Int,
):
    """Writes [features][queries] to the rows of a matrix [queries, features].

    Parameters:
        dtype: The element type of the matrix.

    Args:
        source: The values; rows up to the next multiple of the vector width are read.
        factor: What to multiply each query's values with.
        target: The matrix, starting at the first query.
        count: The number of queries that exist.
        features: The number of features.
    """
    comptime accumulate = accumulator[dtype]()
    comptime width = Lanes[dtype].WIDTH
    comptime queries = Lanes[dtype].QUERIES
    comptime for v in range(Lanes[dtype].VECTORS):
        var scale = factor.slice[width, offset=v * width]()
        for first in range(0, features, width):
            var block = Array[SIMD[accumulate, width], width](
                fill=SIMD[accumulate, width](0)
            )
            comptime for i in range(width):
                block[i] = (
                    source.unsafe_load[width=width](
                        (first + i) * queries + v * width
                    )
                    * scale
                )
            transpose_square(block)
            var whole = target.column_stride == 1 and first + width <= features
            comptime for i in range(width):
                if v * width + i < count:
                    var place = target.at(v * width + i, first)
                    var row = narrow[dtype](block[i])
                    if whole:
                        place.unsafe_store[width=width](row)
                    else:
                        for j in range(min(width, features - first)):
                            place.unsafe_store(j * target.column_stride, row[j])


def finish_scores[
    dtype: DType
](
    problem: Problem[dtype],
    batch: Int,
    head: Int,
    first_query: Int,
    first_key: Int,
    keys: Int,
    scores: Data[accumulator[dtype]()],
):
    """Scales products of queries and keys and applies the mask, minus infinity where a key is forbidden.

    Parameters:
        dtype: The element type of the operands.

    Args:
        problem: The options.
        batch: The batch entry.
        head: The query head.
        first_query: The block's first query.
        first_key: The block's first key.
        keys: The number of keys, up to `KEY_BLOCK`.
        scores: [keys][queries].
    """
    comptime accumulate = accumulator[dtype]()
    comptime width = Lanes[dtype].WIDTH
    comptime queries = Lanes[dtype].QUERIES
    comptime Vector = SIMD[accumulate, width]
    comptime forbidden = Vector(neg_inf[accumulate]())
    var scale = Vector(problem.scale)
    for i in range(keys):
        comptime for v in range(Lanes[dtype].VECTORS):
            var at = i * queries + v * width
            scores.unsafe_store[width=width](
                at, scores.unsafe_load[width=width](at) * scale
            )
    if problem.mask_kind != MASK_NONE:
        var stack = stack_allocation[
            KEY_BLOCK * queries + width, Scalar[accumulate], alignment=64
        ]()
        var mask = Data[accumulate](unsafe_from_address=Int(stack))
        var count = min(queries, problem.queries - first_query)

        @inline(.always)
        def pack[source: DType]() {imm}:
            var here = problem.mask.head(batch, head).block(
                first_query, first_key
            )
            var elements = Int(here.data) - Int(problem.mask.data)
            pack_panel[source, accumulate, queries, width, 1](
                Data[source](
                    unsafe_from_address=Int(problem.mask.data)
                ).unsafe_offset(elements),
                here.row_stride,
                here.column_stride,
                count,
                keys,
                mask,
            )

        if problem.mask_kind == MASK_BOOL:
            pack[DType.uint8]()
        elif problem.mask_kind == MASK_SAME:
            pack[dtype]()
        else:
            pack[DType.float32]()
        for i in range(keys):
            comptime for v in range(Lanes[dtype].VECTORS):
                var at = i * queries + v * width
                var score = scores.unsafe_load[width=width](at)
                var value = mask.unsafe_load[width=width](at)
                if problem.mask_kind == MASK_BOOL:
                    score = value.eq(Vector(0)).select(forbidden, score)
                else:
                    score += value
                scores.unsafe_store[width=width](at, score)
    if problem.is_causal and first_key + keys - 1 > first_query:
        var query = SIMD[DType.int32, queries](0)
        comptime for i in range(queries):
            query[i] = Int32(i)
        for i in range(keys):
            # The first query of the block that may see this key.
            var first = first_key + i - first_query
            if first <= 0:
                continue
            comptime for v in range(Lanes[dtype].VECTORS):
                var at = i * queries + v * width
                scores.unsafe_store[width=width](
                    at,
                    query.slice[width, offset=v * width]()
                    .lt(Int32(first))
                    .select(forbidden, scores.unsafe_load[width=width](at)),
                )


def keep_factors[
    dtype: DType
](
    problem: Problem[dtype],
    batch: Int,
    head: Int,
    first_query: Int,
    first_key: Int,
    keys: Int,
    factors: Data[accumulator[dtype]()],
):
    """Draws what dropout multiplies weights with: 0, or 1 / (1 - p).

    Every row of the weights is a subsequence of the generator; neighbouring
    keys take the four words of a draw.

    Parameters:
        dtype: The element type of the operands.

    Args:
        problem: The options.
        batch: The batch entry.
        head: The query head.
        first_query: The block's first query.
        first_key: The block's first key, a multiple of 4.
        keys: The number of keys; up to the next multiple of 4 are written.
        factors: [keys][queries].
    """
    comptime accumulate = accumulator[dtype]()
    comptime width = Lanes[dtype].WIDTH
    comptime queries = Lanes[dtype].QUERIES
    var row = (batch * problem.heads + head) * problem.queries + first_query
    for i in range(0, keys, 4):
        comptime for v in range(Lanes[dtype].VECTORS):
            var bits = philox[width](
                problem.seed,
                subsequences[width](row + v * width),
                problem.draw(first_key + i),
            )
            comptime for word in range(4):
                factors.unsafe_store[width=width](
                    (i + word) * queries + v * width,
                    problem.keep_factor(bits.get[word]()),
                )
