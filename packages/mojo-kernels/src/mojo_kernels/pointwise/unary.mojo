"""Elementwise functions of one operand, to the same dtype."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.arithmetic import (
    highest,
    integer_power,
    lowest,
    maximum,
    minimum,
)
from mojo_kernels.math import (
    PI,
    compute_type,
    exp,
    exp2,
    expm1,
    log,
    log10,
    log1p,
    log2,
    narrow,
    pow,
    sigmoid,
    sqrt,
    tanh,
    widen,
)
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from mojo_kernels.special import digamma, erf, erfc, erfinv, lgamma
from mojo_kernels.trigonometry import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cos,
    cosh,
    sin,
    sinh,
    tan,
)
from std.math import ceil, copysign, floor, trunc
from std.utils.numerics import inf, isnan, nan


@inline(.always)
def _is_cheap[op: StaticString]() -> Bool:
    """Whether a function costs about as much as an addition."""
    return (
        op == "abs"
        or op == "neg"
        or op == "sign"
        or op == "sgn"
        or op == "floor"
        or op == "ceil"
        or op == "round"
        or op == "trunc"
        or op == "frac"
        or op == "relu"
        or op == "bitwise_not"
    )


@inline(.always)
def _transcendental[
    op: StaticString, dtype: DType, w: SIMDLength
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Functions that exist for float32 and float64."""
    comptime Vector = SIMD[dtype, w]
    comptime if op == "sqrt":
        return sqrt(x)
    elif op == "rsqrt":
        return 1 / sqrt(x)
    elif op == "reciprocal":
        return 1 / x
    elif op == "exp":
        return exp(x)
    elif op == "exp2":
        return exp2(x)
    elif op == "expm1":
        return expm1(x)
    elif op == "log":
        return log(x)
    elif op == "log2":
        return log2(x)
    elif op == "log10":
        return log10(x)
    elif op == "log1p":
        return log1p(x)
    elif op == "sin":
        return sin(x)
    elif op == "cos":
        return cos(x)
    elif op == "tan":
        return tan(x)
    elif op == "asin":
        return asin(x)
    elif op == "acos":
        return acos(x)
    elif op == "atan":
        return atan(x)
    elif op == "sinh":
        return sinh(x)
    elif op == "cosh":
        return cosh(x)
    elif op == "tanh":
        return tanh(x)
    elif op == "asinh":
        return asinh(x)
    elif op == "acosh":
        return acosh(x)
    elif op == "atanh":
        return atanh(x)
    elif op == "erf":
        return erf(x)
    elif op == "erfc":
        return erfc(x)
    elif op == "erfinv":
        return erfinv(x)
    elif op == "sigmoid":
        return sigmoid(x)
    elif op == "lgamma":
        return lgamma(x)
    elif op == "digamma":
        return digamma(x)
    elif op == "sinc":
        var t = x * Vector(PI)
        return x.eq(Vector(0)).select(Vector(1), sin(t) / t)
    elif op == "special_entr":
        var entropy = x.eq(Vector(0)).select(Vector(0), -x * log(x))
        return x.lt(Vector(0)).select(Vector(-inf[dtype]()), entropy)
    else:
        comptime assert False, "no such unary function"


@inline(.always)
def unary_function[
    op: StaticString, dtype: DType, w: SIMDLength
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """A function of one operand without scalars.

    Parameters:
        op: The aten op's name.
        dtype: The element type.
        w: The vector width.

    Args:
        x: The operands.

    Returns:
        The results, rounded once.
    """
    comptime Vector = SIMD[dtype, w]
    comptime if op == "abs":
        return abs(x)
    elif op == "neg":
        return -x
    elif op == "sign" or op == "sgn":
        comptime if dtype == DType.bool:
            return x
        else:
            return x.gt(Vector(0)).select(
                Vector(1),
                x.lt(Vector(0)).select(-Vector(1), Vector(0)),
            )
    elif op == "relu":
        return x.lt(Vector(0)).select(Vector(0), x)
    elif op == "bitwise_not":
        return ~x
    elif dtype.is_integral():
        comptime assert (
            op == "floor" or op == "ceil" or op == "round" or op == "trunc"
        ), "no such unary function of integers"
        return x
    elif op == "floor":
        return floor(x)
    elif op == "ceil":
        return ceil(x)
    elif op == "round":
        return round(x)
    elif op == "trunc":
        return trunc(x)
    elif op == "frac":
        return x - trunc(x)
    else:
        return narrow[dtype](_transcendental[op](widen(x)))


@fieldwise_init
struct _Unary[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1 if _is_cheap[Self.op]() else 8

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return unary_function[Self.op](a)


@fieldwise_init
struct _NanToNum[dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1
    var for_nan: Scalar[Self.dtype]
    var for_infinity: Scalar[Self.dtype]
    var for_negative_infinity: Scalar[Self.dtype]

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        comptime Vector = SIMD[Self.dtype, w]
        var infinite = Vector(inf[Self.dtype]())
        var result = a.eq(infinite).select(Vector(self.for_infinity), a)
        result = a.eq(-infinite).select(
            Vector(self.for_negative_infinity), result
        )
        return isnan(a).select(Vector(self.for_nan), result)


def _nan_to_num[dtype: DType](call: KernelCall) raises:
    """The replacements, each an optional float, are by default 0, the largest and the lowest number.
    """
    comptime if not dtype.is_floating_point():
        elementwise(call, _Unary["round", dtype]())
    else:
        var position = 0
        var values = SIMD[dtype, 4](
            0, Scalar[dtype].MAX_FINITE, Scalar[dtype].MIN_FINITE, 0
        )
        for i in range(3):
            if call.int_scalar(position) != 0:
                values[i] = call.float_scalar(position + 1).cast[dtype]()
                position += 1
            position += 1
        elementwise(call, _NanToNum[dtype](values[0], values[1], values[2]))


@fieldwise_init
struct _RoundDecimals[dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 2
    var power: Scalar[compute_type[Self.dtype]()]
    var is_negative: Int32

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = widen(a)
        if self.is_negative != 0:
            return narrow[Self.dtype](round(x / self.power) * self.power)
        return narrow[Self.dtype](round(x * self.power) / self.power)


def _round_decimals[dtype: DType](call: KernelCall) raises:
    """A negative number of decimals rounds to tens, hundreds, ..."""
    var decimals = call.int_scalar(0)
    var power = Float64(1)
    for _ in range(abs(decimals)):
        power *= 10
    elementwise(
        call,
        _RoundDecimals[dtype](
            power.cast[compute_type[dtype]()](), Int32(1 if decimals < 0 else 0)
        ),
    )


@fieldwise_init
struct _Logit[dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 8
    var low: Scalar[compute_type[Self.dtype]()]

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        comptime Vector = SIMD[compute_type[Self.dtype](), w]
        var x = widen(a)
        if self.low >= 0:
            var low = Vector(self.low)
            var limited = x.gt(1 - low).select(1 - low, x)
            x = x.lt(low).select(low, limited)  # low wins where eps > 0.5
        return narrow[Self.dtype](log(x / (1 - x)))


def _logit[dtype: DType](call: KernelCall) raises:
    """Eps, an optional float, limits inputs to [eps, 1 - eps]."""
    comptime compute = compute_type[dtype]()
    var low = Scalar[compute](-1)
    if call.int_scalar(0) != 0:
        low = call.float_scalar(1).cast[compute]()
    elementwise(call, _Logit[dtype](low))


@fieldwise_init
struct _Square[dtype: DType](ElementFunction):
    """The power that optimizers and norms ask for."""

    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
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
        var x = widen(a)
        return narrow[Self.dtype](x * x)


@fieldwise_init
struct _PowScalar[dtype: DType](ElementFunction):
    """Powers with one exponent, the common ones without a logarithm."""

    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 4
    comptime compute = compute_type[Self.dtype]()
    var exponent: Scalar[Self.compute]

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = widen(a)
        var exponent = self.exponent
        if exponent == 3:
            return narrow[Self.dtype](x * x * x)
        comptime if Self.dtype.is_floating_point():
            if exponent == 0.5:
                return narrow[Self.dtype](sqrt(x))
            if exponent == -0.5:
                return narrow[Self.dtype](1 / sqrt(x))
            if exponent == -1:
                return narrow[Self.dtype](1 / x)
            if exponent == -2:
                return narrow[Self.dtype](1 / (x * x))
            return narrow[Self.dtype](pow(x, SIMD[Self.compute, w](exponent)))
        else:
            return narrow[Self.dtype](
                integer_power(x, SIMD[Self.compute, w](exponent))
            )


@fieldwise_init
struct _ClampScalar[dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 1
    comptime compute = compute_type[Self.dtype]()
    var low: Scalar[Self.compute]
    var high: Scalar[Self.compute]

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
        return narrow[Self.dtype](
            minimum(maximum(widen(a), Vector(self.low)), Vector(self.high))
        )


def _bound[
    dtype: DType, name: StaticString
](call: KernelCall, i: Int) raises -> Scalar[dtype]:
    """The Number at a position as a bound of a clamp, limited to the type's values.

    Raises:
        Error: No value of the type is on the bound's side.
    """
    comptime if dtype.is_integral() and dtype != DType.uint64:
        var value = Int64(call.int_scalar(i))
        var low = lowest[dtype]().cast[DType.int64]()
        var high = highest[dtype]().cast[DType.int64]()
        if value > high if name == "min" else value < low:
            raise Error(
                "Clamp ",
                name,
                " value ",
                value,
                " is outside the representable range of ",
                dtype,
            )
        return narrow[dtype](min(max(value, low), high))
    else:
        return call.number[dtype](i)


def _clamp[op: StaticString, dtype: DType](call: KernelCall) raises:
    """Limits values to [min, max]; NaN stays; where min exceeds max, the result is max.
    """
    comptime compute = compute_type[dtype]()
    var low = lowest[compute]()
    var high = highest[compute]()
    comptime if op == "clamp":
        var position = 1
        if call.int_scalar(0) != 0:
            low = _bound[compute, "min"](call, 1)
            position = 3
        if call.int_scalar(position) != 0:
            high = _bound[compute, "max"](call, position + 1)
    elif op == "clamp_max":
        high = _bound[compute, "max"](call, 0)
    else:
        low = _bound[compute, "min"](call, 0)
        comptime if op == "hardtanh":
            high = call.number[compute](2)
    elementwise(call, _ClampScalar[dtype](low, high))


def unary[op: StaticString, dtype: DType](call: KernelCall) raises:
    """`output = op(input)`.

    Parameters:
        op: The aten op's name, e.g. "exp"; "round_decimals" is `round.decimals`, "pow_scalar" is `pow.Tensor_Scalar`.
        dtype: The type of both tensors; integers and bool where the op has them.

    Args:
        call: Tensors: output, input. Scalars: nan_to_num: nan, posinf and neginf, optional floats; logit: eps, an optional
            float; round_decimals: decimals, an int; pow_scalar: exponent, a Number; clamp: min and max, optional
            Numbers; hardtanh: min and max, Numbers; clamp_min and clamp_max: the limit, a Number; else none.
    """
    comptime if op == "nan_to_num":
        _nan_to_num[dtype](call)
    elif op == "round_decimals":
        _round_decimals[dtype](call)
    elif op == "logit":
        _logit[dtype](call)
    elif op == "pow_scalar":
        var exponent = call.number[compute_type[dtype]()](0)
        if exponent == 2:
            elementwise(call, _Square[dtype]())
        else:
            elementwise(call, _PowScalar[dtype](exponent))
    elif (
        op == "clamp"
        or op == "hardtanh"
        or op == "clamp_min"
        or op == "clamp_max"
    ):
        _clamp[op, dtype](call)
    else:
        elementwise(call, _Unary[op, dtype]())
