"""Sequences of equally spaced numbers."""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type
from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.host import DeviceContext
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import iota
from std.sys.info import has_accelerator, simd_width_of

comptime _BLOCK = 256
comptime _GRAIN = 65536


@inline(.always)
def _position_type[dtype: DType]() -> DType:
    """The type that counts and computes: exact for integers; CPUs use float64 for all floats, as torch does.
    """
    comptime if dtype.is_integral():
        return DType.int64
    elif has_accelerator():
        return compute_type[dtype]()
    else:
        return DType.float64


@fieldwise_init
struct _Sequence[type: DType](DevicePassable, TrivialRegisterPassable):
    """`start + i step` for the first half of the positions, `end - (count - 1 - i) step` for the others.
    """

    comptime device_type: AnyType = Self
    var start: Scalar[Self.type]
    var end: Scalar[Self.type]
    var step: Scalar[Self.type]
    var count: Int64
    var half: Int64

    @staticmethod
    def get_type_name() -> String:
        return "_Sequence"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def at[w: Int](self, i: Int) -> SIMD[Self.type, w]:
        """The values at positions from `i` on."""
        comptime Vector = SIMD[Self.type, w]
        var position = iota[DType.int64, w](Int64(i))
        var forward = (
            Vector(self.start) + position.cast[Self.type]() * self.step
        )
        var backward = (
            Vector(self.end)
            - (Int64(self.count) - 1 - position).cast[Self.type]() * self.step
        )
        return position.lt(SIMD[DType.int64, w](self.half)).select(
            forward, backward
        )


def _kernel[
    dtype: DType, type: DType
](output: Data[dtype], stride: Int64, sequence: _Sequence[type]):
    var i = Int(block_idx.x) * _BLOCK + Int(thread_idx.x)
    while i < Int(sequence.count):
        output.unsafe_store(i * Int(stride), sequence.at[1](i).cast[dtype]())
        i += Int(grid_dim.x) * _BLOCK


def _write[
    dtype: DType, type: DType
](call: KernelCall, sequence: _Sequence[type]) raises:
    """Writes a sequence to the one-dimensional output."""
    if sequence.count == 0:
        return
    var output = call.tensor(0).pointer[dtype]()
    var stride = call.tensor(0).stride(0)
    comptime if has_accelerator():
        var context = DeviceContext(
            Pointer[NoneType, MutUntrackedOrigin](
                unsafe_from_address=Int(call.device_context)
            )
        )
        context.enqueue_function[_kernel[dtype, type]](
            output,
            Int64(stride),
            sequence,
            grid_dim=min(ceil_div(Int(sequence.count), _BLOCK), 1 << 20),
            block_dim=_BLOCK,
        )
    else:
        comptime w = simd_width_of[type]()

        def run(start: Int, end: Int) {imm}:
            var i = start
            if stride == 1:
                while i + w <= end:
                    output.unsafe_store(i, sequence.at[w](i).cast[dtype]())
                    i += w
            while i < end:
                output.unsafe_store(i * stride, sequence.at[1](i).cast[dtype]())
                i += 1

        parallel_ranges(call, Int(sequence.count), _GRAIN, run, alignment=w)


def arange[dtype: DType](call: KernelCall) raises:
    """`output[i] = start + i step`.

    Parameters:
        dtype: The output's type, not bool.

    Args:
        call: Tensors: output, one-dimensional. Scalars: start, step, Numbers.
    """
    comptime type = _position_type[dtype]()
    var start = call.number[type](0)
    var count = call.tensor(0).numel
    _write[dtype](
        call, _Sequence[type](start, start, call.number[type](2), count, count)
    )


def linspace[dtype: DType](call: KernelCall) raises:
    """Numbers from start to end, both exact, equally spaced.

    Parameters:
        dtype: The output's type, not bool; integers are cut toward 0.

    Args:
        call: Tensors: output, one-dimensional. Scalars: start, end, Numbers.
    """
    comptime of_integers = (
        DType.float32 if has_accelerator() else DType.float64
    )
    comptime type = (
        of_integers if dtype.is_integral() else _position_type[dtype]()
    )
    var start = call.number[type](0)
    var end = call.number[type](2)
    var count = call.tensor(0).numel
    var step = (end - start) / Scalar[type](max(1, Int(count) - 1))
    _write[dtype](
        call, _Sequence[type](start, end, step, count, (count + 1) // 2)
    )
