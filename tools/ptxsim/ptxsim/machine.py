"""SIMT execution: scheduling, divergence, barriers.

All threads of a batch of blocks advance together. The unit of scheduling is a basic block; the runnable threads with
the lowest block number go first, which brings structured code together again, and now and then the highest goes first
instead, so that spin loops make progress.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .errors import PtxError
from .memory import Array
from .races import BLOCK_BARRIER_SHIFT
from .state import I64, U32
from .warps import WarpOperations

FAIRNESS_PERIOD = 61
"""Every so many steps the threads furthest ahead run first."""
BarrierKey = tuple[int, int | None]
"""A barrier's number and how many threads it waits for (None: the block)."""


@dataclasses.dataclass
class Waiting:
    """Threads that wait: at which basic block, where they go on, and, for a warp, the mask of lanes they expect."""

    threads: Array
    at: int
    next: int
    mask: Any = None


class Machine(WarpOperations):
    """Runs the threads of `ThreadState`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ready: dict[int, list[Array]] = {0: [self.all]}
        self._alive_in_block = np.full(self.blocks, self.threads_per_block)
        self._alive_in_warp = np.bincount(self.warp, minlength=self.warps)
        self._at_barrier: dict[BarrierKey, list[Waiting]] = {}
        self._at_warp: dict[int, list[Waiting]] = {}

    def run(self) -> None:
        """Runs until every thread has exited.

        Raises:
            PtxError: A thread did something that stops a launch, all wait for each other, or it takes too many steps.
        """
        steps = instructions = 0
        while self._ready:
            pick = max if steps % FAIRNESS_PERIOD == FAIRNESS_PERIOD - 1 else min
            number = pick(self._ready)
            parts = self._ready.pop(number)
            threads = parts[0]
            if len(parts) > 1:
                threads = np.concatenate(parts)
                threads.sort()
            n = len(threads)
            block = self.program.blocks[number]
            steps += 1
            instructions += block.instructions * n
            if steps > self.options.max_steps:
                raise PtxError(f"endless loop? {steps} steps; now near PTX line {block.first_line}")
            result = block.run(self, self.registers, None if n == self.n else threads, n)
            if block.kind == "jump":
                self._go(block.target, threads)
            elif block.kind == "branch":
                taken = np.broadcast_to(result, (n,))
                count = np.count_nonzero(taken)
                if count:
                    self._go(block.target, threads if count == n else threads[taken])
                if count < n:
                    self._go(block.otherwise, threads if count == 0 else threads[~taken])
            elif block.kind == "exit":
                self._exit(threads)
            elif block.kind == "barrier":
                self._barrier(threads, result[0], result[1], number, block.target)
            else:
                self._wait_for_warp(threads, result, number, block.target)
        if self._at_barrier or self._at_warp:
            self._deadlock()
        self.wait_for_copies(None, None)
        self.report.steps += steps
        self.report.thread_instructions += instructions

    def _go(self, number: int, threads: Array) -> None:
        self._ready.setdefault(number, []).append(threads)

    def _deadlock(self) -> None:
        lines = []
        for (barrier, _), entries in self._at_barrier.items():
            for entry in entries:
                line = self.program.blocks[entry.at].last_line
                example = self.where(int(entry.threads[0]))
                lines.append(f"{len(entry.threads)} threads wait at barrier {barrier}, PTX line {line}, e.g. {example}")
        for number, entries in self._at_warp.items():
            for entry in entries:
                line = self.program.blocks[number].first_line
                example = self.where(int(entry.threads[0]))
                lines.append(f"{len(entry.threads)} threads wait for their warp before PTX line {line}, e.g. {example}")
        raise PtxError("deadlock: " + "; ".join(lines))

    def _exit(self, threads: Array) -> None:
        self.exited[threads] = True
        np.subtract.at(self._alive_in_block, self.batch_block[threads], 1)
        np.subtract.at(self._alive_in_warp, self.warp[threads], 1)
        for key in list(self._at_barrier):
            self._release_barrier(key)
        for number in list(self._at_warp):
            self._release_warps(number)

    # ---- barriers of a block ----

    def _barrier(self, threads: Array, barrier: Any, count: Any, at: int, after: int) -> None:
        """`barrier` is the number, `count` how many threads it waits for; either may differ between threads."""
        if np.ndim(barrier) or np.ndim(0 if count is None else count):
            numbers = np.broadcast_to(barrier, (len(threads),))
            counts = None if count is None else np.broadcast_to(count, (len(threads),))
            for number in np.unique(numbers):
                which = numbers == number
                self._barrier(threads[which], int(number), None if counts is None else counts[which][0], at, after)
            return
        if self.exited.any():
            gone = self._alive_in_block[self.batch_block[threads]] < self.threads_per_block
            if gone.any():
                what = "waits at a barrier after other threads of its block have exited"
                self.hazard("barrier-after-exit", self.program.blocks[at].last_line, threads, gone, what)
        key = (int(barrier), None if count is None else int(count))
        self._at_barrier.setdefault(key, []).append(Waiting(threads, at, after))
        self._release_barrier(key)

    def _release_barrier(self, key: BarrierKey) -> None:
        waiting = self._at_barrier[key]
        arrived = np.zeros(self.blocks, I64)
        for entry in waiting:
            arrived += np.bincount(self.batch_block[entry.threads], minlength=self.blocks)
        needed = self._alive_in_block if key[1] is None else np.full(self.blocks, key[1])
        complete = (arrived > 0) & (arrived >= needed)
        if not complete.any():
            return
        left: list[Waiting] = []
        met_at: dict[int, int] = {}
        for entry in waiting:
            done = complete[self.batch_block[entry.threads]]
            released = entry.threads[done]
            if len(released):
                if len(waiting) > 1:
                    self._check_same_barrier(released, entry.at, met_at)
                passed = (self.stamp[released] >> BLOCK_BARRIER_SHIFT) + 1
                self.stamp[released] = passed << BLOCK_BARRIER_SHIFT
                self._go(entry.next, released)
            if len(released) < len(entry.threads):
                left.append(Waiting(entry.threads[~done], entry.at, entry.next))
        if left:
            self._at_barrier[key] = left
        else:
            del self._at_barrier[key]

    def _check_same_barrier(self, released: Array, at: int, met_at: dict[int, int]) -> None:
        blocks = self.batch_block[released]
        for block in np.unique(blocks):
            if met_at.setdefault(int(block), at) != at:
                what = "meets threads of its block that wait at another barrier instruction"
                line = self.program.blocks[at].last_line
                self.hazard("divergent-barrier", line, released, blocks == block, what)

    # ---- warps ----

    def _wait_for_warp(self, threads: Array, mask: Any, at: int, number: int) -> None:
        if len(threads) == self.n:
            self._go(number, threads)
            return
        self._at_warp.setdefault(number, []).append(Waiting(threads, at, number, mask))
        self._release_warps(number)

    def _release_warps(self, number: int) -> None:
        entries = self._at_warp[number]
        threads = np.concatenate([entry.threads for entry in entries])
        masks = None
        if all(entry.mask is None for entry in entries):
            arrived = np.bincount(self.warp[threads], minlength=self.warps)
            complete = (arrived >= self._alive_in_warp)[self.warp[threads]]
        else:
            everyone = U32(0xFFFFFFFF)
            masks = np.concatenate(
                [
                    np.broadcast_to(everyone if entry.mask is None else entry.mask, (len(entry.threads),))
                    for entry in entries
                ]
            )
            here = self._lanes(threads)[self.warp[threads]]
            needed = masks & self._lanes(np.flatnonzero(~self.exited))[self.warp[threads]]
            complete = (here & needed) == needed
        if complete.any():
            self._go(number, np.sort(threads[complete]))
        if complete.all():
            del self._at_warp[number]
        else:
            left = None if masks is None else masks[~complete]
            self._at_warp[number] = [Waiting(threads[~complete], entries[0].at, number, left)]

    def _lanes(self, threads: Array) -> Array:
        """Per warp the bits of the lanes of some threads."""
        bits = np.zeros(self.warps, U32)
        np.bitwise_or.at(bits, self.warp[threads], U32(1) << self.lane[threads])
        return bits
