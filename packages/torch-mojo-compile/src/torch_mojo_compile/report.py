"""What the compiler tells: dumps of graphs, timings, and a summary of everything that was compiled."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from typing import TYPE_CHECKING

import torch
import torch._dynamo

from torch_mojo_compile.config import config

if TYPE_CHECKING:
    from torch_mojo_compile.graph import Lowered


@dataclasses.dataclass
class Compilation:
    """One unit of compilation.

    Attributes:
        name: Its name in dumps.
        graphs: The names of its graphs and their numbers of nodes.
        lowering_seconds: For all of them.
        compile_seconds: In MAX, other process; 0 where the model was stored.
        from_store: Whether it was.
    """

    name: str
    graphs: dict[str, int] = dataclasses.field(default_factory=dict)
    lowering_seconds: float = 0.0
    compile_seconds: float = 0.0
    from_store: bool = False


_compilations: dict[str, Compilation] = {}
_lock = threading.Lock()


def compilations() -> list[Compilation]:
    """Returns what was compiled in this process, in order."""
    with _lock:
        return list(_compilations.values())


def summary() -> str:
    """Returns what was compiled in this process and where dynamo broke graphs, as text for people."""
    lines = []
    for entry in compilations():
        graphs = ", ".join(f"{name} ({nodes} nodes)" for name, nodes in entry.graphs.items())
        origin = "from the store" if entry.from_store else f"compiled in {entry.compile_seconds:.1f} s"
        lines.append(f"{entry.name}: {graphs}; lowered in {entry.lowering_seconds:.2f} s, {origin}")
    breaks = torch._dynamo.utils.counters["graph_break"]
    lines += [f"graph break (x{count}): {reason.splitlines()[0]}" for reason, count in breaks.items()]
    return "\n".join(lines) or "nothing was compiled"


def lowered(unit: str, graph: torch.fx.GraphModule, made: Lowered, seconds: float) -> None:
    """Notes that a graph was lowered, and dumps it where that is wanted."""
    with _lock:
        entry = _compilations.setdefault(unit, Compilation(unit))
        entry.graphs[made.name] = made.nodes
        entry.lowering_seconds += seconds
    folder = config.dump
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{unit}.{made.name}.fx.py").write_text(graph.print_readable(print_output=False))
        (folder / f"{unit}.{made.name}.max.mlir").write_text(made.text)


def compiled(unit: str, key: str, seconds: float, *, from_store: bool) -> None:
    """Notes that a unit's model is there."""
    with _lock:
        entry = _compilations.setdefault(unit, Compilation(unit))
        entry.compile_seconds, entry.from_store = seconds, from_store
    folder = config.dump
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{unit}.json").write_text(json.dumps({"key": key, **dataclasses.asdict(entry)}, indent=1))


def warn(message: str) -> None:
    """Tells the user something that does not stop the program."""
    print(f"torch_mojo_compile: {message}", file=sys.stderr)
