"""Trigonometric and hyperbolic functions and their inverses for float32 and float64 vectors (see `math`)."""

from mojo_kernels.math import (
    LN_2,
    PI,
    clamp,
    exp,
    expm1,
    exponent_bias,
    log,
    log1p,
    mantissa_bits,
    polynomial,
    round_shift,
    sqrt,
    to_bits,
    unsigned_type,
)
from std.math import copysign, fma
from std.utils.numerics import inf, isnan, nan
from std.utils.static_tuple import StaticTuple

comptime _TWO_BY_PI = StaticTuple[UInt64, 21](
    0,
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
)
"""64 zero bits, then the first 1280 fractional bits of 2 / pi."""


@inline(.always)
def _multiply_high(a: UInt64, b: UInt64) -> UInt64:
    """The upper 64 bits of a product, from 32-bit halves: not every GPU has 128-bit integers.
    """
    var a_low = a & 0xFFFFFFFF
    var a_high = a >> 32
    var b_low = b & 0xFFFFFFFF
    var b_high = b >> 32
    var middle = a_high * b_low + (a_low * b_low >> 32)
    var other = a_low * b_high + (middle & 0xFFFFFFFF)
    return a_high * b_high + (middle >> 32) + (other >> 32)


@inline(.never)
def _reduce_large[
    dtype: DType, //
](x: Scalar[dtype]) -> Tuple[Scalar[unsigned_type[dtype]()], Scalar[dtype]]:
    """As `_reduce_angle` for one large argument: Payne and Hanek's method, 192 bits of 2 / pi around the binary point.
    """
    comptime bits_type = unsigned_type[dtype]()
    comptime mantissa = mantissa_bits[dtype]()
    var bits = UInt64(to_bits(abs(x)))
    # x = m 2^e; bits of 2 / pi whose product with x is a multiple of 4 are skipped.
    var m = (bits & ((1 << UInt64(mantissa)) - 1)) | (1 << UInt64(mantissa))
    var e = Int(bits >> UInt64(mantissa)) - exponent_bias[dtype]() - mantissa
    var position = e - 2 + 64
    var table = materialize[_TWO_BY_PI]()
    var shift = UInt64(position & 63)
    var window = StaticTuple[UInt64, 3](fill=0)
    comptime for i in range(3):
        var word = table[position // 64 + i] << shift
        if shift != 0:
            word |= table[position // 64 + i + 1] >> (64 - shift)
        window[i] = word
    var low = m * window[2]
    var carry = _multiply_high(m, window[2])
    var middle = m * window[1] + carry
    var high = m * window[0] + _multiply_high(m, window[1])
    if middle < carry:
        high += 1
    var quadrant = high >> 62
    var fraction = (high << 2) | (middle >> 62)
    var fraction_low = (middle << 2) | (low >> 62)
    quadrant += fraction >> 63
    comptime two_to_minus_64 = 5.421010862427522e-20
    var r = (
        fraction.cast[DType.int64]().cast[dtype]()
        + fraction_low.cast[dtype]() * Scalar[dtype](two_to_minus_64)
    ) * Scalar[dtype](two_to_minus_64 * PI / 2)
    if x < 0:
        return (-quadrant).cast[bits_type](), -r
    return quadrant.cast[bits_type](), r


@inline(.always)
def _reduce_angle[
    dtype: DType, w: SIMDLength, //, bounded: Bool = False
](x: SIMD[dtype, w]) -> Tuple[SIMD[unsigned_type[dtype](), w], SIMD[dtype, w]]:
    """The integer k nearest to x / (pi / 2), right modulo 4, and x - k pi / 2.
    """
    comptime Vector = SIMD[dtype, w]
    comptime shift = round_shift[dtype]()
    var shifted = fma(x, Vector(2 / PI), Vector(shift))
    var k = shifted - shift
    var quadrant = to_bits(shifted)
    var r: Vector
    comptime if dtype == DType.float32:
        r = fma(k, Vector(-1.5707963705062866), x)
        r = fma(k, Vector(4.371138828673793e-08), r)
        r = fma(k, Vector(1.7151245100058819e-15), r)
    else:
        r = fma(k, Vector(-1.5707963267948966), x)
        r = fma(k, Vector(-6.123233995736766e-17), r)
        r = fma(k, Vector(1.4973849048591698e-33), r)
    comptime if bounded:
        return quadrant, r
    comptime limit = 65536.0 if dtype == DType.float32 else 1073741824.0
    var is_large = abs(x).gt(Vector(limit)) & abs(x).lt(Vector(inf[dtype]()))
    if is_large.reduce_or():
        for i in range(Int(w)):
            if is_large[i]:
                var lane_quadrant, lane_r = _reduce_large(x[i])
                quadrant[i] = lane_quadrant
                r[i] = lane_r
    # NaN for infinite arguments: k is infinite then.
    return quadrant, r


@inline(.always)
def _sin_reduced[
    dtype: DType, w: SIMDLength, //
](r: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Sin(r) for |r| <= pi / 4."""
    var z = r * r
    var p: SIMD[dtype, w]
    # (sin(r) / r - 1) / r^2
    comptime if dtype == DType.float32:
        p = polynomial[
            -0.16666666663849635,
            8.3333318719688383e-3,
            -1.9840085079146118e-4,
            2.7249695942387390e-6,
        ](z)
    else:
        p = polynomial[
            -0.16666666666666667,
            8.3333333333333315e-3,
            -1.9841269841265043e-4,
            2.7557319219322199e-6,
            -2.5052106226498753e-8,
            1.6058530669180032e-10,
            -7.5866407943986069e-13,
        ](z)
    return fma(r * z, p, r)


@inline(.always)
def _cos_reduced[
    dtype: DType, w: SIMDLength, //
](r: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Cos(r) for |r| <= pi / 4."""
    var z = r * r
    var p: SIMD[dtype, w]
    # (cos(r) - 1 + r^2 / 2) / r^4
    comptime if dtype == DType.float32:
        p = polynomial[
            0.041666666664315817,
            -1.3888887669534392e-3,
            2.4800598910841807e-5,
            -2.7300758285270436e-7,
        ](z)
    else:
        p = polynomial[
            0.041666666666666667,
            -1.3888888888888888e-3,
            2.4801587301584634e-5,
            -2.7557319221393301e-7,
            2.0876755787744996e-9,
            -1.1470460355502389e-11,
            4.7458403694948518e-14,
        ](z)
    return fma(z * z, p, fma(z, SIMD[dtype, w](-0.5), SIMD[dtype, w](1)))


@inline(.always)
def _sin_quadrant[
    dtype: DType, w: SIMDLength
](quadrant: SIMD[unsigned_type[dtype](), w], r: SIMD[dtype, w]) -> SIMD[
    dtype, w
]:
    """Sin(quadrant pi / 2 + r)."""
    var value = (quadrant & 1).ne(0).select(_cos_reduced(r), _sin_reduced(r))
    return (quadrant & 2).ne(0).select(-value, value)


@inline(.always)
def sin[
    dtype: DType, w: SIMDLength, //, bounded: Bool = False
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The sine.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.
        bounded: Whether no angle is larger than 65536.

    Args:
        x: Angles in radians, of any size.

    Returns:
        The values; NaN for infinite angles.
    """
    var quadrant, r = _reduce_angle[bounded](x)
    return _sin_quadrant(quadrant, r)


@inline(.always)
def cos[
    dtype: DType, w: SIMDLength, //, bounded: Bool = False
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The cosine.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.
        bounded: Whether no angle is larger than 65536.

    Args:
        x: Angles in radians, of any size.

    Returns:
        The values; NaN for infinite angles.
    """
    var quadrant, r = _reduce_angle[bounded](x)
    return _sin_quadrant(quadrant + 1, r)


@inline(.always)
def tan[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The tangent.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: Angles in radians, of any size.

    Returns:
        The values; NaN for infinite angles.
    """
    var quadrant, r = _reduce_angle(x)
    var s = _sin_reduced(r)
    var c = _cos_reduced(r)
    var is_odd = (quadrant & 1).ne(0)
    return is_odd.select(-c, s) / is_odd.select(s, c)


@inline(.always)
def _atan_reduced[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Atan(t) for |t| <= tan(pi / 8)."""
    var z = t * t
    var p: SIMD[dtype, w]
    # (atan(t) / t - 1) / t^2
    comptime if dtype == DType.float32:
        p = polynomial[
            -0.33333331857339898,
            0.19999557885582182,
            -0.14264450323979415,
            0.10748238360050767,
            -0.064647644132419593,
        ](z)
    else:
        p = polynomial[
            -0.33333333333333333,
            0.19999999999999814,
            -0.14285714285662016,
            0.11111111105350238,
            -0.090909087623951115,
            0.076922966119327555,
            -0.066664288189114578,
            0.058789709264505855,
            -0.052307413274952057,
            0.045528132018512105,
            -0.034599853317732933,
            0.016316115894405987,
        ](z)
    return fma(t * z, p, t)


@inline(.always)
def _atan_quotient[
    dtype: DType, w: SIMDLength, //
](numerator: SIMD[dtype, w], denominator: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Atan(numerator / denominator) for operands from 0 up, not both 0, with one division.
    """
    comptime Vector = SIMD[dtype, w]
    var is_large = numerator.gt(denominator * Vector(2.41421356237309505))
    var is_middle = (~is_large) & numerator.gt(
        denominator * Vector(0.41421356237309505)
    )
    var top = is_large.select(-denominator, numerator)
    top = is_middle.select(numerator - denominator, top)
    var bottom = is_large.select(numerator, denominator)
    bottom = is_middle.select(numerator + denominator, bottom)
    var base = is_large.select(Vector(PI / 2), Vector(0))
    base = is_middle.select(Vector(PI / 4), base)
    return base + _atan_reduced(top / bottom)


@inline(.always)
def atan[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The inverse tangent.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        Angles in radians from -pi / 2 to pi / 2.
    """
    return copysign(_atan_quotient(abs(x), SIMD[dtype, w](1)), x)


@inline(.always)
def atan2[
    dtype: DType, w: SIMDLength, //
](y: SIMD[dtype, w], x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The angle of the point (x, y), with the special values of C's `atan2`.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        y: The ordinates.
        x: The abscissas.

    Returns:
        Angles in radians from -pi to pi.
    """
    comptime Vector = SIMD[dtype, w]
    comptime bits = unsigned_type[dtype]()
    var a = abs(y)
    var b = abs(x)
    # Divided by 4, so that the sum of two large numbers is finite; the angles of zeros and of infinities are chosen.
    var infinite = Vector(inf[dtype]())
    var both_infinite = a.eq(infinite) & b.eq(infinite)
    var both_zero = a.eq(Vector(0)) & b.eq(Vector(0))
    var numerator = both_infinite.select(Vector(1), a * 0.25)
    var denominator = both_infinite.select(Vector(1), b * 0.25)
    # The division would lose the last bits of the smallest numbers.
    var is_small = a.lt(Vector(1)) & b.lt(Vector(1))
    numerator = is_small.select(a, numerator)
    denominator = is_small.select(b, denominator)
    denominator = both_zero.select(Vector(1), denominator)
    var angle = _atan_quotient(numerator, denominator)
    var x_is_negative = (
        to_bits(x)
        >> SIMD[bits, w](
            mantissa_bits[dtype]() + (8 if dtype == DType.float32 else 11)
        )
    ).ne(0)
    angle = x_is_negative.select(Vector(PI) - angle, angle)
    var either_nan = isnan(x) | isnan(y)
    return either_nan.select(Vector(nan[dtype]()), copysign(angle, y))


@inline(.always)
def _asin_reduced[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Asin(x) for |x| <= 1 / 2."""
    var z = x * x
    var p: SIMD[dtype, w]
    # (asin(x) / x - 1) / x^2
    comptime if dtype == DType.float32:
        p = polynomial[
            0.16666673150254109,
            0.074987593538623648,
            0.045020759862505714,
            0.026429305309230678,
            0.038337544294682527,
        ](z)
    else:
        p = polynomial[
            0.16666666666666646,
            0.075000000000233795,
            0.044642857099205673,
            0.030381947632162286,
            0.022372039094906083,
            0.017355420267477235,
            0.013927776919844285,
            0.011889587754799373,
            7.7349559630970987e-3,
            0.016239153282191669,
            -0.011093636917273417,
            0.028420967413110941,
        ](z)
    return fma(x * z, p, x)


@inline(.always)
def asin[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The inverse sine.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        Angles in radians from -pi / 2 to pi / 2; NaN beyond -1 and 1.
    """
    comptime Vector = SIMD[dtype, w]
    var a = abs(x)
    var is_large = a.gt(Vector(0.5))
    var part = _asin_reduced(is_large.select(sqrt((1 - a) * 0.5), a))
    var angle = is_large.select(Vector(PI / 2) - 2 * part, part)
    return copysign(angle, x)


@inline(.always)
def acos[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The inverse cosine.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        Angles in radians from 0 to pi; NaN beyond -1 and 1.
    """
    comptime Vector = SIMD[dtype, w]
    var a = abs(x)
    var is_large = a.gt(Vector(0.5))
    var part = _asin_reduced(is_large.select(sqrt((1 - a) * 0.5), x))
    var large = x.lt(Vector(0)).select(Vector(PI) - 2 * part, 2 * part)
    return is_large.select(large, Vector(PI / 2) - part)


@inline(.always)
def _exp_half_squared[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Exp(x) / 2 where exp(x) itself may overflow."""
    var root = exp(x * 0.5)
    return (0.5 * root) * root


@inline(.always)
def sinh[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The hyperbolic sine.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values.
    """
    comptime limit = 80.0 if dtype == DType.float32 else 700.0
    var a = abs(x)
    var e = expm1(clamp(a, 0.0, limit))
    var small = 0.5 * (e + e / (e + 1))
    return copysign(
        a.gt(SIMD[dtype, w](limit)).select(_exp_half_squared(a), small), x
    )


@inline(.always)
def cosh[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The hyperbolic cosine.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values.
    """
    var half = _exp_half_squared(abs(x))
    return half + 0.25 / half


@inline(.always)
def asinh[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The inverse hyperbolic sine.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values.
    """
    comptime large = 1e9 if dtype == DType.float32 else 1e18
    var a = abs(x)
    var square = a * a
    var small = log1p(a + square / (1 + sqrt(square + 1)))
    return copysign(
        a.gt(SIMD[dtype, w](large)).select(
            log(a) + SIMD[dtype, w](LN_2), small
        ),
        x,
    )


@inline(.always)
def acosh[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The inverse hyperbolic cosine.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values; NaN below 1.
    """
    comptime large = 1e9 if dtype == DType.float32 else 1e18
    var t = x - 1
    var small = log1p(t + sqrt(fma(t, t, 2 * t)))
    var result = x.gt(SIMD[dtype, w](large)).select(
        log(x) + SIMD[dtype, w](LN_2), small
    )
    return x.lt(SIMD[dtype, w](1)).select(SIMD[dtype, w](nan[dtype]()), result)


@inline(.always)
def atanh[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The inverse hyperbolic tangent.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values; infinite at -1 and 1, NaN beyond.
    """
    var a = abs(x)
    return copysign(0.5 * log1p(2 * a / (1 - a)), x)
