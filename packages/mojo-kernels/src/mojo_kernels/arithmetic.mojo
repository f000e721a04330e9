"""Division, remainders, integer powers and shifts with torch's results, for vectors of every dtype."""

from mojo_kernels.math import (
    exponent_bias,
    mantissa_bits,
    power_of_two,
    scale_by_power,
    to_bits,
    unsigned_type,
)
from std.math import copysign, floor, fma, trunc
from std.memory import bitcast
from std.sys.info import has_accelerator, size_of
from std.utils.numerics import inf, isnan, nan


@inline(.always)
def lowest[dtype: DType]() -> Scalar[dtype]:
    """What is not above any value.

    Parameters:
        dtype: Any real type.

    Returns:
        Minus infinity or the lowest integer.
    """
    comptime if dtype.is_floating_point():
        return -inf[dtype]()
    else:
        return Scalar[dtype].MIN


@inline(.always)
def highest[dtype: DType]() -> Scalar[dtype]:
    """What is not below any value.

    Parameters:
        dtype: Any real type.

    Returns:
        Infinity or the highest integer.
    """
    comptime if dtype.is_floating_point():
        return inf[dtype]()
    else:
        return Scalar[dtype].MAX


@inline(.always)
def maximum[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The greater of two values; NaN where either is NaN.

    Parameters:
        dtype: Any real type.
        w: The vector width.

    Args:
        a: Values.
        b: Values.

    Returns:
        The maxima.
    """
    comptime if dtype.is_floating_point():
        return (a.gt(b) | isnan(a)).select(a, b)
    else:
        return a.gt(b).select(a, b)


@inline(.always)
def minimum[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The lesser of two values; NaN where either is NaN.

    Parameters:
        dtype: Any real type.
        w: The vector width.

    Args:
        a: Values.
        b: Values.

    Returns:
        The minima.
    """
    comptime if dtype.is_floating_point():
        return (a.lt(b) | isnan(a)).select(a, b)
    else:
        return a.lt(b).select(a, b)


@inline(.always)
def divide_truncating[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The integer quotient rounded toward 0, as in C; the smallest number by -1 wraps around.

    Parameters:
        dtype: An integer type.
        w: The vector width.

    Args:
        a: Dividends.
        b: Divisors; the caller has seen that none is 0.

    Returns:
        The quotients.
    """
    comptime Vector = SIMD[dtype, w]
    var divisor = b
    comptime if dtype.is_signed():
        divisor = b.eq(Vector(-1)).select(Vector(1), b)
    var quotient: Vector
    comptime if has_accelerator() or size_of[dtype]() == 8:
        quotient = a / divisor
    elif size_of[dtype]() == 4:
        # CPUs divide vectors of floats only. A quotient that is no integer is at least 1 / b away from one: more
        # than the rounding error of float64.
        quotient = trunc(
            a.cast[DType.float64]() / divisor.cast[DType.float64]()
        ).cast[dtype]()
    else:
        quotient = trunc(
            a.cast[DType.float32]() / divisor.cast[DType.float32]()
        ).cast[dtype]()
    comptime if dtype.is_signed():
        return b.eq(Vector(-1)).select(-a, quotient)
    else:
        return quotient


@inline(.always)
def _exponent[
    dtype: DType, w: SIMDLength
](x: SIMD[dtype, w]) -> SIMD[unsigned_type[dtype](), w]:
    """The exponent, in two's complement, of positive finite numbers."""
    comptime Bits = SIMD[unsigned_type[dtype](), w]
    comptime lift = 33554432.0 if dtype == DType.float32 else 18014398509481984.0
    comptime lift_exponent = 25 if dtype == DType.float32 else 54
    comptime smallest = 1.1754943508222875e-38 if dtype == DType.float32 else 2.2250738585072014e-308
    var is_subnormal = x.lt(SIMD[dtype, w](smallest))
    var normal = is_subnormal.select(x * SIMD[dtype, w](lift), x)
    var exponent = (to_bits(normal) >> Bits(mantissa_bits[dtype]())) - Bits(
        exponent_bias[dtype]()
    )
    return is_subnormal.select(exponent - Bits(lift_exponent), exponent)


@inline(.always)
def fmod[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The exact remainder of a quotient rounded toward 0, with the sign of the dividend, as C's `fmod`.

    Long division with digits of almost a whole mantissa; the first digit is enough for quotients below 2^21
    (float64: 2^50).

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        a: Dividends.
        b: Divisors.

    Returns:
        The remainders; NaN for divisors of 0 and infinite dividends.
    """
    comptime Vector = SIMD[dtype, w]
    comptime Bits = SIMD[unsigned_type[dtype](), w]
    comptime digit = mantissa_bits[dtype]() - 2
    var infinite = Vector(inf[dtype]())
    var r = abs(a)
    var d = abs(b)
    var defined = r.lt(infinite) & d.gt(Vector(0))
    r = defined.select(r, Vector(0))
    d = (defined & d.lt(infinite)).select(d, infinite)
    var pending = r.ge(d)
    while pending.reduce_or():
        # d 2^k is at most r, and r / (d 2^k) below 2^(digit + 1): the product in the step is exact.
        var k = pending.select(
            _exponent[dtype](r) - _exponent[dtype](d) - Bits(digit), Bits(0)
        )
        var is_negative = (k >> Bits(size_of[dtype]() * 8 - 1)).ne(0)
        var scaled = scale_by_power(
            pending.select(d, Vector(1)), is_negative.select(Bits(0), k)
        )
        var rest = fma(-trunc(r / scaled), scaled, r)
        # The rounded quotient may be one off.
        rest = rest.lt(Vector(0)).select(rest + scaled, rest)
        rest = rest.ge(scaled).select(rest - scaled, rest)
        r = pending.select(rest, r)
        pending = r.ge(d)
    return defined.select(copysign(r, a), Vector(nan[dtype]()))


@inline(.always)
def remainder[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The remainder of a quotient rounded down, with the sign of the divisor, as Python's `%`.

    Parameters:
        dtype: An integer type, float32 or float64.
        w: The vector width.

    Args:
        a: Dividends.
        b: Divisors; integers: not 0.

    Returns:
        The remainders.
    """
    comptime Vector = SIMD[dtype, w]
    var rest: Vector
    comptime if dtype.is_floating_point():
        rest = fmod(a, b)
    else:
        rest = a - divide_truncating(a, b) * b
    comptime if dtype.is_unsigned():
        return rest
    else:
        var wrong_sign = rest.ne(Vector(0)) & (
            rest.lt(Vector(0)) ^ b.lt(Vector(0))
        )
        return wrong_sign.select(rest + b, rest)


@inline(.always)
def divide_rounding_down[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The quotient rounded down, as Python's `//`.

    Parameters:
        dtype: An integer type, float32 or float64.
        w: The vector width.

    Args:
        a: Dividends.
        b: Divisors; integers: not 0. Floats by 0 are as `a / b`.

    Returns:
        The quotients.
    """
    comptime Vector = SIMD[dtype, w]
    comptime if dtype.is_floating_point():
        var rest = fmod(a, b)
        var quotient = (a - rest) / b
        var wrong_sign = rest.ne(Vector(0)) & (
            rest.lt(Vector(0)) ^ b.lt(Vector(0))
        )
        quotient = wrong_sign.select(quotient - 1, quotient)
        # What should be an integer may have been rounded to just below it.
        var rounded = floor(quotient)
        rounded = (
            (quotient - rounded).gt(Vector(0.5)).select(rounded + 1, rounded)
        )
        rounded = quotient.eq(Vector(0)).select(
            copysign(Vector(0), a / b), rounded
        )
        return b.eq(Vector(0)).select(a / b, rounded)
    else:
        var quotient = divide_truncating(a, b)
        comptime if dtype.is_unsigned():
            return quotient
        else:
            var wrong_sign = (quotient * b).ne(a) & (
                a.lt(Vector(0)) ^ b.lt(Vector(0))
            )
            return wrong_sign.select(quotient - 1, quotient)


@inline(.always)
def integer_power[
    dtype: DType, w: SIMDLength, //
](base: SIMD[dtype, w], exponent: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Powers that wrap around, by repeated squaring.

    Parameters:
        dtype: An integer type.
        w: The vector width.

    Args:
        base: The bases.
        exponent: The exponents; where negative, the result is 0 unless the base is 1 or -1.

    Returns:
        The powers.
    """
    comptime Vector = SIMD[dtype, w]
    var result = Vector(1)
    var square = base
    var rest = exponent
    comptime if dtype.is_signed():
        rest = exponent.lt(Vector(0)).select(exponent & 1, exponent)
    while rest.ne(Vector(0)).reduce_or():
        result = (rest & 1).ne(Vector(0)).select(result * square, result)
        square = square * square
        rest = rest >> 1
    comptime if dtype.is_signed():
        var vanishes = (
            exponent.lt(Vector(0)) & base.ne(Vector(1)) & base.ne(Vector(-1))
        )
        result = vanishes.select(Vector(0), result)
    return result


@inline(.always)
def shift_left[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], count: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Shifts left; 0 where the count is negative or not below the number of bits.

    Parameters:
        dtype: An integer type.
        w: The vector width.

    Args:
        a: The values.
        count: By how many bits.

    Returns:
        The shifted values.
    """
    comptime Vector = SIMD[dtype, w]
    comptime bits = size_of[dtype]() * 8
    var valid = count.ge(Vector(0)) & count.lt(Vector(bits))
    return valid.select(a << valid.select(count, Vector(0)), Vector(0))


@inline(.always)
def shift_right[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], count: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Shifts right, arithmetically for signed types; only the sign stays where the count is negative or too large.

    Parameters:
        dtype: An integer type.
        w: The vector width.

    Args:
        a: The values.
        count: By how many bits.

    Returns:
        The shifted values.
    """
    comptime Vector = SIMD[dtype, w]
    comptime bits = size_of[dtype]() * 8
    var valid = count.ge(Vector(0)) & count.lt(Vector(bits))
    comptime if dtype.is_unsigned():
        return valid.select(a >> valid.select(count, Vector(0)), Vector(0))
    else:
        return a >> valid.select(count, Vector(bits - 1))


@inline(.always)
def greatest_common_divisor[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The greatest common divisor by Euclid's algorithm.

    Parameters:
        dtype: An integer type.
        w: The vector width.

    Args:
        a: Numbers.
        b: Numbers.

    Returns:
        The divisors, not negative; 0 for two zeros.
    """
    comptime Vector = SIMD[dtype, w]
    var x = abs(a)
    var y = abs(b)
    while y.ne(Vector(0)).reduce_or():
        var pending = y.ne(Vector(0))
        var divisor = pending.select(y, Vector(1))
        var rest = x - divide_truncating(x, divisor) * divisor
        x = pending.select(y, x)
        y = pending.select(rest, Vector(0))
    return abs(x)


@inline(.always)
def next_after[
    dtype: DType, w: SIMDLength, //
](a: SIMD[dtype, w], b: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The next number of the type from `a` toward `b`.

    Parameters:
        dtype: A floating type.
        w: The vector width.

    Args:
        a: Where to start.
        b: Which way.

    Returns:
        The neighbours; `b` where both are equal, NaN where either is.
    """
    comptime Vector = SIMD[dtype, w]
    comptime bits_type = unsigned_type[dtype]()
    var bits = to_bits(a)
    var step = (a.lt(b) ^ a.gt(Vector(0))).select(
        bits - SIMD[bits_type, w](1), bits + SIMD[bits_type, w](1)
    )
    var smallest = copysign(bitcast[dtype, w](SIMD[bits_type, w](1)), b)
    var result = a.eq(Vector(0)).select(smallest, bitcast[dtype, w](step))
    result = a.eq(b).select(b, result)
    return (isnan(a) | isnan(b)).select(Vector(nan[dtype]()), result)
