"""Events: points in a stream's work that hosts and streams wait for, and that tell the time between them."""

from __future__ import annotations

import time

import numpy as np
import pytest

import mojo_runtime


def test_event_that_was_never_recorded_is_complete(device, side):
    event = mojo_runtime.Event(device)
    assert event.query()
    event.synchronize()
    event.wait(side)
    side.synchronize()


def test_event_completes_with_the_work_before_it(stand_ins, device, side):
    slot, log = stand_ins.unfilled(), mojo_runtime.array(np.zeros(4, np.int64), target=device)
    mojo_runtime.launch(slot, [], stream=side)
    event = side.record_event()
    mojo_runtime.launch(stand_ins.ready("append"), [log], [0, 50], side)
    assert not event.query()
    stand_ins.fill(slot, "nothing")
    event.synchronize()
    assert event.query()
    assert not side.query()  # only the work before the event is waited for
    side.synchronize()


def test_elapsed_time(stand_ins, device, side):
    log = mojo_runtime.array(np.zeros(8, np.int64), target=device)
    start, end = (mojo_runtime.Event(device, timing=True) for _ in range(2))
    start.record(side)
    mojo_runtime.launch(stand_ins.ready("append"), [log], [0, 30], side)
    end.record(side)
    with pytest.raises(RuntimeError, match="completed"):
        start.elapsed_time(end)
    end.synchronize()
    assert 30 <= start.elapsed_time(end) < 60
    assert start.elapsed_time(end) == -end.elapsed_time(start)


@pytest.mark.parametrize("timing", [False, True])
def test_elapsed_time_needs_timing_and_records(device, timing):
    event, other = mojo_runtime.Event(device, timing=timing), mojo_runtime.Event(device, timing=True)
    other.record()
    for first, second in ((event, other), (other, event)):
        with pytest.raises(ValueError, match="recorded" if timing else "enable_timing"):
            first.elapsed_time(second)


def test_waiting_stream_waits_for_the_record_that_was_current(stand_ins, device, side):
    """Recording the event again neither delays nor releases who waits for the earlier record."""
    log = mojo_runtime.array(np.zeros(8, np.int64), target=device)
    producer, blocked, append = mojo_runtime.Stream(device), stand_ins.unfilled(), stand_ins.ready("append")
    first, event = stand_ins.unfilled(), mojo_runtime.Event(device)
    mojo_runtime.launch(first, [], stream=producer)
    event.record(producer)
    side.wait_event(event)
    mojo_runtime.launch(append, [log], [1, 0], side)
    event.record(mojo_runtime.default_stream(device))  # complete at once: must not release `side`
    assert event.query()
    time.sleep(0.02)
    assert side.pending == 2
    stand_ins.fill(first, "nothing")
    mojo_runtime.launch(blocked, [], stream=producer)
    event.record(producer)  # never complete while `side` runs: must not hold it
    side.synchronize()
    assert not event.query()
    stand_ins.fill(blocked, "nothing")
    assert log.numpy()[:2].tolist() == [1, 1]


def test_destroying_a_queued_event_is_safe(stand_ins, device, side):
    slot = stand_ins.unfilled()
    mojo_runtime.launch(slot, [], stream=side)
    for _ in range(10):
        event = side.record_event()
        mojo_runtime.default_stream(device).wait_event(event)
        del event
    stand_ins.fill(slot, "nothing")
    device.synchronize()


def test_event_belongs_to_its_device(device):
    others = [other for other in mojo_runtime.devices() if other != device]
    if not others:
        pytest.skip("needs two devices")
    with pytest.raises(ValueError, match="cannot be recorded"):
        mojo_runtime.Event(device).record(mojo_runtime.default_stream(others[0]))
    event = mojo_runtime.default_stream(others[0]).record_event()
    mojo_runtime.default_stream(device).wait_event(event)  # waiting across devices is what events are for
