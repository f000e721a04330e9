"""Weighted sums of inputs, axis by axis: interpolation, its gradient, and the gradients of padding."""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall, Words
from mojo_kernels.indexing.element import GPU_BLOCK, GPU_MAX_BLOCKS
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.reduction.rows import gpu_context, row_each
from mojo_kernels.resampling.axis import LINEAR, Axis, AxisReader
from mojo_kernels.volume import (
    BATCH,
    CHANNEL,
    Point,
    Volume,
    load_lanes,
    split,
)
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator, simd_width_of
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 8192
"""Elements that are worth a thread."""
comptime CACHED = 32768
"""Elements of a row that is added up before its columns are."""


@fieldwise_init
struct _Resampling[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """The operands of a resampling."""

    comptime device_type: AnyType = Self
    comptime compute = compute_type[Self.dtype]()

    var target: Data[Self.dtype]
    var source: Data[Self.dtype]
    var result: Volume
    var input: Volume
    """The sizes and strides of the source."""
    var depth: Axis[compute_type[Self.dtype]()]
    var height: Axis[compute_type[Self.dtype]()]
    var width: Axis[compute_type[Self.dtype]()]

    @staticmethod
    def get_type_name() -> String:
        return "_Resampling"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def store(self, point: Point, sum: Scalar[Self.compute]):
        """Stores an element of the result."""
        self.target.unsafe_store(
            self.result.plane(point.n, point.c)
            + self.result.at(point.d, point.h, point.w),
            narrow[Self.dtype](sum),
        )

    @inline(.always)
    def forward(self, point: Point):
        """Computes an output from its inputs."""
        var depths = self.depth.taps(point.d)
        var heights = self.height.taps(point.h)
        var widths = self.width.taps(point.w)
        var plane = self.source.unsafe_offset(
            self.input.plane(point.n, point.c)
        )
        var sum = Scalar[Self.compute](0)
        for i in range(depths.count):
            var d = self.depth.index(depths, i)
            var depth_weight = self.depth.weight(depths, i)
            for j in range(heights.count):
                var h = self.height.index(heights, j)
                var weight = depth_weight * self.height.weight(heights, j)
                for k in range(widths.count):
                    sum += (
                        weight
                        * self.width.weight(widths, k)
                        * plane.unsafe_load(
                            self.input.at(d, h, self.width.index(widths, k))
                        ).cast[Self.compute]()
                    )
        self.store(point, sum)

    @inline(.always)
    def backward(self, point: Point):
        """Adds up the gradients of the outputs that an input contributes to."""
        var plane = self.source.unsafe_offset(
            self.input.plane(point.n, point.c)
        )
        var sum = Scalar[Self.compute](0)
        for d in range(
            self.depth.first_output(point.d), self.depth.last_output(point.d)
        ):
            var depth_weight = self.depth.weight_of(d, point.d)
            if depth_weight == 0:
                continue
            for h in range(
                self.height.first_output(point.h),
                self.height.last_output(point.h),
            ):
                var weight = depth_weight * self.height.weight_of(h, point.h)
                if weight == 0:
                    continue
                for w in range(
                    self.width.first_output(point.w),
                    self.width.last_output(point.w),
                ):
                    var all = weight * self.width.weight_of(w, point.w)
                    if all != 0:
                        sum += (
                            all
                            * plane.unsafe_load(self.input.at(d, h, w)).cast[
                                Self.compute
                            ]()
                        )
        self.store(point, sum)


def _resample_block[
    dtype: DType, transposed: Bool
](resampling: _Resampling[dtype], channels_last: Int32, count: Int64):
    """One element of the result per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(resampling.result, channels_last != 0, i)
        comptime if transposed:
            resampling.backward(point)
        else:
            resampling.forward(point)
        i += Int(grid_dim.x) * Int(block_dim.x)


def resample[dtype: DType](call: KernelCall) raises:
    """Interpolation: outputs are weighted sums of inputs.

    Tensors: output [..., channels, spatial outputs], input [..., channels, spatial inputs]. Scalars: see `AxisReader`.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.
    """
    _resample[dtype, False](call)


def resample_backward[dtype: DType](call: KernelCall) raises:
    """The gradient of interpolation, or of padding with elements of the input: the transposed weighted sums.

    Tensors: the input's gradient [..., channels, spatial inputs], the output's gradient [..., channels, spatial outputs].
    Scalars: see `AxisReader`.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.
    """
    _resample[dtype, True](call)


def _resample[dtype: DType, transposed: Bool](call: KernelCall) raises:
    """Both directions; `transposed` is the gradient."""
    comptime compute = compute_type[dtype]()
    var axes = AxisReader(call)
    var spatial = axes.spatial
    var result = Volume(call.tensor(0), spatial)
    var source = Volume(call.tensor(1), spatial)
    var count = result.numel()
    if count == 0:
        return

    @inline(.always)
    def axis(i: Int) {imm} -> Axis[compute]:
        var inputs = source.size(2 + i)
        var outputs = result.size(2 + i)
        comptime if transposed:
            swap(inputs, outputs)
        return axes.axis[compute](call, i, 3, inputs, outputs)

    var resampling = _Resampling[dtype](
        call.tensor(0).pointer[dtype](),
        call.tensor(1).pointer[dtype](),
        result,
        source,
        axis(0),
        axis(1),
        axis(2),
    )
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_resample_block[dtype, transposed]](
            resampling,
            Int32(result.channels_last()),
            Int64(count),
            grid_dim=min(ceil_div(count, GPU_BLOCK), GPU_MAX_BLOCKS),
            block_dim=GPU_BLOCK,
        )
    else:
        _resample_on_cpu[transposed=transposed](call, resampling)


# ---- CPUs -----------------------------------------------------------------------------------------------------------


struct _Contributions[dtype: DType](Movable):
    """The elements of the source that each element of the result along an axis is the weighted sum of.
    """

    var starts: List[Int64]
    """Where an element's contributions start; one more than there are elements."""
    var indices: List[Int64]
    var weights: List[Scalar[Self.dtype]]

    def __init__(
        out self,
        axis: Axis[Self.dtype],
        *,
        transposed: Bool,
        padded: Bool = False,
    ):
        """Computes the contributions to all outputs, or if transposed to all inputs; of a padded row the element behind the
        last one is zero.
        """
        self.starts = List[Int64]()
        self.indices = List[Int64]()
        self.weights = List[Scalar[Self.dtype]]()
        for o in range(Int(axis.outputs)):
            var taps = axis.taps(o)
            self.starts.append(Int64(len(self.indices)))
            for k in range(taps.count):
                self.indices.append(Int64(axis.index(taps, k)))
                self.weights.append(axis.weight(taps, k))
            # At the border too, interpolation is between two.
            if (
                padded
                and axis.kind == LINEAR
                and taps.count == 1
                and axis.inputs != axis.outputs
            ):
                self.indices.append(Int64(taps.first + 1))
                self.weights.append(0)
        self.starts.append(Int64(len(self.indices)))
        if transposed:
            self._transpose(Int(axis.inputs))

    def _transpose(mut self, inputs: Int):
        """Sorts by index; the order of equals stays."""
        var starts = List[Int64](length=inputs + 1, fill=0)
        for index in self.indices:
            starts[Int(index) + 1] += 1
        for i in range(inputs):
            starts[i + 1] += starts[i]
        var next = starts.copy()
        var outputs = List[Int64](length=len(self.indices), fill=0)
        var weights = List[Scalar[Self.dtype]](length=len(self.indices), fill=0)
        for o in range(len(self.starts) - 1):
            for j in range(Int(self.starts[o]), Int(self.starts[o + 1])):
                var to = Int(next[Int(self.indices[j])])
                next[Int(self.indices[j])] += 1
                outputs[to] = Int64(o)
                weights[to] = self.weights[j]
        self.starts = starts^
        self.indices = outputs^
        self.weights = weights^

    def view(self) -> _View[Self.dtype]:
        """The contributions' addresses; the lists must live as long as they are used.
        """
        # Every element has as many, or there is no common number.
        var each = Int(self.starts[1]) if len(self.starts) > 1 else 0
        for i in range(len(self.starts) - 1):
            if Int(self.starts[i + 1] - self.starts[i]) != each:
                each = 0
        var pairs = each == 2
        for i in range(0, len(self.indices) - 1, 2):
            pairs = pairs and self.indices[i + 1] == self.indices[i] + 1
        return _View[Self.dtype](
            Words(unsafe_from_address=Int(self.starts.unsafe_ptr())),
            Words(unsafe_from_address=Int(self.indices.unsafe_ptr())),
            Data[Self.dtype](
                unsafe_from_address=Int(self.weights.unsafe_ptr())
            ),
            each,
            pairs,
        )


@fieldwise_init
struct _View[dtype: DType](TrivialRegisterPassable):
    """The addresses of contributions."""

    var starts: Words
    var indices: Words
    var weights: Data[Self.dtype]
    var each: Int
    """How many each element has; 0 where that differs."""
    var pairs: Bool
    """Each has two, which are neighbours."""

    @inline(.always)
    def start(self, i: Int) -> Int:
        """Where the contributions of an element start."""
        return Int(self.starts.unsafe_load(i))

    @inline(.always)
    def index(self, j: Int) -> Int:
        """The element of the source of a contribution."""
        return Int(self.indices.unsafe_load(j))

    @inline(.always)
    def weight(self, j: Int) -> Scalar[Self.dtype]:
        """The weight of a contribution."""
        return self.weights.unsafe_load(j)

    @inline(.always)
    def sum[
        each: Int, w: Int
    ](self, row: Data[Self.dtype], i: Int, block: Int) -> SIMD[Self.dtype, w]:
        """The weighted sum of elements of a row, each of which starts a block of neighbours.

        Parameters:
            each: How many contributions all elements have; 0 where that differs, -2 for neighbours.
            w: How many neighbours.
        """
        comptime if each == -2:
            # Only of single elements.
            return SIMD[Self.dtype, w](
                (
                    self.weights.unsafe_load[width=2](2 * i)
                    * row.unsafe_load[width=2](self.index(2 * i))
                ).reduce_add()
            )
        elif each > 0:
            var sum = self.weight(each * i) * row.unsafe_load[width=w](
                self.index(each * i) * block
            )
            comptime for k in range(1, each):
                sum += self.weight(each * i + k) * row.unsafe_load[width=w](
                    self.index(each * i + k) * block
                )
            return sum
        else:
            var sum = SIMD[Self.dtype, w](0)
            for j in range(self.start(i), self.start(i + 1)):
                sum += self.weight(j) * row.unsafe_load[width=w](
                    self.index(j) * block
                )
            return sum


def _resample_on_cpu[
    dtype: DType, //, transposed: Bool
](call: KernelCall, resampling: _Resampling[dtype]):
    """Adds up weighted rows first, and then their columns: elements, or where neighbouring channels are neighbours in memory
    blocks of channels.
    """
    comptime compute = compute_type[dtype]()
    comptime width = simd_width_of[compute]()
    var result = resampling.result
    var input = resampling.input
    var depth_lists = _Contributions(resampling.depth, transposed=transposed)
    var height_lists = _Contributions(resampling.height, transposed=transposed)
    var width_lists = _Contributions(
        resampling.width, transposed=transposed, padded=not transposed
    )
    var depths = depth_lists.view()
    var heights = height_lists.view()
    var widths = width_lists.view()
    var channels = result.size(CHANNEL)
    var columns = result.size(4)
    var input_columns = input.size(4)
    var block = 1
    if (
        result.channels_last()
        and input.stride(CHANNEL) == 1
        and channels >= width
    ):
        block = min(
            channels,
            max(width, CACHED // max(input_columns, 1) // width * width),
        )
    var groups = ceil_div(channels, block)
    var rows_of_plane = result.size(2) * result.size(3)
    var column_stride = input.stride(4)
    # A row's scratch is converted as a whole: half types are rounded faster in vectors.
    var converts = dtype != compute and block == 1 and result.stride(4) == 1

    def some_rows(start: Int, end: Int) {imm}:
        var storage = List[Scalar[compute]](
            length=(input_columns + 1) * block + (columns if converts else 0),
            fill=0,
        )
        var sums = Data[compute](unsafe_from_address=Int(storage.unsafe_ptr()))
        var unrounded = sums.unsafe_offset((input_columns + 1) * block)
        for row in range(start, end):
            var plane, at = split(row, rows_of_plane)
            var n, group = split(plane, groups)
            # The last group overlaps the one before.
            var c = min(group * block, channels - block)
            var d, h = split(at, result.size(3))
            var source = resampling.source.unsafe_offset(input.plane(n, c))
            var target = resampling.target.unsafe_offset(
                result.plane(n, c) + result.at(d, h, 0)
            )

            @inline(.always)
            def each_element[
                Body: def[w: Int](Int, Int) -> None
            ](body: Body) {imm}:
                var run = block
                var runs = input_columns
                if column_stride == block:
                    run *= runs
                    runs = 1
                for r in range(runs):
                    var k = 0
                    while k + width <= run:
                        body[width](r * run + k, r * column_stride + k)
                        k += width
                    comptime if width > 4:
                        while k + 4 <= run:
                            body[4](r * run + k, r * column_stride + k)
                            k += 4
                    while k < run:
                        body[1](r * run + k, r * column_stride + k)
                        k += 1

            var is_first = True
            var waits = False
            var a = source
            var a_weight = Scalar[compute](0)

            @inline(.always)
            def add_rows[
                both: Bool
            ](b: Data[dtype], b_weight: Scalar[compute]) {imm}:
                @inline(.always)
                def add[w: Int](k: Int, offset: Int) {imm}:
                    var value = b_weight * load_lanes[w, 1](b, offset)
                    comptime if both:
                        value += a_weight * load_lanes[w, 1](a, offset)
                    if not is_first:
                        value += sums.unsafe_load[width=w](k)
                    sums.unsafe_store(k, value)

                each_element(add)

            for i in range(depths.start(d), depths.start(d + 1)):
                for j in range(heights.start(h), heights.start(h + 1)):
                    var weight = depths.weight(i) * heights.weight(j)
                    var from_ = source.unsafe_offset(
                        input.at(depths.index(i), heights.index(j), 0)
                    )
                    if waits:
                        add_rows[True](from_, weight)
                        is_first = False
                    else:
                        a = from_
                        a_weight = weight
                    waits = not waits
            if waits:
                add_rows[False](a, a_weight)
            elif is_first:
                for k in range(input_columns * block):
                    sums.unsafe_store(k, Scalar[compute](0))

            @inline(.always)
            def finish[each: Int]() {imm}:
                if block > 1:
                    for column in range(columns):
                        var to = target.unsafe_offset(column * result.stride(4))

                        @inline(.always)
                        def lanes(k: Int) {imm}:
                            to.unsafe_store(
                                k,
                                narrow[dtype](
                                    widths.sum[max(each, each * -1), width](
                                        sums.unsafe_offset(k), column, block
                                    )
                                ),
                            )

                        var k = 0
                        while k + width <= block:
                            lanes(k)
                            k += width
                        if k < block:
                            # The last vector overlaps the one before.
                            lanes(block - width)
                elif converts:
                    for column in range(columns):
                        unrounded.unsafe_store(
                            column, widths.sum[each, 1](sums, column, 1)
                        )

                    def round[w: Int](k: Int) {imm}:
                        target.unsafe_store(
                            k, narrow[dtype](unrounded.unsafe_load[width=w](k))
                        )

                    row_each[0, compute](columns, round)
                else:
                    for column in range(columns):
                        target.unsafe_store(
                            column * result.stride(4),
                            narrow[dtype](widths.sum[each, 1](sums, column, 1)),
                        )

            if widths.pairs:
                finish[-2]()
            elif widths.each == 1:
                finish[1]()
            elif widths.each == 2:
                finish[2]()
            elif widths.each == 4:
                finish[4]()
            else:
                finish[0]()
        _ = storage^

    parallel_ranges(
        call,
        result.size(BATCH) * groups * rows_of_plane,
        GRAIN // max(columns * block, 1),
        some_rows,
    )
    _ = depth_lists^
    _ = height_lists^
    _ = width_lists^
