"""The Airy function, scaled error functions and what follows from them, and the Hurwitz zeta function.

For float32 and float64 vectors; series are fitted to 40-digit values.
"""

from mojo_kernels.bessel import chebyshev
from mojo_kernels.math import PI, exp, log, log1p, pow, sqrt
from mojo_kernels.special import erfc, erfinv, lgamma
from mojo_kernels.trigonometry import cos, sin
from std.math import floor
from std.utils.numerics import inf, isinf, isnan, nan


@inline(.always)
def _erfcx[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """(1 + 2 x) exp(x^2) erfc(x), x = 4 (1 + t) / (1 - t)."""
    return chebyshev[
        1.1774832005374487,
        -0.007260796620301901,
        -0.081265123236185,
        0.06009212804122225,
        -0.02875393558027666,
        0.01059566336347286,
        -0.003136927294554264,
        0.0007456494372536184,
        -0.0001369696503010054,
        1.7183861600300937e-05,
        -7.158364623450346e-07,
        -2.4261399442449534e-07,
        5.5765709395703566e-08,
        -2.1057869513809494e-09,
        -1.1717889351884957e-09,
        1.9098355172456688e-10,
        1.408871764208813e-11,
        -6.901108320480815e-12,
        9.167958364111294e-14,
        2.1454508286554553e-13,
        -1.4716575027010623e-14,
        -6.668675118770408e-15,
        7.504598509880083e-16,
        2.22009300666632e-16,
        -3.1704898956330886e-17,
    ](t)


@inline(.always)
def _airy_middle[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Ai(3 t - 1)."""
    return chebyshev[
        0.06078525685079726,
        0.18996030881729123,
        -0.250924387032336,
        -0.09512014013503055,
        0.20236324198370076,
        -0.06418728306305249,
        -0.026814703186039963,
        0.024051904281273857,
        -0.00413259164974895,
        -0.0020196817905494225,
        0.0011250768750654559,
        -0.00011697538709676606,
        -7.125499253060682e-05,
        2.8167833107042442e-05,
        -1.7594742389691562e-06,
        -1.4587201524168717e-06,
        4.388747958436033e-07,
        -1.4627095866197506e-08,
        -1.9495992841846798e-08,
        4.660552774163884e-09,
        -5.106245117904234e-11,
        -1.8343326708789198e-10,
        3.5857642041278925e-11,
        2.658241327479573e-13,
        -1.2805447574198059e-12,
        2.0885896604502407e-13,
        4.8741837202287105e-15,
        -6.895080927885035e-15,
        9.51965014570017e-16,
        3.5978991422145034e-17,
        -2.9502705833721254e-17,
        3.483989442459416e-18,
    ](t)


@inline(.always)
def _airy_large[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """2 sqrt(pi) x^(1/4) exp(z) Ai(x), z = 2/3 x^(3/2) = 2 z(2) / (t + 1)."""
    return chebyshev[
        0.9844053049171552,
        -0.014792784850104199,
        0.0007327177465426715,
        -6.12595423417825e-05,
        6.83476697557269e-06,
        -9.237229735403982e-07,
        1.436225340438052e-07,
        -2.489319422322096e-08,
        4.709793440054328e-09,
        -9.583863708112733e-10,
        2.0745855483677591e-10,
        -4.737267332192277e-11,
        1.1336099808224236e-11,
        -2.827706782319351e-12,
        7.320712095125598e-13,
        -1.9599793911089723e-13,
        5.4101162570683925e-14,
        -1.5356466802223836e-14,
        4.472340393300025e-15,
        -1.3338094674756683e-15,
        4.066582046456231e-16,
        -1.265583225645289e-16,
        4.015126334015871e-17,
        -1.2969972135960937e-17,
    ](t)


@inline(.always)
def _airy_p[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The even part of the oscillation at -x, z = 2/3 x^(3/2), 2 (16 / 3 z)^2 = t + 1.
    """
    return chebyshev[
        0.9993708890742778,
        -0.0006216836584374116,
        7.181193774368645e-06,
        -2.316269813501758e-07,
        1.3216283888528755e-08,
        -1.0938736172758127e-09,
        1.1794620737908535e-10,
        -1.5518841909929856e-11,
        2.386927411492466e-12,
        -4.16552889201035e-13,
        8.071678110741467e-14,
        -1.708757321110567e-14,
        3.902945148540815e-15,
        -9.523976784907064e-16,
        2.4632810885752603e-16,
        -6.709077463464858e-17,
        1.913939683718707e-17,
    ](t)


@inline(.always)
def _airy_q[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The odd part, times 3 z / 16; as `_airy_p`."""
    return chebyshev[
        0.012904069793077502,
        -0.00011417159701561301,
        2.47015331514187e-06,
        -1.1276384836703058e-07,
        8.114132516809686e-09,
        -7.96449699929011e-10,
        9.810535081564676e-11,
        -1.438554557834067e-11,
        2.4232142723810082e-12,
        -4.572243294578044e-13,
        9.485713571010158e-14,
        -2.1334713360480614e-14,
        5.145258245310423e-15,
        -1.3189653961186086e-15,
        3.5685214438497966e-16,
        -1.0130701015142451e-16,
        3.003133317484731e-17,
        -9.257863950661511e-18,
        2.957519212083962e-18,
        -9.761492965947038e-19,
        3.320022740137399e-19,
    ](t)


@inline(.always)
def erfcx[dtype: DType, w: SIMDLength, //](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The scaled complementary error function exp(x^2) erfc(x).

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values.
    """
    comptime Vector = SIMD[dtype, w]
    var size = abs(x)
    var large = min(size, Vector(1e30))
    var positive = _erfcx((large - 4) / (large + 4)) / (1 + 2 * size)
    var below = max(x, Vector(-30))
    var negative = 2 * exp(below * below) - positive
    return x.lt(Vector(0)).select(negative, positive)


@inline(.always)
def log_ndtr[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The logarithm of the normal distribution function.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values.
    """
    comptime Vector = SIMD[dtype, w]
    var scaled = x * Vector(0.70710678118654752)
    var tail = log(erfcx(-scaled) * 0.5) - scaled * scaled
    return x.lt(Vector(-1)).select(tail, log1p(-0.5 * erfc(scaled)))


@inline(.always)
def ndtri[dtype: DType, w: SIMDLength, //](p: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The inverse of the normal distribution function.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        p: Probabilities; outside [0, 1] the result is NaN.

    Returns:
        The quantiles.
    """
    comptime Vector = SIMD[dtype, w]
    comptime tiniest = 1e-300 if dtype == DType.float64 else 1e-37
    var upper = p.gt(Vector(0.5))
    var tail = upper.select(1 - p, p)
    # Below 0.02 the inverse error function would lose digits: the leading terms of its asymptotic form start there.
    var safe = max(tail, Vector(tiniest))
    var r = sqrt(-2 * log(safe))
    var x = tail.lt(Vector(0.02)).select(
        -(r - log(r * Vector(2.5066282746310002)) / r),
        Vector(1.4142135623730950) * erfinv(2 * tail - 1),
    )
    # Halley's steps on log(ndtr(x)) = log(tail), whose derivative is sqrt(2 / pi) / erfcx(-x / sqrt(2)).
    comptime for _ in range(3):
        var slope = Vector(0.79788456080286536) / erfcx(
            x * Vector(-0.70710678118654752)
        )
        var step = (log_ndtr(x) - log(safe)) / slope
        x -= step / (1 - 0.5 * step * (-x - slope))
    x = upper.select(-x, x)
    x = p.eq(Vector(0.5)).select(Vector(0), x)
    x = p.eq(Vector(0)).select(Vector(-inf[dtype]()), x)
    x = p.eq(Vector(1)).select(Vector(inf[dtype]()), x)
    return (p.ge(Vector(0)) & p.le(Vector(1))).select(x, Vector(nan[dtype]()))


@inline(.always)
def airy_ai[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The Airy function of the first kind.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.

    Args:
        x: The arguments.

    Returns:
        The values.
    """
    comptime Vector = SIMD[dtype, w]
    var middle = _airy_middle((min(max(x, Vector(-4)), Vector(2)) + 1) / 3)
    var right = min(max(x, Vector(2)), Vector(1e6))
    var z = right * sqrt(right) * Vector(2.0 / 3)
    var falling = (
        _airy_large(Vector(3.7712361663282534) / z - 1)
        * exp(-z)
        / (Vector(3.5449077018110321) * sqrt(sqrt(right)))
    )
    var left = max(-x, Vector(4))
    var y = left * sqrt(left) * Vector(2.0 / 3)
    var ratio = Vector(16.0 / 3) / y
    var t = 2 * ratio * ratio - 1
    var phase = y + Vector(PI / 4)
    var waves = (_airy_p(t) * sin(phase) - ratio * _airy_q(t) * cos(phase)) / (
        Vector(1.7724538509055160) * sqrt(sqrt(left))
    )
    var result = x.gt(Vector(2)).select(falling, middle)
    return x.lt(Vector(-4)).select(waves, result)


@inline(.always)
def zeta[dtype: DType](s: Scalar[dtype], q: Scalar[dtype]) -> Scalar[dtype]:
    """The Hurwitz zeta function, the sum of (q + k)^-s over k >= 0, by the Euler-Maclaurin formula.

    Parameters:
        dtype: float32 or float64.

    Args:
        s: The exponent; below 1 the result is NaN, at 1 infinity.
        q: The offset; infinity at negative integers, NaN below 0 where s is not an integer.

    Returns:
        The sum.
    """
    comptime S = Scalar[dtype]
    if s == 1:
        return inf[dtype]()
    if not (s > 1):
        return nan[dtype]()
    if q <= 0:
        if q == floor(q):
            return inf[dtype]()
        if s != floor(s):
            return nan[dtype]()
    var total = S(0)
    var a = q
    var terms = 0
    while terms < 9 or a <= 9:
        total += pow(a, -s)
        a += 1
        terms += 1
    total += pow(a, 1 - s) / (s - 1) + pow(a, -s) * 0.5
    # Bernoulli numbers B_2j / (2j)!.
    comptime corrections = (
        8.3333333333333333e-2,
        -1.3888888888888889e-3,
        3.3068783068783069e-5,
        -8.2671957671957672e-7,
        2.0876756987868099e-8,
        -5.2841901386874932e-10,
        1.3382536530684679e-11,
        -3.3896802963225829e-13,
    )
    var rising = s
    var power = pow(a, -s - 1)
    comptime for j in range(8):
        total += S(comptime (corrections[j]).cast[dtype]()) * rising * power
        rising *= (s + S(2 * j + 1)) * (s + S(2 * j + 2))
        power /= a * a
    return total


@inline(.always)
def polygamma[dtype: DType](n: Int, x: Scalar[dtype]) -> Scalar[dtype]:
    """The derivatives of the digamma function.

    Parameters:
        dtype: float32 or float64.

    Args:
        n: Which derivative, from 1.
        x: Where.

    Returns:
        The value.
    """
    comptime S = Scalar[dtype]
    if n == 1:
        # The reflection formula keeps sums short left of 0.
        if x < 0.5:
            var sine = sin(S(PI) * (x - floor(x)))
            return S(PI * PI) / (sine * sine) - zeta(S(2), 1 - x)
        return zeta(S(2), x)
    var size = exp(lgamma(S(n + 1))) * zeta(S(n + 1), x)
    return size if n % 2 == 1 else -size


@inline(.always)
def incomplete_gamma[
    dtype: DType, //, upper: Bool
](a: Scalar[dtype], x: Scalar[dtype]) -> Scalar[dtype]:
    """The regularized incomplete gamma functions.

    Parameters:
        dtype: float32 or float64.
        upper: Whether Q = 1 - P, else P.

    Args:
        a: The parameter, not negative.
        x: The argument, not negative.

    Returns:
        A number from 0 to 1; NaN outside the domain.
    """
    comptime S = Scalar[dtype]
    comptime zero = S(1) if upper else S(0)
    comptime full = S(0) if upper else S(1)
    comptime precision = S(1e-17) if dtype == DType.float64 else S(1e-9)
    if not (a >= 0 and x >= 0):
        return nan[dtype]()
    if a == 0:
        return full if x > 0 else nan[dtype]()
    if x == 0:
        return zero
    if isinf(a):
        return nan[dtype]() if isinf(x) else zero
    if isinf(x):
        return full
    var factor = exp(a * log(x) - x - lgamma(a))
    if x < a + 1:
        var term = 1 / a
        var total = term
        var k = a
        for _ in range(20000):
            k += 1
            term *= x / k
            total += term
            if term < total * precision:
                break
        var p = total * factor
        return 1 - p if upper else p
    # Lentz's method for the continued fraction of Q.
    comptime tiny = S(1e-300) if dtype == DType.float64 else S(1e-30)
    var b = x + 1 - a
    var c = 1 / tiny
    var d = 1 / b
    var h = d
    for i in range(1, 20000):
        var step = S(-i) * (S(i) - a)
        b += 2
        d = step * d + b
        d = 1 / (tiny if abs(d) < tiny else d)
        c = b + step / c
        c = tiny if abs(c) < tiny else c
        var change = c * d
        h *= change
        if abs(change - 1) < 16 * precision:
            break
    var q = h * factor
    return q if upper else 1 - q
