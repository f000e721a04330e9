"""The arithmetic of each reduction: how an element enters a state, how two states merge, what a state results in.

| op | result | state |
|---|---|---|
| sum, nansum, mean, prod | of the elements | the running value |
| count_nonzero, any, all | of the elements that are not zero | the running value |
| amax, amin | the extremum; NaN wins | the extremum |
| aminmax | minimum and maximum | both |
| argmax, argmin | the first position of the extremum | extremum and position |
| max, min | extremum and first position | extremum and position |
| norm | (sum abs(x)**p)**(1/p), with its limits at p = 0, inf and -inf | sum or extremum |
| var, std | (co)moments of Welford, merged as Chan, Golub and LeVeque do | mean, squares, count |
| var_mean, std_mean | the same and the mean | mean, squares, count |
"""

from mojo_kernels.math import pow, sqrt
from std.utils.numerics import inf, isnan, nan

comptime Storage[dtype: DType] = DType.uint8 if dtype == DType.bool else dtype
"""The type that elements are loaded and stored as: bool as its bytes."""


def is_one_of[names: StaticString](op: StaticString) -> Bool:
    """Whether an op's name is in a list.

    Parameters:
        names: Names between spaces, e.g. " sum mean ".

    Args:
        op: The name.

    Returns:
        True if it is in the list.
    """
    return String(" ", op, " ") in names


def accumulator[op: StaticString, dtype: DType, out: DType]() -> DType:
    """The type in which a reduction computes.

    Parameters:
        op: The reduction.
        dtype: The input's element type.
        out: The output's element type.

    Returns:
        Float32 for half types; int64 for sums of integers; the input's own type for extrema.
    """
    if is_one_of[" any all "](op):
        return DType.uint8
    if op == "count_nonzero":
        return DType.int64
    if is_one_of[" amax amin aminmax argmax argmin max min "](op):
        return DType.float32 if dtype.is_half_float() else Storage[dtype]
    if out.is_floating_point():
        return DType.float64 if out == DType.float64 else DType.float32
    return DType.int64


def parameter_type[out: DType]() -> DType:
    """The type of the number that an op takes besides tensors; float32 suffices where results are, and some GPUs have no more.

    Parameters:
        out: The output's element type.

    Returns:
        float64 or float32.
    """
    return DType.float64 if out == DType.float64 else DType.float32


def has_positions[op: StaticString]() -> Bool:
    """Whether positions of elements are reported, so that their order counts.

    Parameters:
        op: The reduction.

    Returns:
        True for argmax, argmin, max and min.
    """
    return is_one_of[" argmax argmin max min "](op)


def has_moments[op: StaticString]() -> Bool:
    """Whether the op needs mean and variance.

    Parameters:
        op: The reduction.

    Returns:
        True for var, std and the two with mean.
    """
    return is_one_of[" var std var_mean std_mean "](op)


def output_count[op: StaticString]() -> Int:
    """How many outputs the op has.

    Parameters:
        op: The reduction.

    Returns:
        1 or 2.
    """
    return 2 if is_one_of[" aminmax max min var_mean std_mean "](op) else 1


@fieldwise_init
struct State[op: StaticString, dtype: DType, out: DType, width: Int](
    TrivialRegisterPassable
):
    """What a reduction knows about the elements seen so far, in `width` independent lanes.

    Parameters:
        op: The reduction.
        dtype: The input's element type.
        out: The output's element type.
        width: The number of lanes.
    """

    comptime accumulator = accumulator[Self.op, Self.dtype, Self.out]()
    comptime extra_type = DType.int64 if has_positions[
        Self.op
    ]() else Self.accumulator

    var value: SIMD[Self.accumulator, Self.width]
    """The running value: sum, extremum or mean."""
    var extra: SIMD[Self.extra_type, Self.width]
    """The extremum's position, the maximum of aminmax or the sum of squared deviations."""
    var count: SIMD[Self.accumulator, Self.width]
    """How many elements; only where moments need it."""

    @inline(.always)
    def half[
        part: Int
    ](self,) -> State[Self.op, Self.dtype, Self.out, Self.width // 2]:
        """One half of the lanes.

        Parameters:
            part: 0 or 1.

        Returns:
            The state of those lanes.
        """
        comptime half = Self.width // 2
        return {
            self.value.slice[half, offset=part * half](),
            self.extra.slice[half, offset=part * half](),
            self.count.slice[half, offset=part * half](),
        }

    @inline(.always)
    def lane(self, i: Int) -> State[Self.op, Self.dtype, Self.out, 1]:
        """One lane.

        Args:
            i: Its position.

        Returns:
            The state of that lane.
        """
        return {self.value[i], self.extra[i], self.count[i]}


@fieldwise_init
struct Reducer[op: StaticString, dtype: DType, out: DType](
    TrivialRegisterPassable
):
    """The arithmetic of one reduction.

    Parameters:
        op: The reduction, of the table at the top of this file.
        dtype: The input's element type.
        out: The output's element type.
    """

    comptime accumulator = accumulator[Self.op, Self.dtype, Self.out]()
    comptime parameter = parameter_type[Self.out]()
    comptime Of[width: Int] = State[Self.op, Self.dtype, Self.out, width]

    var argument: Scalar[parameter_type[Self.out]()]
    """The order of a norm, or the correction of a variance."""

    @inline(.always)
    def initial[width: Int](self) -> Self.Of[width]:
        """The state before any element.

        Parameters:
            width: The number of lanes.

        Returns:
            A state that changes nothing when it is merged.
        """
        comptime Accumulator = Scalar[Self.accumulator]
        var value = Accumulator(0)
        var extra = Scalar[Self.Of[1].extra_type](0)
        comptime if is_one_of[" prod all "](Self.op):
            value = 1
        elif is_one_of[" amax argmax max "](Self.op):
            value = Accumulator.MIN
        elif is_one_of[" amin argmin min aminmax "](Self.op):
            value = Accumulator.MAX
        elif Self.op == "norm":
            if self.argument == -inf[Self.parameter]():
                value = Accumulator.MAX
        comptime if has_positions[Self.op]():
            extra = Scalar[Self.Of[1].extra_type].MAX
        elif Self.op == "aminmax":
            extra = Scalar[Self.Of[1].extra_type].MIN
        return {
            SIMD[Self.accumulator, width](value),
            SIMD[Self.Of[1].extra_type, width](extra),
            SIMD[Self.accumulator, width](0),
        }

    @inline(.always)
    def update[
        width: Int
    ](
        self,
        mut state: Self.Of[width],
        element: SIMD[Storage[Self.dtype], width],
        position: SIMD[DType.int64, width],
        step: Int,
    ):
        """Lets one element per lane enter.

        Parameters:
            width: The number of lanes.

        Args:
            state: The state, which changes.
            element: The elements as they are stored.
            position: The elements' positions in logical order; read where positions are reported.
            step: How many elements each lane has seen with this one; read by moments.
        """
        comptime if is_one_of[" any all count_nonzero "](Self.op):
            var nonzero = (~element.eq(0)).cast[Self.accumulator]()
            comptime if Self.op == "any":
                state.value |= nonzero
            elif Self.op == "all":
                state.value &= nonzero
            else:
                state.value += nonzero
        else:
            var x = element.cast[Self.accumulator]()
            comptime if is_one_of[" sum mean "](Self.op):
                state.value += x
            elif Self.op == "nansum":
                comptime if Self.dtype.is_floating_point():
                    state.value += isnan(x).select(type_of(x)(0), x)
                else:
                    state.value += x
            elif Self.op == "prod":
                state.value *= x
            elif is_one_of[" amax amin "](Self.op):
                state.value = self._extremum(x, state.value)
            elif Self.op == "aminmax":
                state.value = self._smaller(x, state.value)
                state.extra = self._larger(
                    x, state.extra.cast[Self.accumulator]()
                ).cast[Self.Of[width].extra_type]()
            elif has_positions[Self.op]():
                # A first element equal to the initial value counts too.
                var better = self._precedes(x, state.value) | state.extra.eq(
                    Scalar[Self.Of[width].extra_type].MAX
                )
                state.value = better.select(x, state.value)
                state.extra = better.select(
                    position.cast[Self.Of[width].extra_type](), state.extra
                )
            elif Self.op == "norm":
                if self.argument == 2:
                    state.value += x * x
                else:
                    state.value = self._join_norms(
                        state.value, self._norm_term(x)
                    )
            else:
                comptime assert has_moments[Self.op](), "unknown reduction"
                var deviation = x - state.value
                state.value += deviation * (
                    1 / Scalar[Self.accumulator](Int64(step))
                )
                state.extra += (deviation * (x - state.value)).cast[
                    Self.Of[width].extra_type
                ]()
                state.count = SIMD[Self.accumulator, width](
                    Scalar[Self.accumulator](Int64(step))
                )

    @inline(.always)
    def merge[
        width: Int
    ](self, a: Self.Of[width], b: Self.Of[width]) -> Self.Of[width]:
        """The state of the elements of two states.

        Parameters:
            width: The number of lanes.

        Args:
            a: A state.
            b: Another.

        Returns:
            The merged state, lane by lane.
        """
        var value = a.value
        var extra = a.extra
        var count = a.count
        comptime if is_one_of[" sum nansum mean count_nonzero "](Self.op):
            value += b.value
        elif Self.op == "prod":
            value *= b.value
        elif Self.op == "any":
            value |= b.value
        elif Self.op == "all":
            value &= b.value
        elif is_one_of[" amax amin "](Self.op):
            value = self._extremum(a.value, b.value)
        elif Self.op == "aminmax":
            value = self._smaller(a.value, b.value)
            extra = self._larger(
                a.extra.cast[Self.accumulator](),
                b.extra.cast[Self.accumulator](),
            ).cast[Self.Of[width].extra_type]()
        elif has_positions[Self.op]():
            var better = self._precedes(b.value, a.value) | (
                ~self._precedes(a.value, b.value) & b.extra.lt(a.extra)
            )
            value = better.select(b.value, a.value)
            extra = better.select(b.extra, a.extra)
        elif Self.op == "norm":
            value = self._join_norms(a.value, b.value)
        else:
            count = a.count + b.count
            var share = b.count / count
            share = count.eq(0).select(type_of(share)(0), share)
            var deviation = b.value - a.value
            value = a.value + deviation * share
            extra = (
                a.extra
                + b.extra
                + (deviation * deviation * a.count * share).cast[
                    Self.Of[width].extra_type
                ]()
            )
        return {value, extra, count}

    @inline(.always)
    def fold[width: Int](self, state: Self.Of[width]) -> Self.Of[1]:
        """Merges all lanes of a state.

        Parameters:
            width: The number of lanes, a power of two.

        Args:
            state: The state.

        Returns:
            One lane.
        """
        comptime if width == 1:
            return {state.value[0], state.extra[0], state.count[0]}
        else:
            return self.fold(self.merge(state.half[0](), state.half[1]()))

    @inline(.always)
    def result[
        width: Int
    ](self, state: Self.Of[width], count: Int) -> SIMD[
        Storage[Self.out], width
    ]:
        """The first output.

        Parameters:
            width: The number of lanes.

        Args:
            state: The state after all elements.
            count: How many elements that were.

        Returns:
            The values to store.
        """
        comptime if is_one_of[" argmax argmin "](Self.op):
            return state.extra.cast[Storage[Self.out]]()
        elif Self.op == "mean":
            return (state.value / Scalar[Self.accumulator](Int64(count))).cast[
                Storage[Self.out]
            ]()
        elif Self.op == "norm":
            var value = state.value
            if self.argument == 2:
                value = sqrt(value)
            elif (
                self.argument != 0
                and self.argument != 1
                and abs(self.argument) != inf[Self.parameter]()
            ):
                value = pow(
                    value,
                    SIMD[Self.accumulator, width](
                        (1 / self.argument).cast[Self.accumulator]()
                    ),
                )
            return value.cast[Storage[Self.out]]()
        elif has_moments[Self.op]():
            var freedom = max(
                Scalar[Self.parameter](Int64(count)) - self.argument, 0
            )
            var variance = (
                state.extra.cast[Self.accumulator]()
                / freedom.cast[Self.accumulator]()
            )
            comptime if is_one_of[" std std_mean "](Self.op):
                variance = sqrt(variance)
            return variance.cast[Storage[Self.out]]()
        else:
            comptime if Self.out == DType.bool and not is_one_of[
                " any all amax amin max min aminmax "
            ](Self.op):
                return (~state.value.eq(0)).cast[Storage[Self.out]]()
            else:
                return state.value.cast[Storage[Self.out]]()

    @inline(.always)
    def second[
        width: Int, to: DType
    ](self, state: Self.Of[width]) -> SIMD[Storage[to], width]:
        """The second output of the ops that have two.

        Parameters:
            width: The number of lanes.
            to: The second output's element type.

        Args:
            state: The state after all elements.

        Returns:
            The values to store.
        """
        comptime if has_moments[Self.op]():
            var mean = state.count.eq(0).select(
                SIMD[Self.accumulator, width](nan[Self.accumulator]()),
                state.value,
            )
            return mean.cast[Storage[to]]()
        else:
            return state.extra.cast[Storage[to]]()

    @inline(.always)
    def _larger[
        width: Int
    ](
        self,
        a: SIMD[Self.accumulator, width],
        b: SIMD[Self.accumulator, width],
    ) -> SIMD[Self.accumulator, width]:
        comptime if Self.accumulator.is_floating_point():
            # One instruction for the inner choice, which keeps `b` where it is NaN.
            return isnan(a).select(a, a.gt(b).select(a, b))
        else:
            return max(a, b)

    @inline(.always)
    def _smaller[
        width: Int
    ](
        self,
        a: SIMD[Self.accumulator, width],
        b: SIMD[Self.accumulator, width],
    ) -> SIMD[Self.accumulator, width]:
        comptime if Self.accumulator.is_floating_point():
            return isnan(a).select(a, a.lt(b).select(a, b))
        else:
            return min(a, b)

    @inline(.always)
    def _extremum[
        width: Int
    ](
        self,
        a: SIMD[Self.accumulator, width],
        b: SIMD[Self.accumulator, width],
    ) -> SIMD[Self.accumulator, width]:
        comptime if Self.op == "amax":
            return self._larger(a, b)
        else:
            return self._smaller(a, b)

    @inline(.always)
    def _precedes[
        width: Int
    ](
        self,
        a: SIMD[Self.accumulator, width],
        b: SIMD[Self.accumulator, width],
    ) -> SIMD[DType.bool, width]:
        """Whether `a` beats `b` whatever their positions: it is more extreme, or NaN where `b` is not.
        """
        var better: SIMD[DType.bool, width]
        comptime if is_one_of[" argmax max "](Self.op):
            better = a.gt(b)
        else:
            better = a.lt(b)
        comptime if Self.accumulator.is_floating_point():
            better = (better | isnan(a)) & ~isnan(b)
        return better

    @inline(.always)
    def _norm_term[
        width: Int
    ](self, x: SIMD[Self.accumulator, width]) -> SIMD[Self.accumulator, width]:
        comptime if Self.accumulator.is_floating_point():
            if self.argument == 0:
                return (~x.eq(0)).cast[Self.accumulator]()
            if (
                self.argument == 1
                or abs(self.argument) == inf[Self.parameter]()
            ):
                return abs(x)
            return pow(
                abs(x),
                SIMD[Self.accumulator, width](
                    self.argument.cast[Self.accumulator]()
                ),
            )
        else:
            return x

    @inline(.always)
    def _join_norms[
        width: Int
    ](
        self,
        a: SIMD[Self.accumulator, width],
        b: SIMD[Self.accumulator, width],
    ) -> SIMD[Self.accumulator, width]:
        if self.argument == inf[Self.parameter]():
            return self._larger(a, b)
        if self.argument == -inf[Self.parameter]():
            return self._smaller(a, b)
        return a + b
