"""The compile service: takes requests for kernels from the native core and from Python, and runs the compilers.

One service per process. Its threads: a *dispatcher* that waits for the native core's requests, *workers* that run one
compiler each, and a *watcher* that looks after kernels which another process is building. Requests that find a worker
free go out at once; those that wait are built together, many kernels to a library.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mojo_runtime.cache import KernelCache
from mojo_runtime.compiler import CompileError, CompilerProcesses
from mojo_runtime.core import Core, NoCore
from mojo_runtime.jobs import MAXIMUM_BATCH, Counters, Job, JobQueue, default_workers
from mojo_runtime.spec import KernelSpec, as_specs
from mojo_runtime.store import Entry
from mojo_runtime.target import Target
from mojo_runtime.toolchain import preload_runtime_libraries
from mojo_runtime.trace import Event, EventKind, Listener, Trace

Specs = KernelSpec | str | Iterable[KernelSpec | str]

_WATCH_SECONDS = 0.05


class CompileService:
    """Resolves kernels from the cache and compiles the rest. Every method may be called from any thread.

    Args:
        target: What requests are for that name no target; by default this machine's CPU.
        folder: The cache folder; by default the configured one.
        workers: How many compilers may run at the same time; by default by cores and memory.
        batch: How many kernels a library may hold.
    """

    def __init__(
        self,
        target: Target | None = None,
        folder: Path | None = None,
        workers: int | None = None,
        batch: int = MAXIMUM_BATCH,
    ) -> None:
        self.target = target or Target.host()
        self.workers = workers or default_workers()
        self.counters = Counters()
        self.trace = Trace()
        self._folder = folder
        self._process = os.getpid()
        self._core: Core = NoCore()
        self._processes = CompilerProcesses()
        self._changed = threading.Condition()  # guards everything below
        self._caches: dict[Target, KernelCache] = {}
        self._jobs: dict[tuple[Target, KernelSpec], Job] = {}
        self._queue = JobQueue(batch)
        self._elsewhere: list[Job] = []
        self._unfinished = 0
        self._rounds = 0
        self._threads: list[threading.Thread] = []
        self._worker_count = 0
        self._busy = 0
        self._watching = False
        self._closing = False
        atexit.register(self.close)

    # ---- the public side ---------------------------------------------------------------------------------------------

    def attach(self, core: Core, target: Target | None = None) -> None:
        """Serves a native core from now on: tells it the kernels of the cache and takes its requests.

        Args:
            core: Only the first one is served.
            target: What the core's devices are, where that is not what the service was made for.
        """
        with self._changed:
            if isinstance(self._core, NoCore):
                self._core = core
                self.target = target or self.target
                self._start(self._dispatch, "mojo-dispatch")

    def request(self, specs: Specs, target: Target | None = None) -> None:
        """Asks for kernels without waiting for them.

        Args:
            specs: Kernels, as specs or keys.
            target: What to compile for; by default this process's devices.

        Raises:
            ValueError: Not a key.
        """
        self._submit([(spec, None) for spec in as_specs(specs)], target or self.target)

    def compile(self, specs: Specs, target: Target | None = None) -> dict[KernelSpec, Entry]:
        """Compiles kernels, or finds them in the cache, and waits until all are there.

        Args:
            specs: Kernels, as specs or keys. One that failed before is tried again, from its sources as they are now.
            target: What to compile for; by default this process's devices.

        Returns:
            Each kernel's library and symbol.

        Raises:
            ValueError: Not a key.
            CompileError: The first kernel that does not compile; the others are compiled all the same.
        """
        wanted = as_specs(specs)
        target = target or self.target
        self._forget_failures(wanted, target)
        jobs = self._submit([(spec, None) for spec in wanted], target)
        with self._changed:
            self._changed.wait_for(lambda: all(job.done for job in jobs))
        entries: dict[KernelSpec, Entry] = {}
        for job in jobs:
            if job.error is not None:
                raise job.error
            assert job.entry is not None
            entries[job.spec] = job.entry
        return entries

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until nothing is left to compile, of what was asked for before the call.

        Returns:
            False if `timeout` seconds went by before that.
        """
        with self._changed:
            # What the core has queued is not known yet: a whole round of the dispatcher must pass.
            rounds, core = self._rounds + 2, self._core
            while self._rounds < rounds and not isinstance(core, NoCore) and not self._closing:
                core.interrupt_requests()
                self._changed.wait(_WATCH_SECONDS)
            return self._changed.wait_for(lambda: self._unfinished == 0, timeout)

    def builds(self) -> int:
        """Returns how often a compiler ran."""
        return self.counters.builds

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Calls a function with every `Event` from now on; returns a function that ends this."""
        return self.trace.add_listener(listener)

    def cache(self, target: Target | None = None) -> KernelCache:
        """Returns the kernels that are known for a target."""
        target = target or self.target
        with self._changed:
            cache = self._caches.get(target)
            if cache is None:
                preload_runtime_libraries()
                cache = KernelCache(target, lambda text: self._emit("warning", message=text), self._folder)
                cache.refresh()
                self._caches[target] = cache
            return cache

    def close(self) -> None:
        """Ends compilers and threads; what is wanted and not ready fails. Called at the interpreter's exit."""
        if os.getpid() != self._process:
            return  # a forked child: the compilers are the parent's
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
            outstanding = [job for job in self._jobs.values() if not job.settled]
        atexit.unregister(self.close)
        self._processes.close()
        self._core.interrupt_requests()
        for job in outstanding:
            self._fail(job, CompileError([job.spec], job.target, "the process is exiting"), quiet=True)
        deadline = time.monotonic() + 5
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _submit(self, requests: Sequence[tuple[KernelSpec, int | None]], target: Target) -> list[Job]:
        """Makes or finds the jobs of kernels; those that are neither known nor in the cache are queued together."""
        cache = self.cache(target)
        jobs, new, settle = [], [], []
        with self._changed:
            for spec, slot in requests:
                job = self._jobs.get((target, spec))
                if job is None:
                    job = self._jobs[target, spec] = Job(target, spec)
                    new.append(job)
                if slot is not None:
                    job.slots.append(slot)
                    if job.done:
                        settle.append((job, slot))
                jobs.append(job)
            self._unfinished += len(new)
            self.counters.requested += len(new)
        for job, slot in settle:
            self._settle(job, slot)
        missing = self._resolve(new, cache)
        if missing:
            self._emit("requested", missing)
            self._enqueue(missing)
        return jobs

    def _resolve(self, jobs: Sequence[Job], cache: KernelCache) -> list[Job]:
        """Completes the jobs that the cache knows; returns those that it does not."""
        missing: list[Job] = []
        for job in jobs:
            try:
                entry = cache.find(job.spec)
            except OSError as error:
                self._fail(job, CompileError([job.spec], job.target, str(error)))
                continue
            if entry is None or not self._complete(job, entry, "loaded"):
                missing.append(job)
        return missing

    def _forget_failures(self, specs: Sequence[KernelSpec], target: Target) -> None:
        with self._changed:
            jobs = [self._jobs.get((target, spec)) for spec in specs]
            failed = [job for job in jobs if job is not None and job.done and job.error is not None]
            for job in failed:
                del self._jobs[target, job.spec]
        for job in failed:
            self.cache(target).forget(job.spec)
            for slot in job.slots:
                self._core.reset(slot)

    def _enqueue(self, jobs: Sequence[Job]) -> None:
        with self._changed:
            self._queue.add(jobs)
            for _ in range(min(len(jobs), self.workers - self._worker_count)):
                self._worker_count += 1
                self._start(self._work, f"mojo-compile-{self._worker_count}")
            self._changed.notify_all()

    def _start(self, function: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=function, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # ---- threads -----------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        core = self._core
        try:
            for key, entry in self.cache().entries().items():
                core.index_add(key, entry)
        except Exception as error:  # each request will say so again
            self._emit("warning", message=f"{type(error).__name__}: {error}")
        while not self._closing:
            requests: list[tuple[KernelSpec, int | None]] = []
            for slot, key in core.next_requests(1000):
                try:
                    requests.append((KernelSpec.parse(key), slot))
                except ValueError as error:
                    core.fail(slot, str(error))
            try:
                self._submit(requests, self.target)
            except Exception as error:  # or the slots would wait for ever
                for spec, requested in requests:
                    core.fail(requested or 0, f"{spec.key}: {type(error).__name__}: {error}")
            with self._changed:
                self._rounds += 1
                self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._queue) or self._closing)
                if self._closing:
                    return
                batch = self._queue.next_batch(self.workers - self._busy)
                self._busy += 1
            try:
                self._run(batch)
            except Exception as error:  # or somebody would wait for ever
                for job in batch:
                    self._fail(job, CompileError([job.spec], job.target, f"{type(error).__name__}: {error}"))
            finally:
                with self._changed:
                    self._busy -= 1

    def _run(self, batch: Sequence[Job]) -> None:
        """Builds a batch, except what other processes are building or have built meanwhile."""
        cache = self.cache(batch[0].target)
        locks = cache.acquire([job.spec for job in batch])
        try:
            self._publish(cache)
            elsewhere = [job for job in batch if job.spec not in locks]
            if elsewhere:
                self._watch(elsewhere)
            mine = self._resolve([job for job in batch if job.spec in locks], cache)
            if mine:
                self._build(mine, cache)
        finally:
            cache.release(list(locks.values()))

    def _build(self, jobs: Sequence[Job], cache: KernelCache) -> None:
        self.counters.builds += 1
        self._emit("started", jobs)
        begin = time.monotonic()
        try:
            entries = cache.build([job.spec for job in jobs], self._processes)
        except CompileError as error:
            seconds = time.monotonic() - begin
            if self._closing:
                return
            if len(jobs) == 1:
                self._fail(jobs[0], error, seconds)
                return
            self._emit("split", jobs, seconds, error.diagnostics)
            with self._changed:
                self._queue.split(jobs, error.suspects)
                self._changed.notify_all()
            return
        self.counters.compiled += len(jobs)
        self._emit("finished", jobs, time.monotonic() - begin, leaving=len(jobs))
        for job in jobs:
            if not self._complete(job, entries[job.spec]):
                message = f"{entries[job.spec].library} can't be loaded"
                self._fail(job, CompileError([job.spec], job.target, message))

    def _watch(self, jobs: Sequence[Job]) -> None:
        with self._changed:
            self._elsewhere += jobs
            if not self._watching:
                self._watching = True
                self._start(self._watch_others, "mojo-watch")

    def _watch_others(self) -> None:
        """Waits for kernels that other processes build; takes over those whose builder ended without a result."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, _WATCH_SECONDS)
                self._elsewhere = jobs = [job for job in self._elsewhere if not job.settled]
                if not jobs or self._closing:
                    self._watching = False
                    return
            for target in {job.target for job in jobs}:
                cache = self.cache(target)
                mine = [job for job in jobs if job.target == target]
                free = cache.acquire([job.spec for job in mine])
                cache.release(list(free.values()))
                self._publish(cache)
                abandoned = [job for job in self._resolve(mine, cache) if job.spec in free]
                with self._changed:
                    self._elsewhere = [job for job in self._elsewhere if job not in abandoned]
                self._enqueue(abandoned)

    # ---- results -----------------------------------------------------------------------------------------------------

    def _publish(self, cache: KernelCache) -> None:
        """Reads what other processes have added to the cache and tells the core."""
        for key, entry in cache.refresh().items():
            if cache.target == self.target:
                self._core.index_add(key, entry)

    def _complete(self, job: Job, entry: Entry, event: EventKind | None = None) -> bool:
        """Gives a kernel to those who wait for it; False where its library can't be loaded."""
        with self._changed:
            if job.settled:
                return True
            slots = list(job.slots)
        if job.target == self.target:
            try:
                for slot in slots:
                    self._core.load(slot, entry)
            except RuntimeError as error:
                self._emit("warning", message=f"{job.spec.key} is built again: {error}")
                self.cache(job.target).forget(job.spec)
                return False
            self._core.index_add(job.spec.key, entry)
        if event == "loaded":
            self.counters.loaded += 1
            self._emit(event, [job], leaving=1)
        with self._changed:
            job.entry = entry
        self._finish(job, slots)
        return True

    def _fail(self, job: Job, error: CompileError, seconds: float = 0.0, quiet: bool = False) -> None:
        with self._changed:
            if job.settled:
                return
            job.error = error
            slots = list(job.slots)
            self.counters.failed += 1
        for slot in slots:
            self._core.fail(slot, str(error))
        if not quiet:
            self._emit("failed", [job], seconds, str(error), leaving=1)
        self._finish(job, slots)

    def _finish(self, job: Job, served: Sequence[int]) -> None:
        with self._changed:
            job.done = True
            self._unfinished -= 1
            late = [slot for slot in job.slots if slot not in served]
            self._changed.notify_all()
        for slot in late:
            self._settle(job, slot)

    def _settle(self, job: Job, slot: int) -> None:
        """Fills or fails a slot that asked for a job when it was done already."""
        if job.entry is None:
            self._core.fail(slot, str(job.error))
            return
        try:
            self._core.load(slot, job.entry)
        except RuntimeError:  # deleted since
            with self._changed:
                self._jobs.pop((job.target, job.spec), None)
            self.cache(job.target).forget(job.spec)
            self._submit([(job.spec, slot)], job.target)

    def _emit(
        self, kind: EventKind, jobs: Sequence[Job] = (), seconds: float = 0.0, message: str = "", leaving: int = 0
    ) -> None:
        specs = tuple(job.spec for job in jobs)
        target = str(jobs[0].target) if jobs else ""
        self.trace.emit(Event(kind, specs, target, seconds, message, self._unfinished - leaving))


_service: CompileService | None = None
_service_lock = threading.Lock()


def service() -> CompileService:
    """Returns this process's service, made at the first call."""
    global _service
    with _service_lock:
        if _service is None:
            _service = CompileService()
        return _service


def _after_fork() -> None:
    global _service, _service_lock
    _service, _service_lock = None, threading.Lock()  # the threads are not in the child


os.register_at_fork(after_in_child=_after_fork)
