"""Kernels compiled from C++ in place of Mojo ones, so that tests of the queue decide when a kernel is "compiled"."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import mojo_runtime
from mojo_runtime import _native, native_build
from mojo_runtime.launch import NativeCore

os.environ.setdefault("MOJO_RUNTIME_DEVICES", "cpu:2")

_PREFIX = "test.stand_ins:"


class StandIns:
    """Slots of the functions in stand_ins/kernels.cpp."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self.requests: list[str] = []
        self.requested = threading.Condition()
        self._native = _native.library()
        self._numbers = itertools.count()

    def unfilled(self, name: str = "kernel") -> mojo_runtime.Slot:
        """Returns a new slot without a kernel."""
        return mojo_runtime.Slot(f"{_PREFIX}{name}[number={next(self._numbers)}]")

    def fill(self, slot: mojo_runtime.Slot, function: str) -> None:
        """Loads a function into a slot, as the compile service does."""
        self._native.mojo_slot_load(slot.address, str(self.library).encode(), function.encode())

    def fail(self, slot: mojo_runtime.Slot, message: str) -> None:
        """Marks a slot as failed, as the compile service does."""
        self._native.mojo_slot_fail(slot.address, _native.STATUSES[RuntimeError], message.encode())

    def ready(self, function: str) -> mojo_runtime.Slot:
        """Returns a new slot with a function."""
        slot = self.unfilled(function)
        self.fill(slot, function)
        return slot


@pytest.fixture(scope="session")
def stand_ins() -> Iterator[StandIns]:
    """The stand-in kernels. Requests for their slots never reach the compile service."""
    mojo_runtime.initialize()
    library = native_build.build_library(
        "test_stand_ins",
        [Path(__file__).parent / "stand_ins" / "kernels.cpp"],
        include_directories=[native_build.include_directory()],
    )
    stand_ins = StandIns(library)
    next_requests, in_place = NativeCore.next_requests, threading.Event()

    def filtered(core: NativeCore, timeout_milliseconds: int) -> Sequence[tuple[int, str]]:
        in_place.set()
        requests = next_requests(core, timeout_milliseconds)
        with stand_ins.requested:
            stand_ins.requests += [key for _, key in requests if key.startswith(_PREFIX)]
            stand_ins.requested.notify_all()
        return [(slot, key) for slot, key in requests if not key.startswith(_PREFIX)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeCore, "next_requests", filtered)
        _native.library().mojo_interrupt_requests()  # ends the service's wait in the original function
        assert in_place.wait(60)
        yield stand_ins


@pytest.fixture
def device() -> mojo_runtime.Device:
    """A device whose kernels the stand-ins can be."""
    found = mojo_runtime.devices()[-1]
    if found.kind != "cpu":
        pytest.skip("stand-in kernels run on CPU devices")
    return found


@pytest.fixture
def side(device: mojo_runtime.Device) -> mojo_runtime.Stream:
    """A stream beside the default one."""
    return mojo_runtime.Stream(device)
