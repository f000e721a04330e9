"""Both profilers: rows of our ops, device time per op, and a trace that opens."""

from __future__ import annotations

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def work(device):
    a = torch.ones(200, 200, device=device)
    for _ in range(3):
        b = torch.relu(a @ a)
    torch.accelerator.synchronize()
    return b


def test_trace_and_table(device, tmp_path):
    work(device)
    with profile(record_shapes=True) as prof, record_function("our block"):
        work(device)
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["aten::relu"].count == 3 and "aten::mm" in rows and "our block" in rows
    assert "aten::relu" in prof.key_averages().table(row_limit=20)
    shapes = {tuple(map(tuple, row.input_shapes)) for row in prof.key_averages(group_by_input_shape=True)}
    assert ((200, 200),) in shapes
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    named = [event["name"] for event in events if event.get("ph") == "X"]
    assert named.count("aten::relu") == 3 and "our block" in named
    assert all(event["dur"] >= 0 for event in events if event.get("name") == "aten::relu")


def test_activities_include_the_accelerator(device):
    assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as prof:
        work(device)
    assert "aten::mm" in {row.key for row in prof.key_averages()}


def test_schedule(device):
    seen = []
    with profile(
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=lambda prof: seen.append({row.key: row.count for row in prof.key_averages()}),
    ) as prof:
        for _ in range(4):
            work(device)
            prof.step()
    assert len(seen) == 1 and seen[0]["aten::relu"] == 6


def test_device_time_per_op(device, hold):
    work(device)
    stream = torch.accelerator.current_stream()
    with torch.autograd.profiler.profile(use_device=device.type) as prof:
        x = torch.ones(300, 300, device=device)
        work(device)
        hold(stream).release_after(0.08)
        with record_function("slow"):  # the held stream counts as device time of what is queued meanwhile
            x.relu()
        torch.accelerator.synchronize()
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["aten::mm"].self_device_time_total > 0
    total = sum(row.self_device_time_total for row in rows.values())
    assert total >= rows["aten::mm"].self_device_time_total
    table = prof.key_averages().table(sort_by="self_device_time_total", row_limit=5)
    assert "Self MOJO" in table and "aten::mm" in table


def test_backward_and_side_streams_are_profiled(device, side, tmp_path):
    x = torch.ones(50, device=device, requires_grad=True)
    with torch.autograd.profiler.profile(use_device=device.type) as prof:
        with side:
            loss = (x * 2).exp().sum()
        loss.backward()
        torch.accelerator.synchronize()
    names = {row.key for row in prof.key_averages()}
    assert {"aten::exp", "ExpBackward0"} <= names
    path = tmp_path / "trace.json"
    prof.export_chrome_trace(str(path))
    assert any(event["name"] == "aten::exp" for event in json.loads(path.read_text())["traceEvents"])


def test_exception_inside(device):
    with pytest.raises(ZeroDivisionError), profile():
        work(torch.device(device.type, 1 // 0))
    work(device)
