"""Checks of the native core's GPU side over the stand-in driver. Run as `gpu_process.py LIBRARY CHECK`."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import mojo_runtime
from mojo_runtime import _native, driver, memory
from mojo_runtime.target import Target

LIBRARY = Path(sys.argv[1])
driver.open_gpus = lambda: driver.describe_gpus(LIBRARY, Target.parse("sm_80"))
(DEVICE,) = mojo_runtime.initialize()


def _slot(function: str) -> mojo_runtime.Slot:
    slot = mojo_runtime.Slot(f"stand_ins:{function}")
    _native.library().mojo_slot_load(slot.address, str(LIBRARY).encode(), function.encode())
    return slot


ADD_ONE = _slot("gpu_add_one")


def properties() -> None:
    assert (DEVICE.kind, DEVICE.name, DEVICE.cores, DEVICE.architecture) == ("gpu", "stand-in", 7, "sm_80")
    assert mojo_runtime.memory_info() == (1 << 30, 1 << 30)
    assert not _native.library().mojo_is_cpu()
    assert mojo_runtime.Stream().native_handle != mojo_runtime.default_stream().native_handle != 0


def launches_are_asynchronous_on_every_stream() -> None:
    for stream in (mojo_runtime.default_stream(), mojo_runtime.Stream()):
        values = mojo_runtime.array(np.zeros(1000, np.float32))
        start = time.perf_counter()
        with stream:
            mojo_runtime.launch(ADD_ONE, [values, values], [60])
            mojo_runtime.launch(ADD_ONE, [values, values], [0])
        assert time.perf_counter() - start < 0.05
        assert stream.pending == 0  # in the device's queue, not the host's
        assert not stream.query()
        stream.synchronize()
        assert stream.query()
        assert values.numpy().tolist() == [2] * 1000


def queued_launches_wait_for_the_kernel() -> None:
    stream, slot = mojo_runtime.default_stream(), mojo_runtime.Slot("stand_ins:late")
    values = mojo_runtime.array(np.zeros(10, np.float32))
    blocker = threading.Event()
    function = _native.HOST_FUNCTION(lambda _: blocker.wait(10) and None)
    _native.library().mojo_stream_call(0, 0, ctypes.cast(function, ctypes.c_void_p), None)
    _native.library().mojo_slot_load(slot.address, str(LIBRARY).encode(), b"gpu_add_one")
    mojo_runtime.launch(slot, [values, values], [0])
    event = stream.record_event()
    host = mojo_runtime.empty(10, pinned=True)
    host.copy_from(values)
    assert stream.pending == 4
    assert not event.query()
    blocker.set()
    stream.synchronize()
    assert event.query()
    assert host.numpy().tolist() == [1] * 10


def events_order_and_time_streams() -> None:
    side, main = mojo_runtime.Stream(), mojo_runtime.default_stream()
    values = mojo_runtime.array(np.zeros(10, np.float32))
    start, end = mojo_runtime.Event(timing=True), mojo_runtime.Event(timing=True)
    start.record(side)
    mojo_runtime.launch(ADD_ONE, [values, values], [30], side)
    end.record(side)
    main.wait_event(end)
    mojo_runtime.launch(ADD_ONE, [values, values], [0], main)
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(end)
    main.synchronize()
    assert end.query()
    assert 30 <= start.elapsed_time(end) < 100
    assert values.numpy().tolist() == [2] * 10


def copies() -> None:
    for size in (3, 1 << 20):
        source = np.random.default_rng(0).integers(0, 255, size, np.uint8)
        there = mojo_runtime.array(source)
        other = mojo_runtime.empty(size, "uint8")
        other.copy_from(there)
        assert np.array_equal(other.numpy(), source)
        stream = mojo_runtime.Stream()
        expected = source.copy()
        with stream:
            memory.copy(
                other.address, source.ctypes.data, size, destination_device=DEVICE, stream=stream, blocking=False
            )
            source[:] = 0
        stream.synchronize()
        assert np.array_equal(other.numpy(), expected)


def memory_is_reused_and_returned() -> None:
    used = ctypes.CDLL(str(LIBRARY)).stand_in_used
    used.restype = ctypes.c_int64
    for size in (100, 1 << 20):
        block = mojo_runtime.Memory(size)
        address = block.address
        assert memory.pointer_device(address + size - 1) == DEVICE
        del block
        assert mojo_runtime.Memory(size).address == address
        stream = mojo_runtime.Stream()
        other = mojo_runtime.Memory(size, stream=stream)
        assert other.address != address  # the default stream may be using it
        del other
    assert used() > 0
    mojo_runtime.empty_cache()
    assert used() == 0
    values = mojo_runtime.array(np.zeros(1000, np.float32))
    address, side = values.address, mojo_runtime.Stream()
    mojo_runtime.launch(ADD_ONE, [values, values], [50], side)
    del values
    block = mojo_runtime.Memory(4000)
    assert block.address != address  # a recorded stream is still using it
    side.synchronize()
    assert mojo_runtime.Memory(4000).address == address


def out_of_memory() -> None:
    block = mojo_runtime.Memory(700 << 20)
    with pytest.raises(mojo_runtime.OutOfMemoryError, match=r"allocate 700\.00 MiB"):
        mojo_runtime.Memory(700 << 20)
    del block
    mojo_runtime.Memory(900 << 20)  # what was cached makes room


def failures() -> None:
    failing, stream = _slot("gpu_failing"), mojo_runtime.default_stream()
    with pytest.raises(RuntimeError, match="launch failed"):
        mojo_runtime.launch(failing, [], stream=stream)
    stream.synchronize()


globals()[sys.argv[2]]()
