"""Bessel functions: Chebyshev series fitted to 40-digit values.

Everything is for float32 and float64 vectors; coefficients are those of the interval that each comment names.
"""

from mojo_kernels.math import PI, exp, log, sqrt
from mojo_kernels.trigonometry import cos, sin
from std.math import fma
from std.utils.numerics import inf, nan


@inline(.always)
def chebyshev[
    dtype: DType, w: SIMDLength, //, *coefficients: Float64
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Evaluates a Chebyshev series by Clenshaw's recurrence.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.
        coefficients: Of T_0, T_1, ...

    Args:
        t: Where, in [-1, 1].

    Returns:
        The values.
    """
    comptime Vector = SIMD[dtype, w]
    comptime n = len(coefficients)
    var twice = t + t
    var next = Vector(0)
    var last = Vector(coefficients[n - 1].cast[dtype]())
    comptime for i in range(n - 2, 0, -1):
        var value = fma(
            twice, last, Vector(coefficients[i].cast[dtype]()) - next
        )
        next = last
        last = value
    return fma(t, last, Vector(coefficients[0].cast[dtype]()) - next)


@inline(.always)
def _i0_small[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Exp(-x) I0(x), x = 4 (t + 1)."""
    return chebyshev[
        0.33839763720473803,
        -0.3046826723431984,
        0.17162090152220877,
        -0.09490109704804764,
        0.04930528423967071,
        -0.02373741480589947,
        0.010546460394594998,
        -0.004324309995050576,
        0.0016394756169413357,
        -0.0005763755745385824,
        0.00018850288509584165,
        -5.754195010082104e-05,
        1.6448448070728896e-05,
        -4.4167383584587505e-06,
        1.1173875391201037e-06,
        -2.670793853940612e-07,
        6.046995022541919e-08,
        -1.300025009986248e-08,
        2.6598237246823866e-09,
        -5.189795601635263e-10,
        9.675809035373237e-11,
        -1.726826291441556e-11,
        2.95505266312964e-12,
        -4.856446783111929e-13,
        7.676185498604936e-14,
        -1.1685332877993451e-14,
        1.715391285555133e-15,
        -2.431279846547955e-16,
        3.3307945188222384e-17,
        -4.4153416464793395e-18,
    ](t)


@inline(.always)
def _i0_large[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Exp(-x) sqrt(x) I0(x), x = 16 / (t + 1)."""
    return chebyshev[
        0.4022452055070544,
        0.0033691164782556943,
        6.889758346916825e-05,
        2.8913705208347567e-06,
        2.0489185894690638e-07,
        2.266668990498178e-08,
        3.3962320257083865e-09,
        4.94060238822497e-10,
        1.1889147107846439e-11,
        -3.1499165279632416e-11,
        -1.3215811840447713e-11,
        -1.7941785315068062e-12,
        7.180124451383666e-13,
        3.8527783827421426e-13,
        1.54008621752141e-14,
        -4.150569347287222e-14,
        -9.554846698828307e-15,
        3.8116806693526224e-15,
        1.7725601330565263e-15,
        -3.425485619677219e-16,
        -2.8276239805165836e-16,
        3.461222867697461e-17,
        4.46562142029676e-17,
        -4.830504485944182e-18,
        -7.233180487874754e-18,
    ](t)


@inline(.always)
def _i1_small[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Exp(-x) I1(x) / x, x = 4 (t + 1)."""
    return chebyshev[
        0.12629359322181682,
        -0.17641651835783406,
        0.1026436586898471,
        -0.05294598120809499,
        0.024726449030626516,
        -0.010564084894626197,
        0.004156422944312888,
        -0.0015135724506312532,
        0.0005122859561685758,
        -0.00016176081582589674,
        4.781565107550054e-05,
        -1.3273163656039436e-05,
        3.4702513081376785e-06,
        -8.568720264695455e-07,
        2.0032947535521353e-07,
        -4.445059128796328e-08,
        9.381537386495773e-09,
        -1.8872497517228294e-09,
        3.625590281552117e-10,
        -6.663489723502027e-11,
        1.1736186298890901e-11,
        -1.9839743977649436e-12,
        3.223793365945575e-13,
        -5.042185504727912e-14,
        7.600684294735408e-15,
        -1.1055969477353862e-15,
        1.5536319577362005e-16,
        -2.111421214358166e-17,
        2.7779141127610464e-18,
    ](t)


@inline(.always)
def _i1_large[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Exp(-x) sqrt(x) I1(x), x = 16 / (t + 1)."""
    return chebyshev[
        0.38928811750914005,
        -0.009761097491361469,
        -0.00011058893876262371,
        -3.882564808877691e-06,
        -2.512236237870209e-07,
        -2.6314688468895196e-08,
        -3.835380385964237e-09,
        -5.589743462196584e-10,
        -1.8974958123505413e-11,
        3.2526035830154884e-11,
        1.4125807436613782e-11,
        2.0356285441470896e-12,
        -7.198551776245908e-13,
        -4.0835511110921974e-13,
        -2.1015418427726643e-14,
        4.272440016711951e-14,
        1.0420276984128802e-14,
        -3.8144030724370075e-15,
        -1.8803547755107825e-15,
        3.3082023109209285e-16,
        2.96262899764595e-16,
        -3.209525921993424e-17,
        -4.6503053684893586e-17,
        4.414348323071708e-18,
        7.517296310842105e-18,
    ](t)


@inline(.always)
def _k0_small[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """K0(x) + log(x / 2) I0(x), x^2 = 2 (t + 1)."""
    return chebyshev[
        -0.2676636966169514,
        0.3442898999246285,
        0.0359799365153615,
        0.001264615411446926,
        2.286212103119452e-05,
        2.5347910790261494e-07,
        1.904516377220209e-09,
        1.0349695257633625e-11,
        4.2598161427910826e-14,
        1.3744654358807508e-16,
    ](t)


@inline(.always)
def _k0_large[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Exp(x) sqrt(x) K0(x), x = 4 / (t + 1)."""
    return chebyshev[
        1.2201515410329777,
        -0.0314481013119645,
        0.0015698838857300533,
        -0.00012849549581627802,
        1.39498137188765e-05,
        -1.8317555227191195e-06,
        2.766813639445015e-07,
        -4.660489897687948e-08,
        8.574034017414225e-09,
        -1.6975345093890614e-09,
        3.5773972814003283e-10,
        -7.957489244477396e-11,
        1.8559491149549264e-11,
        -4.514597883374519e-12,
        1.1403405882073441e-12,
        -2.9800969231481784e-13,
        8.032890775068375e-14,
        -2.2275133267462965e-14,
        6.340076476276646e-15,
        -1.848593377920907e-15,
        5.5120559994043335e-16,
        -1.6782311257549006e-16,
        5.2103917776435543e-17,
        -1.6475805939842632e-17,
    ](t)


@inline(.always)
def _k1_small[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """X (K1(x) - log(x / 2) I1(x)), x^2 = 2 (t + 1)."""
    return chebyshev[
        0.7626501136694739,
        -0.3531559607765449,
        -0.12261118082265715,
        -0.006975723859639864,
        -0.0001730288957513052,
        -2.4334061415659684e-06,
        -2.213387630734726e-08,
        -1.4114883926335278e-10,
        -6.666901694199329e-13,
        -2.427449850519366e-15,
    ](t)


@inline(.always)
def _k1_large[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Exp(x) sqrt(x) K1(x), x = 4 / (t + 1)."""
    return chebyshev[
        1.3603130952422213,
        0.10392373657681724,
        -0.002857816859622779,
        0.00019521551847135162,
        -1.936197974166083e-05,
        2.406484947837217e-06,
        -3.5019606030878126e-07,
        5.7410841254500495e-08,
        -1.0345762465678097e-08,
        2.0150497551970347e-09,
        -4.1903547593419254e-10,
        9.218315187605315e-11,
        -2.129967838427791e-11,
        5.139639673482343e-12,
        -1.2891739609498229e-12,
        3.348419666052243e-13,
        -8.976705182010146e-14,
        2.4771544242195988e-14,
        -7.0198370892147685e-15,
        2.038703166239861e-15,
        -6.057047270643018e-16,
        1.8380935752430455e-16,
        -5.689462849193648e-17,
        1.7940510478863572e-17,
    ](t)


@inline(.always)
def _j0_small[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """J0(x), x^2 = 32 (t + 1)."""
    return chebyshev[
        0.15772797147489012,
        -0.008723442352852221,
        0.2651786132033368,
        -0.37009499387264977,
        0.15806710233209725,
        -0.034893769411408884,
        0.004819180069467605,
        -0.00046062616620627504,
        3.246032882100508e-05,
        -1.7619469077621507e-06,
        7.608163592418782e-08,
        -2.679253530557673e-09,
        7.848696314479465e-11,
        -1.9438346867370164e-12,
        4.125320595634374e-14,
        -7.588508125447546e-16,
        1.2218515873961411e-17,
    ](t)


@inline(.always)
def _j1_small[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """J1(x) / x, x^2 = 32 (t + 1)."""
    return chebyshev[
        0.08104484632565812,
        -0.1489751450676521,
        0.1609992623572097,
        -0.08268049176681791,
        0.022213639654966037,
        -0.003646940600769276,
        0.0004050337728354822,
        -3.255554866857259e-05,
        1.9858774049915165e-06,
        -9.521984756750436e-08,
        3.687133759097148e-09,
        -1.178026622695885e-10,
        3.160154580348003e-12,
        -7.221755239651773e-14,
        1.4232144003513942e-15,
        -2.4441972916190464e-17,
    ](t)


@inline(.always)
def _y0_small[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Y0(x) - 2 / pi log(x) J0(x), x^2 = 32 (t + 1)."""
    return chebyshev[
        -0.03314611320328494,
        -0.2744743055297453,
        0.17903431407718265,
        0.26156734625504663,
        -0.17730201278114358,
        0.04719668959576339,
        -0.007287962479552079,
        0.0007531135932577742,
        -5.632079141056987e-05,
        3.206532537654801e-06,
        -1.44072332740187e-07,
        5.248794787330516e-09,
        -1.5837552541812015e-10,
        4.02633081830612e-12,
        -8.747341203310769e-14,
        1.6434898714919468e-15,
        -2.6977881152566837e-17,
    ](t)


@inline(.always)
def _y1_small[
    dtype: DType, w: SIMDLength, //
](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """(Y1(x) - 2 / pi (log(x) J1(x) - 1 / x)) / x, x^2 = 32 (t + 1)."""
    return chebyshev[
        0.0025380132357417816,
        -0.01608717304766875,
        -0.09591204536083074,
        0.08445197259652346,
        -0.028328123944594365,
        0.005289897544167113,
        -0.0006414551451326356,
        5.505982873338744e-05,
        -3.53808001868935e-06,
        1.7707804556154404e-07,
        -7.11055004989928e-09,
        2.344337905911516e-10,
        -6.4651518414115946e-12,
        1.51429151205002e-13,
        -3.0511859694473254e-15,
        5.34668038572867e-17,
    ](t)


@inline(.always)
def _p0[dtype: DType, w: SIMDLength, //](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """P0(x) of the asymptotic form, 128 / x^2 = t + 1."""
    return chebyshev[
        0.9994603493475187,
        -0.0005365220468132117,
        3.0751847875194745e-06,
        -5.1705945376060975e-08,
        1.6306464635151382e-09,
        -7.86409137723707e-11,
        5.168262387349193e-12,
        -4.3045788699253914e-13,
        4.3265957431549404e-14,
        -5.069034095935236e-15,
        6.748072215733873e-16,
        -1.0011513723467786e-16,
        1.6305919233744186e-17,
    ](t)


@inline(.always)
def _q0[dtype: DType, w: SIMDLength, //](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """X / 8 Q0(x) of the asymptotic form, 128 / x^2 = t + 1."""
    return chebyshev[
        -0.015555854605337009,
        6.838519942611649e-05,
        -7.414498411060647e-07,
        1.7972457247968992e-08,
        -7.27191593686632e-10,
        4.2201219046687385e-11,
        -3.206747420996635e-12,
        3.006145125351706e-13,
        -3.336328185322427e-14,
        4.255225040245461e-15,
        -6.09993013164005e-16,
        9.662128970303257e-17,
        -1.6686065214378146e-17,
        3.1082440486738143e-18,
        -6.191115787358143e-19,
    ](t)


@inline(.always)
def _p1[dtype: DType, w: SIMDLength, //](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """P1(x) of the asymptotic form, 128 / x^2 = t + 1."""
    return chebyshev[
        1.0009030408600137,
        0.0008989898330859408,
        -3.987284300488908e-06,
        6.177633960644299e-08,
        -1.8718907491063067e-09,
        8.816898659582339e-11,
        -5.704863640395645e-12,
        4.699195515230542e-13,
        -4.6842237839904895e-14,
        5.452674896044717e-15,
        -7.221180842274018e-16,
        1.0667689114335412e-16,
        -1.7312313216116335e-17,
    ](t)


@inline(.always)
def _q1[dtype: DType, w: SIMDLength, //](t: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """X / 8 Q1(x) of the asymptotic form, 128 / x^2 = t + 1."""
    return chebyshev[
        0.04677778706953532,
        -9.62772354915708e-05,
        9.138615257955454e-07,
        -2.0959781384083424e-08,
        8.229193327650554e-10,
        -4.686363688176945e-11,
        3.5152187949686082e-12,
        -3.2643156743279e-13,
        3.5967765829165294e-14,
        -4.5612523950772974e-15,
        6.508282957783384e-16,
        -1.0269147531823243e-16,
        1.767635548776479e-17,
        -3.2834519872981614e-18,
        6.524081149589258e-19,
    ](t)


@inline(.always)
def scaled_bessel_i[
    dtype: DType, w: SIMDLength, //, order: Int
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Modified Bessel function of the first kind times exp(-|x|).

    Parameters:
        dtype: float32 or float64.
        w: The vector width.
        order: 0 or 1.

    Args:
        x: The arguments.

    Returns:
        The values.
    """
    comptime Vector = SIMD[dtype, w]
    var size = abs(x)
    var small = min(size, Vector(8)) * 0.25 - 1
    var beyond = max(size, Vector(8))
    var large = 16 / beyond - 1
    comptime if order == 0:
        return size.le(Vector(8)).select(
            _i0_small(small), _i0_large(large) / sqrt(beyond)
        )
    else:
        var result = size.le(Vector(8)).select(
            size * _i1_small(small), _i1_large(large) / sqrt(beyond)
        )
        return x.lt(Vector(0)).select(-result, result)


@inline(.always)
def scaled_bessel_k[
    dtype: DType, w: SIMDLength, //, order: Int
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Modified Bessel function of the second kind times exp(x).

    Parameters:
        dtype: float32 or float64.
        w: The vector width.
        order: 0 or 1.

    Args:
        x: The arguments; of negative ones the result is NaN, of 0 infinity.

    Returns:
        The values.
    """
    comptime Vector = SIMD[dtype, w]
    var small = min(x, Vector(2))
    var t = small * small * 0.5 - 1
    var beyond = max(x, Vector(2))
    var s = 4 / beyond - 1
    var grown = exp(small)
    var logarithm = log(small * 0.5)
    var near: Vector
    var far: Vector
    comptime if order == 0:
        near = _k0_small(t) - logarithm * scaled_bessel_i[0](small) * grown
        far = _k0_large(s)
    else:
        near = (
            _k1_small(t) / small + logarithm * scaled_bessel_i[1](small) * grown
        )
        far = _k1_large(s)
    var result = x.le(Vector(2)).select(near * grown, far / sqrt(beyond))
    result = x.eq(Vector(0)).select(Vector(inf[dtype]()), result)
    return x.lt(Vector(0)).select(Vector(nan[dtype]()), result)


@inline(.always)
def bessel_j[
    dtype: DType, w: SIMDLength, //, order: Int
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Bessel function of the first kind.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.
        order: 0 or 1.

    Args:
        x: The arguments.

    Returns:
        The values.
    """
    comptime Vector = SIMD[dtype, w]
    var size = abs(x)
    var small = min(size, Vector(8))
    var t = small * small * 0.03125 - 1
    var beyond = max(size, Vector(8))
    var ratio = 8 / beyond
    var s = 2 * ratio * ratio - 1
    var amplitude = sqrt(Vector(2 / PI) / beyond)
    comptime if order == 0:
        var phase = beyond - Vector(PI / 4)
        return size.le(Vector(8)).select(
            _j0_small(t),
            amplitude * (_p0(s) * cos(phase) - ratio * _q0(s) * sin(phase)),
        )
    else:
        var phase = beyond - Vector(3 * PI / 4)
        var result = size.le(Vector(8)).select(
            small * _j1_small(t),
            amplitude * (_p1(s) * cos(phase) - ratio * _q1(s) * sin(phase)),
        )
        return x.lt(Vector(0)).select(-result, result)


@inline(.always)
def bessel_y[
    dtype: DType, w: SIMDLength, //, order: Int
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """Bessel function of the second kind.

    Parameters:
        dtype: float32 or float64.
        w: The vector width.
        order: 0 or 1.

    Args:
        x: The arguments; of negative ones the result is NaN, of 0 minus infinity.

    Returns:
        The values.
    """
    comptime Vector = SIMD[dtype, w]
    var small = min(x, Vector(8))
    var t = small * small * 0.03125 - 1
    var beyond = max(x, Vector(8))
    var ratio = 8 / beyond
    var s = 2 * ratio * ratio - 1
    var amplitude = sqrt(Vector(2 / PI) / beyond)
    var near: Vector
    var far: Vector
    comptime if order == 0:
        var phase = beyond - Vector(PI / 4)
        near = _y0_small(t) + Vector(2 / PI) * log(small) * _j0_small(t)
        far = _p0(s) * sin(phase) + ratio * _q0(s) * cos(phase)
    else:
        var phase = beyond - Vector(3 * PI / 4)
        near = small * _y1_small(t) + Vector(2 / PI) * (
            log(small) * small * _j1_small(t) - 1 / small
        )
        far = _p1(s) * sin(phase) + ratio * _q1(s) * cos(phase)
    var result = x.le(Vector(8)).select(near, amplitude * far)
    result = x.eq(Vector(0)).select(Vector(-inf[dtype]()), result)
    return x.lt(Vector(0)).select(Vector(nan[dtype]()), result)
