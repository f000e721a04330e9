"""Applies an element function on the CPU: whole rows where they are vectors in memory, else gathered pieces."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.layout import (
    Cursor,
    Dimension,
    IndexSpace,
    parallel_ranges,
)
from mojo_kernels.pointwise.function import (
    ElementFunction,
    Storage,
    from_storage,
    storage_type,
    to_storage,
)
from std.collections import Array
from std.math import iota
from std.sys.info import simd_width_of
from std.sys.intrinsics import masked_load, masked_store
from std.utils.static_tuple import StaticTuple

comptime PARALLEL_GRAIN = 65536
"""How many elements of a cheap function (cost 1) are worth a thread."""
comptime STAGED = 256
"""How many elements are gathered before they are computed, where operands are not vectors in memory."""


@inline(.always)
def vector_width[F: ElementFunction]() -> Int:
    """How many elements the CPU computes at once.

    Parameters:
        F: The function.

    Returns:
        A vector of the largest type among the operands, or half of one.
    """
    comptime first = simd_width_of[storage_type[F.First]()]()
    comptime rest = simd_width_of[storage_type[F.Rest]()]()
    comptime output = simd_width_of[storage_type[F.Output]()]()
    comptime full = min(min(first, rest), output)
    # What only moves memory is some percent faster in halves of 512-bit registers.
    comptime if F.cost == 1 and simd_width_of[DType.uint8]() == 64:
        return full // 2
    return full


@fieldwise_init
struct _Vectors[F: ElementFunction](TrivialRegisterPassable):
    """Where a run of elements lies; each input has stride 1, or 0 and then `vector_width` copies of its value.
    """

    var output: Storage[Self.F.Output]
    var a: Storage[Self.F.First]
    var b: Storage[Self.F.Rest]
    var c: Storage[Self.F.Rest]
    var a_stride: Int
    var b_stride: Int
    var c_stride: Int

    @inline(.always)
    def compute(self, f: Self.F, i: Int):
        """Computes a full vector of elements from element `i` on."""
        comptime w = vector_width[Self.F]()
        var a = SIMD[storage_type[Self.F.First](), w](0)
        var b = SIMD[storage_type[Self.F.Rest](), w](0)
        var c = b
        comptime if Self.F.arity > 0:
            a = self.a.unsafe_load[width=w](i * self.a_stride)
        comptime if Self.F.arity > 1:
            b = self.b.unsafe_load[width=w](i * self.b_stride)
        comptime if Self.F.arity > 2:
            c = self.c.unsafe_load[width=w](i * self.c_stride)
        self.output.unsafe_store(
            i,
            to_storage(
                f.apply(
                    from_storage[Self.F.First](a),
                    from_storage[Self.F.Rest](b),
                    from_storage[Self.F.Rest](c),
                )
            ),
        )

    @inline(.always)
    def compute_partial(self, f: Self.F, i: Int, count: Int):
        """Computes `count` elements, fewer than a vector; the lanes beyond compute with ones.
        """
        comptime w = vector_width[Self.F]()
        comptime Mask = SIMD[DType.int32, w]
        var mask = iota[DType.int32, w]().lt(Mask(count))
        var a = SIMD[storage_type[Self.F.First](), w](1)
        var b = SIMD[storage_type[Self.F.Rest](), w](1)
        var c = b
        comptime if Self.F.arity > 0:
            a = masked_load[w](self.a.unsafe_offset(i * self.a_stride), mask, a)
        comptime if Self.F.arity > 1:
            b = masked_load[w](self.b.unsafe_offset(i * self.b_stride), mask, b)
        comptime if Self.F.arity > 2:
            c = masked_load[w](self.c.unsafe_offset(i * self.c_stride), mask, c)
        masked_store(
            to_storage(
                f.apply(
                    from_storage[Self.F.First](a),
                    from_storage[Self.F.Rest](b),
                    from_storage[Self.F.Rest](c),
                )
            ),
            self.output.unsafe_offset(i),
            mask,
        )

    @inline(.never)
    def run(self, f: Self.F, count: Int):
        """Computes `count` elements."""
        comptime w = vector_width[Self.F]()
        comptime unroll = 4 if Self.F.cost == 1 else 1
        var i = 0
        comptime if unroll > 1:
            while i + unroll * w <= count:
                comptime for u in range(unroll):
                    self.compute(f, i + u * w)
                i += unroll * w
        while i + w <= count:
            self.compute(f, i)
            i += w
        if i < count:
            self.compute_partial(f, i, count - i)


@inline(.always)
def _copies[
    dtype: DType, w: Int
](
    mut buffer: Array[Scalar[storage_type[dtype]()], STAGED],
    source: Storage[dtype],
    stride: Int,
) -> Storage[dtype]:
    """The address of an input for `_Vectors`: its own, or the buffer's, filled with its value where the stride is 0.
    """
    if stride != 0:
        return source
    var address = Storage[dtype](unsafe_from_address=Int(buffer.unsafe_ptr()))
    address.unsafe_store(
        0, SIMD[storage_type[dtype](), w](source.unsafe_load(0))
    )
    return address


struct _Walk[dtype: DType]:
    """The elements of one operand in the order of the output's indices, piece by piece.
    """

    var data: Storage[Self.dtype]
    var space: IndexSpace[1]
    """The outer dimensions, coalesced for this operand alone."""
    var row: Dimension[1]
    var cursor: Cursor[1]
    var column: Int
    var buffer: Array[Scalar[storage_type[Self.dtype]()], STAGED]
    var repeats: Bool
    """All rows are the same memory."""
    var repeated: Int
    """How many elements from the start of a row on the buffer holds, where rows repeat."""

    def __init__[
        operands: Int
    ](
        out self,
        data: Storage[Self.dtype],
        all: IndexSpace[operands],
        row: Dimension[operands],
        k: Int,
        start: Int,
    ):
        """Starts the walk of operand `k` at a flat index."""
        self.data = data
        self.space = IndexSpace[1]()
        for d in range(all.ndim):
            self.space.append(
                all.sizes.unsafe_get(d), StaticTuple[Int, 1](all.stride(d, k))
            )
        self.space.append(row.size, StaticTuple[Int, 1](row.strides[k]))
        self.row = self.space.pop()
        self.cursor = Cursor[1](self.space, start // self.row.size)
        self.column = start % self.row.size
        self.buffer = Array[Scalar[storage_type[Self.dtype]()], STAGED](
            uninitialized=True
        )
        self.repeats = self.space.ndim == 0 or (
            self.space.ndim == 1 and self.space.stride(0, 0) == 0
        )
        if self.row.strides[0] == 0 and self.space.ndim == 0:
            # One element for all: as many short rows.
            self.row.size = 1
            self.column = 0
        self.repeated = 0

    @inline(.always)
    def staged(self) -> Storage[Self.dtype]:
        """The address of the buffer."""
        return Storage[Self.dtype](
            unsafe_from_address=Int(self.buffer.unsafe_ptr())
        )

    @inline(.always)
    def here(self) -> Storage[Self.dtype]:
        """The address of the next element."""
        return self.data.unsafe_offset(
            self.cursor.offsets[0] + self.column * self.row.strides[0]
        )

    @inline(.always)
    def is_direct(self, count: Int) -> Bool:
        """Whether the next elements lie side by side."""
        return self.row.strides[0] == 1 and self.column + count <= self.row.size

    @inline(.always)
    def skip(mut self, count: Int):
        """Moves on within the row."""
        self.column += count
        if self.column == self.row.size:
            self.column = 0
            self.cursor.advance(self.space)

    def read(mut self, count: Int) -> Storage[Self.dtype]:
        """The next elements, gathered into the buffer where they do not lie side by side.
        """
        if self.is_direct(count):
            var address = self.here()
            self.skip(count)
            return address
        var whole_rows = (
            self.repeats and self.column == 0 and count % self.row.size == 0
        )
        if whole_rows and count <= self.repeated:
            return self.staged()
        var target = self.staged()
        var done = 0
        while done < count:
            var part = min(count - done, self.row.size - self.column)
            var source = self.here()
            var stride = self.row.strides[0]
            for i in range(part):
                target.unsafe_store(done + i, source.unsafe_load(i * stride))
            done += part
            self.skip(part)
        self.repeated = count if whole_rows else 0
        return target

    def write(mut self, count: Int):
        """Scatters the buffer to the next elements."""
        var source = self.staged()
        var done = 0
        while done < count:
            var part = min(count - done, self.row.size - self.column)
            var target = self.here()
            var stride = self.row.strides[0]
            for i in range(part):
                target.unsafe_store(i * stride, source.unsafe_load(done + i))
            done += part
            self.skip(part)


def run_on_cpu[
    F: ElementFunction
](call: KernelCall, mut space: IndexSpace[F.arity + 1], f: F):
    """Runs on the CPU: whole rows where they are vectors in memory, else gathered pieces.
    """
    comptime operands = F.arity + 1
    comptime w = vector_width[F]()
    var output = call.tensor(0).pointer[storage_type[F.Output]()]()
    var a = call.tensor(min(1, F.arity)).pointer[storage_type[F.First]()]()
    var b = call.tensor(min(2, F.arity)).pointer[storage_type[F.Rest]()]()
    var c = call.tensor(min(3, F.arity)).pointer[storage_type[F.Rest]()]()
    var numel = space.numel
    var row = space.pop()
    if row.size == 1:
        row.strides = StaticTuple[Int, operands](fill=1)

    var vectors_in_rows = row.strides[0] == 1
    comptime for k in range(1, operands):
        vectors_in_rows = vectors_in_rows and (
            row.strides[k] == 0 or row.strides[k] == 1
        )

    def run_rows(start: Int, end: Int) {imm}:
        var a_copies = Array[Scalar[storage_type[F.First]()], STAGED](
            uninitialized=True
        )
        var b_copies = Array[Scalar[storage_type[F.Rest]()], STAGED](
            uninitialized=True
        )
        var c_copies = Array[Scalar[storage_type[F.Rest]()], STAGED](
            uninitialized=True
        )
        var cursor = Cursor[operands](space, start // row.size)
        var column = start % row.size
        var rest = end - start
        while rest > 0:
            var count = min(rest, row.size - column)
            var vectors = _Vectors[F](
                output.unsafe_offset(cursor.offsets[0] + column),
                a,
                b,
                c,
                0,
                0,
                0,
            )
            comptime if F.arity > 0:
                var stride = row.strides[1]
                vectors.a = _copies[F.First, w](
                    a_copies,
                    a.unsafe_offset(cursor.offsets[1] + column * stride),
                    stride,
                )
                vectors.a_stride = stride
            comptime if F.arity > 1:
                var stride = row.strides[2]
                vectors.b = _copies[F.Rest, w](
                    b_copies,
                    b.unsafe_offset(cursor.offsets[2] + column * stride),
                    stride,
                )
                vectors.b_stride = stride
            comptime if F.arity > 2:
                var stride = row.strides[3]
                vectors.c = _copies[F.Rest, w](
                    c_copies,
                    c.unsafe_offset(cursor.offsets[3] + column * stride),
                    stride,
                )
                vectors.c_stride = stride
            vectors.run(f, count)
            column = 0
            rest -= count
            if rest > 0:
                cursor.advance(space)

    # Pieces of whole rows, where rows are short: what repeats is then gathered once.
    var piece_size = STAGED
    if row.size <= STAGED:
        piece_size = STAGED // row.size * row.size

    def run_gathered(start: Int, end: Int) {imm}:
        var outputs = _Walk[F.Output](output, space, row, 0, start)
        var a_walk = _Walk[F.First](a, space, row, min(1, F.arity), start)
        var b_walk = _Walk[F.Rest](b, space, row, min(2, F.arity), start)
        var c_walk = _Walk[F.Rest](c, space, row, min(3, F.arity), start)
        var vectors = _Vectors[F](output, a, b, c, 1, 1, 1)
        var rest = end - start
        while rest > 0:
            var count = min(rest, piece_size)
            comptime if F.arity > 0:
                vectors.a = a_walk.read(count)
            comptime if F.arity > 1:
                vectors.b = b_walk.read(count)
            comptime if F.arity > 2:
                vectors.c = c_walk.read(count)
            if outputs.is_direct(count):
                vectors.output = outputs.here()
                vectors.run(f, count)
                outputs.skip(count)
            else:
                vectors.output = outputs.staged()
                vectors.run(f, count)
                outputs.write(count)
            rest -= count

    comptime grain = max(1, PARALLEL_GRAIN // F.cost)
    if vectors_in_rows and (space.numel == 1 or row.size >= w):
        parallel_ranges(call, numel, grain, run_rows, alignment=64)
    else:
        parallel_ranges(call, numel, grain, run_gathered, alignment=piece_size)
