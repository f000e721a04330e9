"""Copies blocks of matrices into panels that the register tile reads from front to back."""

from std.memory import bitcast

from mojo_kernels.abi import Data
from mojo_kernels.transposition import transpose_square


@inline(.always)
def _load_groups[
    dtype: DType, packed: DType, lane: DType, width: Int, group: Int
](source: Data[dtype]) -> SIMD[lane, width]:
    """`width` groups that lie side by side, as one lane each."""
    var values = source.unsafe_load[width=width * group]().cast[packed]()
    return bitcast[lane, width](values)


@inline(.always)
def _load_some_groups[
    dtype: DType, packed: DType, lane: DType, width: Int, group: Int
](source: Data[dtype], count: Int) -> SIMD[lane, width]:
    """The first `count` elements that lie side by side as groups; zeros behind them.
    """
    var values = SIMD[packed, width * group](0)
    for i in range(min(count, width * group)):
        values[i] = source.unsafe_load(i).cast[packed]()
    return bitcast[lane, width](values)


def _piece(lines: Int, width: Int, index: Int) -> Tuple[Int, Int]:
    """The start and the size of a piece of a row, cut into vectors of at most `width` lanes and powers of two.
    """
    var start = 0
    for _ in range(index):
        start += _largest_power(min(width, lines - start))
    return start, _largest_power(min(width, lines - start))


def _largest_power(limit: Int) -> Int:
    """The largest power of two up to a limit; 0 for 0."""
    var power = 1
    while power * 2 <= limit:
        power *= 2
    return power if limit > 0 else 0


def _pieces(lines: Int, width: Int) -> Int:
    """How many pieces a row is cut into."""
    var count = 0
    var start = 0
    while start < lines:
        start += _largest_power(min(width, lines - start))
        count += 1
    return count


@inline(.never)
def pack_panel[
    dtype: DType, packed: DType, lines: Int, width: Int, group: Int
](
    source: Data[dtype],
    line_stride: Int,
    depth_stride: Int,
    count: Int,
    depth: Int,
    panel: Data[packed],
):
    """Packs up to `lines` lines (rows of A or columns of B) as [depth / group][lines][group].

    Missing lines and the end of an odd last group are zero. May write up to
    `width * group` elements past the panel.

    Parameters:
        dtype: The type of the source.
        packed: The type to convert to.
        lines: The lines of a full panel.
        width: The number of groups in a vector register.
        group: Neighbours along the depth that stay side by side, 1 or 2.

    Args:
        source: The first element.
        line_stride: Elements between lines.
        depth_stride: Elements between neighbours along the depth.
        count: The number of lines that exist.
        depth: The length of the lines.
        panel: The destination.
    """
    comptime lane = packed if group == 1 else DType.uint32
    comptime chunks = (lines + width - 1) // width
    var target = Data[lane](unsafe_from_address=Int(panel))
    if depth_stride == 1 and line_stride != 1:
        # The last chunk goes first: what its stores write past the end of a row,
        # the chunks before it overwrite.
        comptime for chunk in range(chunks):
            comptime first = (chunks - 1 - chunk) * width
            comptime full = min(width, lines - first)
            var existing = min(max(count - first, 0), full)
            var start = source.unsafe_offset(first * line_stride)
            var p = 0
            while p < depth:
                var rows = Array[SIMD[lane, width], width](
                    fill=SIMD[lane, width](0)
                )
                if p + width * group <= depth:
                    if existing == full:
                        comptime for i in range(full):
                            rows[i] = _load_groups[
                                dtype, packed, lane, width, group
                            ](start.unsafe_offset(i * line_stride + p))
                    else:
                        comptime for i in range(full):
                            if i < existing:
                                rows[i] = _load_groups[
                                    dtype, packed, lane, width, group
                                ](start.unsafe_offset(i * line_stride + p))
                else:
                    comptime for i in range(full):
                        if i < existing:
                            rows[i] = _load_some_groups[
                                dtype, packed, lane, width, group
                            ](
                                start.unsafe_offset(i * line_stride + p),
                                depth - p,
                            )
                transpose_square(rows)
                var groups = min(width, (depth - p + group - 1) // group)
                var first_group = p // group
                comptime for r in range(width):
                    if r < groups:
                        target.unsafe_store[width=width](
                            (first_group + r) * lines + first, rows[r]
                        )
                p += width * group
    else:
        for p in range(0, depth, group):
            var start = source.unsafe_offset(p * depth_stride)
            var row = panel.unsafe_offset(p * lines)
            comptime for index in range(_pieces(lines, width)):
                comptime piece = _piece(lines, width, index)
                comptime first = piece[0]
                comptime size = piece[1]
                var here = start.unsafe_offset(first * line_stride)
                var there = row.unsafe_offset(first * group)
                if line_stride == 1 and count >= first + size:
                    var even = here.unsafe_load[width=size]().cast[packed]()
                    comptime if group == 1:
                        there.unsafe_store[width=size](even)
                    else:
                        var odd = SIMD[packed, size](0)
                        if p + 1 < depth:
                            odd = here.unsafe_load[width=size](
                                depth_stride
                            ).cast[packed]()
                        there.unsafe_store[width=2 * size](
                            rebind[SIMD[packed, 2 * size]](even.interleave(odd))
                        )
                else:
                    for i in range(size):
                        comptime for g in range(group):
                            var value = Scalar[packed](0)
                            if first + i < count and p + g < depth:
                                value = here.unsafe_load(
                                    i * line_stride + g * depth_stride
                                ).cast[packed]()
                            there.unsafe_store(i * group + g, value)
