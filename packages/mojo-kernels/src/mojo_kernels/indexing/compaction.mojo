"""Ranks the set elements of a sequence: the k-th set element learns that it is the k-th, in parallel."""

from max.gpu import block_idx, thread_idx
from max.gpu.sync import barrier
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import ceil_div
from mojo_kernels.reduction.rows import gpu_context
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory import AddressSpace, stack_allocation
from std.sys.info import has_accelerator

comptime GRAIN = 32768
"""Elements that are worth a thread."""
comptime BLOCK = 256
"""Threads of a GPU block."""
comptime PER_THREAD = 4
"""Neighbouring elements that a GPU thread handles."""


trait Compaction(DevicePassable, TrivialRegisterPassable):
    """Which elements are set, and what happens to them."""

    comptime device_type: AnyType = Self
    """The type on the device."""

    def is_set(self, index: Int) -> Bool:
        """Whether an element counts.

        Args:
            index: Its position.

        Returns:
            True if it is ranked.
        """
        ...

    def emit(self, index: Int, rank: Int):
        """Handles a set element.

        Args:
            index: Its position.
            rank: How many set elements stand before it.
        """
        ...

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "Compaction"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)


@inline(.always)
def _block_prefix(value: Int64) -> Tuple[Int64, Int64]:
    """The sum of the values of the threads before this one, and of all threads of the block.
    """
    var shared = stack_allocation[
        2 * BLOCK, Int64, address_space=AddressSpace.SHARED
    ]()
    var thread = Int(thread_idx.x)
    shared.unsafe_store(thread, value)
    barrier()
    # Hillis and Steele's scan, between two halves of the array.
    var source = 0
    var distance = 1
    while distance < BLOCK:
        var sum = shared.unsafe_load(source + thread)
        if thread >= distance:
            sum += shared.unsafe_load(source + thread - distance)
        source = BLOCK - source
        shared.unsafe_store(source + thread, sum)
        barrier()
        distance *= 2
    var total = shared.unsafe_load(source + BLOCK - 1)
    var before = shared.unsafe_load(source + thread) - value
    barrier()
    return before, total


def _count_kernel[
    C: Compaction
](action: C, counts: Data[DType.int64], count: Int64):
    """Counts the set elements of each block's piece."""
    var first = (Int(block_idx.x) * BLOCK + Int(thread_idx.x)) * PER_THREAD
    var found = Int64(0)
    for i in range(first, min(first + PER_THREAD, Int(count))):
        if action.is_set(i):
            found += 1
    var total = _block_prefix(found)[1]
    if thread_idx.x == 0:
        counts.unsafe_store(Int(block_idx.x), total)


def _offset_kernel(counts: Data[DType.int64], blocks: Int64):
    """One block turns the counts into the number of set elements before each piece.
    """
    var before = Int64(0)
    var start = 0
    while start < Int(blocks):
        var i = start + Int(thread_idx.x)
        var value = Int64(0)
        if i < Int(blocks):
            value = counts.unsafe_load(i)
        var prefix = _block_prefix(value)
        if i < Int(blocks):
            counts.unsafe_store(i, before + prefix[0])
        before += prefix[1]
        start += BLOCK


def _emit_kernel[
    C: Compaction
](action: C, offsets: Data[DType.int64], count: Int64):
    """Ranks and handles the set elements of each block's piece."""
    var first = (Int(block_idx.x) * BLOCK + Int(thread_idx.x)) * PER_THREAD
    var end = min(first + PER_THREAD, Int(count))
    var found = Int64(0)
    for i in range(first, end):
        if action.is_set(i):
            found += 1
    var rank = Int(
        offsets.unsafe_load(Int(block_idx.x)) + _block_prefix(found)[0]
    )
    for i in range(first, end):
        if action.is_set(i):
            action.emit(i, rank)
            rank += 1


def compact[C: Compaction](call: KernelCall, action: C, count: Int) raises:
    """Handles every set element of [0, count) with its rank.

    Parameters:
        C: The type of the action.

    Args:
        call: The call.
        action: What to do.
        count: The number of elements.
    """
    if count == 0:
        return
    comptime if has_accelerator():
        var context = gpu_context(call)
        var blocks = ceil_div(count, BLOCK * PER_THREAD)
        var scratch = context.enqueue_create_buffer[DType.int64](blocks)
        var counts = Data[DType.int64](
            unsafe_from_address=Int(scratch.unsafe_ptr())
        )
        context.enqueue_function[_count_kernel[C]](
            action, counts, Int64(count), grid_dim=blocks, block_dim=BLOCK
        )
        context.enqueue_function[_offset_kernel](
            counts, Int64(blocks), grid_dim=1, block_dim=BLOCK
        )
        context.enqueue_function[_emit_kernel[C]](
            action, counts, Int64(count), grid_dim=blocks, block_dim=BLOCK
        )
        _ = scratch^
    else:
        var tasks = max(min(Int(call.threads), count // GRAIN), 1)
        var share = ceil_div(count, tasks)
        var starts = List[Int](length=tasks, fill=0)
        var counts = starts.unsafe_ptr()

        def count_share(task: Int) {imm}:
            var found = 0
            for i in range(task * share, min((task + 1) * share, count)):
                if action.is_set(i):
                    found += 1
            counts.unsafe_offset(task)[] = found

        if tasks > 1:
            call.parallel(count_share, tasks)
        var before = 0
        for task in range(tasks):
            var found = starts[task]
            starts[task] = before
            before += found

        def emit_share(task: Int) {imm}:
            var rank = counts.unsafe_offset(task)[]
            for i in range(task * share, min((task + 1) * share, count)):
                if action.is_set(i):
                    action.emit(i, rank)
                    rank += 1

        call.parallel(emit_share, tasks)
        _ = starts^
