"""The raw generator against the vectors that Random123, its authors' library, publishes for ten rounds."""

from __future__ import annotations

PROGRAM = """
from mojo_kernels.random.philox import philox


def show(seed: UInt64, subsequence: UInt64, count: UInt64):
    var block = philox[1](seed, SIMD[DType.uint64, 1](subsequence), count)
    print(block.x[0], block.y[0], block.z[0], block.w_bits[0])


def main() raises:
    show(0, 0, 0)
    show(~UInt64(0), ~UInt64(0), ~UInt64(0))
    show(UInt64(0x299F31D0A4093822), UInt64(0x0370734413198A2E), UInt64(0x85A308D3243F6A88))
"""

# Counters and keys: zeros, ones, and the digits of pi.
EXPECTED = (
    (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
)


def test_published_vectors(run_mojo):
    assert run_mojo(PROGRAM).splitlines() == [" ".join(map(str, words)) for words in EXPECTED]
