"""The gradient of a convolution's weight on CPUs: implicit matrix products whose depth is the targets of all images.

Tasks own blocks of the result. Where these are too few, the depth is cut into as many parts as there are threads to feed,
whose sums are added in a fixed order.
"""

from std.atomic import Atomic
from std.sys.info import has_accelerator, size_of

from mojo_kernels.abi import ABSENT, Data, KernelCall, Tensor
from mojo_kernels.convolution.direct import is_direct
from mojo_kernels.convolution.direct_weight import weight_gradient_directly
from mojo_kernels.convolution.geometry import Convolution, Gather
from mojo_kernels.convolution.gpu_weight import weight_gradient_on_gpu
from mojo_kernels.convolution.line_weight import (
    has_lines,
    weight_gradient_lines,
)
from mojo_kernels.convolution.packing import (
    Counts,
    Panels,
    Segment,
    Segments,
    clear_run,
    find_segments,
    segment_limit,
)
from mojo_kernels.convolution.weight_packing import (
    find_offsets,
    pack_source_line,
    pack_sources,
    pack_targets,
)
from mojo_kernels.convolution.products import add_panels, aligned, bytes_at
from mojo_kernels.matmul.matrix import ceil_div
from mojo_kernels.matmul.packed import PARALLEL_WORK, allocate, release, run
from mojo_kernels.matmul.tile import TileFormat

comptime RESULTS = 240
"""Target channels that a task packs at a time: a multiple of the tile's rows; panels round it up."""
comptime SUMS = 1 << 16
"""Sums of a task, which stay in the second-level cache."""


def weight_gradient[dtype: DType](call: KernelCall) raises:
    """The gradient of a convolution's weight.

    Tensors: grad_weight [c, d / groups, ...], grad_output [n, c, ...], input [n, d, ...], any strides. Those of a
    transposed convolution are given with grad_output and input exchanged. Scalars: groups, stride, padding, dilation
    (int[]).

    Parameters:
        dtype: The element type of all.

    Args:
        call: The call.

    Raises:
        ValueError: The sizes do not fit together.
    """
    var weight = call.tensor(0)
    var convolution = Convolution[dtype](
        call, call.tensor(2), weight, call.tensor(1), 0
    )
    var none = weight
    none.flags = Int16(ABSENT)
    var gather = Gather[dtype](convolution, none)
    if weight.numel == 0:
        return
    gather.merge_axes()
    comptime if has_accelerator():
        weight_gradient_on_gpu(call, gather)
    else:
        if is_direct(gather):
            weight_gradient_directly(call, gather)
        else:
            if gather.is_channels_last():
                gather.merge_groups(TileFormat[dtype].ROWS)
            var parallel = (
                gather.images
                * gather.pixels()
                * gather.groups
                * gather.results
                * gather.depth()
                >= PARALLEL_WORK // 2
            )
            if gather.pixels() > 0 and has_lines(gather):
                weight_gradient_lines(call, gather, parallel)
            else:
                _weight_gradient_on_cpu(call, gather, parallel)


@fieldwise_init
struct _Cut(TrivialRegisterPassable):
    """How the work is cut."""

    var lines: Int
    """Channels times taps of a group."""
    var line_block: Int
    var line_blocks: Int
    var result_block: Int
    var result_blocks: Int
    var chunk: Int
    """Targets whose sources are packed at a time."""
    var chunks: Int
    var parts: Int
    """Ranges of chunks that are summed independently."""
    var count: Int
    """The number of tasks."""

    def __init__[
        dtype: DType
    ](
        out self,
        gather: Gather[dtype],
        line_panel: Int,
        result_panel: Int,
        chunk: Int,
        threads: Int,
    ):
        """Blocks of lines as long as their sums stay in the cache; then parts of the depth.
        """
        self.lines = gather.depth()
        self.result_blocks = ceil_div(gather.results, RESULTS)
        self.result_block = (
            ceil_div(ceil_div(gather.results, self.result_blocks), result_panel)
            * result_panel
        )
        self.result_blocks = ceil_div(gather.results, self.result_block)
        var line_limit = max(SUMS // self.result_block // line_panel, 1)
        self.line_blocks = ceil_div(self.lines, line_limit * line_panel)
        self.line_block = (
            ceil_div(ceil_div(self.lines, self.line_blocks), line_panel)
            * line_panel
        )
        self.line_blocks = ceil_div(self.lines, self.line_block)
        var targets = gather.images * gather.pixels()
        self.chunks = ceil_div(targets, chunk)
        self.chunk = ceil_div(ceil_div(targets, max(self.chunks, 1)), 8) * 8
        self.chunks = ceil_div(targets, max(self.chunk, 1))
        var blocks = gather.groups * self.line_blocks * self.result_blocks
        self.parts = 1
        if threads > 1 and blocks < 3 * threads:
            self.parts = max(min(self.chunks, ceil_div(4 * threads, blocks)), 1)
        self.count = blocks * self.parts


def _weight_gradient_on_cpu[
    dtype: DType
](call: KernelCall, gather: Gather[dtype], parallel: Bool) raises:
    comptime Format = TileFormat[dtype]
    comptime packed = Format.PACKED
    comptime accumulate = Format.ACCUMULATE
    comptime rows = Format.ROWS
    comptime columns = Format.COLUMNS
    comptime pair = Format.GROUP
    comptime depth_limit = Panels[dtype].DEPTH
    comptime line = Panels[dtype].LINE

    var channels_last = gather.is_channels_last()
    var targets = gather.images * gather.pixels()
    var taps = gather.taps()
    var threads = Int(call.threads) if parallel else 1
    # Planar: rows are lines, columns results. Channels last: the other way round.
    var cut = _Cut(
        gather,
        columns if channels_last else rows,
        rows if channels_last else columns,
        depth_limit,
        threads,
    )
    var workers = min(threads, cut.count)
    var block_sums = cut.line_block * cut.result_block
    # Without parts a worker's sums are written out before its next task.
    var sums = allocate[accumulate](
        (cut.count if cut.parts > 1 else workers) * block_sums
    )
    var limit = segment_limit(gather, cut.chunk)
    var segments_bytes = aligned(
        taps
        * max(
            limit * size_of[Segment](),
            0 if not channels_last else cut.chunk * 8,
        )
    )
    var starts_bytes = aligned((taps + 1) * 4)
    # Packed targets: all of the block's; packed sources: a panel of lines.
    var targets_bytes = aligned(
        ((depth_limit + 8) * cut.result_block + Panels[dtype].SLACK)
        * size_of[Scalar[packed]]()
    )
    var lines_bytes = aligned(
        (max(rows * line, columns * (depth_limit + 8)) + Panels[dtype].SLACK)
        * size_of[Scalar[packed]]()
    )
    var worker_bytes = (
        segments_bytes + starts_bytes + targets_bytes + lines_bytes
    )
    # Where the lines' weights lie behind those of the first channel and tap.
    var places = allocate[DType.int64](cut.lines)
    for line in range(cut.lines):
        var channel: Int
        var tap: Int
        if channels_last:
            tap, channel = divmod(line, gather.channels)
        else:
            channel, tap = divmod(line, taps)
        var row, x = divmod(tap, gather.axes[2].taps)
        var z, y = divmod(row, gather.axes[1].taps)
        places.unsafe_store(
            line,
            Int64(
                gather.weight_offset(0, 0, channel)
                + z * gather.axes[0].weight_stride
                + y * gather.axes[1].weight_stride
                + x * gather.axes[2].weight_stride
            ),
        )
    var workspace = allocate[DType.uint8](workers * worker_bytes)
    var next = Atomic[Int64](0)

    def work(worker: Int) {imm, mut next}:
        var memory = workspace.unsafe_offset(worker * worker_bytes)
        var segments = Segments(unsafe_from_address=Int(memory))
        var offsets = bytes_at[DType.int64](memory, 0)
        var starts = Counts(unsafe_from_address=Int(memory) + segments_bytes)
        var targets_packed = bytes_at[packed](
            memory, segments_bytes + starts_bytes
        )
        var lines_packed = bytes_at[packed](
            memory, segments_bytes + starts_bytes + targets_bytes
        )
        while True:
            var task = Int(next.fetch_add(1))
            if task >= cut.count:
                return
            var rest, part = divmod(task, cut.parts)
            var more, line_index = divmod(rest, cut.line_blocks)
            var group, result_index = divmod(more, cut.result_blocks)
            var first_line = line_index * cut.line_block
            var lines = min(cut.line_block, cut.lines - first_line)
            var first_result = result_index * cut.result_block
            var results = min(cut.result_block, gather.results - first_result)
            var own = sums.unsafe_offset(
                (task if cut.parts > 1 else worker) * block_sums
            )
            clear_run(block_sums, own)
            var source = gather.source.unsafe_offset(
                group * gather.channels * gather.source_channel
            )
            var out = gather.out.unsafe_offset(
                (group * gather.results + first_result) * gather.out_channel
            )
            var end = (part + 1) * cut.chunks // cut.parts
            for chunk in range(part * cut.chunks // cut.parts, end):
                var pixel = chunk * cut.chunk
                var count = min(cut.chunk, targets - pixel)
                var groups = ceil_div(count, pair)
                if channels_last:
                    find_offsets(gather, pixel, count, offsets)
                    for i in range(0, results, rows):
                        pack_targets[dtype, rows](
                            gather,
                            out.unsafe_offset(i * gather.out_channel),
                            pixel,
                            count,
                            min(rows, results - i),
                            targets_packed.unsafe_offset(i * (depth_limit + 8)),
                        )
                    for j in range(0, lines, columns):
                        pack_sources[dtype](
                            gather,
                            source,
                            offsets,
                            first_line + j,
                            min(columns, lines - j),
                            count,
                            lines_packed,
                        )
                        for i in range(0, results, rows):
                            add_panels[dtype, False](
                                min(rows, results - i),
                                min(columns, lines - j),
                                groups,
                                targets_packed.unsafe_offset(
                                    i * (depth_limit + 8)
                                ),
                                lines_packed,
                                own.unsafe_offset(i * cut.line_block + j),
                                cut.line_block,
                            )
                else:
                    find_segments(gather, pixel, count, segments, starts)
                    for j in range(0, results, columns):
                        pack_targets[dtype, columns](
                            gather,
                            out.unsafe_offset(j * gather.out_channel),
                            pixel,
                            count,
                            min(columns, results - j),
                            targets_packed.unsafe_offset(j * (depth_limit + 8)),
                        )
                    for i in range(0, lines, rows):
                        for k in range(min(rows, lines - i)):
                            var channel, tap = divmod(first_line + i + k, taps)
                            pack_source_line(
                                source.unsafe_offset(
                                    channel * gather.source_channel
                                ),
                                gather.axes[2].step
                                * gather.axes[2].source_stride,
                                segments,
                                Int(starts.unsafe_load(tap)),
                                Int(starts.unsafe_load(tap + 1)),
                                groups * pair,
                                lines_packed.unsafe_offset(k * line),
                            )
                        for j in range(0, results, columns):
                            add_panels[dtype, True](
                                min(rows, lines - i),
                                min(columns, results - j),
                                groups,
                                lines_packed,
                                targets_packed.unsafe_offset(
                                    j * (depth_limit + 8)
                                ),
                                own.unsafe_offset(i * cut.result_block + j),
                                cut.result_block,
                            )
            if cut.parts == 1:
                _store_block(gather, cut, channels_last, task, places, own)

    run(call, parallel, work, workers)
    release(workspace)

    if cut.parts > 1:

        def store(index: Int) {imm}:
            var own = sums.unsafe_offset(index * cut.parts * block_sums)
            for part in range(1, cut.parts):
                var other = own.unsafe_offset(part * block_sums)
                comptime width = 16
                for i in range(0, block_sums, width):
                    own.unsafe_store[width=width](
                        i,
                        own.unsafe_load[width=width](i)
                        + other.unsafe_load[width=width](i),
                    )
            _store_block(gather, cut, channels_last, index, places, own)

        run(call, parallel, store, cut.count // cut.parts)
    release(places)
    release(sums)


@inline(.never)
def _store_block[
    dtype: DType
](
    gather: Gather[dtype],
    cut: _Cut,
    channels_last: Bool,
    index: Int,
    places: Data[DType.int64],
    sums: Data[TileFormat[dtype].ACCUMULATE],
):
    """Writes the weights of a block; `places` are those of lines behind the first channel's and tap's.
    """
    var line_stride = 1 if channels_last else cut.result_block
    var result_stride = cut.line_block if channels_last else 1
    var more, line_index = divmod(index, cut.line_blocks)
    var group, result_index = divmod(more, cut.result_blocks)
    var first_line = line_index * cut.line_block
    var first_result = result_index * cut.result_block
    for m in range(min(cut.result_block, gather.results - first_result)):
        var target = gather.weight.unsafe_offset(
            gather.weight_offset(group, first_result + m, 0)
        )
        for i in range(min(cut.line_block, cut.lines - first_line)):
            var line = first_line + i
            # Merged groups are channels-last.
            if gather.merged > 1 and not gather.has_weight(
                first_result + m, line % gather.channels
            ):
                continue
            target.unsafe_store(
                Int(places.unsafe_load(line)),
                sums.unsafe_load(i * line_stride + m * result_stride).cast[
                    dtype
                ](),
            )
