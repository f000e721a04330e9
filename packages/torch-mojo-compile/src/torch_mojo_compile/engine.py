"""MAX's engine: the session that runs models, and the processes that compile them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

from max import driver, engine
from max.experimental.compile_pool import ProcessCompilePool
from max.graph import Module

from mojo_runtime import _native
from torch_mojo_compile import bridge, store
from torch_mojo_compile.config import config
from torch_mojo_compile.errors import CompileFailed

Team = Literal["", "pool", "openmp"]
_FEW_CORES = 4
_NICENESS = 5
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30
_LOG_NANOSECONDS = 50_000_000

_lock = threading.Lock()
_pool: ProcessCompilePool | None = None
_has_run = False


@functools.cache
def host() -> driver.CPU:
    """Returns MAX's CPU device; made here first in a process, it has the threads that the settings ask for.

    MAX counts the cores that its maker's thread may use. The session's own argument for it can't be used together with
    graphs: MAX ends the process when one part of it asks for other threads than another one did.
    """
    if not hasattr(os, "sched_getaffinity"):
        return driver.CPU()
    cores = os.sched_getaffinity(0)
    few = len(cores) <= _FEW_CORES
    threads = config.threads or (1 if few else len(cores))
    running = set(os.listdir("/proc/self/task"))
    os.sched_setaffinity(0, sorted(cores)[:threads])
    try:
        return driver.CPU()
    finally:
        os.sched_setaffinity(0, cores)
        for thread in map(int, set(os.listdir("/proc/self/task")) - running):
            # The threads that MAX made inherited the restriction, and so would those that they make.
            os.sched_setaffinity(thread, cores)
            if few:
                # They look for their next task for 200 us, on a core that the program may need.
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)


@functools.cache
def session() -> engine.InferenceSession:
    """Returns the process's session, with the CPU and all GPUs."""
    devices = [host(), *(driver.Accelerator(i) for i in range(driver.accelerator_count()))]
    return engine.InferenceSession(devices=devices)


def _workers() -> int:
    if config.workers is not None:
        return config.workers
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(len(os.sched_getaffinity(0)), int(memory // 8)))


def _compile_pool() -> ProcessCompilePool:
    global _pool
    with _lock:
        if _pool is None:
            specs = [driver.DeviceSpec.cpu()]
            specs += [driver.DeviceSpec.accelerator(i) for i in range(driver.accelerator_count())]
            _pool = ProcessCompilePool(device_specs=specs, max_workers=_workers())
        return _pool


def compile_module(module: Module, packages: Sequence[Path], key: str, names: Sequence[str]) -> Future[Any]:
    """Compiles a module in another process and puts it into the store.

    Args:
        module: The graphs.
        packages: The custom ops they use.
        key: The store's key.
        names: The names of the graphs.

    Returns:
        A future of the compiled model.
    """
    compiled = _compile_pool().compile_module(module, custom_extensions=list(packages))
    result: Future[Any] = Future()

    def finish(done: Future[engine.CompiledModel]) -> None:
        try:
            model = done.result()
            with store.writing(key, names) as path:
                model.export_mef(path)
            result.set_result(model)
        except BaseException as error:
            result.set_exception(CompileFailed(f"MAX can't compile {', '.join(names)}: {error}"))

    compiled.add_done_callback(finish)
    return result


@contextlib.contextmanager
def _coarse_timer() -> Iterator[None]:
    """Makes the timer of the threads that are made meanwhile too coarse to wake thousands of times a second."""
    if sys.platform != "linux":
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    previous = prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0)
    prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_LOG_NANOSECONDS), 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(previous), 0, 0, 0)


def execute(model: Any, buffers: list[driver.Buffer], *, team: Team) -> tuple[list[driver.Buffer], bool]:
    """Runs a model.

    Args:
        model: One of those that `load` returned.
        buffers: Its inputs.
        team: Whose threads are kept awake for the kernels' loops: the runtime's, or those of torch's OpenMP.

    Returns:
        The results, and whether there was a loop for the team.
    """
    global _has_run
    if not _has_run:
        _has_run = True
        # MAX's log gets its thread in the first run; it looks for text every 100 us, 12 % of a core.
        with _coarse_timer():
            return execute(model, buffers, team=team)
    if not team:
        return model._execute_device_tensors(buffers), False
    native = _native.library()
    native.mojo_team_begin(team == "openmp")
    try:
        results = model._execute_device_tensors(buffers)
    finally:
        had_loop = native.mojo_team_end()
    return results, bool(had_loop)


def load(compiled: Any) -> dict[str, Any]:
    """Makes a compiled model ready to run in this process; returns the model of each graph by name."""
    bridge.connect()
    return dict(session().init_all(compiled))


def read(path: Path) -> Any:
    """Returns a stored model.

    Raises:
        Exception: The file can't be read.
    """
    return engine.read(path)
