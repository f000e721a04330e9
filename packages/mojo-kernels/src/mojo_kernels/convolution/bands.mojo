"""Planar gathers with a channel or two per group on CPUs, and the gradient of their weight.

A band of rows of the source is copied with zeros around it, converted, and split by the remainders of positions by the
stride, so that every tap of neighbouring targets is one plain vector.
"""

from std.atomic import Atomic
from std.sys.info import size_of
from std.sys.intrinsics import masked_store

from mojo_kernels.math import narrow
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.convolution.geometry import Gather, Position
from mojo_kernels.convolution.packing import clear_run, copy_run
from mojo_kernels.matmul.direct import multiply_add
from mojo_kernels.matmul.matrix import ceil_div, first_lanes
from mojo_kernels.matmul.packed import allocate, release, run
from mojo_kernels.matmul.tile import TileFormat

comptime BAND_BYTES = 1 << 16
"""About the size of a band, for the second-level cache."""
comptime PARALLEL = 1 << 16
"""Multiplications that are worth more than one thread."""
comptime VECTORS = 4
"""Vectors of neighbouring targets that are summed together."""


@fieldwise_init
struct _Bands[dtype: DType](TrivialRegisterPassable):
    """How sources and targets are cut into bands and how a band lies in memory.

    Sources: [channels][z][rows][remainders][row]. Targets: [results][z][rows][target row].
    """

    comptime ACCUMULATE = TileFormat[Self.dtype].ACCUMULATE
    comptime WIDTH = TileFormat[Self.dtype].WIDTH

    var gather: Gather[Self.dtype]
    var height: Int
    """Rows of targets of a band."""
    var count: Int
    """Bands of an image."""
    var rows: Int
    """Rows of sources that a band has room for."""
    var row: Int
    """Elements of a row of sources, per remainder."""
    var target_row: Int
    """Elements of a row of targets: whole vectors."""
    var remainders: Int
    var source_size: Int
    """Elements of a band of sources."""
    var target_size: Int
    """Elements of a band of targets."""

    def __init__(out self, gather: Gather[Self.dtype]):
        """Chooses the height of bands."""
        self.gather = gather
        var x = gather.axes[2]
        var y = gather.axes[1]
        self.remainders = min(x.step, max((x.taps - 1) * x.dilation, 0) + 1)
        self.target_row = ceil_div(x.targets, Self.WIDTH) * Self.WIDTH
        self.row = (
            self.target_row
            + max((x.taps - 1) * x.dilation, 0) // x.step
            + Self.WIDTH
        )
        var planes = gather.axes[0].size * gather.channels
        var reach = max((y.taps - 1) * y.dilation, 0) + 1
        var limit = BAND_BYTES // (
            max(planes * self.remainders * self.row, 1)
            * size_of[Scalar[Self.ACCUMULATE]]()
        )
        self.height = min(max((limit - reach) // y.step + 1, 1), y.targets)
        self.count = ceil_div(y.targets, self.height)
        self.height = ceil_div(y.targets, self.count)
        self.rows = min((self.height - 1) * y.step + reach, y.size)
        self.source_size = planes * self.rows * self.remainders * self.row
        self.target_size = (
            gather.results
            * gather.axes[0].targets
            * self.height
            * self.target_row
        )

    @inline(.always)
    def first_row(self, band: Int) -> Int:
        """The first row of sources that a band has."""
        return max(self.gather.axes[1].source(band * self.height, 0), 0)

    @inline(.always)
    def source_row(self, channel: Int, z: Int, y: Int) -> Int:
        """Where a row of sources lies, `y` counted from the band's first."""
        return (
            ((channel * self.gather.axes[0].size + z) * self.rows + y)
            * self.remainders
            * self.row
        )

    @inline(.always)
    def tap_offset(self, tap: Int) -> Int:
        """Where the first target's source for a tap lies in a row."""
        var x = self.gather.axes[2]
        var index, remainder = divmod(tap * x.dilation, x.step)
        return remainder * self.row + index

    def load_sources(
        self, image: Int, group: Int, band: Int, memory: Data[Self.ACCUMULATE]
    ):
        """Copies a band of sources."""
        var gather = self.gather
        var x = gather.axes[2]
        var y = gather.axes[1]
        var first = self.first_row(band)
        var last_target = min((band + 1) * self.height, y.targets) - 1
        var end = min(y.source(last_target, max(y.taps - 1, 0)) + 1, y.size)
        for remainder in range(self.remainders):
            # Element i is position start + i * step.
            var start = x.first + remainder
            var low = min(ceil_div(max(-start, 0), x.step), self.row)
            var high = min(ceil_div(max(x.size - start, 0), x.step), self.row)
            high = max(low, high)
            for channel in range(gather.channels):
                for z in range(gather.axes[0].size):
                    var source = gather.source.unsafe_offset(
                        image * gather.source_image
                        + (group * gather.channels + channel)
                        * gather.source_channel
                        + z * gather.axes[0].source_stride
                        + (start + low * x.step) * x.source_stride
                    )
                    for row in range(first, end):
                        var line = memory.unsafe_offset(
                            self.source_row(channel, z, row - first)
                            + remainder * self.row
                        )
                        clear_run(low, line)
                        copy_run(
                            source.unsafe_offset(row * y.source_stride),
                            x.step * x.source_stride,
                            high - low,
                            line.unsafe_offset(low),
                        )
                        clear_run(self.row - high, line.unsafe_offset(high))

    @inline(.always)
    def weight_offset(self, group: Int, result: Int, channel: Int) -> Int:
        """Where the weights of a pair of channels start."""
        return (
            group * self.gather.weight_group
            + result * self.gather.weight_result
            + channel * self.gather.weight_channel
        )


def _tap_offsets[
    dtype: DType
](bands: _Bands[dtype]) raises -> Data[DType.int64]:
    """`tap_offset` of every tap along x."""
    var taps = bands.gather.axes[2].taps
    var offsets = allocate[DType.int64](max(taps, 1))
    for tap in range(taps):
        offsets.unsafe_store(tap, Int64(bands.tap_offset(tap)))
    return offsets


def gather_bands[dtype: DType](call: KernelCall, gather: Gather[dtype]) raises:
    """Computes a gather.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads.
        gather: The problem, with few channels per group.

    Raises:
        If there is no memory for the workspace.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var bands = _Bands(gather)
    var offsets = _tap_offsets(bands)
    var tasks = gather.images * gather.groups * bands.count
    var work = (
        gather.images
        * gather.groups
        * gather.pixels()
        * gather.results
        * max(gather.depth(), 1)
    )
    var workers = min(Int(call.threads) if work >= PARALLEL else 1, tasks)
    var memory = allocate[accumulate](workers * bands.source_size + width)
    var next = Atomic[Int64](0)

    def work_on(worker: Int) {imm, mut next}:
        var sources = memory.unsafe_offset(worker * bands.source_size)
        var y_axis = gather.axes[1]
        var x_axis = gather.axes[2]
        while True:
            var task = Int(next.fetch_add(1))
            if task >= tasks:
                return
            var plane, band = divmod(task, bands.count)
            var image, group = divmod(plane, gather.groups)
            bands.load_sources(image, group, band, sources)
            var first = bands.first_row(band)
            for result in range(gather.results):
                var channel = group * gather.results + result
                var bias = Scalar[accumulate](0)
                if gather.has_bias:
                    bias = gather.bias.unsafe_load(
                        channel * gather.bias_stride
                    ).cast[accumulate]()
                for z in range(gather.axes[0].targets):
                    for y in range(
                        band * bands.height,
                        min((band + 1) * bands.height, y_axis.targets),
                    ):
                        var out = gather.out.unsafe_offset(
                            gather.out_offset(Position(image, z, y, 0))
                            + channel * gather.out_channel
                        )
                        for x in range(0, x_axis.targets, VECTORS * width):
                            var vectors = min(
                                ceil_div(x_axis.targets - x, width), VECTORS
                            )

                            @inline(.always)
                            def sum_targets[count: Int]() {imm}:
                                var sums = Array[
                                    SIMD[accumulate, width], count
                                ](fill=SIMD[accumulate, width](bias))
                                for c in range(gather.channels):
                                    var weight = gather.weight.unsafe_offset(
                                        bands.weight_offset(group, result, c)
                                    )
                                    for tz in range(gather.axes[0].taps):
                                        var sz = gather.axes[0].source(z, tz)
                                        if not gather.axes[0].contains(sz):
                                            continue
                                        for ty in range(y_axis.taps):
                                            var sy = y_axis.source(y, ty)
                                            if not y_axis.contains(sy):
                                                continue
                                            var row = sources.unsafe_offset(
                                                bands.source_row(
                                                    c, sz, sy - first
                                                )
                                                + x
                                            )
                                            var weights = weight.unsafe_offset(
                                                tz
                                                * gather.axes[0].weight_stride
                                                + ty * y_axis.weight_stride
                                            )
                                            for tx in range(x_axis.taps):
                                                var factor = SIMD[
                                                    accumulate, width
                                                ](
                                                    weights.unsafe_load(
                                                        tx
                                                        * x_axis.weight_stride
                                                    ).cast[accumulate]()
                                                )
                                                var here = row.unsafe_offset(
                                                    Int(offsets.unsafe_load(tx))
                                                )
                                                comptime for v in range(count):
                                                    sums[v] = multiply_add(
                                                        here.unsafe_load[
                                                            width=width
                                                        ](v * width),
                                                        factor,
                                                        sums[v],
                                                    )
                                comptime for v in range(count):
                                    _store_targets(
                                        out.unsafe_offset(
                                            (x + v * width) * x_axis.out_stride
                                        ),
                                        x_axis.out_stride,
                                        x_axis.targets - x - v * width,
                                        sums[v],
                                    )

                            comptime for count in range(1, VECTORS + 1):
                                if vectors == count:
                                    sum_targets[count]()

    run(call, workers > 1, work_on, workers)
    release(memory)
    release(offsets)


@inline(.always)
def _store_targets[
    dtype: DType, accumulate: DType, width: Int
](targets: Data[dtype], stride: Int, count: Int, sums: SIMD[accumulate, width]):
    """Writes up to `width` neighbouring targets."""
    if stride == 1 and count >= width:
        targets.unsafe_store[width=width](0, narrow[dtype](sums))
    elif stride == 1:
        masked_store(narrow[dtype](sums), targets, first_lanes[width](count))
    else:
        for lane in range(min(width, count)):
            targets.unsafe_store(lane * stride, narrow[dtype](sums[lane]))


def weight_gradient_bands[
    dtype: DType
](call: KernelCall, gather: Gather[dtype]) raises:
    """The gradient of a gather's weight; a task owns the weights of a group.

    Parameters:
        dtype: The element type.

    Args:
        call: Gives the threads.
        gather: The problem, with few channels per group; its targets are the gradient of the outputs.

    Raises:
        If there is no memory for the workspace.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var bands = _Bands(gather)
    var offsets = _tap_offsets(bands)
    var taps = gather.taps()
    var pairs = gather.results * gather.channels
    var work = gather.images * gather.groups * gather.pixels() * pairs * taps
    var workers = min(
        Int(call.threads) if work >= PARALLEL else 1, gather.groups
    )
    # A worker's band of sources, band of targets, and a vector of sums for each weight.
    var size = bands.source_size + bands.target_size + pairs * taps * width
    var memory = allocate[accumulate](workers * size + width)
    var next = Atomic[Int64](0)

    def work_on(worker: Int) {imm, mut next}:
        var sources = memory.unsafe_offset(worker * size)
        var targets = sources.unsafe_offset(bands.source_size)
        var sums = targets.unsafe_offset(bands.target_size)
        while True:
            var group = Int(next.fetch_add(1))
            if group >= gather.groups:
                return
            clear_run(pairs * taps * width, sums)
            for image in range(gather.images):
                for band in range(bands.count):
                    bands.load_sources(image, group, band, sources)
                    _load_targets(bands, image, group, band, targets)
                    for result in range(gather.results):
                        for channel in range(gather.channels):
                            _add_taps(
                                bands,
                                band,
                                channel,
                                result,
                                offsets,
                                sources,
                                targets,
                                sums.unsafe_offset(
                                    (result * gather.channels + channel)
                                    * taps
                                    * width
                                ),
                            )
            for index in range(pairs * taps):
                var pair, tap = divmod(index, taps)
                var result, channel = divmod(pair, gather.channels)
                var row, tx = divmod(tap, gather.axes[2].taps)
                var tz, ty = divmod(row, gather.axes[1].taps)
                gather.weight.unsafe_store(
                    bands.weight_offset(group, result, channel)
                    + tz * gather.axes[0].weight_stride
                    + ty * gather.axes[1].weight_stride
                    + tx * gather.axes[2].weight_stride,
                    narrow[dtype](
                        sums.unsafe_load[width=width](
                            index * width
                        ).reduce_add()
                    ),
                )

    run(call, workers > 1, work_on, workers)
    release(memory)
    release(offsets)


def _load_targets[
    dtype: DType
](
    bands: _Bands[dtype],
    image: Int,
    group: Int,
    band: Int,
    memory: Data[TileFormat[dtype].ACCUMULATE],
):
    """Copies a band of targets, zeros behind each row."""
    var gather = bands.gather
    var x = gather.axes[2]
    for result in range(gather.results):
        for z in range(gather.axes[0].targets):
            for row in range(bands.height):
                var y = band * bands.height + row
                if y >= gather.axes[1].targets:
                    break
                var line = memory.unsafe_offset(
                    ((result * gather.axes[0].targets + z) * bands.height + row)
                    * bands.target_row
                )
                copy_run(
                    gather.out.unsafe_offset(
                        gather.out_offset(Position(image, z, y, 0))
                        + (group * gather.results + result) * gather.out_channel
                    ),
                    x.out_stride,
                    x.targets,
                    line,
                )
                clear_run(
                    bands.target_row - x.targets, line.unsafe_offset(x.targets)
                )


def _add_taps[
    dtype: DType
](
    bands: _Bands[dtype],
    band: Int,
    channel: Int,
    result: Int,
    offsets: Data[DType.int64],
    sources: Data[TileFormat[dtype].ACCUMULATE],
    targets: Data[TileFormat[dtype].ACCUMULATE],
    sums: Data[TileFormat[dtype].ACCUMULATE],
):
    """Adds what a band contributes to the weights of a pair of channels: [taps][width] sums.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    comptime width = TileFormat[dtype].WIDTH
    var gather = bands.gather
    var first = bands.first_row(band)
    var end = min((band + 1) * bands.height, gather.axes[1].targets)
    var tap = 0
    for tz in range(gather.axes[0].taps):
        for ty in range(gather.axes[1].taps):
            for tx in range(gather.axes[2].taps):
                var total = Array[SIMD[accumulate, width], VECTORS](
                    fill=SIMD[accumulate, width](0)
                )
                total[0] = sums.unsafe_load[width=width](tap * width)
                var offset = Int(offsets.unsafe_load(tx))
                for z in range(gather.axes[0].targets):
                    var sz = gather.axes[0].source(z, tz)
                    if not gather.axes[0].contains(sz):
                        continue
                    for y in range(band * bands.height, end):
                        var sy = gather.axes[1].source(y, ty)
                        if not gather.axes[1].contains(sy):
                            continue
                        var right = sources.unsafe_offset(
                            bands.source_row(channel, sz, sy - first) + offset
                        )
                        var left = targets.unsafe_offset(
                            (
                                (result * gather.axes[0].targets + z)
                                * bands.height
                                + y
                                - band * bands.height
                            )
                            * bands.target_row
                        )
                        var x = 0
                        while x + VECTORS * width <= bands.target_row:
                            comptime for v in range(VECTORS):
                                total[v] = multiply_add(
                                    left.unsafe_load[width=width](
                                        x + v * width
                                    ),
                                    right.unsafe_load[width=width](
                                        x + v * width
                                    ),
                                    total[v],
                                )
                            x += VECTORS * width
                        comptime for v in range(VECTORS - 1):
                            if x + v * width < bands.target_row:
                                total[v] = multiply_add(
                                    left.unsafe_load[width=width](
                                        x + v * width
                                    ),
                                    right.unsafe_load[width=width](
                                        x + v * width
                                    ),
                                    total[v],
                                )
                comptime for v in range(1, VECTORS):
                    total[0] += total[v]
                sums.unsafe_store[width=width](tap * width, total[0])
                tap += 1
