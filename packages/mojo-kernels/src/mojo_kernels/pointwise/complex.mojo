"""Elementwise functions of complex64, whose elements travel as the uint64 of their bits."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.complex_math import (
    PARTS,
    Complex,
    complex_asinh,
    complex_atanh,
    complex_cosh,
    complex_exp,
    complex_log,
    complex_power,
    complex_sinh,
    complex_sqrt,
    complex_tanh,
    from_bits,
    to_bits,
)
from mojo_kernels.math import LOG2_E, LN_10, LN_2, PI
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from std.utils.numerics import isinf, isnan

comptime BITS = DType.uint64

comptime Number = Complex[DType.float32, 1]
"""A complex64 among the scalars. Hosts pass it to devices, for which `PARTS` may be another type."""


@inline(.always)
def _parameter(call: KernelCall, i: Int) -> Number:
    """A complex Number: the bits of its imaginary part, then those of its real part.
    """
    return Number(
        call.float_scalar(i + 1).cast[DType.float32](),
        call.float_scalar(i).cast[DType.float32](),
    )


@inline(.always)
def _splat[w: SIMDLength](z: Number) -> Complex[PARTS, w]:
    return Complex(
        SIMD[PARTS, w](z.re[0].cast[PARTS]()),
        SIMD[PARTS, w](z.im[0].cast[PARTS]()),
    )


@inline(.always)
def _real[w: SIMDLength](value: Float64) -> Complex[PARTS, w]:
    return Complex(SIMD[PARTS, w](value.cast[PARTS]()), SIMD[PARTS, w](0))


@inline(.always)
def _function[
    w: SIMDLength, //, op: StaticString
](z: Complex[PARTS, w]) -> Complex[PARTS, w]:
    """A function of one operand."""
    comptime if op == "neg":
        return -z
    elif op == "conj_physical":
        return Complex(z.re, -z.im)
    elif op == "reciprocal":
        return _real[w](1) / z
    elif op == "sgn":
        var size = z.magnitude()
        var zero = size.eq(SIMD[PARTS, w](0))
        return _real[w](0).select(zero, z.scaled(1 / size))
    elif op == "sqrt":
        return complex_sqrt(z)
    elif op == "rsqrt":
        return _real[w](1) / complex_sqrt(z)
    elif op == "exp":
        return complex_exp(z)
    elif op == "exp2":
        return complex_exp(z.scaled(SIMD[PARTS, w](LN_2)))
    elif op == "expm1":
        return complex_exp(z) - _real[w](1)
    elif op == "log":
        return complex_log(z)
    elif op == "log2":
        return complex_log(z).scaled(SIMD[PARTS, w](LOG2_E))
    elif op == "log10":
        return complex_log(z).scaled(SIMD[PARTS, w](1 / LN_10))
    elif op == "log1p":
        return complex_log(z + _real[w](1))
    elif op == "sinh":
        return complex_sinh(z)
    elif op == "cosh":
        return complex_cosh(z)
    elif op == "tanh":
        return complex_tanh(z)
    elif op == "asinh":
        return complex_asinh(z)
    elif op == "atanh":
        return complex_atanh(z)
    elif op == "acosh":
        var one = _real[w](1)
        return complex_log(z + complex_sqrt(z + one) * complex_sqrt(z - one))
    elif op == "sin":
        return -complex_sinh(z.times_i()).times_i()
    elif op == "cos":
        return complex_cosh(z.times_i())
    elif op == "tan":
        return -complex_tanh(z.times_i()).times_i()
    elif op == "asin":
        return -complex_asinh(z.times_i()).times_i()
    elif op == "acos":
        return _real[w](PI / 2) + complex_asinh(z.times_i()).times_i()
    elif op == "atan":
        return -complex_atanh(z.times_i()).times_i()
    elif op == "sigmoid":
        var one = _real[w](1)
        return one / (one + complex_exp(-z))
    elif op == "sinc":
        var turned = z.scaled(SIMD[PARTS, w](PI))
        var zero = z.norm().eq(SIMD[PARTS, w](0))
        var sine = -complex_sinh(turned.times_i()).times_i()
        return _real[w](1).select(zero, sine / turned)
    else:
        comptime assert False, "no such complex function"


@fieldwise_init
struct _Unary[op: StaticString](ElementFunction):
    comptime arity = 1
    comptime First = BITS
    comptime Rest = BITS
    comptime Output = BITS
    comptime cost = 16

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        return to_bits(_function[Self.op](from_bits(a)))


def unary[op: StaticString](call: KernelCall) raises:
    """`output = op(input)`.

    Parameters:
        op: The aten op's name.

    Args:
        call: Tensors: output, input, both complex64. No scalars.
    """
    elementwise(call, _Unary[op]())


@fieldwise_init
struct _Real[op: StaticString](ElementFunction):
    """A real function of complex numbers."""

    comptime arity = 1
    comptime First = BITS
    comptime Rest = BITS
    comptime Output = DType.float32
    comptime cost = 8

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        comptime if Self.op == "abs":
            return from_bits(a).magnitude().cast[DType.float32]()
        elif Self.op == "angle":
            return from_bits(a).angle().cast[DType.float32]()
        else:
            comptime assert False, "no such real function of complex numbers"


def real[op: StaticString](call: KernelCall) raises:
    """`output = op(input)`, a real number.

    Parameters:
        op: "abs" or "angle".

    Args:
        call: Tensors: output (float32), input (complex64). No scalars.
    """
    elementwise(call, _Real[op]())


@fieldwise_init
struct _Binary[op: StaticString](ElementFunction):
    comptime arity = 2
    comptime First = BITS
    comptime Rest = BITS
    comptime Output = BITS
    comptime cost = 16 if Self.op == "pow" else 4
    var alpha: Number

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = from_bits(a)
        var y = from_bits(b)
        comptime if Self.op == "add":
            return to_bits(x + _splat[w](self.alpha) * y)
        elif Self.op == "sub":
            return to_bits(x - _splat[w](self.alpha) * y)
        elif Self.op == "rsub":
            return to_bits(y - _splat[w](self.alpha) * x)
        elif Self.op == "mul":
            return to_bits(x * y)
        elif Self.op == "div":
            return to_bits(x / y)
        elif Self.op == "pow":
            return to_bits(complex_power(x, y))
        elif Self.op == "lerp_scalar":
            return to_bits(x + _splat[w](self.alpha) * (y - x))
        else:
            comptime assert False, "no such complex function of two operands"


def binary[op: StaticString](call: KernelCall) raises:
    """`output = op(first, second)`.

    Parameters:
        op: The aten op's name; "lerp_scalar" for `lerp.Scalar`.

    Args:
        call: Tensors: output, first, second, all complex64. Scalars: a complex Number for add, sub, rsub (alpha) and
            lerp_scalar (weight); else none.
    """
    var alpha = Number(1, 0)
    comptime if (
        op == "add" or op == "sub" or op == "rsub" or op == "lerp_scalar"
    ):
        alpha = _parameter(call, 0)
    elementwise(call, _Binary[op](alpha))


@fieldwise_init
struct _PowScalar(ElementFunction):
    comptime arity = 1
    comptime First = BITS
    comptime Rest = BITS
    comptime Output = BITS
    comptime cost = 16
    var exponent: Number

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var z = from_bits(a)
        if self.exponent.im[0] == 0:
            if self.exponent.re[0] == 2:
                return to_bits(z * z)
            if self.exponent.re[0] == 3:
                return to_bits(z * z * z)
            if self.exponent.re[0] == 0.5:
                return to_bits(complex_sqrt(z))
            if self.exponent.re[0] == -1:
                return to_bits(_real[w](1) / z)
        return to_bits(complex_power(z, _splat[w](self.exponent)))


def pow_scalar(call: KernelCall) raises:
    """Powers with one exponent.

    Args:
        call: Tensors: output, input, both complex64. Scalars: the exponent, a complex Number.
    """
    elementwise(call, _PowScalar(_parameter(call, 0)))


@fieldwise_init
struct _Ternary[op: StaticString](ElementFunction):
    comptime arity = 3
    comptime First = BITS
    comptime Rest = BITS
    comptime Output = BITS
    comptime cost = 8
    var value: Number

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = from_bits(a)
        var y = from_bits(b)
        var z = from_bits(c)
        comptime if Self.op == "addcmul":
            return to_bits(x + _splat[w](self.value) * y * z)
        elif Self.op == "addcdiv":
            return to_bits(x + _splat[w](self.value) * y / z)
        elif Self.op == "lerp":
            return to_bits(x + z * (y - x))
        else:
            comptime assert False, "no such complex function of three operands"


def ternary[op: StaticString](call: KernelCall) raises:
    """`output = op(first, second, third)`.

    Parameters:
        op: "addcmul", "addcdiv" or "lerp" (start, end, weight).

    Args:
        call: Tensors: output, first, second, third, all complex64. Scalars: value, a complex Number, for addcmul and
            addcdiv; else none.
    """
    comptime if op == "lerp":
        elementwise(call, _Ternary[op](Number(1, 0)))
    else:
        elementwise(call, _Ternary[op](_parameter(call, 0)))


@inline(.always)
def _is_nonzero[w: SIMDLength, //](z: Complex[PARTS, w]) -> SIMD[DType.bool, w]:
    comptime Vector = SIMD[PARTS, w]
    return ~(z.re.eq(Vector(0)) & z.im.eq(Vector(0)))


@fieldwise_init
struct _Comparison[op: StaticString](ElementFunction):
    comptime arity = 2
    comptime First = BITS
    comptime Rest = BITS
    comptime Output = DType.bool
    comptime cost = 2

    @inline(.always)
    def apply[
        w: SIMDLength
    ](
        self,
        a: SIMD[Self.First, w],
        b: SIMD[Self.Rest, w],
        c: SIMD[Self.Rest, w],
    ) -> SIMD[Self.Output, w]:
        var x = from_bits(a)
        var y = from_bits(b)
        comptime if Self.op == "eq":
            return x.re.eq(y.re) & x.im.eq(y.im)
        elif Self.op == "ne":
            return ~(x.re.eq(y.re) & x.im.eq(y.im))
        elif Self.op == "logical_and":
            return _is_nonzero(x) & _is_nonzero(y)
        elif Self.op == "logical_or":
            return _is_nonzero(x) | _is_nonzero(y)
        elif Self.op == "logical_xor":
            return _is_nonzero(x) ^ _is_nonzero(y)
        else:
            comptime assert False, "no such comparison of complex numbers"


def comparison[op: StaticString](call: KernelCall) raises:
    """`output = first op second`, bool.

    Parameters:
        op: "eq", "ne", "logical_and", "logical_or" or "logical_xor".

    Args:
        call: Tensors: output (bool), first, second (complex64). No scalars.
    """
    elementwise(call, _Comparison[op]())


@fieldwise_init
struct _Predicate[op: StaticString](ElementFunction):
    comptime arity = 1
    comptime First = BITS
    comptime Rest = BITS
    comptime Output = DType.bool
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
        var z = from_bits(a)
        comptime if Self.op == "logical_not":
            return ~_is_nonzero(z)
        elif Self.op == "isnan":
            return isnan(z.re) | isnan(z.im)
        elif Self.op == "isinf":
            return isinf(z.re) | isinf(z.im)
        else:
            comptime assert False, "no such predicate of complex numbers"


def predicate[op: StaticString](call: KernelCall) raises:
    """Whether something holds of an element.

    Parameters:
        op: "logical_not", "isnan" or "isinf", which hold where they hold of either part.

    Args:
        call: Tensors: output (bool), input (complex64). No scalars.
    """
    elementwise(call, _Predicate[op]())
