"""Events: what they wait for, what they measure, and their errors."""

from __future__ import annotations

import pytest
import torch


def test_event_covers_the_work_before_it(device, side, hold):
    held = hold(side)
    with side:
        x = torch.ones(10, device=device)
    event = side.record_event()
    later = hold(side)
    assert not event.query()
    held.release()
    event.synchronize()
    assert event.query() and not side.query()
    later.release()
    side.synchronize()
    assert x.sum().item() == 10


def test_event_that_was_never_recorded_is_complete(device, side):
    event = torch.Event(device)
    assert event.query()
    event.synchronize()
    event.wait()
    event.wait(side)
    side.wait_event(event)
    assert side.query()


def test_recording_again_moves_the_event(device, side, hold):
    event = torch.Event(device)
    held = hold(side)
    event.record(side)
    assert not event.query()
    event.record(torch.accelerator.current_stream())
    assert event.query()
    held.release()


def test_elapsed_time(device, side, hold):
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record(side)
    held = hold(side)
    end.record(side)
    with pytest.raises(RuntimeError, match="complete"):
        start.elapsed_time(end)
    held.release_after(0.03)
    end.synchronize()
    assert 30 <= start.elapsed_time(end) < 3000
    assert start.elapsed_time(end) == -end.elapsed_time(start)


def test_record_event_makes_an_event(device, side):
    event = side.record_event()
    event.synchronize()
    assert event.query() and event.device == torch.device(device.type, 0)
    given = torch.Event(device, enable_timing=True)
    assert side.record_event(given) is given


def test_elapsed_time_of_events_that_cannot_tell(device):
    def events(**options):
        return torch.Event(device, **options), torch.Event(device, **options)

    plain, timed, unrecorded = events(), events(enable_timing=True), events(enable_timing=True)
    for event in (*plain, *timed):
        event.record()
    torch.accelerator.synchronize()
    assert timed[0].elapsed_time(timed[1]) >= 0
    for first, second in (plain, (plain[0], timed[0]), (timed[0], plain[0]), unrecorded, (timed[0], unrecorded[0])):
        with pytest.raises(ValueError, match="event"):
            first.elapsed_time(second)


def test_event_of_another_device(device, second):
    event = torch.Event(second)
    event.record(torch.accelerator.current_stream(second))  # the first record binds it
    with pytest.raises((RuntimeError, ValueError), match="device"):
        event.record(torch.accelerator.current_stream(torch.device(device.type, 0)))
    there = torch.accelerator.current_stream(second)
    torch.accelerator.current_stream(device).wait_event(there.record_event())


def test_an_event_can_die_while_it_is_waited_for(device, side, hold):
    held = hold(side)
    for _ in range(20):
        event = side.record_event()
        torch.accelerator.current_stream().wait_event(event)
        del event
    held.release()
    assert torch.ones(3, device=device).sum().item() == 3
