"""Copies between host and device: what is asynchronous for which kind of host memory, and what each promises."""

from __future__ import annotations

import time

import pytest
import torch

SIZE = 1000


@pytest.fixture(params=["default", "side"])
def stream(request, device):
    """The stream to copy on, current during the test."""
    chosen = torch.accelerator.current_stream() if request.param == "default" else torch.Stream(device)
    with chosen:
        yield chosen


def test_pinned_upload_is_queued_and_reads_when_it_runs(device, stream, hold):
    host = torch.ones(SIZE).pin_memory()
    held = hold(stream)
    there = host.to(device, non_blocking=True)
    host.fill_(2)  # the page says: do not, since the copy reads it when it runs
    assert not stream.query()
    held.release()
    assert there.sum().item() == 2 * SIZE


def test_pageable_upload_is_staged(device, stream, hold):
    host = torch.ones(SIZE)
    held = hold(stream)
    there = host.to(device, non_blocking=True)
    host.fill_(2)
    del host
    assert not stream.query()
    held.release()
    assert there.sum().item() == SIZE


def test_pinned_download_is_queued(device, stream, hold):
    source = torch.ones(SIZE, device=device)
    host = torch.zeros(SIZE).pin_memory()
    stream.synchronize()
    held = hold(stream)
    host.copy_(source, non_blocking=True)
    result = source.to("cpu", non_blocking=True)
    done = torch.Event(device)
    done.record()
    assert result.is_pinned() and host.sum() == 0 and not done.query()
    held.release()
    done.synchronize()
    assert host.sum() == SIZE and result.sum() == SIZE


def test_pageable_download_completes(device, stream, hold):
    source = torch.ones(SIZE, device=device)
    host = torch.zeros(SIZE)
    hold(stream).release_after(0.05)
    start = time.perf_counter()
    host.copy_(source, non_blocking=True)
    assert host.sum() == SIZE and time.perf_counter() - start > 0.04


@pytest.mark.parametrize("layout", ["dtype", "transposed destination", "strided destination", "both"])
def test_download_that_converts_completes(device, stream, hold, layout):
    source = torch.arange(12.0, device=device).reshape(3, 4)
    dtype = torch.float64 if layout in ("dtype", "both") else torch.float32
    host = torch.zeros(4, 3, dtype=dtype).pin_memory().t() if "transposed" in layout else None
    if layout in ("strided destination", "both"):
        host = torch.zeros(3, 8, dtype=dtype).pin_memory()[:, ::2]
    hold(stream).release_after(0.03)
    if host is None:
        host = source.to("cpu", dtype, non_blocking=True)
        assert host.is_pinned()
    else:
        host.copy_(source, non_blocking=True)
    assert torch.equal(host, torch.arange(12.0, dtype=dtype).reshape(3, 4))


@pytest.mark.parametrize("view", ["transposed", "strided", "expanded", "offset"])
def test_views_in_both_directions(device, view):
    pick = {
        "transposed": lambda t: t.t(),
        "strided": lambda t: t[::2, 1::3],
        "expanded": lambda t: t[:1].expand(5, 8),
        "offset": lambda t: t[2:],
    }[view]
    whole = torch.arange(48.0).reshape(6, 8)
    for non_blocking in (False, True):
        for host in (whole, whole.pin_memory()):
            up = pick(host).to(device, non_blocking=non_blocking)
            down = pick(host.to(device)).to("cpu", non_blocking=non_blocking)
            torch.accelerator.synchronize()
            assert torch.equal(up.cpu(), pick(whole)) and torch.equal(down, pick(whole))


@pytest.mark.parametrize("pinned", [False, True])
def test_blocking_copies_are_done_on_return(device, stream, hold, pinned):
    host = torch.ones(SIZE).pin_memory() if pinned else torch.ones(SIZE)
    hold(stream).release_after(0.02)
    there = host.to(device)
    host.fill_(7)
    hold(stream).release_after(0.02)
    assert torch.equal(there.cpu(), torch.ones(SIZE))
    back = torch.zeros(SIZE).pin_memory() if pinned else torch.zeros(SIZE)
    hold(stream).release_after(0.02)
    back.copy_(there)
    assert back.sum() == SIZE


def test_pinned_memory_belongs_to_its_device(device, second, hold):
    host = torch.ones(SIZE).pin_memory()
    there = torch.accelerator.current_stream(second)
    held = hold(there)
    x = host.to(second, non_blocking=True)  # pageable for that device: staged
    host.fill_(2)
    held.release()
    assert x.sum().item() == SIZE
    hold(there).release_after(0.03)
    host.copy_(x, non_blocking=True)
    assert host.sum() == SIZE
    with torch.accelerator.device_index(1):
        own = torch.ones(SIZE).pin_memory()
    held = hold(there)
    y = own.to(second, non_blocking=True)
    own.fill_(2)
    held.release()
    assert y.sum().item() == 2 * SIZE


def test_is_pinned(device):
    host = torch.arange(10.0)
    pinned = host.pin_memory()
    assert pinned.is_pinned() and pinned[3:].is_pinned() and not host.is_pinned()
    assert pinned.pin_memory() is pinned and torch.equal(pinned, host)
    assert not torch.empty(3, device=device).is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        torch.empty(3, device=device).pin_memory()
    assert pinned.numpy().sum() == 45 and torch.from_numpy(pinned.numpy()).is_pinned()
    if not torch.backends.cuda.is_built() or not torch.cuda.is_available():
        assert torch.empty(4, pin_memory=True).is_pinned()


def test_one_pinned_buffer_is_used_again_after_an_event(device, side):
    buffer, uploaded = torch.empty(SIZE).pin_memory(), torch.Event(device)
    parts = []
    for i in range(20):
        uploaded.synchronize()
        buffer.fill_(i)
        with side:
            parts.append(buffer.to(device, non_blocking=True))
            uploaded.record()
    torch.accelerator.current_stream().wait_stream(side)
    assert torch.stack(parts).mean(1).tolist() == list(range(20))


def test_pinned_memory_that_dies_in_a_copy_is_not_used_again(device, side, hold):
    host = torch.ones(SIZE).pin_memory()
    address = host.data_ptr()
    held = hold(side)
    with side:
        there = host.to(device, non_blocking=True)
    del host
    others = [torch.zeros(SIZE).pin_memory() for _ in range(5)]
    assert address not in [other.data_ptr() for other in others]
    held.release()
    side.synchronize()
    assert there.sum().item() == SIZE


def test_prefetching_loader(device, side):
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(32, 2), torch.arange(32))
    main, total, count = torch.accelerator.current_stream(), torch.zeros((), device=device), 0
    for x, y in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True):
        assert x.is_pinned() and y.is_pinned()
        with side:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        main.wait_stream(side)
        x.record_stream(main)
        y.record_stream(main)
        total += x.sum() + y.sum()
        count += 1
    assert count == 8 and total.item() == sum(range(64)) + sum(range(32))


@pytest.mark.parametrize("non_blocking", [False, True])
def test_between_devices(device, second, hold, non_blocking):
    x = torch.arange(30.0, device=device).reshape(5, 6)
    for source in (x, x.t(), x[::2, 1:], x.double()):
        hold(torch.accelerator.current_stream(device)).release_after(0.01)
        hold(torch.accelerator.current_stream(second)).release_after(0.02)
        moved = source.to(second, non_blocking=non_blocking)
        assert moved.device == second and torch.equal(moved.cpu(), source.cpu())
        back = torch.zeros(source.shape[::-1], device=device).t()
        back.copy_(moved, non_blocking=non_blocking)
        assert torch.equal(back.cpu().double(), source.cpu().double())


def test_another_devices_stream_reads_the_source_before_it_changes(device, second, hold):
    """The copy runs on the destination's stream; the source's stream waits for it before it overwrites the source."""
    x = torch.ones(SIZE, device=device)
    held = hold(torch.accelerator.current_stream(second))
    y = x.to(second)
    x.fill_(9)
    del x
    torch.full((SIZE,), 8.0, device=device)
    held.release()
    assert y.sum().item() == SIZE


def test_copies_that_are_not_possible(device):
    x = torch.ones(4, device=device)
    with pytest.raises(RuntimeError, match="size"):
        x.copy_(torch.ones(3))
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ones(1, device=device).expand(4).copy_(torch.ones(4))
    with pytest.raises(NotImplementedError, match="meta"):
        x.copy_(torch.ones(4, device="meta"))
    with pytest.raises(TypeError, match="mojo"):
        x.numpy()
