"""Discrete Fourier transforms of rows whose length has no prime factor above 7, by Stockham's self-sorting stages."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace
from std.sys.info import is_gpu, simd_width_of
from std.utils.static_tuple import StaticTuple

comptime MAX_STAGES = 40
"""How many factors a length can have."""
comptime WORK = 16384
"""Butterfly inputs that are worth a thread."""


@fieldwise_init
struct _Transform[dtype: DType](ElementAction):
    """Transforms one row; operands: output, input and scratch, as pairs of real and imaginary part.
    """

    comptime operands = 3
    comptime Row = Data[Self.dtype]
    var output: Self.Row
    var input: Self.Row
    var scratch: Self.Row
    var roots: Self.Row
    """The length's roots of unity, exp(-2 pi i k / length)."""
    var length: Int64
    var sign: Scalar[Self.dtype]
    """1 for roots as they are, -1 for their conjugates."""
    var stages: Int64
    var factors: StaticTuple[Int64, MAX_STAGES]

    @inline(.always)
    def root(self, index: Int) -> Tuple[Scalar[Self.dtype], Scalar[Self.dtype]]:
        """A root of unity."""
        var place = self.roots.unsafe_offset(2 * (index % Int(self.length)))
        return place.unsafe_load(0), place.unsafe_load(1) * self.sign

    @inline(.always)
    def butterfly[
        radix: Int, w: Int
    ](
        self,
        to: Self.Row,
        source: Self.Row,
        distance: Int,
        step: Int,
        unity: StaticTuple[Scalar[Self.dtype], 2 * radix],
        twiddle: StaticTuple[Scalar[Self.dtype], 2 * radix],
    ):
        """Combines `radix` vectors of numbers `distance` apart into as many `step` apart.
        """
        comptime Vector = SIMD[Self.dtype, w]
        var re = StaticTuple[Vector, radix]()
        var im = StaticTuple[Vector, radix]()
        comptime for t in range(radix):
            comptime if w == 1:
                re[t] = source.unsafe_load(2 * t * distance)
                im[t] = source.unsafe_load(2 * t * distance + 1)
            else:
                var pairs = source.unsafe_load[width=2 * w](
                    2 * t * distance
                ).deinterleave()
                re[t] = rebind[Vector](pairs[0])
                im[t] = rebind[Vector](pairs[1])
        comptime for u in range(radix):
            var x = re[0]
            var y = im[0]
            comptime for t in range(1, radix):
                comptime k = t * u % radix
                x += re[t] * unity[2 * k] - im[t] * unity[2 * k + 1]
                y += re[t] * unity[2 * k + 1] + im[t] * unity[2 * k]
            var a = x * twiddle[2 * u] - y * twiddle[2 * u + 1]
            var b = x * twiddle[2 * u + 1] + y * twiddle[2 * u]
            var target = to.unsafe_offset(2 * u * step)
            comptime if w == 1:
                target.unsafe_store(0, a[0])
                target.unsafe_store(1, b[0])
            else:
                target.unsafe_store[width=2 * w](0, a.interleave(b))

    @inline(.never)
    def stage[radix: Int](self, to: Self.Row, source: Self.Row, done: Int):
        """One stage: `done` is the product of the radices of those before."""
        comptime width = 1 if is_gpu() else simd_width_of[Self.dtype]()
        var length = Int(self.length)
        var groups = length // (done * radix)
        var unity = StaticTuple[Scalar[Self.dtype], 2 * radix](fill=0)
        comptime for k in range(radix):
            var re, im = self.root(k * (length // radix))
            unity[2 * k] = re
            unity[2 * k + 1] = im
        for p in range(groups):
            var twiddle = StaticTuple[Scalar[Self.dtype], 2 * radix](fill=0)
            comptime for u in range(radix):
                var re, im = self.root(p * u * done)
                twiddle[2 * u] = re
                twiddle[2 * u + 1] = im
            var from_here = source.unsafe_offset(2 * done * p)
            var to_there = to.unsafe_offset(2 * done * radix * p)
            var q = 0
            comptime if width > 1:
                while q + width <= done:
                    self.butterfly[radix, width](
                        to_there.unsafe_offset(2 * q),
                        from_here.unsafe_offset(2 * q),
                        done * groups,
                        done,
                        unity,
                        twiddle,
                    )
                    q += width
            while q < done:
                self.butterfly[radix, 1](
                    to_there.unsafe_offset(2 * q),
                    from_here.unsafe_offset(2 * q),
                    done * groups,
                    done,
                    unity,
                    twiddle,
                )
                q += 1

    def apply(self, offsets: StaticTuple[Int, 3]):
        var output = self.output.unsafe_offset(offsets[0])
        var scratch = self.scratch.unsafe_offset(offsets[2])
        var source = self.input.unsafe_offset(offsets[1])
        var done = 1
        for i in range(Int(self.stages)):
            # The last stage writes to the output.
            var to = output if (Int(self.stages) - i) % 2 == 1 else scratch
            var radix = Int(self.factors[i])
            comptime for candidate in range(2, 8):
                comptime if candidate != 6:
                    if radix == candidate:
                        self.stage[candidate](to, source, done)
            done *= radix
            source = to


def transform[dtype: DType](call: KernelCall) raises:
    """Fourier transforms of rows, unscaled.

    Tensors: output, input and scratch [rows, length, 2], contiguous pairs of real and imaginary part; the roots of unity
    exp(-2 pi i k / length) [length, 2]. Scalars: 1 for the inverse transform, else 0; the number of factors and the factors
    of the length, each 2, 3, 4, 5 or 7.

    Parameters:
        dtype: float32 or float64.

    Args:
        call: The call.
    """
    var output = call.tensor(0)
    var length = output.size(1)
    var factors = StaticTuple[Int64, MAX_STAGES](fill=1)
    var stages = call.int_scalar(1)
    for i in range(stages):
        factors[i] = Int64(call.int_scalar(2 + i))
    var space = IndexSpace[3]()
    space.append(output.size(0), StaticTuple[Int, 3](fill=2 * length))
    var sign = Scalar[dtype](-1 if call.int_scalar(0) == 1 else 1)
    each_element(
        call,
        _Transform[dtype](
            output.pointer[dtype](),
            call.tensor(1).pointer[dtype](),
            call.tensor(2).pointer[dtype](),
            call.tensor(3).pointer[dtype](),
            Int64(length),
            sign,
            Int64(stages),
            factors,
        ),
        space,
        max(1, WORK // (length * max(1, stages))),
    )
