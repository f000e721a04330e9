"""What a convolution reads and writes, for one to three spatial dimensions, both directions and any strides.

A convolution and a transposed one are both *gathers*: every target position reads the source at positions that advance
evenly, one per tap of the kernel. A transposed convolution with strides is one gather for each remainder of the target
positions by the strides, over those taps that meet the source there; no position is written twice.
"""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import gcd
from std.utils.static_tuple import StaticTuple

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.matmul.matrix import ceil_div


@fieldwise_init
struct Axis(TrivialRegisterPassable):
    """One spatial dimension of a gather: target `j` and tap `t` meet the source at `j * step + first + t * dilation`.
    """

    var targets: Int
    """The number of target positions."""
    var size: Int
    """The number of source positions; others read zero."""
    var step: Int
    """Source positions between neighbouring targets."""
    var taps: Int
    """The number of taps."""
    var first: Int
    """The source position of target 0 and tap 0."""
    var dilation: Int
    """Source positions between taps, not negative."""
    var out_stride: Int
    """Elements between targets."""
    var source_stride: Int
    """Elements between source positions."""
    var weight_stride: Int
    """Elements between the taps' weights."""

    @inline(.always)
    def source(self, target: Int, tap: Int) -> Int:
        """The source position that a target reads.

        Args:
            target: The target position.
            tap: The tap.

        Returns:
            A position, outside of [0, size) where a zero is read.
        """
        return target * self.step + self.first + tap * self.dilation

    @inline(.always)
    def contains(self, position: Int) -> Bool:
        """Whether a source position exists.

        Args:
            position: The position.

        Returns:
            False for one in the padding.
        """
        return position >= 0 and position < self.size

    def is_pointwise(self) -> Bool:
        """Whether target `j` reads exactly source `j`.

        Returns:
            True for kernels of size 1 without stride and padding.
        """
        return (
            self.taps == 1
            and self.step == 1
            and self.first == 0
            and self.size == self.targets
        )


@inline(.always)
def low_target(axis: Axis, tap: Int) -> Int:
    """The first target for which a tap exists.

    Args:
        axis: The dimension.
        tap: The tap.

    Returns:
        A target, perhaps behind the last one.
    """
    return ceil_div(max(-axis.source(0, tap), 0), axis.step)


@inline(.always)
def high_target(axis: Axis, tap: Int) -> Int:
    """The target behind the last one for which a tap exists.

    Args:
        axis: The dimension.
        tap: The tap.

    Returns:
        A target, perhaps before the first one.
    """
    return min(
        axis.targets,
        ceil_div(max(axis.size - axis.source(0, tap), 0), axis.step),
    )


@fieldwise_init
struct Extent(TrivialRegisterPassable):
    """One spatial dimension of a convolution, as the call gives it."""

    var input: Int
    """Positions of the convolution's input."""
    var output: Int
    """Positions of the convolution's output."""
    var kernel: Int
    """Taps."""
    var stride: Int
    """Input positions between outputs."""
    var padding: Int
    """Zeros before the input."""
    var dilation: Int
    """Input positions between taps."""


struct Gather[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """Sums over source channels and taps: `out[n, m, j] = bias[m] + sum(weight[m, c, t] * source[n, c, j, t])`.

    Parameters:
        dtype: The element type.
    """

    comptime device_type: AnyType = Self
    """Kernels receive the struct as it is."""

    var out: Data[Self.dtype]
    """The first target."""
    var source: Data[Self.dtype]
    """The element at source position 0."""
    var weight: Data[Self.dtype]
    """The weight of tap 0."""
    var bias: Data[Self.dtype]
    """One value per target channel."""
    var has_bias: Bool
    """Whether there is a bias."""
    var images: Int
    """The size of the batch."""
    var groups: Int
    """Groups of channels that do not mix."""
    var results: Int
    """Target channels of a group."""
    var channels: Int
    """Source channels of a group."""
    var axes: StaticTuple[Axis, 3]
    """The spatial dimensions, the fastest last; missing ones have size 1."""
    var out_image: Int
    """Elements between the images of the target."""
    var out_channel: Int
    """Elements between the channels of the target."""
    var source_image: Int
    """Elements between the images of the source."""
    var source_channel: Int
    """Elements between the channels of the source."""
    var weight_result: Int
    """Elements between the weights of target channels."""
    var weight_channel: Int
    """Elements between the weights of source channels."""
    var weight_group: Int
    """Elements between the weights of groups."""
    var bias_stride: Int
    """Elements between the values of the bias."""
    var merged: Int
    """How many of the convolution's groups a group is: weights between different ones are zero."""

    def __init__(out self, convolution: Convolution[Self.dtype], bias: Tensor):
        """The gather of a convolution: targets are outputs.

        Args:
            convolution: The tensors and sizes.
            bias: A vector over output channels, or absent.
        """
        self = Self(convolution, convolution.output, convolution.input, bias)
        self.results = convolution.outputs
        self.channels = convolution.inputs
        self.weight_result = convolution.weight.stride(0)
        self.weight_channel = convolution.weight.stride(1)
        self.weight_group = self.results * self.weight_result
        for d in range(3):
            var extent = convolution.extents[d]
            self.axes[d] = Axis(
                extent.output,
                extent.input,
                extent.stride,
                extent.kernel,
                -extent.padding,
                extent.dilation,
                spatial_stride(convolution.output, d),
                spatial_stride(convolution.input, d),
                spatial_stride(convolution.weight, d),
            )

    def __init__(
        out self,
        convolution: Convolution[Self.dtype],
        bias: Tensor,
        phase: Int,
    ):
        """One of the gathers of the transposed convolution: targets are inputs at a distance of the strides.

        Args:
            convolution: The tensors and sizes.
            bias: A vector over input channels, or absent.
            phase: The remainders of the targets' positions by the strides, the last dimension's the fastest.
        """
        self = Self(convolution, convolution.input, convolution.output, bias)
        self.results = convolution.inputs
        self.channels = convolution.outputs
        self.weight_result = convolution.weight.stride(1)
        self.weight_channel = convolution.weight.stride(0)
        self.weight_group = self.channels * self.weight_channel
        var rest = phase
        for i in range(3):
            var d = 2 - i
            var extent = convolution.extents[d]
            var stride = extent.stride
            var remainder = rest % stride
            rest //= stride
            # Tap k meets the source where remainder + padding - k * dilation is a multiple of the stride, which is
            # true for every `period`-th tap if for any. They are taken from the last, so that sources advance.
            var common = gcd(stride, extent.dilation)
            var period = stride // common
            var tap = 0
            var start = remainder + extent.padding
            while (
                tap < period and (start - tap * extent.dilation) % stride != 0
            ):
                tap += 1
            var taps = 0
            if tap < period and tap < extent.kernel:
                taps = ceil_div(extent.kernel - tap, period)
            var last = tap + max(taps - 1, 0) * period
            var out_stride = spatial_stride(convolution.input, d)
            var weight_stride = spatial_stride(convolution.weight, d)
            self.axes[d] = Axis(
                ceil_div(max(extent.input - remainder, 0), stride),
                extent.output,
                1,
                taps,
                (start - last * extent.dilation) // stride if taps > 0 else 0,
                extent.dilation // common,
                out_stride * stride,
                spatial_stride(convolution.output, d),
                -weight_stride * period,
            )
            self.out = self.out.unsafe_offset(remainder * out_stride)
            if taps > 0:
                self.weight = self.weight.unsafe_offset(last * weight_stride)

    def __init__(
        out self,
        convolution: Convolution[Self.dtype],
        target: Tensor,
        source: Tensor,
        bias: Tensor,
    ):
        """What both directions share.

        Args:
            convolution: The tensors and sizes.
            target: The tensor that is written.
            source: The tensor that is read.
            bias: A vector over target channels, or absent.
        """
        self.out = target.pointer[Self.dtype]()
        self.source = source.pointer[Self.dtype]()
        self.weight = convolution.weight.pointer[Self.dtype]()
        self.has_bias = not bias.is_absent()
        self.bias = bias.pointer[Self.dtype]() if self.has_bias else self.weight
        self.bias_stride = bias.stride(0) if self.has_bias else 0
        self.merged = 1
        self.images = target.size(0)
        self.groups = convolution.groups
        self.results = 0
        self.channels = 0
        self.weight_result = 0
        self.weight_channel = 0
        self.weight_group = 0
        self.out_image = target.stride(0)
        self.out_channel = target.stride(1)
        self.source_image = source.stride(0)
        self.source_channel = source.stride(1)
        self.axes = StaticTuple[Axis, 3](fill=Axis(1, 1, 1, 1, 0, 1, 0, 0, 0))

    @staticmethod
    def get_type_name() -> String:
        """The name in messages.

        Returns:
            The struct's name.
        """
        return "Gather"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    def merge_groups(mut self, limit: Int):
        """Makes one group of neighbours as long as it has few target channels.

        Args:
            limit: The number of target channels up to which groups are merged.
        """
        var count = max(limit // self.results, 1)
        while self.groups % count != 0:
            count -= 1
        self.merged *= count
        self.groups //= count
        self.results *= count
        self.channels *= count
        self.weight_group *= count

    @inline(.always)
    def has_weight(self, result: Int, channel: Int) -> Bool:
        """Whether two channels belong to the same group of the convolution.

        Args:
            result: A target channel of a group.
            channel: A source channel of the group.

        Returns:
            False where merged groups do not mix.
        """
        return result // (self.results // self.merged) == channel // (
            self.channels // self.merged
        )

    @inline(.always)
    def weight_offset(self, group: Int, result: Int, channel: Int) -> Int:
        """Where the weights of two channels start.

        Args:
            group: The group.
            result: The target channel of the group.
            channel: The source channel of the group, with which it has weights.

        Returns:
            The offset in elements.
        """
        var part, first = divmod(result, self.results // self.merged)
        return (
            group * self.weight_group
            + part * (self.weight_group // self.merged)
            + first * self.weight_result
            + channel % (self.channels // self.merged) * self.weight_channel
        )

    def merge_axes(mut self):
        """Makes one dimension of neighbours that kernels of size 1 walk together, so that rows are long.
        """
        for d in range(2):
            var outer = self.axes[d]
            var inner = self.axes[d + 1]
            if (
                inner.is_pointwise()
                and outer.is_pointwise()
                and (
                    outer.targets == 1
                    or (
                        outer.out_stride == inner.targets * inner.out_stride
                        and outer.source_stride
                        == inner.size * inner.source_stride
                    )
                )
            ):
                inner.targets *= outer.targets
                inner.size *= outer.size
                outer.targets = 1
                outer.size = 1
                self.axes[d] = outer
                self.axes[d + 1] = inner

    @inline(.always)
    def pixels(self) -> Int:
        """The number of target positions of an image.

        Returns:
            The product over the axes.
        """
        return (
            self.axes[0].targets * self.axes[1].targets * self.axes[2].targets
        )

    @inline(.always)
    def taps(self) -> Int:
        """The number of taps.

        Returns:
            The product over the axes.
        """
        return self.axes[0].taps * self.axes[1].taps * self.axes[2].taps

    @inline(.always)
    def depth(self) -> Int:
        """How many products a target is the sum of.

        Returns:
            Source channels of a group times taps.
        """
        return self.channels * self.taps()

    @inline(.always)
    def position(self, pixel: Int) -> Position:
        """Splits an index over images and target positions.

        Args:
            pixel: The index, the last axis the fastest.

        Returns:
            The image and the position.
        """
        var row, x = divmod(pixel, self.axes[2].targets)
        var plane, y = divmod(row, self.axes[1].targets)
        var image, z = divmod(plane, self.axes[0].targets)
        return Position(image, z, y, x)

    @inline(.always)
    def out_offset(self, position: Position) -> Int:
        """Where a target lies.

        Args:
            position: The image and the position.

        Returns:
            The offset in elements, without the channel's.
        """
        return (
            position.image * self.out_image
            + position.z * self.axes[0].out_stride
            + position.y * self.axes[1].out_stride
            + position.x * self.axes[2].out_stride
        )

    @inline(.always)
    def is_channels_last(self) -> Bool:
        """Whether channels are neighbours in memory, rather than positions.

        Returns:
            The layout of the source; of the target where the source has one channel.
        """
        if self.channels * self.groups > 1:
            return self.source_channel == 1
        return self.out_channel == 1 and self.results * self.groups > 1


@fieldwise_init
struct Position(TrivialRegisterPassable):
    """An image and a position in it."""

    var image: Int
    """The image."""
    var z: Int
    """The position along the first axis."""
    var y: Int
    """The position along the second axis."""
    var x: Int
    """The position along the third axis."""

    @inline(.always)
    def advance[dtype: DType](mut self, gather: Gather[dtype]):
        """Moves to the next target.

        Parameters:
            dtype: The element type.

        Args:
            gather: Has the sizes.
        """
        self.x += 1
        if self.x < gather.axes[2].targets:
            return
        self.x = 0
        self.y += 1
        if self.y < gather.axes[1].targets:
            return
        self.y = 0
        self.z += 1
        if self.z < gather.axes[0].targets:
            return
        self.z = 0
        self.image += 1


def spatial_stride(tensor: Tensor, axis: Int) -> Int:
    """The stride of a tensor [n, c, ...] along a spatial axis.

    Args:
        tensor: Has one to three spatial dimensions.
        axis: From 0 to 2, counted so that the last dimension is 2.

    Returns:
        Elements between neighbours; 0 for an axis that the tensor does not have.
    """
    var dimension = axis + Int(tensor.ndim) - 3
    return tensor.stride(dimension) if dimension >= 2 else 0


@fieldwise_init
struct Convolution[dtype: DType](TrivialRegisterPassable):
    """The tensors of a convolution that maps input to output, in whatever direction a kernel computes.

    Parameters:
        dtype: The element type.
    """

    var input: Tensor
    """[images, groups * inputs, ...]."""
    var weight: Tensor
    """[groups * outputs, inputs, ...]."""
    var output: Tensor
    """[images, groups * outputs, ...]."""
    var groups: Int
    """Groups of channels that do not mix."""
    var inputs: Int
    """Input channels of a group."""
    var outputs: Int
    """Output channels of a group."""
    var extents: StaticTuple[Extent, 3]
    """The spatial dimensions, the last the fastest; missing ones have size 1."""

    def __init__(
        out self,
        call: KernelCall,
        input: Tensor,
        weight: Tensor,
        output: Tensor,
        first: Int,
    ) raises:
        """Reads a call.

        Args:
            call: Has the scalars groups, stride, padding and dilation (int[] of as many values as spatial dimensions).
            input: The convolution's input.
            weight: The convolution's weight.
            output: The convolution's output.
            first: The position of groups among the scalars.

        Raises:
            ValueError: If the tensors do not fit together.
        """
        var ndim = Int(input.ndim) - 2
        if (
            ndim < 1
            or ndim > 3
            or weight.ndim != input.ndim
            or output.ndim != input.ndim
        ):
            raise Error(
                "ValueError: convolutions have tensors of three to five"
                " dimensions"
            )
        self.input = input
        self.weight = weight
        self.output = output
        self.groups = call.int_scalar(first)
        self.inputs = weight.size(1)
        self.outputs = weight.size(0) // self.groups
        self.extents = StaticTuple[Extent, 3](fill=Extent(1, 1, 1, 1, 0, 1))
        for d in range(ndim):
            # The lists follow each other, each behind its length.
            var word = first + 2 + d
            self.extents[3 - ndim + d] = Extent(
                input.size(2 + d),
                output.size(2 + d),
                weight.size(2 + d),
                call.int_scalar(word),
                call.int_scalar(word + ndim + 1),
                call.int_scalar(word + 2 * (ndim + 1)),
            )
        if (
            input.size(1) != self.groups * self.inputs
            or output.size(1) != weight.size(0)
            or weight.size(0) != self.groups * self.outputs
            or input.size(0) != output.size(0)
        ):
            raise Error(
                "ValueError: the channels of a convolution do not fit together"
            )

    @inline(.always)
    def phases(self) -> Int:
        """How many gathers the transposed convolution is.

        Returns:
            The product of the strides, limited to the remainders that positions have.
        """
        var count = 1
        comptime for d in range(3):
            count *= self.extents[d].stride
        return count
