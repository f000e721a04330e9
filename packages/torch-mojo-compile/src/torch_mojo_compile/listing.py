"""What the command line lists of the compiler: lowered ops, the kernels they call, stored models."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from mojo_runtime import aten
from torch_mojo_compile import rows, store
from torch_mojo_compile.lowerings import table


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel that a graph can call."""

    key: str


@dataclasses.dataclass(frozen=True)
class Operation:
    """A lowered op: its overload, the dtypes its kernel exists for, "MAX" or "kernel", and what it does."""

    name: str
    dtypes: tuple[str, ...]
    path: str
    doc: str


def kernels(dtypes: Sequence[str] | None = None) -> Iterator[Kernel]:
    """Yields the kernels of rows that serve ops in graphs.

    Args:
        dtypes: Only kernels all of whose dtypes are among these.
    """
    for row in rows.served().values():
        template, _, allowed = aten.key_template(row)
        for chosen in itertools.product(*allowed):
            if dtypes is None or all(dtype in dtypes for dtype in chosen):
                yield Kernel(aten.fill_key(template, chosen))


def listing() -> list[Operation]:
    """Returns every lowered op, sorted by name."""
    served = {str(op).removeprefix("aten."): row for op, row in rows.served().items()}
    own = table.own_lowerings()
    lines = [
        Operation(name, () if name in own else served[name].dtypes, "MAX" if name in own else "kernel", doc)
        for name, doc in table.lowered().items()
    ]
    return sorted(lines, key=lambda line: line.name)


def missing(script: str, arguments: Sequence[str] = ()) -> Iterator[str]:
    """A graph's missing ops are named by the error that compiling it raises."""
    raise RuntimeError("--missing runs a program eagerly; torch.compile itself names the ops that a graph lacks")


def cache_summary() -> str:
    """Returns a line on the stored models."""
    found = store.models()
    return f"{len(found)} compiled models, {sum(model.bytes for model in found) / 1e6:.1f} MB"


def clean_cache() -> int:
    """Removes all stored models; returns how many."""
    return store.clean()
