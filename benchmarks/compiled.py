"""Training and inference under torch.compile on MAX: against inductor and eager torch, and what compiling costs.

uv run python benchmarks/run.py compiled
uv run python benchmarks/compiled.py gpt    # one cold start, as a process of its own
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from measure import Budget, Result, alternate

# torch's own backend, and no backend.
REFERENCES = ("inductor", "eager")
STATEMENTS = {"training": "train(model, inputs, targets)", "inference": "infer(model, inputs)"}


def perceptron() -> tuple[nn.Module, Tensor, Tensor]:
    """Three layers with a batch."""
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.randn(32, 64), torch.randint(10, (32,))


def convolutions() -> tuple[nn.Module, Tensor, Tensor]:
    """Convolutions with batch norm and pooling, with a batch of images."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return model, torch.randn(16, 3, 32, 32), torch.randint(10, (16,))


def gpt() -> tuple[nn.Module, Tensor, Tensor]:
    """The GPT example with two layers, and a batch of tokens."""
    sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
    import train_gpt

    config = train_gpt.GPTConfig(layers=2, embd=128, block_size=64, dropout=0.0)
    tokens = torch.randint(config.vocabulary, (8, 65))
    return train_gpt.GPT(config), tokens[:, :-1], tokens[:, 1:]


# The builders, and the goal for the CPU seconds of a cold start.
MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor, Tensor]], float]] = {
    "perceptron": (perceptron, 45.0),
    "convolutions": (convolutions, 90.0),
    "gpt": (gpt, 90.0),
}


def train(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    """Forward and backward of cross entropy, the gradients as a training loop has them: none from before."""
    model.zero_grad()
    scores = model(inputs)
    F.cross_entropy(scores.flatten(0, -2), targets.flatten()).backward()


def infer(model: nn.Module, inputs: Tensor) -> Tensor:
    """The forward pass alone."""
    with torch.no_grad():
        return model(inputs)  # type: ignore[no-any-return]


def small(x: Tensor) -> Tensor:
    """So little that a call is what it costs."""
    return torch.relu(x * 2 + 1)


def namespace(name: str, backend: Any) -> dict[str, Any]:
    """Returns a model that a backend compiles, or that runs eagerly, and a batch; the same values for each."""
    torch.manual_seed(0)
    model, inputs, targets = MODELS[name][0]()
    return {
        "train": train,
        "infer": infer,
        "model": model if backend == "eager" else torch.compile(model, backend=backend),
        "inputs": inputs,
        "targets": targets,
    }


def _cpu_seconds(root: int, seen: dict[int, float]) -> None:
    """Notes the CPU seconds of a process and of all below it; those that have ended keep what was noted last."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.name)] = int(fields[1])
        used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / tick
    for process in used:
        above = process
        while above not in (root, 0):
            above = parents.get(above, 0)
        if above == root:
            seen[process] = used[process]


def cold_start(name: str, folder: Path) -> float:
    """Returns the CPU seconds that a process and its workers take for one training step.

    Raises:
        RuntimeError: It failed; the message ends with what it wrote last.
    """
    environment = {**os.environ, "TORCH_MOJO_COMPILE_CACHE_DIR": str(folder)}
    command = [sys.executable, __file__, name]
    seen: dict[int, float] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            _cpu_seconds(process.pid, seen)
            time.sleep(0.1)
        assert process.stdout is not None
        text = process.stdout.read()
    if process.returncode != 0:
        raise RuntimeError(f"{name} did not train: {text[-300:]}")
    return sum(seen.values())


def run(device: torch.device, reference: torch.device, budget: Budget) -> Iterator[Result]:
    """Yields the cold starts, then what a step costs. Tensors are on the CPU, where both compilers run."""
    from torch_mojo_compile import mojo_backend

    cpu = torch.device("cpu")
    # Long enough that what the rest before it put to sleep counts little.
    steady = dataclasses.replace(budget, run_seconds=10 * budget.run_seconds)
    for name, (_, goal) in MODELS.items():
        if budget.quick and name != "perceptron":
            continue
        with tempfile.TemporaryDirectory() as folder:
            for state in ("nothing stored", "stored"):
                cost = cold_start(name, Path(folder))
                row = Result("compiled", "first training step, CPU seconds", f"{name}, {state}", ours=cost, goal=goal)
                yield row
        for backend in REFERENCES:
            # Dynamo runs what would be its ninth version of a function eagerly, and all models share one.
            torch._dynamo.reset()
            sides = [(cpu, namespace(name, mojo_backend)), (cpu, namespace(name, backend))]
            for kind, statement in STATEMENTS.items():
                row = Result("compiled", f"{kind} against {backend}", name, goal=1.0 if backend == "eager" else None)
                yield alternate(row, statement, sides, steady)
    torch._dynamo.reset()
    x = torch.randn(10)
    calls = [{"f": torch.compile(small, backend=backend), "x": x} for backend in (mojo_backend, "inductor")]
    row = Result("compiled", "call against inductor", "relu(x * 2 + 1) of 10 numbers", goal=1.5)
    yield alternate(row, "f(x)", [(cpu, call) for call in calls], steady)


if __name__ == "__main__":
    from torch_mojo_compile import mojo_backend

    first = namespace(sys.argv[1], mojo_backend)
    train(first["model"], first["inputs"], first["targets"])
