"""Index spaces, cursors and the offset calculators of GPU kernels, in a Mojo program and through a kernel."""

from __future__ import annotations

import pytest
import torch

PROGRAM = """
from mojo_kernels.layout import Cursor, Divisor, IndexSpace, OffsetCalculator, outer_space
from std.utils.static_tuple import StaticTuple

comptime Strides = StaticTuple[Int, 2]


def space_of(sizes: List[Int], first: List[Int], second: List[Int]) -> IndexSpace[2]:
    var space = IndexSpace[2]()
    for d in range(len(sizes)):
        space.append(sizes[d], Strides(first[d], second[d]))
    return space^


def check_walks(space: IndexSpace[2]) raises:
    var cursor = Cursor[2](space, 0)
    var narrow = OffsetCalculator[2, DType.uint32](space)
    var wide = OffsetCalculator[2, DType.uint64](space)
    for i in range(space.numel):
        var expected = space.offsets(i)
        for k in range(2):
            if cursor.offsets[k] != expected[k]:
                raise Error("cursor at ", i)
            if narrow.offsets(UInt32(i))[k] != expected[k] or wide.offsets(UInt64(i))[k] != expected[k]:
                raise Error("offset calculator at ", i)
        cursor.advance(space)
    if cursor.offsets[0] != 0 or cursor.offsets[1] != 0:
        raise Error("the cursor does not return to the start")


def main() raises:
    var merged = space_of([3, 4, 5], [20, 5, 1], [0, 0, 0])
    print(merged.ndim, merged.numel, merged.extent(0), merged.extent(1))
    var kept = space_of([3, 4, 5], [1, 3, 12], [20, 5, 1])
    print(kept.ndim, kept.numel, kept.extent(0))
    var ones = space_of([1, 7, 1], [99, 2, 99], [99, 3, 99])
    print(ones.ndim, ones.numel)
    check_walks(merged)
    check_walks(kept)
    check_walks(ones)
    check_walks(space_of([2, 2, 2, 2], [1, 4, 16, 2], [8, 1, 2, 4]))
    var row = kept.pop()
    print(row.size, row.strides[0], row.strides[1], kept.ndim, kept.numel)

    # Eleven dimensions that do not merge: three are the host's.
    var deep = IndexSpace[2]()
    for d in range(11):
        deep.append(2, Strides(1 << d, 1 << (10 - d)))
    var whole = IndexSpace[2]()
    for d in range(11):
        whole.append(2, Strides(1 << d, 1 << (10 - d)))
    var outer = outer_space(deep)
    print(outer.numel, deep.numel)
    var inner = OffsetCalculator[2, DType.uint32](deep)
    for i in range(whole.numel):
        var start = outer.offsets(i // deep.numel)
        var rest = inner.offsets(UInt32(i % deep.numel))
        if start[0] + rest[0] != whole.offsets(i)[0]:
            raise Error("outer dimensions at ", i)

    var huge = space_of([1 << 20, 1 << 12], [1 << 13, 1], [0, 1])
    print(huge.fits_32_bits(), whole.fits_32_bits())
    print(OffsetCalculator[2, DType.uint64](huge).offsets((1 << 32) - 1)[0])

    for divisor in [1, 2, 3, 5, 7, 64, 641, 65535, 65537, 1000003, (1 << 30) + 1, (1 << 31) - 1]:
        var quotient = Divisor[DType.uint32](divisor)
        for base in [0, 1, divisor - 1, divisor, divisor + 1, 123456789, (1 << 31) - 1]:
            if base < 1 << 31 and Int(quotient.divide(UInt32(base))) != base // divisor:
                raise Error(base, " by ", divisor)
"""


def test_walks(run_mojo):
    assert run_mojo(PROGRAM).splitlines() == [
        "1 60 60 1",
        "3 60 60",
        "1 7",
        "5 12 1 2 12",
        "8 256",
        "False True",
        str((2**20 - 1) * 2**13 + 2**12 - 1),
    ]


KEY = "pointwise.unary:unary[dtype=int8,op=neg]"


@pytest.fixture(scope="module")
def library(kernels):
    return kernels([KEY])


@pytest.mark.slow
def test_more_than_2_to_the_31_elements(library):
    row = torch.randint(-100, 100, (2**16,), dtype=torch.int8)
    x = row.expand(2**15 + 1, 2**16)
    out = torch.empty(x.shape, dtype=torch.int8)
    library.pointwise(KEY, out, [x])
    for i in (0, 1, 2**14, 2**15 - 1, 2**15):
        assert torch.equal(out[i], -row)


def test_more_dimensions_than_a_gpu_kernel_decomposes(library):
    x = torch.randint(-100, 100, (2,) * 16, dtype=torch.int8).permute(*range(15, -1, -1))
    out = torch.empty((2,) * 16, dtype=torch.int8)
    library.pointwise(KEY, out, [x])
    assert torch.equal(out, -x)
