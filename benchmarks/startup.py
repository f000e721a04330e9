"""Start to first training step of the GPT example, in a new process: with an empty cache, then with a filled one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from measure import Budget, Result

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_gpt.py"
COLD_GOAL_SECONDS = 45.0


def seconds_to_first_step(device: torch.device, folder: Path) -> float:
    """Returns the time from starting Python to the end of the first training step.

    Raises:
        RuntimeError: The example failed; the message ends with what it wrote last.
    """
    environment = {**os.environ, "TORCH_MOJO_BACKEND_CACHE_DIR": str(folder / "cache")}
    options = ["--device", str(device), "--steps", "1", "--sample-length", "0", "--out", str(folder / "gpt.pt")]
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, EXAMPLE, *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("first step done"):
                elapsed = time.perf_counter() - start
                process.terminate()
                return elapsed
    raise RuntimeError("the example did not reach its first step: " + "".join(lines[-3:]).strip())


def run(device: torch.device, reference: torch.device, budget: Budget) -> Iterator[Result]:
    """Yields the cold start, then the warm start beside the reference's."""
    family = "start to first step of the GPT example, seconds"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            cold = seconds_to_first_step(device, folder)
            yield Result("startup", family, "empty cache", ours=cold, goal=COLD_GOAL_SECONDS)
            pairs = [
                (seconds_to_first_step(device, folder), seconds_to_first_step(reference, folder))
                for _ in range(1 if budget.quick else 3)
            ]
        except RuntimeError as error:
            yield Result("startup", family, "empty cache", error=str(error))
            return
        ours, other = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
        yield Result("startup", family, "filled cache", ours=ours, reference=other, ratio=ours / other)
