"""Statistics of channels, which batch and group normalization have in common.

A tensor is [batch, channels, positions]. Either the positions of a channel are neighbours in memory (`along`), or the
channels of a position are. Statistics are taken of parts, each some samples or some positions of one channel, and merged
by the caller. Moments of a part: two passes over blocks that stay in the cache, merged as Chan, Golub and LeVeque do.
"""

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.sync import barrier
from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.layout import ceil_div, parallel_ranges
from mojo_kernels.math import compute_type
from mojo_kernels.reduction.rows import (
    RowView,
    gpu_context,
    row_each,
    row_sum,
)
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.memory import AddressSpace, stack_allocation
from std.sys.info import has_accelerator, simd_width_of
from std.utils.static_tuple import StaticTuple

comptime GRAIN = 16384
"""Elements that are worth a thread."""
comptime BLOCK_ELEMENTS = 4096
"""Elements of a block that both passes of the moments read."""
comptime BLOCK_ROWS = 32
"""Positions of a block where channels are neighbours."""
comptime GPU_BLOCK = 256
"""Threads of a block on GPUs."""
comptime GPU_CHANNELS = 32
"""Channels of a block on GPUs where channels are neighbours."""
comptime GPU_PARTS = 512
"""Blocks that fill a large GPU."""
comptime OUT = 0
"""The operand number of the result."""
comptime X = 1
"""The operand number of the normalized tensor."""
comptime DY = 2
"""The operand number of the result's gradient."""


struct Channels[operands: Int](DevicePassable, TrivialRegisterPassable):
    """Tensors [batch, channels, positions], and how their statistics are cut into parts.

    Parameters:
        operands: The number of tensors.
    """

    comptime device_type: AnyType = Self
    """The type on the device."""

    var batch: Int64
    """The number of samples."""
    var channels: Int64
    """The number of channels."""
    var positions: Int64
    """The number of positions."""
    var strides: StaticTuple[Int64, 3 * Self.operands]
    """Of operand `k` along batch, channels and positions, from `3 * k`."""
    var along: Int32
    """1 where positions are neighbours, 0 where channels are."""
    var share: Int64
    """How many samples (`along`) or positions a part has."""
    var parts: Int64
    """The number of parts of a channel."""

    def __init__(
        out self, tensors: StaticTuple[Tensor, Self.operands], merges: Bool
    ) raises:
        """Takes tensors [batch, channels, ...] that are contiguous or channels-last.

        Args:
            tensors: Tensors of the same sizes.
            merges: Whether samples may count as positions.

        Raises:
            RuntimeError: The tensors lie otherwise, or differently.
        """
        var x = tensors[0]
        self.batch = Int64(x.size(0))
        self.channels = Int64(x.size(1))
        self.positions = 1
        self.strides = StaticTuple[Int64, 3 * Self.operands](fill=1)
        for d in range(2, Int(x.ndim)):
            self.positions *= Int64(x.size(d))
        comptime for k in range(Self.operands):
            self.strides[3 * k] = Int64(tensors[k].stride(0))
            self.strides[3 * k + 1] = Int64(tensors[k].stride(1))
            for d in range(2, Int(x.ndim)):
                if x.size(d) != 1:
                    self.strides[3 * k + 2] = Int64(tensors[k].stride(d))
        var mergeable = merges
        comptime for k in range(Self.operands):
            mergeable = mergeable and (
                self.positions == 1
                or self.strides[3 * k]
                == self.positions * self.strides[3 * k + 2]
            )
        if mergeable:
            if self.positions == 1:
                comptime for k in range(Self.operands):
                    self.strides[3 * k + 2] = self.strides[3 * k]
            self.positions *= self.batch
            self.batch = 1
        var neighbours = True
        var across = True
        comptime for k in range(Self.operands):
            neighbours = neighbours and (
                self.positions == 1 or self.strides[3 * k + 2] == 1
            )
            across = across and (
                self.channels == 1 or self.strides[3 * k + 1] == 1
            )
        if not neighbours and not across:
            raise Error(
                "normalization needs tensors that are all contiguous or all"
                " channels-last"
            )
        self.along = Int32(neighbours and not (across and self.positions == 1))
        self.share = 1
        self.parts = 1

    @staticmethod
    def get_type_name() -> String:
        """The name in messages of the device context.

        Returns:
            The name.
        """
        return "Channels"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    def cut(mut self, call: KernelCall, per_sample: Bool):
        """Chooses the parts.

        Args:
            call: The call, for its threads.
            per_sample: Whether every part must lie within a sample.
        """
        var wanted = min(
            Int(call.threads), Int(self.batch * self.positions) // 64
        )
        comptime if has_accelerator():
            wanted = GPU_PARTS
        var channels = Int(self.channels)
        if self.along != 0:
            var parts = Int(self.batch)
            if not per_sample:
                parts = max(min(parts, wanted // max(channels, 1)), 1)
            self.share = Int64(ceil_div(Int(self.batch), max(parts, 1)))
            self.share = max(self.share, 1)
            self.parts = Int64(ceil_div(Int(self.batch), Int(self.share)))
            return
        comptime if has_accelerator():
            wanted = wanted // ceil_div(channels, GPU_CHANNELS)
        var pieces = max(
            min(
                wanted // max(Int(self.batch), 1),
                Int(self.positions) // BLOCK_ROWS,
            ),
            1,
        )
        self.share = Int64(max(ceil_div(Int(self.positions), pieces), 1))
        self.parts = Int64(
            Int(self.batch) * ceil_div(Int(self.positions), Int(self.share))
        )

    @inline(.always)
    def parts_per_sample(self) -> Int:
        """The number of parts of a channel of a sample.

        Returns:
            1 where positions are neighbours.
        """
        if self.along != 0:
            return 1
        return ceil_div(Int(self.positions), Int(self.share))

    @inline(.always)
    def range_of(self, part: Int) -> Tuple[Int, Int, Int, Int]:
        """What a part covers.

        Args:
            part: Its number.

        Returns:
            The first sample, the number of samples, the first position, the number of positions.
        """
        var share = Int(self.share)
        if self.along != 0:
            var first = part * share
            return (
                first,
                min(share, Int(self.batch) - first),
                0,
                Int(self.positions),
            )
        var sample, piece = divmod(part, self.parts_per_sample())
        var first = piece * share
        return sample, 1, first, min(share, Int(self.positions) - first)

    @inline(.always)
    def count(self, part: Int) -> Int:
        """How many elements of a channel a part has.

        Args:
            part: Its number.

        Returns:
            The number.
        """
        var covered = self.range_of(part)
        return covered[1] * covered[3]

    @inline(.always)
    def offset(
        self, operand: Int, sample: Int, channel: Int, position: Int
    ) -> Int:
        """Where an element lies.

        Args:
            operand: The tensor.
            sample: The sample.
            channel: The channel.
            position: The position.

        Returns:
            The offset in elements.
        """
        return (
            sample * Int(self.strides[3 * operand])
            + channel * Int(self.strides[3 * operand + 1])
            + position * Int(self.strides[3 * operand + 2])
        )


@inline(.always)
def merge_moments[
    dtype: DType, w: SIMDLength
](
    mut mean: SIMD[dtype, w],
    mut squares: SIMD[dtype, w],
    count: Int,
    other_mean: SIMD[dtype, w],
    other_squares: SIMD[dtype, w],
    other_count: Int,
):
    """Lets the moments of further elements enter.

    Parameters:
        dtype: The type that computes.
        w: The number of channels.

    Args:
        mean: The mean so far.
        squares: The sum of squared deviations so far.
        count: How many elements these are of.
        other_mean: The mean of the further elements.
        other_squares: Their sum of squared deviations.
        other_count: How many they are.
    """
    if other_count == 0:
        return
    var share = Scalar[dtype](Int64(other_count)) / Scalar[dtype](
        Int64(count + other_count)
    )
    var deviation = other_mean - mean
    mean += deviation * share
    squares += other_squares + deviation * deviation * (
        Scalar[dtype](Int64(count)) * share
    )


@inline(.always)
def _block_moments[
    dtype: DType
](x: Data[dtype], runs: Int, stride: Int, length: Int) -> Tuple[
    Scalar[compute_type[dtype]()], Scalar[compute_type[dtype]()]
]:
    """Mean and squared deviations of `runs` contiguous runs."""
    comptime compute = compute_type[dtype]()
    var sum = Scalar[compute](0)
    for r in range(runs):
        var row = RowView[across=0](x.unsafe_offset(r * stride), 1)

        def value[w: Int](i: Int) {imm} -> SIMD[compute, w]:
            return row.load[compute, w](i)

        sum += row_sum[0, compute](length, value)[0]
    var mean = sum / Scalar[compute](Int64(runs * length))
    var squares = Scalar[compute](0)
    for r in range(runs):
        var row = RowView[across=0](x.unsafe_offset(r * stride), 1)

        def square[w: Int](i: Int) {imm} -> SIMD[compute, w]:
            var deviation = row.load[compute, w](i) - mean
            return deviation * deviation

        squares += row_sum[0, compute](length, square)[0]
    return mean, squares


def _part_moments[
    dtype: DType
](x: Data[dtype], runs: Int, stride: Int, length: Int) -> Tuple[
    Scalar[compute_type[dtype]()], Scalar[compute_type[dtype]()]
]:
    """Mean and squared deviations of runs of any number and length."""
    comptime compute = compute_type[dtype]()
    var mean = Scalar[compute](0)
    var squares = Scalar[compute](0)
    var count = 0
    var piece = min(max(length, 1), BLOCK_ELEMENTS)
    var together = max(BLOCK_ELEMENTS // piece, 1)
    if piece < length:
        together = 1
    for r in range(0, runs, together):
        for start in range(0, length, piece):
            var taken = min(together, runs - r)
            var part = min(piece, length - start)
            var moments = _block_moments[dtype](
                x.unsafe_offset(r * stride + start), taken, stride, part
            )
            merge_moments(
                mean, squares, count, moments[0], moments[1], taken * part
            )
            count += taken * part
    return mean, squares


def _row_moments[
    dtype: DType
](
    x: Data[dtype],
    rows: Int,
    stride: Int,
    channels: Int,
    mean: Data[compute_type[dtype]()],
    squares: Data[compute_type[dtype]()],
):
    """Moments of all channels over rows of neighbouring channels."""
    comptime compute = compute_type[dtype]()
    for start in range(0, rows, BLOCK_ROWS):
        var count = min(BLOCK_ROWS, rows - start)
        var block = x.unsafe_offset(start * stride)

        def columns[w: Int](c: Int) {imm}:
            var sum = SIMD[compute, w](0)
            for r in range(count):
                sum += block.unsafe_load[width=w](r * stride + c).cast[
                    compute
                ]()
            var block_mean = sum / Scalar[compute](Int64(count))
            var block_squares = SIMD[compute, w](0)
            for r in range(count):
                var deviation = (
                    block.unsafe_load[width=w](r * stride + c).cast[compute]()
                    - block_mean
                )
                block_squares += deviation * deviation
            var m = SIMD[compute, w](0)
            var s = SIMD[compute, w](0)
            if start > 0:
                m = mean.unsafe_load[width=w](c)
                s = squares.unsafe_load[width=w](c)
            merge_moments(m, s, start, block_mean, block_squares, count)
            mean.unsafe_store(c, m)
            squares.unsafe_store(c, s)

        row_each[0, compute](channels, columns)


def _part_sums[
    dtype: DType
](
    x: Data[dtype],
    dy: Data[dtype],
    center: Scalar[compute_type[dtype]()],
    length: Int,
) -> Tuple[Scalar[compute_type[dtype]()], Scalar[compute_type[dtype]()]]:
    """The sums of dy (x - center) and of dy over a run."""
    comptime compute = compute_type[dtype]()
    var a = RowView[across=0](x, 1)
    var b = RowView[across=0](dy, 1)

    def product[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        return b.load[compute, w](i) * (a.load[compute, w](i) - center)

    def gradient[w: Int](i: Int) {imm} -> SIMD[compute, w]:
        return b.load[compute, w](i)

    var dot = Scalar[compute](0)
    var sum = Scalar[compute](0)
    for start in range(0, length, BLOCK_ELEMENTS):
        var count = min(BLOCK_ELEMENTS, length - start)

        def product_here[w: Int](i: Int) {imm} -> SIMD[compute, w]:
            return product[w](start + i)

        def gradient_here[w: Int](i: Int) {imm} -> SIMD[compute, w]:
            return gradient[w](start + i)

        dot += row_sum[0, compute](count, product_here)[0]
        sum += row_sum[0, compute](count, gradient_here)[0]
    return dot, sum


def _row_sums[
    dtype: DType
](
    x: Data[dtype],
    dy: Data[dtype],
    center: Data[compute_type[dtype]()],
    rows: Int,
    x_stride: Int,
    dy_stride: Int,
    channels: Int,
    dot: Data[compute_type[dtype]()],
    sum: Data[compute_type[dtype]()],
):
    """The sums of all channels over rows of neighbouring channels."""
    comptime compute = compute_type[dtype]()
    for start in range(0, rows, BLOCK_ROWS):
        var end = min(start + BLOCK_ROWS, rows)

        def columns[w: Int](c: Int) {imm}:
            var mean = center.unsafe_load[width=w](c)
            var products = SIMD[compute, w](0)
            var gradients = SIMD[compute, w](0)
            for r in range(start, end):
                var g = dy.unsafe_load[width=w](r * dy_stride + c).cast[
                    compute
                ]()
                products += g * (
                    x.unsafe_load[width=w](r * x_stride + c).cast[compute]()
                    - mean
                )
                gradients += g
            if start > 0:
                products += dot.unsafe_load[width=w](c)
                gradients += sum.unsafe_load[width=w](c)
            dot.unsafe_store(c, products)
            sum.unsafe_store(c, gradients)

        row_each[0, compute](channels, columns)


@inline(.always)
def _gpu_total[dtype: DType](value: Scalar[dtype], lanes: Int) -> Scalar[dtype]:
    """The sum over the threads that share a channel, `lanes` apart, for all of them.
    """
    var shared = stack_allocation[
        GPU_BLOCK, Scalar[dtype], address_space=AddressSpace.SHARED
    ]()
    var thread = Int(thread_idx.x)
    shared.unsafe_store(thread, value)
    barrier()
    var half = GPU_BLOCK // 2
    while half >= lanes:
        if thread < half:
            shared.unsafe_store(
                thread,
                shared.unsafe_load(thread) + shared.unsafe_load(thread + half),
            )
        barrier()
        half //= 2
    var total = shared.unsafe_load(thread % lanes)
    barrier()
    return total


def _statistics_block[
    dtype: DType, operands: Int
](
    first: Data[compute_type[dtype]()],
    second: Data[compute_type[dtype]()],
    x: Data[dtype],
    dy: Data[dtype],
    center: Data[compute_type[dtype]()],
    center_stride: Int64,
    layout: Channels[operands],
):
    """One part per block row: moments of the forward pass, sums of the backward pass.
    """
    comptime compute = compute_type[dtype]()
    var lanes = 1 if layout.along != 0 else GPU_CHANNELS
    var channel = Int(block_idx.x) * lanes + Int(thread_idx.x) % lanes
    var lane = Int(thread_idx.x) // lanes
    var step = GPU_BLOCK // lanes
    var part = Int(block_idx.y)
    while part < Int(layout.parts):
        var covered = layout.range_of(part)
        var count = covered[1] * covered[3]
        if channel >= Int(layout.channels):
            count = 0
        var place = part * Int(layout.channels) + channel

        @inline(.always)
        def offset(operand: Int, i: Int) {imm} -> Int:
            var sample, position = divmod(i, covered[3])
            return layout.offset(
                operand, covered[0] + sample, channel, covered[2] + position
            )

        var a = Scalar[compute](0)
        var b = Scalar[compute](0)
        comptime if operands == 2:
            for i in range(lane, count, step):
                a += x.unsafe_load(offset(X, i)).cast[compute]()
            a = _gpu_total(a, lanes) / Scalar[compute](Int64(max(count, 1)))
            for i in range(lane, count, step):
                var deviation = x.unsafe_load(offset(X, i)).cast[compute]() - a
                b += deviation * deviation
        else:
            for i in range(lane, count, step):
                var sample = covered[0] + i // covered[3]
                var mean = center.unsafe_load(
                    sample * Int(center_stride) + channel
                )
                var g = dy.unsafe_load(offset(DY, i)).cast[compute]()
                a += g * (x.unsafe_load(offset(X, i)).cast[compute]() - mean)
                b += g
            a = _gpu_total(a, lanes)
        b = _gpu_total(b, lanes)
        if lane == 0 and channel < Int(layout.channels):
            first.unsafe_store(place, a)
            second.unsafe_store(place, b)
        part += Int(grid_dim.y)


def statistics[
    dtype: DType, operands: Int
](
    call: KernelCall,
    layout: Channels[operands],
    x: Data[dtype],
    dy: Data[dtype],
    center: Data[compute_type[dtype]()],
    center_stride: Int,
    first: Data[compute_type[dtype]()],
    second: Data[compute_type[dtype]()],
) raises:
    """Statistics of every part of every channel: with two operands mean and squared deviations of x, with three the sums of
    dy (x - center) and of dy.

    Parameters:
        dtype: The element type.
        operands: 2 or 3.

    Args:
        call: The call.
        layout: The tensors, cut into parts.
        x: The normalized tensor.
        dy: The gradient; not read with two operands.
        center: The mean of each channel; not read with two operands.
        center_stride: The distance between the means of two samples, 0 where all have the same.
        first: Where the first statistic goes, [parts, channels].
        second: Where the second one goes.
    """
    var channels = Int(layout.channels)
    var parts = Int(layout.parts)
    if channels * parts == 0:
        return
    comptime if has_accelerator():
        var lanes = 1 if layout.along != 0 else GPU_CHANNELS
        gpu_context(call).enqueue_function[_statistics_block[dtype, operands]](
            first,
            second,
            x,
            dy,
            center,
            Int64(center_stride),
            layout,
            grid_dim=(ceil_div(channels, lanes), min(parts, 32768)),
            block_dim=GPU_BLOCK,
        )
    else:
        var along = layout.along != 0
        var units = parts * channels if along else parts
        var elements = Int(layout.batch * layout.positions) * channels

        def some_units(start: Int, end: Int) {imm}:
            for unit in range(start, end):
                var part = unit
                var channel = 0
                if along:
                    part, channel = divmod(unit, channels)
                var covered = layout.range_of(part)
                var place = part * channels + channel
                var from_x = x.unsafe_offset(
                    layout.offset(X, covered[0], channel, covered[2])
                )
                comptime if operands == 2:
                    if along:
                        var moments = _part_moments[dtype](
                            from_x,
                            covered[1],
                            Int(layout.strides[3 * X]),
                            covered[3],
                        )
                        first.unsafe_store(place, moments[0])
                        second.unsafe_store(place, moments[1])
                    else:
                        _row_moments[dtype](
                            from_x,
                            covered[3],
                            Int(layout.strides[3 * X + 2]),
                            channels,
                            first.unsafe_offset(place),
                            second.unsafe_offset(place),
                        )
                else:
                    var from_dy = dy.unsafe_offset(
                        layout.offset(DY, covered[0], channel, covered[2])
                    )
                    var mean = center.unsafe_offset(
                        covered[0] * center_stride + channel
                    )
                    if along:
                        var dot = Scalar[compute_type[dtype]()](0)
                        var sum = Scalar[compute_type[dtype]()](0)
                        for r in range(covered[1]):
                            var sums = _part_sums[dtype](
                                from_x.unsafe_offset(
                                    r * Int(layout.strides[3 * X])
                                ),
                                from_dy.unsafe_offset(
                                    r * Int(layout.strides[3 * DY])
                                ),
                                mean.unsafe_load(r * center_stride),
                                covered[3],
                            )
                            dot += sums[0]
                            sum += sums[1]
                        first.unsafe_store(place, dot)
                        second.unsafe_store(place, sum)
                    else:
                        _row_sums[dtype](
                            from_x,
                            from_dy,
                            mean,
                            covered[3],
                            Int(layout.strides[3 * X + 2]),
                            Int(layout.strides[3 * DY + 2]),
                            channels,
                            first.unsafe_offset(place),
                            second.unsafe_offset(place),
                        )

        parallel_ranges(
            call, units, GRAIN * units // max(elements, 1), some_units
        )
