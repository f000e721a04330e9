"""Matrix products on CPUs by packed panels.

The scheme is that of Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication" (2008): slices of the depth are packed into panels that a
register tile reads from front to back.
"""

from std.ffi import external_call
from std.memory import stack_allocation
from std.sys.info import size_of

from mojo_kernels.math import narrow
from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.matmul.amx import (
    clear_tail_amx,
    configure_tiles,
    multiply_panels_amx,
    pack_lines_amx,
    release_tiles,
)
from mojo_kernels.matmul.amx import DEPTH as AMX_DEPTH
from mojo_kernels.matmul.amx import ROWS as AMX_ROWS
from mojo_kernels.matmul.matrix import Matrix, Update, ceil_div
from mojo_kernels.matmul.packing import pack_panel
from mojo_kernels.matmul.tile import TileFormat, multiply_tile

comptime DEPTH_BYTES = 1536
"""Length of a line of a packed slice: a panel of B then stays in the second-level cache."""
comptime A_PANELS = 8
"""Panels of A that a task packs at a time: on its stack, for the second-level cache."""
comptime PACK_SIZE = 1 << 14
"""Elements of B that a task packs at least."""
comptime OUTER = 4096
"""Rows and columns that are packed at a time, which bounds the workspace."""
comptime PARALLEL_WORK = 1 << 20
"""Multiplications below which a product stays on the calling thread."""


def allocate[dtype: DType](count: Int) raises -> Data[dtype]:
    """Memory for a kernel's own use, aligned to 64 bytes.

    Parameters:
        dtype: The element type.

    Args:
        count: The number of elements.

    Returns:
        The address, to be given to `release`.

    Raises:
        If there is no memory.
    """
    var bytes = max(ceil_div(count * size_of[Scalar[dtype]](), 64), 1) * 64
    var address = external_call["aligned_alloc", Int](64, bytes)
    if address == 0:
        raise Error("out of memory: a kernel needs ", bytes, " bytes")
    return Data[dtype](unsafe_from_address=address)


def release[dtype: DType](memory: Data[dtype]):
    """Gives back memory of `allocate`.

    Parameters:
        dtype: The element type.

    Args:
        memory: The address.
    """
    external_call["free", NoneType](Int(memory))


@inline(.never)
def finish_tile[
    dtype: DType
](
    tile: Data[TileFormat[dtype].ACCUMULATE],
    rows: Int,
    columns: Int,
    update: Update[dtype, TileFormat[dtype].ACCUMULATE],
):
    """Writes a tile's sums to the result.

    Parameters:
        dtype: The element type of the result.

    Args:
        tile: `ROWS` x `COLUMNS` sums.
        rows: How many rows exist.
        columns: How many columns exist.
        update: The result, starting at the tile.
    """
    comptime Format = TileFormat[dtype]
    comptime width = Format.WIDTH
    var adds = update.has_addend
    if (
        columns == Format.COLUMNS
        and update.out.column_stride == 1
        and (not adds or update.addend.column_stride == 1)
    ):
        for i in range(rows):
            comptime for j in range(Format.VECTORS):
                var value = (
                    tile.unsafe_load[width=width](
                        i * Format.COLUMNS + j * width
                    )
                    * update.alpha
                )
                if adds:
                    value += (
                        update.beta
                        * update.addend.at(i, j * width)
                        .unsafe_load[width=width]()
                        .cast[Format.ACCUMULATE]()
                    )
                update.out.at(i, j * width).unsafe_store[width=width](
                    narrow[dtype](value)
                )
        return
    for i in range(rows):
        for j in range(0, columns, width):
            update.store_vector(
                i,
                j,
                tile.unsafe_load[width=width](i * Format.COLUMNS + j),
                columns - j,
            )


@inline(.never)
def multiply_panels[
    dtype: DType
](
    rows: Int,
    columns: Int,
    depth: Int,
    a: Data[TileFormat[dtype].PACKED],
    b: Data[TileFormat[dtype].PACKED],
    tile: Data[TileFormat[dtype].ACCUMULATE],
):
    """Multiplies panels; at the edges only as many thirds of the rows and vectors of columns as exist.

    Parameters:
        dtype: The element type of the operands.

    Args:
        rows: How many rows exist.
        columns: How many columns exist.
        depth: The number of groups along the depth.
        a: A packed panel of A.
        b: A packed panel of B.
        tile: Where the `ROWS` x `COLUMNS` sums go; others than the existing ones may stay as they are.
    """
    comptime Format = TileFormat[dtype]
    comptime third = Format.ROWS // 3
    var thirds = ceil_div(rows, third)
    var vectors = ceil_div(columns, Format.WIDTH)
    comptime for i in range(3, 0, -1):
        comptime for j in range(Format.VECTORS, 0, -1):
            if thirds == i and vectors == j:
                multiply_tile[
                    Format.ACCUMULATE,
                    Format.PACKED,
                    rows=i * third,
                    vectors=j,
                    width=Format.WIDTH,
                    group=Format.GROUP,
                    row_step=Format.GROUP,
                    depth_step=Format.ROWS * Format.GROUP,
                    b_step=Format.COLUMNS * Format.GROUP,
                ](depth, a, b, tile, Format.COLUMNS)


@inline(.always)
def add_kept_sums[
    dtype: DType, rows: Int
](
    tile: Data[TileFormat[dtype].ACCUMULATE],
    kept: Data[TileFormat[dtype].ACCUMULATE],
    stride: Int,
    adds: Bool,
):
    """Adds the sums of earlier slices to a tile, and keeps the new sums for the next one.

    Parameters:
        dtype: The element type of the result.
        rows: The rows of the tile.

    Args:
        tile: `rows` x `COLUMNS` sums.
        kept: The sums of earlier slices.
        stride: Elements between rows of `kept`.
        adds: False for the first slice.
    """
    comptime Format = TileFormat[dtype]
    comptime width = Format.WIDTH
    for i in range(rows):
        comptime for j in range(Format.VECTORS):
            var at = i * Format.COLUMNS + j * width
            var kept_at = i * stride + j * width
            var total = tile.unsafe_load[width=width](at)
            if adds:
                total += kept.unsafe_load[width=width](kept_at)
            tile.unsafe_store[width=width](at, total)
            kept.unsafe_store[width=width](kept_at, total)


@inline(.always)
def _bfloat16[dtype: DType](data: Data[dtype]) -> Data[DType.bfloat16]:
    return Data[DType.bfloat16](unsafe_from_address=Int(data))


def multiply_packed[
    dtype: DType, amx: Bool = False
](
    call: KernelCall,
    m: Int,
    n: Int,
    k: Int,
    a: Matrix[dtype],
    b: Matrix[dtype],
    update: Update[dtype, TileFormat[dtype].ACCUMULATE],
    parallel: Bool,
) raises:
    """Computes `update(a @ b)` for matrices with any strides.

    Parameters:
        dtype: The element type.
        amx: Whether to use the tile instructions of Intel CPUs; bfloat16 only.

    Args:
        call: Gives the threads.
        m: Rows of a and of the result.
        n: Columns of b and of the result.
        k: Columns of a and rows of b.
        a: The left operand.
        b: The right operand.
        update: Where the product goes.
        parallel: Whether to use the threads; False where the caller already does.

    Raises:
        If there is no memory for the workspace.
    """
    comptime Format = TileFormat[dtype]
    comptime rows = AMX_ROWS if amx else Format.ROWS
    comptime columns = Format.COLUMNS
    comptime depth_step = AMX_DEPTH if amx else 8
    comptime a_panels = A_PANELS // 2 if amx else A_PANELS
    comptime group = Format.GROUP
    comptime width = Format.WIDTH
    comptime packed = Format.PACKED
    comptime accumulate = Format.ACCUMULATE
    comptime element_bytes = size_of[Scalar[packed]]()
    comptime depth_limit = DEPTH_BYTES // element_bytes
    # Sums that are wider than the result are kept between slices.
    comptime keeps_sums = accumulate != dtype

    var slices = max(ceil_div(k, depth_limit), 1)
    var depth = ceil_div(ceil_div(k, slices), depth_step) * depth_step
    # A panel's last store may run over by a vector of groups.
    var a_panel = rows * depth + width * group
    var b_panel = columns * depth + width * group
    var outer_m = min(ceil_div(m, rows), OUTER // rows)
    var outer_n = min(ceil_div(n, columns), OUTER // columns)
    var b_packed = allocate[packed](outer_n * b_panel)
    var sums_stride = outer_n * columns
    var sums = Data[accumulate](unsafe_from_address=Int(b_packed))
    comptime if keeps_sums:
        if slices > 1:
            sums = allocate[accumulate](outer_m * rows * sums_stride)
    var threads = Int(call.threads) if parallel else 1

    for m0 in range(0, m, outer_m * rows):
        var m_size = min(outer_m * rows, m - m0)
        var m_panels = ceil_div(m_size, rows)
        for n0 in range(0, n, outer_n * columns):
            var n_size = min(outer_n * columns, n - n0)
            var n_panels = ceil_div(n_size, columns)

            # A task packs a few panels of A and multiplies them with panels of
            # B: with all of them, unless that leaves too few tasks.
            var m_group = min(m_panels, a_panels)
            var n_groups = 1
            while threads > 1:
                var tasks = ceil_div(m_panels, m_group) * n_groups
                if tasks >= 6 * threads:
                    break
                if m_group > 2:
                    m_group = (m_group + 1) // 2
                elif n_groups * 2 <= n_panels:
                    n_groups *= 2
                else:
                    break
            var m_groups = ceil_div(m_panels, m_group)
            var n_group = ceil_div(n_panels, n_groups)
            var b_group = max(PACK_SIZE // (columns * depth), 1)

            for slice in range(slices):
                var k0 = min(slice * depth, k)
                var k_size = min(depth, k - k0)
                var a_slice = a.block(m0, k0)
                var b_slice = b.block(k0, n0)
                var here = update.block(m0, n0)
                comptime if not keeps_sums:
                    if slice > 0:
                        here.addend = here.out
                        here.beta = 1
                        here.has_addend = True

                def pack(task: Int) {imm}:
                    for panel in range(
                        task * b_group, min((task + 1) * b_group, n_panels)
                    ):
                        pack_panel[dtype, packed, columns, width, group](
                            b_slice.at(0, panel * columns),
                            b_slice.column_stride,
                            b_slice.row_stride,
                            min(columns, n_size - panel * columns),
                            k_size,
                            b_packed.unsafe_offset(panel * b_panel),
                        )
                        comptime if amx:
                            clear_tail_amx(
                                k_size,
                                depth,
                                _bfloat16(
                                    b_packed.unsafe_offset(panel * b_panel)
                                ),
                            )

                def multiply(task: Int) {imm}:
                    var m_first = (task % m_groups) * m_group
                    var m_end = min(m_first + m_group, m_panels)
                    var n_first = (task // m_groups) * n_group
                    var a_stack = stack_allocation[
                        a_panels * (rows * depth_limit + width * group),
                        Scalar[packed],
                        alignment=64,
                    ]()
                    var a_packed = Data[packed](
                        unsafe_from_address=Int(a_stack)
                    )
                    for i in range(m_first, m_end):
                        var lines = a_slice.block(i * rows, 0)
                        var count = min(rows, m_size - i * rows)
                        var panel = a_packed.unsafe_offset(
                            (i - m_first) * a_panel
                        )
                        comptime if amx:
                            pack_lines_amx(
                                rebind[Matrix[DType.bfloat16]](lines),
                                count,
                                k_size,
                                depth,
                                _bfloat16(panel),
                            )
                        else:
                            pack_panel[dtype, packed, rows, width, group](
                                lines.data,
                                lines.row_stride,
                                lines.column_stride,
                                count,
                                k_size,
                                panel,
                            )
                    comptime if amx:
                        configure_tiles()
                    var tile_stack = stack_allocation[
                        rows * columns, Scalar[accumulate], alignment=64
                    ]()
                    var tile = Data[accumulate](
                        unsafe_from_address=Int(tile_stack)
                    )
                    for j in range(n_first, min(n_first + n_group, n_panels)):
                        for i in range(m_first, m_end):
                            var tile_rows = min(rows, m_size - i * rows)
                            var tile_columns = min(
                                columns, n_size - j * columns
                            )
                            var left = a_packed.unsafe_offset(
                                (i - m_first) * a_panel
                            )
                            var right = b_packed.unsafe_offset(j * b_panel)
                            comptime if amx:
                                multiply_panels_amx(
                                    depth,
                                    _bfloat16(left),
                                    _bfloat16(right),
                                    rebind[Data[DType.float32]](tile),
                                )
                            else:
                                multiply_panels[dtype](
                                    tile_rows,
                                    tile_columns,
                                    ceil_div(k_size, group),
                                    left,
                                    right,
                                    tile,
                                )
                            comptime if keeps_sums:
                                if slices > 1:
                                    add_kept_sums[dtype, rows](
                                        tile,
                                        sums.unsafe_offset(
                                            i * rows * sums_stride + j * columns
                                        ),
                                        sums_stride,
                                        slice > 0,
                                    )
                                    if slice < slices - 1:
                                        continue
                            finish_tile[dtype](
                                tile,
                                tile_rows,
                                tile_columns,
                                here.block(i * rows, j * columns),
                            )
                    comptime if amx:
                        release_tiles()

                run(call, parallel, pack, ceil_div(n_panels, b_group))
                run(call, parallel, multiply, m_groups * n_groups)

    release(b_packed)
    comptime if keeps_sums:
        if slices > 1:
            release(sums)


@inline(.always)
def run[
    Body: def(Int) -> None
](call: KernelCall, parallel: Bool, body: Body, count: Int):
    """Runs `body(i)` for i in [0, count), on the call's threads or here.

    Parameters:
        Body: The type of the closure, which must not raise.

    Args:
        call: Gives the threads.
        parallel: Whether to use them.
        body: What to run.
        count: How often.
    """
    if parallel:
        call.parallel(body, count)
    else:
        for i in range(count):
            body(i)
