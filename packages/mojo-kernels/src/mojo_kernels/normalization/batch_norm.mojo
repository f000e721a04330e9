"""Batch normalization and its gradients.

With xhat = (x - mean) rstd, y = xhat weight + bias; mean and variance of a channel over samples and positions, or the running
ones. dx = weight rstd (dy - sum(dy) / n - xhat sum(dy xhat) / n) in training, else weight rstd dy; dweight = sum(dy xhat),
dbias = sum(dy).
"""

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.indexing.element import ElementAction
from mojo_kernels.math import compute_type, narrow, sqrt
from mojo_kernels.normalization.channel_map import (
    Coefficients,
    each_number,
    map_channels,
)
from mojo_kernels.normalization.channels import (
    Channels,
    merge_moments,
    statistics,
)
from mojo_kernels.reduction.rows import gpu_context
from std.sys.info import has_accelerator
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Finish[dtype: DType, parameter: DType](ElementAction):
    """Statistics and coefficients of one channel of the forward pass."""

    comptime operands = 1
    comptime compute = compute_type[Self.dtype]()
    var layout: Channels[2]
    var means: Data[Self.compute]
    var squares: Data[Self.compute]
    var coefficients: Coefficients[Self.compute]
    var save_mean: Data[Self.compute]
    var save_rstd: Data[Self.compute]
    var running_mean: Data[Self.parameter]
    var running_var: Data[Self.parameter]
    var weight: Data[Self.parameter]
    var bias: Data[Self.parameter]
    var new_running_mean: Data[Self.parameter]
    var new_running_var: Data[Self.parameter]
    var training: Int32
    var has_running: Int32
    var has_weight: Int32
    var has_bias: Int32
    var momentum: Scalar[compute_type[Self.dtype]()]
    var eps: Scalar[compute_type[Self.dtype]()]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 1]):
        comptime compute = Self.compute
        var c = offsets[0]
        var mean = Scalar[compute](0)
        var variance = Scalar[compute](0)
        if self.training != 0:
            var count = 0
            for part in range(Int(self.layout.parts)):
                var place = part * Int(self.layout.channels) + c
                var more = self.layout.count(part)
                merge_moments(
                    mean,
                    variance,
                    count,
                    self.means.unsafe_load(place),
                    self.squares.unsafe_load(place),
                    more,
                )
                count += more
            if self.has_running != 0:
                var unbiased = variance / Scalar[compute](Int64(count - 1))
                _blend(
                    self.running_mean,
                    self.new_running_mean,
                    c,
                    mean,
                    self.momentum,
                )
                _blend(
                    self.running_var,
                    self.new_running_var,
                    c,
                    unbiased,
                    self.momentum,
                )
            variance /= Scalar[compute](Int64(count))
        else:
            mean = self.running_mean.unsafe_load(c).cast[compute]()
            variance = self.running_var.unsafe_load(c).cast[compute]()
        var rstd = 1 / sqrt(variance + self.eps)
        if self.training != 0:
            self.save_mean.unsafe_store(c, mean)
            self.save_rstd.unsafe_store(c, rstd)
        var shift = Scalar[compute](0)
        if self.has_weight != 0:
            rstd *= self.weight.unsafe_load(c).cast[compute]()
        if self.has_bias != 0:
            shift = self.bias.unsafe_load(c).cast[compute]()
        self.coefficients.array(0, 0).unsafe_store(c, mean)
        self.coefficients.array(1, 0).unsafe_store(c, rstd)
        self.coefficients.array(2, 0).unsafe_store(c, shift)


@inline(.always)
def _blend[
    dtype: DType, compute: DType
](
    running: Data[dtype],
    result: Data[dtype],
    c: Int,
    value: Scalar[compute],
    m: Scalar[compute],
):
    """Moves a running statistic towards the batch's."""
    var old = running.unsafe_load(c).cast[compute]()
    result.unsafe_store(c, narrow[dtype](m * value + (1 - m) * old))


def _forward[
    dtype: DType, parameter: DType
](
    call: KernelCall,
    layout: Channels[2],
    scratch: Data[compute_type[dtype]()],
) raises:
    comptime compute = compute_type[dtype]()
    var channels = Int(layout.channels)
    var partial = Int(layout.parts) * channels
    var x = call.tensor(5).pointer[dtype]()
    var means = scratch.unsafe_offset(3 * channels)
    var training = call.int_scalar(0) != 0
    var coefficients = Coefficients[compute](scratch, Int64(channels), 0)
    if training:
        statistics(
            call,
            layout,
            x,
            x,
            means,
            0,
            means,
            means.unsafe_offset(partial),
        )
    each_number(
        call,
        _Finish[dtype, parameter](
            layout,
            means,
            means.unsafe_offset(partial),
            coefficients,
            call.tensor(1).pointer[compute](),
            call.tensor(2).pointer[compute](),
            call.tensor(8).pointer[parameter](),
            call.tensor(9).pointer[parameter](),
            call.tensor(6).pointer[parameter](),
            call.tensor(7).pointer[parameter](),
            call.tensor(3).pointer[parameter](),
            call.tensor(4).pointer[parameter](),
            Int32(training),
            Int32(not call.tensor(3).is_absent()),
            Int32(not call.tensor(6).is_absent()),
            Int32(not call.tensor(7).is_absent()),
            call.float_scalar(1).cast[compute](),
            call.float_scalar(2).cast[compute](),
        ),
        channels,
    )
    map_channels(
        call, layout, call.tensor(0).pointer[dtype](), x, x, coefficients
    )


def forward[dtype: DType, parameter: DType](call: KernelCall) raises:
    """Normalizes channels.

    Tensors: output [batch, channels, ...]; in training the mean and the reciprocal standard deviation that were used
    [channels], float32 for half types; the new running mean and variance [channels], in training and there optional; input
    [batch, channels, ...], contiguous or channels-last like the output; weight and bias [channels], optional; the running
    mean and variance [channels], needed unless in training without new ones, which may be where the new ones are. All
    vectors contiguous. Scalars: whether in training, momentum, eps.

    Parameters:
        dtype: The element type, floating.
        parameter: The type of weight, bias and running statistics.

    Args:
        call: The call.

    Raises:
        RuntimeError: Input and output are neither both contiguous nor both channels-last.
    """
    comptime compute = compute_type[dtype]()
    var layout = Channels[2](
        StaticTuple[Tensor, 2](call.tensor(0), call.tensor(5)), True
    )
    layout.cut(call, False)
    var size = Int(layout.channels * (3 + 2 * layout.parts))
    comptime if has_accelerator():
        var buffer = gpu_context(call).enqueue_create_buffer[compute](size)
        _forward[dtype, parameter](
            call,
            layout,
            Data[compute](unsafe_from_address=Int(buffer.unsafe_ptr())),
        )
        _ = buffer^
    else:
        var memory = List[Scalar[compute]](length=size, fill=0)
        _forward[dtype, parameter](
            call,
            layout,
            Data[compute](unsafe_from_address=Int(memory.unsafe_ptr())),
        )
        _ = memory^


@fieldwise_init
struct _Center[dtype: DType, parameter: DType](ElementAction):
    """The mean of one channel of the backward pass."""

    comptime operands = 1
    comptime compute = compute_type[Self.dtype]()
    var center: Data[Self.compute]
    var save_mean: Data[Self.compute]
    var running_mean: Data[Self.parameter]
    var training: Int32

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 1]):
        var c = offsets[0]
        var mean: Scalar[compute_type[Self.dtype]()]
        if self.training != 0:
            mean = self.save_mean.unsafe_load(c)
        else:
            mean = self.running_mean.unsafe_load(c).cast[
                compute_type[Self.dtype]()
            ]()
        self.center.unsafe_store(c, mean)


@fieldwise_init
struct _FinishBackward[dtype: DType, parameter: DType](ElementAction):
    """Gradients of the parameters and coefficients of one channel of the backward pass.
    """

    comptime operands = 1
    comptime compute = compute_type[Self.dtype]()
    var layout: Channels[3]
    var dots: Data[Self.compute]
    var sums: Data[Self.compute]
    var coefficients: Coefficients[Self.compute]
    var dweight: Data[Self.parameter]
    var dbias: Data[Self.parameter]
    var save_rstd: Data[Self.compute]
    var running_var: Data[Self.parameter]
    var weight: Data[Self.parameter]
    var training: Int32
    var wants_dweight: Int32
    var wants_dbias: Int32
    var has_weight: Int32
    var eps: Scalar[compute_type[Self.dtype]()]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 1]):
        comptime compute = Self.compute
        var c = offsets[0]
        var dot = Scalar[compute](0)
        var sum = Scalar[compute](0)
        for part in range(Int(self.layout.parts)):
            var place = part * Int(self.layout.channels) + c
            dot += self.dots.unsafe_load(place)
            sum += self.sums.unsafe_load(place)
        var rstd: Scalar[compute]
        if self.training != 0:
            rstd = self.save_rstd.unsafe_load(c)
        else:
            rstd = 1 / sqrt(
                self.running_var.unsafe_load(c).cast[compute]() + self.eps
            )
        if self.wants_dweight != 0:
            self.dweight.unsafe_store(c, (dot * rstd).cast[Self.parameter]())
        if self.wants_dbias != 0:
            self.dbias.unsafe_store(c, sum.cast[Self.parameter]())
        var factor = rstd
        if self.has_weight != 0:
            factor *= self.weight.unsafe_load(c).cast[compute]()
        var scale = Scalar[compute](0)
        var shift = Scalar[compute](0)
        if self.training != 0:
            var count = Scalar[compute](
                self.layout.batch * self.layout.positions
            )
            scale = -factor * rstd * rstd * (dot / count)
            shift = -factor * (sum / count)
        self.coefficients.array(1, 0).unsafe_store(c, scale)
        self.coefficients.array(2, 0).unsafe_store(c, shift)
        self.coefficients.array(3, 0).unsafe_store(c, factor)


def _backward[
    dtype: DType, parameter: DType
](
    call: KernelCall,
    layout: Channels[3],
    scratch: Data[compute_type[dtype]()],
) raises:
    comptime compute = compute_type[dtype]()
    var channels = Int(layout.channels)
    var dots = scratch.unsafe_offset(4 * channels)
    var sums = dots.unsafe_offset(Int(layout.parts) * channels)
    var dy = call.tensor(3).pointer[dtype]()
    var x = call.tensor(4).pointer[dtype]()
    var training = call.int_scalar(0) != 0
    var coefficients = Coefficients[compute](scratch, Int64(channels), 0)
    each_number(
        call,
        _Center[dtype, parameter](
            scratch,
            call.tensor(5).pointer[compute](),
            call.tensor(7).pointer[parameter](),
            Int32(training),
        ),
        channels,
    )
    statistics(call, layout, x, dy, scratch, 0, dots, sums)
    each_number(
        call,
        _FinishBackward[dtype, parameter](
            layout,
            dots,
            sums,
            coefficients,
            call.tensor(1).pointer[parameter](),
            call.tensor(2).pointer[parameter](),
            call.tensor(6).pointer[compute](),
            call.tensor(8).pointer[parameter](),
            call.tensor(9).pointer[parameter](),
            Int32(training),
            Int32(not call.tensor(1).is_absent()),
            Int32(not call.tensor(2).is_absent()),
            Int32(not call.tensor(9).is_absent()),
            call.float_scalar(1).cast[compute](),
        ),
        channels,
    )
    if not call.tensor(0).is_absent():
        map_channels(
            call, layout, call.tensor(0).pointer[dtype](), x, dy, coefficients
        )


def backward[dtype: DType, parameter: DType](call: KernelCall) raises:
    """The gradients of batch normalization.

    Tensors: dx [batch, channels, ...], dweight and dbias [channels], each optional; dy and input, contiguous or channels-last
    like dx; in training mean and reciprocal standard deviation of the forward pass [channels], float32 for half types, else
    running mean and variance [channels]; weight [channels], optional. All vectors contiguous. Scalars: whether in training,
    eps.

    Parameters:
        dtype: The element type, floating.
        parameter: The type of the weight, its and the bias's gradient, and the running statistics.

    Args:
        call: The call.

    Raises:
        RuntimeError: The tensors are neither all contiguous nor all channels-last.
    """
    comptime compute = compute_type[dtype]()
    var x = call.tensor(4)
    var dx = x if call.tensor(0).is_absent() else call.tensor(0)
    var layout = Channels[3](
        StaticTuple[Tensor, 3](dx, x, call.tensor(3)), True
    )
    layout.cut(call, False)
    var size = Int(layout.channels * (4 + 2 * layout.parts))
    comptime if has_accelerator():
        var buffer = gpu_context(call).enqueue_create_buffer[compute](size)
        _backward[dtype, parameter](
            call,
            layout,
            Data[compute](unsafe_from_address=Int(buffer.unsafe_ptr())),
        )
        _ = buffer^
    else:
        var memory = List[Scalar[compute]](length=size, fill=0)
        _backward[dtype, parameter](
            call,
            layout,
            Data[compute](unsafe_from_address=Int(memory.unsafe_ptr())),
        )
        _ = memory^
