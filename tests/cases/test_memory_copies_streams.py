"""Public bug reports about other backends: memory, copies, streams."""

from __future__ import annotations

import torch
from tests.cases.compare import same


def test_non_blocking_copy_from_pageable_memory_that_dies(device):
    # https://github.com/pytorch/pytorch/issues/189690
    # https://github.com/pytorch/pytorch/issues/139550
    # https://github.com/RBLN-SW/torch-rbln/pull/13
    # `.to(dev, non_blocking=True)` read the host buffer after it was freed; the opposite direction returned before
    # the data arrived.
    outs = []
    for i in range(50):
        src = torch.full((1000,), float(i))
        outs.append(src.to(device, non_blocking=True))
        del src
        torch.full((1000,), -1.0)
    same(torch.stack([o[0] for o in outs]), torch.arange(50.0))
    y = (outs[7] * 2).to("cpu", non_blocking=True)
    if device.type != "cpu":
        torch.accelerator.synchronize()
    same(y, torch.full((1000,), 14.0))


def test_fresh_scalar_or_fresh_shape_every_step_must_not_grow_memory(device):
    # https://github.com/pytorch/pytorch/issues/171679
    # https://github.com/pytorch/pytorch/issues/132332
    # https://github.com/pytorch/pytorch/issues/181213
    # https://github.com/pytorch/pytorch/issues/145374
    # Per-scalar or per-shape compiled graphs / cached objects leaked; RSS grew while the device counters stayed
    # flat.
    import resource

    def step(i):
        x = torch.ones(16 + i % 64, 8, device=device)
        return (x.clamp(1 - i * 1e-6, 1 + i * 1e-6) @ x.t()).sum().item()

    for i in range(200):
        step(i)
    r0 = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(200, 1500):
        step(i)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - r0 < 50 * 1024, "RSS grew"
    if device.type != "cpu":
        m = torch.accelerator.memory_allocated()
        [step(i) for i in range(50)]
        assert torch.accelerator.memory_allocated() == m


def test_event_record_with_an_accelerator_stream(device):
    # https://github.com/pytorch/pytorch/issues/173792
    # `event.record(torch.accelerator.current_stream())` segfaulted (XPU) or raised 'invalid device ordinal' (CUDA).
    if device.type != "cpu":
        a, b = torch.Event(device=device, enable_timing=True), torch.Event(device=device, enable_timing=True)
        a.record(torch.accelerator.current_stream())
        torch.ones(1 << 16, device=device).sum()
        b.record(torch.accelerator.current_stream())
        b.synchronize()
        assert a.query() and a.elapsed_time(b) >= 0
