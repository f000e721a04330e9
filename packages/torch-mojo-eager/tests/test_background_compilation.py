"""Kernels compile in the background: launches return at once, run in order, and only a host read waits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PROGRAM = """
    import time

    from mojo_runtime.service import service
    import torch
    import torch_mojo_eager

    torch_mojo_eager.register_mojo_devices()
    device = torch.accelerator.current_accelerator()
    x = torch.arange(8.0).to(device)
    y = x
    start = time.perf_counter()
    for i in range(40):
        y = (((y + 1) * 0.5 - x).abs() / 2).neg()
        if i % 8 == 7:
            y = y.exp()
    issued = time.perf_counter() - start
    building = not service().wait(0)
    result = y.cpu()
    done = time.perf_counter() - start

    z = expected = torch.arange(8.0)
    for i in range(40):
        expected = (((expected + 1) * 0.5 - z).abs() / 2).neg()
        if i % 8 == 7:
            expected = expected.exp()
    torch.testing.assert_close(result, expected)
    print(f"{issued * 1e3:.2f} {int(building)} {done * 1e3:.0f}")
"""


def run(cache: str) -> list[float]:
    environment = dict(os.environ, TORCH_MOJO_BACKEND_CACHE_DIR=cache, TORCH_MOJO_BACKEND_TRACE="0")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_two_hundred_ops_are_issued_while_six_kernels_compile(tmp_path):
    cache = tmp_path / "cache"
    issued, building, done = run(str(cache))
    assert building > 0 and done > 1000, "the kernels were not compiled in this process"
    assert issued < 20, f"205 ops took {issued} ms to issue"
