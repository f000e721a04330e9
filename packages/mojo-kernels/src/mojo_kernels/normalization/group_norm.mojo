"""Group normalization and its gradients.

With xhat = (x - mean) rstd, y = xhat weight + bias; mean and variance over the n elements of a group of channels of a sample.
With g = dy weight, dx = rstd (g - sum(g) / n - xhat sum(g xhat) / n); dweight = sum over samples and positions of dy xhat, and
dbias = that of dy.
"""

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.indexing.element import ElementAction
from mojo_kernels.math import compute_type, sqrt
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
    """Statistics and coefficients of one group of a sample in the forward pass.
    """

    comptime operands = 1
    comptime compute = compute_type[Self.dtype]()
    var layout: Channels[2]
    var means: Data[Self.compute]
    var squares: Data[Self.compute]
    var coefficients: Coefficients[Self.compute]
    var mean: Data[Self.compute]
    var rstd: Data[Self.compute]
    var weight: Data[Self.parameter]
    var bias: Data[Self.parameter]
    var has_weight: Int32
    var has_bias: Int32
    var groups: Int64
    var eps: Scalar[compute_type[Self.dtype]()]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 1]):
        comptime compute = Self.compute
        var sample, group = divmod(offsets[0], Int(self.groups))
        var channels = Int(self.layout.channels)
        var width = channels // Int(self.groups)
        var per_sample = self.layout.parts_per_sample()
        var mean = Scalar[compute](0)
        var squares = Scalar[compute](0)
        var count = 0
        for part in range(sample * per_sample, (sample + 1) * per_sample):
            var more = self.layout.count(part)
            for c in range(group * width, (group + 1) * width):
                var place = part * channels + c
                merge_moments(
                    mean,
                    squares,
                    count,
                    self.means.unsafe_load(place),
                    self.squares.unsafe_load(place),
                    more,
                )
                count += more
        var rstd = 1 / sqrt(squares / Scalar[compute](Int64(count)) + self.eps)
        self.mean.unsafe_store(offsets[0], mean)
        self.rstd.unsafe_store(offsets[0], rstd)
        for c in range(group * width, (group + 1) * width):
            var scale = rstd
            var shift = Scalar[compute](0)
            if self.has_weight != 0:
                scale *= self.weight.unsafe_load(c).cast[compute]()
            if self.has_bias != 0:
                shift = self.bias.unsafe_load(c).cast[compute]()
            self.coefficients.array(0, sample).unsafe_store(c, mean)
            self.coefficients.array(1, sample).unsafe_store(c, scale)
            self.coefficients.array(2, sample).unsafe_store(c, shift)


def _forward[
    dtype: DType, parameter: DType
](
    call: KernelCall,
    layout: Channels[2],
    scratch: Data[compute_type[dtype]()],
) raises:
    comptime compute = compute_type[dtype]()
    var groups = call.int_scalar(0)
    var channels = Int(layout.channels)
    var size = Int(layout.batch) * channels
    var means = scratch.unsafe_offset(3 * size)
    var squares = means.unsafe_offset(Int(layout.parts) * channels)
    var x = call.tensor(3).pointer[dtype]()
    var coefficients = Coefficients[compute](
        scratch, Int64(size), Int64(channels)
    )
    statistics(call, layout, x, x, means, 0, means, squares)
    each_number(
        call,
        _Finish[dtype, parameter](
            layout,
            means,
            squares,
            coefficients,
            call.tensor(1).pointer[compute](),
            call.tensor(2).pointer[compute](),
            call.tensor(4).pointer[parameter](),
            call.tensor(5).pointer[parameter](),
            Int32(not call.tensor(4).is_absent()),
            Int32(not call.tensor(5).is_absent()),
            Int64(groups),
            call.float_scalar(1).cast[compute](),
        ),
        Int(layout.batch) * groups,
    )
    map_channels(
        call, layout, call.tensor(0).pointer[dtype](), x, x, coefficients
    )


def forward[dtype: DType, parameter: DType](call: KernelCall) raises:
    """Normalizes groups of channels.

    Tensors: output [batch, channels, ...]; mean and reciprocal standard deviation [batch, groups], float32 for half types;
    input [batch, channels, ...], contiguous or channels-last like the output; weight and bias [channels], optional; the
    vectors contiguous. Scalars: groups, eps.

    Parameters:
        dtype: The element type, floating.
        parameter: The type of weight and bias.

    Args:
        call: The call.

    Raises:
        RuntimeError: Input and output are neither both contiguous nor both channels-last.
    """
    comptime compute = compute_type[dtype]()
    var layout = Channels[2](
        StaticTuple[Tensor, 2](call.tensor(0), call.tensor(3)), False
    )
    layout.cut(call, True)
    var size = Int(layout.channels * (3 * layout.batch + 2 * layout.parts))
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
struct _Center[dtype: DType](ElementAction):
    """The mean of one channel of a sample."""

    comptime operands = 1
    comptime compute = compute_type[Self.dtype]()
    var center: Data[Self.compute]
    var mean: Data[Self.compute]
    var width: Int64

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 1]):
        self.center.unsafe_store(
            offsets[0], self.mean.unsafe_load(offsets[0] // Int(self.width))
        )


@fieldwise_init
struct _FinishBackward[dtype: DType, parameter: DType](ElementAction):
    """Coefficients of one group of a sample in the backward pass."""

    comptime operands = 1
    comptime compute = compute_type[Self.dtype]()
    var layout: Channels[3]
    var dots: Data[Self.compute]
    var sums: Data[Self.compute]
    var coefficients: Coefficients[Self.compute]
    var rstd: Data[Self.compute]
    var weight: Data[Self.parameter]
    var has_weight: Int32
    var groups: Int64

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 1]):
        comptime compute = Self.compute
        var sample, group = divmod(offsets[0], Int(self.groups))
        var channels = Int(self.layout.channels)
        var width = channels // Int(self.groups)
        var per_sample = self.layout.parts_per_sample()
        var dot = Scalar[compute](0)
        var sum = Scalar[compute](0)
        for c in range(group * width, (group + 1) * width):
            var weight = Scalar[compute](1)
            if self.has_weight != 0:
                weight = self.weight.unsafe_load(c).cast[compute]()
            for part in range(sample * per_sample, (sample + 1) * per_sample):
                var place = part * channels + c
                dot += self.dots.unsafe_load(place) * weight
                sum += self.sums.unsafe_load(place) * weight
        var rstd = self.rstd.unsafe_load(offsets[0])
        var count = Scalar[compute](self.layout.positions * Int64(width))
        for c in range(group * width, (group + 1) * width):
            var factor = rstd
            if self.has_weight != 0:
                factor *= self.weight.unsafe_load(c).cast[compute]()
            self.coefficients.array(1, sample).unsafe_store(
                c, -rstd * rstd * rstd * (dot / count)
            )
            self.coefficients.array(2, sample).unsafe_store(
                c, -rstd * (sum / count)
            )
            self.coefficients.array(3, sample).unsafe_store(c, factor)


@fieldwise_init
struct _Parameters[dtype: DType, parameter: DType](ElementAction):
    """The gradients of one channel's weight and bias."""

    comptime operands = 1
    comptime compute = compute_type[Self.dtype]()
    var layout: Channels[3]
    var dots: Data[Self.compute]
    var sums: Data[Self.compute]
    var dweight: Data[Self.parameter]
    var dbias: Data[Self.parameter]
    var rstd: Data[Self.compute]
    var wants_dweight: Int32
    var wants_dbias: Int32
    var groups: Int64

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 1]):
        comptime compute = Self.compute
        var c = offsets[0]
        var groups = Int(self.groups)
        var channels = Int(self.layout.channels)
        var group = c // (channels // groups)
        var per_sample = self.layout.parts_per_sample()
        var weight = Scalar[compute](0)
        var bias = Scalar[compute](0)
        for part in range(Int(self.layout.parts)):
            var place = part * channels + c
            weight += self.dots.unsafe_load(place) * self.rstd.unsafe_load(
                part // per_sample * groups + group
            )
            bias += self.sums.unsafe_load(place)
        if self.wants_dweight != 0:
            self.dweight.unsafe_store(c, weight.cast[Self.parameter]())
        if self.wants_dbias != 0:
            self.dbias.unsafe_store(c, bias.cast[Self.parameter]())


def _backward[
    dtype: DType, parameter: DType
](
    call: KernelCall,
    layout: Channels[3],
    scratch: Data[compute_type[dtype]()],
) raises:
    comptime compute = compute_type[dtype]()
    var groups = call.int_scalar(0)
    var channels = Int(layout.channels)
    var size = Int(layout.batch) * channels
    var dots = scratch.unsafe_offset(4 * size)
    var sums = dots.unsafe_offset(Int(layout.parts) * channels)
    var dy = call.tensor(3).pointer[dtype]()
    var x = call.tensor(4).pointer[dtype]()
    var rstd = call.tensor(6).pointer[compute]()
    each_number(
        call,
        _Center[dtype](
            scratch,
            call.tensor(5).pointer[compute](),
            Int64(channels // groups),
        ),
        size,
    )
    statistics(call, layout, x, dy, scratch, channels, dots, sums)
    var wants_dweight = not call.tensor(1).is_absent()
    var wants_dbias = not call.tensor(2).is_absent()
    if wants_dweight or wants_dbias:
        each_number(
            call,
            _Parameters[dtype, parameter](
                layout,
                dots,
                sums,
                call.tensor(1).pointer[parameter](),
                call.tensor(2).pointer[parameter](),
                rstd,
                Int32(wants_dweight),
                Int32(wants_dbias),
                Int64(groups),
            ),
            channels,
        )
    if call.tensor(0).is_absent():
        return
    var coefficients = Coefficients[compute](
        scratch, Int64(size), Int64(channels)
    )
    each_number(
        call,
        _FinishBackward[dtype, parameter](
            layout,
            dots,
            sums,
            coefficients,
            rstd,
            call.tensor(7).pointer[parameter](),
            Int32(not call.tensor(7).is_absent()),
            Int64(groups),
        ),
        Int(layout.batch) * groups,
    )
    map_channels(
        call, layout, call.tensor(0).pointer[dtype](), x, dy, coefficients
    )


def backward[dtype: DType, parameter: DType](call: KernelCall) raises:
    """The gradients of group normalization.

    Tensors: dx [batch, channels, ...], dweight and dbias [channels], each optional; dy and input, contiguous or channels-last
    like dx; mean and reciprocal standard deviation of the forward pass [batch, groups], float32 for half types; weight
    [channels], optional; the vectors contiguous. Scalars: groups.

    Parameters:
        dtype: The element type, floating.
        parameter: The type of the weight, and of its and the bias's gradient.

    Args:
        call: The call.

    Raises:
        RuntimeError: The tensors are neither all contiguous nor all channels-last.
    """
    comptime compute = compute_type[dtype]()
    var x = call.tensor(4)
    var dx = x if call.tensor(0).is_absent() else call.tensor(0)
    var layout = Channels[3](
        StaticTuple[Tensor, 3](dx, x, call.tensor(3)), False
    )
    layout.cut(call, True)
    var size = Int(layout.channels * (4 * layout.batch + 2 * layout.parts))
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
