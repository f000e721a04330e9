"""Dropout with the draw layout of PyTorch's CUDA kernel, its backward, and Bernoulli draws with a probability per element.

Here neighbouring elements share a draw of 128 bits: element `e` takes word `e % V` of draw `e // V // T` of thread
`e // V % T`, where V is 4 (Bernoulli; dropout of a multiple of 4 elements), 2 (dropout of other even sizes) or 1 (dropout of
odd sizes, which has the layout of distribution.mojo instead). A call advances the generator as distribution.mojo says, with
`unroll` 4.
"""

from mojo_kernels.math import narrow
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.random.distribution import BLOCK, Draws
from mojo_kernels.random.philox import (
    Block,
    philox,
    subsequences,
    uniform_float32,
)
from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.host import DeviceContext
from std.sys.info import has_accelerator, simd_width_of

comptime _GRAIN = 16384
"""How many elements are worth a thread of the CPU."""
comptime _WIDTH = 16
"""Draws at once on the CPU."""


@inline(.always)
def _compute[dtype: DType]() -> DType:
    comptime if dtype == DType.float64:
        return DType.float64
    else:
        return DType.float32


@inline(.always)
def _uniform_at(
    draws: Draws, e: Int, neighbours: Int
) -> SIMD[DType.float32, 1]:
    """The uniform draw of a single element, for the ends of vectors and for GPUs.
    """
    var shared = e // neighbours
    var thread = shared % draws.threads
    var word = e % neighbours
    var count = shared // draws.threads
    if neighbours == 1:
        word = count % 4
        count //= 4
    var bits = philox[1](
        draws.seed,
        SIMD[DType.uint64, 1](UInt64(thread)),
        draws.first + UInt64(count),
    )
    var chosen = bits.x
    if word == 1:
        chosen = bits.y
    elif word == 2:
        chosen = bits.z
    elif word == 3:
        chosen = bits.w_bits
    return uniform_float32[1](chosen)


@inline(.always)
def _interleave[w: Int](bits: Block[w]) -> SIMD[DType.uint32, 4 * w]:
    """The four words of each draw side by side."""
    return rebind[SIMD[DType.uint32, 4 * w]](
        bits.x.interleave(bits.z).interleave(bits.y.interleave(bits.w_bits))
    )


trait _Keep(Copyable):
    """What to do with the draws of neighbouring elements."""

    def keep[w: Int](self, element: Int, u: SIMD[DType.float32, w]):
        """Handles the elements from `element` to `element + w - 1`."""
        ...


def _on_cpu[
    K: _Keep
](call: KernelCall, draws: Draws, numel: Int, neighbours: Int, k: K):
    def run(start: Int, end: Int) {imm}:
        var e = start
        if neighbours == 4:
            while e + 4 * _WIDTH <= end:
                var first = e // 4
                var thread = first % draws.threads
                if thread + _WIDTH > draws.threads:
                    break
                var bits = philox[_WIDTH](
                    draws.seed,
                    subsequences[_WIDTH](thread),
                    draws.first + UInt64(first // draws.threads),
                )
                k.keep[4 * _WIDTH](
                    e, uniform_float32[4 * _WIDTH](_interleave(bits))
                )
                e += 4 * _WIDTH
        while e < end:
            k.keep[1](e, _uniform_at(draws, e, neighbours))
            e += 1

    parallel_ranges(call, numel, _GRAIN, run, alignment=4 * _WIDTH)


@fieldwise_init
struct _Dropout[dtype: DType](_Keep):
    var output: Data[Self.dtype]
    var mask: Data[DType.uint8]
    var input: Data[Self.dtype]
    var probability: Scalar[_compute[Self.dtype]()]

    @inline(.always)
    def keep[w: Int](self, element: Int, u: SIMD[DType.float32, w]):
        comptime unit = _compute[Self.dtype]()
        var kept = u.cast[unit]().lt(self.probability)
        var scale = 1 / self.probability
        var x = self.input.unsafe_load[width=w](element).cast[unit]()
        self.output.unsafe_store(
            element, narrow[Self.dtype](x * kept.cast[unit]() * scale)
        )
        self.mask.unsafe_store(element, kept.cast[DType.uint8]())


def _dropout_kernel[
    dtype: DType
](
    output: Data[dtype],
    mask: Data[DType.uint8],
    input: Data[dtype],
    numel: Int64,
    probability: Scalar[_compute[dtype]()],
    seed: UInt64,
    first: UInt64,
    threads: Int64,
    neighbours: Int64,
):
    var draws = Draws(seed, first, Int(threads))
    var task = _Dropout[dtype](output, mask, input, probability)
    var e = Int(block_idx.x) * BLOCK + Int(thread_idx.x)
    while e < Int(numel):
        task.keep[1](e, _uniform_at(draws, e, Int(neighbours)))
        e += Int(grid_dim.x) * BLOCK


def _context(call: KernelCall) raises -> DeviceContext:
    return DeviceContext(
        Pointer[NoneType, MutUntrackedOrigin](
            unsafe_from_address=Int(call.device_context)
        )
    )


def _grid(numel: Int) -> Int:
    return min(ceil_div(numel, BLOCK), 65535)


def dropout[dtype: DType](call: KernelCall) raises:
    """Keeps each element with a probability and divides it by that; the others become 0.

    Parameters:
        dtype: A floating type.

    Args:
        call: Tensors: output, mask (bool), input; contiguous. Scalars: seed, offset, max_blocks, the probability to keep
            (float).
    """
    var numel = Int(call.tensor(2).numel)
    if numel == 0:
        return
    var draws = Draws(call, numel)
    var neighbours = 4 if numel % 4 == 0 else (2 if numel % 2 == 0 else 1)
    var probability = call.float_scalar(3).cast[_compute[dtype]()]()
    var output = call.tensor(0).pointer[dtype]()
    var mask = call.tensor(1).pointer[DType.uint8]()
    var input = call.tensor(2).pointer[dtype]()
    comptime if has_accelerator():
        _context(call).enqueue_function[_dropout_kernel[dtype]](
            output,
            mask,
            input,
            Int64(numel),
            probability,
            draws.seed,
            draws.first,
            Int64(draws.threads),
            Int64(neighbours),
            grid_dim=_grid(numel),
            block_dim=BLOCK,
        )
    else:
        _on_cpu(
            call,
            draws,
            numel,
            neighbours,
            _Dropout[dtype](output, mask, input, probability),
        )


@fieldwise_init
struct _Bernoulli[dtype: DType, probability: DType](_Keep):
    var output: Data[Self.dtype]
    var p: Data[Self.probability]

    @inline(.always)
    def keep[w: Int](self, element: Int, u: SIMD[DType.float32, w]):
        comptime unit = _compute[Self.probability]()
        var p = self.p.unsafe_load[width=w](element).cast[unit]()
        self.output.unsafe_store(
            element, narrow[Self.dtype](u.cast[unit]().le(p))
        )


def _bernoulli_kernel[
    dtype: DType, probability: DType
](
    output: Data[dtype],
    p: Data[probability],
    numel: Int64,
    seed: UInt64,
    first: UInt64,
    threads: Int64,
):
    var draws = Draws(seed, first, Int(threads))
    var task = _Bernoulli[dtype, probability](output, p)
    var e = Int(block_idx.x) * BLOCK + Int(thread_idx.x)
    while e < Int(numel):
        task.keep[1](e, _uniform_at(draws, e, 4))
        e += Int(grid_dim.x) * BLOCK


def bernoulli[dtype: DType, probability: DType](call: KernelCall) raises:
    """1 with the probability that a tensor gives for each element, else 0.

    Parameters:
        dtype: The output's type: any real type but bool (which is drawn as uint8).
        probability: The probabilities' floating type.

    Args:
        call: Tensors: output, probabilities; contiguous. Scalars: seed, offset, max_blocks.
    """
    var numel = Int(call.tensor(1).numel)
    if numel == 0:
        return
    var draws = Draws(call, numel)
    var output = call.tensor(0).pointer[dtype]()
    var p = call.tensor(1).pointer[probability]()
    comptime if has_accelerator():
        _context(call).enqueue_function[_bernoulli_kernel[dtype, probability]](
            output,
            p,
            Int64(numel),
            draws.seed,
            draws.first,
            Int64(draws.threads),
            grid_dim=_grid(numel),
            block_dim=BLOCK,
        )
    else:
        _on_cpu(
            call, draws, numel, 4, _Bernoulli[dtype, probability](output, p)
        )


@inline(.always)
def _scaled[
    dtype: DType, w: Int
](
    output: Data[dtype],
    gradient: Data[dtype],
    mask: Data[DType.uint8],
    scale: Scalar[_compute[dtype]()],
    i: Int,
):
    comptime unit = _compute[dtype]()
    var g = gradient.unsafe_load[width=w](i).cast[unit]()
    var kept = mask.unsafe_load[width=w](i).cast[unit]()
    output.unsafe_store(i, narrow[dtype](g * kept * scale))


def _backward_kernel[
    dtype: DType
](
    output: Data[dtype],
    gradient: Data[dtype],
    mask: Data[DType.uint8],
    scale: Scalar[_compute[dtype]()],
    numel: Int64,
):
    var i = Int(block_idx.x) * BLOCK + Int(thread_idx.x)
    while i < Int(numel):
        _scaled[dtype, 1](output, gradient, mask, scale, i)
        i += Int(grid_dim.x) * BLOCK


def backward[dtype: DType](call: KernelCall) raises:
    """`gradient * mask * scale`.

    Parameters:
        dtype: A floating type.

    Args:
        call: Tensors: output, gradient, mask (bool); contiguous. Scalars: scale (float).
    """
    var numel = Int(call.tensor(0).numel)
    if numel == 0:
        return
    var output = call.tensor(0).pointer[dtype]()
    var gradient = call.tensor(1).pointer[dtype]()
    var mask = call.tensor(2).pointer[DType.uint8]()
    var scale = call.float_scalar(0).cast[_compute[dtype]()]()
    comptime if has_accelerator():
        _context(call).enqueue_function[_backward_kernel[dtype]](
            output,
            gradient,
            mask,
            scale,
            Int64(numel),
            grid_dim=_grid(numel),
            block_dim=BLOCK,
        )
    else:

        def run(start: Int, end: Int) {imm}:
            comptime w = simd_width_of[dtype]()
            var i = start
            while i + w <= end:
                _scaled[dtype, w](output, gradient, mask, scale, i)
                i += w
            while i < end:
                _scaled[dtype, 1](output, gradient, mask, scale, i)
                i += 1

        parallel_ranges(call, numel, 65536, run, alignment=64)
