"""The kernels of a reduction on GPUs.

A block of `BLOCK` threads handles `outputs` results at a time, each with `BLOCK / outputs` threads that merge their states
through shared memory. Few results of many elements are cut into chunks, whose states a second kernel merges.
"""

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.sync import barrier
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import (
    MAX_GPU_DIMENSIONS,
    OffsetCalculator,
    ceil_div,
)
from mojo_kernels.reduction.plan import INPUT, OUTPUT, SECOND, ReductionPlan
from mojo_kernels.reduction.reducer import (
    Reducer,
    State,
    Storage,
    output_count,
    parameter_type,
)
from mojo_kernels.reduction.rows import gpu_context
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory import AddressSpace, stack_allocation
from std.sys.info import size_of

comptime BLOCK = 256
"""Threads of a block."""
comptime WANTED_BLOCKS = 512
"""Blocks that fill a large GPU; fewer outputs are cut into chunks."""
comptime ELEMENTS_PER_THREAD = 16
"""Elements that are worth a thread."""


@fieldwise_init
struct _Problem[op: StaticString, dtype: DType, out: DType, second: DType](
    DevicePassable, TrivialRegisterPassable
):
    """A reduction as an argument of kernels."""

    comptime device_type: AnyType = Self
    comptime One = State[Self.op, Self.dtype, Self.out, 1]

    var reducer_argument: Scalar[parameter_type[Self.out]()]
    var input: Data[Storage[Self.dtype]]
    var output: Data[Storage[Self.out]]
    var second_output: Data[Storage[Self.second]]
    var kept: OffsetCalculator[3, DType.uint64]
    var kept_total: Int64
    var reduced: OffsetCalculator[1, DType.uint64]
    var reduced_total: Int64
    var stride: Int64
    """The reduced elements' stride if they form one dimension, else -1."""
    var share: Int64
    """Elements of a chunk."""
    var states: UInt64
    """Where the chunks' states [chunks, outputs] go; 0 for one chunk."""

    @staticmethod
    def get_type_name() -> String:
        return "_Problem"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def reducer(self) -> Reducer[Self.op, Self.dtype, Self.out]:
        """The arithmetic."""
        return {self.reducer_argument}

    @inline(.always)
    def state(self, index: Int) -> Pointer[Self.One, MutUntrackedOrigin]:
        """A chunk's state."""
        return Pointer[Self.One, MutUntrackedOrigin](
            unsafe_from_address=Int(self.states)
        ).unsafe_offset(index)

    @inline(.always)
    def write(self, index: Int, state: Self.One):
        """Stores the results of one output."""
        var offsets = self.kept.offsets(UInt64(index))
        self.output.unsafe_store(
            offsets[OUTPUT],
            self.reducer().result(state, Int(self.reduced_total)),
        )
        comptime if output_count[Self.op]() == 2:
            self.second_output.unsafe_store(
                offsets[SECOND],
                self.reducer().second[to=Self.second](state),
            )


def _reduce_kernel[
    op: StaticString,
    dtype: DType,
    out: DType,
    second: DType,
    outputs: Int,
    across: Bool,
](problem: _Problem[op, dtype, out, second]):
    """Reduces one chunk of `outputs` results per block; neighbouring threads read neighbouring outputs where `across`.
    """
    comptime threads = BLOCK // outputs
    comptime One = State[op, dtype, out, 1]
    var shared = stack_allocation[
        BLOCK, One, address_space=AddressSpace.SHARED
    ]()
    var thread = Int(thread_idx.x)
    var local = thread % outputs if across else thread // threads
    var lane = thread // outputs if across else thread % threads
    var reducer = problem.reducer()
    var chunk = Int(block_idx.y)
    var start = chunk * Int(problem.share)
    var end = min(start + Int(problem.share), Int(problem.reduced_total))
    var block = Int(block_idx.x)
    while block * outputs < Int(problem.kept_total):
        var index = block * outputs + local
        var state = reducer.initial[1]()
        if index < Int(problem.kept_total):
            var base = problem.kept.offsets(UInt64(index))[INPUT]
            var step = 0
            for i in range(start + lane, end, threads):
                var offset = i * Int(problem.stride)
                if problem.stride < 0:
                    offset = problem.reduced.offsets(UInt64(i))[0]
                step += 1
                reducer.update(
                    state,
                    problem.input.unsafe_load(base + offset),
                    Int64(i),
                    step,
                )
        var place = local * threads + lane
        shared.unsafe_offset(place)[] = state
        barrier()
        var half = threads // 2
        while half > 0:
            if lane < half:
                shared.unsafe_offset(place)[] = reducer.merge(
                    shared.unsafe_offset(place)[],
                    shared.unsafe_offset(place + half)[],
                )
            barrier()
            half //= 2
        if lane == 0 and index < Int(problem.kept_total):
            if problem.states == 0:
                problem.write(index, shared.unsafe_offset(place)[])
            else:
                problem.state(
                    chunk * Int(problem.kept_total) + index
                )[] = shared.unsafe_offset(place)[]
        barrier()
        block += Int(grid_dim.x)


def _merge_kernel[
    op: StaticString, dtype: DType, out: DType, second: DType
](problem: _Problem[op, dtype, out, second], chunks: Int64):
    """Merges the states of chunks, one output per thread."""
    var index = Int(block_idx.x) * BLOCK + Int(thread_idx.x)
    if index >= Int(problem.kept_total):
        return
    var reducer = problem.reducer()
    var state = problem.state(index)[]
    for chunk in range(1, Int(chunks)):
        state = reducer.merge(
            state, problem.state(chunk * Int(problem.kept_total) + index)[]
        )
    problem.write(index, state)


def _launch[
    op: StaticString,
    dtype: DType,
    out: DType,
    second: DType,
    outputs: Int,
    across: Bool,
](call: KernelCall, var problem: _Problem[op, dtype, out, second]) raises:
    """Chooses the chunks and enqueues the kernels."""
    var kept = Int(problem.kept_total)
    var reduced = Int(problem.reduced_total)
    var blocks = ceil_div(kept, outputs)
    var chunks = max(
        min(
            WANTED_BLOCKS // blocks,
            reduced // (BLOCK // outputs * ELEMENTS_PER_THREAD),
        ),
        1,
    )
    problem.share = Int64(ceil_div(reduced, chunks))
    var context = gpu_context(call)
    var scratch = context.enqueue_create_buffer[DType.uint8](
        size_of[problem.One]() * chunks * kept if chunks > 1 else 1
    )
    if chunks > 1:
        problem.states = UInt64(Int(scratch.unsafe_ptr()))
    context.enqueue_function[
        _reduce_kernel[op, dtype, out, second, outputs, across]
    ](
        problem,
        grid_dim=(min(blocks, 1 << 20), chunks),
        block_dim=BLOCK,
    )
    if chunks > 1:
        context.enqueue_function[_merge_kernel[op, dtype, out, second]](
            problem,
            Int64(chunks),
            grid_dim=ceil_div(kept, BLOCK),
            block_dim=BLOCK,
        )
    _ = scratch^


def reduce_on_gpu[
    op: StaticString, dtype: DType, out: DType, second: DType
](
    call: KernelCall,
    reducer: Reducer[op, dtype, out],
    plan: ReductionPlan,
    input: Data[Storage[dtype]],
    output: Data[Storage[out]],
    second_output: Data[Storage[second]],
) raises:
    """Reduces on the stream's device.

    Parameters:
        op: The reduction.
        dtype: The input's element type.
        out: The output's element type.
        second: The second output's element type.

    Args:
        call: The call.
        reducer: The arithmetic.
        plan: The iteration space.
        input: The input's first element.
        output: The first output's first element.
        second_output: The second output's first element; not read where the op has one output.

    Raises:
        NotImplementedError: More dimensions than a kernel takes are left after merging.
    """
    if plan.kept.numel == 0:
        return
    if max(plan.kept.ndim, plan.reduced.ndim) > MAX_GPU_DIMENSIONS:
        raise Error(
            "NotImplementedError: ",
            op,
            " over more than ",
            MAX_GPU_DIMENSIONS,
            " dimensions that do not merge; call contiguous() first",
        )
    var stride = -1
    if plan.reduced.ndim == 0:
        stride = 0
    elif plan.reduced.ndim == 1:
        stride = plan.reduced.stride(0, 0)
    var problem = _Problem[op, dtype, out, second](
        reducer.argument,
        input,
        output,
        second_output,
        OffsetCalculator[3, DType.uint64](plan.kept),
        Int64(plan.kept.numel),
        OffsetCalculator[1, DType.uint64](plan.reduced),
        Int64(plan.reduced.numel),
        Int64(stride),
        0,
        0,
    )
    var fastest = plan.kept.ndim - 1
    if fastest >= 0 and plan.kept.stride(fastest, INPUT) == 1 and stride != 1:
        _launch[outputs=32, across=True](call, problem)
    elif plan.reduced.numel <= 256 and plan.kept.numel > 1:
        _launch[outputs=8, across=False](call, problem)
    else:
        _launch[outputs=1, across=False](call, problem)
