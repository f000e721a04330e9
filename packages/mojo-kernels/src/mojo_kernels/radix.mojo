"""Stable sorting on CPUs. An element becomes one unsigned number: a key that sorts like it, and its position below that.

Short rows are sorted by insertion and merging, long ones by their keys' bytes from the lowest on (LSD radix sort), on several
threads where one row is large.
"""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.layout import ceil_div
from mojo_kernels.math import to_bits, unsigned_type
from std.sys.info import simd_width_of, size_of
from std.utils.numerics import isnan

comptime RADIX = 256
"""Values of a byte."""
comptime RUN = 16
"""Elements that are sorted by insertion before runs are merged."""
comptime SHORT = 400
"""Below so many elements merging is faster than counting bytes."""
comptime GRAIN = 32768
"""Elements of one row that are worth a thread."""


@inline(.always)
def packed_type[dtype: DType]() -> DType:
    """The type that holds a key and a position.

    Parameters:
        dtype: The element type.

    Returns:
        uint64, or uint128 for elements of 8 bytes.
    """
    return DType.uint128 if size_of[dtype]() == 8 else DType.uint64


@inline(.always)
def position_bits[dtype: DType]() -> Int:
    """How many bits of a packed number hold the position.

    Parameters:
        dtype: The element type.

    Returns:
        64 for elements of 8 bytes, else 32: rows are shorter than 2^32 elements.
    """
    return 64 if size_of[dtype]() == 8 else 32


@inline(.always)
def sort_key[
    dtype: DType, w: SIMDLength, //
](values: SIMD[dtype, w], descending: Bool) -> SIMD[unsigned_type[dtype](), w]:
    """Unsigned numbers that sort like elements; NaN is larger than every number, and zeros of both signs are equal.

    Parameters:
        dtype: The element type.
        w: The vector width.

    Args:
        values: The elements.
        descending: Whether the order is reversed.

    Returns:
        The keys.
    """
    comptime Key = SIMD[unsigned_type[dtype](), w]
    comptime top = Scalar[unsigned_type[dtype]()](1) << Scalar[
        unsigned_type[dtype]()
    ](size_of[dtype]() * 8 - 1)
    var key = to_bits(values)
    comptime if dtype.is_floating_point():
        key = (key & Key(top)).ne(Key(0)).select(~key, key | Key(top))
        key = values.eq(SIMD[dtype, w](0)).select(Key(top), key)
        key = isnan(values).select(~Key(0), key)
    elif dtype.is_signed():
        key ^= Key(top)
    return ~key if descending else key


@inline(.always)
def pack[
    dtype: DType, //
](value: Scalar[dtype], position: Int, descending: Bool) -> Scalar[
    packed_type[dtype]()
]:
    """A key with its position.

    Parameters:
        dtype: The element type.

    Args:
        value: The element.
        position: Its position in the row.
        descending: Whether the order is reversed.

    Returns:
        The packed number: smaller ones come first.
    """
    comptime packed = packed_type[dtype]()
    return (
        sort_key(value, descending).cast[packed]()
        << Scalar[packed](position_bits[dtype]())
    ) | Scalar[packed](position)


@inline(.always)
def position_of[dtype: DType](packed: Scalar[packed_type[dtype]()]) -> Int:
    """The position in a packed number.

    Parameters:
        dtype: The element type.

    Args:
        packed: The number.

    Returns:
        The position.
    """
    comptime if size_of[dtype]() == 8:
        return Int(packed.cast[DType.uint64]())
    else:
        return Int(packed.cast[DType.uint32]())


@inline(.always)
def _insert[
    packed: DType
](sorted: Data[packed], count: Int, value: Scalar[packed]):
    """Moves a number into the `count` sorted ones before it."""
    var place = count
    while place > 0 and sorted.unsafe_load(place - 1) > value:
        sorted.unsafe_store(place, sorted.unsafe_load(place - 1))
        place -= 1
    sorted.unsafe_store(place, value)


def first_of_row[
    dtype: DType
](
    row: Data[dtype],
    stride: Int,
    n: Int,
    k: Int,
    descending: Bool,
    best: Data[packed_type[dtype]()],
):
    """Finds the first elements of a row in sorted order.

    Parameters:
        dtype: The element type.

    Args:
        row: The row's first element.
        stride: The distance between its elements.
        n: How many it has.
        k: How many are wanted, from 1 to `n`.
        descending: Whether the largest come first.
        best: Receives `k` packed numbers.
    """
    comptime w = simd_width_of[dtype]() * 2
    for i in range(k):
        _insert(best, i, pack(row.unsafe_load(i * stride), i, descending))
    comptime packed = packed_type[dtype]()

    @inline(.always)
    def threshold() {imm} -> Scalar[unsigned_type[dtype]()]:
        return (
            best.unsafe_load(k - 1) >> Scalar[packed](position_bits[dtype]())
        ).cast[unsigned_type[dtype]()]()

    @inline(.always)
    def consider(i: Int) {imm}:
        var candidate = pack(row.unsafe_load(i * stride), i, descending)
        if candidate < best.unsafe_load(k - 1):
            _insert(best, k - 1, candidate)

    var i = k
    if stride == 1:
        var last = threshold()
        while i + w <= n:
            # Later elements that equal the last one do not replace it.
            if (
                sort_key(row.unsafe_load[width=w](i), descending)
                .lt(last)
                .reduce_or()
            ):
                for j in range(i, i + w):
                    consider(j)
                last = threshold()
            i += w
    while i < n:
        consider(i)
        i += 1


def _merge_sort[
    packed: DType
](numbers: Data[packed], scratch: Data[packed], n: Int) -> Data[packed]:
    """Sorts numbers; returns which of the two arrays holds them."""
    for start in range(0, n, RUN):
        var run = numbers.unsafe_offset(start)
        for i in range(1, min(RUN, n - start)):
            _insert(run, i, run.unsafe_load(i))
    var source = numbers
    var target = scratch
    var length = RUN
    while length < n:
        for start in range(0, n, 2 * length):
            var left = start
            var middle = min(start + length, n)
            var right = middle
            var end = min(start + 2 * length, n)
            for i in range(start, end):
                if right == end or (
                    left < middle
                    and source.unsafe_load(left) < source.unsafe_load(right)
                ):
                    target.unsafe_store(i, source.unsafe_load(left))
                    left += 1
                else:
                    target.unsafe_store(i, source.unsafe_load(right))
                    right += 1
        swap(source, target)
        length *= 2
    return source


def _byte_sort[
    packed: DType, shift: Int, bytes: Int
](
    call: KernelCall,
    numbers: Data[packed],
    scratch: Data[packed],
    n: Int,
    tasks: Int,
) -> Data[packed]:
    """Sorts numbers by `bytes` bytes from bit `shift` on; returns which of the two arrays holds them.
    """
    var share = ceil_div(n, tasks)
    var counts = List[Int](length=tasks * RADIX, fill=0)
    var first = counts.unsafe_ptr()
    var source = numbers
    var target = scratch
    for byte in range(bytes):
        var bits = Scalar[packed](shift + 8 * byte)

        @inline(.always)
        def digit(number: Scalar[packed]) {imm} -> Int:
            return Int((number >> bits).cast[DType.uint8]())

        def count(task: Int) {imm}:
            var found = first.unsafe_offset(task * RADIX)
            for d in range(RADIX):
                found.unsafe_offset(d)[] = 0
            for i in range(task * share, min((task + 1) * share, n)):
                found.unsafe_offset(digit(source.unsafe_load(i)))[] += 1

        call.parallel(count, tasks)
        # From counts to places: by digit, then by task.
        var place = 0
        var is_one_digit = False
        for d in range(RADIX):
            var before = place
            for task in range(tasks):
                var found = first.unsafe_offset(task * RADIX + d)[]
                first.unsafe_offset(task * RADIX + d)[] = place
                place += found
            is_one_digit = is_one_digit or place - before == n
        if is_one_digit:
            continue

        def move(task: Int) {imm}:
            var places = first.unsafe_offset(task * RADIX)
            for i in range(task * share, min((task + 1) * share, n)):
                var number = source.unsafe_load(i)
                var d = digit(number)
                target.unsafe_store(places.unsafe_offset(d)[], number)
                places.unsafe_offset(d)[] += 1

        call.parallel(move, tasks)
        swap(source, target)
    _ = counts^
    return source


def sort_row[
    dtype: DType
](
    call: KernelCall,
    row: Data[dtype],
    stride: Int,
    n: Int,
    descending: Bool,
    numbers: Data[packed_type[dtype]()],
    threads: Int,
) -> Data[packed_type[dtype]()]:
    """Sorts a row.

    Parameters:
        dtype: The element type.

    Args:
        call: The call, for its threads.
        row: The row's first element.
        stride: The distance between its elements.
        n: How many it has.
        descending: Whether the largest come first.
        numbers: Room for `2 * n` packed numbers.
        threads: How many threads may share the row.

    Returns:
        The `n` packed numbers in order.
    """
    comptime packed = packed_type[dtype]()
    var tasks = max(min(threads, n // GRAIN), 1)
    var share = ceil_div(n, tasks)

    def fill(task: Int) {imm}:
        for i in range(task * share, min((task + 1) * share, n)):
            numbers.unsafe_store(
                i, pack(row.unsafe_load(i * stride), i, descending)
            )

    call.parallel(fill, tasks)
    if n < SHORT:
        return _merge_sort(numbers, numbers.unsafe_offset(n), n)
    return _byte_sort[packed, position_bits[dtype](), size_of[dtype]()](
        call, numbers, numbers.unsafe_offset(n), n, tasks
    )
