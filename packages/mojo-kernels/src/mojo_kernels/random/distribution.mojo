"""Fills a tensor from a distribution with the draw layout of PyTorch's CUDA kernels.

The grid has `T = 256 * min(ceil(n / 256), max_blocks)` threads, each with the subsequence of its number, and every draw of 128
bits gives `unroll` elements: draw `r` of thread `i` writes the elements `i + T * (unroll * r + k)` for k below `unroll`. So
the same seed gives the values of a CUDA device with `max_blocks / 8` multiprocessors; up to `256 * max_blocks` elements the
device does not matter. A call advances the generator's offset by `4 * ceil(n / (unroll * T))`, rounded up per thread.
"""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.random.philox import Block, philox, subsequences
from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from max.gpu.host import DeviceContext
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator, simd_width_of

comptime BLOCK = 256
"""Threads in a block of the draw layout."""
comptime _GRAIN = 4096
"""How many draws are worth a thread of the CPU."""


trait Distribution(DevicePassable, TrivialRegisterPassable):
    """How random bits become values."""

    comptime dtype: DType
    """The elements' type."""
    comptime unroll: Int
    """Elements per draw of 128 bits: 4, or 2 where an element takes 64 bits."""
    comptime device_type: AnyType = Self
    """The type on the device."""

    def value[k: Int, w: Int](self, bits: Block[w]) -> SIMD[Self.dtype, w]:
        """Computes one element of each of `w` draws.

        Parameters:
            k: Which of the draw's elements, from 0.
            w: The vector width.

        Args:
            bits: The draws.

        Returns:
            The values.
        """
        ...

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "Distribution"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)


@fieldwise_init
struct Draws(TrivialRegisterPassable):
    """The scalars that every random kernel starts with: seed, offset, max_blocks.
    """

    var seed: UInt64
    """The generator's seed."""
    var first: UInt64
    """The number of the first draw of each subsequence: the generator's offset / 4."""
    var threads: Int
    """The number of threads of the grid."""

    def __init__(out self, call: KernelCall, numel: Int):
        """Reads the scalars of a call.

        Args:
            call: Its first three scalars are seed, offset and max_blocks.
            numel: How many elements are drawn.
        """
        self.seed = UInt64(call.int_scalar(0))
        self.first = UInt64(call.int_scalar(1)) >> 2
        self.threads = BLOCK * min(ceil_div(numel, BLOCK), call.int_scalar(2))


def _on_cpu[
    D: Distribution
](call: KernelCall, output: Data[D.dtype], numel: Int, draws: Draws, d: D):
    # Two vectors hide the latency of the generator's multiplications.
    comptime w = 2 * simd_width_of[DType.uint32]()
    var threads = draws.threads
    var rounds = ceil_div(numel, threads * D.unroll)

    def run(start: Int, end: Int) {imm}:
        # The number of threads is a multiple of 256, so vectors never cross a round.
        for item in range(start, end, w):
            var r = item // threads
            var thread = item % threads
            var bits = philox[w](
                draws.seed, subsequences[w](thread), draws.first + UInt64(r)
            )
            var first = thread + threads * D.unroll * r
            if first + threads * (D.unroll - 1) + w <= numel:
                # Without branches between them, what the elements of a draw share is computed once.
                comptime for k in range(D.unroll):
                    output.unsafe_store(
                        first + threads * k, d.value[k, w](bits)
                    )
                continue
            comptime for k in range(D.unroll):
                var element = first + threads * k
                if element < numel:
                    var values = d.value[k, w](bits)
                    if element + w <= numel:
                        output.unsafe_store(element, values)
                    else:
                        for i in range(numel - element):
                            output.unsafe_store(element + i, values[i])

    parallel_ranges(call, rounds * threads, _GRAIN, run, alignment=w)


def _kernel[
    D: Distribution
](output: Data[D.dtype], numel: Int64, seed: UInt64, first: UInt64, d: D):
    var thread = Int(block_idx.x) * BLOCK + Int(thread_idx.x)
    var threads = Int(grid_dim.x) * BLOCK
    var base = thread
    var count = first
    while base < Int(numel):
        var bits = philox[1](seed, SIMD[DType.uint64, 1](UInt64(thread)), count)
        comptime for k in range(D.unroll):
            var element = base + threads * k
            if element < Int(numel):
                output.unsafe_store(element, d.value[k, 1](bits))
        base += threads * D.unroll
        count += 1


def fill[D: Distribution](call: KernelCall, d: D) raises:
    """Fills the output, which must be contiguous.

    Parameters:
        D: The distribution.

    Args:
        call: Tensors: the output. Scalars: seed, offset, max_blocks, then the distribution's own.
        d: The distribution.
    """
    var tensor = call.tensor(0)
    var numel = Int(tensor.numel)
    if numel == 0:
        return
    var draws = Draws(call, numel)
    var output = tensor.pointer[D.dtype]()
    comptime if has_accelerator():
        var context = DeviceContext(
            Pointer[NoneType, MutUntrackedOrigin](
                unsafe_from_address=Int(call.device_context)
            )
        )
        context.enqueue_function[_kernel[D]](
            output,
            Int64(numel),
            draws.seed,
            draws.first,
            d,
            grid_dim=draws.threads // BLOCK,
            block_dim=BLOCK,
        )
    else:
        _on_cpu(call, output, numel, draws, d)
