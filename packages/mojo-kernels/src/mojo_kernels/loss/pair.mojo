"""Losses that compare an input with a target element by element: squared, smooth and binary cross entropy.

With d = input - target:

| op | loss | gradient by the input |
|---|---|---|
| mse | d^2 | 2 d |
| smooth_l1 | d^2 / (2 beta) where abs(d) < beta, else abs(d) - beta / 2 | d / beta, limited to -1 and 1 |
| huber | d^2 / 2 where abs(d) <= delta, else delta (abs(d) - delta / 2) | d, limited to -delta and delta |
| binary_cross_entropy | -w (t log(x) + (1 - t) log(1 - x)), logarithms from -100 up | w (x - t) / max(x (1 - x), 1e-12) |
"""

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.primitives import block
from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import (
    MAX_GPU_DIMENSIONS,
    Cursor,
    Dimension,
    IndexSpace,
    OffsetCalculator,
    ceil_div,
    parallel_ranges,
)
from mojo_kernels.loss.nll import MEAN, NONE
from mojo_kernels.math import compute_type, log, log1p, narrow
from mojo_kernels.reduction.rows import (
    ROW_BLOCK,
    gpu_context,
    row_each,
    row_sum,
)
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 16384
"""Elements that are worth a thread."""
comptime PIECE = 4096
"""Elements whose losses add up before they join the total."""
comptime GPU_BLOCKS = 256
"""Blocks that add up losses."""
comptime INPUTS = 3
"""The input, the target and the weight."""


@inline(.always)
def _loss[
    compute: DType, w: SIMDLength, //, op: StaticString
](
    x: SIMD[compute, w],
    target: SIMD[compute, w],
    weight: SIMD[compute, w],
    parameter: Scalar[compute],
) -> SIMD[compute, w]:
    """The loss of elements."""
    comptime Vector = SIMD[compute, w]
    var d = x - target
    comptime if op == "mse":
        return d * d
    elif op == "smooth_l1":
        return (
            abs(d)
            .lt(Vector(parameter))
            .select(d * d * 0.5 / parameter, abs(d) - parameter * 0.5)
        )
    elif op == "huber":
        return (
            abs(d)
            .le(Vector(parameter))
            .select(d * d * 0.5, (abs(d) - parameter * 0.5) * parameter)
        )
    else:
        comptime assert op == "binary_cross_entropy", "unknown loss"
        var lowest = Vector(-100)
        return -weight * (
            target * max(log(x), lowest) + (1 - target) * max(log1p(-x), lowest)
        )


@inline(.always)
def _gradient[
    compute: DType, w: SIMDLength, //, op: StaticString
](
    x: SIMD[compute, w],
    target: SIMD[compute, w],
    weight: SIMD[compute, w],
    parameter: Scalar[compute],
) -> SIMD[compute, w]:
    """The derivative of the loss by the input."""
    comptime Vector = SIMD[compute, w]
    var d = x - target
    comptime if op == "mse":
        return 2 * d
    elif op == "smooth_l1":
        var sign = d.gt(Vector(0)).select(Vector(1), Vector(-1))
        return abs(d).lt(Vector(parameter)).select(d / parameter, sign)
    elif op == "huber":
        var limit = d.gt(Vector(0)).select(
            Vector(parameter), Vector(-parameter)
        )
        return abs(d).le(Vector(parameter)).select(d, limit)
    else:
        comptime assert op == "binary_cross_entropy", "unknown loss"
        return weight * d / max(x * (1 - x), Vector(1e-12))


@fieldwise_init
struct _Operands[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """The input, the target and the weight."""

    comptime device_type: AnyType = Self
    comptime compute = compute_type[Self.dtype]()

    var input: Data[Self.dtype]
    var target: Data[Self.dtype]
    var weight: Data[Self.dtype]
    var has_weight: Int32
    var parameter: Scalar[compute_type[Self.dtype]()]

    @staticmethod
    def get_type_name() -> String:
        return "_Operands"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def evaluate[
        op: StaticString, gradient: Bool, w: Int
    ](
        self,
        offsets: StaticTuple[Int, INPUTS],
        steps: StaticTuple[Int, INPUTS],
    ) -> SIMD[Self.compute, w]:
        """The loss or its derivative of `w` neighbours; a step of 0 repeats one element.
        """
        var x = _load[Self.compute, w](self.input, offsets[0], steps[0])
        var t = _load[Self.compute, w](self.target, offsets[1], steps[1])
        var weight = SIMD[Self.compute, w](1)
        if self.has_weight != 0:
            weight = _load[Self.compute, w](self.weight, offsets[2], steps[2])
        comptime if gradient:
            return _gradient[op](x, t, weight, self.parameter)
        else:
            return _loss[op](x, t, weight, self.parameter)


@inline(.always)
def _load[
    dtype: DType, //, to: DType, w: Int
](data: Data[dtype], offset: Int, step: Int) -> SIMD[to, w]:
    """Loads neighbours, or one element for all lanes."""
    comptime if w > 1:
        if step != 0:
            return data.unsafe_load[width=w](offset).cast[to]()
    return SIMD[to, w](data.unsafe_load(offset).cast[to]())


def _broadcast_stride(tensor: Tensor, sizes: Tensor, dimension: Int) -> Int:
    """The stride of a tensor along a dimension of the sizes that it broadcasts to.
    """
    var d = dimension - (Int(sizes.ndim) - Int(tensor.ndim))
    if d < 0 or tensor.size(d) == 1:
        return 0
    return tensor.stride(d)


@fieldwise_init
struct _Element[op: StaticString, gradient: Bool, dtype: DType](ElementAction):
    """One loss or gradient on GPUs; operands: output, the loss's gradient, input, target, weight.
    """

    comptime operands = 2 + INPUTS
    var output: Data[Self.dtype]
    var dy: Data[Self.dtype]
    var factor: Scalar[compute_type[Self.dtype]()]
    var operands_of: _Operands[Self.dtype]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, Self.operands]):
        comptime compute = compute_type[Self.dtype]()
        var value = self.operands_of.evaluate[Self.op, Self.gradient, 1](
            StaticTuple[Int, INPUTS](offsets[2], offsets[3], offsets[4]),
            StaticTuple[Int, INPUTS](fill=0),
        )
        comptime if Self.gradient:
            value *= (
                self.dy.unsafe_load(offsets[1]).cast[compute]() * self.factor
            )
        self.output.unsafe_store(offsets[0], narrow[Self.dtype](value))


def _elementwise[
    op: StaticString, gradient: Bool, dtype: DType
](
    call: KernelCall,
    mut space: IndexSpace[2 + INPUTS],
    output: Data[dtype],
    dy: Data[dtype],
    factor: Scalar[compute_type[dtype]()],
    operands: _Operands[dtype],
) raises:
    """Writes a loss or a gradient per element."""
    var action = _Element[op, gradient, dtype](output, dy, factor, operands)
    comptime if not has_accelerator():
        var last = space.ndim - 1
        var contiguous = last >= 0 and space.stride(last, 0) == 1
        if contiguous:
            comptime for k in range(1, 2 + INPUTS):
                contiguous = contiguous and space.stride(last, k) <= 1
        if contiguous:
            comptime compute = compute_type[dtype]()
            var row = space.pop()
            var steps = StaticTuple[Int, INPUTS](
                row.strides[2], row.strides[3], row.strides[4]
            )
            var pieces = ceil_div(row.size, PIECE)

            def some_pieces(start: Int, end: Int) {imm}:
                for unit in range(start, end):
                    var line, piece = divmod(unit, pieces)
                    var offsets = space.offsets(line)
                    var first = piece * PIECE

                    def element[w: Int](j: Int) {imm}:
                        var i = first + j
                        var value = operands.evaluate[op, gradient, w](
                            StaticTuple[Int, INPUTS](
                                offsets[2] + i * steps[0],
                                offsets[3] + i * steps[1],
                                offsets[4] + i * steps[2],
                            ),
                            steps,
                        )
                        comptime if gradient:
                            value *= (
                                _load[compute, w](
                                    dy,
                                    offsets[1] + i * row.strides[1],
                                    row.strides[1],
                                )
                                * factor
                            )
                        output.unsafe_store(
                            offsets[0] + i, narrow[dtype](value)
                        )

                    row_each[0, compute](min(PIECE, row.size - first), element)

            parallel_ranges(
                call,
                space.numel * pieces,
                max(GRAIN // min(PIECE, row.size), 1),
                some_pieces,
            )
            return
    each_element(call, action, space)


def _total_kernel[
    op: StaticString, dtype: DType
](
    partial: Data[compute_type[dtype]()],
    operands: _Operands[dtype],
    elements: OffsetCalculator[INPUTS, DType.uint64],
    count: Int64,
):
    """Adds up the losses of each block's share."""
    comptime compute = compute_type[dtype]()
    var total = Scalar[compute](0)
    var i = Int(block_idx.x) * ROW_BLOCK + Int(thread_idx.x)
    while i < Int(count):
        total += operands.evaluate[op, False, 1](
            elements.offsets(UInt64(i)), StaticTuple[Int, INPUTS](fill=0)
        )
        i += Int(grid_dim.x) * ROW_BLOCK
    total = block.sum[block_size=ROW_BLOCK, broadcast=True](total)
    if thread_idx.x == 0:
        partial.unsafe_store(Int(block_idx.x), total)


def _finish_kernel[
    dtype: DType
](
    output: Data[dtype],
    partial: Data[compute_type[dtype]()],
    count: Int64,
    factor: Scalar[compute_type[dtype]()],
):
    """One block adds up the blocks' totals."""
    comptime compute = compute_type[dtype]()
    var total = Scalar[compute](0)
    var i = Int(thread_idx.x)
    while i < Int(count):
        total += partial.unsafe_load(i)
        i += ROW_BLOCK
    total = block.sum[block_size=ROW_BLOCK, broadcast=True](total)
    if thread_idx.x == 0:
        output.unsafe_store(0, narrow[dtype](total * factor))


def _total[
    op: StaticString, dtype: DType
](
    call: KernelCall,
    mut space: IndexSpace[INPUTS],
    output: Data[dtype],
    factor: Float64,
    operands: _Operands[dtype],
) raises:
    """Writes the sum of all losses times a factor."""
    comptime compute = compute_type[dtype]()
    comptime if has_accelerator():
        if space.ndim > MAX_GPU_DIMENSIONS:
            raise Error(
                "NotImplementedError: ",
                op,
                " over more than ",
                MAX_GPU_DIMENSIONS,
                " dimensions that do not merge; call contiguous() first",
            )
        var context = gpu_context(call)
        var blocks = max(min(ceil_div(space.numel, 1024), GPU_BLOCKS), 1)
        var scratch = context.enqueue_create_buffer[compute](blocks)
        var partial = Data[compute](
            unsafe_from_address=Int(scratch.unsafe_ptr())
        )
        context.enqueue_function[_total_kernel[op, dtype]](
            partial,
            operands,
            OffsetCalculator[INPUTS, DType.uint64](space),
            Int64(space.numel),
            grid_dim=blocks,
            block_dim=ROW_BLOCK,
        )
        context.enqueue_function[_finish_kernel[dtype]](
            output,
            partial,
            Int64(blocks),
            factor.cast[compute](),
            grid_dim=1,
            block_dim=ROW_BLOCK,
        )
        _ = scratch^
    else:
        var row = space.pop()
        var vectors = True
        comptime for k in range(INPUTS):
            vectors = vectors and row.strides[k] <= 1
        var pieces = ceil_div(row.size, PIECE)
        var units = space.numel * pieces
        var sums = List[Float64](length=max(units, 1), fill=0)
        var partial = sums.unsafe_ptr()

        def some_pieces(start: Int, end: Int) {imm}:
            for unit in range(start, end):
                var line, piece = divmod(unit, pieces)
                var offsets = space.offsets(line)
                var first = piece * PIECE

                def term[w: Int](j: Int) {imm} -> SIMD[compute, w]:
                    var place = offsets
                    comptime for k in range(INPUTS):
                        place[k] += (first + j) * row.strides[k]
                    return operands.evaluate[op, False, w](place, row.strides)

                var n = min(PIECE, row.size - first)
                var total: Scalar[compute]
                if vectors:
                    total = row_sum[0, compute](n, term)[0]
                else:
                    total = row_sum[1, compute](n, term)[0]
                partial.unsafe_store(unit, total.cast[DType.float64]())

        parallel_ranges(
            call,
            units,
            max(GRAIN // max(min(PIECE, row.size), 1), 1),
            some_pieces,
        )
        var total = Float64(0)
        for unit in range(units):
            total += sums[unit]
        output.unsafe_store(0, narrow[dtype]((total * factor).cast[compute]()))


def _factor(reduction: Int, count: Int) -> Float64:
    """What sums are multiplied by."""
    # The mean of nothing is 0 / 0.
    return 1 / Float64(count) if reduction == MEAN else 1


def pair_loss[op: StaticString, dtype: DType](call: KernelCall) raises:
    """A loss per element, or their mean or sum.

    Tensors: the output, of the sizes that input and target broadcast to, or one element with a reduction; the input; the
    target; for binary_cross_entropy the weight, optional. Scalars: the reduction (0 none, 1 mean, 2 sum); for smooth_l1 beta,
    for huber delta.

    Parameters:
        op: A loss of the table at the top of this file.
        dtype: The element type, floating.

    Args:
        call: The call.

    Raises:
        NotImplementedError: On GPUs, more than 8 dimensions that do not merge.
    """
    var output = call.tensor(0)
    var input = call.tensor(1)
    var target = call.tensor(2)
    var weight = call.tensor(3 if op == "binary_cross_entropy" else 1)
    var has_weight = op == "binary_cross_entropy" and not weight.is_absent()
    if not has_weight:
        weight = input
    var reduction = call.int_scalar(0)
    var parameter = Scalar[compute_type[dtype]()](0)
    comptime if op == "smooth_l1" or op == "huber":
        parameter = call.float_scalar(1).cast[compute_type[dtype]()]()
    var operands = _Operands[dtype](
        input.pointer[dtype](),
        target.pointer[dtype](),
        weight.pointer[dtype](),
        Int32(has_weight),
        parameter,
    )
    if reduction == NONE:
        var space = IndexSpace[2 + INPUTS]()
        for d in range(Int(output.ndim)):
            space.append(
                output.size(d),
                StaticTuple[Int, 2 + INPUTS](
                    output.stride(d),
                    0,
                    _broadcast_stride(input, output, d),
                    _broadcast_stride(target, output, d),
                    _broadcast_stride(weight, output, d),
                ),
            )
        var y = output.pointer[dtype]()
        _elementwise[op, False](call, space, y, y, 1, operands)
        return
    var space = IndexSpace[INPUTS]()
    var larger = input if input.ndim >= target.ndim else target
    for d in range(Int(larger.ndim)):
        var size = 1
        comptime for k in range(1, 3):
            var tensor = call.tensor(k)
            var own = d - (Int(larger.ndim) - Int(tensor.ndim))
            if own >= 0 and tensor.size(own) != 1:
                size = tensor.size(own)
        space.append(
            size,
            StaticTuple[Int, INPUTS](
                _broadcast_stride(input, larger, d),
                _broadcast_stride(target, larger, d),
                _broadcast_stride(weight, larger, d),
            ),
        )
    _total[op](
        call,
        space,
        output.pointer[dtype](),
        _factor(reduction, space.numel),
        operands,
    )


def pair_loss_backward[op: StaticString, dtype: DType](call: KernelCall) raises:
    """The gradient of a loss by its input.

    Tensors: the input's gradient; the loss's gradient, the input, the target, and for binary_cross_entropy the weight,
    optional, which all broadcast to it. Scalars: as for `pair_loss`.

    Parameters:
        op: A loss of the table at the top of this file.
        dtype: The element type, floating.

    Args:
        call: The call.
    """
    var output = call.tensor(0)
    var dy = call.tensor(1)
    var input = call.tensor(2)
    var target = call.tensor(3)
    var weight = call.tensor(4 if op == "binary_cross_entropy" else 2)
    var has_weight = op == "binary_cross_entropy" and not weight.is_absent()
    if not has_weight:
        weight = input
    var reduction = call.int_scalar(0)
    var parameter = Scalar[compute_type[dtype]()](0)
    comptime if op == "smooth_l1" or op == "huber":
        parameter = call.float_scalar(1).cast[compute_type[dtype]()]()
    if output.numel == 0:
        return
    var space = IndexSpace[2 + INPUTS]()
    for d in range(Int(output.ndim)):
        space.append(
            output.size(d),
            StaticTuple[Int, 2 + INPUTS](
                output.stride(d),
                _broadcast_stride(dy, output, d),
                _broadcast_stride(input, output, d),
                _broadcast_stride(target, output, d),
                _broadcast_stride(weight, output, d),
            ),
        )
    _elementwise[op, True](
        call,
        space,
        output.pointer[dtype](),
        dy.pointer[dtype](),
        _factor(reduction, Int(output.numel)).cast[compute_type[dtype]()](),
        _Operands[dtype](
            input.pointer[dtype](),
            target.pointer[dtype](),
            weight.pointer[dtype](),
            Int32(has_weight),
            parameter,
        ),
    )
