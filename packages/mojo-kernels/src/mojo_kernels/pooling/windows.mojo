"""Which inputs an output of a pooling sees, and which outputs see an input."""

from mojo_kernels.abi import KernelCall, Words
from mojo_kernels.layout import parallel_ranges
from mojo_kernels.volume import (
    BATCH,
    CHANNEL,
    Point,
    ScalarReader,
    Volume,
    split,
)
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import simd_width_of
from std.utils.static_tuple import StaticTuple

comptime REGULAR = 0
"""Windows of a fixed size at a fixed stride."""
comptime ADAPTIVE = 1
"""Windows that divide the input as evenly as its size allows."""
comptime FRACTIONAL = 2
"""Windows of a fixed size at pseudorandom strides."""
comptime GRAIN = 16384
"""Elements read that are worth a thread."""

comptime CHANNELS = 0
"""The lanes of a vector are neighbouring channels."""
comptime COLUMNS = 1
"""The lanes are neighbouring outputs of a row, whose windows start one column apart."""
comptime PAIRS = 2
"""The lanes are neighbouring outputs of a row, whose windows start two columns apart."""


struct Windows(DevicePassable, TrivialRegisterPassable):
    """The windows of a pooling."""

    comptime device_type: AnyType = Self
    """The type on the device."""

    var kind: Int64
    """`REGULAR`, `ADAPTIVE` or `FRACTIONAL`."""
    var inputs: StaticTuple[Int64, 3]
    """Depth, height and width of the input."""
    var outputs: StaticTuple[Int64, 3]
    """Depth, height and width of the output."""
    var kernel: StaticTuple[Int64, 3]
    """The sizes of a window; unused where adaptive."""
    var strides: StaticTuple[Int64, 3]
    """The distances between windows; only where regular."""
    var padding: StaticTuple[Int64, 3]
    """By how much the first window starts before the input; only where regular."""
    var dilation: StaticTuple[Int64, 3]
    """The distances between the elements of a window; only where regular."""

    def __init__(
        out self,
        call: KernelCall,
        mut words: ScalarReader,
        spatial: Int,
        input: Volume,
        output: Volume,
        dilated: Bool,
    ):
        """Reads the scalars of a pooling: its kind, the first; then kernel sizes, strides, paddings and dilations, if it
        has them.

        Args:
            call: The call.
            words: Stands behind the kind and the number of spatial dimensions.
            spatial: The number of spatial dimensions.
            input: The input.
            output: The output.
            dilated: Whether regular windows have dilations.
        """
        comptime Three = StaticTuple[Int64, 3]
        self.kind = Int64(call.int_scalar(0))
        self.inputs = Three(input.sizes[2], input.sizes[3], input.sizes[4])
        self.outputs = Three(output.sizes[2], output.sizes[3], output.sizes[4])
        self.kernel = Three(fill=1)
        self.strides = Three(fill=1)
        self.padding = Three(fill=0)
        self.dilation = Three(fill=1)
        if self.kind != ADAPTIVE:
            self.kernel = words.next_spatial(call, spatial, 1, self.kernel)
        if self.kind == REGULAR:
            self.strides = words.next_spatial(call, spatial, 1, self.kernel)
            self.padding = words.next_spatial(call, spatial, 0, self.padding)
            if dilated:
                self.dilation = words.next_spatial(
                    call, spatial, 1, self.dilation
                )

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "Windows"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def first[axis: Int](self, o: Int) -> Int:
        """Where a window starts, which may be before the input.

        Parameters:
            axis: 0 depth, 1 height, 2 width.

        Args:
            o: The output's coordinate; not for fractional pooling.

        Returns:
            The coordinate of the window's first element.
        """
        if self.kind == ADAPTIVE:
            return split(o * Int(self.inputs[axis]), Int(self.outputs[axis]))[0]
        return o * Int(self.strides[axis]) - Int(self.padding[axis])

    @inline(.always)
    def start[axis: Int](self, o: Int) -> Int:
        """The first input that an output sees.

        Parameters:
            axis: 0 depth, 1 height, 2 width.

        Args:
            o: The output's coordinate; not for fractional pooling.

        Returns:
            The input's coordinate.
        """
        var position = self.first[axis](o)
        if position < 0:
            var step = Int(self.dilation[axis])
            position += (-position + step - 1) // step * step
        return position

    @inline(.always)
    def end[axis: Int](self, o: Int) -> Int:
        """One past the last input that an output sees.

        Parameters:
            axis: 0 depth, 1 height, 2 width.

        Args:
            o: The output's coordinate; not for fractional pooling.

        Returns:
            The input's coordinate.
        """
        if self.kind == ADAPTIVE:
            var outputs = Int(self.outputs[axis])
            return split(
                (o + 1) * Int(self.inputs[axis]) + outputs - 1, outputs
            )[0]
        return min(
            self.first[axis](o)
            + Int((self.kernel[axis] - 1) * self.dilation[axis])
            + 1,
            Int(self.inputs[axis]),
        )

    @inline(.always)
    def first_output[axis: Int](self, i: Int) -> Int:
        """The first output that may see an input.

        Parameters:
            axis: 0 depth, 1 height, 2 width.

        Args:
            i: The input's coordinate.

        Returns:
            A coordinate; exact without dilation, except for fractional pooling.
        """
        var inputs = Int(self.inputs[axis])
        var outputs = Int(self.outputs[axis])
        if self.kind == ADAPTIVE:
            return split(i * outputs, inputs)[0]
        if self.kind == FRACTIONAL:
            # Window o starts within 1 of o (inputs - kernel) / (outputs - 1), the last one at its end.
            var spread = inputs - Int(self.kernel[axis])
            var before = i - Int(self.kernel[axis]) - 1
            if before <= 0 or spread == 0:
                return 0
            return min(split(before * (outputs - 1), spread)[0], outputs - 1)
        var reach = Int((self.kernel[axis] - 1) * self.dilation[axis])
        var behind = i + Int(self.padding[axis]) - reach
        if behind <= 0:
            return 0
        var step = Int(self.strides[axis])
        return split(behind + step - 1, step)[0]

    @inline(.always)
    def last_output[axis: Int](self, i: Int) -> Int:
        """One past the last output that may see an input.

        Parameters:
            axis: 0 depth, 1 height, 2 width.

        Args:
            i: The input's coordinate.

        Returns:
            A coordinate; exact without dilation, except for fractional pooling.
        """
        var inputs = Int(self.inputs[axis])
        var outputs = Int(self.outputs[axis])
        if self.kind == ADAPTIVE:
            return split((i + 1) * outputs + inputs - 1, inputs)[0]
        if self.kind == FRACTIONAL:
            var spread = inputs - Int(self.kernel[axis])
            if spread == 0:
                return outputs
            return min(split((i + 1) * (outputs - 1), spread)[0] + 2, outputs)
        return min(
            split(i + Int(self.padding[axis]), Int(self.strides[axis]))[0] + 1,
            outputs,
        )


@fieldwise_init
struct Table(TrivialRegisterPassable):
    """Ranges of coordinates along an axis, computed once for a call on a CPU.
    """

    var first: Words
    """Where each starts."""
    var last: Words
    """One past its end."""

    @inline(.always)
    def start(self, i: Int) -> Int:
        """Where a range starts.

        Args:
            i: Its number.

        Returns:
            The first coordinate.
        """
        return Int(self.first.unsafe_load(i))

    @inline(.always)
    def end(self, i: Int) -> Int:
        """Where a range ends.

        Args:
            i: Its number.

        Returns:
            One past the last coordinate.
        """
        return Int(self.last.unsafe_load(i))


struct Tables(Movable):
    """Ranges along the three axes."""

    var storage: List[Int64]
    """First and last coordinates, axis by axis."""
    var offsets: StaticTuple[Int, 3]
    """Where the axes start."""
    var lengths: StaticTuple[Int, 3]
    """How many ranges the axes have."""

    def __init__(out self, windows: Windows, *, of_inputs: Bool):
        """Computes the inputs that each output sees, or the outputs that see each input.

        Args:
            windows: The windows.
            of_inputs: Whether the ranges are outputs, one for each input.
        """
        self.lengths = StaticTuple[Int, 3](fill=0)
        self.offsets = StaticTuple[Int, 3](fill=0)
        self.storage = List[Int64]()
        comptime for axis in range(3):
            var length = Int(
                windows.inputs[axis] if of_inputs else windows.outputs[axis]
            )
            self.lengths[axis] = length
            self.offsets[axis] = len(self.storage)
            for i in range(length):
                self.storage.append(
                    Int64(
                        windows.first_output[axis](
                            i
                        ) if of_inputs else windows.start[axis](i)
                    )
                )
            for i in range(length):
                self.storage.append(
                    Int64(
                        windows.last_output[axis](
                            i
                        ) if of_inputs else windows.end[axis](i)
                    )
                )

    def axis(self, axis: Int) -> Table:
        """The ranges of an axis; the tables must live as long as they are used.

        Args:
            axis: 0 depth, 1 height, 2 width.

        Returns:
            Their addresses.
        """
        var first = Words(
            unsafe_from_address=Int(self.storage.unsafe_ptr())
        ).unsafe_offset(self.offsets[axis])
        return Table(first, first.unsafe_offset(self.lengths[axis]))


@fieldwise_init
struct Window(TrivialRegisterPassable):
    """The inputs that an output sees."""

    var start: StaticTuple[Int, 3]
    """The first depth, row and column."""
    var end: StaticTuple[Int, 3]
    """One past the last depth, row and column."""

    def __init__(out self, windows: Windows, point: Point):
        """The window of an output; not for fractional pooling.

        Args:
            windows: The windows.
            point: The output.
        """
        self.start = StaticTuple[Int, 3](
            windows.start[0](point.d),
            windows.start[1](point.h),
            windows.start[2](point.w),
        )
        self.end = StaticTuple[Int, 3](
            windows.end[0](point.d),
            windows.end[1](point.h),
            windows.end[2](point.w),
        )

    @inline(.always)
    def size(self) -> Int:
        """The number of inputs, without dilation.

        Returns:
            The product of the lengths.
        """
        return (
            (self.end[0] - self.start[0])
            * (self.end[1] - self.start[1])
            * (self.end[2] - self.start[2])
        )


@inline(.always)
def each_window[
    compute: DType, Body: def[w: Int, along: Int](Point, Window) -> None
](
    call: KernelCall,
    windows: Windows,
    input: Volume,
    output: Volume,
    lanes: Bool,
    body: Body,
):
    """Runs a body for every output on a CPU: for vectors of them along channels or columns, else for one at a time.

    Parameters:
        compute: The type that computes, which decides the vector width.
        Body: The type of the closure.

    Args:
        call: The call.
        windows: Regular or adaptive windows.
        input: The input.
        output: The output.
        lanes: Whether vectors may be stored along the dimension along which the input's lie.
        body: Computes `w` outputs from a point on, along `CHANNELS`, `COLUMNS` or `PAIRS`; the window is the first's.
    """
    comptime width = simd_width_of[compute]()
    # Rows of feature maps are short: half a vector register reaches more of them.
    comptime narrow = max(width // 2, 1)
    comptime few = min(narrow, 4)
    var channels = output.size(CHANNEL)
    var columns = output.size(4)
    var across = lanes and input.channels_last() and channels >= width
    var step = 0
    var low = 0
    var high = 0
    if lanes and not across and input.stride(4) == 1:
        step = column_step(windows, low, high)
    var kernel = max(input.plane_size() // max(output.plane_size(), 1), 1)
    if windows.kind == REGULAR:
        kernel = Int(windows.kernel[0] * windows.kernel[1] * windows.kernel[2])
    var rows_of_plane = output.size(2) * output.size(3)
    var group = 1 if across else channels
    var rows = output.size(BATCH) * group * rows_of_plane
    var row_elements = columns * (channels if across else 1) * kernel

    var tables = Tables(windows, of_inputs=False)
    var depths = tables.axis(0)
    var heights = tables.axis(1)
    var widths = tables.axis(2)

    def some_rows(start: Int, end: Int) {imm}:
        for row in range(start, end):
            var plane, at = split(row, rows_of_plane)
            var n, c = split(plane, group)
            var d, h = split(at, output.size(3))
            var window = Window(
                StaticTuple[Int, 3](depths.start(d), heights.start(h), 0),
                StaticTuple[Int, 3](depths.end(d), heights.end(h), 0),
            )
            var w = 0
            while w < columns:
                window.start[2] = widths.start(w)
                window.end[2] = widths.end(w)
                if across:
                    c = 0
                    while c + width <= channels:
                        body[width, CHANNELS](Point(n, c, d, h, w), window)
                        c += width
                    if c < channels:
                        # The last vector overlaps the one before.
                        body[width, CHANNELS](
                            Point(n, channels - width, d, h, w), window
                        )
                    w += 1
                elif w == low and high - low >= few:

                    @inline(.always)
                    def vectors[lanes: Int]() {imm}:
                        var from_ = low
                        while from_ < high:
                            # The last vector overlaps the one before.
                            from_ = min(from_, high - lanes)
                            var first = Window(window.start, window.end)
                            first.start[2] = widths.start(from_)
                            first.end[2] = widths.end(from_)
                            var point = Point(n, c, d, h, from_)
                            if step == 1:
                                body[lanes, COLUMNS](point, first)
                            else:
                                body[lanes, PAIRS](point, first)
                            from_ += lanes

                    if high - low >= narrow:
                        vectors[narrow]()
                    else:
                        vectors[few]()
                    w = high
                else:
                    body[1, CHANNELS](Point(n, c, d, h, w), window)
                    w += 1

    parallel_ranges(call, rows, GRAIN // max(row_elements, 1), some_rows)
    _ = tables^


def column_step(windows: Windows, mut low: Int, mut high: Int) -> Int:
    """Finds outputs [low, high) of a row whose windows are alike and 1 or 2 columns apart.

    Args:
        windows: Regular or adaptive windows.
        low: The first.
        high: One past the last.

    Returns:
        The distance; 0 where there are none.
    """
    var inputs = Int(windows.inputs[2])
    var outputs = Int(windows.outputs[2])
    var step = Int(windows.strides[2])
    var padding = Int(windows.padding[2])
    var reach = Int((windows.kernel[2] - 1) * windows.dilation[2]) + 1
    if windows.kind == ADAPTIVE:
        if inputs % outputs != 0:
            return 0
        step = inputs // outputs
        reach = step
    if step > 2:
        return 0
    low = min((padding + step - 1) // step, outputs)
    # Every second element is read together with the ones between: the last of them must exist too.
    var last = inputs + padding - reach - (step - 1)
    high = min(last // step + 1, outputs) if last >= 0 else 0
    return step
