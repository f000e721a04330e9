"""Special functions of one and two operands, computed in float64 where the device has it."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.bessel import (
    bessel_j,
    bessel_y,
    scaled_bessel_i,
    scaled_bessel_k,
)
from mojo_kernels.complex_math import PARTS
from mojo_kernels.math import PI, exp
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from mojo_kernels.special import digamma
from mojo_kernels.special_series import (
    airy_ai,
    erfcx,
    incomplete_gamma,
    log_ndtr,
    ndtri,
    polygamma,
    zeta,
)
from mojo_kernels.trigonometry import sin
from std.utils.numerics import isinf, isnan, nan


@inline(.always)
def _function[
    w: SIMDLength, //, op: StaticString
](x: SIMD[PARTS, w]) -> SIMD[PARTS, w]:
    """A function of one operand."""
    comptime Vector = SIMD[PARTS, w]
    comptime if op == "i0":
        return scaled_bessel_i[0](x) * exp(abs(x))
    elif op == "i0e":
        return scaled_bessel_i[0](x)
    elif op == "i1":
        return scaled_bessel_i[1](x) * exp(abs(x))
    elif op == "i1e":
        return scaled_bessel_i[1](x)
    elif op == "k0":
        return scaled_bessel_k[0](x) * exp(-x)
    elif op == "k0e":
        return scaled_bessel_k[0](x)
    elif op == "k1":
        return scaled_bessel_k[1](x) * exp(-x)
    elif op == "k1e":
        return scaled_bessel_k[1](x)
    elif op == "j0":
        return bessel_j[0](x)
    elif op == "j1":
        return bessel_j[1](x)
    elif op == "y0":
        return bessel_y[0](x)
    elif op == "y1":
        return bessel_y[1](x)
    elif op == "spherical_j0":
        var value = x.eq(Vector(0)).select(Vector(1), sin(x) / x)
        return isinf(x).select(Vector(0), value)
    elif op == "airy_ai":
        return airy_ai(x)
    elif op == "erfcx":
        return erfcx(x)
    elif op == "log_ndtr":
        return log_ndtr(x)
    elif op == "ndtri":
        return ndtri(x)
    elif op == "angle":
        return x.lt(Vector(0)).select(Vector(PI), Vector(0))
    else:
        comptime assert False, "no such special function"


@fieldwise_init
struct _Unary[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 32

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = a.cast[PARTS]()
        # Limits of arguments lose NaN.
        return isnan(x).select(x, _function[Self.op](x)).cast[Self.dtype]()


def unary[op: StaticString, dtype: DType](call: KernelCall) raises:
    """`output = op(input)`.

    Parameters:
        op: "i0", "i0e", "i1", "i1e", "k0", "k0e", "k1", "k1e" (modified Bessel functions, "e": scaled), "j0", "j1",
            "y0", "y1", "spherical_j0", "airy_ai", "erfcx", "log_ndtr", "ndtri" or "angle".
        dtype: A floating type, of both tensors.

    Args:
        call: Tensors: output, input. No scalars.
    """
    elementwise(call, _Unary[op, dtype]())


@fieldwise_init
struct _Polygamma[dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 256
    var n: Int64

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = a.cast[PARTS]()
        if self.n == 0:
            return digamma(x).cast[Self.dtype]()
        var result = SIMD[PARTS, w](0)
        for i in range(Int(w)):
            result[i] = polygamma(Int(self.n), x[i])
        return result.cast[Self.dtype]()


def derivatives[dtype: DType](call: KernelCall) raises:
    """A derivative of the digamma function.

    Parameters:
        dtype: A floating type, of both tensors.

    Args:
        call: Tensors: output, input. Scalars: n, which derivative.

    Raises:
        Error: N is negative.
    """
    if call.int_scalar(0) < 0:
        raise Error("polygamma(n, x) does not support negative n.")
    elementwise(call, _Polygamma[dtype](Int64(call.int_scalar(0))))


@inline(.always)
def _recurrence[op: StaticString](x: Scalar[PARTS], n: Int) -> Scalar[PARTS]:
    """An orthogonal polynomial of a degree at a point, by its recurrence."""
    comptime S = Scalar[PARTS]
    if n < 0:
        return S(0)
    if n == 0:
        return S(1)
    var last = S(1)
    var value: S
    comptime if op == "t" or op == "legendre_p" or op == "hermite_he":
        value = x
    elif op == "u" or op == "hermite_h":
        value = x + x
    elif op == "v":
        value = x + x - 1
    elif op == "w":
        value = x + x + 1
    else:
        value = 1 - x
    for k in range(1, n):
        var next: S
        comptime if op == "hermite_h":
            next = 2 * (x * value - S(k) * last)
        elif op == "hermite_he":
            next = x * value - S(k) * last
        elif op == "legendre_p":
            next = (S(2 * k + 1) * x * value - S(k) * last) / S(k + 1)
        elif op == "laguerre_l":
            next = ((S(2 * k + 1) - x) * value - S(k) * last) / S(k + 1)
        else:
            next = 2 * x * value - last
        last = value
        value = next
    return value


@inline(.always)
def _pair[
    op: StaticString
](a: Scalar[PARTS], b: Scalar[PARTS]) -> Scalar[PARTS]:
    """A function of two operands."""
    comptime if op == "zeta":
        return zeta(a, b)
    elif op == "igamma":
        return incomplete_gamma[False](a, b)
    elif op == "igammac":
        return incomplete_gamma[True](a, b)
    else:
        if isnan(a) or isnan(b):
            return nan[PARTS]()
        return _recurrence[op](a, Int(b))


@fieldwise_init
struct _Binary[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 2
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 256

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = a.cast[PARTS]()
        var y = b.cast[PARTS]()
        var result = SIMD[PARTS, w](0)
        for i in range(Int(w)):
            result[i] = _pair[Self.op](x[i], y[i])
        return result.cast[Self.dtype]()


@fieldwise_init
struct _Shifted[op: StaticString, dtype: DType](ElementFunction):
    """A Chebyshev polynomial of 2 x - 1."""

    comptime arity = 2
    comptime First = Self.dtype
    comptime Rest = Self.dtype
    comptime Output = Self.dtype
    comptime cost = 256

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = a.cast[PARTS]()
        var shifted = x + x - 1
        var y = b.cast[PARTS]()
        var result = SIMD[PARTS, w](0)
        for i in range(Int(w)):
            result[i] = _pair[Self.op](shifted[i], y[i])
        return result.cast[Self.dtype]()


def binary[
    op: StaticString, dtype: DType, shifted: Bool = False
](call: KernelCall) raises:
    """`output = op(first, second)`.

    Parameters:
        op: "zeta", "igamma", "igammac", or a family of orthogonal polynomials whose degree is the second operand: "t",
            "u", "v", "w" (Chebyshev), "hermite_h", "hermite_he", "laguerre_l", "legendre_p".
        dtype: A floating type, of all tensors.
        shifted: Whether a polynomial is one of 2 x - 1.

    Args:
        call: Tensors: output, first, second. No scalars.
    """
    comptime if shifted:
        elementwise(call, _Shifted[op, dtype]())
    else:
        elementwise(call, _Binary[op, dtype]())
