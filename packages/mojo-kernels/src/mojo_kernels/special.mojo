"""The error function, the gamma function and their relatives for float32 and float64 vectors (see `math`)."""

from mojo_kernels.math import PI, clamp, exp, log, polynomial, sqrt
from mojo_kernels.trigonometry import sin, tan
from std.math import copysign, fma
from std.utils.numerics import inf, nan


@inline(.always)
def _erf_near_zero[
    w: SIMDLength, //
](x: SIMD[DType.float64, w]) -> SIMD[DType.float64, w]:
    """Erf(x) for |x| <= 1."""
    return x * polynomial[
        1.1283791670955126,
        -0.37612638903183520,
        0.11283791670944184,
        -0.026866170643111374,
        5.2239776061176200e-3,
        -8.5483259292715757e-4,
        1.2055293575585292e-4,
        -1.4924712276399660e-5,
        1.6447131253159390e-6,
        -1.6206311317613116e-7,
        1.3710969859773255e-8,
        -7.7794489132478199e-10,
    ](x * x)


@inline(.always)
def _erfc_positive[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Erfc(x) for x >= 0 (float64: x >= 0.9), as exp(-x^2) times a polynomial in 1 / (1 + x / c).
    """
    var scaled: SIMD[dtype, w]
    comptime if dtype == DType.float32:
        var t = 1 / fma(x, SIMD[dtype, w](1.0 / 3), SIMD[dtype, w](1))
        scaled = t * polynomial[
            0.18805951618746849,
            0.18818590263593109,
            0.17591556208049414,
            0.16960105719242231,
            0.067863667968839363,
            0.26515081015205016,
            -0.26511533091586612,
            0.39674165664757243,
            -0.23022981518957748,
            0.043826941634438250,
        ](t)
    else:
        var t = 1 / fma(x, SIMD[dtype, w](0.25), SIMD[dtype, w](1))
        scaled = t * polynomial[
            0.14104739588102928,
            0.14104739627612481,
            0.13663965283531858,
            0.12782442891571403,
            0.11501125028665393,
            0.099065248745630007,
            0.080848544662173071,
            0.063765925764594687,
            0.038822118402645614,
            0.051551043273714227,
            -0.052045040712938493,
            0.17812120486021891,
            -0.34293374149771420,
            0.56066800262062404,
            -0.73229036987729691,
            0.74336591703142113,
            -0.57838940409130368,
            0.32593228526712012,
            -0.12266120537444573,
            0.027332828799731997,
            -2.7234819666006362e-3,
        ](t)
    var limited = clamp(x, 0.0, 30.0)
    var square = limited * limited
    # The rounding error of the square matters where the exponential is steep.
    var lost = fma(limited, limited, -square)
    return scaled * exp(-square) * (1 - lost)


@inline(.always)
def erf[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The error function.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        Values from -1 to 1.
    """
    comptime if dtype == DType.float32:
        # erf(x) / x as a rational function of x^2; beyond 3.95 the result rounds to 1.
        var limited = clamp(x, -3.95, 3.95)
        var z = limited * limited
        return (
            limited
            * polynomial[
                1.12837914,
                0.191549255,
                0.0528751786,
                0.00380807328,
                0.000284678551,
                2.02582737e-06,
            ](z)
            / polynomial[
                1.0,
                0.503088785,
                0.114559068,
                0.0150549293,
                0.00117069028,
                3.78304728e-05,
            ](z)
        )
    else:
        comptime Vector = SIMD[DType.float64, w]
        var v = x._refine[DType.float64]()
        var a = abs(v)
        var near = _erf_near_zero(clamp(v, -1.0, 1.0))
        var far = copysign(1 - _erfc_positive(a), v)
        return a.lt(Vector(1)).select(near, far)._refine[dtype]()


@inline(.always)
def erfc[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The complementary error function `1 - erf(x)`, accurate where it is tiny.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        Values from 0 to 2.
    """
    var tail = _erfc_positive(abs(x))
    var far = x.lt(SIMD[dtype, w](0)).select(2 - tail, tail)
    comptime if dtype == DType.float32:
        return far
    else:
        comptime Vector = SIMD[DType.float64, w]
        var v = x._refine[DType.float64]()
        return (
            abs(v)
            .lt(Vector(1))
            .select(
                1 - _erf_near_zero(clamp(v, -1.0, 1.0)),
                far._refine[DType.float64](),
            )
            ._refine[dtype]()
        )


@inline(.always)
def erfinv[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The inverse of the error function.

    The form is that of M. Giles, "Approximating the erfinv function" (2010); float64 adds a step of Halley's method.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values; infinite at -1 and 1, NaN beyond.
    """
    comptime Vector = SIMD[dtype, w]
    var v = -log((1 - x) * (1 + x))
    var central = polynomial[
        1.5014094215414927,
        0.24664072618924910,
        -4.1777076869189848e-3,
        -1.2537075747551625e-3,
        2.1860216065204129e-4,
        -4.3967643255665762e-6,
        -3.5288524240443295e-6,
        3.4372557094868569e-7,
        2.8534287099157240e-8,
    ](v - 2.5)
    var s = sqrt(v) - 3
    var tail: Vector
    comptime if dtype == DType.float32:
        tail = polynomial[
            2.8329771141532538,
            1.0016748296106479,
            9.4308911944776317e-3,
            -7.6358443564038796e-3,
            5.7906566775335957e-3,
            -3.6230547660341909e-3,
            1.2394515379730844e-3,
            5.1070267164691647e-5,
            -1.2161100420202634e-4,
        ](s)
    else:
        tail = polynomial[
            2.8329768878730052,
            1.0016758595534289,
            9.4420606063716073e-3,
            -7.6505058059608173e-3,
            5.7103598922180261e-3,
            -3.5473731331193447e-3,
            1.4155021744417752e-3,
            -1.2283148950637279e-4,
            -2.1972327778441338e-4,
            1.3763131909942314e-4,
            -3.9390850603491262e-5,
            5.7879991311530359e-6,
            -3.5193305999097728e-7,
        ](s)
    var y = x * v.lt(Vector(5)).select(central, tail)
    comptime if dtype == DType.float64:
        # f(y) = erf(y) - x, taken from the nearer of 0 and 1; f'' = -2 y f'.
        var a = abs(y)
        var from_one = (1 - abs(x)) - erfc(a)
        var from_zero = erf(a) - abs(x)
        var residual = a.gt(Vector(0.5)).select(from_one, from_zero)
        var slope = Vector(1.1283791670955126) * exp(-a * a)
        var step = residual / slope
        y = copysign(a - step / (1 + a * step), y)
    var is_one = abs(x).eq(Vector(1))
    return is_one.select(copysign(Vector(inf[dtype]()), x), y)


@inline(.always)
def lgamma[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The logarithm of the absolute value of the gamma function.

    Stirling's series after a shift above 8; the reflection formula below 1/2.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values; inf at 0 and at negative integers.
    """
    comptime Vector = SIMD[dtype, w]
    var infinite = Vector(inf[dtype]())
    var reflected = x.lt(Vector(0.5))
    var a = reflected.select(1 - x, x)
    var shifted = a.lt(Vector(8))
    var product = a
    comptime for i in range(1, 8):
        product = product * (a + Scalar[dtype](i))
    var z = shifted.select(a + 8, a)
    var inverse = 1 / z
    # The coefficients are B(2k) / (2k (2k - 1)).
    var series = inverse * polynomial[
        1.0 / 12,
        -1.0 / 360,
        1.0 / 1260,
        -1.0 / 1680,
        1.0 / 1188,
        -691.0 / 360360,
        1.0 / 156,
    ](inverse * inverse)
    var log_z = log(z)
    # (z - 1/2) log(z) - z + log(2 pi) / 2 + series, with z split off as (z - 1/2) + 1/2.
    var value = (z - 0.5) * (log_z - 1) + (
        Vector(0.41893853320467274178) + series
    )
    value = value - shifted.select(log(product), Vector(0))
    # To the nearest integer, which a tiny negative number is not lost in as it is in the one below.
    var fraction = abs(x - round(x))
    var sine = sin(Vector(PI) * fraction)
    var mirror = Vector(1.1447298858494001741) - log(sine) - value
    var result = reflected.select(mirror, value)
    var pole = x.le(Vector(0)) & fraction.eq(Vector(0))
    return (pole | abs(x).eq(infinite)).select(infinite, result)


@inline(.always)
def digamma[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The logarithmic derivative of the gamma function.

    The asymptotic series after a shift above 8; the reflection formula below 0.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values; infinite at 0 with the opposite sign, NaN at negative integers.
    """
    comptime Vector = SIMD[dtype, w]
    var infinite = Vector(inf[dtype]())
    var reflected = x.lt(Vector(0))
    var z = reflected.select(1 - x, x)
    var value = Vector(0)
    comptime for _ in range(8):
        var shifted = z.lt(Vector(8))
        value = value - shifted.select(1 / z, Vector(0))
        z = shifted.select(z + 1, z)
    var inverse = 1 / (z * z)
    # The coefficients are B(2k) / (2k).
    value = (
        value
        + log(z)
        - 0.5 / z
        - inverse
        * polynomial[
            1.0 / 12,
            -1.0 / 120,
            1.0 / 252,
            -1.0 / 240,
            1.0 / 132,
            -691.0 / 32760,
            1.0 / 12,
        ](inverse)
    )
    var fraction = x - round(x)
    var mirror = value - Vector(PI) / tan(Vector(PI) * fraction)
    mirror = fraction.eq(Vector(0)).select(Vector(nan[dtype]()), mirror)
    var result = reflected.select(mirror, value)
    result = x.eq(infinite).select(infinite, result)
    return x.eq(Vector(0)).select(copysign(infinite, -x), result)
