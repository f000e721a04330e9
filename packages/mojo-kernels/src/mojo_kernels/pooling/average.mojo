"""Average pooling, regular and adaptive, and its gradient."""

from max.gpu import block_dim, block_idx, grid_dim, thread_idx
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.indexing.element import GPU_BLOCK, GPU_MAX_BLOCKS
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.volume import (
    BATCH,
    CHANNEL,
    Point,
    ScalarReader,
    Volume,
    load_lanes,
    split,
)
from mojo_kernels.pooling.windows import (
    GRAIN,
    REGULAR,
    Tables,
    Window,
    Windows,
    column_step,
)
from mojo_kernels.reduction.rows import gpu_context
from std.memory import unsafe_memcpy
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator, simd_width_of
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Average[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """The operands of an average pooling, or of its gradient: then `source` is the output's gradient.
    """

    comptime device_type: AnyType = Self
    comptime compute = compute_type[Self.dtype]()

    var target: Data[Self.dtype]
    var source: Data[Self.dtype]
    var output: Volume
    var input: Volume
    var windows: Windows
    var counts_padding: Int64
    """Whether elements outside of the input count as zeros."""
    var divisor: Int64
    """What all sums are divided by; 0: by the number of elements."""

    def __init__(
        out self,
        call: KernelCall,
        output: Int,
        input: Int,
    ):
        """Reads a call.

        Args:
            call: The call.
            output: The position of the tensor with the output's sizes.
            input: The position of the tensor with the input's sizes.
        """
        var words = ScalarReader(2)
        var spatial = call.int_scalar(1)
        self.target = call.tensor(0).pointer[Self.dtype]()
        self.source = call.tensor(1).pointer[Self.dtype]()
        self.output = Volume(call.tensor(output), spatial)
        self.input = Volume(call.tensor(input), spatial)
        self.windows = Windows(
            call, words, spatial, self.input, self.output, dilated=False
        )
        self.counts_padding = 0
        self.divisor = 0
        if self.windows.kind == REGULAR:
            self.counts_padding = Int64(words.next(call))
            if words.next(call) != 0:
                self.divisor = Int64(words.next(call))

    @staticmethod
    def get_type_name() -> String:
        return "Average"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def length[axis: Int](self, o: Int) -> Int:
        """How many elements of a window count along an axis."""
        if self.counts_padding != 0:
            var first = self.windows.first[axis](o)
            return min(
                Int(self.windows.kernel[axis]),
                Int(self.windows.inputs[axis] + self.windows.padding[axis])
                - first,
            )
        return self.windows.end[axis](o) - self.windows.start[axis](o)

    @inline(.always)
    def divided[
        w: Int
    ](self, sum: SIMD[Self.compute, w], by: SIMD[Self.compute, w]) -> SIMD[
        Self.compute, w
    ]:
        """A sum over the number of elements; integers round toward 0, as in C.
        """
        comptime if Self.compute.is_floating_point():
            return sum / by
        else:
            var quotient = abs(sum) // abs(by)
            return (sum.lt(0) ^ by.lt(0)).select(-quotient, quotient)

    @inline(.always)
    def count(self, point: Point) -> Int:
        """What the sum of an output's window is divided by."""
        if self.divisor != 0:
            return Int(self.divisor)
        return (
            self.length[0](point.d)
            * self.length[1](point.h)
            * self.length[2](point.w)
        )

    @inline(.always)
    def average[w: Int](self, point: Point, window: Window, count: Int):
        """Stores the averages of the windows of `w` channels."""
        var sum = SIMD[Self.compute, w](0)
        var plane = self.source.unsafe_offset(
            self.input.plane(point.n, point.c)
        )
        for d in range(window.start[0], window.end[0]):
            for h in range(window.start[1], window.end[1]):
                var offset = self.input.at(d, h, window.start[2])
                for _ in range(window.start[2], window.end[2]):
                    sum += load_lanes[w, 1](plane, offset)
                    offset += self.input.stride(4)
        self.target.unsafe_store(
            self.output.plane(point.n, point.c)
            + self.output.at(point.d, point.h, point.w),
            narrow[Self.dtype](
                self.divided(
                    sum, SIMD[Self.compute, w](Scalar[Self.compute](count))
                )
            ),
        )

    @inline(.always)
    def gather(self, point: Point):
        """Adds up the gradients of the outputs that an input is part of."""
        var sum = Scalar[Self.compute](0)
        var plane = self.source.unsafe_offset(
            self.output.plane(point.n, point.c)
        )
        for d in range(
            self.windows.first_output[0](point.d),
            self.windows.last_output[0](point.d),
        ):
            for h in range(
                self.windows.first_output[1](point.h),
                self.windows.last_output[1](point.h),
            ):
                for w in range(
                    self.windows.first_output[2](point.w),
                    self.windows.last_output[2](point.w),
                ):
                    sum += self.divided[1](
                        load_lanes[1, 1](plane, self.output.at(d, h, w)),
                        Scalar[Self.compute](
                            self.count(Point(point.n, point.c, d, h, w))
                        ),
                    )
        self.target.unsafe_store(
            self.input.plane(point.n, point.c)
            + self.input.at(point.d, point.h, point.w),
            narrow[Self.dtype](sum),
        )


def _forward_block[
    dtype: DType
](average: _Average[dtype], channels_last: Int32, count: Int64):
    """One output per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(average.output, channels_last != 0, i)
        average.average[1](
            point, Window(average.windows, point), average.count(point)
        )
        i += Int(grid_dim.x) * Int(block_dim.x)


def _backward_block[
    dtype: DType
](average: _Average[dtype], channels_last: Int32, count: Int64):
    """One input per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(average.input, channels_last != 0, i)
        average.gather(point)
        i += Int(grid_dim.x) * Int(block_dim.x)


def avg_pool[dtype: DType](call: KernelCall) raises:
    """The averages of windows.

    Tensors: output [..., channels, spatial outputs], input [..., channels, spatial inputs]. Scalars: the kind of
    windows (see `windows.mojo`); the number of spatial dimensions, from 1 to 3; if regular kernel sizes, strides,
    paddings, whether padding counts, and the divisor, optional.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.
    """
    var average = _Average[dtype](call, output=0, input=1)
    var count = average.output.numel()
    if count == 0:
        return
    var channels_last = average.input.channels_last()
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_forward_block[dtype]](
            average,
            Int32(channels_last),
            Int64(count),
            grid_dim=min(ceil_div(count, GPU_BLOCK), GPU_MAX_BLOCKS),
            block_dim=GPU_BLOCK,
        )
    else:
        _average_on_cpu(call, average)


def avg_pool_backward[dtype: DType](call: KernelCall) raises:
    """The gradient of `avg_pool`.

    Tensors: the input's gradient [..., channels, spatial inputs], the output's gradient [..., channels, spatial
    outputs]. Scalars: as of `avg_pool`.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.
    """
    var average = _Average[dtype](call, output=1, input=0)
    var input = average.input
    var count = input.numel()
    if count == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_backward_block[dtype]](
            average,
            Int32(input.channels_last()),
            Int64(count),
            grid_dim=min(ceil_div(count, GPU_BLOCK), GPU_MAX_BLOCKS),
            block_dim=GPU_BLOCK,
        )
    else:
        _gradient_on_cpu(call, average)


# ---- CPUs -----------------------------------------------------------------------------------------------------------


@inline(.always)
def _add_row[
    dtype: DType, Terms: def[w: Int](Int) -> SIMD[dtype, w]
](sums: Data[dtype], n: Int, is_first: Bool, terms: Terms):
    """Adds terms to a row of sums, or starts it with them."""

    @inline(.always)
    def add[w: Int](i: Int) {imm}:
        var value = terms[w](i)
        if not is_first:
            value += sums.unsafe_load[width=w](i)
        sums.unsafe_store(i, value)

    comptime width = simd_width_of[dtype]()
    var i = 0
    while i + width <= n:
        add[width](i)
        i += width
    comptime if width > 4:
        while i + 4 <= n:
            add[4](i)
            i += 4
    while i < n:
        add[1](i)
        i += 1


struct _Counts[dtype: DType](Movable):
    """How many elements of each window count along the axes."""

    var storage: List[Scalar[Self.dtype]]
    var offsets: StaticTuple[Int, 3]

    def __init__[element: DType](out self, average: _Average[element]):
        self.storage = List[Scalar[Self.dtype]]()
        self.offsets = StaticTuple[Int, 3](fill=0)
        comptime for axis in range(3):
            self.offsets[axis] = len(self.storage)
            for o in range(Int(average.windows.outputs[axis])):
                # A given divisor stands for the count along one axis.
                var count = 1 if axis > 0 else Int(average.divisor)
                if average.divisor == 0:
                    count = average.length[axis](o)
                self.storage.append(Scalar[Self.dtype](count))

    def axis(self, axis: Int) -> Data[Self.dtype]:
        """The counts of an axis; the storage must live as long as they are used.
        """
        return Data[Self.dtype](
            unsafe_from_address=Int(self.storage.unsafe_ptr())
        ).unsafe_offset(self.offsets[axis])


def _average_on_cpu[dtype: DType](call: KernelCall, average: _Average[dtype]):
    """Averages vectors of channels, or adds up rows first and then their columns.
    """
    comptime compute = compute_type[dtype]()
    comptime width = simd_width_of[compute]()
    # Rows of feature maps are short: half a vector register reaches more of them.
    comptime half = max(width // 2, 1)
    var input = average.input
    var output = average.output
    var windows = average.windows
    var channels = output.size(CHANNEL)
    var columns = output.size(4)
    var across = (
        input.channels_last()
        and output.stride(CHANNEL) == 1
        and channels >= width
    )
    var step = 0
    var low = 0
    var high = 0
    if not across and output.stride(4) == 1:
        step = column_step(windows, low, high)
    var tables = Tables(windows, of_inputs=False)
    var depths = tables.axis(0)
    var heights = tables.axis(1)
    var widths = tables.axis(2)
    var counts = _Counts[compute](average)
    var depth_counts = counts.axis(0)
    var height_counts = counts.axis(1)
    var width_counts = counts.axis(2)
    var rows_of_plane = output.size(2) * output.size(3)
    var group = 1 if across else channels
    var input_columns = input.size(4)

    def some_rows(start: Int, end: Int) {imm}:
        # Pairs are read beyond the last column.
        var storage = List[Scalar[compute]](
            length=input_columns + 2 * width, fill=0
        )
        var sums = Data[compute](unsafe_from_address=Int(storage.unsafe_ptr()))
        for row in range(start, end):
            var plane, at = split(row, rows_of_plane)
            var n, c = split(plane, group)
            var d, h = split(at, output.size(3))
            var count = depth_counts.unsafe_load(d) * height_counts.unsafe_load(
                h
            )
            var window = Window(
                StaticTuple[Int, 3](depths.start(d), heights.start(h), 0),
                StaticTuple[Int, 3](depths.end(d), heights.end(h), 0),
            )
            if across:
                for w in range(columns):
                    window.start[2] = widths.start(w)
                    window.end[2] = widths.end(w)
                    var by = Int(count * width_counts.unsafe_load(w))
                    c = 0
                    while c + width <= channels:
                        average.average[width](Point(n, c, d, h, w), window, by)
                        c += width
                    if c < channels:
                        # The last vector overlaps the one before.
                        average.average[width](
                            Point(n, channels - width, d, h, w), window, by
                        )
                continue
            var source = average.source.unsafe_offset(input.plane(n, c))
            var is_first = True
            for i in range(window.start[0], window.end[0]):
                for k in range(window.start[1], window.end[1]):
                    var offset = input.at(i, k, 0)
                    if input.stride(4) == 1:

                        @inline(.always)
                        def terms[w: Int](i: Int) {imm} -> SIMD[compute, w]:
                            return load_lanes[w, 1](source, offset + i)

                        _add_row(sums, input_columns, is_first, terms)
                    else:
                        for w in range(input_columns):
                            var value = load_lanes[1, 1](
                                source, offset + w * input.stride(4)
                            )
                            if not is_first:
                                value += sums.unsafe_load(w)
                            sums.unsafe_store(w, value)
                    is_first = False
            var target = average.target.unsafe_offset(
                output.plane(n, c) + output.at(d, h, 0)
            )

            @inline(.always)
            def finish[w: Int, step: Int](column: Int) {imm}:
                var first = widths.start(column)
                var sum = SIMD[compute, w](0)
                for k in range(first, widths.end(column)):
                    sum += load_lanes[w, step](sums, k)._refine[compute]()
                target.unsafe_store(
                    column * (1 if w > 1 else output.stride(4)),
                    narrow[dtype](
                        average.divided[w](
                            sum,
                            width_counts.unsafe_load[width=w](column) * count,
                        )
                    ),
                )

            var w = 0
            while w < columns:
                if w == low and high - low >= half:
                    while w < high:
                        w = min(w, high - half)
                        if step == 1:
                            finish[half, 1](w)
                        else:
                            finish[half, 2](w)
                        w += half
                else:
                    finish[1, 1](w)
                    w += 1
        _ = storage^

    var kernel = max(input.plane_size() // max(output.plane_size(), 1), 1)
    if windows.kind == REGULAR:
        kernel = Int(windows.kernel[0] * windows.kernel[1] * windows.kernel[2])
    parallel_ranges(
        call,
        output.size(BATCH) * group * rows_of_plane,
        GRAIN // max(columns * (channels if across else 1) * kernel, 1),
        some_rows,
    )
    _ = tables^
    _ = counts^


def _gradient_on_cpu[dtype: DType](call: KernelCall, average: _Average[dtype]):
    """Gathers vectors of channels, or adds up the rows that see a row first and then their columns.
    """
    comptime compute = compute_type[dtype]()
    comptime width = simd_width_of[compute]()
    var input = average.input
    var output = average.output
    var channels = input.size(CHANNEL)
    var across = (
        input.channels_last()
        and output.stride(CHANNEL) == 1
        and channels >= width
    )
    var columns = input.size(4)
    var tables = Tables(average.windows, of_inputs=True)
    var depths = tables.axis(0)
    var heights = tables.axis(1)
    var widths = tables.axis(2)
    var counts = _Counts[compute](average)
    var depth_counts = counts.axis(0)
    var height_counts = counts.axis(1)
    var width_counts = counts.axis(2)
    var group = 1 if across else channels
    var own_channels = channels if across else 1
    var rows_of_plane = input.size(2) * input.size(3)
    # Where windows do not overlap, no column is seen by two.
    var single = True
    for column in range(columns):
        single = single and widths.end(column) - widths.start(column) <= 1

    def some_rows(start: Int, end: Int) {imm}:
        var storage = List[Scalar[compute]](length=output.size(4) + 1, fill=0)
        var sums = Data[compute](unsafe_from_address=Int(storage.unsafe_ptr()))
        for row in range(start, end):
            var plane, at = split(row, rows_of_plane)
            var n, c = split(plane, group)
            var d, h = split(at, input.size(3))
            var source = average.source.unsafe_offset(output.plane(n, c))
            var target = average.target.unsafe_offset(
                input.plane(n, c) + input.at(d, h, 0)
            )

            @inline(.always)
            def gather[w: Int](column: Int, channel: Int) {imm}:
                var sum = SIMD[compute, w](0)
                for i in range(depths.start(d), depths.end(d)):
                    for k in range(heights.start(h), heights.end(h)):
                        var count = depth_counts.unsafe_load(
                            i
                        ) * height_counts.unsafe_load(k)
                        for j in range(
                            widths.start(column), widths.end(column)
                        ):
                            sum += average.divided[w](
                                load_lanes[w, 1](
                                    source, output.at(i, k, j) + channel
                                ),
                                SIMD[compute, w](
                                    count * width_counts.unsafe_load(j)
                                ),
                            )
                target.unsafe_store(
                    column * input.stride(4) + channel, narrow[dtype](sum)
                )

            if (
                row > start
                and h > 0
                and heights.start(h) == heights.start(h - 1)
                and heights.end(h) == heights.end(h - 1)
                and input.stride(4) == own_channels
            ):
                # The same outputs see the row above.
                unsafe_memcpy(
                    dest=target,
                    src=target.unsafe_offset(-input.stride(3)),
                    count=columns * own_channels,
                )
                continue
            if across:
                for column in range(columns):
                    if (
                        column > 0
                        and widths.start(column) == widths.start(column - 1)
                        and widths.end(column) == widths.end(column - 1)
                    ):
                        # The same outputs see the column before.
                        var to = target.unsafe_offset(column * input.stride(4))
                        unsafe_memcpy(
                            dest=to,
                            src=to.unsafe_offset(-input.stride(4)),
                            count=channels,
                        )
                        continue
                    c = 0
                    while c + width <= channels:
                        gather[width](column, c)
                        c += width
                    if c < channels:
                        # The last vector overlaps the one before.
                        gather[width](column, channels - width)
                continue
            var is_first = True
            for i in range(depths.start(d), depths.end(d)):
                for k in range(heights.start(h), heights.end(h)):
                    var count = depth_counts.unsafe_load(
                        i
                    ) * height_counts.unsafe_load(k)
                    var offset = output.at(i, k, 0)
                    if output.stride(4) == 1:

                        @inline(.always)
                        def terms[w: Int](j: Int) {imm} -> SIMD[compute, w]:
                            return average.divided[w](
                                load_lanes[w, 1](source, offset + j),
                                width_counts.unsafe_load[width=w](j) * count,
                            )

                        _add_row(sums, output.size(4), is_first, terms)
                    else:
                        for j in range(output.size(4)):
                            var value = average.divided[1](
                                load_lanes[1, 1](
                                    source, offset + j * output.stride(4)
                                ),
                                width_counts.unsafe_load(j) * count,
                            )
                            if not is_first:
                                value += sums.unsafe_load(j)
                            sums.unsafe_store(j, value)
                    is_first = False
            if single:
                for column in range(columns):
                    var j = widths.start(column)
                    var sum = sums.unsafe_load(j)
                    if is_first or j == widths.end(column):
                        sum = 0
                    target.unsafe_store(
                        column * input.stride(4), narrow[dtype](sum)
                    )
                continue
            for column in range(columns):
                var sum = Scalar[compute](0)
                if not is_first:
                    for j in range(widths.start(column), widths.end(column)):
                        sum += sums.unsafe_load(j)
                target.unsafe_store(
                    column * input.stride(4), narrow[dtype](sum)
                )
        _ = storage^

    parallel_ranges(
        call,
        input.size(BATCH) * group * rows_of_plane,
        GRAIN // max(columns * (channels if across else 1), 1),
        some_rows,
    )
    _ = tables^
    _ = counts^
