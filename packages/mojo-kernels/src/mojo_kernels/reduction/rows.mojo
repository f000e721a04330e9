"""Sums, maxima and sweeps over rows, for kernels that fuse several of them: softmax, normalization, losses.

The same source runs everywhere. On CPUs one thread handles a row, in one of three ways that the parameter `across` names:

| across | vectors lie | rows at a time |
|---|---|---|
| 0 | along a contiguous row | 1 |
| R > 1 | across R rows that are neighbours in memory | R |
| 1 | nowhere: one element at a time | 1 |

On GPUs (`across` 1) all threads of a block of `ROW_BLOCK` share a row, and every one of them receives the result.
"""

from max.gpu import thread_idx
from max.gpu.host import DeviceContext
from max.gpu.primitives import block
from mojo_kernels.math import narrow
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import (
    MAX_GPU_DIMENSIONS,
    Cursor,
    IndexSpace,
    OffsetCalculator,
    ceil_div,
    parallel_ranges,
)
from std.sys.info import is_gpu, simd_width_of
from std.utils.static_tuple import StaticTuple

comptime ROW_BLOCK = 256
"""Threads that share a row on GPUs."""
comptime UNROLL = 2
"""Vectors in flight on CPUs; more spill where a row's terms are exponentials."""


@inline(.always)
def row_each[
    across: Int, dtype: DType, Body: def[w: Int](Int) -> None
](n: Int, body: Body):
    """Runs a body over all positions of a row.

    Parameters:
        across: See the top of this file.
        dtype: The type that computes, which decides the vector width.
        Body: The type of the closure.

    Args:
        n: The row's length.
        body: Handles positions `i` to `i + w - 1`, or position `i` of `w` rows.
    """
    comptime if is_gpu():
        var i = Int(thread_idx.x)
        while i < n:
            body[1](i)
            i += ROW_BLOCK
    elif across > 0:
        for i in range(n):
            body[across](i)
    else:
        comptime width = simd_width_of[dtype]()
        var i = 0
        while i + width * UNROLL <= n:
            body[width * UNROLL](i)
            i += width * UNROLL
        if i + width <= n:
            body[width](i)
            i += width
        while i + width // 4 <= n:
            body[width // 4](i)
            i += width // 4
        while i < n:
            body[1](i)
            i += 1


@inline(.always)
def row_sum[
    across: Int, dtype: DType, Terms: def[w: Int](Int) -> SIMD[dtype, w]
](n: Int, terms: Terms) -> SIMD[dtype, max(across, 1)]:
    """Adds up the terms of a row.

    Parameters:
        across: See the top of this file.
        dtype: The type of the terms.
        Terms: The type of the closure.

    Args:
        n: The row's length.
        terms: Computes the terms at positions `i` to `i + w - 1`, or at position `i` of `w` rows; called once for each.

    Returns:
        The sum of each row.
    """
    comptime if is_gpu():
        var total = Scalar[dtype](0)
        var i = Int(thread_idx.x)
        while i < n:
            total += terms[1](i)
            i += ROW_BLOCK
        return block.sum[block_size=ROW_BLOCK, broadcast=True](total)
    elif across > 0:
        var total = SIMD[dtype, max(across, 1)](0)
        for i in range(n):
            total += terms[max(across, 1)](i)
        return total
    else:
        comptime width = simd_width_of[dtype]()
        var i = 0
        var vector = SIMD[dtype, width](0)
        if n >= width * UNROLL:
            var lanes = SIMD[dtype, width * UNROLL](0)
            while i + width * UNROLL <= n:
                lanes += terms[width * UNROLL](i)
                i += width * UNROLL
            vector = lanes.reduce_add[width]()
        if i + width <= n:
            vector += terms[width](i)
            i += width
        var total = vector.reduce_add()
        while i + width // 4 <= n:
            total += terms[width // 4](i).reduce_add()
            i += width // 4
        while i < n:
            total += terms[1](i)
            i += 1
        return SIMD[dtype, max(across, 1)](total)


@inline(.always)
def row_max[
    across: Int, dtype: DType, Values: def[w: Int](Int) -> SIMD[dtype, w]
](n: Int, values: Values) -> SIMD[dtype, max(across, 1)]:
    """The largest value of a row, NaN not counting.

    Parameters:
        across: See the top of this file.
        dtype: The type of the values.
        Values: The type of the closure.

    Args:
        n: The row's length.
        values: Computes the values at positions `i` to `i + w - 1`, or at position `i` of `w` rows.

    Returns:
        The maximum of each row; -inf where there is none.
    """
    comptime lowest = Scalar[dtype].MIN
    comptime if is_gpu():
        var result = lowest
        var i = Int(thread_idx.x)
        while i < n:
            result = _larger(values[1](i), result)
            i += ROW_BLOCK
        return SIMD[dtype, max(across, 1)](
            block.max[block_size=ROW_BLOCK, broadcast=True](result)
        )
    elif across > 0:
        var result = SIMD[dtype, max(across, 1)](lowest)
        for i in range(n):
            result = _larger(values[max(across, 1)](i), result)
        return result
    else:
        comptime width = simd_width_of[dtype]()
        var i = 0
        var lanes = SIMD[dtype, width * 4](lowest)
        while i + width * 4 <= n:
            lanes = _larger(values[width * 4](i), lanes)
            i += width * 4
        var pair = _larger(
            lanes.slice[width * 2](), lanes.slice[width * 2, offset=width * 2]()
        )
        var vector = _larger(
            pair.slice[width](), pair.slice[width, offset=width]()
        )
        while i + width <= n:
            vector = _larger(values[width](i), vector)
            i += width
        var result = vector.reduce_max()
        while i < n:
            result = _larger(values[1](i), result)
            i += 1
        return SIMD[dtype, max(across, 1)](result)


@inline(.always)
def spread[
    dtype: DType, rows: SIMDLength, //, w: Int
](values: SIMD[dtype, rows]) -> SIMD[dtype, w]:
    """A row's value for each lane of a vector.

    Parameters:
        dtype: The element type.
        rows: The number of rows at a time.
        w: The vector width: `rows`, or anything for one row.

    Args:
        values: One value per row.

    Returns:
        One value per lane.
    """
    comptime if rows == 1:
        return SIMD[dtype, w](values[0])
    else:
        return values._refine[new_size=w]()


@inline(.always)
def _larger[
    dtype: DType, w: SIMDLength
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """One instruction on CPUs: `b` where the two do not compare."""
    return a.gt(b).select(a, b)


@fieldwise_init
struct RowView[dtype: DType, across: Int](TrivialRegisterPassable):
    """One row of a tensor, or the first of several neighbouring ones.

    Parameters:
        dtype: The element type.
        across: See the top of this file.
    """

    var data: Data[Self.dtype]
    """The row's first element."""
    var stride: Int
    """The distance between its elements; not read where `across` is 0."""

    @inline(.always)
    def load[to: DType, w: Int](self, i: Int) -> SIMD[to, w]:
        """Loads elements and converts them.

        Parameters:
            to: The type to convert to.
            w: How many.

        Args:
            i: The first position.

        Returns:
            Positions `i` to `i + w - 1`, or position `i` of `w` rows.
        """
        comptime if Self.across == 0:
            return self.data.unsafe_load[width=w](i).cast[to]()
        else:
            return self.data.unsafe_load[width=w](i * self.stride).cast[to]()

    @inline(.always)
    def store[
        from_type: DType, w: SIMDLength, //
    ](self, i: Int, values: SIMD[from_type, w]):
        """Converts values and stores them.

        Parameters:
            from_type: The type of the values.
            w: How many.

        Args:
            i: The first position.
            values: What to store, as `load` loads.
        """
        comptime if Self.across == 0:
            self.data.unsafe_store(i, narrow[Self.dtype](values))
        else:
            self.data.unsafe_store(i * self.stride, narrow[Self.dtype](values))


struct Rows[operands: Int]:
    """Rows along one dimension of tensors with the same sizes.

    Parameters:
        operands: The number of tensors.
    """

    var space: IndexSpace[Self.operands]
    """One element per row."""
    var length: Int
    """The number of elements of a row."""
    var strides: StaticTuple[Int, Self.operands]
    """The distance between neighbours of a row in elements, per tensor."""

    def __init__(out self, call: KernelCall, dimension: Int):
        """Takes the first `operands` tensors of a call.

        Args:
            call: The call.
            dimension: The dimension that rows lie along, from 0.
        """
        self.space = IndexSpace[Self.operands]()
        self.length = 1
        self.strides = StaticTuple[Int, Self.operands](fill=1)
        for d in range(Int(call.tensor(0).ndim)):
            var strides = StaticTuple[Int, Self.operands]()
            comptime for k in range(Self.operands):
                strides[k] = call.tensor(k).stride(d)
            if d == dimension:
                self.length = call.tensor(0).size(d)
                self.strides = strides
            else:
                self.space.append(call.tensor(0).size(d), strides)

    def each[
        dtype: DType,
        Body: def[across: Int](StaticTuple[Int, Self.operands]) -> None,
    ](mut self, call: KernelCall, grain: Int, body: Body):
        """Handles every row on the threads of a CPU.

        Parameters:
            dtype: The type that computes, which decides how many rows are handled together.
            Body: The type of the closure, which must not raise.

        Args:
            call: Its thread pool is used.
            grain: The number of elements that is worth a thread.
            body: Receives where a row starts, per tensor, and how to vectorize.
        """
        comptime width = simd_width_of[dtype]()
        var along = True
        var across = self.space.ndim > 0
        comptime for k in range(Self.operands):
            along = along and (self.length == 1 or self.strides[k] == 1)
            across = across and self.space.stride(self.space.ndim - 1, k) == 1
        var grain_rows = grain // max(self.length, 1)
        if along or not across:

            def some_rows(start: Int, end: Int) {imm}:
                var cursor = Cursor(self.space, start)
                for _ in range(start, end):
                    if along:
                        body[0](cursor.offsets)
                    else:
                        body[1](cursor.offsets)
                    cursor.advance(self.space)

            parallel_ranges(call, self.space.numel, grain_rows, some_rows)
            return
        var columns = self.space.pop().size
        var tiles = ceil_div(columns, width)

        def some_tiles(start: Int, end: Int) {imm}:
            for unit in range(start, end):
                var outer, tile = divmod(unit, tiles)
                var offsets = self.space.offsets(outer)
                var first = tile * width
                comptime for k in range(Self.operands):
                    offsets[k] += first
                if first + width <= columns:
                    body[width](offsets)
                else:
                    for _ in range(first, columns):
                        body[1](offsets)
                        comptime for k in range(Self.operands):
                            offsets[k] += 1

        parallel_ranges(
            call, self.space.numel * tiles, grain_rows // width, some_tiles
        )

    def calculator(
        self,
    ) raises -> OffsetCalculator[Self.operands, DType.uint64]:
        """The rows as an argument for a GPU kernel that handles one row per block.

        Returns:
            From a row's number to its offsets.

        Raises:
            NotImplementedError: More dimensions than the calculator holds are left after merging.
        """
        if self.space.ndim > MAX_GPU_DIMENSIONS:
            raise Error(
                "NotImplementedError: rows over ",
                self.space.ndim,
                " dimensions that do not merge; call contiguous() first",
            )
        return OffsetCalculator[Self.operands, DType.uint64](self.space)


def gpu_context(call: KernelCall) raises -> DeviceContext:
    """The device context that a call is to launch on.

    Args:
        call: The call.

    Returns:
        The context of its stream.
    """
    return DeviceContext(
        Pointer[NoneType, MutUntrackedOrigin](
            unsafe_from_address=Int(call.device_context)
        )
    )
