"""Data races: who wrote and who read each granule of memory last, and whether a barrier lies between."""

from __future__ import annotations

import numpy as np

from .memory import Array

BLOCK_BARRIER_SHIFT = 20
"""A thread's stamp is (barriers that its block has passed << 20) | (barriers that its warp has passed since)."""


class RaceTracker:
    """The last writer and the last reader of every granule of a space.

    Thread numbers are global and padded to whole warps. Two accesses by different threads are ordered if the threads
    are in one block and a block barrier lies between them, or in one warp and a warp barrier does.

    Args:
        nbytes: The size of the space.
        granule: The smallest access to the space in bytes.
        threads_per_block: Padded to whole warps.
    """

    SEVERAL, SEVERAL_BLOCKS = -2, -3

    def __init__(self, nbytes: int, granule: int, threads_per_block: int) -> None:
        n = -(-nbytes // granule)
        self.nbytes, self.granule, self.threads_per_block = nbytes, granule, threads_per_block
        self.writer = np.full(n, -1, np.int64)
        self.written_at = np.zeros(n, np.int64)
        self.reader = np.full(n, -1, np.int64)
        self.read_at = np.zeros(n, np.int64)

    def _conflict(self, earlier: Array, earlier_stamp: Array, thread: Array, stamp: Array) -> Array:
        one_block = earlier // self.threads_per_block == thread // self.threads_per_block
        block_barrier = earlier_stamp >> BLOCK_BARRIER_SHIFT != stamp >> BLOCK_BARRIER_SHIFT
        warp_barrier = (earlier >> 5 == thread >> 5) & (earlier_stamp != stamp)
        return np.asarray((earlier >= 0) & (earlier != thread) & ~(one_block & (block_barrier | warp_barrier)))

    def read(self, granule: Array, thread: Array, stamp: Array) -> Array:
        """Records reads.

        Args:
            granule: Which granule each thread reads.
            thread: The threads.
            stamp: Their stamps.

        Returns:
            Which of them read what another thread wrote without a barrier between.
        """
        bad = self._conflict(self.writer[granule], self.written_at[granule], thread, stamp)
        reader, read_at = self.reader[granule], self.read_at[granule]
        same_phase = (read_at >> BLOCK_BARRIER_SHIFT) == (stamp >> BLOCK_BARRIER_SHIFT)
        other_block = (reader >= 0) & (reader // self.threads_per_block != thread // self.threads_per_block)
        replace = (reader == -1) | ((reader != self.SEVERAL_BLOCKS) & ~same_phase & ~other_block)
        several = np.where(
            (reader == self.SEVERAL_BLOCKS) | other_block,
            self.SEVERAL_BLOCKS,
            np.where(reader == thread, thread, self.SEVERAL),
        )
        new = np.where(replace, thread, several)
        self.reader[granule] = new
        self.read_at[granule] = stamp
        clash = self.reader[granule] != new  # several readers in this very instruction
        if clash.any():
            shared = granule[clash]
            one_block = self.reader[shared] // self.threads_per_block == thread[clash] // self.threads_per_block
            self.reader[shared] = np.where(one_block, self.SEVERAL, self.SEVERAL_BLOCKS)
        return bad

    def write(
        self, granule: Array, thread: Array, stamp: Array, same_value: Array, atomic: bool = False
    ) -> tuple[Array, Array]:
        """Records writes.

        Args:
            granule: Which granule each thread writes.
            thread: The threads.
            stamp: Their stamps.
            same_value: Where memory already held the value, which is no race.
            atomic: Atomics do not conflict with later accesses.

        Returns:
            Which writes conflict with an earlier write, and which with an earlier read.
        """
        writes = self._conflict(self.writer[granule], self.written_at[granule], thread, stamp) & ~same_value
        reader, read_at = self.reader[granule], self.read_at[granule]
        reads = self._conflict(reader, read_at, thread, stamp)
        same_phase = (read_at >> BLOCK_BARRIER_SHIFT) == (stamp >> BLOCK_BARRIER_SHIFT)
        reads |= (reader == self.SEVERAL) & same_phase
        reads |= reader == self.SEVERAL_BLOCKS
        reads &= ~same_value
        if not atomic:
            self.writer[granule] = thread
            self.written_at[granule] = stamp
        return writes, reads
