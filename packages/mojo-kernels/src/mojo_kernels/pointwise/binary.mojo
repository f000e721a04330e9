"""Elementwise functions of two operands of the same dtype, to that dtype."""

from mojo_kernels.abi import KernelCall, text_word
from mojo_kernels.arithmetic import (
    divide_rounding_down,
    divide_truncating,
    fmod,
    greatest_common_divisor,
    integer_power,
    maximum,
    minimum,
    next_after,
    remainder,
    shift_left,
    shift_right,
)
from mojo_kernels.layout import Cursor, IndexSpace, parallel_ranges
from mojo_kernels.math import (
    LOG2_E,
    compute_type,
    exp,
    exp2,
    log,
    log1p,
    narrow,
    pow,
    sqrt,
    widen,
)
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from mojo_kernels.trigonometry import atan2
from std.atomic import Atomic
from std.math import copysign, trunc
from std.sys.info import has_accelerator
from std.utils.numerics import inf, isnan, nan
from std.utils.static_tuple import StaticTuple


@inline(.always)
def _cost[op: StaticString, dtype: DType]() -> Int:
    """About how many additions a function costs."""
    comptime if (
        op == "add"
        or op == "sub"
        or op == "rsub"
        or op == "mul"
        or op == "maximum"
        or op == "minimum"
        or op == "fmax"
        or op == "fmin"
        or op == "bitwise_and"
        or op == "bitwise_or"
        or op == "bitwise_xor"
        or op == "bitwise_left_shift"
        or op == "bitwise_right_shift"
        or op == "copysign"
        or op == "heaviside"
        or op == "prelu"
    ):
        return 1
    elif op == "div":
        return 2
    elif op == "pow" or op == "gcd" or op == "lcm":
        return 16
    else:
        return 8


@inline(.always)
def _float_function[
    op: StaticString, dtype: DType, w: SIMDLength
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Functions of float32 and float64."""
    comptime Vector = SIMD[dtype, w]
    var infinite = Vector(inf[dtype]())
    comptime if op == "div":
        return a / b
    elif op == "pow":
        return pow(a, b)
    elif op == "fmod":
        return fmod(a, b)
    elif op == "div_trunc":
        return trunc(a / b)
    elif op == "atan2":
        return atan2(a, b)
    elif op == "hypot":
        var x = abs(a)
        var y = abs(b)
        var large = maximum(x, y)
        var ratio = minimum(x, y) / large
        var result = large * sqrt(1 + ratio * ratio)
        result = large.eq(Vector(0)).select(large, result)
        return (x.eq(infinite) | y.eq(infinite)).select(infinite, result)
    elif op == "logaddexp":
        var result = maximum(a, b) + log1p(exp(-abs(a - b)))
        return (abs(a).eq(infinite) & a.eq(b)).select(a, result)
    elif op == "logaddexp2":
        var result = maximum(a, b) + log1p(exp2(-abs(a - b))) * Vector(LOG2_E)
        return (abs(a).eq(infinite) & a.eq(b)).select(a, result)
    elif op == "xlogy" or op == "special_xlog1py":
        var logarithm: Vector
        comptime if op == "xlogy":
            logarithm = log(b)
        else:
            logarithm = log1p(b)
        var result = a.eq(Vector(0)).select(Vector(0), a * logarithm)
        return isnan(b).select(b, result)
    else:
        comptime assert False, "no such binary function of floats"


@inline(.always)
def _integer_function[
    op: StaticString, dtype: DType, w: SIMDLength
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Functions of integers."""
    comptime Vector = SIMD[dtype, w]
    comptime if op == "pow":
        return integer_power(a, b)
    elif op == "div_trunc":
        return divide_truncating(a, b)
    elif op == "fmod":
        return a - divide_truncating(a, b) * b
    elif op == "bitwise_left_shift":
        return shift_left(a, b)
    elif op == "bitwise_right_shift":
        return shift_right(a, b)
    elif op == "gcd":
        return greatest_common_divisor(a, b)
    elif op == "lcm":
        var divisor = greatest_common_divisor(a, b)
        divisor = divisor.eq(Vector(0)).select(Vector(1), divisor)
        return abs(divide_truncating(a, divisor) * b)
    else:
        comptime assert False, "no such binary function of integers"


@inline(.always)
def binary_function[
    op: StaticString, dtype: DType, w: SIMDLength
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """A function of two operands without scalars.

    Parameters:
        op: The aten op's name; "div_floor" and "div_trunc" for the rounding modes of `div`.
        dtype: The element type.
        w: The vector width.

    Args:
        a: The first operands.
        b: The second operands.

    Returns:
        The results, rounded once.
    """
    comptime Vector = SIMD[dtype, w]
    comptime if op == "mul":
        comptime if dtype == DType.bool:
            return a & b
        else:
            return narrow[dtype](widen(a) * widen(b))
    elif op == "maximum":
        comptime if dtype == DType.bool:
            return a | b
        else:
            return maximum(a, b)
    elif op == "minimum":
        comptime if dtype == DType.bool:
            return a & b
        else:
            return minimum(a, b)
    elif op == "fmax":
        comptime if dtype.is_floating_point():
            return (a.ge(b) | isnan(b)).select(a, b)
        else:
            return binary_function["maximum"](a, b)
    elif op == "fmin":
        comptime if dtype.is_floating_point():
            return (a.le(b) | isnan(b)).select(a, b)
        else:
            return binary_function["minimum"](a, b)
    elif op == "bitwise_and":
        return a & b
    elif op == "bitwise_or":
        return a | b
    elif op == "bitwise_xor":
        return a ^ b
    elif op == "copysign":
        return copysign(a, b)
    elif op == "nextafter":
        return next_after(a, b)
    elif op == "prelu":
        return a.gt(Vector(0)).select(a, narrow[dtype](widen(a) * widen(b)))
    elif op == "heaviside":
        comptime if dtype == DType.bool:
            return a | b
        else:
            var step = a.gt(Vector(0)).select(Vector(1), Vector(0))
            return a.eq(Vector(0)).select(b, step)
    elif op == "remainder":
        return narrow[dtype](remainder(widen(a), widen(b)))
    elif op == "div_floor":
        return narrow[dtype](divide_rounding_down(widen(a), widen(b)))
    elif dtype.is_floating_point():
        return narrow[dtype](_float_function[op](widen(a), widen(b)))
    else:
        return _integer_function[op](a, b)


@fieldwise_init
struct _Binary[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 2
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = _cost[Self.op, Self.dtype]()

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return binary_function[Self.op](a, b)


@fieldwise_init
struct _Scaled[op: StaticString, dtype: DType](ElementFunction):
    """Add, sub and rsub: one operand is multiplied by a scalar."""

    comptime arity = 2
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1
    comptime compute = DType.uint8 if Self.dtype == DType.bool else compute_type[
        Self.dtype
    ]()
    var alpha: Scalar[Self.compute]

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        comptime Vector = SIMD[Self.compute, w]
        var alpha = Vector(self.alpha)
        var x = a.cast[Self.compute]()
        var y = b.cast[Self.compute]()
        comptime if Self.dtype == DType.bool:
            return (x | (y & alpha)).ne(Vector(0))._refine[Self.dtype]()
        elif Self.op == "add":
            return narrow[Self.dtype](x + alpha * y)
        elif Self.op == "sub":
            return narrow[Self.dtype](x - alpha * y)
        else:
            return narrow[Self.dtype](y - alpha * x)


@inline(.always)
def lerp_function[
    dtype: DType, w: SIMDLength, //
](start: SIMD[dtype, w], end: SIMD[dtype, w], weight: SIMD[dtype, w]) -> SIMD[
    dtype, w
]:
    """Linear interpolation that is exact at both ends.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        start: The result at weight 0.
        end: The result at weight 1.
        weight: How far to go.

    Returns:
        `start + weight * (end - start)`.
    """
    var difference = end - start
    return (
        abs(weight)
        .lt(SIMD[dtype, w](0.5))
        .select(start + weight * difference, end - difference * (1 - weight))
    )


@fieldwise_init
struct _LerpScalar[dtype: DType](ElementFunction):
    comptime arity = 2
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1
    comptime compute = compute_type[Self.dtype]()
    var weight: Scalar[Self.compute]

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return narrow[Self.dtype](
            lerp_function(
                widen(a), widen(b), SIMD[Self.compute, w](self.weight)
            )
        )


def contains_zero[dtype: DType](call: KernelCall, tensor: Int) -> Bool:
    """Whether an operand of a call has an element that is 0; on CPUs only.

    Parameters:
        dtype: The element type.

    Args:
        call: The call, whose pool is used.
        tensor: The operand's position.

    Returns:
        True if there is a zero.
    """
    var view = call.tensor(tensor)
    var space = IndexSpace[1]()
    for d in range(Int(view.ndim)):
        # One of the elements that an expanded dimension repeats is enough.
        if view.stride(d) != 0 or view.size(d) == 0:
            space.append(view.size(d), StaticTuple[Int, 1](view.stride(d)))
    if space.numel == 0:
        return False
    var numel = space.numel
    var row = space.pop()
    var found = Atomic[Int32](0)
    var data = view.pointer[dtype]()

    def search(start: Int, end: Int) {imm, mut found}:
        var cursor = Cursor[1](space, start // row.size)
        var column = start % row.size
        var rest = end - start
        while rest > 0:
            var count = min(rest, row.size - column)
            var source = data.unsafe_offset(
                cursor.offsets[0] + column * row.strides[0]
            )
            var zeros = 0
            for i in range(count):
                zeros += Int(source.unsafe_load(i * row.strides[0]) == 0)
            if zeros > 0:
                _ = found.fetch_add(1)
                return
            rest -= count
            column = 0
            cursor.advance(space)

    parallel_ranges(call, numel, 65536, search)
    return found.load() != 0


def binary[op: StaticString, dtype: DType](call: KernelCall) raises:
    """`output = op(first, second)` for an aten op.

    Parameters:
        op: The aten op's name, e.g. "mul"; "div_mode" for `div` with a rounding mode, which is "div_floor" or
            "div_trunc", "prelu" for `_prelu_kernel`, "lerp_scalar" for `lerp.Scalar`.
        dtype: The type of all tensors.

    Args:
        call: Tensors: output, first, second. Scalars: alpha, a Number, for add, sub and rsub; weight, a Number,
            for lerp_scalar; rounding_mode, an optional str, for div_mode; else none.

    Raises:
        ZeroDivisionError: On CPUs, where integers are divided by 0.
    """
    comptime if op == "div_mode":
        # The rounding mode, an optional text, chooses among the functions for the dtype.
        var mode = 0
        if call.int_scalar(0) != 0:
            mode = call.int_scalar(1)
        if mode == text_word["floor"]():
            binary["div_floor", dtype](call)
        elif mode == text_word["trunc"]():
            binary["div_trunc", dtype](call)
        else:
            comptime if dtype.is_floating_point():
                binary["div", dtype](call)
            else:
                raise Error("TypeError: true division of integers")
        return
    comptime divides = (
        op == "div_floor"
        or op == "div_trunc"
        or op == "remainder"
        or op == "fmod"
    )
    comptime if divides and dtype.is_integral() and not has_accelerator():
        if contains_zero[dtype](call, 2):
            raise Error("ZeroDivisionError")
    comptime if op == "lerp_scalar":
        elementwise(
            call, _LerpScalar[dtype](call.number[compute_type[dtype]()](0))
        )
    elif op == "add" or op == "sub" or op == "rsub":
        comptime Function = _Scaled[op, dtype]
        elementwise(call, Function(call.number[Function.compute](0)))
    else:
        elementwise(call, _Binary[op, dtype]())
