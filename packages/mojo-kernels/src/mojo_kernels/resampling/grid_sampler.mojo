"""Sampling of a volume at positions that a grid gives, and its gradients."""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall, Tensor, Words
from mojo_kernels.indexing.element import GPU_BLOCK, GPU_MAX_BLOCKS
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type
from mojo_kernels.reduction.rows import gpu_context
from mojo_kernels.volume import (
    BATCH,
    CHANNEL,
    Point,
    Volume,
    load_lanes,
    split,
)
from std.atomic import Atomic
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import floor, round
from std.sys.info import has_accelerator, simd_width_of
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
comptime GRAIN = 4096
"""Elements of the output that are worth a thread."""


@fieldwise_init
struct _Position[dtype: DType](TrivialRegisterPassable):
    """Where a sample lies along an axis."""

    var size: Int
    """The axis's length."""
    var mode: Int
    """`LINEAR`, `NEAREST` or `CUBIC`; 3 where there is no such axis."""
    var padding: Int
    """`ZEROS`, `BORDER` or `REFLECTION`."""
    var aligned: Bool
    """Whether -1 and 1 are the centres of the outermost elements, not their edges."""
    var first: Scalar[Self.dtype]
    """The first element that counts, or of four the second, before padding."""
    var at: Scalar[Self.dtype]
    """Where the sample lies after it."""
    var slope: Scalar[Self.dtype]
    """How far the sample moves when the grid's value does."""

    def __init__(
        out self,
        value: Scalar[Self.dtype],
        size: Int,
        mode: Int,
        padding: Int,
        aligned: Bool,
    ):
        """The position that a value of a grid stands for."""
        comptime Value = Scalar[Self.dtype]
        self.size = size
        self.mode = mode
        self.padding = padding
        self.aligned = aligned
        var x: Value
        if aligned:
            self.slope = Value(size - 1) / 2
            x = (value + 1) / 2 * Value(size - 1)
        else:
            self.slope = Value(size) / 2
            x = ((value + 1) * Value(size) - 1) / 2
        self.first = 0
        self.at = 0
        if mode != CUBIC:
            var turned = Value(1)
            x = self.padded(x, turned)
            self.slope *= turned
        if mode == NEAREST:
            self.first = round(x)
        else:
            self.first = floor(x)
            self.at = x - self.first

    @inline(.always)
    def padded(
        self, x: Scalar[Self.dtype], mut slope: Scalar[Self.dtype]
    ) -> Scalar[Self.dtype]:
        """Brings a position into the volume, unless elements outside are zero.

        Args:
            x: The position.
            slope: Becomes the derivative: 1, -1 where mirrored, 0 beyond the border.
        """
        comptime Value = Scalar[Self.dtype]
        if self.padding == ZEROS:
            return x
        var last = Value(self.size - 1)
        if not isfinite(x):
            # As CPU torch has it in two dimensions.
            slope = 0
            return last if self.padding == BORDER and x > 0 else Value(0)
        var result = x
        if self.padding == REFLECTION:
            var low = Value(0) if self.aligned else Value(-0.5)
            var span = Value(self.size - 1 if self.aligned else self.size)
            if span == 0:
                slope = 0
                return 0
            var distance = result - low
            if distance < 0:
                slope = -slope
                distance = -distance
            var flips = floor(distance / span)
            var extra = distance - flips * span
            # What is left may round to a whole span.
            extra = min(max(extra, Value(0)), span)
            if flips - 2 * floor(flips / 2) != 0:
                extra = span - extra
                slope = -slope
            result = extra + low
        if result <= 0:
            slope = 0
            return 0
        if result >= last:
            slope = 0
            return last
        return result

    @inline(.always)
    def count(self) -> Int:
        """The number of elements along the axis that a sample depends on."""
        if self.mode == LINEAR:
            return 2
        return 4 if self.mode == CUBIC else 1

    @inline(.always)
    def index(self, k: Int) -> Int:
        """An element that a sample depends on; -1 where it counts as zero."""
        if self.mode > CUBIC:
            return 0
        var i = self.first + Scalar[Self.dtype](k)
        if self.mode == CUBIC:
            var unused = Scalar[Self.dtype](1)
            i = self.padded(i - 1, unused)
        # In floating point: positions may be of any size, or NaN.
        if i >= 0 and i <= Scalar[Self.dtype](self.size - 1):
            return Int(i)
        return -1

    @inline(.always)
    def weight(self, k: Int) -> Scalar[Self.dtype]:
        """How much an element counts."""
        if self.mode == LINEAR:
            return self.at if k == 1 else 1 - self.at
        if self.mode != CUBIC:
            return 1
        var x = abs(Scalar[Self.dtype](k - 1) - self.at)
        # The kernel of Keys (1981) with slope -0.75.
        if x <= 1:
            return (1.25 * x - 2.25) * x * x + 1
        return ((-0.75 * x + 3.75) * x - 6) * x + 3

    @inline(.always)
    def derivative(self, k: Int) -> Scalar[Self.dtype]:
        """How a weight changes when the grid's value does."""
        if self.mode == LINEAR:
            return self.slope if k == 1 else -self.slope
        if self.mode != CUBIC:
            return 0
        var signed = self.at - Scalar[Self.dtype](k - 1)
        var x = abs(signed)
        var slope: Scalar[Self.dtype]
        if x <= 1:
            slope = (3.75 * x - 4.5) * x
        else:
            slope = (-2.25 * x + 7.5) * x - 6
        return slope * self.slope if signed > 0 else -slope * self.slope


@fieldwise_init
struct _Sampler[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """The operands of a sampling, or of its gradient."""

    comptime device_type: AnyType = Self
    comptime compute = compute_type[Self.dtype]()
    comptime Position = _Position[compute_type[Self.dtype]()]

    var y: Data[Self.dtype]
    """The output, or its gradient."""
    var x: Data[Self.dtype]
    var grid: Data[Self.dtype]
    var output: Volume
    var input: Volume
    var positions: Volume
    """Sizes and strides of the grid, its values in the place of channels."""
    var value_stride: Int64
    var spatial: Int64
    var mode: Int64
    var padding: Int64
    var aligned: Int64

    def __init__(
        out self, call: KernelCall, y: Tensor, x: Tensor, grid: Tensor
    ):
        """Reads a call; its first scalars are the mode, the padding, and whether corners align.
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
        return "_Sampler"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def position[axis: Int](self, point: Point) -> Self.Position:
        """Where the sample of an output lies.

        Parameters:
            axis: 0 depth, 1 height, 2 width.
        """
        # The grid's first value is the width's.
        comptime which = 2 - axis
        if which >= Int(self.spatial):
            return Self.Position(1, 3, ZEROS, True, 0, 0, 0)
        var value = self.grid.unsafe_load(
            self.positions.plane(point.n, 0)
            + self.positions.at(point.d, point.h, point.w)
            + which * Int(self.value_stride)
        ).cast[Self.compute]()
        var position = Self.Position(
            value,
            self.input.size(2 + axis),
            Int(self.mode),
            Int(self.padding),
            self.aligned != 0,
        )
        # In two dimensions weights that are NaN spread, as in CPU torch; in three their elements are outside.
        if self.spatial == 2 and isnan(position.at):
            position.first = 0
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

        Args:
            depth: The sample's depth.
            height: Its row.
            width: Its column.
            body: Receives the element's offset in the plane and its weight.
        """
        for i in range(depth.count()):
            var d = depth.index(i)
            if d < 0:
                continue
            for j in range(height.count()):
                var h = height.index(j)
                if h < 0:
                    continue
                var weight = depth.weight(i) * height.weight(j)
                for k in range(width.count()):
                    var w = width.index(k)
                    if w >= 0:
                        body(self.input.at(d, h, w), weight * width.weight(k))

    @inline(.always)
    def sample[w: Int](self, point: Point):
        """Stores the samples of `w` channels of an output."""
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
            sum.cast[Self.dtype](),
        )

    @inline(.always)
    def grid_gradient(self, target: Data[Self.dtype], point: Point):
        """Stores the gradient of a position.

        Args:
            target: A contiguous tensor of the grid's sizes.
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
            var at_depth = depth.index(i)
            if at_depth < 0:
                continue
            for j in range(height.count()):
                var at_height = height.index(j)
                if at_height < 0:
                    continue
                for k in range(width.count()):
                    var at_width = width.index(k)
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
        var row = (point.n * self.output.size(2) + point.d) * self.output.size(
            3
        ) + point.h
        var to = (row * self.output.size(4) + point.w) * Int(self.spatial)
        comptime for v in range(3):
            if v < Int(self.spatial):
                target.unsafe_store(to + v, sums[v].cast[Self.dtype]())


# ---- GPUs -----------------------------------------------------------------------------------------------------------


def _sample_block[dtype: DType](sampler: _Sampler[dtype], count: Int64):
    """One output per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        sampler.sample[1](Point(sampler.output, False, i))
        i += Int(grid_dim.x) * Int(block_dim.x)


def _grid_block[
    dtype: DType
](sampler: _Sampler[dtype], target: Data[dtype], count: Int64):
    """One position per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        sampler.grid_gradient(target, Point(sampler.positions, False, i))
        i += Int(grid_dim.x) * Int(block_dim.x)


def _clear_block[dtype: DType](data: Data[dtype], count: Int64):
    """Sets elements to zero."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        data.unsafe_store(i, Scalar[dtype](0))
        i += Int(grid_dim.x) * Int(block_dim.x)


def _scatter_block[
    dtype: DType
](sampler: _Sampler[dtype], sums: Data[compute_type[dtype]()], count: Int64,):
    """Adds an output's gradient to the elements that it depends on, one output per thread and step.
    """
    comptime compute = compute_type[dtype]()
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(sampler.output, False, i)
        var gradient = sampler.y.unsafe_load(
            sampler.output.plane(point.n, point.c)
            + sampler.output.at(point.d, point.h, point.w)
        ).cast[compute]()
        # As a contiguous tensor of the input's sizes.
        var plane = sums.unsafe_offset(
            (point.n * sampler.input.size(CHANNEL) + point.c)
            * sampler.input.plane_size()
        )
        var dense = sampler
        dense.input = _dense(sampler.input)

        @inline(.always)
        def add(offset: Int, weight: Scalar[compute]) {imm}:
            _ = Atomic.fetch_add(plane.unsafe_offset(offset), weight * gradient)

        dense.each_tap(
            sampler.position[0](point),
            sampler.position[1](point),
            sampler.position[2](point),
            add,
        )
        i += Int(grid_dim.x) * Int(block_dim.x)


def _round_block[
    dtype: DType
](target: Data[dtype], sums: Data[compute_type[dtype]()], count: Int64):
    """Converts the sums."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        target.unsafe_store(i, sums.unsafe_load(i).cast[dtype]())
        i += Int(grid_dim.x) * Int(block_dim.x)


@inline(.always)
def _dense(volume: Volume) -> Volume:
    """The same sizes with the strides of a contiguous tensor."""
    var result = volume
    result.strides[4] = 1
    result.strides[3] = result.sizes[4]
    result.strides[2] = result.strides[3] * result.sizes[3]
    result.strides[CHANNEL] = result.strides[2] * result.sizes[2]
    result.strides[BATCH] = result.strides[CHANNEL] * result.sizes[CHANNEL]
    return result


@inline(.always)
def _blocks(count: Int) -> Int:
    """The grid for a number of threads."""
    return min(ceil_div(count, GPU_BLOCK), GPU_MAX_BLOCKS)


# ---- kernels --------------------------------------------------------------------------------------------------------


def grid_sample[dtype: DType](call: KernelCall) raises:
    """Samples of a volume.

    Tensors: output [batch, channels, spatial outputs], input [batch, channels, spatial inputs] with two or three spatial
    dimensions, grid [batch, spatial outputs, spatial dimensions] of positions from -1 to 1, the width's first. Scalars:
    the interpolation (0 linear, 1 nearest, 2 cubic), the padding (0 zeros, 1 border, 2 reflection), whether -1 and 1 are
    the centres of the outermost elements.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.
    """
    var sampler = _Sampler[dtype](
        call, call.tensor(0), call.tensor(1), call.tensor(2)
    )
    var count = sampler.output.numel()
    if count == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_sample_block[dtype]](
            sampler,
            Int64(count),
            grid_dim=_blocks(count),
            block_dim=GPU_BLOCK,
        )
    else:
        _sample_on_cpu(call, sampler)


def grid_sample_backward[dtype: DType](call: KernelCall) raises:
    """The gradients of `grid_sample`.

    On GPUs the input's gradient adds up in the order of atomic additions.

    Tensors: the input's gradient and the grid's gradient, both optional and contiguous; the output's gradient, the input,
    the grid. Scalars: as of `grid_sample`.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.
    """
    comptime compute = compute_type[dtype]()
    var sampler = _Sampler[dtype](
        call, call.tensor(2), call.tensor(3), call.tensor(4)
    )
    var dx = call.tensor(0)
    var d_grid = call.tensor(1)
    comptime if has_accelerator():
        var context = gpu_context(call)
        var outputs = sampler.output.numel()
        if not dx.is_absent() and dx.numel > 0:
            var elements = Int(dx.numel)
            comptime rounds = dtype != compute
            var scratch = context.enqueue_create_buffer[compute](
                elements if rounds else 1
            )
            var sums = Data[compute](
                unsafe_from_address=Int(
                    scratch.unsafe_ptr()
                ) if rounds else Int(dx.data)
            )
            context.enqueue_function[_clear_block[compute]](
                sums,
                Int64(elements),
                grid_dim=_blocks(elements),
                block_dim=GPU_BLOCK,
            )
            if outputs > 0:
                context.enqueue_function[_scatter_block[dtype]](
                    sampler,
                    sums,
                    Int64(outputs),
                    grid_dim=_blocks(outputs),
                    block_dim=GPU_BLOCK,
                )
            comptime if rounds:
                context.enqueue_function[_round_block[dtype]](
                    dx.pointer[dtype](),
                    sums,
                    Int64(elements),
                    grid_dim=_blocks(elements),
                    block_dim=GPU_BLOCK,
                )
            _ = scratch^
        if not d_grid.is_absent() and d_grid.numel > 0:
            var positions = sampler.positions.numel()
            context.enqueue_function[_grid_block[dtype]](
                sampler,
                d_grid.pointer[dtype](),
                Int64(positions),
                grid_dim=_blocks(positions),
                block_dim=GPU_BLOCK,
            )
    else:
        if not dx.is_absent() and dx.numel > 0:
            _scatter_on_cpu(call, sampler, dx.pointer[dtype]())
        if not d_grid.is_absent() and d_grid.numel > 0:
            var target = d_grid.pointer[dtype]()

            def some_positions(start: Int, end: Int) {imm}:
                for i in range(start, end):
                    sampler.grid_gradient(
                        target, Point(sampler.positions, False, i)
                    )

            parallel_ranges(
                call,
                sampler.positions.numel(),
                GRAIN // max(sampler.output.size(CHANNEL), 1),
                some_positions,
            )


# ---- CPUs -----------------------------------------------------------------------------------------------------------


struct _TapTable[dtype: DType](Movable):
    """The elements of a plane that the samples of a row depend on, `count` for each.
    """

    var count: Int
    var offsets: List[Int64]
    """Tap by tap: of the k-th tap of output `w` at `k * columns + w`."""
    var weights: List[Scalar[Self.dtype]]
    var complete: Bool
    """Whether every tap of the row is an element of the plane."""

    def __init__[element: DType](out self, sampler: _Sampler[element]):
        """Makes room for a row."""
        self.count = 1
        if sampler.mode != NEAREST:
            self.count = (2 if sampler.mode == LINEAR else 4) ** Int(
                sampler.spatial
            )
        var length = self.count * sampler.output.size(4)
        self.offsets = List[Int64](length=length, fill=0)
        self.weights = List[Scalar[Self.dtype]](length=length, fill=0)
        self.complete = True

    def fill[
        element: DType
    ](
        mut self,
        sampler: _Sampler[element],
        input: Volume,
        n: Int,
        d: Int,
        h: Int,
    ):
        """Computes the taps of a row; the offset of an element that counts as zero is -1.
        """
        var columns = sampler.output.size(4)
        self.complete = True
        for w in range(columns):
            var point = Point(n, 0, d, h, w)
            var depth = sampler.position[0](point)
            var height = sampler.position[1](point)
            var width = sampler.position[2](point)
            var at = w
            for i in range(depth.count()):
                var at_depth = depth.index(i)
                var depth_weight = depth.weight(i)
                for j in range(height.count()):
                    var row = height.index(j)
                    var weight = depth_weight * height.weight(j)
                    for k in range(width.count()):
                        var column = width.index(k)
                        var offset = -1
                        if (at_depth | row | column) >= 0:
                            offset = input.at(at_depth, row, column)
                        else:
                            self.complete = False
                        self.offsets.unsafe_get(at) = Int64(offset)
                        self.weights.unsafe_get(at) = (
                            weight * width.weight(k)
                        ).cast[Self.dtype]()
                        at += columns


def _sample_on_cpu[dtype: DType](call: KernelCall, sampler: _Sampler[dtype]):
    """Samples row by row: where the taps lie is the same for all channels."""
    comptime compute = compute_type[dtype]()
    comptime width = simd_width_of[compute]()
    var output = sampler.output
    var input = sampler.input
    var channels = output.size(CHANNEL)
    var across = (
        input.stride(CHANNEL) == 1
        and output.stride(CHANNEL) == 1
        and channels >= width
    )
    var rows_of_sample = output.size(2) * output.size(3)

    def some_rows(start: Int, end: Int) {imm}:
        var taps = _TapTable[compute](sampler)
        var columns = output.size(4)
        for row in range(start, end):
            var n, at = split(row, rows_of_sample)
            var d, h = split(at, output.size(3))
            taps.fill(sampler, input, n, d, h)
            var offsets = Words(
                unsafe_from_address=Int(taps.offsets.unsafe_ptr())
            )
            var weights = Data[compute](
                unsafe_from_address=Int(taps.weights.unsafe_ptr())
            )
            var x = sampler.x.unsafe_offset(input.plane(n, 0))
            var y = sampler.y.unsafe_offset(
                output.plane(n, 0) + output.at(d, h, 0)
            )

            @inline(.always)
            def lanes[w: Int](c: Int, column: Int) {imm}:
                var sum = SIMD[compute, w](0)
                for k in range(taps.count):
                    var offset = Int(offsets.unsafe_load(k * columns + column))
                    if offset >= 0:
                        sum += weights.unsafe_load(
                            k * columns + column
                        ) * load_lanes[w, 1](x, offset + c)
                y.unsafe_store(c + column * output.stride(4), sum.cast[dtype]())

            if across:
                for column in range(columns):
                    var c = 0
                    while c + width <= channels:
                        lanes[width](c, column)
                        c += width
                    if c < channels:
                        # The last vector overlaps the one before.
                        lanes[width](channels - width, column)
                continue

            @inline(.always)
            def channel[count: Int, complete: Bool](c: Int) {imm}:
                var plane = x.unsafe_offset(c * input.stride(CHANNEL))
                var target = y.unsafe_offset(c * output.stride(CHANNEL))
                for column in range(columns):
                    var sum = Scalar[compute](0)
                    comptime for k in range(count):
                        var offset = Int(
                            offsets.unsafe_load(k * columns + column)
                        )
                        var value = Scalar[compute](0)
                        comptime if complete:
                            value = plane.unsafe_load(offset).cast[compute]()
                        else:
                            # Without a branch; an element of the plane is read in any case.
                            var element = plane.unsafe_load(
                                max(offset, 0)
                            ).cast[compute]()
                            value = element if offset >= 0 else 0
                        sum += weights.unsafe_load(k * columns + column) * value
                    target.unsafe_store(
                        column * output.stride(4), sum.cast[dtype]()
                    )

            for c in range(channels):
                if taps.count == 4 and taps.complete:
                    channel[4, True](c)
                elif taps.count == 4:
                    channel[4, False](c)
                elif taps.count == 1:
                    channel[1, False](c)
                else:
                    # Tap by tap.
                    var plane = x.unsafe_offset(c * input.stride(CHANNEL))
                    for column in range(columns):
                        var sum = Scalar[compute](0)
                        for k in range(taps.count):
                            var offset = Int(
                                offsets.unsafe_load(k * columns + column)
                            )
                            if offset >= 0:
                                sum += (
                                    weights.unsafe_load(k * columns + column)
                                    * plane.unsafe_load(offset).cast[compute]()
                                )
                        y.unsafe_store(
                            c * output.stride(CHANNEL)
                            + column * output.stride(4),
                            sum.cast[dtype](),
                        )
        _ = taps^

    parallel_ranges(
        call,
        output.size(BATCH) * rows_of_sample,
        GRAIN // max(output.size(4) * channels, 1),
        some_rows,
    )


def _scatter_on_cpu[
    dtype: DType
](call: KernelCall, sampler: _Sampler[dtype], dx: Data[dtype]):
    """The input's gradient; a thread has some channels of a sample for itself, so that the order of additions is the same
    with any number of threads.
    """
    comptime compute = compute_type[dtype]()
    comptime rounds = dtype != compute
    var output = sampler.output
    var input = _dense(sampler.input)
    var channels = input.size(CHANNEL)
    var size = input.plane_size()
    var samples = input.size(BATCH)

    def some_planes(start: Int, end: Int) {imm}:
        var taps = _TapTable[compute](sampler)
        var columns = output.size(4)
        var scratch = List[Scalar[compute]](
            length=size * min(end - start, channels) if rounds else 0, fill=0
        )
        var plane = start
        while plane < end:
            var n, c = split(plane, channels)
            var count = min(end - plane, channels - c)
            var target = dx.unsafe_offset(plane * size)
            var sums = Data[compute](
                unsafe_from_address=Int(
                    scratch.unsafe_ptr()
                ) if rounds else Int(target)
            )
            for i in range(size * count):
                sums.unsafe_store(i, Scalar[compute](0))
            var dy = sampler.y.unsafe_offset(output.plane(n, c))
            for d in range(output.size(2)):
                for h in range(output.size(3)):
                    taps.fill(sampler, input, n, d, h)
                    for own in range(count):
                        var row = dy.unsafe_offset(
                            own * output.stride(CHANNEL) + output.at(d, h, 0)
                        )
                        var to = sums.unsafe_offset(own * size)
                        for column in range(columns):
                            var gradient = row.unsafe_load(
                                column * output.stride(4)
                            ).cast[compute]()
                            for k in range(taps.count):
                                var j = k * columns + column
                                var offset = Int(taps.offsets.unsafe_get(j))
                                if offset >= 0:
                                    to.unsafe_store(
                                        offset,
                                        to.unsafe_load(offset)
                                        + taps.weights.unsafe_get(j) * gradient,
                                    )
            comptime if rounds:
                for i in range(size * count):
                    target.unsafe_store(i, sums.unsafe_load(i).cast[dtype]())
            plane += count
        _ = scratch^

    parallel_ranges(
        call,
        samples * channels,
        GRAIN // max(output.plane_size(), 1),
        some_planes,
    )
