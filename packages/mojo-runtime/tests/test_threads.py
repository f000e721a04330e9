"""The thread pool of kernels, and the core under many threads."""

from __future__ import annotations

import ctypes
import gc
import os
import threading

import numpy as np
import pytest

import mojo_runtime
from mojo_runtime import _native


@pytest.fixture(params=[1, 2, 5])
def threads(request, device):
    mojo_runtime.set_threads(request.param)
    yield request.param
    mojo_runtime.set_threads(None)


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_every_index_runs_once(stand_ins, device, threads, count):
    counts = mojo_runtime.array(np.zeros(count, np.int64), target=device)
    count_up = stand_ins.ready("count_up")
    for _ in range(20):
        mojo_runtime.launch(count_up, [counts], stream=mojo_runtime.current_stream(device))
    assert counts.numpy().tolist() == [20] * count
    assert _native.library().mojo_threads() == threads


def test_loops_on_several_threads_at_once(stand_ins, device, threads):
    """One of them has the workers; the others run alone and finish."""
    count_up = stand_ins.ready("count_up")
    streams = [mojo_runtime.Stream(device) for _ in range(4)]
    counts = [mojo_runtime.array(np.zeros(100, np.int64), target=device) for _ in streams]
    for _ in range(50):
        for stream, array in zip(streams, counts, strict=True):
            mojo_runtime.launch(count_up, [array], stream=stream)
    device.synchronize()
    assert all(array.numpy().tolist() == [50] * 100 for array in counts)


def test_threads_cannot_be_changed_inside_a_loop(device):
    errors = []

    def change(_context: int, _index: int) -> None:
        try:
            mojo_runtime.set_threads(3)
        except RuntimeError as error:
            errors.append(str(error))

    task = _native.TASK(change)
    mojo_runtime.set_threads(2)
    _native.library().mojo_parallel_for(task, None, 4)
    assert len(errors) == 4
    mojo_runtime.set_threads(None)
    assert 1 <= _native.library().mojo_threads() <= (os.cpu_count() or 1)
    with pytest.raises(ValueError, match="positive"):
        mojo_runtime.set_threads(-1)


def test_many_threads_allocate_launch_and_free(stand_ins, device):
    gc.collect()
    before = mojo_runtime.memory_statistics(device)
    add_one, failures = stand_ins.ready("add_one"), []

    def work(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            stream = mojo_runtime.Stream(device) if seed % 2 else mojo_runtime.default_stream(device)
            with stream:
                for _ in range(100):
                    size = int(rng.choice([3, 500, 20_000, 60_000]))
                    array = mojo_runtime.array(np.full(size, seed, np.float32), target=device)
                    for _ in range(3):
                        out = mojo_runtime.empty(size, target=device)
                        mojo_runtime.launch(add_one, [out, array], [0])
                        array = out
                    host = np.empty(size, np.float32)
                    mojo_runtime.memory.copy(host.ctypes.data, array.address, array.nbytes, source_device=device)
                    assert (host == seed + 3).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    after = mojo_runtime.memory_statistics(device)
    # Less where something that an earlier test left was freed meanwhile.
    assert after.allocated_current <= before.allocated_current
    assert after.allocations_total - before.allocations_total == 8 * 100 * 4


def test_slots_are_one_per_key_for_all_threads(device):
    found: list[int] = []
    barrier = threading.Barrier(8)

    def look_up() -> None:
        barrier.wait()
        found.extend(mojo_runtime.Slot(f"test.stand_ins:slot[n={i}]").address for i in range(100))

    threads = [threading.Thread(target=look_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 800
    assert len(set(found)) == 100


def test_task_receives_its_context(device):
    seen = []
    task = _native.TASK(lambda context, index: seen.append((context, index)))
    value = ctypes.c_int64(3)
    _native.library().mojo_parallel_for(task, ctypes.addressof(value), 3)
    assert sorted(seen) == [(ctypes.addressof(value), i) for i in range(3)]
