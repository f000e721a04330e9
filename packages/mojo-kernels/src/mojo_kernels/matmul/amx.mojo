"""Products of bfloat16 panels by the tile instructions of Intel CPUs (AMX).

A tile register holds 16 rows of 64 bytes. `tdpbf16ps` adds the product of a tile of A, 16 rows of 32 elements, and a tile of
B, 16 pairs of rows for 16 columns, to a tile of 16 x 16 float32 sums.
"""

from std.ffi import external_call
from std.memory import stack_allocation
from std.sys.info import CompilationTarget
from std.sys.intrinsics import llvm_intrinsic

from mojo_kernels.abi import Data
from mojo_kernels.matmul.matrix import Matrix

comptime HAS_AMX = (
    CompilationTarget.is_linux()
    and CompilationTarget._has_feature["amx-bf16"]()
    and CompilationTarget._has_feature["avx512bf16"]()
)
"""Whether the target has tile instructions for bfloat16."""
comptime ROWS = 32
"""Rows of a product: two tiles."""
comptime COLUMNS = 32
"""Columns of a product: two tiles, which is a panel of B as `vdpbf16ps` wants it, too."""
comptime DEPTH = 32
"""Depth of a tile."""
comptime _ARCH_PRCTL = 158
comptime _ARCH_REQ_XCOMP_PERM = 0x1023
comptime _XTILE_DATA = 18


def request_amx() -> Bool:
    """Asks the kernel for the right to use tile registers, which counts for all threads.

    Returns:
        Whether it was given; some sandboxes refuse.
    """
    return (
        external_call["syscall", Int](
            Int(_ARCH_PRCTL), Int(_ARCH_REQ_XCOMP_PERM), Int(_XTILE_DATA)
        )
        == 0
    )


@inline(.always)
def configure_tiles():
    """Gives this thread's eight tile registers 16 rows of 64 bytes."""
    var configuration = stack_allocation[64, UInt8, alignment=64]()
    var bytes = Data[DType.uint8](unsafe_from_address=Int(configuration))
    for i in range(64):
        bytes.unsafe_store(i, 0)
    bytes.unsafe_store(0, 1)
    for i in range(8):
        bytes.unsafe_store(16 + 2 * i, 64)
        bytes.unsafe_store(48 + i, 16)
    llvm_intrinsic["llvm.x86.ldtilecfg", NoneType](bytes)


@inline(.always)
def release_tiles():
    """Gives the tile registers back, so that the thread's state is small again.
    """
    llvm_intrinsic["llvm.x86.tilerelease", NoneType]()


@inline(.always)
def _load[tile: Int8](source: Data[DType.bfloat16], stride: Int):
    """Loads a tile; the stride between its rows is in bytes."""
    llvm_intrinsic["llvm.x86.tileloadd64", NoneType](
        tile, source, Int64(stride)
    )


@inline(.always)
def _store[tile: Int8](target: Data[DType.float32], stride: Int):
    """Stores a tile; the stride between its rows is in bytes."""
    llvm_intrinsic["llvm.x86.tilestored64", NoneType](
        tile, target, Int64(stride)
    )


@inline(.always)
def _clear[tile: Int8]():
    llvm_intrinsic["llvm.x86.tilezero", NoneType](tile)


@inline(.always)
def _multiply_add[sums: Int8, left: Int8, right: Int8]():
    llvm_intrinsic["llvm.x86.tdpbf16ps", NoneType](sums, left, right)


@inline(.never)
def multiply_panels_amx(
    depth: Int,
    a: Data[DType.bfloat16],
    b: Data[DType.bfloat16],
    tile: Data[DType.float32],
):
    """Multiplies a panel of `ROWS` lines with a panel of `COLUMNS` columns.

    Args:
        depth: The length of the lines, a multiple of `DEPTH`.
        a: [rows][depth].
        b: [depth / 2][columns][2].
        tile: Where the `ROWS` x `COLUMNS` sums go.
    """
    _clear[0]()
    _clear[1]()
    _clear[2]()
    _clear[3]()
    for p in range(0, depth, DEPTH):
        _load[4](a.unsafe_offset(p), depth * 2)
        _load[5](a.unsafe_offset(16 * depth + p), depth * 2)
        _load[6](b.unsafe_offset(p * COLUMNS), COLUMNS * 4)
        _load[7](b.unsafe_offset(p * COLUMNS + 32), COLUMNS * 4)
        _multiply_add[0, 4, 6]()
        _multiply_add[1, 4, 7]()
        _multiply_add[2, 5, 6]()
        _multiply_add[3, 5, 7]()
    _store[0](tile, COLUMNS * 4)
    _store[1](tile.unsafe_offset(16), COLUMNS * 4)
    _store[2](tile.unsafe_offset(16 * COLUMNS), COLUMNS * 4)
    _store[3](tile.unsafe_offset(16 * COLUMNS + 16), COLUMNS * 4)


@inline(.never)
def pack_lines_amx(
    source: Matrix[DType.bfloat16],
    count: Int,
    length: Int,
    depth: Int,
    panel: Data[DType.bfloat16],
):
    """Packs rows of a matrix as [`ROWS`][depth], zero where it has no more rows or columns.

    Args:
        source: The matrix, starting at the first row.
        count: The number of rows that exist.
        length: The number of columns that exist.
        depth: The length of a packed line, a multiple of 32.
        panel: The destination.
    """
    for i in range(ROWS):
        var line = panel.unsafe_offset(i * depth)
        var p = 0
        if i < count:
            var row = source.at(i, 0)
            if source.column_stride == 1:
                while p + DEPTH <= length:
                    line.unsafe_store[width=DEPTH](
                        p, row.unsafe_load[width=DEPTH](p)
                    )
                    p += DEPTH
            while p < length:
                line.unsafe_store(p, row.unsafe_load(p * source.column_stride))
                p += 1
        while p < depth:
            line.unsafe_store(p, 0)
            p += 1


@inline(.always)
def clear_tail_amx(length: Int, depth: Int, panel: Data[DType.bfloat16]):
    """Clears what a packed panel of B lacks to a multiple of the tiles' depth.

    Args:
        length: The depth that exists; an odd last row is already paired with zeros.
        depth: The depth of the panel.
        panel: [depth / 2][columns][2].
    """
    comptime row = 2 * COLUMNS
    for i in range((length + 1) // 2, depth // 2):
        panel.unsafe_store[width=row](i * row, SIMD[DType.bfloat16, row](0))
