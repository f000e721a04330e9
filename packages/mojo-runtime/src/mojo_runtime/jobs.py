"""The compile service's queue: which kernels are wanted, and which go into the next library."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from mojo_runtime.compiler import CompileError
from mojo_runtime.config import config
from mojo_runtime.spec import KernelSpec
from mojo_runtime.store import Entry
from mojo_runtime.target import Target

MAXIMUM_BATCH = 48
"""Kernels in one library of the background service."""
_MINIMUM_SHARE = 4  # fewer are not split over compilers: a small build takes about as long for any number of kernels
_MAXIMUM_SUSPECTS = 4
_BUILD_BYTES = 4_500_000_000  # peak memory of the largest builds
_MAXIMUM_WORKERS = 16


@dataclasses.dataclass
class Counters:
    """What a service has done since it started.

    Attributes:
        requested: Kernels that were wanted.
        loaded: Of those, kernels that were found in the cache.
        compiled: Kernels that were compiled here.
        failed: Kernels that do not compile.
        builds: Runs of the compiler.
    """

    requested: int = 0
    loaded: int = 0
    compiled: int = 0
    failed: int = 0
    builds: int = 0


@dataclasses.dataclass(eq=False)
class Job:
    """A kernel that is wanted for a target.

    Attributes:
        target: What to compile for.
        spec: The kernel.
        slots: The native core's slots that wait for it.
        entry: Where it is, once it is there.
        error: Why it does not compile.
        done: Everybody who waited has been told.
    """

    target: Target
    spec: KernelSpec
    slots: list[int] = dataclasses.field(default_factory=list)
    entry: Entry | None = None
    error: CompileError | None = None
    done: bool = False

    @property
    def settled(self) -> bool:
        """Whether the result is known."""
        return self.entry is not None or self.error is not None

    @property
    def group(self) -> tuple[str, str]:
        """Jobs of one group can share a library: a file outside the packages has its folder as include path."""
        return str(self.target), os.path.dirname(self.spec.module) if self.spec.is_file else ""


class JobQueue:
    """Jobs that wait for a compiler, in order, and batches that are to be built again. Not locked.

    Args:
        maximum: How many jobs a batch may hold.
    """

    def __init__(self, maximum: int = MAXIMUM_BATCH) -> None:
        self._maximum = maximum
        self._waiting: list[Job] = []
        self._retries: collections.deque[list[Job]] = collections.deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._retries)

    def add(self, jobs: Sequence[Job]) -> None:
        """Appends jobs."""
        self._waiting.extend(jobs)

    def next_batch(self, free: int) -> list[Job]:
        """Takes the jobs of the next library: all that wait and fit together, shared evenly by the free compilers.

        Args:
            free: How many compilers are free, the caller's included.
        """
        if self._retries:
            return self._retries.popleft()
        fitting = [job for job in self._waiting if job.group == self._waiting[0].group]
        size = min(self._maximum, max(_MINIMUM_SHARE, -(-len(fitting) // max(free, 1))))
        batch = fitting[:size]
        taken = set(map(id, batch))
        self._waiting = [job for job in self._waiting if id(job) not in taken]
        return batch

    def split(self, batch: Sequence[Job], suspects: Sequence[KernelSpec]) -> None:
        """Queues a batch that failed so that only the faulty kernels fail in the end.

        Args:
            batch: At least two jobs.
            suspects: The kernels that the compiler's message points at; these are built alone and the rest together.
                Where there are none or many, the halves are built.
        """
        alone = [job for job in batch if job.spec in suspects]
        rest = [job for job in batch if job.spec not in suspects]
        if 0 < len(alone) <= _MAXIMUM_SUSPECTS:
            parts = [rest, *([job] for job in alone)]
        else:
            middle = len(batch) // 2
            parts = [list(batch[:middle]), list(batch[middle:])]
        self._retries.extend(part for part in parts if part)


def default_workers() -> int:
    """Returns how many compilers run at the same time: one per core of this process, as far as memory goes."""
    if config.compile_jobs is not None:
        return config.compile_jobs
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = int(dict(line.split(":") for line in lines)["MemAvailable"].split()[0]) * 1024
        cores = min(cores, available // _BUILD_BYTES)
    return max(1, min(cores, _MAXIMUM_WORKERS))
