"""Streams run beside each other, each in order."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

import mojo_runtime
from mojo_runtime import _native


def test_stream_returns_before_its_work_is_done(stand_ins, device, side):
    log = mojo_runtime.array(np.zeros(8, np.int64), target=device)
    start = time.perf_counter()
    mojo_runtime.launch(stand_ins.ready("append"), [log], [1, 100], side)
    assert time.perf_counter() - start < 0.09
    assert not side.query()
    side.synchronize()
    assert time.perf_counter() - start >= 0.1
    assert side.query()
    assert log.numpy()[:2].tolist() == [1, 1]


def test_two_streams_overlap(stand_ins, device, side):
    other = mojo_runtime.Stream(device)
    logs = [mojo_runtime.array(np.zeros(8, np.int64), target=device) for _ in range(2)]
    append = stand_ins.ready("append")
    start = time.perf_counter()
    for stream, log in zip((side, other), logs, strict=True):
        for i in range(3):
            mojo_runtime.launch(append, [log], [i, 50], stream)
    device.synchronize()
    elapsed = time.perf_counter() - start
    assert 0.15 <= elapsed < 0.27  # 0.3 one after the other
    assert [log.numpy()[:4].tolist() for log in logs] == [[3, 0, 1, 2]] * 2


def test_wait_stream_orders_two_streams(stand_ins, device, side):
    log = mojo_runtime.array(np.zeros(8, np.int64), target=device)
    append, main = stand_ins.ready("append"), mojo_runtime.current_stream(device)
    mojo_runtime.launch(append, [log], [1, 50], side)
    main.wait_stream(side)
    mojo_runtime.launch(append, [log], [2, 0], main)  # waits although the kernel is ready and the queue was empty
    side.wait_stream(main)
    mojo_runtime.launch(append, [log], [3, 0], side)
    side.synchronize()
    assert log.numpy()[:4].tolist() == [3, 1, 2, 3]


def test_current_stream_belongs_to_the_thread(device, side):
    default = mojo_runtime.default_stream(device)
    seen = []
    with side as entered:
        assert entered is side
        assert mojo_runtime.current_stream(device) == side
        with default:
            assert mojo_runtime.current_stream(device) == default
        thread = threading.Thread(target=lambda: seen.append(mojo_runtime.current_stream(device)))
        thread.start()
        thread.join()
        assert mojo_runtime.empty(1, target=device)._owner.stream == side
    assert mojo_runtime.current_stream(device) == default
    assert seen == [default]


def test_host_function_runs_in_order(stand_ins, device, side):
    log = mojo_runtime.array(np.zeros(8, np.int64), target=device)
    view, seen = log.numpy(), []
    function = _native.HOST_FUNCTION(lambda _: seen.append(int(view[0])))
    append = stand_ins.ready("append")
    mojo_runtime.launch(append, [log], [1, 20], side)
    _native.library().mojo_stream_call(device.index, side.id, ctypes.cast(function, ctypes.c_void_p), None)
    mojo_runtime.launch(append, [log], [2, 0], side)
    side.synchronize()
    assert seen == [1]
    assert view[0] == 2


def test_streams_are_numbered_per_device(device):
    first, second = mojo_runtime.Stream(device), mojo_runtime.Stream(device)
    assert second.id == first.id + 1
    assert mojo_runtime.default_stream(device).id == 0
    assert first.native_handle == 0
    with pytest.raises(ValueError, match="invalid stream 65000"):
        mojo_runtime.Stream(device, id=65000).synchronize()
