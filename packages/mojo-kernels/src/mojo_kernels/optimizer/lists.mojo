"""Applies an elementwise update to corresponding tensors of several lists, in one launch for all of them.

The lists are cut into chunks; on CPUs threads share the chunks, on GPUs blocks do, for up to `BATCH` tensors a launch.
"""

from max.gpu import block_idx, thread_idx
from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.layout import (
    MAX_DIMENSIONS,
    Cursor,
    IndexSpace,
    ceil_div,
    parallel_ranges,
)
from mojo_kernels.math import compute_type
from mojo_kernels.reduction.rows import gpu_context, row_each
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.collections import Array
from std.sys.info import has_accelerator
from std.utils.static_tuple import StaticTuple

comptime CHUNK = 16384
"""Elements of a chunk on CPUs."""
comptime GPU_CHUNK = 4096
"""Elements of a chunk on GPUs."""
comptime GPU_BLOCK = 256
"""Threads of a block."""
comptime BATCH = 32
"""Tensors per list of a GPU launch."""
comptime Number[dtype: DType] = Scalar[compute_type[dtype]()]
"""A number that an update takes besides tensors: some GPUs have no float64."""
comptime Prepared[dtype: DType] = StaticTuple[Number[dtype], 2]
"""What an update computes once per tensor."""


@fieldwise_init
struct OptionalNumber(TrivialRegisterPassable):
    """The address of one float32, or none: pointers cannot be null."""

    var address: UInt64
    """The address; 0 for none."""

    def __init__(out self, tensor: Tensor):
        """Takes a one-element float32 tensor.

        Args:
            tensor: The tensor, or an absent one.
        """
        self.address = 0 if tensor.is_absent() else UInt64(Int(tensor.data))

    @inline(.always)
    def is_given(self) -> Bool:
        """Whether there is a number.

        Returns:
            False for none.
        """
        return self.address != 0

    @inline(.always)
    def load(self) -> Float32:
        """Reads the number.

        Returns:
            The number, which must be given.
        """
        return Data[DType.float32](
            unsafe_from_address=Int(self.address)
        ).unsafe_load(0)


trait ListUpdate(DevicePassable, TrivialRegisterPassable):
    """An elementwise update of corresponding tensors."""

    comptime dtype: DType
    """The element type of all lists."""
    comptime lists: Int
    """The number of lists, absent ones included."""
    comptime device_type: AnyType = Self
    """The type on the device."""

    def prepare(
        self, value: Number[Self.dtype], number: OptionalNumber
    ) -> Prepared[Self.dtype]:
        """Computes what all elements of a tensor share.

        Args:
            value: The tensor's number, where numbers were given.
            number: The tensor's one-element float32 tensor, where those were given.

        Returns:
            Numbers for `apply`.
        """
        ...

    def apply[
        w: Int
    ](
        self,
        at: StaticTuple[Data[Self.dtype], Self.lists],
        prepared: Prepared[Self.dtype],
    ):
        """Updates elements.

        Parameters:
            w: How many neighbours.

        Args:
            at: The first element, per list; meaningless for absent lists.
            prepared: What `prepare` returned.
        """
        ...

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "ListUpdate"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)


@fieldwise_init
struct TensorLists[lists: Int](TrivialRegisterPassable):
    """Where the tensors of the lists and their companions stand in a call.

    Parameters:
        lists: The number of lists.
    """

    var count: Int
    """The number of tensors in each list."""
    var starts: StaticTuple[Int, Self.lists]
    """The position of each list's first tensor; -1 for an absent list."""
    var pointers: Int
    """The position of the first of `count` one-element float32 tensors, or -1."""
    var values: Int
    """The position of the first scalar word of the Numbers, or -1."""
    var value_step: Int
    """2 where each tensor has a Number, 0 where all share one."""


struct _Batch[dtype: DType, lists: Int](
    DevicePassable, TrivialRegisterPassable
):
    """Up to `BATCH` tensors per list, as an argument of a GPU kernel."""

    comptime device_type: AnyType = Self

    var chunks: StaticTuple[Int32, BATCH + 1]
    """The number of the first chunk of each tensor, then of the one behind the last."""
    var numel: StaticTuple[Int64, BATCH]
    var data: StaticTuple[UInt64, BATCH * Self.lists]
    var values: StaticTuple[Number[Self.dtype], BATCH]
    var pointers: StaticTuple[UInt64, BATCH]

    def __init__(out self):
        self.chunks = StaticTuple[Int32, BATCH + 1](fill=0)
        self.numel = StaticTuple[Int64, BATCH](fill=0)
        self.data = StaticTuple[UInt64, BATCH * Self.lists](fill=0)
        self.values = StaticTuple[Number[Self.dtype], BATCH](fill=0)
        self.pointers = StaticTuple[UInt64, BATCH](fill=0)

    @staticmethod
    def get_type_name() -> String:
        return "_Batch"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)


def _kernel[
    U: ListUpdate
](update: U, batch: _Batch[U.dtype, U.lists], skip: UInt64):
    """One chunk per block."""
    # A found infinity skips the step.
    if skip != 0:
        if OptionalNumber(skip).load() != 0:
            return
    var chunk = Int(block_idx.x)
    var t = 0
    while Int(batch.chunks[t + 1]) <= chunk:
        t += 1
    var start = (chunk - Int(batch.chunks[t])) * GPU_CHUNK
    var end = min(start + GPU_CHUNK, Int(batch.numel[t]))
    var prepared = update.prepare(
        batch.values[t], OptionalNumber(batch.pointers[t])
    )
    var i = start + Int(thread_idx.x)
    while i < end:
        var at = StaticTuple[Data[U.dtype], U.lists](
            fill=Data[U.dtype](unsafe_from_address=Int(batch.data[t * U.lists]))
        )
        comptime for k in range(U.lists):
            at[k] = Data[U.dtype](
                unsafe_from_address=Int(batch.data[t * U.lists + k])
            ).unsafe_offset(i)
        update.apply[1](at, prepared)
        i += GPU_BLOCK


def _check[
    lists: Int
](call: KernelCall, layout: TensorLists[lists], t: Int) raises:
    """Raises where the lists' tensors `t` do not fit together."""
    var first = call.tensor(layout.starts[0] + t)
    comptime for k in range(lists):
        if layout.starts[k] >= 0:
            var tensor = call.tensor(layout.starts[k] + t)
            if tensor.dtype != first.dtype:
                raise Error(
                    "NotImplementedError: lists of tensors of different dtypes"
                    " in one fused call; pass foreach=False, fused=False"
                )
            var same = tensor.numel == first.numel
            if not same or (first.numel != 1 and tensor.ndim != first.ndim):
                raise Error(
                    "corresponding tensors of the lists must have the same size"
                )


def _space[
    lists: Int
](call: KernelCall, layout: TensorLists[lists], t: Int) -> IndexSpace[lists]:
    """The elements of the lists' tensors `t`, in the order of the first one's memory.
    """
    var first = call.tensor(layout.starts[0] + t)
    # One element needs no dimensions, which may differ in number.
    var ndim = Int(first.ndim) if first.numel != 1 else 0
    var order = Array[Int, MAX_DIMENSIONS](uninitialized=True)
    for d in range(ndim):
        var i = d
        while i > 0 and first.stride(order.unsafe_get(i - 1)) < first.stride(d):
            order.unsafe_get(i) = order.unsafe_get(i - 1)
            i -= 1
        order.unsafe_get(i) = d
    var space = IndexSpace[lists]()
    for i in range(ndim):
        var d = order.unsafe_get(i)
        var strides = StaticTuple[Int, lists](fill=first.stride(d))
        comptime for k in range(lists):
            if layout.starts[k] >= 0:
                strides[k] = call.tensor(layout.starts[k] + t).stride(d)
        space.append(first.size(d), strides)
    return space^


def _is_flat[lists: Int](space: IndexSpace[lists]) -> Bool:
    """Whether all lists lie in memory in the same order without gaps."""
    if space.ndim == 0:
        return True
    var flat = space.ndim == 1
    comptime for k in range(lists):
        flat = flat and space.stride(0, k) == 1
    return flat


def _data[
    dtype: DType, lists: Int
](call: KernelCall, layout: TensorLists[lists], t: Int) -> StaticTuple[
    Data[dtype], lists
]:
    """The first element of each list's tensor `t`."""
    var at = StaticTuple[Data[dtype], lists](
        fill=call.tensor(layout.starts[0] + t).pointer[dtype]()
    )
    comptime for k in range(lists):
        if layout.starts[k] >= 0:
            at[k] = call.tensor(layout.starts[k] + t).pointer[dtype]()
    return at


def _value[
    dtype: DType, lists: Int
](call: KernelCall, layout: TensorLists[lists], t: Int) -> Number[dtype]:
    """The number of tensor `t`."""
    if layout.values < 0:
        return 0
    return call.float_scalar(layout.values + t * layout.value_step + 1).cast[
        compute_type[dtype]()
    ]()


def _number[
    lists: Int
](call: KernelCall, layout: TensorLists[lists], t: Int) -> OptionalNumber:
    """The one-element tensor of tensor `t`."""
    if layout.pointers < 0:
        return OptionalNumber(UInt64(0))
    return OptionalNumber(call.tensor(layout.pointers + t))


def update_lists[
    U: ListUpdate
](
    call: KernelCall,
    update: U,
    layout: TensorLists[U.lists],
    skip: OptionalNumber,
) raises:
    """Updates all tensors of the lists.

    Parameters:
        U: The update's type.

    Args:
        call: The call.
        update: What to do with each element.
        layout: Where the lists stand in the call.
        skip: Nothing is done where it is given and not 0.

    Raises:
        NotImplementedError: Dtypes differ, or on GPUs corresponding tensors differ in strides.
        RuntimeError: Sizes differ.
    """
    for t in range(layout.count):
        _check(call, layout, t)
    comptime if has_accelerator():
        var start = 0
        while start < layout.count:
            var batch = _Batch[U.dtype, U.lists]()
            var chunks = 0
            var filled = 0
            while filled < BATCH and start < layout.count:
                var t = start
                start += 1
                var space = _space(call, layout, t)
                if space.numel == 0:
                    continue
                if not _is_flat(space):
                    raise Error(
                        "NotImplementedError: a fused update on this device"
                        " needs tensors of the same dense strides; call"
                        " contiguous() on them"
                    )
                batch.chunks[filled] = Int32(chunks)
                chunks += ceil_div(space.numel, GPU_CHUNK)
                batch.numel[filled] = Int64(space.numel)
                batch.values[filled] = _value[U.dtype](call, layout, t)
                batch.pointers[filled] = _number(call, layout, t).address
                var at = _data[U.dtype](call, layout, t)
                comptime for k in range(U.lists):
                    batch.data[filled * U.lists + k] = UInt64(Int(at[k]))
                filled += 1
            for t in range(filled, BATCH + 1):
                batch.chunks[t] = Int32(chunks)
            if chunks > 0:
                gpu_context(call).enqueue_function[_kernel[U]](
                    update,
                    batch,
                    skip.address,
                    grid_dim=chunks,
                    block_dim=GPU_BLOCK,
                )
    else:
        if skip.is_given():
            if skip.load() != 0:
                return
        # Dense tensors are cut into chunks; others are one chunk each.
        var ends = List[Int](capacity=layout.count)
        var flat = List[Bool](capacity=layout.count)
        var chunks = 0
        for t in range(layout.count):
            var space = _space(call, layout, t)
            flat.append(_is_flat(space))
            if space.numel > 0:
                chunks += ceil_div(space.numel, CHUNK) if flat[t] else 1
            ends.append(chunks)

        def some_chunks(first: Int, last: Int) {imm}:
            var t = 0
            for chunk in range(first, last):
                while ends[t] <= chunk:
                    t += 1
                var prepared = update.prepare(
                    _value[U.dtype](call, layout, t), _number(call, layout, t)
                )
                var at = _data[U.dtype](call, layout, t)
                if not flat[t]:
                    _update_strided(call, update, layout, t, at, prepared)
                    continue
                var start = (chunk - (ends[t - 1] if t > 0 else 0)) * CHUNK
                var numel = Int(call.tensor(layout.starts[0] + t).numel)

                def piece[w: Int](i: Int) {imm}:
                    var elements = at
                    comptime for k in range(U.lists):
                        elements[k] = at[k].unsafe_offset(start + i)
                    update.apply[w](elements, prepared)

                row_each[0, compute_type[U.dtype]()](
                    min(CHUNK, numel - start), piece
                )

        parallel_ranges(call, chunks, 2, some_chunks)
        _ = ends^
        _ = flat^


def _update_strided[
    U: ListUpdate
](
    call: KernelCall,
    update: U,
    layout: TensorLists[U.lists],
    t: Int,
    at: StaticTuple[Data[U.dtype], U.lists],
    prepared: Prepared[U.dtype],
):
    """Updates the elements of tensors whose strides differ one by one."""
    var space = _space(call, layout, t)
    var cursor = Cursor(space, 0)
    for _ in range(space.numel):
        var elements = at
        comptime for k in range(U.lists):
            elements[k] = at[k].unsafe_offset(cursor.offsets[k])
        update.apply[1](elements, prepared)
        cursor.advance(space)
