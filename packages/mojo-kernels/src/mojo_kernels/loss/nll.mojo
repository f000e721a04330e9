"""The negative log likelihood loss: -weight[target] * input[target], of each sample or averaged."""

from max.gpu import block_idx, thread_idx
from max.gpu.primitives import block
from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.indexing.bounds import Bounds, BoundsReport
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.reduction.rows import ROW_BLOCK, gpu_context, row_each
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator

comptime NONE = 0
"""No reduction: a loss per sample."""
comptime MEAN = 1
"""The sum of losses divided by the sum of the targets' weights."""
comptime SUM = 2
"""The sum of losses."""
comptime GRAIN = 4096
"""Samples that are worth a thread."""


struct _Samples[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """Scores [samples, classes] or [batch, classes, positions] and their targets.
    """

    comptime device_type: AnyType = Self
    comptime compute = compute_type[Self.dtype]()

    var scores: Data[Self.dtype]
    var positions: Int64
    var sample_stride: Int64
    var position_stride: Int64
    var class_stride: Int64
    var targets: Data[DType.int64]
    var target_stride: Int64
    var target_position_stride: Int64
    var weight: Data[Self.dtype]
    var weight_stride: Int64
    var count: Int64
    var ignored: Int64
    var bounds: Bounds

    def __init__(
        out self,
        scores: Tensor,
        targets: Tensor,
        weight: Tensor,
        ignored: Int,
        report: BoundsReport,
    ):
        """Takes [classes] as one sample."""
        self.scores = scores.pointer[Self.dtype]()
        self.positions = Int64(scores.size(2) if scores.ndim == 3 else 1)
        self.sample_stride = Int64(scores.stride(0) if scores.ndim > 1 else 0)
        self.class_stride = Int64(scores.stride(1 if scores.ndim > 1 else 0))
        self.position_stride = Int64(
            scores.stride(2) if scores.ndim == 3 else 0
        )
        self.targets = targets.pointer[DType.int64]()
        self.target_stride = Int64(targets.stride(0) if targets.ndim > 0 else 0)
        self.target_position_stride = Int64(
            targets.stride(1) if targets.ndim > 1 else 0
        )
        self.weight = weight.pointer[Self.dtype]()
        # 0 without weights; a weight tensor of one class has any stride.
        self.weight_stride = Int64(
            0 if weight.is_absent() else max(weight.stride(0), 1)
        )
        self.count = (
            Int64(scores.size(0) if scores.ndim > 1 else 1) * self.positions
        )
        self.ignored = Int64(ignored)
        self.bounds = report.bounds(scores.size(1 if scores.ndim > 1 else 0))

    @staticmethod
    def get_type_name() -> String:
        return "_Samples"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def place(self, i: Int, stride: Int64, position_stride: Int64) -> Int:
        """Where a sample of a tensor with these strides lies."""
        if self.positions == 1:
            return i * Int(stride)
        var outer, inner = divmod(i, Int(self.positions))
        return outer * Int(stride) + inner * Int(position_stride)

    @inline(.always)
    def target(self, i: Int) -> Int:
        """The target of a sample, or -1 where it is ignored or out of range."""
        var target = Int(
            self.targets.unsafe_load(
                self.place(i, self.target_stride, self.target_position_stride)
            )
        )
        if target == Int(self.ignored) or not self.bounds.contains(target):
            return -1
        return target

    @inline(.always)
    def weight_of(self, target: Int) -> Scalar[Self.compute]:
        """The weight of a class."""
        if self.weight_stride == 0:
            return 1
        return self.weight.unsafe_load(target * Int(self.weight_stride)).cast[
            Self.compute
        ]()

    @inline(.always)
    def loss(self, i: Int, target: Int) -> Scalar[Self.compute]:
        """The loss of a sample whose target counts."""
        return (
            -self.weight_of(target)
            * self.scores.unsafe_load(
                self.place(i, self.sample_stride, self.position_stride)
                + target * Int(self.class_stride)
            ).cast[Self.compute]()
        )


def _losses_block[
    dtype: DType
](
    output: Data[dtype],
    output_stride: Int64,
    total_weight: Data[dtype],
    samples: _Samples[dtype],
):
    """One sample per thread."""
    var i = Int(block_idx.x) * ROW_BLOCK + Int(thread_idx.x)
    if i == 0:
        total_weight.unsafe_store(0, 0)
    if i >= Int(samples.count):
        return
    var target = samples.target(i)
    var loss = Scalar[samples.compute](0)
    if target >= 0:
        loss = samples.loss(i, target)
    output.unsafe_store(i * Int(output_stride), narrow[dtype](loss))


def _total_block[
    dtype: DType
](
    output: Data[dtype],
    total_weight: Data[dtype],
    samples: _Samples[dtype],
    reduction: Int32,
):
    """One block adds up everything."""
    comptime compute = compute_type[dtype]()
    var loss = Scalar[compute](0)
    var weight = Scalar[compute](0)
    var i = Int(thread_idx.x)
    while i < Int(samples.count):
        var target = samples.target(i)
        if target >= 0:
            loss += samples.loss(i, target)
            weight += samples.weight_of(target)
        i += ROW_BLOCK
    loss = block.sum[block_size=ROW_BLOCK, broadcast=True](loss)
    weight = block.sum[block_size=ROW_BLOCK, broadcast=True](weight)
    if thread_idx.x == 0:
        if Int(reduction) == MEAN:
            loss /= weight
        output.unsafe_store(0, narrow[dtype](loss))
        total_weight.unsafe_store(0, narrow[dtype](weight))


def nll_loss[dtype: DType](call: KernelCall) raises:
    """The loss of samples.

    Tensors: output, [samples] without reduction, else one element; the sum of the targets' weights, one element, 0 without
    reduction; log probabilities [samples, classes], [classes] or [batch, classes, positions], where each position of the batch
    is a sample; targets int64 [samples], one, or [batch, positions]; weights [classes], optional. Any strides. Scalars: the reduction (0 none, 1 mean, 2 sum), the target that is ignored.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.

    Raises:
        IndexError: A target is out of range, on CPUs.
    """
    comptime compute = compute_type[dtype]()
    var output = call.tensor(0)
    var y = output.pointer[dtype]()
    var total_weight = call.tensor(1).pointer[dtype]()
    var reduction = call.int_scalar(0)
    var report = BoundsReport()
    var samples = _Samples[dtype](
        call.tensor(2),
        call.tensor(3),
        call.tensor(4),
        call.int_scalar(1),
        report,
    )
    var count = Int(samples.count)
    var each = reduction == NONE and call.tensor(2).ndim > 1
    comptime if has_accelerator():
        var context = gpu_context(call)
        if each:
            context.enqueue_function[_losses_block[dtype]](
                y,
                Int64(output.stride(0)),
                total_weight,
                samples,
                grid_dim=max(ceil_div(count, ROW_BLOCK), 1),
                block_dim=ROW_BLOCK,
            )
        else:
            context.enqueue_function[_total_block[dtype]](
                y,
                total_weight,
                samples,
                Int32(reduction),
                grid_dim=1,
                block_dim=ROW_BLOCK,
            )
    else:
        var tasks = max(min(Int(call.threads), count // GRAIN), 1)
        var share = ceil_div(count, tasks)
        var sums = List[Float64](length=2 * tasks, fill=0)
        var partial = sums.unsafe_ptr()
        var stride = output.stride(0) if output.ndim > 0 else 0

        def some_samples(task: Int) {imm}:
            var loss_sum = Float64(0)
            var weight_sum = Float64(0)
            for i in range(task * share, min((task + 1) * share, count)):
                var target = samples.target(i)
                var loss = Scalar[compute](0)
                if target >= 0:
                    loss = samples.loss(i, target)
                    weight_sum += samples.weight_of(target).cast[
                        DType.float64
                    ]()
                if each:
                    y.unsafe_store(i * stride, narrow[dtype](loss))
                loss_sum += loss.cast[DType.float64]()
            partial.unsafe_store(2 * task, loss_sum)
            partial.unsafe_store(2 * task + 1, weight_sum)

        call.parallel(some_samples, tasks)
        var loss = Float64(0)
        var weight = Float64(0)
        for task in range(tasks):
            loss += sums[2 * task]
            weight += sums[2 * task + 1]
        if each:
            weight = 0
        else:
            if reduction == MEAN:
                loss /= weight
            y.unsafe_store(0, narrow[dtype](loss.cast[compute]()))
        total_weight.unsafe_store(0, narrow[dtype](weight.cast[compute]()))
        if report.violated():
            raise Error(
                "IndexError: Target ", report.words[1], " is out of bounds."
            )


@inline(.always)
def _gradient_of[
    dtype: DType
](
    samples: _Samples[dtype],
    i: Int,
    target: Int,
    dy: Data[dtype],
    dy_stride: Int,
    total_weight: Data[dtype],
    reduction: Int,
) -> Scalar[dtype]:
    """The gradient of a sample's score of its target."""
    comptime compute = compute_type[dtype]()
    var gradient = (
        -samples.weight_of(target)
        * dy.unsafe_load(i * dy_stride).cast[compute]()
    )
    if reduction == MEAN:
        gradient /= total_weight.unsafe_load(0).cast[compute]()
    return narrow[dtype](gradient)


def _gradient_block[
    dtype: DType
](
    dx: Data[dtype],
    dx_sample_stride: Int64,
    dx_position_stride: Int64,
    dx_class_stride: Int64,
    dy: Data[dtype],
    dy_stride: Int64,
    total_weight: Data[dtype],
    samples: _Samples[dtype],
    classes: Int64,
    reduction: Int32,
):
    """One sample per block."""
    var i = Int(block_idx.x)
    var target = samples.target(i)
    var c = Int(thread_idx.x)
    while c < Int(classes):
        var gradient = Scalar[dtype](0)
        if c == target:
            gradient = _gradient_of(
                samples,
                i,
                target,
                dy,
                Int(dy_stride),
                total_weight,
                Int(reduction),
            )
        dx.unsafe_store(
            samples.place(i, dx_sample_stride, dx_position_stride)
            + c * Int(dx_class_stride),
            gradient,
        )
        c += ROW_BLOCK


def nll_loss_backward[dtype: DType](call: KernelCall) raises:
    """The gradient of the log probabilities.

    Tensors: their gradient, of their sizes, zero beforehand where these are three; the loss's gradient, [samples] without
    reduction, else one element; the log probabilities, of which only the sizes are read; targets; weights, optional; the sum
    of the targets' weights. Any strides. Scalars: the reduction, the target that is ignored.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.

    Raises:
        IndexError: A target is out of range, on CPUs.
    """
    var dx = call.tensor(0)
    var dy = call.tensor(1)
    var report = BoundsReport()
    var samples = _Samples[dtype](
        call.tensor(2),
        call.tensor(3),
        call.tensor(4),
        call.int_scalar(1),
        report,
    )
    var reduction = call.int_scalar(0)
    var total_weight = call.tensor(5).pointer[dtype]()
    var gradient = dy.pointer[dtype]()
    var dy_stride = dy.stride(0) if dy.ndim > 0 and reduction == NONE else 0
    var target_gradient = dx.pointer[dtype]()
    var sample_stride = dx.stride(0) if dx.ndim > 1 else 0
    var position_stride = dx.stride(2) if dx.ndim == 3 else 0
    var class_stride = dx.stride(1 if dx.ndim > 1 else 0)
    var classes = dx.size(1 if dx.ndim > 1 else 0)
    var count = Int(samples.count)
    if dx.numel == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_gradient_block[dtype]](
            target_gradient,
            Int64(sample_stride),
            Int64(position_stride),
            Int64(class_stride),
            gradient,
            Int64(dy_stride),
            total_weight,
            samples,
            Int64(classes),
            Int32(reduction),
            grid_dim=count,
            block_dim=ROW_BLOCK,
        )
    else:

        def some_samples(start: Int, end: Int) {imm}:
            for i in range(start, end):
                var row = target_gradient.unsafe_offset(
                    samples.place(
                        i, Int64(sample_stride), Int64(position_stride)
                    )
                )

                def clear[w: Int](c: Int) {imm}:
                    row.unsafe_store(c, SIMD[dtype, w](0))

                if samples.positions > 1:
                    pass
                elif class_stride == 1:
                    row_each[0, dtype](classes, clear)
                else:
                    for c in range(classes):
                        row.unsafe_store(c * class_stride, Scalar[dtype](0))
                var target = samples.target(i)
                if target >= 0:
                    row.unsafe_store(
                        target * class_stride,
                        _gradient_of(
                            samples,
                            i,
                            target,
                            gradient,
                            dy_stride,
                            total_weight,
                            reduction,
                        ),
                    )

        var work = classes if samples.positions == 1 else 16
        parallel_ranges(call, count, 16 * GRAIN // max(work, 1), some_samples)
        if report.violated():
            raise Error(
                "IndexError: Target ", report.words[1], " is out of bounds."
            )
