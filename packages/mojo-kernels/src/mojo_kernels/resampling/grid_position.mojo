"""Where the samples of a grid lie, and the elements that they depend on."""

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.volume import (
    BATCH,
    CHANNEL,
    Point,
    Volume,
    load_lanes,
)
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import floor, round
from std.utils.numerics import isfinite, isnan
from std.utils.static_tuple import StaticTuple

comptime LINEAR = 0
"""Interpolation between neighbours, as torch numbers it."""
comptime NEAREST = 1
"""The nearest element; of two the even one."""
comptime CUBIC = 2
"""Interpolation by cubic convolution, in two dimensions."""
comptime ZEROS = 0
"""Elements outside count as zero."""
comptime BORDER = 1
"""Outside, the outermost elements continue."""
comptime REFLECTION = 2
"""Outside, the volume is mirrored."""


@fieldwise_init
struct GridPosition[dtype: DType, w: Int](TrivialRegisterPassable):
    """Where neighbouring samples lie along an axis.

    Parameters:
        dtype: The type that computes, floating.
        w: How many samples.
    """

    comptime Values = SIMD[Self.dtype, Self.w]

    var size: Int
    """The axis's length."""
    var mode: Int
    """`LINEAR`, `NEAREST` or `CUBIC`; 3 where there is no such axis."""
    var padding: Int
    """`ZEROS`, `BORDER` or `REFLECTION`."""
    var aligned: Bool
    """Whether -1 and 1 are the centres of the outermost elements, not their edges."""
    var first: Self.Values
    """The first element that counts, or of four the second, before padding."""
    var at: Self.Values
    """Where the sample lies after it."""
    var slope: Self.Values
    """How far the sample moves when the grid's value does."""

    def __init__(
        out self,
        value: Self.Values,
        size: Int,
        mode: Int,
        padding: Int,
        aligned: Bool,
    ):
        """The positions that values of a grid stand for.

        Args:
            value: The values, from -1 to 1 inside of the volume.
            size: The axis's length.
            mode: `LINEAR`, `NEAREST` or `CUBIC`.
            padding: `ZEROS`, `BORDER` or `REFLECTION`.
            aligned: Whether -1 and 1 are the centres of the outermost elements.
        """
        comptime Value = Scalar[Self.dtype]
        self.size = size
        self.mode = mode
        self.padding = padding
        self.aligned = aligned
        var x: Self.Values
        if aligned:
            self.slope = Self.Values(Value(size - 1) / 2)
            x = (value + 1) / 2 * Value(size - 1)
        else:
            self.slope = Self.Values(Value(size) / 2)
            x = ((value + 1) * Value(size) - 1) / 2
        self.first = 0
        self.at = 0
        if mode != CUBIC:
            x = self.padded(x, self.slope)
        if mode == NEAREST:
            self.first = round(x)
        else:
            self.first = floor(x)
            self.at = x - self.first

    @inline(.always)
    def padded(self, x: Self.Values, mut slope: Self.Values) -> Self.Values:
        """Brings positions into the volume, unless elements outside are zero.

        Args:
            x: The positions.
            slope: Changes its sign where mirrored, and is 0 beyond the border.

        Returns:
            The positions of what counts there.
        """
        comptime Value = Scalar[Self.dtype]
        if self.padding == ZEROS:
            return x
        var last = Self.Values(Value(self.size - 1))
        var none = Self.Values(0)
        var result = x
        # Where others go is as in CPU torch in two dimensions.
        var beyond = none
        if self.padding == BORDER:
            beyond = x.gt(none).select(last, none)
        else:
            var low = Self.Values(Value(0) if self.aligned else Value(-0.5))
            var span = Self.Values(
                Value(self.size - 1 if self.aligned else self.size)
            )
            if span[0] == 0:
                slope = 0
                return 0
            var distance = x - low
            slope = distance.lt(none).select(-slope, slope)
            distance = abs(distance)
            var flips = floor(distance / span)
            # What is left may round to a whole span.
            var extra = min(max(distance - flips * span, none), span)
            var odd = (flips - 2 * floor(flips / 2)).gt(none)
            extra = odd.select(span - extra, extra)
            slope = odd.select(-slope, slope)
            result = extra + low
        var finite = isfinite(x)
        var inside = result.gt(none) & result.lt(last)
        slope = (inside & finite).select(slope, none)
        result = result.ge(last).select(last, inside.select(result, none))
        return finite.select(result, beyond)

    @inline(.always)
    def count(self) -> Int:
        """The number of elements along the axis that a sample depends on.

        Returns:
            1, 2 or 4.
        """
        if self.mode == LINEAR:
            return 2
        return 4 if self.mode == CUBIC else 1

    @inline(.always)
    def index(self, k: Int) -> SIMD[DType.int64, Self.w]:
        """Elements that samples depend on; -1 where they count as zero.

        Args:
            k: Which of the `count()` elements.

        Returns:
            Their coordinates.
        """
        comptime Indices = SIMD[DType.int64, Self.w]
        if self.mode > CUBIC:
            return Indices(0)
        var i = self.first + Scalar[Self.dtype](k)
        if self.mode == CUBIC:
            var unused = Self.Values(1)
            i = self.padded(i - 1, unused)
        # In floating point: positions may be of any size, or NaN.
        var inside = i.ge(Self.Values(0)) & i.le(
            Self.Values(Scalar[Self.dtype](self.size - 1))
        )
        return inside.select(
            inside.select(i, Self.Values(0)).cast[DType.int64](), Indices(-1)
        )

    @inline(.always)
    def weight(self, k: Int) -> Self.Values:
        """How much an element counts.

        Args:
            k: Which of the `count()` elements.

        Returns:
            The weights.
        """
        if self.mode == LINEAR:
            return self.at if k == 1 else 1 - self.at
        if self.mode != CUBIC:
            return 1
        var x = abs(Scalar[Self.dtype](k - 1) - self.at)
        # The kernel of Keys (1981) with slope -0.75.
        return x.le(Self.Values(1)).select(
            (1.25 * x - 2.25) * x * x + 1,
            ((-0.75 * x + 3.75) * x - 6) * x + 3,
        )

    @inline(.always)
    def derivative(self, k: Int) -> Self.Values:
        """How a weight changes when the grid's value does.

        Args:
            k: Which of the `count()` elements.

        Returns:
            The derivatives.
        """
        if self.mode == LINEAR:
            return self.slope if k == 1 else -self.slope
        if self.mode != CUBIC:
            return 0
        var signed = self.at - Scalar[Self.dtype](k - 1)
        var x = abs(signed)
        var slope = x.le(Self.Values(1)).select(
            (3.75 * x - 4.5) * x, (-2.25 * x + 7.5) * x - 6
        )
        return signed.gt(Self.Values(0)).select(slope, -slope) * self.slope


@fieldwise_init
struct GridSampler[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """The operands of a sampling, or of its gradient.

    Parameters:
        dtype: The element type, floating.
    """

    comptime device_type: AnyType = Self
    comptime compute = compute_type[Self.dtype]()
    comptime Position = GridPosition[compute_type[Self.dtype](), 1]

    var y: Data[Self.dtype]
    """The output, or its gradient."""
    var x: Data[Self.dtype]
    """The input."""
    var grid: Data[Self.dtype]
    """The grid."""
    var output: Volume
    """Sizes and strides of the output."""
    var input: Volume
    """Sizes and strides of the input."""
    var positions: Volume
    """Sizes and strides of the grid, its values in the place of channels."""
    var value_stride: Int64
    """The distance of a position's values."""
    var spatial: Int64
    """The number of spatial dimensions, 2 or 3."""
    var mode: Int64
    """`LINEAR`, `NEAREST` or `CUBIC`."""
    var padding: Int64
    """`ZEROS`, `BORDER` or `REFLECTION`."""
    var aligned: Int64
    """Whether -1 and 1 are the centres of the outermost elements."""

    def __init__(
        out self, call: KernelCall, y: Tensor, x: Tensor, grid: Tensor
    ):
        """Reads a call; its first scalars are the mode, the padding, and whether corners align.

        Args:
            call: The call.
            y: The output, or its gradient.
            x: The input.
            grid: The grid.
        """
        var spatial = Int(x.ndim) - 2
        self.y = y.pointer[Self.dtype]()
        self.x = x.pointer[Self.dtype]()
        self.grid = grid.pointer[Self.dtype]()
        self.output = Volume(y, spatial)
        self.input = Volume(x, spatial)
        # [batch, spatial dimensions, values]: as a volume with one channel.
        self.positions = self.output
        self.positions.sizes[CHANNEL] = 1
        self.positions.strides[BATCH] = Int64(grid.stride(0))
        self.positions.strides[CHANNEL] = 0
        for i in range(spatial):
            self.positions.strides[5 - spatial + i] = Int64(grid.stride(1 + i))
        self.value_stride = Int64(grid.stride(-1))
        self.spatial = Int64(spatial)
        self.mode = Int64(call.int_scalar(0))
        self.padding = Int64(call.int_scalar(1))
        self.aligned = Int64(call.int_scalar(2))

    @staticmethod
    def get_type_name() -> String:
        return "GridSampler"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def position[
        axis: Int, w: Int = 1
    ](self, point: Point) -> GridPosition[compute_type[Self.dtype](), w]:
        """Where the samples of `w` neighbouring outputs lie.

        Parameters:
            axis: 0 depth, 1 height, 2 width.
            w: How many outputs of a row.

        Args:
            point: The first output; its channel does not matter.

        Returns:
            The positions.
        """
        comptime Result = GridPosition[compute_type[Self.dtype](), w]
        # The grid's first value is the width's.
        comptime which = 2 - axis
        if which >= Int(self.spatial):
            return Result(1, 3, ZEROS, True, 0, 0, 0)
        var start = (
            self.positions.plane(point.n, 0)
            + self.positions.at(point.d, point.h, point.w)
            + which * Int(self.value_stride)
        )
        var value = SIMD[compute_type[Self.dtype](), w](0)
        comptime for lane in range(w):
            value[lane] = self.grid.unsafe_load(
                start + lane * self.positions.stride(4)
            ).cast[compute_type[Self.dtype]()]()
        var position = Result(
            value,
            self.input.size(2 + axis),
            Int(self.mode),
            Int(self.padding),
            self.aligned != 0,
        )
        # In two dimensions weights that are NaN spread, as in CPU torch; in three their elements are outside.
        if self.spatial == 2:
            position.first = isnan(position.at).select(
                SIMD[compute_type[Self.dtype](), w](0), position.first
            )
        return position

    @inline(.always)
    def each_tap[
        Body: def(Int, Scalar[Self.compute]) -> None
    ](
        self,
        depth: Self.Position,
        height: Self.Position,
        width: Self.Position,
        body: Body,
    ):
        """Runs a body for each element of a plane that a sample depends on.

        Parameters:
            Body: The type of the closure.

        Args:
            depth: The sample's depth.
            height: Its row.
            width: Its column.
            body: Receives the element's offset in the plane and its weight.
        """
        for i in range(depth.count()):
            var d = Int(depth.index(i))
            if d < 0:
                continue
            for j in range(height.count()):
                var h = Int(height.index(j))
                if h < 0:
                    continue
                var weight = depth.weight(i) * height.weight(j)
                for k in range(width.count()):
                    var w = Int(width.index(k))
                    if w >= 0:
                        body(self.input.at(d, h, w), weight * width.weight(k))

    @inline(.always)
    def sample[w: Int](self, point: Point):
        """Stores the samples of neighbouring channels of an output.

        Parameters:
            w: How many channels.

        Args:
            point: The output and the first channel.
        """
        var plane = self.x.unsafe_offset(self.input.plane(point.n, point.c))
        var sum = SIMD[Self.compute, w](0)

        @inline(.always)
        def add(offset: Int, weight: Scalar[Self.compute]) {mut}:
            sum += weight * load_lanes[w, 1](plane, offset)

        self.each_tap(
            self.position[0](point),
            self.position[1](point),
            self.position[2](point),
            add,
        )
        self.y.unsafe_store(
            self.output.plane(point.n, point.c)
            + self.output.at(point.d, point.h, point.w),
            narrow[Self.dtype](sum),
        )

    @inline(.always)
    def grid_gradient(
        self,
        target: Data[Self.dtype],
        positions: Volume,
        value_stride: Int64,
        point: Point,
    ):
        """Stores the gradient of a position.

        Args:
            target: The grid's gradient.
            positions: Its sizes and strides, as this struct has the grid's.
            value_stride: The distance of a position's values in it.
            point: The output; its channel does not matter.
        """
        var depth = self.position[0](point)
        var height = self.position[1](point)
        var width = self.position[2](point)
        var x = self.x.unsafe_offset(self.input.plane(point.n, 0))
        var dy = self.y.unsafe_offset(
            self.output.plane(point.n, 0)
            + self.output.at(point.d, point.h, point.w)
        )
        var sums = StaticTuple[Scalar[Self.compute], 3](fill=0)

        for i in range(depth.count() if self.mode != NEAREST else 0):
            var at_depth = Int(depth.index(i))
            if at_depth < 0:
                continue
            for j in range(height.count()):
                var at_height = Int(height.index(j))
                if at_height < 0:
                    continue
                for k in range(width.count()):
                    var at_width = Int(width.index(k))
                    if at_width < 0:
                        continue
                    var from_ = self.input.at(at_depth, at_height, at_width)
                    var product = Scalar[Self.compute](0)
                    for c in range(self.output.size(CHANNEL)):
                        product += (
                            x.unsafe_load(
                                c * self.input.stride(CHANNEL) + from_
                            ).cast[Self.compute]()
                            * dy.unsafe_load(
                                c * self.output.stride(CHANNEL)
                            ).cast[Self.compute]()
                        )
                    var d = depth.weight(i)
                    var h = height.weight(j)
                    var w = width.weight(k)
                    sums[0] += product * width.derivative(k) * d * h
                    sums[1] += product * height.derivative(j) * d * w
                    sums[2] += product * depth.derivative(i) * h * w
        var to = positions.plane(point.n, 0) + positions.at(
            point.d, point.h, point.w
        )
        comptime for v in range(3):
            if v < Int(self.spatial):
                target.unsafe_store(
                    to + v * Int(value_stride), narrow[Self.dtype](sums[v])
                )


@inline(.always)
def dense_volume(volume: Volume) -> Volume:
    """The same sizes with the strides of a contiguous tensor.

    Args:
        volume: The sizes.

    Returns:
        The sizes and strides.
    """
    var result = volume
    result.strides[4] = 1
    result.strides[3] = result.sizes[4]
    result.strides[2] = result.strides[3] * result.sizes[3]
    result.strides[CHANNEL] = result.strides[2] * result.sizes[2]
    result.strides[BATCH] = result.strides[CHANNEL] * result.sizes[CHANNEL]
    return result
