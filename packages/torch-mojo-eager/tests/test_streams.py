"""Streams are independent queues: what is ordered, what is not, and whose current stream it is."""

from __future__ import annotations

import threading

import pytest
import torch


def test_work_on_a_side_stream_does_not_stop_the_main_one(device, side, hold):
    """The overlap: all of the main stream's work is done while the side stream still has its own before it."""
    x = torch.ones(300, 300, device=device)
    torch.accelerator.synchronize()
    held = hold(side)
    with side:
        y = x * 3
    assert (x @ x).sum().item() == 300**3
    assert not side.query()
    held.release()
    side.synchronize()
    assert side.query() and y.sum().item() == 3 * 300 * 300


def test_reading_without_a_wait_loses(device, side, hold):
    """So that the tests of waiting can fail: the same program without its wait reads what was there before."""
    target = torch.zeros(1000, device=device)
    torch.accelerator.synchronize()
    held = hold(side)
    with side:
        target.fill_(1)
    assert target.sum().item() == 0
    held.release_after(0.05)
    torch.accelerator.current_stream().wait_stream(side)
    assert target.sum().item() == 1000


@pytest.mark.parametrize("how", ["wait_stream", "wait_event", "event.wait", "synchronize", "inside"])
def test_waiting(device, side, hold, how):
    target = torch.zeros(1000, device=device)
    main = torch.accelerator.current_stream()
    side.wait_stream(main)
    held = hold(side)
    with side:
        target.fill_(1)
        total = target.sum()
    event = side.record_event()
    after = hold(side)  # later work is not waited for
    held.release_after(0.05)
    if how == "wait_event":
        main.wait_event(event)
    elif how == "event.wait":
        event.wait()
    else:
        after.release()
    if how == "wait_stream":
        main.wait_stream(side)
    elif how == "synchronize":
        torch.accelerator.synchronize()
    if how == "inside":
        with side:
            assert total.item() == 1000
    else:
        assert (total * 2).item() == 2000
    if how in ("wait_event", "event.wait"):
        assert not side.query()


def test_waits_do_not_block_the_host(device, side, hold):
    held = hold(side)
    main = torch.accelerator.current_stream()
    main.wait_stream(side)
    x = torch.ones(5, device=device) * 2
    assert not main.query() and not side.query()
    held.release()
    assert x.sum().item() == 10


def test_current_stream(device, side):
    main = torch.accelerator.current_stream()
    assert main.stream_id == 0 and main.device == torch.device(device.type, 0)
    with side:
        assert torch.accelerator.current_stream() == side != main
        with main:
            assert torch.accelerator.current_stream() == main
        assert torch.accelerator.current_stream() == side
    assert torch.accelerator.current_stream() == main
    torch.accelerator.set_stream(side)
    assert torch.accelerator.current_stream() == side
    torch.accelerator.set_stream(main)
    assert repr(main) == f"torch.Stream device_type={device.type}, device_index=0, stream_id=0"
    with pytest.raises(ZeroDivisionError), side:
        _ = 1 / 0
    assert torch.accelerator.current_stream() == main


def test_streams_are_numbered(device, second):
    first, then = torch.Stream(device), torch.Stream(device, priority=-1)
    assert then.stream_id == first.stream_id + 1
    assert torch.Stream(device, priority=1000).device == torch.device(device.type, 0)
    assert not hasattr(then, "priority") and not hasattr(then, "priority_range")
    with torch.accelerator.device_index(1):
        assert torch.Stream(device).device == second


def test_stream_of_another_device_makes_it_current(device, second):
    there = torch.Stream(second)
    assert there.device == second
    with there:
        assert torch.accelerator.current_device_index() == 1
        assert torch.accelerator.current_stream() == there
        x = torch.ones(3, device=device)
        assert x.device == second
    assert torch.accelerator.current_device_index() == 0
    assert torch.accelerator.current_stream(second) != there
    there.synchronize()
    assert x.sum().item() == 3


def test_every_thread_has_its_own_current_stream(device, side):
    seen = {}

    def look():
        seen["new"] = torch.accelerator.current_stream()
        torch.accelerator.set_stream(torch.Stream(device))
        seen["set"] = torch.accelerator.current_stream()

    with side:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert torch.accelerator.current_stream() == side
    assert seen["new"].stream_id == 0 and seen["set"].stream_id not in (0, side.stream_id)


def test_native_handle(device, side):
    if not hasattr(side, "native_handle"):
        pytest.skip("torch 2.11 and later")
    from mojo_runtime import devices

    handle = side.native_handle  # CPU devices have no driver's stream
    assert isinstance(handle, int) and (handle == 0) == (devices()[0].kind == "cpu")


def test_device_synchronize_waits_for_all_streams(device, hold):
    streams = [torch.Stream(device) for _ in range(3)]
    targets = [torch.zeros(10, device=device) for _ in streams]
    torch.accelerator.synchronize()
    for stream, target in zip(streams, targets, strict=True):
        hold(stream).release_after(0.03)
        with stream:
            target.fill_(1)
    torch.accelerator.synchronize()
    assert [stream.query() for stream in streams] == [True] * 3
    assert [target.sum().item() for target in targets] == [10] * 3


def test_reading_waits_for_the_current_stream_alone(device, side, hold):
    held = hold(side)
    x = torch.ones(4, device=device)
    assert x.tolist() == [1] * 4 and x.sum().item() == 4 and x.cpu().sum() == 4
    host = torch.zeros(4)
    host.copy_(x)
    assert host.sum() == 4 and not side.query()
    held.release()


def test_backward_runs_on_the_forwards_stream(device, side, hold):
    x = torch.ones(6, device=device, requires_grad=True)
    other = torch.ones(6, device=device, requires_grad=True)
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(torch.accelerator.current_stream())
            return gradient * 2

    torch.accelerator.synchronize()
    with side:
        loss = Double.apply(x).sum()
    main_loss = Double.apply(other).sum()
    held = hold(side)
    with side:
        loss.backward()
    main_loss.backward()
    assert [stream.stream_id for stream in seen] == [side.stream_id, 0]
    assert other.grad.tolist() == [2] * 6 and not side.query()
    held.release()
    torch.accelerator.synchronize()
    assert x.grad.tolist() == [2] * 6


def test_backward_waits_between_the_streams_of_the_forward(device, side, hold):
    """The second half of the forward ran on the side stream; its backward is made to wait for there by autograd."""
    x = torch.full((50,), 2.0, device=device, requires_grad=True)
    main = torch.accelerator.current_stream()
    first = x * x
    side.wait_stream(main)
    with side:
        second = first * first
    main.wait_stream(side)
    loss = second.sum()
    hold(side).release_after(0.05)
    loss.backward()
    assert x.grad.tolist() == [32.0] * 50


@pytest.mark.parametrize("recorded", [False, True])
def test_record_stream_keeps_memory_from_reuse(device, side, hold, recorded):
    """Without it the allocating stream may hand the memory out again while the other still reads it."""
    x = torch.ones(100_000, device=device)
    main = torch.accelerator.current_stream()
    side.wait_stream(main)
    held = hold(side)
    with side:
        y = x * 1
    if recorded:
        x.record_stream(side)
    address = x.data_ptr()
    del x
    again = torch.full((100_000,), 5.0, device=device)
    assert (again.data_ptr() != address) == recorded
    torch.accelerator.current_stream().synchronize()
    held.release()
    side.synchronize()
    assert y.sum().item() == (100_000 if recorded else 500_000)
    del again
    if recorded:  # and afterwards it is used again
        blocks = [torch.empty(100_000, device=device) for _ in range(3)]
        assert address in [block.data_ptr() for block in blocks]


def test_record_stream_of_a_view_and_of_another_device(device, second, side):
    x = torch.ones(10, 10, device=device)
    x[3:].record_stream(side)
    x.record_stream(torch.accelerator.current_stream())
    del x
    torch.accelerator.synchronize()


def test_streams_of_two_devices_overlap(device, second, hold):
    there = torch.accelerator.current_stream(second)
    held = hold(there)
    x = torch.ones(7, device=second) * 3
    y = torch.ones(7, device=device) * 2
    assert y.sum().item() == 14 and not there.query()
    held.release_after(0.02)
    assert (x.to(device) + y).sum().item() == 35


def test_what_is_not_supported_raises(device):
    event = torch.Event(device, interprocess=True)
    event.record()
    with pytest.raises(NotImplementedError):
        event.ipc_handle()
    with pytest.raises(NotImplementedError):
        torch.Event.from_ipc_handle(device, b"0" * 64)
    with pytest.raises((RuntimeError, AttributeError)):
        torch.mojo.CUDAGraph()
    with pytest.raises((RuntimeError, AttributeError)):
        torch.mojo.ExternalStream(0)
