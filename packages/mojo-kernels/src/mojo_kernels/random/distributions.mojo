"""The distributions. Every kernel takes one contiguous output and the scalars seed, offset, max_blocks, then its own."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.math import PI, compute_type, exp, log, narrow, sqrt
from mojo_kernels.random.distribution import Distribution, fill
from mojo_kernels.random.philox import Block, uniform_float32, uniform_float64
from mojo_kernels.trigonometry import cos, sin, tan
from std.math import ceil


@inline(.always)
def _unit_type[dtype: DType]() -> DType:
    """The type in which a distribution is computed: float64 for float64, else float32.
    """
    comptime if dtype == DType.float64:
        return DType.float64
    else:
        return DType.float32


@inline(.always)
def _per_draw[dtype: DType]() -> Int:
    return 2 if dtype == DType.float64 else 4


@inline(.always)
def _uniform[
    dtype: DType, k: Int, w: Int
](bits: Block[w]) -> SIMD[_unit_type[dtype](), w]:
    """Element `k` of a draw in (0, 1]."""
    comptime if dtype == DType.float64:
        return rebind[SIMD[_unit_type[dtype](), w]](
            uniform_float64(bits.get[2 * k](), bits.get[2 * k + 1]())
        )
    else:
        return rebind[SIMD[_unit_type[dtype](), w]](
            uniform_float32(bits.get[k]())
        )


@inline(.always)
def _standard_normal[
    dtype: DType, k: Int, w: Int
](bits: Block[w]) -> SIMD[_unit_type[dtype](), w]:
    """Element `k` of a draw by the transform of Box and Muller (1958), as cuRAND arranges it.
    """
    comptime unit = _unit_type[dtype]()
    var radius: SIMD[unit, w]
    var angle: SIMD[unit, w]
    comptime if dtype == DType.float64:
        radius = rebind[SIMD[unit, w]](uniform_float64(bits.x, bits.y))
        var z = bits.z.cast[DType.uint64]() ^ (
            bits.w_bits.cast[DType.uint64]() << 21
        )
        var turns = z.cast[DType.float64]() * Float64(
            2.220446049250313e-16
        ) + Float64(1.1102230246251565e-16)
        angle = rebind[SIMD[unit, w]](turns * PI)
    else:
        comptime pair = 2 * (k // 2)
        radius = rebind[SIMD[unit, w]](uniform_float32(bits.get[pair]()))
        comptime scale = Float32(2.3283064e-10 * 2 * PI)
        angle = rebind[SIMD[unit, w]](
            bits.get[pair + 1]().cast[DType.float32]() * scale + scale / 2
        )
    var length = sqrt(SIMD[unit, w](-2) * log(radius))
    comptime if k % 2 == 0:
        return length * sin[bounded=True](angle)
    else:
        return length * cos[bounded=True](angle)


@fieldwise_init
struct _Uniform[type: DType](Distribution):
    comptime dtype = Self.type
    comptime unroll = _per_draw[Self.type]()
    var start: Scalar[_unit_type[Self.type]()]
    var end: Scalar[_unit_type[Self.type]()]

    @inline(.always)
    def value[k: Int, w: Int](self, bits: Block[w]) -> SIMD[Self.dtype, w]:
        var drawn = (
            _uniform[Self.type, k, w](bits) * (self.end - self.start)
            + self.start
        )
        var rounded = narrow[Self.dtype](drawn)
        # (start, end] becomes [start, end): an end that was hit, or rounded to, is the start.
        return rounded.eq(narrow[Self.dtype](self.end)).select(
            SIMD[Self.dtype, w](narrow[Self.dtype](self.start)), rounded
        )


def uniform[dtype: DType](call: KernelCall) raises:
    """Uniform in [from, to).

    Parameters:
        dtype: A floating type.

    Args:
        call: Scalars: seed, offset, max_blocks, from (float), to (float).
    """
    comptime unit = _unit_type[dtype]()
    fill(
        call,
        _Uniform[dtype](
            call.float_scalar(3).cast[unit](), call.float_scalar(4).cast[unit]()
        ),
    )


@fieldwise_init
struct _Normal[type: DType, logarithmic: Bool](Distribution):
    comptime dtype = Self.type
    comptime unroll = _per_draw[Self.type]()
    var mean: Scalar[_unit_type[Self.type]()]
    var deviation: Scalar[_unit_type[Self.type]()]

    @inline(.always)
    def value[k: Int, w: Int](self, bits: Block[w]) -> SIMD[Self.dtype, w]:
        var drawn = (
            _standard_normal[Self.type, k, w](bits) * self.deviation + self.mean
        )
        comptime if Self.logarithmic:
            return narrow[Self.dtype](exp(drawn))
        else:
            return narrow[Self.dtype](drawn)


def normal[dtype: DType, logarithmic: Bool](call: KernelCall) raises:
    """Normal, or the exponential of a normal variable.

    Parameters:
        dtype: A floating type.
        logarithmic: Whether to take the exponential.

    Args:
        call: Scalars: seed, offset, max_blocks, mean (float), standard deviation (float).
    """
    comptime unit = _unit_type[dtype]()
    fill(
        call,
        _Normal[dtype, logarithmic](
            call.float_scalar(3).cast[unit](), call.float_scalar(4).cast[unit]()
        ),
    )


@fieldwise_init
struct _Integer[type: DType, wide: Bool](Distribution):
    comptime dtype = Self.type
    comptime unroll = 2 if Self.wide else 4
    var base: Int64
    var range: UInt64

    @inline(.always)
    def value[k: Int, w: Int](self, bits: Block[w]) -> SIMD[Self.dtype, w]:
        var drawn: SIMD[DType.uint64, w]
        comptime if Self.wide:
            drawn = (bits.get[2 * k]().cast[DType.uint64]() << 32) | bits.get[
                2 * k + 1
            ]().cast[DType.uint64]()
            if self.range != 0:  # 0 stands for 2^64
                drawn %= SIMD[DType.uint64, w](self.range)
        else:
            drawn = (
                bits.get[k]()
                % SIMD[DType.uint32, w](self.range.cast[DType.uint32]())
            ).cast[DType.uint64]()
        return narrow[Self.dtype](drawn.cast[DType.int64]() + self.base)


def integer[dtype: DType, wide: Bool](call: KernelCall) raises:
    """Integers from `base` to `base + range - 1`.

    Parameters:
        dtype: Any real type but bool (which is drawn as uint8).
        wide: Whether an element takes 64 bits, which CUDA does for ranges from 2^28.

    Args:
        call: Scalars: seed, offset, max_blocks, base, range (as uint64; 0 stands for 2^64, and only where wide).
    """
    fill(
        call,
        _Integer[dtype, wide](
            Int64(call.int_scalar(3)), UInt64(call.int_scalar(4))
        ),
    )


@fieldwise_init
struct _Bernoulli[type: DType](Distribution):
    comptime dtype = Self.type
    comptime unroll = _per_draw[Self.type]()
    var probability: Scalar[_unit_type[Self.type]()]

    @inline(.always)
    def value[k: Int, w: Int](self, bits: Block[w]) -> SIMD[Self.dtype, w]:
        return narrow[Self.dtype](
            _uniform[Self.type, k, w](bits).lt(self.probability)
        )


def bernoulli[dtype: DType](call: KernelCall) raises:
    """1 with a probability, else 0.

    Parameters:
        dtype: Any real type but bool (which is drawn as uint8).

    Args:
        call: Scalars: seed, offset, max_blocks, probability (float).
    """
    fill(
        call,
        _Bernoulli[dtype](call.float_scalar(3).cast[_unit_type[dtype]()]()),
    )


@fieldwise_init
struct _Inverse[type: DType, kind: StaticString](Distribution):
    """A distribution by the inverse of its cumulative function."""

    comptime dtype = Self.type
    comptime unroll = _per_draw[Self.type]()
    var a: Scalar[_unit_type[Self.type]()]
    var b: Scalar[_unit_type[Self.type]()]

    @inline(.always)
    def value[k: Int, w: Int](self, bits: Block[w]) -> SIMD[Self.dtype, w]:
        comptime unit = _unit_type[Self.type]()
        var u = _uniform[Self.type, k, w](bits)
        comptime if Self.kind == "exponential":
            # A draw of 1 would give 0, which is outside of the support: half an epsilon stands for its logarithm.
            comptime half_epsilon = Scalar[unit](
                1.1102230246251565e-16 if unit
                == DType.float64 else 5.9604644775390625e-08
            )
            var logarithm = u.ge(SIMD[unit, w](1 - half_epsilon)).select(
                SIMD[unit, w](-half_epsilon), log(u)
            )
            return narrow[Self.dtype](logarithm * (-1 / self.a))
        elif Self.kind == "cauchy":
            comptime half = Scalar[unit](0.5)
            comptime pi = Scalar[unit](PI)
            return narrow[Self.dtype](self.a + self.b * tan((u - half) * pi))
        else:
            comptime assert Self.kind == "geometric", "unknown distribution"
            # The quotient of logarithms is at least 0; the first trial counts.
            var trials = ceil(log(u) / log(SIMD[unit, w](1 - self.a)))
            return narrow[Self.dtype](max(trials, SIMD[unit, w](1)))


def inverse[dtype: DType, kind: StaticString](call: KernelCall) raises:
    """Exponential (a: rate), Cauchy (a: median, b: sigma) or geometric (a: probability).

    Parameters:
        dtype: A floating type; any real type but bool for geometric.
        kind: "exponential", "cauchy" or "geometric".

    Args:
        call: Scalars: seed, offset, max_blocks, a (float), b (float).
    """
    comptime unit = _unit_type[dtype]()
    fill(
        call,
        _Inverse[dtype, kind](
            call.float_scalar(3).cast[unit](), call.float_scalar(4).cast[unit]()
        ),
    )
