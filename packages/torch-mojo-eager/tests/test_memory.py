"""torch.accelerator's memory functions: what counts, what peaks, what fails."""

from __future__ import annotations

import gc

import pytest
import torch

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _quiet_device(device):
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()


def test_allocated_and_peak(device):
    before = torch.accelerator.memory_allocated()
    x = torch.empty(64, MIB // 4, device=device)
    assert torch.accelerator.memory_allocated() - before == 64 * MIB
    views = [x[3:], x.t(), x.detach(), x.reshape(-1)]
    assert torch.accelerator.memory_allocated() - before == 64 * MIB
    assert torch.accelerator.memory_reserved() == torch.accelerator.memory_allocated()
    del x
    assert torch.accelerator.memory_allocated() - before == 64 * MIB  # a view keeps it
    del views
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() == before + 64 * MIB
    assert torch.accelerator.max_memory_reserved() == torch.accelerator.max_memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == before


def test_memory_is_counted_per_device(device, second):
    before = [torch.accelerator.memory_allocated(i) for i in range(2)]
    x = torch.empty(MIB, dtype=torch.uint8, device=second)
    assert torch.accelerator.memory_allocated(second) - before[1] == MIB
    assert torch.accelerator.memory_allocated(0) == before[0]
    with torch.accelerator.device_index(1):
        assert torch.accelerator.memory_allocated() - before[1] == MIB
    del x


def test_memory_stats(device):
    torch.accelerator.reset_accumulated_memory_stats()
    start = torch.accelerator.memory_stats()
    x, y = torch.empty(1000, device=device), torch.empty(3, device=device)
    del y
    stats = torch.accelerator.memory_stats()
    for key in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "allocation", "active"):
        for value in ("current", "peak", "allocated", "freed"):
            assert f"{key}.all.{value}" in stats
    assert stats["allocated_bytes.all.current"] - start["allocated_bytes.all.current"] == 4000
    assert stats["allocated_bytes.all.allocated"] - start["allocated_bytes.all.allocated"] == 4012
    assert stats["allocation.all.allocated"] - start["allocation.all.allocated"] == 2
    assert stats["allocation.all.freed"] - start["allocation.all.freed"] == 1
    pools = [value for key, value in stats.items() if "_pool" in key or key.startswith(("segment", "inactive_split"))]
    assert pools and not any(pools)
    del x


def test_memory_info(device):
    free, total = torch.accelerator.get_memory_info()
    assert 0 < free <= total
    assert torch.accelerator.get_memory_info(0)[1] == total


def test_empty_cache_is_safe(device, side, hold):
    held = hold(side)
    with side:
        x = torch.ones(MIB, device=device)
        y = x + 1
    del x
    held.release_after(0.05)
    torch.accelerator.empty_cache()
    side.synchronize()
    assert y.sum().item() == 2 * MIB


def test_impossible_allocation(device):
    x = torch.ones(1000, device=device)
    ooms = torch.accelerator.memory_stats()["num_ooms"]
    before = torch.accelerator.memory_allocated()
    for size, text in ((1 << 42, r"16\.00 TiB"), (1 << 58, r"1\.00 EiB")):
        with pytest.raises(RuntimeError, match=rf"out of memory: tried to allocate {text}; .* allocated, .* free"):
            torch.empty(size, device=device)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 42, device=device)
    with pytest.raises(torch.OutOfMemoryError):  # an op's result
        x.expand(1 << 33, 1000).contiguous()
    with pytest.raises(torch.OutOfMemoryError):
        x[:1].expand(1 << 43) * 2
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(1 << 50, pin_memory=True)
    assert torch.accelerator.memory_stats()["num_ooms"] == ooms + 5
    assert torch.accelerator.memory_allocated() == before and x.sum().item() == 1000


def test_allocation_that_fails_inside_a_backward(device):
    x = torch.ones(4, device=device, requires_grad=True)

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient + torch.empty(1 << 42, device=gradient.device)[:4]

    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        Greedy.apply(x).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3] * 4


def test_storage_resizes(device):
    x = torch.arange(10.0, device=device)
    before = torch.accelerator.memory_allocated()
    x.untyped_storage().resize_(0)
    assert before - torch.accelerator.memory_allocated() == 40 and x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(40)
    x.copy_(torch.arange(10.0))
    assert x.sum().item() == 45
