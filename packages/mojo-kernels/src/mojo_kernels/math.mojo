"""Exponentials, logarithms and powers for float32 and float64 vectors, the same on every target.

Errors stay within a few units in the last place: plain arithmetic and fused multiply-adds, no approximate GPU
instruction and no call into libm. Polynomials are minimax fits (Remez exchange) of the quantity in the comment above
them. Half types go through `widen` and `narrow`: computed in float32, rounded once.
"""

from std.math import copysign, fma
from std.memory import bitcast
from std.sys.info import CompilationTarget, is_gpu, size_of
from std.sys.intrinsics import llvm_intrinsic
from std.utils.numerics import inf, isinf, isnan, nan


comptime LOG2_E = 1.4426950408889634074
"""log2(e)."""
comptime LN_2 = 0.69314718055994530942
"""log(2)."""
comptime LN_10 = 2.30258509299404568402
"""log(10)."""
comptime PI = 3.14159265358979323846
"""The circle's circumference by its diameter."""


@inline(.always)
def compute_type[dtype: DType]() -> DType:
    """The type in which values of a type are computed and accumulated.

    Parameters:
        dtype: The storage type.

    Returns:
        float32 for the half types, else the type itself.
    """
    comptime if dtype.is_half_float():
        return DType.float32
    else:
        return dtype


@inline(.always)
def widen[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[compute_type[dtype](), w]:
    """Brings loaded values to the type that computes.

    Parameters:
        dtype: The storage type.
        w: The vector width.

    Args:
        x: The values.

    Returns:
        The same values.
    """
    return x.cast[compute_type[dtype]()]()


@inline(.always)
def unsigned_type[dtype: DType]() -> DType:
    """The unsigned integer type of the same size.

    Parameters:
        dtype: A type of 1, 2, 4 or 8 bytes.

    Returns:
        The type that holds its bits.
    """
    comptime if size_of[dtype]() == 1:
        return DType.uint8
    elif size_of[dtype]() == 2:
        return DType.uint16
    elif size_of[dtype]() == 4:
        return DType.uint32
    else:
        return DType.uint64


@inline(.always)
def mantissa_bits[dtype: DType]() -> Int:
    """The number of stored mantissa bits.

    Parameters:
        dtype: float32 or float64.

    Returns:
        23 or 52.
    """
    return 23 if dtype == DType.float32 else 52


@inline(.always)
def exponent_bias[dtype: DType]() -> Int:
    """The bias of the stored exponent.

    Parameters:
        dtype: float32 or float64.

    Returns:
        127 or 1023.
    """
    return 127 if dtype == DType.float32 else 1023


@inline(.always)
def narrow[
    source: DType, w: SIMDLength, //, dtype: DType
](x: SIMD[source, w]) -> SIMD[dtype, w]:
    """Rounds values to the type that is stored. For bfloat16 on x86 in integers: the compiler calls a function for every
    element, or uses an instruction that makes zeros of subnormal numbers.

    Parameters:
        source: The type of the values.
        w: The vector width.
        dtype: The type to round to, or to convert to.

    Args:
        x: The values.

    Returns:
        The nearest values, ties to even; NaN stays NaN.
    """
    comptime if (
        source == DType.float32
        and dtype == DType.bfloat16
        and not is_gpu()
        and CompilationTarget.is_x86()
    ):
        var bits = bitcast[DType.uint32, w](x.cast[DType.float32]())
        var odd = (bits >> 16) & 1
        var rounded = (bits + (odd + 0x7FFF)) >> 16
        var quiet = (bits >> 16) | 0x40
        return bitcast[dtype, w](
            isnan(x).select(quiet, rounded).cast[DType.uint16]()
        )
    else:
        return x.cast[dtype]()


@inline(.always)
def to_bits[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[unsigned_type[dtype](), w]:
    """The bits of floats.

    Parameters:
        dtype: A floating type.
        w: The vector width.

    Args:
        x: The values.

    Returns:
        Their bits as unsigned integers.
    """
    return bitcast[unsigned_type[dtype](), w](x)


@inline(.always)
def sqrt[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The square root, correctly rounded: std.math's is an approximation on NVIDIA GPUs.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The roots; NaN below 0.
    """
    return llvm_intrinsic["llvm.sqrt", SIMD[dtype, w], has_side_effect=False](x)


@inline(.always)
def polynomial[
    dtype: DType, w: SIMDLength, //, *coefficients: Float64
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Evaluates a polynomial by Horner's rule with fused multiply-adds.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.
        coefficients: From the constant term up.

    Args:
        x: Where.

    Returns:
        The values.
    """
    comptime n = len(coefficients)
    var result = SIMD[dtype, w](coefficients[n - 1].cast[dtype]())
    comptime for i in range(n - 2, -1, -1):
        result = fma(result, x, SIMD[dtype, w](coefficients[i].cast[dtype]()))
    return result


@inline(.always)
def round_shift[dtype: DType]() -> Scalar[dtype]:
    """Adding it rounds a small float to an integer that then stands in the low mantissa bits.
    """
    comptime if dtype == DType.float32:
        return Scalar[dtype](12582912.0)  # 1.5 * 2^23
    else:
        return Scalar[dtype](6755399441055744.0)  # 1.5 * 2^52


@inline(.always)
def power_of_two[
    dtype: DType, w: SIMDLength
](exponent: SIMD[unsigned_type[dtype](), w]) -> SIMD[dtype, w]:
    """Powers of 2 from their exponents.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        exponent: Exponents of normal numbers, in two's complement.

    Returns:
        `2^exponent`.
    """
    comptime bits = unsigned_type[dtype]()
    return bitcast[dtype, w](
        (exponent + Scalar[bits](exponent_bias[dtype]()))
        << Scalar[bits](mantissa_bits[dtype]())
    )


@inline(.always)
def _half_down[
    dtype: DType, w: SIMDLength, //
](exponent: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """An arithmetic shift right by one of two's complement in an unsigned type.
    """
    comptime if dtype == DType.uint32:
        return (exponent.cast[DType.int32]() >> 1).cast[dtype]()
    else:
        return (exponent.cast[DType.int64]() >> 1).cast[dtype]()


@inline(.always)
def _exp_tail[
    dtype: DType, w: SIMDLength, //
](r: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """exp(r) - 1 for |r| <= log(2) / 2."""
    # (exp(r) - 1 - r) / r^2
    comptime if dtype == DType.float32:
        return fma(
            r * r,
            polynomial[
                0.50000000466625466,
                0.16666666818179028,
                0.041666353537451925,
                8.3332727693990532e-3,
                1.3941102599856082e-3,
                1.9914334090143897e-4,
            ](r),
            r,
        )
    else:
        return fma(
            r * r,
            polynomial[
                0.5,
                0.16666666666666677,
                0.041666666666666702,
                8.3333333333215312e-3,
                1.3888888888866569e-3,
                1.9841269886401450e-4,
                2.4801587361051451e-5,
                2.7557243911310491e-6,
                2.7557242356578565e-7,
                2.5109147519186371e-8,
                2.0924563681140204e-9,
            ](r),
            r,
        )


@inline(.always)
def scale_by_power[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w], exponent: SIMD[unsigned_type[dtype](), w]) -> SIMD[
    dtype, w
]:
    """Multiplies by a power of 2, right also for results below the normal numbers and above all numbers.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The values.
        exponent: In two's complement, at most twice that of a normal number.

    Returns:
        `x * 2^exponent`.
    """
    var half = _half_down(exponent)
    return x * power_of_two[dtype](half) * power_of_two[dtype](exponent - half)


@inline(.always)
def clamp[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w], low: Float64, high: Float64) -> SIMD[dtype, w]:
    """Limits numbers and leaves NaN alone.

    Parameters:
        dtype: A floating type.
        w: The vector width.

    Args:
        x: The values.
        low: The least result.
        high: The greatest result.

    Returns:
        The values within the limits.
    """
    comptime Vector = SIMD[dtype, w]
    var above = x.gt(Vector(high.cast[dtype]())).select(
        Vector(high.cast[dtype]()), x
    )
    return above.lt(Vector(low.cast[dtype]())).select(
        Vector(low.cast[dtype]()), above
    )


@inline(.always)
def _reduce_exponent[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> Tuple[SIMD[unsigned_type[dtype](), w], SIMD[dtype, w]]:
    """The integer k nearest to x / log(2), in two's complement, and x - k log(2).
    """
    comptime shift = round_shift[dtype]()
    var shifted = fma(x, SIMD[dtype, w](LOG2_E), SIMD[dtype, w](shift))
    var k = shifted - shift
    comptime if dtype == DType.float32:
        var r = fma(k, SIMD[dtype, w](-0.693147182464599609375), x)
        return to_bits(shifted) - to_bits(shift), fma(
            k, SIMD[dtype, w](1.9046542821e-9), r
        )
    else:
        var r = fma(k, SIMD[dtype, w](-0.6931471805599452862), x)
        return to_bits(shifted) - to_bits(shift), fma(
            k, SIMD[dtype, w](-2.3190468138462996e-17), r
        )


@inline(.always)
def exp[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """E to the power x.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The exponents.

    Returns:
        The powers; inf above the largest number, 0 below the smallest.
    """
    comptime is_single = dtype == DType.float32
    var k, r = _reduce_exponent(
        clamp(x, -105.0 if is_single else -750.0, 89.0 if is_single else 710.0)
    )
    return scale_by_power(_exp_tail(r) + 1, k)


@inline(.always)
def exp2[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """2 to the power x.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The exponents.

    Returns:
        The powers, exact where x is an integer.
    """
    return _exp2_sum(x, SIMD[dtype, w](0))


@inline(.always)
def _exp2_sum[
    dtype: DType, w: SIMDLength, //
](high: SIMD[dtype, w], low: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """2^(high + low) for a `low` far smaller than 1."""
    comptime limit = 160.0 if dtype == DType.float32 else 1100.0
    comptime shift = round_shift[dtype]()
    var x = clamp(high, -limit, limit)
    var shifted = x + shift
    var r = (x - (shifted - shift)) + low
    return scale_by_power(
        _exp_tail(r * SIMD[dtype, w](LN_2)) + 1,
        to_bits(shifted) - to_bits(shift),
    )


@inline(.always)
def expm1[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """`exp(x) - 1` without cancellation near 0.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The exponents.

    Returns:
        The values.
    """
    comptime is_single = dtype == DType.float32
    var k, r = _reduce_exponent(
        clamp(x, -80.0 if is_single else -700.0, 89.0 if is_single else 710.0)
    )
    # 2^k (1 + q) - 1 with q = exp(r) - 1, at half the scale so that 2^k does not overflow first.
    var half_scale = power_of_two[dtype](k - 1)
    return 2 * fma(half_scale, _exp_tail(r), half_scale - 0.5)


@inline(.always)
def _log_parts[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> Tuple[SIMD[dtype, w], SIMD[dtype, w]]:
    """X = m 2^e with m in [sqrt(1/2), sqrt(2)): m and e, for positive finite x.
    """
    comptime bits = unsigned_type[dtype]()
    comptime signed = DType.int32 if dtype == DType.float32 else DType.int64
    comptime mantissa = Scalar[bits](mantissa_bits[dtype]())
    comptime sqrt_half = to_bits(Scalar[dtype](0.70710678118654752440))
    comptime smallest = 1.1754943508222875e-38 if dtype == DType.float32 else 2.2250738585072014e-308
    comptime lift = 33554432.0 if dtype == DType.float32 else 18014398509481984.0
    comptime lift_exponent = 25 if dtype == DType.float32 else 54
    var is_subnormal = x.lt(SIMD[dtype, w](smallest))
    var normal = is_subnormal.select(x * SIMD[dtype, w](lift), x)
    var exponent = (
        bitcast[signed, w](to_bits(normal) - SIMD[bits, w](sqrt_half))
        >> mantissa.cast[signed]()
    )
    var m = bitcast[dtype, w](
        to_bits(normal) - (bitcast[bits, w](exponent) << mantissa)
    )
    var e = exponent.cast[dtype]()
    return m, is_subnormal.select(e - SIMD[dtype, w](lift_exponent), e)


@inline(.always)
def _log_series[
    dtype: DType, w: SIMDLength, //
](z: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """(2 atanh(s) / s - 2) / z with z = s^2."""
    comptime if dtype == DType.float32:
        return polynomial[
            0.66666666552608690,
            0.40000123090506897,
            0.28550698970103349,
            0.23333418750836311,
        ](z)
    else:
        return polynomial[
            0.66666666666666666,
            0.40000000000000892,
            0.28571428570794768,
            0.22222222393603783,
            0.18181795448270979,
            0.15386249681084869,
            0.13268516288443394,
            0.13089219145858637,
        ](z)


@inline(.always)
def _log_special[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w], result: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The logarithm's values at 0, below it, at inf and at NaN."""
    comptime Vector = SIMD[dtype, w]
    var infinite = Vector(inf[dtype]())
    var outside = x.eq(Vector(0)).select(-infinite, Vector(nan[dtype]()))
    outside = x.eq(infinite).select(infinite, outside)
    return (x.gt(Vector(0)) & x.lt(infinite)).select(result, outside)


@inline(.always)
def _log_mantissa[
    dtype: DType, w: SIMDLength, //
](m: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Log(m) for m in [sqrt(1/2), sqrt(2)), with s = (m - 1) / (m + 1) as 2 atanh(s).
    """
    var f = m - 1
    var s = f / (f + 2)
    var z = s * s
    return fma(s * z, _log_series(z), s + s)


@inline(.always)
def log[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The natural logarithm.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The logarithms; -inf at 0, NaN below.
    """
    var m, e = _log_parts(x)
    comptime high = 0.693147182464599609375 if dtype == DType.float32 else 0.6931471805599452862
    comptime low = -1.9046542821e-9 if dtype == DType.float32 else 2.3190468138462996e-17
    var small = fma(e, SIMD[dtype, w](low), _log_mantissa(m))
    return _log_special(x, fma(e, SIMD[dtype, w](high), small))


@inline(.always)
def log2[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The logarithm to base 2.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The logarithms, exact for powers of 2; -inf at 0, NaN below.
    """
    var m, e = _log_parts(x)
    return _log_special(x, fma(_log_mantissa(m), SIMD[dtype, w](LOG2_E), e))


@inline(.always)
def log10[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The logarithm to base 10.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The logarithms; -inf at 0, NaN below.
    """
    var m, e = _log_parts(x)
    var small = _log_mantissa(m) * SIMD[dtype, w](1 / LN_10)
    return _log_special(x, fma(e, SIMD[dtype, w](LN_2 / LN_10), small))


@inline(.always)
def log1p[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """`log(1 + x)` without cancellation near 0.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The logarithms; -inf at -1, NaN below.
    """
    var u = x + 1
    # What the rounding of 1 + x lost, to first order; meaningless where log(u) is infinite.
    var lost = (x - (u - 1)) / u
    var ordinary = u.gt(SIMD[dtype, w](0)) & u.lt(SIMD[dtype, w](inf[dtype]()))
    return log(u) + ordinary.select(lost, SIMD[dtype, w](0))


@inline(.always)
def sigmoid[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The logistic function `1 / (1 + exp(-x))`.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        Values from 0 to 1.
    """
    return 1 / (1 + exp(-x))


@inline(.always)
def tanh[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The hyperbolic tangent.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        Values from -1 to 1.
    """
    # Beyond the limit the result rounds to 1.
    var t = expm1(
        2 * clamp(abs(x), 0.0, 10.0 if dtype == DType.float32 else 20.0)
    )
    return copysign(t / (t + 2), x)


@inline(.always)
def _log2_pair[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> Tuple[SIMD[dtype, w], SIMD[dtype, w]]:
    """Log2 of positive finite x as an unevaluated sum of two floats, the second far smaller.
    """
    var m, e = _log_parts(x)
    var f = m - 1
    var denominator = m + 1
    var denominator_low = m - (denominator - 1)
    var s = f / denominator
    var s_low = (fma(-s, denominator, f) - s * denominator_low) / denominator
    var z = s * s
    var tail = fma(s * z, _log_series(z), 2 * s_low)
    comptime log2_e = Float64(LOG2_E).cast[dtype]()
    comptime log2_e_low = 1.9259629911e-8 if dtype == DType.float32 else 2.0355273740931033e-17
    var doubled = s + s
    var high = doubled * log2_e
    var low = fma(doubled, SIMD[dtype, w](log2_e), -high)
    low = fma(doubled, SIMD[dtype, w](log2_e_low), low)
    low = fma(tail, SIMD[dtype, w](log2_e), low)
    # Either e is 0 or at least as large as what is added.
    var total = e + high
    return total, (high - (total - e)) + low


@inline(.always)
def pow[
    dtype: DType, w: SIMDLength, //
](base: SIMD[dtype, w], exponent: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Base to the power exponent, with the special values of C's `pow`.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        base: The bases.
        exponent: The exponents.

    Returns:
        The powers; NaN for a negative base and a fractional exponent.
    """
    comptime Vector = SIMD[dtype, w]
    var infinite = Vector(inf[dtype]())
    var a = abs(base)
    var high, low = _log2_pair(a)
    var product = exponent * high
    var product_low = fma(exponent, low, fma(exponent, high, -product))
    comptime limit = 200.0 if dtype == DType.float32 else 1200.0
    product_low = abs(product).lt(Vector(limit)).select(product_low, Vector(0))
    var magnitude = _exp2_sum(product, product_low)

    var grows = exponent.gt(Vector(0))
    var zero_or_infinite = a.eq(infinite) ^ grows
    var extreme = zero_or_infinite.select(Vector(0), infinite)
    magnitude = (a.eq(infinite) | a.eq(Vector(0))).select(extreme, magnitude)
    magnitude = a.eq(Vector(1)).select(Vector(1), magnitude)
    # An odd integer is not a multiple of 2; half an odd integer is no integer.
    var is_integer = round(exponent).eq(exponent)
    var half = exponent * 0.5
    var is_odd = is_integer & round(half).ne(half)
    var is_negative = to_bits(base).ge(
        SIMD[unsigned_type[dtype](), w](1)
        << SIMD[unsigned_type[dtype](), w](size_of[dtype]() * 8 - 1)
    )
    var result = (is_negative & is_odd).select(-magnitude, magnitude)
    var undefined = (
        is_negative
        & ~is_integer
        & abs(exponent).lt(infinite)
        & a.gt(Vector(0))
        & a.lt(infinite)
    )
    result = undefined.select(Vector(nan[dtype]()), result)
    result = (isnan(base) | isnan(exponent)).select(
        Vector(nan[dtype]()), result
    )
    return (exponent.eq(Vector(0)) | base.eq(Vector(1))).select(
        Vector(1), result
    )
