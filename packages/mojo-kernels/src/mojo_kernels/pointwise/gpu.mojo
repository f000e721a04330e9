"""Applies an element function on a GPU: vector loads where operands are contiguous, else an offset calculator."""

from mojo_kernels.abi import KernelCall
from mojo_kernels.layout import (
    Cursor,
    IndexSpace,
    OffsetCalculator,
    ceil_div,
    outer_space,
)
from mojo_kernels.pointwise.function import (
    ElementFunction,
    Storage,
    from_storage,
    storage_type,
    to_storage,
)
from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.host import DeviceContext
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import size_of
from std.utils.static_tuple import StaticTuple

comptime GPU_BLOCK = 256
"""Threads in a block."""
comptime GPU_VECTOR_BYTES = 16
"""What a thread loads or stores of its largest operand at once."""


@inline(.always)
def _load[
    dtype: DType, w: Int
](
    source: Storage[dtype],
    offset: Int,
    by_value: Int32,
    broadcast: Int32,
    value: SIMD[storage_type[dtype](), w],
) -> SIMD[storage_type[dtype](), w]:
    """Loads an input on the GPU, unless its value was passed by argument."""
    if by_value != 0:
        return value
    if broadcast != 0:
        return SIMD[storage_type[dtype](), w](source.unsafe_load(0))
    return source.unsafe_load[
        width=w, alignment=w * size_of[storage_type[dtype]()]()
    ](offset)


struct _Operands[F: ElementFunction](DevicePassable, TrivialRegisterPassable):
    """The pointers of a launch, and the values of inputs that stand in host memory.
    """

    comptime device_type: AnyType = Self

    var output: Storage[Self.F.Output]
    var a: Storage[Self.F.First]
    var b: Storage[Self.F.Rest]
    var c: Storage[Self.F.Rest]
    var a_value: Scalar[storage_type[Self.F.First]()]
    var b_value: Scalar[storage_type[Self.F.Rest]()]
    var c_value: Scalar[storage_type[Self.F.Rest]()]
    var by_value: Int32
    """Bit k - 1: input k is its value here."""
    var broadcast: Int32
    """Bit k - 1: input k is one element for all; only for `_contiguous_kernel`."""

    def __init__(out self, call: KernelCall):
        """Reads a call's tensors.

        Args:
            call: The output and the inputs.
        """
        var a = call.tensor(min(1, Self.F.arity))
        var b = call.tensor(min(2, Self.F.arity))
        var c = call.tensor(min(3, Self.F.arity))
        self.output = call.tensor(0).pointer[storage_type[Self.F.Output]()]()
        self.a = a.pointer[storage_type[Self.F.First]()]()
        self.b = b.pointer[storage_type[Self.F.Rest]()]()
        self.c = c.pointer[storage_type[Self.F.Rest]()]()
        self.a_value = self.a[] if a.is_host_scalar() else 0
        self.b_value = self.b[] if b.is_host_scalar() else 0
        self.c_value = self.c[] if c.is_host_scalar() else 0
        self.by_value = 0
        self.broadcast = 0
        comptime for k in range(Self.F.arity):
            if call.tensor(k + 1).is_host_scalar():
                self.by_value |= Int32(1 << k)

    @staticmethod
    def get_type_name() -> String:
        return "_Operands"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def compute[
        w: Int
    ](self, f: Self.F, offsets: StaticTuple[Int, Self.F.arity + 1]):
        """Computes `w` neighbours from the given offsets on."""
        var a = SIMD[storage_type[Self.F.First](), w](self.a_value)
        var b = SIMD[storage_type[Self.F.Rest](), w](self.b_value)
        var c = SIMD[storage_type[Self.F.Rest](), w](self.c_value)
        comptime if Self.F.arity > 0:
            a = _load[Self.F.First, w](
                self.a, offsets[1], self.by_value & 1, self.broadcast & 1, a
            )
        comptime if Self.F.arity > 1:
            b = _load[Self.F.Rest, w](
                self.b, offsets[2], self.by_value & 2, self.broadcast & 2, b
            )
        comptime if Self.F.arity > 2:
            c = _load[Self.F.Rest, w](
                self.c, offsets[3], self.by_value & 4, self.broadcast & 4, c
            )
        comptime output_type = storage_type[Self.F.Output]()
        self.output.unsafe_store[alignment=w * size_of[output_type]()](
            offsets[0],
            to_storage(
                f.apply(
                    from_storage[Self.F.First](a),
                    from_storage[Self.F.Rest](b),
                    from_storage[Self.F.Rest](c),
                )
            ),
        )


def _contiguous_kernel[
    F: ElementFunction, w: Int
](f: F, operands: _Operands[F], count: Int64):
    """Contiguous operands, `w` elements per thread and step."""
    comptime Offsets = StaticTuple[Int, F.arity + 1]
    var i = (Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)) * w
    while i + w <= Int(count):
        operands.compute[w](f, Offsets(fill=i))
        i += Int(grid_dim.x) * GPU_BLOCK * w
    while i < Int(count):
        operands.compute[1](f, Offsets(fill=i))
        i += 1


def _strided_kernel[
    F: ElementFunction, index: DType
](
    f: F,
    operands: _Operands[F],
    calculator: OffsetCalculator[F.arity + 1, index],
    count: Int64,
):
    """Operands of any layout, one element per thread and step."""
    var i = Int(block_idx.x) * GPU_BLOCK + Int(thread_idx.x)
    while i < Int(count):
        operands.compute[1](f, calculator.offsets(Scalar[index](i)))
        i += Int(grid_dim.x) * GPU_BLOCK


def run_on_gpu[
    F: ElementFunction
](call: KernelCall, mut space: IndexSpace[F.arity + 1], f: F) raises:
    """Launches on the stream's device."""
    var context = DeviceContext(
        Pointer[NoneType, MutUntrackedOrigin](
            unsafe_from_address=Int(call.device_context)
        )
    )
    var operands = _Operands[F](call)
    comptime output_type = storage_type[F.Output]()
    comptime largest = max(
        size_of[output_type](),
        max(
            size_of[storage_type[F.First]()](),
            size_of[storage_type[F.Rest]()](),
        ),
    )
    comptime w = GPU_VECTOR_BYTES // largest
    if space.ndim <= 1:
        var address = Int(operands.output)
        var stride_out = space.stride(0, 0) if space.ndim == 1 else 1
        var contiguous = stride_out == 1
        comptime for k in range(F.arity):
            if (operands.by_value & Int32(1 << k)) == 0:
                var stride = space.stride(0, k + 1) if space.ndim == 1 else 1
                if stride == 0:
                    operands.broadcast |= Int32(1 << k)
                elif stride == 1:
                    address |= Int(call.tensor(k + 1).data)
                else:
                    contiguous = False
        if contiguous and address % GPU_VECTOR_BYTES == 0:
            context.enqueue_function[_contiguous_kernel[F, w]](
                f,
                operands,
                Int64(space.numel),
                grid_dim=_blocks(ceil_div(space.numel, w)),
                block_dim=GPU_BLOCK,
            )
            return
        operands.broadcast = 0
    var outer = outer_space(space)
    var cursor = Cursor[F.arity + 1](outer, 0)
    for _ in range(outer.numel):
        var piece = operands
        piece.output = operands.output.unsafe_offset(cursor.offsets[0])
        comptime if F.arity > 0:
            piece.a = operands.a.unsafe_offset(cursor.offsets[1])
        comptime if F.arity > 1:
            piece.b = operands.b.unsafe_offset(cursor.offsets[2])
        comptime if F.arity > 2:
            piece.c = operands.c.unsafe_offset(cursor.offsets[3])
        if space.fits_32_bits():
            context.enqueue_function[_strided_kernel[F, DType.uint32]](
                f,
                piece,
                OffsetCalculator[F.arity + 1, DType.uint32](space),
                Int64(space.numel),
                grid_dim=_blocks(space.numel),
                block_dim=GPU_BLOCK,
            )
        else:
            context.enqueue_function[_strided_kernel[F, DType.uint64]](
                f,
                piece,
                OffsetCalculator[F.arity + 1, DType.uint64](space),
                Int64(space.numel),
                grid_dim=_blocks(space.numel),
                block_dim=GPU_BLOCK,
            )
        cursor.advance(outer)


def _blocks(threads: Int) -> Int:
    """The grid for a number of threads; beyond the limit they take several steps.
    """
    return min(ceil_div(threads, GPU_BLOCK), 1 << 22)
