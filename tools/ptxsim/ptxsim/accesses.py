"""Loads, stores, atomics and asynchronous copies of many threads at once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import PtxError
from .memory import ALLOCATED, INITIALISED, RED, UNSIGNED, Array, Space
from .races import RaceTracker
from .state import I64, U32, U64, ThreadState
from .windows import WINDOW_SHIFT, WINDOW_SIZE


@dataclasses.dataclass
class PendingCopy:
    """A cp.async that no wait has covered yet; one row per thread."""

    threads: Array
    offsets: Array
    words: Array
    groups: Array
    line: int

    def select(self, which: Array) -> PendingCopy:
        """The copies of some of the threads."""
        return PendingCopy(self.threads[which], self.offsets[which], self.words[which], self.groups[which], self.line)


class MemoryOperations(ThreadState):
    """Memory as generated code uses it: `active` are the threads (None: all), `n` their number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pending_copies: list[PendingCopy] = []
        self.copy_group = np.zeros(self.n, I64)

    def members(self, active: Array | None) -> Array:
        """The threads' numbers."""
        return self.all if active is None else active

    def _resolve(
        self,
        space: str,
        address: Array,
        active: Array | None,
        n: int,
        nbytes: int,
        line: int,
        what: str,
        strong: bool = False,
    ) -> tuple[Space, Array, Array]:
        """The space, byte offsets into it and their shadow; raises on out-of-bounds and misaligned addresses.

        A `strong` access may lie in part outside of an allocation: an atomic on 16 bits is done on the 32 that hold it.
        """
        if np.ndim(address) == 0 or address.shape[0] != n:
            address = np.broadcast_to(address, (n,))
        memory: Space
        if space == "global":
            memory = self.memory
            offset = address - U64(self.memory.base)
            bad = offset > U64(memory.nbytes - nbytes)
        elif space == "shared":
            memory = self.shared
            bad = address + U64(nbytes) > U64(self.shared_size)
            block = self.batch_block if active is None else self.batch_block[active]
            offset = address + block.astype(U64) * U64(self.shared_stride)
        elif space == "local":
            memory = self.local
            bad = address + U64(nbytes) > U64(self.local_size)
            offset = address + self.members(active).astype(U64) * U64(self.local_size)
        else:
            raise PtxError(f"state space {space}")
        if bad.any():
            self._out_of_bounds(space, address, active, bad, line, what)
        if nbytes > 1:
            misaligned = (offset & U64(nbytes - 1)) != 0
            if misaligned.any():
                example = int(address[int(np.flatnonzero(misaligned)[0])])
                self.fail("misaligned", line, active, misaligned, f"{what} {nbytes} bytes at {example:#x}")
        offset = offset.view(I64)
        shadow = memory.shadow[offset]
        if nbytes > 1:
            last = memory.shadow[offset + (nbytes - 1)]
            shadow = np.maximum(shadow, last) if strong else np.minimum(shadow, last)
        red = shadow == RED
        if red.any():
            self._out_of_bounds(space, address, active, red, line, what)
        return memory, offset, shadow

    def _out_of_bounds(
        self, space: str, address: Array, active: Array | None, bad: Array, line: int, what: str
    ) -> None:
        example = int(address[int(np.flatnonzero(bad)[0])])
        place = self.memory.describe(example) if space == "global" else f"offset {example}"
        self.fail("out-of-bounds", line, active, bad, f"{what} {space} memory at {place}")

    # ---- races ----

    def _races(self, memory: Space) -> RaceTracker | None:
        if memory is self.memory:
            return self.global_races
        return self.shared_races if memory is self.shared else None

    def _identity(self, active: Array | None) -> tuple[Array, Array]:
        if active is None:
            return self.global_thread, self.stamp
        return self.global_thread[active], self.stamp[active]

    def _track_read(
        self, races: RaceTracker, space: str, offset: Array, nbytes: int, active: Array | None, line: int
    ) -> None:
        tracked = offset < races.nbytes  # module-level variables, at the end of the arena, are not
        if not tracked.all():
            active, offset = self.members(active)[tracked], offset[tracked]
        thread, stamp = self._identity(active)
        for k in range(0, nbytes, races.granule):
            bad = races.read((offset + k) // races.granule, thread, stamp)
            if bad.any():
                what = f"reads {space} memory that another thread wrote without a barrier between"
                self.hazard("race", line, active, bad, what)

    def _track_write(
        self,
        races: RaceTracker,
        space: str,
        offset: Array,
        nbytes: int,
        active: Array | None,
        line: int,
        same_value: Array,
        atomic: bool = False,
    ) -> None:
        tracked = offset < races.nbytes
        if not tracked.all():
            active, offset, same_value = self.members(active)[tracked], offset[tracked], same_value[tracked]
        thread, stamp = self._identity(active)
        for k in range(0, nbytes, races.granule):
            writes, reads = races.write((offset + k) // races.granule, thread, stamp, same_value, atomic)
            for bad, did in ((writes, "writes"), (reads, "reads")):
                if bad.any():
                    past = {"writes": "wrote", "reads": "read"}[did]
                    what = f"overwrites {space} memory that another thread {past} without a barrier between"
                    self.hazard("race", line, active, bad, what)

    # ---- loads and stores ----

    def load(
        self, space: str, address: Array, active: Array | None, n: int, size: int, width: int, line: int, strong: bool
    ) -> list[Array]:
        """Loads `width` elements of `size` bytes per thread, as unsigned arrays; `strong` accesses are no races."""
        nbytes = size * width
        if space == "param":
            return self._load_parameter(address, n, size, width)
        if space == "generic":

            def load_part(part: str, addresses: Array, threads: Array | None, count: int, _: Any) -> list[Array]:
                return self.load(part, addresses, threads, count, size, width, line, strong)

            return self._split_generic(address, active, n, load_part, width, size)
        if space == "const":
            space = "global"
        memory, offset, shadow = self._resolve(space, address, active, n, nbytes, line, "reads", strong)
        unwritten = shadow != INITIALISED
        if unwritten.any():
            # An element whose first byte is written ends with the padding of a structure.
            first_bytes = [memory.shadow[offset + k * size] for k in range(width)]
            unwritten &= np.minimum.reduce(first_bytes) != INITIALISED
        if unwritten.any():
            self.hazard("uninitialised", line, active, unwritten, f"reads {space} memory that nothing has written")
        races = self._races(memory)
        if races is not None and not strong:
            self._track_read(races, space, offset, nbytes, active, line)
        view, element = memory.views[size], offset // size
        return [view[element + k] for k in range(width)]

    def _load_parameter(self, address: Array, n: int, size: int, width: int) -> list[Array]:
        first = address if np.ndim(address) == 0 else address.flat[0]
        if np.ndim(address) == 0 or (address == first).all():
            start = int(first)
            ends = range(start, start + size * width, size)
            return [self.parameters[i : i + size].view(UNSIGNED[size])[0] for i in ends]
        index = address.astype(I64)[:, None] + np.arange(size * width)
        content = self.parameters[index].reshape(n, width, size)
        return [np.ascontiguousarray(content[:, k]).view(UNSIGNED[size])[:, 0] for k in range(width)]

    def store(
        self,
        space: str,
        address: Array,
        active: Array | None,
        n: int,
        size: int,
        values: list[Array],
        line: int,
        strong: bool,
    ) -> None:
        """Stores unsigned elements of `size` bytes; two threads that write one address must write one value."""
        if space == "generic":
            spread = [np.broadcast_to(value, (n,)) for value in values]

            def store_part(part: str, addresses: Array, threads: Array | None, count: int, which: Any) -> list[Array]:
                chosen = spread if which is None else [value[which] for value in spread]
                self.store(part, addresses, threads, count, size, chosen, line, strong)
                return []

            self._split_generic(address, active, n, store_part, 0, size)
            return
        memory, offset, _ = self._resolve(space, address, active, n, size * len(values), line, "writes")
        view, element = memory.views[size], offset // size
        races = self._races(memory) if not strong else None
        same = np.ones(n, bool)
        if races is not None:
            for k, value in enumerate(values):
                same &= view[element + k] == value
        for k, value in enumerate(values):
            view[element + k] = value
        if races is not None:
            clash = np.zeros(n, bool)
            for k, value in enumerate(values):
                clash |= view[element + k] != value
            if clash.any():
                what = f"writes another value than another thread to one {space} address in one instruction"
                self.hazard("race", line, active, clash, what)
            self._track_write(races, space, offset, size * len(values), active, line, same)
        for k in range(size * len(values)):
            memory.shadow[offset + k] = INITIALISED

    def _split_generic(
        self,
        address: Array,
        active: Array | None,
        n: int,
        access: Callable[[str, Array, Array | None, int, Array | None], list[Array]],
        width: int,
        size: int,
    ) -> list[Array]:
        """Runs an access once per space that the generic addresses fall in."""
        address = np.broadcast_to(address, (n,)) if np.ndim(address) == 0 or address.shape[0] != n else address
        window = address >> U64(WINDOW_SHIFT)
        inside = (address & U64((1 << WINDOW_SHIFT) - 1)) < U64(WINDOW_SIZE)
        kinds = np.where(inside & (window >= 1) & (window <= 3), window, 0).astype(np.int8)
        names = ("global", "shared", "local", "param")
        mask = U64(WINDOW_SIZE - 1)
        present = np.unique(kinds)
        if len(present) == 1:
            kind = int(present[0])
            return access(names[kind], address & mask if kind else address, active, n, None)
        result = [np.zeros(n, UNSIGNED[size]) for _ in range(width)]
        for kind in present:
            which = np.flatnonzero(kinds == kind)
            part = address[which] & mask if kind else address[which]
            values = access(names[int(kind)], part, self.members(active)[which], len(which), which)
            for target, value in zip(result, values, strict=False):
                target[which] = value
        return result

    # ---- atomics ----

    def atomic(
        self,
        space: str,
        address: Array,
        active: Array | None,
        n: int,
        size: int,
        operation: str,
        function: Any,
        operands: list[Array],
        wanted: bool,
        line: int,
    ) -> Array:
        """Read-modify-write in thread order; returns the old values where they are `wanted`."""
        operands = [np.broadcast_to(operand, (n,)) for operand in operands]
        if space == "generic":
            address = np.broadcast_to(address, (n,))
            shared = (address >> U64(WINDOW_SHIFT)) == 1
            if shared.any() and not shared.all():
                raise PtxError(f"PTX line {line}: an atomic on generic addresses of several spaces")
            space = "shared" if shared.any() else "global"
            address = address & U64(WINDOW_SIZE - 1) if shared.any() else address
        memory, offset, shadow = self._resolve(space, address, active, n, size, line, "does an atomic on", True)
        unwritten = shadow != INITIALISED
        if unwritten.any():
            what = f"does an atomic on {space} memory that nothing has written"
            self.hazard("uninitialised", line, active, unwritten, what)
        races = self._races(memory)
        if races is not None:
            self._track_write(races, space, offset, size, active, line, np.zeros(n, bool), atomic=True)
        view, element = memory.views[size], offset // size
        old = np.empty(n, UNSIGNED[size])
        order = np.argsort(element, kind="stable")
        ordered = element[order]
        first = np.r_[True, ordered[1:] != ordered[:-1]]
        start = np.flatnonzero(first)
        group = np.cumsum(first) - 1
        if first.all():
            old[:] = view[element]
            view[element] = function(old, *operands)
        elif operation == "add" and size >= 4 and function.integer:
            if wanted:
                addend = operands[0][order]
                before = np.cumsum(addend, dtype=UNSIGNED[size]) - addend
                old[order] = view[ordered] + (before - before[start][group])
            np.add.at(view, element, operands[0])
        else:
            rank = np.arange(n) - start[group]
            by_rank = np.argsort(rank, kind="stable")
            bounds = np.searchsorted(rank[by_rank], np.arange(rank.max() + 2))
            for low, high in itertools.pairwise(bounds):
                turn = order[by_rank[low:high]]
                old[turn] = view[element[turn]]
                view[element[turn]] = function(old[turn], *[operand[turn] for operand in operands])
        for k in range(size):
            byte = offset + k
            memory.shadow[byte] = np.where(memory.shadow[byte] == RED, RED, INITIALISED)
        return old

    # ---- cp.async ----

    def copy_asynchronously(
        self, target: Array, source: Array, active: Array | None, n: int, nbytes: int, source_bytes: Any, line: int
    ) -> None:
        """cp.async: reads now, and writes when a wait covers it; until then the target counts as never written."""
        threads = self.members(active)
        words = np.zeros((n, nbytes // 4), U32)
        source = np.broadcast_to(source, (n,))
        valid = np.broadcast_to(nbytes if source_bytes is None else source_bytes, (n,))
        whole = np.flatnonzero(valid == nbytes)
        self._resolve("global", source[whole], threads[whole], len(whole), nbytes, line, "reads")
        for k in range(nbytes // 4):
            on = np.flatnonzero(valid >= 4 * (k + 1))
            if len(on):
                words[on, k] = self.load("global", source[on] + U64(4 * k), threads[on], len(on), 4, 1, line, False)[0]
        memory, offset, _ = self._resolve("shared", target, active, n, nbytes, line, "writes")
        for k in range(nbytes):
            memory.shadow[offset + k] = ALLOCATED
        self.pending_copies.append(PendingCopy(threads, offset, words, self.copy_group[threads], line))

    def commit_copies(self, active: Array | None) -> None:
        """cp.async.commit_group."""
        self.copy_group[self.members(active)] += 1

    def wait_for_copies(self, active: Array | None, newest: int | None) -> None:
        """cp.async.wait_group: all but the `newest` groups are done; None: all copies are."""
        waiting = np.zeros(self.n, bool)
        waiting[self.members(active)] = True
        left = []
        for copy in self.pending_copies:
            done = waiting[copy.threads]
            if newest is not None:
                done = done & (copy.groups < self.copy_group[copy.threads] - newest)
            if done.any():
                self._finish_copy(copy.select(done))
            if not done.all():
                left.append(copy.select(~done))
        self.pending_copies = left

    def _finish_copy(self, copy: PendingCopy) -> None:
        count = copy.words.shape[1]
        for k in range(count):
            self.shared.views[4][copy.offsets // 4 + k] = copy.words[:, k]
        for k in range(4 * count):
            self.shared.shadow[copy.offsets + k] = INITIALISED
        if self.shared_races is not None:
            different = np.zeros(len(copy.offsets), bool)
            self._track_write(self.shared_races, "shared", copy.offsets, 4 * count, copy.threads, copy.line, different)
