"""Sampling on a grid, and the gradient of what is sampled, on CPUs."""

from mojo_kernels.abi import Data, KernelCall, Tensor, Words
from mojo_kernels.layout import parallel_ranges
from mojo_kernels.math import compute_type, narrow
from mojo_kernels.resampling.grid_position import (
    LINEAR,
    NEAREST,
    GridSampler,
    dense_volume,
)
from mojo_kernels.transposition import transpose_band
from mojo_kernels.volume import (
    BATCH,
    CHANNEL,
    Point,
    Volume,
    load_lanes,
    split,
)
from std.sys.info import simd_width_of

comptime GRAIN = 4096
"""Elements of the output that are worth a thread."""


struct _TapTable[dtype: DType](Movable):
    """The elements of a plane that the samples of a row depend on, `count` for each.
    """

    var count: Int
    var offsets: List[Int64]
    """Tap by tap: of the k-th tap of output `w` at `k * columns + w`; -1 for an element that counts as zero."""
    var readable: List[Int64]
    """The same, but 0 where there is no element."""
    var weights: List[Scalar[Self.dtype]]

    def __init__[element: DType](out self, sampler: GridSampler[element]):
        """Makes room for a row."""
        self.count = 1
        if sampler.mode != NEAREST:
            self.count = (2 if sampler.mode == LINEAR else 4) ** Int(
                sampler.spatial
            )
        var length = self.count * sampler.output.size(4)
        self.offsets = List[Int64](length=length, fill=0)
        self.readable = List[Int64](length=length, fill=0)
        self.weights = List[Scalar[Self.dtype]](length=length, fill=0)

    def fill[
        element: DType
    ](
        mut self,
        sampler: GridSampler[element],
        input: Volume,
        n: Int,
        d: Int,
        h: Int,
    ):
        """Computes the taps of a row."""
        var columns = sampler.output.size(4)
        # Rows are short: half a register reaches more of them.
        comptime width = max(simd_width_of[Self.dtype]() // 2, 1)
        var w = 0
        while w + width <= columns:
            self._fill[width](sampler, input, Point(n, 0, d, h, w))
            w += width
        if w < columns and columns >= width:
            # The last vector overlaps the one before.
            self._fill[width](
                sampler, input, Point(n, 0, d, h, columns - width)
            )
            return
        while w < columns:
            self._fill[1](sampler, input, Point(n, 0, d, h, w))
            w += 1

    @inline(.always)
    def _fill[
        w: Int, element: DType
    ](mut self, sampler: GridSampler[element], input: Volume, point: Point):
        """Computes the taps of `w` neighbouring outputs."""
        comptime Indices = SIMD[DType.int64, w]
        var columns = sampler.output.size(4)
        var depth = sampler.position[0, w](point)
        var height = sampler.position[1, w](point)
        var width = sampler.position[2, w](point)
        var offsets = self.offsets.unsafe_ptr()
        var readable = self.readable.unsafe_ptr()
        var weights = self.weights.unsafe_ptr()
        var at = point.w
        for i in range(depth.count()):
            var at_depth = depth.index(i)
            var depth_weight = depth.weight(i)
            for j in range(height.count()):
                var row = height.index(j)
                var weight = depth_weight * height.weight(j)
                for k in range(width.count()):
                    var column = width.index(k)
                    var inside = (at_depth | row | column).ge(Indices(0))
                    var offset = (
                        at_depth * Int64(input.stride(2))
                        + row * Int64(input.stride(3))
                        + column * Int64(input.stride(4))
                    )
                    offsets.unsafe_store(at, inside.select(offset, Indices(-1)))
                    readable.unsafe_store(at, inside.select(offset, Indices(0)))
                    weights.unsafe_store(
                        at,
                        (weight * width.weight(k)).cast[Self.dtype](),
                    )
                    at += columns


def sample_on_cpu[dtype: DType](call: KernelCall, sampler: GridSampler[dtype]):
    """Samples row by row: where the taps lie is the same for all channels.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.
        sampler: The operands.
    """
    comptime compute = compute_type[dtype]()
    comptime width = simd_width_of[compute]()
    comptime half = max(width // 2, 1)
    var output = sampler.output
    var input = sampler.input
    var channels = output.size(CHANNEL)
    var across = input.stride(CHANNEL) == 1 and channels >= width
    var across_output = output.stride(CHANNEL) == 1
    var rows_of_sample = output.size(2) * output.size(3)

    def some_rows(start: Int, end: Int) {imm}:
        var taps = _TapTable[compute](sampler)
        var columns = output.size(4)
        # The samples of a vector of channels, if they do not lie like that in the output.
        var storage = List[Scalar[compute]](
            length=columns * width if across and not across_output else 0,
            fill=0,
        )
        var samples = Data[compute](
            unsafe_from_address=Int(storage.unsafe_ptr())
        )
        for row in range(start, end):
            var n, at = split(row, rows_of_sample)
            var d, h = split(at, output.size(3))
            taps.fill(sampler, input, n, d, h)
            var offsets = Words(
                unsafe_from_address=Int(taps.offsets.unsafe_ptr())
            )
            var readable = Words(
                unsafe_from_address=Int(taps.readable.unsafe_ptr())
            )
            var weights = Data[compute](
                unsafe_from_address=Int(taps.weights.unsafe_ptr())
            )
            var x = sampler.x.unsafe_offset(input.plane(n, 0))
            var y = sampler.y.unsafe_offset(
                output.plane(n, 0) + output.at(d, h, 0)
            )

            @inline(.always)
            def lanes(c: Int) {imm}:
                for column in range(columns):
                    var sum = SIMD[compute, width](0)
                    for k in range(taps.count):
                        var offset = Int(
                            offsets.unsafe_load(k * columns + column)
                        )
                        if offset >= 0:
                            sum += weights.unsafe_load(
                                k * columns + column
                            ) * load_lanes[width, 1](x, offset + c)
                    if across_output:
                        y.unsafe_store(
                            c + column * output.stride(4), narrow[dtype](sum)
                        )
                    else:
                        samples.unsafe_store(column * width, sum)
                if across_output:
                    return
                var target = y.unsafe_offset(c * output.stride(CHANNEL))

                @inline(.always)
                def load[w: Int](offset: Int) {imm} -> SIMD[dtype, w]:
                    return narrow[dtype](samples.unsafe_load[width=w](offset))

                if output.stride(4) == 1:
                    transpose_band(
                        target,
                        output.stride(CHANNEL),
                        width,
                        width,
                        columns,
                        load,
                    )
                    return
                for column in range(columns):
                    for k in range(width):
                        target.unsafe_store(
                            k * output.stride(CHANNEL)
                            + column * output.stride(4),
                            load[1](column * width + k),
                        )

            if across:
                var c = 0
                while c < channels:
                    # The last vector overlaps the one before.
                    lanes(min(c, channels - width))
                    c += width
                continue

            @inline(.always)
            def some[w: Int](c: Int, column: Int) {imm}:
                var plane = x.unsafe_offset(c * input.stride(CHANNEL))
                var target = y.unsafe_offset(
                    c * output.stride(CHANNEL) + column * output.stride(4)
                )
                var sum = SIMD[compute, w](0)
                for k in range(taps.count):
                    var at = k * columns + column
                    var inside = offsets.unsafe_load[width=w](at).ge(
                        SIMD[DType.int64, w](0)
                    )
                    # Faster than the instruction that gathers.
                    var values = SIMD[dtype, w](0)
                    comptime for lane in range(w):
                        values[lane] = plane.unsafe_load(
                            Int(readable.unsafe_load(at + lane))
                        )
                    sum += (
                        weights.unsafe_load[width=w](at)
                        * inside.select(values, SIMD[dtype, w](0)).cast[
                            compute
                        ]()
                    )
                target.unsafe_store(0, narrow[dtype](sum))

            for c in range(channels):
                var column = 0
                if output.stride(4) == 1:
                    while column + half <= columns:
                        some[half](c, column)
                        column += half
                    if column < columns and columns >= half:
                        # The last vector overlaps the one before.
                        some[half](c, columns - half)
                        column = columns
                while column < columns:
                    some[1](c, column)
                    column += 1
        _ = storage^
        _ = taps^

    parallel_ranges(
        call,
        output.size(BATCH) * rows_of_sample,
        GRAIN // max(output.size(4) * channels, 1),
        some_rows,
    )


def scatter_on_cpu[
    dtype: DType
](call: KernelCall, sampler: GridSampler[dtype], gradient: Tensor):
    """The input's gradient.

    A thread has some channels of a sample for itself, so that the order of additions is the same with any number of
    threads.

    Parameters:
        dtype: The element type.

    Args:
        call: The call.
        sampler: The operands; the output is its gradient.
        gradient: The input's gradient.
    """
    comptime compute = compute_type[dtype]()
    var dx = gradient.pointer[dtype]()
    var to_volume = Volume(gradient, Int(sampler.spatial))
    var row_major = to_volume.row_major_plane()
    var collects = dtype != compute or not gradient.is_contiguous()
    var output = sampler.output
    var input = dense_volume(sampler.input)
    var channels = input.size(CHANNEL)
    var size = input.plane_size()
    var samples = input.size(BATCH)

    def some_planes(start: Int, end: Int) {imm}:
        var taps = _TapTable[compute](sampler)
        var columns = output.size(4)
        var scratch = List[Scalar[compute]](
            length=size * min(end - start, channels) if collects else 0, fill=0
        )
        var plane = start
        while plane < end:
            var n, c = split(plane, channels)
            var count = min(end - plane, channels - c)
            var sums = Data[compute](
                unsafe_from_address=Int(
                    scratch.unsafe_ptr()
                ) if collects else Int(dx.unsafe_offset(plane * size))
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
            if collects:
                for own in range(count):
                    var target = dx.unsafe_offset(to_volume.plane(n, c + own))
                    for i in range(size):
                        target.unsafe_store(
                            i
                            * to_volume.stride(
                                4
                            ) if row_major else to_volume.in_plane(i),
                            narrow[dtype](sums.unsafe_load(own * size + i)),
                        )
            plane += count
        _ = scratch^

    parallel_ranges(
        call,
        samples * channels,
        GRAIN // max(output.plane_size(), 1),
        some_planes,
    )
