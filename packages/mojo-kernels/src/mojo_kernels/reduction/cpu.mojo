"""The loops of a reduction on CPUs.

Two ways to vectorize: along the reduced dimension (`_row`), where the elements behind one output are neighbours, and
across outputs (`_lanes`), where the elements of neighbouring outputs are. Both halve long ranges, so that rounding errors
grow with the logarithm of the length.
"""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import Cursor, Dimension, ceil_div
from mojo_kernels.reduction.plan import INPUT, OUTPUT, SECOND, ReductionPlan
from mojo_kernels.reduction.reducer import (
    Reducer,
    State,
    Storage,
    accumulator,
    has_moments,
    has_positions,
    output_count,
)
from std.math import iota
from std.sys.info import simd_width_of
from std.utils.static_tuple import StaticTuple

comptime LEAF_STEPS = 64
"""Steps that one lane adds up one after the other."""
comptime GRAIN = 32768
"""Elements that are worth a thread."""
comptime GATHER = 8
"""Lanes of strided loads."""


struct CpuReduction[op: StaticString, dtype: DType, out: DType, second: DType]:
    """One reduction call on a CPU.

    Parameters:
        op: The reduction.
        dtype: The input's element type.
        out: The output's element type.
        second: The second output's element type.
    """

    comptime Lanes[width: Int] = State[Self.op, Self.dtype, Self.out, width]
    """A state of `width` lanes."""
    comptime width = simd_width_of[
        accumulator[Self.op, Self.dtype, Self.out]()
    ]()
    """Lanes of one vector register."""
    comptime tile = Self.width * (
        2 if has_positions[Self.op]() else 4 if has_moments[Self.op]() else 8
    )
    """Lanes that are in flight together."""

    var reducer: Reducer[Self.op, Self.dtype, Self.out]
    """The arithmetic."""
    var across: Bool
    """Whether vectors lie across outputs."""
    var plan: ReductionPlan
    """The iteration space, without `columns` and `run`."""
    var columns: Dimension[3]
    """The fastest kept dimension where vectors lie across it, else size 1."""
    var run: Dimension[1]
    """The fastest reduced dimension."""
    var reduced: Int
    """How many elements are behind an output."""
    var input: Data[Storage[Self.dtype]]
    """The input's first element."""
    var output: Data[Storage[Self.out]]
    """The first output's first element."""
    var second_output: Data[Storage[Self.second]]
    """The second output's first element."""

    def __init__(
        out self,
        reducer: Reducer[Self.op, Self.dtype, Self.out],
        var plan: ReductionPlan,
        input: Data[Storage[Self.dtype]],
        output: Data[Storage[Self.out]],
        second_output: Data[Storage[Self.second]],
    ):
        """Chooses the way to vectorize.

        Args:
            reducer: The arithmetic.
            plan: The iteration space.
            input: The input's first element.
            output: The first output's first element.
            second_output: The second output's first element; not read where the op has one output.
        """
        self.reducer = reducer
        self.input = input
        self.output = output
        self.second_output = second_output
        self.plan = plan^
        self.reduced = self.plan.reduced.numel
        self.run = self.plan.reduced.pop()
        var fastest = self.plan.kept.ndim - 1
        self.across = (
            fastest >= 0
            and self.plan.kept.stride(fastest, INPUT) == 1
            and self.run.strides[0] != 1
        )
        self.columns = Dimension(1, StaticTuple[Int, 3](fill=0))
        if self.across:
            self.columns = self.plan.kept.pop()

    def execute(self, call: KernelCall):
        """Reduces, on as many threads as the size is worth.

        Args:
            call: The call, for its threads.
        """
        var outputs = self.plan.kept.numel * self.columns.size
        if outputs == 0:
            return
        var tiles = ceil_div(self.columns.size, Self.tile)
        var units = self.plan.kept.numel * tiles
        var tasks = min(
            Int(call.threads), outputs * max(self.reduced, 1) // GRAIN
        )
        if units < tasks:
            self._split(call, tasks)
            return
        var share = ceil_div(units, max(tasks, 1))
        var is_short = (
            not self.across
            and self.reduced <= LEAF_STEPS * Self.tile
            and self.plan.kept.ndim <= 1
            and self.plan.reduced.ndim == 0
            and self.run.strides[0] == 1
        )

        def some_units(task: Int) {imm}:
            if is_short:
                self._short_rows(task * share, min((task + 1) * share, units))
                return
            var row, tile = divmod(task * share, tiles)
            var cursor = Cursor(self.plan.kept, row)
            for _ in range(min(share, units - task * share)):
                if self.across:
                    self._column_tile(cursor.offsets, tile * Self.tile)
                else:
                    self._write(
                        self._row(cursor.offsets[INPUT], 0, self.reduced),
                        cursor.offsets[OUTPUT],
                        cursor.offsets[SECOND],
                    )
                tile += 1
                if tile == tiles:
                    tile = 0
                    cursor.advance(self.plan.kept)

        call.parallel(some_units, ceil_div(units, share))

    def _split(self, call: KernelCall, tasks: Int):
        """Few outputs: cuts the reduced elements into chunks, and merges the chunks' states.
        """
        var outputs = self.plan.kept.numel * self.columns.size
        var tiles = ceil_div(self.columns.size, Self.tile)
        var units = self.plan.kept.numel * tiles
        var chunks = ceil_div(tasks, units)
        var share = ceil_div(self.reduced, chunks)
        var states = List[Self.Lanes[1]](
            length=chunks * outputs, fill=self.reducer.initial[1]()
        )
        var first = states.unsafe_ptr()

        def chunk(task: Int) {imm}:
            var unit, piece = divmod(task, chunks)
            var row, tile = divmod(unit, tiles)
            var start = piece * share
            var end = min(start + share, self.reduced)
            var base = self.plan.kept.offsets(row)[INPUT]
            var target = first.unsafe_offset(
                piece * outputs + row * self.columns.size
            )
            if not self.across:
                target[] = self._row(base, start, end)
                return

            def keep[width: Int](column: Int) {imm}:
                var state = self._lanes[width](base + column, start, end)
                for i in range(width):
                    target.unsafe_offset(column + i)[] = state.lane(i)

            self._cover(tile * Self.tile, keep)

        call.parallel(chunk, units * chunks)
        for i in range(outputs):
            var state = first.unsafe_offset(i)[]
            for piece in range(1, chunks):
                state = self.reducer.merge(
                    state, first.unsafe_offset(piece * outputs + i)[]
                )
            var row, column = divmod(i, self.columns.size)
            var offsets = self.plan.kept.offsets(row)
            self._write(
                state,
                offsets[OUTPUT] + column * self.columns.strides[OUTPUT],
                offsets[SECOND] + column * self.columns.strides[SECOND],
            )
        _ = states^

    def _row(self, base: Int, start: Int, end: Int) -> Self.Lanes[1]:
        """Reduces elements `start` to `end` of one output, with vectors along the fastest reduced dimension.
        """
        var stride = self.run.strides[0]
        var leaf = LEAF_STEPS * (Self.tile if stride == 1 else GATHER)
        if end - start > leaf:
            var middle = start + ceil_div(end - start, 2 * leaf) * leaf
            return self.reducer.merge(
                self._row(base, start, middle), self._row(base, middle, end)
            )
        var state = self.reducer.initial[1]()
        var position = start
        while position < end:
            var outer, inside = self._locate(position)
            var count = min(self.run.size - inside, end - position)
            var data = self.input.unsafe_offset(base + outer + inside * stride)
            if stride == 1:
                self._contiguous(data, count, position, state)
            else:
                var i = self._vectors[GATHER, True](
                    data, stride, 0, count, position, state
                )
                _ = self._vectors[1, True](
                    data, stride, i, count, position, state
                )
            position += count
        return state

    def _short_rows(self, start: Int, end: Int):
        """Reduces contiguous rows that lie at equal distances."""
        var strides = StaticTuple[Int, 3](fill=0)
        if self.plan.kept.ndim == 1:
            comptime for k in range(3):
                strides[k] = self.plan.kept.stride(0, k)
        for row in range(start, end):
            var state = self.reducer.initial[1]()
            self._contiguous(
                self.input.unsafe_offset(row * strides[INPUT]),
                self.reduced,
                0,
                state,
            )
            self._write(state, row * strides[OUTPUT], row * strides[SECOND])

    @inline(.always)
    def _contiguous(
        self,
        data: Data[Storage[Self.dtype]],
        count: Int,
        position: Int,
        mut state: Self.Lanes[1],
    ):
        """Lets the `count` neighbours from `position` on enter, in the widest vectors that fit.
        """
        var i = self._vectors[Self.tile, False](
            data, 1, 0, count, position, state
        )
        i = self._vectors[Self.tile // 2, False](
            data, 1, i, count, position, state
        )
        i = self._vectors[Self.width, False](data, 1, i, count, position, state)
        _ = self._vectors[1, False](data, 1, i, count, position, state)

    @inline(.always)
    def _locate(self, position: Int) -> Tuple[Int, Int]:
        """The offset of the run that a reduced element lies in, and its position in the run.
        """
        if self.plan.reduced.ndim == 0:
            return 0, position
        var outer, inside = divmod(position, self.run.size)
        return self.plan.reduced.offsets(outer)[0], inside

    @inline(.always)
    def _vectors[
        width: Int, gather: Bool
    ](
        self,
        data: Data[Storage[Self.dtype]],
        stride: Int,
        start: Int,
        end: Int,
        position: Int,
        mut state: Self.Lanes[1],
    ) -> Int:
        """Lets whole vectors of elements `start` to `end` of a run enter, and returns the first element left over.
        """
        var steps = (end - start) // width
        if steps == 0:
            return start
        var lanes = self.reducer.initial[width]()
        for step in range(steps):
            var i = start + step * width
            var elements: SIMD[Storage[Self.dtype], width]
            comptime if gather:
                elements = {}
                comptime for lane in range(width):
                    elements[lane] = data.unsafe_load((i + lane) * stride)
            else:
                elements = data.unsafe_load[width=width](i)
            self.reducer.update(
                lanes,
                elements,
                iota[DType.int64, width](Int64(position + i)),
                step + 1,
            )
        state = self.reducer.merge(state, self.reducer.fold(lanes))
        return start + steps * width

    def _lanes[
        width: Int
    ](self, base: Int, start: Int, end: Int) -> Self.Lanes[width]:
        """Reduces elements `start` to `end` of `width` outputs whose inputs are neighbours.
        """
        if end - start > LEAF_STEPS:
            var middle = (
                start + ceil_div(end - start, 2 * LEAF_STEPS) * LEAF_STEPS
            )
            return self.reducer.merge(
                self._lanes[width](base, start, middle),
                self._lanes[width](base, middle, end),
            )
        var stride = self.run.strides[0]
        var lanes = self.reducer.initial[width]()
        var position = start
        while position < end:
            var outer, inside = self._locate(position)
            var count = min(self.run.size - inside, end - position)
            var data = self.input.unsafe_offset(base + outer + inside * stride)
            for step in range(count):
                self.reducer.update(
                    lanes,
                    data.unsafe_load[width=width](step * stride),
                    SIMD[DType.int64, width](Int64(position + step)),
                    position - start + step + 1,
                )
            position += count
        return lanes

    def _column_tile(self, offsets: StaticTuple[Int, 3], column: Int):
        """Computes the outputs of one tile of columns."""

        def finish[width: Int](column: Int) {imm}:
            var state = self._lanes[width](
                offsets[INPUT] + column, 0, self.reduced
            )
            _store(
                self.output.unsafe_offset(offsets[OUTPUT]),
                column,
                self.columns.strides[OUTPUT],
                self.reducer.result(state, self.reduced),
            )
            comptime if output_count[Self.op]() == 2:
                _store(
                    self.second_output.unsafe_offset(offsets[SECOND]),
                    column,
                    self.columns.strides[SECOND],
                    self.reducer.second[to=Self.second](state),
                )

        self._cover(column, finish)

    @inline(.always)
    def _cover[
        Body: def[width: Int](Int) -> None
    ](self, start: Int, body: Body):
        """Covers the tile of columns from `start` by the widest vectors that fit.
        """
        var column = start
        var end = min(start + Self.tile, self.columns.size)
        if end - column == Self.tile:
            body[Self.tile](column)
            return
        if end - column >= Self.tile // 2:
            body[Self.tile // 2](column)
            column += Self.tile // 2
        while end - column >= Self.width:
            body[Self.width](column)
            column += Self.width
        while column < end:
            body[1](column)
            column += 1

    @inline(.always)
    def _write(self, state: Self.Lanes[1], offset: Int, second_offset: Int):
        """Stores the results of one output."""
        self.output.unsafe_store(
            offset, self.reducer.result(state, self.reduced)
        )
        comptime if output_count[Self.op]() == 2:
            self.second_output.unsafe_store(
                second_offset, self.reducer.second[to=Self.second](state)
            )


@inline(.always)
def _store[
    dtype: DType, width: Int
](data: Data[dtype], index: Int, stride: Int, values: SIMD[dtype, width]):
    """Stores a vector from element `index` of a strided sequence on."""
    if stride == 1:
        data.unsafe_store(index, values)
    else:
        for lane in range(width):
            data.unsafe_store((index + lane) * stride, values[lane])
