"""How models share a machine's cores with torch."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

import pytest
import torch

import mojo_runtime
from mojo_runtime import _native
from torch_mojo_compile import engine

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the system has no such call")


@pytest.fixture(params=[2, 5], ids="{}_threads_of_torch".format)
def native(request):
    mojo_runtime.devices()
    mojo_runtime.set_threads(2)
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    library = _native.library()
    library.mojo_use_openmp_of(b"libtorch_cpu.so")
    yield library
    torch.set_num_threads(torch_threads)
    mojo_runtime.set_threads(None)


def _run_loop(native: ctypes.CDLL, count: int) -> list[tuple[int, int]]:
    """Runs a loop on a thread of its own, as MAX does; returns each index with the thread that it was run by."""
    seen: list[tuple[int, int]] = []

    def body(_context: int, index: int) -> None:
        time.sleep(0.002)
        seen.append((index, threading.get_native_id()))

    caller = threading.Thread(target=native.mojo_parallel_for, args=(_native.TASK(body), None, count))
    caller.start()
    caller.join()
    return seen


@pytest.fixture(params=[0, pytest.param(1, marks=linux_only)], ids=["pool", "openmp"])
def of_openmp(request):
    return request.param


def test_a_team_works_on_loops(native, of_openmp):
    """Threads of torch are there for its next OpenMP loop."""
    for _ in range(3):
        native.mojo_team_begin(of_openmp)
        seen = _run_loop(native, 40)
        assert native.mojo_team_end() == 1
        assert sorted(index for index, _ in seen) == list(range(40))
        assert len({thread for _, thread in seen}) == 2
        assert threading.get_native_id() not in {thread for _, thread in seen}
        assert torch.arange(1_000_000).sum() == 499_999_500_000


def test_a_team_without_a_loop_says_so(native, of_openmp):
    native.mojo_team_begin(of_openmp)
    # Until the guests sleep too.
    time.sleep(0.02)
    assert native.mojo_team_end() == 0


def test_loops_go_on_without_a_team(native, of_openmp):
    native.mojo_team_begin(of_openmp)
    native.mojo_team_end()
    assert sorted(index for index, _ in _run_loop(native, 10)) == list(range(10))


@linux_only
def test_threads_that_are_made_meanwhile_have_a_coarse_timer():
    prctl = ctypes.CDLL(None).prctl
    seen: list[int] = []

    def look() -> None:
        seen.append(prctl(engine._PR_GET_TIMERSLACK, 0, 0, 0, 0))

    before = prctl(engine._PR_GET_TIMERSLACK, 0, 0, 0, 0)
    with engine._coarse_timer():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    look()
    assert seen == [engine._LOG_NANOSECONDS, before]
