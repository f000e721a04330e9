"""Elementwise functions whose output is bool: comparisons, logic of any dtype, tests of one operand."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.pointwise.elementwise import elementwise
from mojo_kernels.pointwise.function import ElementFunction
from mojo_kernels.math import to_bits
from std.sys.info import size_of
from std.utils.numerics import inf, isnan


@inline(.always)
def _is_nonzero[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[DType.bool, w]:
    """The truth value of numbers: NaN is true."""
    comptime if dtype == DType.bool:
        return x._refine[DType.bool]()
    else:
        # Not `ne`, which is False for NaN.
        return ~x.eq(SIMD[dtype, w](0))


@inline(.always)
def _byte_order[
    dtype: DType, w: SIMDLength, //
](x: SIMD[dtype, w]) -> SIMD[DType.uint8 if dtype == DType.bool else dtype, w]:
    """Values that can be compared: False < True."""
    return x.cast[DType.uint8 if dtype == DType.bool else dtype]()


@fieldwise_init
struct _Comparison[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 2
    comptime First = Self.dtype
    comptime Rest = Self.dtype
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
        comptime if Self.op == "logical_and":
            return _is_nonzero(a) & _is_nonzero(b)
        elif Self.op == "logical_or":
            return _is_nonzero(a) | _is_nonzero(b)
        elif Self.op == "logical_xor":
            return _is_nonzero(a) ^ _is_nonzero(b)
        else:
            var x = _byte_order(a)
            var y = _byte_order(b)
            comptime if Self.op == "eq":
                return x.eq(y)
            elif Self.op == "ne":
                return ~x.eq(y)
            elif Self.op == "lt":
                return x.lt(y)
            elif Self.op == "le":
                return x.le(y)
            elif Self.op == "gt":
                return x.gt(y)
            elif Self.op == "ge":
                return x.ge(y)
            else:
                comptime assert False, "no such comparison"


def comparison[op: StaticString, dtype: DType](call: KernelCall) raises:
    """`output = first op second`, bool.

    Parameters:
        op: "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or" or "logical_xor".
        dtype: The type of both inputs.

    Args:
        call: Tensors: output (bool), first, second. No scalars.
    """
    elementwise(call, _Comparison[op, dtype]())


@fieldwise_init
struct _Predicate[op: StaticString, dtype: DType](ElementFunction):
    comptime arity = 1
    comptime First = Self.dtype
    comptime Rest = Self.dtype
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
        comptime Mask = SIMD[DType.bool, w]
        comptime if Self.op == "logical_not":
            return ~_is_nonzero(a)
        elif Self.op == "signbit":
            comptime if Self.dtype.is_floating_point():
                var bits = to_bits(a)
                comptime sign = size_of[Self.dtype]() * 8 - 1
                return (bits >> type_of(bits)(sign)).ne(0)
            elif Self.dtype.is_signed():
                return a.lt(SIMD[Self.dtype, w](0))
            else:
                return Mask(fill=False)
        elif Self.dtype.is_floating_point():
            var infinite = SIMD[Self.dtype, w](inf[Self.dtype]())
            comptime if Self.op == "isnan":
                return isnan(a)
            elif Self.op == "isinf":
                return abs(a).eq(infinite)
            elif Self.op == "isposinf":
                return a.eq(infinite)
            elif Self.op == "isneginf":
                return a.eq(-infinite)
            else:
                comptime assert False, "no such predicate"
        else:
            return Mask(fill=False)


def predicate[op: StaticString, dtype: DType](call: KernelCall) raises:
    """`output = op(input)`, bool.

    Parameters:
        op: "logical_not", "signbit", "isnan", "isinf", "isposinf" or "isneginf".
        dtype: The input's type.

    Args:
        call: Tensors: output (bool), input. No scalars.
    """
    elementwise(call, _Predicate[op, dtype]())
