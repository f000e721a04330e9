"""Maximum pooling, regular, adaptive and fractional, and its gradient."""

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
    CHANNELS,
    FRACTIONAL,
    GRAIN,
    PAIRS,
    Tables,
    Window,
    Windows,
    each_window,
)
from mojo_kernels.reduction.rows import gpu_context, row_each
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.math import iota
from std.sys.info import has_accelerator, simd_width_of, size_of
from std.utils.numerics import isnan
from std.utils.static_tuple import StaticTuple

comptime CACHE_LINE = 64
"""Bytes; threads of a CPU that write neighbouring channels stay so far apart."""


@inline(.always)
def _replaces[
    dtype: DType, w: SIMDLength
](value: SIMD[dtype, w], best: SIMD[dtype, w]) -> SIMD[DType.bool, w]:
    """Whether values take the place of maxima: they are larger or NaN."""
    comptime if dtype.is_floating_point():
        return value.gt(best) | isnan(value)
    else:
        return value.gt(best)


@fieldwise_init
struct _Forward[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """The operands of a maximum pooling."""

    comptime device_type: AnyType = Self

    var y: Data[Self.dtype]
    var found: Data[DType.int64]
    var x: Data[Self.dtype]
    var samples: Data[Self.dtype]
    var output: Volume
    var indices: Volume
    var input: Volume
    var windows: Windows
    var sample_strides: StaticTuple[Int64, 3]
    var sample_count: Int64
    """Random samples per plane: of width and height, or of depth, height and width.
    """

    @staticmethod
    def get_type_name() -> String:
        return "_Forward"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def apply[w: Int, along: Int](self, point: Point, window: Window):
        """Stores the maxima of `w` windows and where they are.

        A later element replaces the maximum if it is larger or NaN, as in torch.
        """
        comptime compute = compute_type[Self.dtype]()
        # Relative to the window's first element; vectors are used for planes below 2^31 only.
        comptime position = DType.int64 if w == 1 else DType.int32
        var best = SIMD[compute, w](Scalar[compute].MIN)
        var where_ = SIMD[position, w](0)
        var rows = self.input.size(3)
        var columns = self.input.size(4)
        var first = (
            window.start[0] * rows + window.start[1]
        ) * columns + window.start[2]
        var plane = self.x.unsafe_offset(self.input.plane(point.n, point.c))
        var step = Int(self.windows.dilation[2])
        # Not `range` with a step, which divides.
        var d = window.start[0]
        while d < window.end[0]:
            var h = window.start[1]
            while h < window.end[1]:
                var offset = self.input.at(d, h, window.start[2])
                var index = (d * rows + h) * columns + window.start[2] - first
                var column = window.start[2]
                while column < window.end[2]:
                    var value = load_lanes[w, 2 if along == PAIRS else 1](
                        plane, offset
                    )
                    comptime if w == 1:
                        # A branch, which is nearly always predicted.
                        if _replaces(value, best).reduce_and():
                            best = value
                            where_ = SIMD[position, w](Scalar[position](index))
                    else:
                        var better = _replaces(value, best)
                        best = better.select(value, best)
                        where_ = better.select(
                            SIMD[position, w](Scalar[position](index)), where_
                        )
                    offset += step * self.input.stride(4)
                    index += step
                    column += step
                h += Int(self.windows.dilation[1])
            d += Int(self.windows.dilation[0])
        var index = where_.cast[DType.int64]() + Int64(first)
        comptime if along != CHANNELS:
            index += iota[DType.int64, w]() * Int64(2 if along == PAIRS else 1)
        self.y.unsafe_store(
            self.output.plane(point.n, point.c)
            + self.output.at(point.d, point.h, point.w),
            narrow[Self.dtype](best),
        )
        self.found.unsafe_store(
            self.indices.plane(point.n, point.c)
            + self.indices.at(point.d, point.h, point.w),
            index,
        )

    @inline(.always)
    def fractional_start[axis: Int](self, point: Point, o: Int) -> Int:
        """Where a window starts along an axis; rounded to the element type at every step, as in torch.
        """
        comptime compute = compute_type[Self.dtype]()

        @inline(.always)
        def rounded(x: Scalar[compute]) -> Scalar[compute]:
            return x.cast[Self.dtype]().cast[compute]()

        var outputs = Int(self.windows.outputs[axis])
        var spread = Int(self.windows.inputs[axis] - self.windows.kernel[axis])
        if o == outputs - 1:
            return spread
        var count = Int(self.sample_count)
        var sample = self.samples.unsafe_load(
            point.n * Int(self.sample_strides[0])
            + point.c * Int(self.sample_strides[1])
            + (2 - axis if count == 2 else axis) * Int(self.sample_strides[2])
        ).cast[compute]()
        var ratio = rounded(
            rounded(Scalar[compute](spread))
            / rounded(Scalar[compute](outputs - 1))
        )
        var here = rounded(
            rounded(rounded(Scalar[compute](o)) + sample) * ratio
        )
        return Int(here) - Int(rounded(sample * ratio))

    @inline(.always)
    def fractional(self, point: Point):
        """Stores the maximum of a window of a fractional pooling."""
        var start = StaticTuple[Int, 3](fill=0)
        var end = StaticTuple[Int, 3](fill=1)
        if self.sample_count == 3:
            start[0] = self.fractional_start[0](point, point.d)
            end[0] = start[0] + Int(self.windows.kernel[0])
        start[1] = self.fractional_start[1](point, point.h)
        end[1] = start[1] + Int(self.windows.kernel[1])
        start[2] = self.fractional_start[2](point, point.w)
        end[2] = start[2] + Int(self.windows.kernel[2])
        self.apply[1, CHANNELS](point, Window(start, end))

    @inline(.always)
    def one(self, point: Point):
        """Stores the maximum of a window of any kind."""
        # Torch has fractional pooling of floating types only.
        comptime if Self.dtype.is_floating_point():
            if self.windows.kind == FRACTIONAL:
                self.fractional(point)
                return
        self.apply[1, CHANNELS](point, Window(self.windows, point))


def _forward_block[
    dtype: DType
](forward: _Forward[dtype], channels_last: Int32, count: Int64):
    """One output per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(forward.output, channels_last != 0, i)
        forward.one(point)
        i += Int(grid_dim.x) * Int(block_dim.x)


def max_pool[dtype: DType](call: KernelCall) raises:
    """The maxima of windows and their row-major indices over the input's spatial dimensions.

    Of equal elements the first counts, of NaN the last, which is larger than any number; as in torch.

    Tensors: maxima, indices (int64), both [..., channels, spatial outputs]; input [..., channels, spatial inputs]; for
    fractional pooling random samples [batch, channels, spatial dimensions]. Scalars: the kind of
    windows (see `windows.mojo`); the number of spatial dimensions, from 1 to 3; kernel sizes unless adaptive; if regular strides,
    paddings, dilations.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.
    """
    var words = ScalarReader(2)
    var spatial = call.int_scalar(1)
    var output = Volume(call.tensor(0), spatial)
    var indices = Volume(call.tensor(1), spatial)
    var input = Volume(call.tensor(2), spatial)
    var windows = Windows(call, words, spatial, input, output, dilated=True)
    var samples = call.tensor(min(3, Int(call.n_tensors) - 1))
    var sample_strides = StaticTuple[Int64, 3](fill=0)
    if windows.kind == FRACTIONAL:
        for d in range(3):
            sample_strides[d] = Int64(samples.stride(d))
    var forward = _Forward[dtype](
        call.tensor(0).pointer[dtype](),
        call.tensor(1).pointer[DType.int64](),
        call.tensor(2).pointer[dtype](),
        samples.pointer[dtype](),
        output,
        indices,
        input,
        windows,
        sample_strides,
        Int64(spatial),
    )
    var count = output.numel()
    if count == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_forward_block[dtype]](
            forward,
            Int32(input.channels_last()),
            Int64(count),
            grid_dim=min(ceil_div(count, GPU_BLOCK), GPU_MAX_BLOCKS),
            block_dim=GPU_BLOCK,
        )
    else:
        if windows.kind == FRACTIONAL:

            def some_outputs(start: Int, end: Int) {imm}:
                for i in range(start, end):
                    forward.one(Point(output, False, i))

            var kernel = (
                windows.kernel[0] * windows.kernel[1] * windows.kernel[2]
            )
            parallel_ranges(call, count, GRAIN // Int(kernel), some_outputs)
        else:
            var lane = CHANNEL if input.channels_last() else 4
            var lanes = (
                output.stride(lane) == 1
                and indices.stride(lane) == 1
                and input.plane_size() < (1 << 31)
            )

            def outputs[w: Int, along: Int](point: Point, window: Window) {imm}:
                forward.apply[w, along](point, window)

            each_window[compute_type[dtype]()](
                call, windows, input, output, lanes, outputs
            )


# ---- gradient -------------------------------------------------------------------------------------------------------


@fieldwise_init
struct _Backward[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """The operands of the gradient of a maximum pooling."""

    comptime device_type: AnyType = Self

    var dx: Data[Self.dtype]
    var dy: Data[Self.dtype]
    var found: Data[DType.int64]
    var input: Volume
    var output: Volume
    var indices: Volume
    var windows: Windows

    @staticmethod
    def get_type_name() -> String:
        return "_Backward"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def gather[
        w: Int
    ](
        self,
        point: Point,
        first: StaticTuple[Int, 3],
        last: StaticTuple[Int, 3],
    ):
        """Adds up the gradients of the outputs that an input is the maximum of, for `w` channels.

        Args:
            point: The input.
            first: The first outputs that may see it.
            last: One past the last outputs that may see it.
        """
        comptime compute = compute_type[Self.dtype]()
        var index = SIMD[DType.int64, w](
            Int64(
                (point.d * self.input.size(3) + point.h) * self.input.size(4)
                + point.w
            )
        )
        var sum = SIMD[compute, w](0)
        var dy = self.dy.unsafe_offset(self.output.plane(point.n, point.c))
        var found = self.found.unsafe_offset(
            self.indices.plane(point.n, point.c)
        )
        for d in range(first[0], last[0]):
            for h in range(first[1], last[1]):
                for column in range(first[2], last[2]):
                    var here = found.unsafe_load[width=w](
                        self.indices.at(d, h, column)
                    ).eq(index)
                    sum += here.select(
                        load_lanes[w, 1](dy, self.output.at(d, h, column)),
                        SIMD[compute, w](0),
                    )
        self.dx.unsafe_store(
            self.input.plane(point.n, point.c)
            + self.input.at(point.d, point.h, point.w),
            narrow[Self.dtype](sum),
        )

    def scatter(
        self,
        sums: Data[compute_type[Self.dtype]()],
        step: Int,
        channel_step: Int,
        n: Int,
        c: Int,
        count: Int,
    ):
        """Adds the gradients of some planes to where their maxima are, in the order of the outputs.

        Args:
            sums: Element `i` of the k-th plane is at `i * step + k * channel_step`.
            step: Between neighbours of a plane.
            channel_step: Between planes.
            n: The sample.
            c: The first channel.
            count: How many channels.
        """
        comptime compute = compute_type[Self.dtype]()
        var size = self.input.plane_size()
        for i in range(size):
            for k in range(count):
                sums.unsafe_store(
                    i * step + k * channel_step, Scalar[compute](0)
                )
        var dy = self.dy.unsafe_offset(self.output.plane(n, c))
        var found = self.found.unsafe_offset(self.indices.plane(n, c))
        for d in range(self.output.size(2)):
            for h in range(self.output.size(3)):
                var from_ = self.output.at(d, h, 0)
                var at = self.indices.at(d, h, 0)
                for _ in range(self.output.size(4)):
                    for k in range(count):
                        var index = Int(
                            found.unsafe_load(
                                at + k * self.indices.stride(CHANNEL)
                            )
                        )
                        # An index that no pooling returns is left out.
                        if UInt(index) < UInt(size):
                            var to = index * step + k * channel_step
                            var gradient = dy.unsafe_load(
                                from_ + k * self.output.stride(CHANNEL)
                            ).cast[compute]()
                            sums.unsafe_store(
                                to, sums.unsafe_load(to) + gradient
                            )
                    from_ += self.output.stride(4)
                    at += self.indices.stride(4)


def _backward_block[
    dtype: DType
](backward: _Backward[dtype], channels_last: Int32, count: Int64):
    """One input per thread and step."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    while i < Int(count):
        var point = Point(backward.input, channels_last != 0, i)
        backward.gather[1](
            point,
            StaticTuple[Int, 3](
                backward.windows.first_output[0](point.d),
                backward.windows.first_output[1](point.h),
                backward.windows.first_output[2](point.w),
            ),
            StaticTuple[Int, 3](
                backward.windows.last_output[0](point.d),
                backward.windows.last_output[1](point.h),
                backward.windows.last_output[2](point.w),
            ),
        )
        i += Int(grid_dim.x) * Int(block_dim.x)


def max_pool_backward[dtype: DType](call: KernelCall) raises:
    """The gradient of `max_pool`.

    Tensors: the input's gradient [..., channels, spatial inputs]; the maxima's gradient and the indices, both
    [..., channels, spatial outputs]. Scalars: as of `max_pool`.

    Parameters:
        dtype: The element type, floating.

    Args:
        call: The call.
    """
    var words = ScalarReader(2)
    var spatial = call.int_scalar(1)
    var input = Volume(call.tensor(0), spatial)
    var output = Volume(call.tensor(1), spatial)
    var backward = _Backward[dtype](
        call.tensor(0).pointer[dtype](),
        call.tensor(1).pointer[dtype](),
        call.tensor(2).pointer[DType.int64](),
        input,
        output,
        Volume(call.tensor(2), spatial),
        Windows(call, words, spatial, input, output, dilated=True),
    )
    var count = input.numel()
    if count == 0:
        return
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_backward_block[dtype]](
            backward,
            Int32(input.channels_last()),
            Int64(count),
            grid_dim=min(ceil_div(count, GPU_BLOCK), GPU_MAX_BLOCKS),
            block_dim=GPU_BLOCK,
        )
    else:
        comptime width = simd_width_of[compute_type[dtype]()]()
        if (
            input.channels_last()
            and output.stride(CHANNEL) == 1
            and backward.indices.stride(CHANNEL) == 1
            and input.size(CHANNEL) >= width
        ):
            _gather_on_cpu(call, backward)
        else:
            _scatter_on_cpu(call, backward)


def _gather_on_cpu[dtype: DType](call: KernelCall, backward: _Backward[dtype]):
    """Handles each input by itself, with vectors along the channels."""
    comptime width = simd_width_of[compute_type[dtype]()]()
    var input = backward.input
    var channels = input.size(CHANNEL)
    var columns = input.size(4)
    var rows_of_sample = input.size(2) * input.size(3)
    var tables = Tables(backward.windows, of_inputs=True)
    var depths = tables.axis(0)
    var heights = tables.axis(1)
    var widths = tables.axis(2)

    def some_rows(start: Int, end: Int) {imm}:
        for row in range(start, end):
            var n, at = split(row, rows_of_sample)
            var d, h = split(at, input.size(3))
            for w in range(columns):
                var first = StaticTuple[Int, 3](
                    depths.start(d), heights.start(h), widths.start(w)
                )
                var last = StaticTuple[Int, 3](
                    depths.end(d), heights.end(h), widths.end(w)
                )
                var c = 0
                while c + width <= channels:
                    backward.gather[width](Point(n, c, d, h, w), first, last)
                    c += width
                if c < channels:
                    # The last vector overlaps the one before.
                    backward.gather[width](
                        Point(n, channels - width, d, h, w), first, last
                    )

    parallel_ranges(
        call,
        input.size(BATCH) * rows_of_sample,
        GRAIN // max(columns * channels, 1),
        some_rows,
    )
    _ = tables^


def _scatter_on_cpu[dtype: DType](call: KernelCall, backward: _Backward[dtype]):
    """Handles each plane by itself."""
    comptime compute = compute_type[dtype]()
    var input = backward.input
    var channels = input.size(CHANNEL)
    var block = 1
    if input.channels_last():
        block = min(CACHE_LINE // size_of[dtype](), channels)
    var blocks = ceil_div(channels, block)
    var size = input.plane_size()
    # Sums that would be rounded, or do not lie in row-major order, are made elsewhere.
    var elsewhere = compute != dtype or not input.row_major_plane()

    def some_blocks(start: Int, end: Int) {imm}:
        var scratch = List[Scalar[compute]](
            length=size * block if elsewhere else 0, fill=0
        )
        for i in range(start, end):
            var n, c = divmod(i, blocks)
            c *= block
            var planes = min(block, channels - c)
            var target = backward.dx.unsafe_offset(input.plane(n, c))
            if not elsewhere:
                backward.scatter(
                    Data[compute](unsafe_from_address=Int(target)),
                    input.stride(4),
                    input.stride(CHANNEL),
                    n,
                    c,
                    planes,
                )
                continue
            var sums = Data[compute](
                unsafe_from_address=Int(scratch.unsafe_ptr())
            )
            backward.scatter(sums, block, 1, n, c, planes)
            var row_major = input.row_major_plane()

            def round[w: Int](p: Int) {imm}:
                target.unsafe_store(
                    p, narrow[dtype](sums.unsafe_load[width=w](p))
                )

            if row_major and block == 1 and input.stride(4) == 1:
                row_each[0, compute](size, round)
                continue
            for p in range(size):
                var to = p * input.stride(4)
                if not row_major:
                    to = input.in_plane(p)
                for k in range(planes):
                    target.unsafe_store(
                        to + k * input.stride(CHANNEL),
                        narrow[dtype](sums.unsafe_load(p * block + k)),
                    )
        _ = scratch^

    parallel_ranges(
        call,
        input.size(BATCH) * blocks,
        GRAIN // max(size * block, 1),
        some_blocks,
    )
