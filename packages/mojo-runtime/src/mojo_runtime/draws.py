"""How many random numbers a call takes from a generator: as many as the same call on a CUDA device.

A CUDA kernel of torch runs a grid of blocks whose threads each draw four 32-bit words at a time; the generator's offset
moves by the words of one thread. See mojo_kernels/random.
"""

from __future__ import annotations

import functools

from mojo_runtime.devices import device

BLOCK = 256
"""Threads of a block."""
_BLOCKS_PER_MULTIPROCESSOR = 2048 // BLOCK
# Where the device has no multiprocessors, draws are laid out as on an H100.
_REFERENCE_MULTIPROCESSORS = 132


@functools.cache
def max_blocks(index: int) -> int:
    """Returns the largest grid of a random kernel on a device, in blocks."""
    found = device(index)
    multiprocessors = found.cores if found.kind == "gpu" else _REFERENCE_MULTIPROCESSORS
    return multiprocessors * _BLOCKS_PER_MULTIPROCESSOR


def increment(numel: int, unroll: int, blocks: int) -> int:
    """Returns how far a call moves the generator's offset.

    Args:
        numel: The elements that are drawn.
        unroll: How many of them one draw of a thread serves.
        blocks: The largest grid.
    """
    if numel == 0:
        return 0
    threads = BLOCK * min(-(-numel // BLOCK), blocks)
    return 4 * -(-numel // (threads * unroll))
