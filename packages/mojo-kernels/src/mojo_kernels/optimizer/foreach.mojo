"""The `_foreach` family: elementwise functions of corresponding tensors of lists, and norms."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.math import compute_type, exp, narrow, pow, sqrt
from mojo_kernels.optimizer.lists import (
    ListUpdate,
    Number,
    OptionalNumber,
    Prepared,
    TensorLists,
    update_lists,
)
from mojo_kernels.reduction.reduce import reduce_tensor
from std.utils.numerics import isnan
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Foreach[op: StaticString, type: DType, inputs: Int, number_type: DType](
    ListUpdate
):
    """Lists: outputs, then the inputs x, a and b."""

    comptime dtype = Self.type
    comptime lists = 1 + Self.inputs
    comptime compute = compute_type[Self.type]()

    var address: UInt64
    """Where the number lies if it is a tensor on the device, else 0."""
    var host_number: Number[Self.type]
    """The number if it is a tensor on the host."""
    var is_on_host: Int32
    """Whether it is."""

    @inline(.always)
    def prepare(
        self, value: Number[Self.dtype], number: OptionalNumber
    ) -> Prepared[Self.dtype]:
        """The number that the op takes besides tensors."""
        if self.is_on_host != 0:
            return Prepared[Self.dtype](self.host_number, 0)
        if self.address == 0:
            return Prepared[Self.dtype](value, 0)
        return Prepared[Self.dtype](
            Data[Self.number_type](unsafe_from_address=Int(self.address))
            .unsafe_load(0)
            .cast[Self.compute](),
            0,
        )

    @inline(.always)
    def apply[
        w: Int
    ](
        self,
        at: StaticTuple[Data[Self.dtype], Self.lists],
        prepared: Prepared[Self.dtype],
    ):
        comptime Vector = SIMD[Self.compute, w]
        var value = prepared[0]
        var x = at[1].unsafe_load[width=w](0).cast[Self.compute]()
        var a = Vector(0)
        var b = Vector(0)
        comptime if Self.inputs > 1:
            a = at[2].unsafe_load[width=w](0).cast[Self.compute]()
        comptime if Self.inputs > 2:
            b = at[3].unsafe_load[width=w](0).cast[Self.compute]()
        at[0].unsafe_store(
            0, narrow[Self.dtype](_result[Self.op](x, a, b, value))
        )


@inline(.always)
def _result[
    dtype: DType, w: SIMDLength, //, op: StaticString
](
    x: SIMD[dtype, w],
    a: SIMD[dtype, w],
    b: SIMD[dtype, w],
    value: Scalar[dtype],
) -> SIMD[dtype, w]:
    """An op of the table in `foreach`."""
    comptime if op == "add_number":
        return x + value
    elif op == "sub_number":
        return x - value
    elif op == "mul_number":
        return x * value
    elif op == "div_number":
        return x / value
    elif op == "maximum_number":
        return _larger(x, SIMD[dtype, w](value))
    elif op == "minimum_number":
        return _smaller(x, SIMD[dtype, w](value))
    elif op == "pow_number":
        return _power(x, value)
    elif op == "add":
        return x + a * value
    elif op == "sub":
        return x - a * value
    elif op == "mul":
        return x * a
    elif op == "div":
        return x / a
    elif op == "maximum":
        return _larger(x, a)
    elif op == "minimum":
        return _smaller(x, a)
    elif op == "lerp":
        return x + (a - x) * value
    elif op == "lerp_tensors":
        return x + (a - x) * b
    elif op == "addcmul":
        return x + a * b * value
    elif op == "addcdiv":
        return x + a / b * value
    elif op == "copy":
        return a
    elif op == "neg":
        return -x
    elif op == "abs":
        return abs(x)
    elif op == "zero":
        return SIMD[dtype, w](0)
    elif op == "reciprocal":
        return 1 / x
    elif op == "sqrt":
        return _root(x)
    else:
        comptime assert op == "exp", "unknown foreach op"
        return _exponential(x)


@inline(.always)
def _larger[
    dtype: DType, w: SIMDLength
](x: SIMD[dtype, w], y: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The maximum; NaN wins."""
    comptime if dtype.is_floating_point():
        return (x.gt(y) | isnan(x)).select(x, y)
    else:
        return max(x, y)


@inline(.always)
def _smaller[
    dtype: DType, w: SIMDLength
](x: SIMD[dtype, w], y: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The minimum; NaN wins."""
    comptime if dtype.is_floating_point():
        return (x.lt(y) | isnan(x)).select(x, y)
    else:
        return min(x, y)


@inline(.always)
def _root[dtype: DType, w: SIMDLength](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """The square root."""
    comptime assert dtype.is_floating_point(), "sqrt of integers"
    return sqrt(x)


@inline(.always)
def _exponential[
    dtype: DType, w: SIMDLength
](x: SIMD[dtype, w]) -> SIMD[dtype, w]:
    """E to the power x."""
    comptime assert dtype.is_floating_point(), "exp of integers"
    return exp(x)


@inline(.always)
def _power[
    dtype: DType, w: SIMDLength
](x: SIMD[dtype, w], exponent: Scalar[dtype]) -> SIMD[dtype, w]:
    """X to the power of a number."""
    comptime assert dtype.is_floating_point(), "pow of integers"
    if exponent == 2:
        return x * x
    return pow(x, SIMD[dtype, w](exponent))


def foreach[
    op: StaticString,
    dtype: DType,
    inputs: Int,
    number: StaticString = "none",
    number_type: DType = DType.float32,
](call: KernelCall) raises:
    """Applies an elementwise function to each tensor of lists.

    | inputs | ops |
    |---|---|
    | 1 | neg, abs, zero, reciprocal, sqrt, exp; with a number v: add_number (x + v), sub_number, mul_number, div_number, maximum_number, minimum_number, pow_number |
    | 2 | mul, div, maximum, minimum, copy; with a number: add (x + v a), sub (x - v a), lerp (x + v (a - x)) |
    | 3 | lerp_tensors (x + b (a - x)); with a number: addcmul (x + v a b), addcdiv (x + v a / b) |

    Tensors: n outputs, which may be the first inputs; n first inputs x; n inputs a; n inputs b; the number if it is a tensor
    of one element. All of one dtype but for the number, corresponding ones of the same sizes.

    Scalars: n; the number, a Number, or the length of the list of numbers and n Numbers.

    Parameters:
        op: The function.
        dtype: The element type.
        inputs: 1 to 3.
        number: "none", "one", "list" or "tensor".
        number_type: The element type of the number's tensor.

    Args:
        call: The call.

    Raises:
        NotImplementedError: Dtypes differ, or on GPUs corresponding tensors differ in strides.
    """
    var n = call.int_scalar(0)
    var starts = StaticTuple[Int, 1 + inputs](fill=0)
    comptime for k in range(1 + inputs):
        starts[k] = k * n
    var address = UInt64(0)
    var host_number = Number[dtype](0)
    var is_on_host = False
    comptime if number == "tensor":
        var tensor = call.tensor((1 + inputs) * n)
        is_on_host = tensor.is_host_scalar()
        if is_on_host:
            host_number = (
                tensor.pointer[number_type]()
                .unsafe_load(0)
                .cast[compute_type[dtype]()]()
            )
        else:
            address = UInt64(Int(tensor.data))
    update_lists(
        call,
        _Foreach[op, dtype, inputs, number_type](
            address, host_number, Int32(is_on_host)
        ),
        TensorLists[1 + inputs](
            n,
            starts,
            -1,
            1 if number == "one" else 2 if number == "list" else -1,
            2 if number == "list" else 0,
        ),
        OptionalNumber(UInt64(0)),
    )


def foreach_norm[dtype: DType, out: DType](call: KernelCall) raises:
    """The vector norm of each tensor of a list.

    Tensors: n outputs of one element; n tensors of any strides. Scalars: n, the norm's order as a Number.

    Parameters:
        dtype: The tensors' element type, floating.
        out: The outputs' element type, floating.

    Args:
        call: The call.
    """
    var n = call.int_scalar(0)
    for t in range(n):
        reduce_tensor["norm", dtype, out](
            call,
            call.tensor(n + t),
            call.tensor(t),
            call.tensor(t),
            ~UInt64(0),
            call.float_scalar(2),
        )


@fieldwise_init
struct _Unscale[type: DType](ListUpdate):
    """Multiplies gradients in place and notes whether one was not finite; lists: gradients.
    """

    comptime dtype = Self.type
    comptime lists = 1

    var found: Data[DType.float32]
    var inverse_scale: Data[DType.float32]

    @inline(.always)
    def prepare(
        self, value: Number[Self.dtype], number: OptionalNumber
    ) -> Prepared[Self.dtype]:
        """The inverse scale."""
        return Prepared[Self.dtype](
            self.inverse_scale.unsafe_load(0).cast[
                compute_type[Self.dtype]()
            ](),
            0,
        )

    @inline(.always)
    def apply[
        w: Int
    ](
        self,
        at: StaticTuple[Data[Self.dtype], 1],
        prepared: Prepared[Self.dtype],
    ):
        comptime compute = compute_type[Self.dtype]()
        var gradient = at[0].unsafe_load[width=w](0).cast[compute]()
        # x - x is 0 for finite numbers only.
        if not (gradient - gradient).eq(0).reduce_and():
            self.found.unsafe_store(0, Float32(1))
        at[0].unsafe_store(0, narrow[Self.dtype](gradient * prepared[0]))


def unscale[dtype: DType](call: KernelCall) raises:
    """Undoes loss scaling: multiplies gradients in place, and notes infinities and NaN.

    Tensors: n gradients of one dtype; the flag, set to 1 where a gradient is not finite; the inverse of the scale (float32,
    one element each). Scalars: n.

    Parameters:
        dtype: The gradients' element type, floating.

    Args:
        call: The call.

    Raises:
        NotImplementedError: Dtypes differ.
    """
    var n = call.int_scalar(0)
    update_lists(
        call,
        _Unscale[dtype](
            call.tensor(n).pointer[DType.float32](),
            call.tensor(n + 1).pointer[DType.float32](),
        ),
        TensorLists[1](n, StaticTuple[Int, 1](0), -1, -1, 0),
        OptionalNumber(UInt64(0)),
    )
