"""Rectangles of targets and the part of the source that they read, copied channels last with zeros around it.

Every tap of a target then lies at the same distance from its first one: a product reads sources where they are, once
for each tap, and no matrix of all targets' sources ("im2col") exists.
"""

from std.memory import bitcast
from std.sys.info import size_of
from std.sys.intrinsics import masked_store

from mojo_kernels.abi import Data
from mojo_kernels.convolution.geometry import Gather, Position
from mojo_kernels.convolution.packing import clear_run, copy_run
from mojo_kernels.matmul.direct import load_some
from mojo_kernels.matmul.matrix import ceil_div, first_lanes
from mojo_kernels.matmul.tile import TileFormat
from mojo_kernels.transposition import transpose_square

comptime TARGETS = 512
"""Targets of a region at most."""
comptime COPY_BYTES = 1 << 18
"""About the size of a region's sources, for the second-level cache."""
comptime FEW = 96
"""Targets of a region that is not cut any more."""


@fieldwise_init
struct Region(TrivialRegisterPassable):
    """Targets of one image and plane: a rectangle."""

    var first: Position
    """The first target."""
    var height: Int
    """Rows of targets."""
    var width: Int
    """Targets of a row."""


struct Regions[dtype: DType, pairs: Bool = False](TrivialRegisterPassable):
    """How targets are cut into regions, and how their sources lie in memory: [z taps][rows][positions][channels].

    Parameters:
        dtype: The element type.
        pairs: Whether elements are pairs of two images, for products whose depth is the images.
    """

    comptime Format = TileFormat[Self.dtype]
    """The register tile's format."""

    var gather: Gather[Self.dtype]
    """The problem."""
    var height: Int
    """Rows of targets of a region."""
    var width: Int
    """Targets of a region's row."""
    var in_place: Bool
    """Whether sources are read where they are."""
    var unfolded: Bool
    """Whether a target has a position of its own, with the taps along its row: where few channels would be padded to
    whole groups."""
    var channels: Int
    """Elements of a position: channels rounded up to whole groups of the tile, or pairs of each."""
    var position: Int
    """Elements between positions."""
    var row: Int
    """Elements between rows."""
    var plane: Int
    """Elements between planes."""
    var size: Int
    """Elements of a copy."""

    def __init__(
        out self,
        gather: Gather[Self.dtype],
        in_place: Bool,
        height: Int,
        width: Int,
    ):
        """Cuts targets into rectangles of a size.

        Args:
            gather: The problem.
            in_place: Whether sources are read where they are, for which `is_readable`.
            height: Rows of targets of a region.
            width: Targets of a region's row.
        """
        comptime group = Self.Format.GROUP
        comptime bytes = size_of[Scalar[Self.Format.PACKED]]()
        self.gather = gather
        self.in_place = in_place
        self.height = height
        self.width = width
        self.channels = gather.channels * group
        comptime if not Self.pairs:
            self.channels = ceil_div(gather.channels, group) * group
        self.unfolded = (
            self.channels != gather.channels * (group if Self.pairs else 1)
            and gather.channels < self.Format.WIDTH
            and gather.axes[2].taps > 1
        )
        if self.unfolded:
            self.channels = (
                ceil_div(gather.channels * gather.axes[2].taps, group) * group
            )
        if in_place:
            self.position = gather.axes[2].source_stride
            self.row = gather.axes[1].source_stride
            self.plane = gather.axes[0].source_stride
            self.size = 0
        else:
            self.position = self.channels
            # Positions at a distance of a power of two would share a few sets of the cache.
            self.position += spread[Self.Format.PACKED](self.channels)
            self.row = self.position * (
                width if self.unfolded else _reach(gather, 2, width)
            )
            self.plane = self.row * _reach(gather, 1, height)
            self.size = self.plane * max(gather.axes[0].taps, 1)
            if self.unfolded:
                self.size += _reach(gather, 2, width) * gather.channels + 64

    @staticmethod
    def chosen(gather: Gather[Self.dtype], in_place: Bool) -> Self:
        """Regions as large as the cache allows.

        Args:
            gather: The problem.
            in_place: Whether sources are read where they are, for which `is_readable`.

        Returns:
            The regions.
        """
        var width = gather.axes[2].targets
        if width > TARGETS:
            var pieces = ceil_div(width, TARGETS - 48)
            width = ceil_div(ceil_div(width, pieces), 48) * 48
        var height = max(min(gather.axes[1].targets, TARGETS // width), 1)
        var regions = Self(gather, in_place, height, width)
        while (
            regions.size * size_of[Scalar[Self.Format.PACKED]]() > COPY_BYTES
            and regions.can_halve()
        ):
            regions = regions.halved()
        return Self(
            gather,
            in_place,
            ceil_div(gather.axes[1].targets, regions.bands()),
            regions.width,
        )

    def together(self) -> Int:
        """How many regions make a task whose sources fit the cache.

        Returns:
            More than one for small images.
        """
        var bytes = max(self.size * size_of[Scalar[Self.Format.PACKED]](), 1)
        return max(
            min(TARGETS // (self.height * self.width), COPY_BYTES // bytes), 1
        )

    def can_halve(self) -> Bool:
        """Whether regions may be cut further.

        Returns:
            False for few targets.
        """
        return self.height * self.width > FEW

    def halved(self) -> Self:
        """Regions of half the rows, or of half a row.

        Returns:
            The smaller regions.
        """
        var height = (self.height + 1) // 2
        var width = self.width if self.height > 1 else (self.width + 1) // 2
        return Self(self.gather, self.in_place, height, width)

    @inline(.always)
    def bands(self) -> Int:
        """How many regions lie below each other.

        Returns:
            The number of bands of a plane.
        """
        return ceil_div(self.gather.axes[1].targets, self.height)

    @inline(.always)
    def pieces(self) -> Int:
        """How many regions lie side by side.

        Returns:
            The number of pieces of a row.
        """
        return ceil_div(self.gather.axes[2].targets, self.width)

    @inline(.always)
    def count(self) -> Int:
        """The number of regions.

        Returns:
            Those of all images.
        """
        var images = self.gather.images
        comptime if Self.pairs:
            images = ceil_div(images, 2)
        return (
            images * self.gather.axes[0].targets * self.bands() * self.pieces()
        )

    @inline(.always)
    def region(self, index: Int) -> Region:
        """A region.

        Args:
            index: Its index, that of the piece the fastest.

        Returns:
            The rectangle.
        """
        var band_index, piece = divmod(index, self.pieces())
        var plane, band = divmod(band_index, self.bands())
        var image, z = divmod(plane, self.gather.axes[0].targets)
        var y = band * self.height
        var x = piece * self.width
        comptime if Self.pairs:
            image *= 2
        return Region(
            Position(image, z, y, x),
            min(self.height, self.gather.axes[1].targets - y),
            min(self.width, self.gather.axes[2].targets - x),
        )

    @inline(.always)
    def source_offset(self, region: Region) -> Int:
        """Where the sources of a region start, if they are read where they are.

        Args:
            region: The region.

        Returns:
            Elements from the first image's channel.
        """
        var gather = self.gather
        return (
            region.first.image * gather.source_image
            + gather.axes[0].source(region.first.z, 0)
            * gather.axes[0].source_stride
            + gather.axes[1].source(region.first.y, 0)
            * gather.axes[1].source_stride
            + gather.axes[2].source(region.first.x, 0)
            * gather.axes[2].source_stride
        )

    @inline(.always)
    def tap_offset(self, z: Int, y: Int, x: Int) -> Int:
        """How far a tap's source is from that of the first tap.

        Args:
            z: The tap along the first axis.
            y: The tap along the second axis.
            x: The tap along the third axis.

        Returns:
            Elements.
        """
        var planes = z * self.gather.axes[0].dilation if self.in_place else z
        return (
            planes * self.plane
            + y * self.gather.axes[1].dilation * self.row
            + x * self.gather.axes[2].dilation * self.position
        )

    @inline(.always)
    def target_step(self) -> Int:
        """How far the sources of neighbouring targets are from each other.

        Returns:
            Elements.
        """
        if self.unfolded:
            return self.position
        return self.gather.axes[2].step * self.position

    def is_whole(self) -> Bool:
        """Whether a region is a whole plane, of which parts are outside of the source.

        Returns:
            True for small images.
        """
        return (
            not self.in_place
            and self.height == self.gather.axes[1].targets
            and self.width == self.gather.axes[2].targets
        )

    def depth(self) -> Int:
        """How many products a target is the sum of, with those of padded channels.

        Returns:
            The sum over all runs.
        """
        if self.unfolded:
            return (
                self.gather.axes[0].taps
                * self.gather.axes[1].taps
                * self.channels
            )
        return self.gather.taps() * self.channels

    def run(self) -> Int:
        """How many neighbours along the depth lie side by side.

        Returns:
            Elements, of a tap or of a row of taps.
        """
        if self.merges_taps() and not self.unfolded:
            return self.channels * max(self.gather.axes[2].taps, 1)
        return self.channels

    def merges_taps(self) -> Bool:
        """Whether the taps of a row and their channels lie side by side.

        Returns:
            True if a row of taps is one run.
        """
        var inner = self.gather.axes[2]
        return (
            inner.taps <= 1
            or self.unfolded
            or inner.dilation * self.position == self.channels
        )

    def copy(
        self,
        region: Region,
        first: Int,
        channels: Int,
        memory: Data[Self.Format.PACKED],
    ):
        """Copies the sources of a region.

        Args:
            region: The region.
            first: The first channel to copy.
            channels: How many to copy.
            memory: The destination.
        """
        var gather = self.gather
        var x = gather.axes[2]
        var y = gather.axes[1]
        var second = 0
        comptime if Self.pairs:
            if region.first.image + 1 < gather.images:
                second = gather.source_image
        var source = gather.source.unsafe_offset(
            region.first.image * gather.source_image
            + first * gather.source_channel
        )
        var first_x = x.source(region.first.x, 0)
        var first_y = y.source(region.first.y, 0)
        var positions = _reach(gather, 2, region.width)
        var low = min(max(-first_x, 0), positions)
        var high = max(min(x.size - first_x, positions), low)
        for tz in range(gather.axes[0].taps):
            var z = gather.axes[0].source(region.first.z, tz)
            for row in range(_reach(gather, 1, region.height)):
                var target = memory.unsafe_offset(
                    tz * self.plane + row * self.row
                )
                if not (
                    gather.axes[0].contains(z) and y.contains(first_y + row)
                ):
                    clear_run(self.row, target)
                    continue
                if self.unfolded:
                    self._unfold(
                        source.unsafe_offset(
                            z * gather.axes[0].source_stride
                            + (first_y + row) * y.source_stride
                            + (first_x + low) * x.source_stride
                        ),
                        low,
                        high,
                        positions,
                        region.width,
                        memory.unsafe_offset(self.plane * gather.axes[0].taps),
                        target,
                    )
                    continue
                clear_run(low * self.position, target)
                copy_positions[Self.dtype, Self.pairs](
                    source.unsafe_offset(
                        z * gather.axes[0].source_stride
                        + (first_y + row) * y.source_stride
                        + (first_x + low) * x.source_stride
                    ),
                    x.source_stride,
                    gather.source_channel,
                    high - low,
                    channels,
                    channels if Self.pairs else self.channels,
                    second,
                    target.unsafe_offset(low * self.position),
                    self.position,
                )
                clear_run(
                    (positions - high) * self.position,
                    target.unsafe_offset(high * self.position),
                )

    def _unfold(
        self,
        source: Data[Self.dtype],
        low: Int,
        high: Int,
        positions: Int,
        targets: Int,
        line: Data[Self.Format.PACKED],
        memory: Data[Self.Format.PACKED],
    ):
        """Copies the taps of a row's targets, by way of a line of the row's positions, of which those from `low` to
        `high` exist.
        """
        var gather = self.gather
        var x = gather.axes[2]
        var channels = gather.channels
        clear_run(low * channels, line)
        copy_positions[Self.dtype, False](
            source,
            x.source_stride,
            gather.source_channel,
            high - low,
            channels,
            channels,
            0,
            line.unsafe_offset(low * channels),
            channels,
        )
        clear_run(
            (positions - high) * channels, line.unsafe_offset(high * channels)
        )
        var merged = x.dilation == 1
        var run = x.taps * channels if merged else channels
        for i in range(targets):
            var target = memory.unsafe_offset(i * self.position)
            var here = line.unsafe_offset(i * x.step * channels)
            for tap in range(1 if merged else x.taps):
                copy_run(
                    here.unsafe_offset(tap * x.dilation * channels),
                    1,
                    run,
                    target.unsafe_offset(tap * channels),
                )
            clear_run(
                self.channels - x.taps * channels,
                target.unsafe_offset(x.taps * channels),
            )


@inline(.always)
def _reach[dtype: DType](gather: Gather[dtype], axis: Int, targets: Int) -> Int:
    """How many source positions neighbouring targets span."""
    return (
        (targets - 1) * gather.axes[axis].step
        + max(gather.axes[axis].taps - 1, 0) * gather.axes[axis].dilation
        + 1
    )


def is_readable[dtype: DType](gather: Gather[dtype]) -> Bool:
    """Whether the tile can read sources where they are.

    Parameters:
        dtype: The element type.

    Args:
        gather: The problem.

    Returns:
        True if channels lie side by side in the type of packed panels and no tap is outside of the source.
    """
    comptime Format = TileFormat[dtype]
    comptime if dtype != Format.PACKED:
        return False
    if (
        gather.source_channel != 1
        or gather.channels % Format.GROUP != 0
        or gather.axes[2].source_stride * size_of[Scalar[dtype]]() % 2048 == 0
    ):
        return False
    return not has_padding(gather)


def has_padding[dtype: DType](gather: Gather[dtype]) -> Bool:
    """Whether some taps are outside of the source.

    Parameters:
        dtype: The element type.

    Args:
        gather: The problem.

    Returns:
        False if every tap of every target exists.
    """
    for d in range(3):
        var axis = gather.axes[d]
        if (
            axis.first < 0
            or axis.first + _reach(gather, d, axis.targets) > axis.size
        ):
            return True
    return False


@inline(.always)
def spread[packed: DType](count: Int) -> Int:
    """Elements to put between neighbours at a distance of a power of two, which would share a few sets of the cache.

    Parameters:
        packed: The element type.

    Args:
        count: The elements of a neighbour.

    Returns:
        None, or a cache line.
    """
    comptime bytes = size_of[Scalar[packed]]()
    return 64 // bytes if count * bytes % 2048 == 0 else 0


@inline(.never)
def copy_positions[
    dtype: DType, pairs: Bool
](
    source: Data[dtype],
    position_stride: Int,
    channel_stride: Int,
    count: Int,
    channels: Int,
    padded: Int,
    second: Int,
    target: Data[TileFormat[dtype].PACKED],
    target_stride: Int,
):
    """Copies neighbouring positions as [position][channel], converted, or as [position][channel][2].

    Parameters:
        dtype: The source's type.
        pairs: Whether to make pairs of two images.

    Args:
        source: The first channel of the first position.
        position_stride: Elements between source positions.
        channel_stride: Elements between source channels.
        count: The number of positions.
        channels: The number of channels.
        padded: The number of channels to write, zeros behind those that exist; less than a vector more.
        second: Elements from an image to the other of a pair; 0 if there is none.
        target: The destination.
        target_stride: Elements between positions of the destination.
    """
    comptime packed = TileFormat[dtype].PACKED
    comptime width = TileFormat[dtype].WIDTH
    comptime element = DType.uint32 if pairs else packed
    comptime size = 2 if pairs else 1
    comptime if not pairs:
        if channel_stride == 1 and (
            position_stride == channels and target_stride == channels
        ):
            copy_run(source, 1, count * channels, target)
            return

    @inline(.always)
    def load[
        whole: Bool
    ](offset: Int, lanes: Int) {imm} -> SIMD[element, width]:
        var here = source.unsafe_offset(offset)
        var first = load_some[dtype, packed, width, whole](here, lanes)
        comptime if pairs:
            var other = SIMD[packed, width](0)
            if second != 0:
                other = load_some[dtype, packed, width, whole](
                    here.unsafe_offset(second), lanes
                )
            return bitcast[element, width](first.interleave(other))
        else:
            return rebind[SIMD[element, width]](first)

    var there = Data[element](unsafe_from_address=Int(target))
    var stride = target_stride // size
    if channel_stride == 1:
        for i in range(count):
            for first in range(0, padded, width):
                var at = i * position_stride + first
                var line = there.unsafe_offset(i * stride + first)
                if first + width <= channels:
                    line.unsafe_store[width=width](0, load[True](at, width))
                else:
                    masked_store(
                        load[False](at, channels - first),
                        line,
                        first_lanes[width](padded - first),
                    )
        return
    if position_stride != 1:
        for i in range(count):
            for channel in range(padded):
                comptime for p in range(size):
                    var value = Scalar[packed](0)
                    if channel < channels and (p == 0 or second != 0):
                        value = source.unsafe_load(
                            i * position_stride
                            + channel * channel_stride
                            + p * second
                        ).cast[packed]()
                    target.unsafe_store(
                        i * target_stride + channel * size + p, value
                    )
        return
    for first in range(0, padded, width):
        var lanes = min(channels - first, width)
        var written = min(padded - first, width)
        for start in range(0, count, width):
            var at = first * channel_stride + start
            var line = there.unsafe_offset(start * stride + first)
            var positions = min(count - start, width)
            var square = Array[SIMD[element, width], width](
                fill=SIMD[element, width](0)
            )
            if positions == width:
                comptime for i in range(width):
                    if i < lanes:
                        square[i] = load[True](at + i * channel_stride, width)
            else:
                comptime for i in range(width):
                    if i < lanes:
                        square[i] = load[False](
                            at + i * channel_stride, positions
                        )
            transpose_square(square)
            if written == width:
                comptime for i in range(width):
                    if i < positions:
                        line.unsafe_store[width=width](i * stride, square[i])
            else:
                var mask = first_lanes[width](written)
                comptime for i in range(width):
                    if i < positions:
                        masked_store(
                            square[i], line.unsafe_offset(i * stride), mask
                        )
