"""Small ops that between them use everything the simulator knows; each is one exported C function."""
from std.atomic import Atomic
from std.math import erf, exp, log, sin, sqrt, tanh
from std.memory import AddressSpace, stack_allocation
from std.utils.index import IndexList

from max.gpu import block_dim, block_idx, grid_dim, lane_id, thread_idx
from max.gpu.compute.mma import mma
from max.gpu.host import DeviceContext
from max.gpu.memory import external_memory
from max.gpu.primitives import block, warp
from max.gpu.sync import barrier

comptime Data[dtype: DType] = Pointer[Scalar[dtype], MutUntrackedOrigin]
comptime Handle = Pointer[NoneType, MutUntrackedOrigin]
comptime BLOCK = 128
comptime TILE = 16


@inline(.always)
def global_thread() -> Int:
    """The number of this thread in the launch."""
    return Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)


def blocks(n: Int) -> Int:
    """How many blocks of `BLOCK` threads hold `n` threads."""
    return (n + BLOCK - 1) // BLOCK


# ---- elementwise ----


def multiply_add[
    dtype: DType
](
    a: Data[dtype],
    b: Data[dtype],
    o: Data[dtype],
    n: Int64,
    columns: Int64,
    b_row: Int64,
    b_column: Int64,
):
    """`o = a * b + a` with a strided `b`, in a grid-stride loop."""
    var i = global_thread()
    while i < Int(n):
        var x = a.unsafe_load(i)
        var y = b.unsafe_load(
            i // Int(columns) * Int(b_row) + i % Int(columns) * Int(b_column)
        )
        o.unsafe_store(i, x * y + x)
        i += Int(grid_dim.x) * Int(block_dim.x)


def launch_multiply_add[
    dtype: DType
](
    context: Handle, a: Handle, b: Handle, o: Handle, n: Int, columns: Int
) -> Int32:
    """The transposed `b` has `columns` rows."""
    try:
        DeviceContext(context).enqueue_function[multiply_add[dtype]](
            a.unsafe_bitcast[Scalar[dtype]](),
            b.unsafe_bitcast[Scalar[dtype]](),
            o.unsafe_bitcast[Scalar[dtype]](),
            Int64(n),
            Int64(columns),
            Int64(1),
            Int64(n // columns),
            grid_dim=3,
            block_dim=BLOCK,
        )
        return 0
    except e:
        print(e)
        return 1


@export("multiply_add_float32")
def multiply_add_float32(
    context: Handle, a: Handle, b: Handle, o: Handle, n: Int, columns: Int
) abi("C") -> Int32:
    return launch_multiply_add[DType.float32](context, a, b, o, n, columns)


@export("multiply_add_float16")
def multiply_add_float16(
    context: Handle, a: Handle, b: Handle, o: Handle, n: Int, columns: Int
) abi("C") -> Int32:
    return launch_multiply_add[DType.float16](context, a, b, o, n, columns)


@export("multiply_add_bfloat16")
def multiply_add_bfloat16(
    context: Handle, a: Handle, b: Handle, o: Handle, n: Int, columns: Int
) abi("C") -> Int32:
    return launch_multiply_add[DType.bfloat16](context, a, b, o, n, columns)


@export("multiply_add_int64")
def multiply_add_int64(
    context: Handle, a: Handle, b: Handle, o: Handle, n: Int, columns: Int
) abi("C") -> Int32:
    return launch_multiply_add[DType.int64](context, a, b, o, n, columns)


def math(a: Data[DType.float32], o: Data[DType.float32], n: Int64):
    """Writes rows of exp, tanh, erf, log, sqrt and sin."""
    var i = global_thread()
    if i < Int(n):
        var x = a.unsafe_load(i)
        o.unsafe_store(i, exp(x))
        o.unsafe_store(i + Int(n), tanh(x))
        o.unsafe_store(i + 2 * Int(n), erf(x))
        o.unsafe_store(i + 3 * Int(n), log(x))
        o.unsafe_store(i + 4 * Int(n), sqrt(x))
        o.unsafe_store(i + 5 * Int(n), sin(x))


@export("math")
def launch_math(
    context: Handle, a: Data[DType.float32], o: Data[DType.float32], n: Int
) abi("C") -> Int32:
    try:
        DeviceContext(context).enqueue_function[math](
            a, o, Int64(n), grid_dim=blocks(n), block_dim=BLOCK
        )
        return 0
    except e:
        print(e)
        return 1


def floor_divide(
    a: Data[DType.int64], b: Data[DType.int64], o: Data[DType.int64], n: Int64
):
    """`o = a // b * 1000 + a % b`, rounding down."""
    var i = global_thread()
    if i < Int(n):
        var x = a.unsafe_load(i)
        var y = b.unsafe_load(i)
        o.unsafe_store(i, (x // y) * 1000 + x % y)


@export("floor_divide")
def launch_floor_divide(
    context: Handle,
    a: Data[DType.int64],
    b: Data[DType.int64],
    o: Data[DType.int64],
    n: Int,
) abi("C") -> Int32:
    try:
        DeviceContext(context).enqueue_function[floor_divide](
            a, b, o, Int64(n), grid_dim=blocks(n), block_dim=BLOCK
        )
        return 0
    except e:
        print(e)
        return 1


def copy_octets(a: Data[DType.uint8], o: Data[DType.int8], n: Int64):
    """Vectors of 16 bytes: `o = int8(a + 200) // 3`."""
    var i = global_thread() * 16
    if i < Int(n):
        var v = a.unsafe_load[width=16, alignment=16](i)
        o.unsafe_store[width=16, alignment=16](
            i, (v + 200).cast[DType.int8]() // 3
        )


@export("copy_octets")
def launch_copy_octets(
    context: Handle, a: Data[DType.uint8], o: Data[DType.int8], n: Int
) abi("C") -> Int32:
    try:
        DeviceContext(context).enqueue_function[copy_octets](
            a, o, Int64(n), grid_dim=blocks(n // 16), block_dim=BLOCK
        )
        return 0
    except e:
        print(e)
        return 1


# ---- reductions and shared memory ----


def softmax(a: Data[DType.float32], o: Data[DType.float32], columns: Int64):
    """One block per row, with the library's block reductions."""
    var base = Int(block_idx.x) * Int(columns)
    var largest = Float32.MIN
    for i in range(Int(thread_idx.x), Int(columns), BLOCK):
        largest = max(largest, a.unsafe_load(base + i))
    largest = block.max[block_size=BLOCK](largest)
    var total = Float32(0)
    for i in range(Int(thread_idx.x), Int(columns), BLOCK):
        total += exp(a.unsafe_load(base + i) - largest)
    total = block.sum[block_size=BLOCK](total)
    for i in range(Int(thread_idx.x), Int(columns), BLOCK):
        o.unsafe_store(base + i, exp(a.unsafe_load(base + i) - largest) / total)


def tiled_product[
    synchronise: Bool
](
    a: Data[DType.float32],
    b: Data[DType.float32],
    c: Data[DType.float32],
    m: Int64,
    n: Int64,
    k: Int64,
):
    """`c = a @ b` through tiles in shared memory; without `synchronise` a barrier is missing.
    """
    var tile_a = stack_allocation[
        TILE * TILE, DType.float32, address_space=AddressSpace.SHARED
    ]()
    var tile_b = stack_allocation[
        TILE * TILE, DType.float32, address_space=AddressSpace.SHARED
    ]()
    var x = Int(thread_idx.x)
    var y = Int(thread_idx.y)
    var row = Int(block_idx.y) * TILE + y
    var column = Int(block_idx.x) * TILE + x
    var total = Float32(0)
    for k0 in range(0, Int(k), TILE):
        var value_a = Float32(0)
        var value_b = Float32(0)
        if row < Int(m) and k0 + x < Int(k):
            value_a = a.unsafe_load(row * Int(k) + k0 + x)
        if column < Int(n) and k0 + y < Int(k):
            value_b = b.unsafe_load((k0 + y) * Int(n) + column)
        tile_a.unsafe_store(y * TILE + x, value_a)
        tile_b.unsafe_store(y * TILE + x, value_b)
        barrier()
        for i in range(TILE):
            total += tile_a.unsafe_load(y * TILE + i) * tile_b.unsafe_load(
                i * TILE + x
            )
        comptime if synchronise:
            barrier()
    if row < Int(m) and column < Int(n):
        c.unsafe_store(row * Int(n) + column, total)


def launch_product[
    synchronise: Bool
](
    context: Handle,
    a: Data[DType.float32],
    b: Data[DType.float32],
    c: Data[DType.float32],
    m: Int,
    n: Int,
    k: Int,
) raises:
    """One thread per element of `c`."""
    DeviceContext(context).enqueue_function[tiled_product[synchronise]](
        a,
        b,
        c,
        Int64(m),
        Int64(n),
        Int64(k),
        grid_dim=((n + TILE - 1) // TILE, (m + TILE - 1) // TILE),
        block_dim=(TILE, TILE),
    )


@export("softmax_product")
def softmax_product(
    context: Handle,
    a: Data[DType.float32],
    b: Data[DType.float32],
    c: Data[DType.float32],
    m: Int,
    n: Int,
    k: Int,
) abi("C") -> Int32:
    """`c = softmax(a) @ b`: two launches with a temporary device buffer between.
    """
    try:
        var ctx = DeviceContext(context)
        var buffer = ctx.enqueue_create_buffer[DType.float32](m * k)
        var p = Data[DType.float32](
            unsafe_from_address=Int(buffer.unsafe_ptr())
        )
        ctx.enqueue_function[softmax](
            a, p, Int64(k), grid_dim=m, block_dim=BLOCK
        )
        launch_product[True](context, p, b, c, m, n, k)
        ctx.synchronize()
        _ = buffer^
        return 0
    except e:
        print(e)
        return 1


@export("racy_product")
def racy_product(
    context: Handle,
    a: Data[DType.float32],
    b: Data[DType.float32],
    c: Data[DType.float32],
    m: Int,
    n: Int,
    k: Int,
) abi("C") -> Int32:
    try:
        launch_product[False](context, a, b, c, m, n, k)
        return 0
    except e:
        print(e)
        return 1


def reverse(a: Data[DType.float32], o: Data[DType.float32], n: Int64):
    """Each block reverses `n` values through dynamic shared memory."""
    var shared = external_memory[
        Float32, address_space=AddressSpace.SHARED, alignment=16
    ]()
    var base = Int(block_idx.x) * Int(n)
    for i in range(Int(thread_idx.x), Int(n), Int(block_dim.x)):
        shared.unsafe_store(i, a.unsafe_load(base + i))
    barrier()
    for i in range(Int(thread_idx.x), Int(n), Int(block_dim.x)):
        o.unsafe_store(base + i, shared.unsafe_load(Int(n) - 1 - i))


@export("reverse")
def launch_reverse(
    context: Handle,
    a: Data[DType.float32],
    o: Data[DType.float32],
    rows: Int,
    n: Int,
    shared: Int,
) abi("C") -> Int32:
    """Too few `shared` bytes are a mistake."""
    try:
        DeviceContext(context).enqueue_function[reverse](
            a,
            o,
            Int64(n),
            grid_dim=rows,
            block_dim=64,
            shared_mem_bytes=shared,
        )
        return 0
    except e:
        print(e)
        return 1


# ---- warps, tensor cores, local memory ----


def warp_operations(a: Data[DType.float32], o: Data[DType.float32], n: Int64):
    """Writes rows of the warp's prefix sums, its maximum and the value of lane 3.
    """
    var i = global_thread()
    var x = a.unsafe_load(i) if i < Int(n) else Float32(0)
    var total = warp.prefix_sum(x)
    var largest = warp.max(x)
    var third = warp.shuffle_idx(x, 3)
    if i < Int(n):
        o.unsafe_store(i, total)
        o.unsafe_store(i + Int(n), largest)
        o.unsafe_store(i + 2 * Int(n), third)


@export("warp_operations")
def launch_warp_operations(
    context: Handle, a: Data[DType.float32], o: Data[DType.float32], n: Int
) abi("C") -> Int32:
    try:
        DeviceContext(context).enqueue_function[warp_operations](
            a, o, Int64(n), grid_dim=(n + 95) // 96, block_dim=96
        )
        return 0
    except e:
        print(e)
        return 1


def tensor_core_product[
    dtype: DType
](a: Data[dtype], b: Data[dtype], c: Data[DType.float32], n: Int64, k: Int64,):
    """`c = a @ b` with one warp per 16x8 tile; sizes are multiples of the tile.
    """
    var group = Int(lane_id()) // 4
    var member = Int(lane_id()) % 4
    var row = Int(block_idx.y) * 16
    var column = Int(block_idx.x) * 8
    var total = SIMD[DType.float32, 4](0)
    for k0 in range(0, Int(k), 16):
        var fragment_a = SIMD[dtype, 8](0)
        comptime for r in range(4):
            comptime for e in range(2):
                fragment_a[2 * r + e] = a.unsafe_load(
                    (row + group + 8 * (r % 2)) * Int(k)
                    + k0
                    + 2 * member
                    + e
                    + 8 * (r // 2)
                )
        var fragment_b = SIMD[dtype, 4](0)
        comptime for r in range(2):
            comptime for e in range(2):
                fragment_b[2 * r + e] = b.unsafe_load(
                    (k0 + 2 * member + e + 8 * r) * Int(n) + column + group
                )
        mma(total, fragment_a, fragment_b, total)
    comptime for i in range(4):
        c.unsafe_store(
            (row + group + 8 * (i // 2)) * Int(n) + column + 2 * member + i % 2,
            total[i],
        )


@export("tensor_core_product_bfloat16")
def tensor_core_product_bfloat16(
    context: Handle,
    a: Data[DType.bfloat16],
    b: Data[DType.bfloat16],
    c: Data[DType.float32],
    m: Int,
    n: Int,
    k: Int,
) abi("C") -> Int32:
    try:
        DeviceContext(context).enqueue_function[
            tensor_core_product[DType.bfloat16]
        ](
            a,
            b,
            c,
            Int64(n),
            Int64(k),
            grid_dim=(n // 8, m // 16),
            block_dim=32,
        )
        return 0
    except e:
        print(e)
        return 1


def histogram(a: Data[DType.int64], o: Data[DType.int64], n: Int64):
    """Each thread counts its digits 0 to 7 in a local array with run-time indices.
    """
    var counts = stack_allocation[8, DType.int64]()
    for j in range(8):
        counts.unsafe_store(j, Int64(0))
    var i = global_thread()
    for j in range(Int(n)):
        var digit = Int(a.unsafe_load(i * Int(n) + j)) & 7
        counts.unsafe_store(digit, counts.unsafe_load(digit) + 1)
    for j in range(8):
        o.unsafe_store(i * 8 + j, counts.unsafe_load(j))


@export("histogram")
def launch_histogram(
    context: Handle,
    a: Data[DType.int64],
    o: Data[DType.int64],
    threads: Int,
    n: Int,
) abi("C") -> Int32:
    """The number of threads must be a multiple of 64."""
    try:
        DeviceContext(context).enqueue_function[histogram](
            a, o, Int64(n), grid_dim=threads // 64, block_dim=64
        )
        return 0
    except e:
        print(e)
        return 1


# ---- atomics ----


def scatter_add[
    dtype: DType
](a: Data[dtype], index: Data[DType.int64], o: Data[dtype], n: Int64):
    """`o[index[i]] += a[i]`."""
    var i = global_thread()
    if i < Int(n):
        _ = Atomic.fetch_add(
            o.unsafe_offset(Int(index.unsafe_load(i))), a.unsafe_load(i)
        )


def launch_scatter_add[
    dtype: DType
](context: Handle, a: Handle, index: Handle, o: Handle, n: Int) -> Int32:
    """One thread per element."""
    try:
        DeviceContext(context).enqueue_function[scatter_add[dtype]](
            a.unsafe_bitcast[Scalar[dtype]](),
            index.unsafe_bitcast[Int64](),
            o.unsafe_bitcast[Scalar[dtype]](),
            Int64(n),
            grid_dim=blocks(n),
            block_dim=BLOCK,
        )
        return 0
    except e:
        print(e)
        return 1


@export("scatter_add_float32")
def scatter_add_float32(
    context: Handle, a: Handle, index: Handle, o: Handle, n: Int
) abi("C") -> Int32:
    return launch_scatter_add[DType.float32](context, a, index, o, n)


@export("scatter_add_bfloat16")
def scatter_add_bfloat16(
    context: Handle, a: Handle, index: Handle, o: Handle, n: Int
) abi("C") -> Int32:
    return launch_scatter_add[DType.bfloat16](context, a, index, o, n)


@export("scatter_add_int64")
def scatter_add_int64(
    context: Handle, a: Handle, index: Handle, o: Handle, n: Int
) abi("C") -> Int32:
    return launch_scatter_add[DType.int64](context, a, index, o, n)


# ---- how arguments are passed ----


def argument_layout(
    o: Data[DType.int64],
    a: Int8,
    b: Int64,
    c: Int32,
    d: Float16,
    e: UInt8,
    f: IndexList[3],
    g: Float64,
    h: UInt16,
):
    """Stores every argument."""
    if thread_idx.x == 0:
        o.unsafe_store(0, Int64(a))
        o.unsafe_store(1, b)
        o.unsafe_store(2, Int64(c))
        o.unsafe_store(3, Int64(d * 4))
        o.unsafe_store(4, Int64(e))
        comptime for i in range(3):
            o.unsafe_store(5 + i, Int64(f[i]))
        o.unsafe_store(8, Int64(g * 4))
        o.unsafe_store(9, Int64(h))


@export("argument_layout")
def launch_argument_layout(
    context: Handle, o: Data[DType.int64]
) abi("C") -> Int32:
    try:
        DeviceContext(context).enqueue_function[argument_layout](
            o,
            Int8(-3),
            Int64(1 << 40),
            Int32(-77),
            Float16(2.5),
            UInt8(200),
            IndexList[3](11, 22, 33),
            Float64(-1.25),
            UInt16(65535),
            grid_dim=1,
            block_dim=32,
        )
        return 0
    except e:
        print(e)
        return 1
