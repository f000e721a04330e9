"""`im2col` and `col2im`: windows of images as columns, and columns added up to images."""

from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator
from std.utils.static_tuple import StaticTuple

from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.indexing.element import ElementAction, each_element
from mojo_kernels.layout import IndexSpace, parallel_ranges
from mojo_kernels.math import narrow
from mojo_kernels.matmul.matrix import accumulator, ceil_div
from mojo_kernels.pointwise.function import storage_type

comptime GRAIN = 1 << 15
"""Elements that are worth a thread."""


@fieldwise_init
struct _Windows[dtype: DType](DevicePassable, TrivialRegisterPassable):
    """Images [n, c, y, x], columns [n, c * taps, positions], and which of their elements belong together.
    """

    comptime device_type: AnyType = Self
    comptime STORAGE = storage_type[Self.dtype]()

    var image: Data[Self.STORAGE]
    var columns: Data[Self.STORAGE]
    var image_strides: StaticTuple[Int, 4]
    var columns_strides: StaticTuple[Int, 3]
    var sizes: StaticTuple[Int, 2]
    """Of images."""
    var counts: StaticTuple[Int, 2]
    """Of windows, along y and x."""
    var kernel: StaticTuple[Int, 2]
    var dilation: StaticTuple[Int, 2]
    var padding: StaticTuple[Int, 2]
    var stride: StaticTuple[Int, 2]

    def __init__(out self, call: KernelCall, image: Tensor, columns: Tensor):
        """Reads a call's scalars: kernel size, dilation, padding, stride (int[2]).
        """
        self.image = image.pointer[Self.STORAGE]()
        self.columns = columns.pointer[Self.STORAGE]()
        self.image_strides = StaticTuple[Int, 4](fill=0)
        self.columns_strides = StaticTuple[Int, 3](fill=0)
        self.sizes = StaticTuple[Int, 2](fill=0)
        self.counts = StaticTuple[Int, 2](fill=0)
        self.kernel = StaticTuple[Int, 2](fill=1)
        self.dilation = StaticTuple[Int, 2](fill=1)
        self.padding = StaticTuple[Int, 2](fill=0)
        self.stride = StaticTuple[Int, 2](fill=1)
        comptime for d in range(4):
            self.image_strides[d] = image.stride(d)
        comptime for d in range(3):
            self.columns_strides[d] = columns.stride(d)
        comptime for d in range(2):
            self.sizes[d] = image.size(2 + d)
            self.kernel[d] = call.int_scalar(1 + d)
            self.dilation[d] = call.int_scalar(4 + d)
            self.padding[d] = call.int_scalar(7 + d)
            self.stride[d] = call.int_scalar(10 + d)
            self.counts[d] = (
                self.sizes[d]
                + 2 * self.padding[d]
                - self.dilation[d] * (self.kernel[d] - 1)
                - 1
            ) // self.stride[d] + 1

    @staticmethod
    def get_type_name() -> String:
        return "_Windows"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def image_row(self, image: Int, channel: Int, y: Int) -> Data[Self.STORAGE]:
        """The first element of a row."""
        return self.image.unsafe_offset(
            image * self.image_strides[0]
            + channel * self.image_strides[1]
            + y * self.image_strides[2]
        )

    @inline(.always)
    def column_row(
        self, image: Int, channel: Int, ky: Int, kx: Int, window_y: Int
    ) -> Data[Self.STORAGE]:
        """What a row of windows has at a tap."""
        return self.columns.unsafe_offset(
            image * self.columns_strides[0]
            + ((channel * self.kernel[0] + ky) * self.kernel[1] + kx)
            * self.columns_strides[1]
            + window_y * self.counts[1] * self.columns_strides[2]
        )

    @inline(.always)
    def position(self, window: Int, tap: Int, axis: Int) -> Int:
        """Where in the image a window's tap lies; outside of it in the padding.
        """
        return (
            window * self.stride[axis]
            + tap * self.dilation[axis]
            - self.padding[axis]
        )

    @inline(.always)
    def first_window(self, tap: Int, axis: Int) -> Int:
        """The first window whose tap lies in the image."""
        return ceil_div(
            max(self.padding[axis] - tap * self.dilation[axis], 0),
            self.stride[axis],
        )

    @inline(.always)
    def end_window(self, tap: Int, axis: Int) -> Int:
        """The window behind the last one whose tap lies in the image."""
        var last = (
            self.sizes[axis]
            - 1
            + self.padding[axis]
            - tap * self.dilation[axis]
        )
        return min(
            self.counts[axis],
            last // self.stride[axis] + 1 if last >= 0 else 0,
        )


@fieldwise_init
struct _Pick[dtype: DType](ElementAction):
    """One element of the columns; offsets: image, channel, tap y, tap x, window y, window x.
    """

    comptime operands = 6
    var windows: _Windows[Self.dtype]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 6]):
        var y = self.windows.position(offsets[4], offsets[2], 0)
        var x = self.windows.position(offsets[5], offsets[3], 1)
        var value = Scalar[storage_type[Self.dtype]()](0)
        if (
            y >= 0
            and y < self.windows.sizes[0]
            and x >= 0
            and x < self.windows.sizes[1]
        ):
            value = self.windows.image_row(
                offsets[0], offsets[1], y
            ).unsafe_load(x * self.windows.image_strides[3])
        self.windows.column_row(
            offsets[0], offsets[1], offsets[2], offsets[3], offsets[4]
        ).unsafe_store(offsets[5] * self.windows.columns_strides[2], value)


@fieldwise_init
struct _Add[dtype: DType](ElementAction):
    """One element of the image, the sum of columns; offsets: image, channel, y, x.
    """

    comptime operands = 4
    var windows: _Windows[Self.dtype]

    @inline(.always)
    def apply(self, offsets: StaticTuple[Int, 4]):
        comptime storage = storage_type[Self.dtype]()
        comptime accumulate = accumulator[storage]()
        var sum = Scalar[accumulate](0)
        for ky in range(self.windows.kernel[0]):
            var from_y = (
                offsets[2]
                + self.windows.padding[0]
                - ky * self.windows.dilation[0]
            )
            if from_y < 0 or from_y % self.windows.stride[0] != 0:
                continue
            var window_y = from_y // self.windows.stride[0]
            if window_y >= self.windows.counts[0]:
                continue
            for kx in range(self.windows.kernel[1]):
                var from_x = (
                    offsets[3]
                    + self.windows.padding[1]
                    - kx * self.windows.dilation[1]
                )
                if from_x < 0 or from_x % self.windows.stride[1] != 0:
                    continue
                var window_x = from_x // self.windows.stride[1]
                if window_x < self.windows.counts[1]:
                    sum = _plus[Self.dtype](
                        sum,
                        self.windows.column_row(
                            offsets[0], offsets[1], ky, kx, window_y
                        )
                        .unsafe_load(window_x * self.windows.columns_strides[2])
                        .cast[accumulate](),
                    )
        self.windows.image_row(offsets[0], offsets[1], offsets[2]).unsafe_store(
            offsets[3] * self.windows.image_strides[3], narrow[storage](sum)
        )


@inline(.always)
def _plus[
    dtype: DType, accumulate: DType
](a: Scalar[accumulate], b: Scalar[accumulate]) -> Scalar[accumulate]:
    """The sum; of bools whether one is true."""
    comptime if dtype == DType.bool:
        return a | b
    else:
        return a + b


def im2col[dtype: DType](call: KernelCall) raises:
    """Copies the windows of images into columns, zeros where they reach into the padding.

    Tensors: columns [n, c * taps, windows], images [n, c, y, x], any strides. Scalars: kernel size, dilation, padding,
    stride (int[2]).

    Parameters:
        dtype: The element type.

    Args:
        call: The call.

    Raises:
        If a launch fails.
    """
    var columns = call.tensor(0)
    var image = call.tensor(1)
    var windows = _Windows[dtype](call, image, columns)
    if columns.numel == 0:
        return
    var images = image.size(0)
    var channels = image.size(1)
    comptime if has_accelerator():
        # The offsets of this space are the indices themselves.
        var space = IndexSpace[6]()
        var lengths = StaticTuple[Int, 6](
            images,
            channels,
            windows.kernel[0],
            windows.kernel[1],
            windows.counts[0],
            windows.counts[1],
        )
        comptime for d in range(6):
            var strides = StaticTuple[Int, 6](fill=0)
            strides[d] = 1
            space.append(lengths[d], strides)
        each_element(call, _Pick(windows), space)
    else:
        var taps = windows.kernel[0] * windows.kernel[1]
        var width = windows.counts[1]

        def some_rows(start: Int, end: Int) {imm}:
            for index in range(start, end):
                var rest, window_y = divmod(index, windows.counts[0])
                var plane, tap = divmod(rest, taps)
                var n, channel = divmod(plane, channels)
                var ky, kx = divmod(tap, windows.kernel[1])
                var target = windows.column_row(n, channel, ky, kx, window_y)
                var step = windows.columns_strides[2]
                var y = windows.position(window_y, ky, 0)
                var low = min(windows.first_window(kx, 1), width)
                var high = max(windows.end_window(kx, 1), low)
                if y < 0 or y >= windows.sizes[0]:
                    high = low
                for x in range(low):
                    target.unsafe_store(x * step, 0)
                var source_step = windows.stride[1] * windows.image_strides[3]
                var source = windows.image_row(n, channel, y).unsafe_offset(
                    windows.position(0, kx, 1) * windows.image_strides[3]
                )
                comptime vector = 16
                var x = low
                if step == 1 and source_step == 1:
                    while x + vector <= high:
                        target.unsafe_store[width=vector](
                            x, source.unsafe_load[width=vector](x)
                        )
                        x += vector
                while x < high:
                    target.unsafe_store(
                        x * step, source.unsafe_load(x * source_step)
                    )
                    x += 1
                for x in range(high, width):
                    target.unsafe_store(x * step, 0)

        parallel_ranges(
            call,
            images * channels * taps * windows.counts[0],
            max(GRAIN // width, 1),
            some_rows,
        )


def col2im[dtype: DType](call: KernelCall) raises:
    """Adds columns up to images: the gradient of `im2col`. Every element of the result is summed by one thread.

    Tensors: images [n, c, y, x], columns [n, c * taps, windows], any strides. Scalars: kernel size, dilation, padding,
    stride (int[2]).

    Parameters:
        dtype: The element type.

    Args:
        call: The call.

    Raises:
        If a launch fails.
    """
    var image = call.tensor(0)
    var windows = _Windows[dtype](call, image, call.tensor(1))
    var space = IndexSpace[4]()
    comptime for d in range(4):
        var strides = StaticTuple[Int, 4](fill=0)
        strides[d] = 1
        space.append(image.size(d), strides)
    each_element(
        call,
        _Add(windows),
        space,
        grain=max(GRAIN // max(windows.kernel[0] * windows.kernel[1], 1), 1),
    )
