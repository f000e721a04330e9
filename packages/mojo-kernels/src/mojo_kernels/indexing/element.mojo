"""Runs a small action for each element of an index space, on CPUs and GPUs alike."""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from mojo_kernels.abi import KernelCall
from mojo_kernels.layout import (
    Cursor,
    IndexSpace,
    OffsetCalculator,
    ceil_div,
    outer_space,
    parallel_ranges,
)
from mojo_kernels.reduction.rows import gpu_context
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator, is_gpu
from std.utils.static_tuple import StaticTuple

comptime GPU_BLOCK = 256
"""Threads of a block."""
comptime GPU_MAX_BLOCKS = 1 << 16
"""Blocks of a launch; threads loop over what is left."""


trait ElementAction(DevicePassable, TrivialRegisterPassable):
    """What happens to one element of an index space."""

    comptime operands: Int
    """How many tensors have offsets in the space."""
    comptime device_type: AnyType = Self
    """The type on the device."""

    def apply(self, offsets: StaticTuple[Int, Self.operands]):
        """Handles one element.

        Args:
            offsets: Where it lies, per operand, in elements.
        """
        ...

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "ElementAction"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)


def _kernel[
    A: ElementAction
](
    action: A,
    outer: StaticTuple[Int64, A.operands],
    calculator: OffsetCalculator[A.operands, DType.uint64],
    count: Int64,
):
    """One element per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var offsets = calculator.offsets(UInt64(i))
        comptime for k in range(A.operands):
            offsets[k] += Int(outer[k])
        action.apply(offsets)
        i += Int(grid_dim.x) * Int(block_dim.x)


def each_element[
    A: ElementAction
](
    call: KernelCall,
    action: A,
    mut space: IndexSpace[A.operands],
    grain: Int = 16384,
    serial: Bool = False,
) raises:
    """Applies an action to every element of a space, in any order and on many threads.

    Parameters:
        A: The action's type.

    Args:
        call: The call.
        action: What to do with each; no two elements may depend on each other unless `serial`.
        space: The elements; its dimensions are used up.
        grain: How many elements are worth a thread.
        serial: Whether one thread handles all elements in order.
    """
    if space.numel == 0:
        return
    comptime if has_accelerator():
        var outer = outer_space(space)
        var calculator = OffsetCalculator[A.operands, DType.uint64](space)
        var cursor = Cursor(outer, 0)
        for _ in range(outer.numel):
            var base = StaticTuple[Int64, A.operands]()
            comptime for k in range(A.operands):
                base[k] = Int64(cursor.offsets[k])
            gpu_context(call).enqueue_function[_kernel[A]](
                action,
                base,
                calculator,
                Int64(space.numel),
                grid_dim=1 if serial else min(
                    ceil_div(space.numel, GPU_BLOCK), GPU_MAX_BLOCKS
                ),
                block_dim=1 if serial else GPU_BLOCK,
            )
            cursor.advance(outer)
    else:
        var fastest = space.pop()
        var n = fastest.size

        def some_elements(start: Int, end: Int) {imm}:
            # Copies, which stores to tensors cannot change: they stay in registers.
            var own = action
            var steps = fastest.strides
            var row, position = divmod(start, n)
            var cursor = Cursor(space, row)
            var left = end - start
            while left > 0:
                var count = min(n - position, left)
                var offsets = cursor.offsets
                comptime for k in range(A.operands):
                    offsets[k] += position * steps[k]
                for _ in range(count):
                    own.apply(offsets)
                    comptime for k in range(A.operands):
                        offsets[k] += steps[k]
                left -= count
                position = 0
                cursor.advance(space)

        var count = space.numel * n
        parallel_ranges(call, count, count if serial else grain, some_elements)
