"""Launches: at once where nothing is in the way, queued in order behind kernels that are not compiled."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

import mojo_runtime
from mojo_runtime import _native


def log_of(device: mojo_runtime.Device, capacity: int = 512) -> mojo_runtime.Array:
    return mojo_runtime.array(np.zeros(capacity, np.int64), target=device)


def entries(log: mojo_runtime.Array) -> list[int]:
    values = log.numpy()
    return values[1 : values[0] + 1].tolist()


def test_ready_kernel_runs_on_the_calling_thread(stand_ins, device):
    log = log_of(device)
    view = log.numpy()
    mojo_runtime.launch(stand_ins.ready("append"), [log], [7, 0])
    assert view[:2].tolist() == [1, 7]  # without a synchronization


def test_launches_behind_uncompiled_kernels_return_at_once_and_run_in_order(stand_ins, device):
    slots = [stand_ins.unfilled() for _ in range(6)]
    log = log_of(device)
    stream = mojo_runtime.current_stream(device)
    mojo_runtime.launch(slots[0], [log], [0, 0])  # starts the worker
    start = time.perf_counter()
    for i in range(1, 200):
        mojo_runtime.launch(slots[i % 6], [log], [i, 0])
    issued = time.perf_counter() - start
    assert stream.pending == 200
    assert not stream.query()
    for slot in reversed(slots):
        stand_ins.fill(slot, "append")
    assert entries(log) == list(range(200))
    assert issued < 0.02
    assert stream.pending == 0


def test_ready_kernel_waits_for_the_queue(stand_ins, device):
    first, log = stand_ins.unfilled(), log_of(device)
    mojo_runtime.launch(first, [log], [1, 0])
    mojo_runtime.launch(stand_ins.ready("append"), [log], [2, 0])
    stand_ins.fill(first, "append")
    assert entries(log) == [1, 2]


def test_queued_call_is_copied(stand_ins, device):
    """Sizes, strides, scalars and host elements may change once the launch has returned."""
    slot = stand_ins.unfilled()
    out = mojo_runtime.array(np.zeros(3, np.int64), target=device)
    sizes, strides = (ctypes.c_int64 * 1)(1), (ctypes.c_int64 * 1)(1)
    element = ctypes.c_int64(41)
    scalars = (ctypes.c_int64 * 2)(5, 43)
    inside = ctypes.addressof(scalars) + 8
    code = _native.DTYPE_CODES["int64"]
    for host_address, expected in ((ctypes.addressof(element), 41), (inside, 43)):
        tensors = (_native.Tensor * 3)(
            out._tensor,
            _native.Tensor(host_address, sizes, strides, 1, code, 0, _native.HOST_SCALAR),
            _native.Tensor(flags=_native.ABSENT),
        )
        call = _native.KernelCall(tensors, 3, scalars, 2)
        _native.library().mojo_launch(slot.address, call, device.index, 0)
        ctypes.memset(tensors, 255, ctypes.sizeof(tensors))
        saved = bytes(scalars)
        element.value, scalars[0], scalars[1] = -1, -1, -1
        stand_ins.fill(slot, "describe")
        assert out.numpy().tolist() == [expected, 5, 1]
        ctypes.memmove(scalars, saved, len(saved))
        _native.library().mojo_slot_reset(slot.address)


def test_strided_operands_of_a_queued_launch(stand_ins, device):
    slot = stand_ins.unfilled()
    source = mojo_runtime.array(np.arange(6, dtype=np.float32), target=device).strided((3, 2), (1, 3))
    out = mojo_runtime.empty((3, 2), target=device)
    mojo_runtime.launch(slot, [out, source], [0])
    stand_ins.fill(slot, "add_one")
    assert out.numpy().tolist() == [[1, 4], [2, 5], [3, 6]]


@pytest.mark.parametrize("exception", list(_native.STATUSES))
def test_failing_kernel_raises_its_exception(stand_ins, device, exception):
    slot = stand_ins.ready("failing")
    arguments = [_native.STATUSES[exception], 12]
    with pytest.raises(exception, match=r"^failure 12$"):
        mojo_runtime.launch(slot, [], arguments, mojo_runtime.current_stream(device))


def test_failure_in_the_queue_is_raised_once_at_synchronization_and_the_rest_runs(stand_ins, device, side):
    log = log_of(device)
    failing, append = stand_ins.ready("failing"), stand_ins.ready("append")
    blocker = stand_ins.unfilled()
    mojo_runtime.launch(blocker, [], stream=side)
    mojo_runtime.launch(failing, [], [_native.STATUSES[IndexError], 1], side)
    mojo_runtime.launch(failing, [], [_native.STATUSES[ValueError], 2], side)
    mojo_runtime.launch(append, [log], [3, 0], side)
    stand_ins.fill(blocker, "nothing")
    with pytest.raises(IndexError, match="failure 1"):
        side.synchronize()
    side.synchronize()
    assert entries(log) == [3]


def test_blocking_copy_raises_what_failed_before_it(stand_ins, device):
    blocker = stand_ins.unfilled()
    stream = mojo_runtime.current_stream(device)
    mojo_runtime.launch(blocker, [], stream=stream)
    mojo_runtime.launch(stand_ins.ready("failing"), [], [_native.STATUSES[TypeError], 4], stream)
    stand_ins.fill(blocker, "nothing")
    with pytest.raises(TypeError, match="failure 4"):
        mojo_runtime.array(np.zeros(3), target=device)
    assert mojo_runtime.array(np.zeros(3), target=device).numpy().tolist() == [0, 0, 0]


def test_failed_compilation_is_raised_at_synchronization_and_by_later_launches(stand_ins, device):
    slot, stream = stand_ins.unfilled(), mojo_runtime.current_stream(device)
    mojo_runtime.launch(slot, [], stream=stream)
    stand_ins.fail(slot, "error: use of unknown declaration")
    with pytest.raises(RuntimeError, match="unknown declaration"):
        device.synchronize()
    with pytest.raises(RuntimeError, match="unknown declaration"):
        mojo_runtime.launch(slot, [], stream=stream)
    with pytest.raises(RuntimeError, match="unknown declaration"):
        slot.wait()
    _native.library().mojo_slot_reset(slot.address)
    mojo_runtime.launch(slot, [], stream=stream)
    stand_ins.fill(slot, "nothing")
    device.synchronize()


def test_each_slot_is_requested_once(stand_ins, device):
    slot = stand_ins.unfilled()
    assert slot.state == _native.EMPTY
    for _ in range(3):
        slot.request()
        mojo_runtime.launch(slot, [], stream=mojo_runtime.current_stream(device))
    with stand_ins.requested:
        assert stand_ins.requested.wait_for(lambda: slot.key in stand_ins.requests, timeout=5)
    assert slot.state == _native.REQUESTED
    stand_ins.fill(slot, "nothing")
    device.synchronize()
    assert stand_ins.requests.count(slot.key) == 1
    assert slot.state == _native.READY


def test_indexed_kernel_is_loaded_by_the_launch(stand_ins, device):
    slot, native = stand_ins.unfilled("append"), _native.library()
    native.mojo_index_add(slot.key.encode(), str(stand_ins.library).encode(), b"append")
    log = log_of(device)
    mojo_runtime.launch(slot, [log], [5, 0])
    assert slot.state == _native.READY
    assert slot.key not in stand_ins.requests
    assert entries(log) == [5]


@pytest.mark.parametrize("what", ["library", "symbol"])
def test_indexed_kernel_that_cannot_be_loaded_is_requested(stand_ins, device, tmp_path, what):
    slot, native = stand_ins.unfilled(), _native.library()
    library = tmp_path / "gone.so" if what == "library" else stand_ins.library
    native.mojo_index_add(slot.key.encode(), str(library).encode(), b"missing")
    mojo_runtime.launch(slot, [], stream=mojo_runtime.current_stream(device))
    with stand_ins.requested:
        assert stand_ins.requested.wait_for(lambda: slot.key in stand_ins.requests, timeout=5)
    stand_ins.fill(slot, "nothing")
    device.synchronize()


def test_launch_count(stand_ins, device):
    before = mojo_runtime.launch_count()
    for _ in range(5):
        mojo_runtime.launch(stand_ins.ready("nothing"), [], stream=mojo_runtime.current_stream(device))
    assert mojo_runtime.launch_count() == before + 5


def test_arrays_of_another_device_are_refused(stand_ins, device):
    others = [other for other in mojo_runtime.devices() if other != device]
    if not others:
        pytest.skip("needs two devices")
    arrays = [mojo_runtime.empty(1, target=place) for place in (device, others[0])]
    with pytest.raises(ValueError, match="arrays on devices"):
        mojo_runtime.launch(stand_ins.ready("nothing"), arrays)
