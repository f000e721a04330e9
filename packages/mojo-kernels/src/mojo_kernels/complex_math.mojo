"""Vectors of complex numbers and their functions."""

from mojo_kernels.math import clamp, exp, log, sqrt
from mojo_kernels.trigonometry import atan2, cos, cosh, sin, sinh
from std.memory import bitcast
from std.sys.info import is_apple_gpu
from std.utils.numerics import inf, nan

comptime PARTS = DType.float32 if is_apple_gpu() else DType.float64
"""The type that functions of complex64 compute in: near branch cuts float32 would lose digits."""


@fieldwise_init
struct Complex[dtype: DType, w: SIMDLength](TrivialRegisterPassable):
    """A vector of complex numbers.

    Parameters:
        dtype: The type of the parts, float32 or float64.
        w: The number of elements.
    """

    var re: SIMD[Self.dtype, Self.w]
    """The real parts."""
    var im: SIMD[Self.dtype, Self.w]
    """The imaginary parts."""

    @inline(.always)
    def __add__(self, other: Self) -> Self:
        """The sum.

        Args:
            other: The second operand.

        Returns:
            The sums.
        """
        return Self(self.re + other.re, self.im + other.im)

    @inline(.always)
    def __sub__(self, other: Self) -> Self:
        """The difference.

        Args:
            other: What is subtracted.

        Returns:
            The differences.
        """
        return Self(self.re - other.re, self.im - other.im)

    @inline(.always)
    def __neg__(self) -> Self:
        """The negation.

        Returns:
            The opposite numbers.
        """
        return Self(-self.re, -self.im)

    @inline(.always)
    def __mul__(self, other: Self) -> Self:
        """The product.

        Args:
            other: The second factor.

        Returns:
            The products.
        """
        return Self(
            self.re * other.re - self.im * other.im,
            self.re * other.im + self.im * other.re,
        )

    @inline(.always)
    def __truediv__(self, other: Self) -> Self:
        """The quotient.

        Args:
            other: The divisor.

        Returns:
            The quotients.
        """
        var norm = other.norm()
        return Self(
            (self.re * other.re + self.im * other.im) / norm,
            (self.im * other.re - self.re * other.im) / norm,
        )

    @inline(.always)
    def norm(self) -> SIMD[Self.dtype, Self.w]:
        """The square of the magnitude.

        Returns:
            Real numbers.
        """
        return self.re * self.re + self.im * self.im

    @inline(.always)
    def magnitude(self) -> SIMD[Self.dtype, Self.w]:
        """The absolute value.

        Returns:
            Real numbers.
        """
        return sqrt(self.norm())

    @inline(.always)
    def angle(self) -> SIMD[Self.dtype, Self.w]:
        """The argument.

        Returns:
            Angles from -pi to pi.
        """
        return atan2(self.im, self.re)

    @inline(.always)
    def scaled(self, factor: SIMD[Self.dtype, Self.w]) -> Self:
        """The product with real numbers.

        Args:
            factor: The real factors.

        Returns:
            The products.
        """
        return Self(self.re * factor, self.im * factor)

    @inline(.always)
    def times_i(self) -> Self:
        """The product with the imaginary unit.

        Returns:
            The products.
        """
        return Self(-self.im, self.re)

    @inline(.always)
    def select(self, mask: SIMD[DType.bool, Self.w], other: Self) -> Self:
        """These numbers where a mask is set, else others.

        Args:
            mask: Where these are taken.
            other: The others.

        Returns:
            The choice.
        """
        return Self(
            mask.select(self.re, other.re), mask.select(self.im, other.im)
        )


@inline(.always)
def from_bits[
    w: SIMDLength, //
](bits: SIMD[DType.uint64, w]) -> Complex[PARTS, w]:
    """Complex numbers from the bits of complex64 elements.

    Parameters:
        w: The vector width.

    Args:
        bits: The real part is the lower half.

    Returns:
        The numbers.
    """
    return Complex[PARTS, w](
        bitcast[DType.float32, w](bits.cast[DType.uint32]()).cast[PARTS](),
        bitcast[DType.float32, w]((bits >> 32).cast[DType.uint32]()).cast[
            PARTS
        ](),
    )


@inline(.always)
def to_bits[w: SIMDLength, //](z: Complex[PARTS, w]) -> SIMD[DType.uint64, w]:
    """The bits of complex64 elements.

    Parameters:
        w: The vector width.

    Args:
        z: The numbers, which are rounded.

    Returns:
        The bits, the real part the lower half.
    """
    var re = bitcast[DType.uint32, w](z.re.cast[DType.float32]())
    var im = bitcast[DType.uint32, w](z.im.cast[DType.float32]())
    return re.cast[DType.uint64]() | (im.cast[DType.uint64]() << 32)


@inline(.always)
def complex_exp[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w]) -> Complex[dtype, w]:
    """The exponential function.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The arguments.

    Returns:
        The powers of e.
    """
    var size = exp(z.re)
    return Complex(size * cos(z.im), size * sin(z.im))


@inline(.always)
def complex_log[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w]) -> Complex[dtype, w]:
    """The natural logarithm, cut along the negative real axis.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The arguments.

    Returns:
        The logarithms.
    """
    return Complex(log(z.norm()) * 0.5, z.angle())


@inline(.always)
def complex_sqrt[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w]) -> Complex[dtype, w]:
    """The square root with a real part that is not negative.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The arguments.

    Returns:
        The roots.
    """
    comptime Vector = SIMD[dtype, w]
    var large = sqrt((z.magnitude() + abs(z.re)) * 0.5)
    var small = large.eq(Vector(0)).select(Vector(0), z.im / (2 * large))
    var right = z.re.ge(Vector(0))
    var sign = z.im.lt(Vector(0)).select(Vector(-1), Vector(1))
    return Complex(
        right.select(large, abs(small)), right.select(small, large * sign)
    )


@inline(.always)
def complex_asinh[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w]) -> Complex[dtype, w]:
    """The inverse hyperbolic sine.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The arguments.

    Returns:
        The results.
    """
    # Odd: on the right half plane the sum in the logarithm does not cancel.
    var left = z.re.lt(SIMD[dtype, w](0))
    var right = (-z).select(left, z)
    var one = Complex(SIMD[dtype, w](1), SIMD[dtype, w](0))
    var result = complex_log(right + complex_sqrt(right * right + one))
    return (-result).select(left, result)


@inline(.always)
def complex_atanh[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w]) -> Complex[dtype, w]:
    """The inverse hyperbolic tangent.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The arguments.

    Returns:
        The results.
    """
    var one = Complex(SIMD[dtype, w](1), SIMD[dtype, w](0))
    var difference = complex_log(one + z) - complex_log(one - z)
    return difference.scaled(SIMD[dtype, w](0.5))


@inline(.always)
def complex_sinh[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w]) -> Complex[dtype, w]:
    """The hyperbolic sine.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The arguments.

    Returns:
        The results.
    """
    return Complex(sinh(z.re) * cos(z.im), cosh(z.re) * sin(z.im))


@inline(.always)
def complex_cosh[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w]) -> Complex[dtype, w]:
    """The hyperbolic cosine.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The arguments.

    Returns:
        The results.
    """
    return Complex(cosh(z.re) * cos(z.im), sinh(z.re) * sin(z.im))


@inline(.always)
def complex_tanh[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w]) -> Complex[dtype, w]:
    """The hyperbolic tangent.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The arguments.

    Returns:
        The results.
    """
    # Beyond 20 the result has long been 1 or -1; there the exponentials would overflow.
    var doubled = clamp(z.re + z.re, -40.0, 40.0)
    var turned = z.im + z.im
    var divisor = cosh(doubled) + cos(turned)
    return Complex(sinh(doubled) / divisor, sin(turned) / divisor)


@inline(.always)
def complex_power[
    dtype: DType, w: SIMDLength, //
](z: Complex[dtype, w], exponent: Complex[dtype, w]) -> Complex[dtype, w]:
    """A power.

    Parameters:
        dtype: The type of the parts.
        w: The vector width.

    Args:
        z: The bases.
        exponent: The exponents.

    Returns:
        The powers; of 0 it is 0, undefined where the exponent's real part is not positive; 1 where the exponent is 0.
    """
    comptime Vector = SIMD[dtype, w]
    var zero = Complex(Vector(0), Vector(0))
    var one = Complex(Vector(1), Vector(0))
    var result = complex_exp(complex_log(z) * exponent)
    var base_is_zero = z.re.eq(Vector(0)) & z.im.eq(Vector(0))
    result = zero.select(base_is_zero & exponent.re.gt(Vector(0)), result)
    # What exp(exponent * log(0)) is in C.
    var limit = exponent.re.lt(Vector(0)).select(
        Vector(inf[dtype]()), Vector(nan[dtype]())
    )
    result = Complex(limit, Vector(nan[dtype]())).select(
        base_is_zero & exponent.re.le(Vector(0)), result
    )
    return one.select(
        exponent.re.eq(Vector(0)) & exponent.im.eq(Vector(0)), result
    )
