"""Sampling on a grid, and the gradient of what is sampled, on CPUs."""

from mojo_kernels.abi import Data, KernelCall, Tensor, Words
from mojo_kernels.layout import parallel_ranges
from mojo_kernels.math import compute_type
from mojo_kernels.resampling.grid_position import (
    LINEAR,
    NEAREST,
    GridSampler,
    dense_volume,
)
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
    """Tap by tap: of the k-th tap of output `w` at `k * columns + w`."""
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
        """Computes the taps of a row; the offset of an element that counts as zero is -1.
        """
        var columns = sampler.output.size(4)
        # Rows are short: half a register reaches more of them.
        comptime width = max(simd_width_of[Self.dtype]() // 2, 1)
        var w = 0
        while w + width <= columns:
            self._fill[width](sampler, input, Point(n, 0, d, h, w))
            w += width
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
    comptime narrow = max(width // 2, 1)
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
            def some[w: Int](c: Int, column: Int) {imm}:
                var plane = x.unsafe_offset(c * input.stride(CHANNEL))
                var target = y.unsafe_offset(
                    c * output.stride(CHANNEL) + column * output.stride(4)
                )
                var sum = SIMD[compute, w](0)
                for k in range(taps.count):
                    var at = k * columns + column
                    var offset = offsets.unsafe_load[width=w](at)
                    var inside = offset.ge(SIMD[DType.int64, w](0))
                    var values = plane.unsafe_gather(
                        offset, inside, SIMD[dtype, w](0)
                    )
                    sum += (
                        weights.unsafe_load[width=w](at)
                        * values.cast[compute]()
                    )
                target.unsafe_store(0, sum.cast[dtype]())

            for c in range(channels):
                var column = 0
                if output.stride(4) == 1:
                    while column + narrow <= columns:
                        some[narrow](c, column)
                        column += narrow
                    if column < columns and columns >= narrow:
                        # The last vector overlaps the one before.
                        some[narrow](c, columns - narrow)
                        column = columns
                while column < columns:
                    some[1](c, column)
                    column += 1
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
                            sums.unsafe_load(own * size + i).cast[dtype](),
                        )
            plane += count
        _ = scratch^

    parallel_ranges(
        call,
        samples * channels,
        GRAIN // max(output.plane_size(), 1),
        some_planes,
    )
