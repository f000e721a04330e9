"""Which kernels a check looks at: all of them, or a sample that has every op and every dtype."""

from __future__ import annotations

from collections import defaultdict

from torch_mojo_eager.ops import registry, specs
from torch_mojo_eager.ops.specs import Kernel
from torch_mojo_eager.ops.table import Row

SAMPLE_PER_FUNCTION = 3
"""Dtypes of each op in the sample, beside its first."""


def distinct_rows() -> list[Row]:
    """Rows that between them reach every kernel of the tables: of those that share their kernels, the most general."""
    rows: dict[str, Row] = {}
    for row in sorted(registry.rows(), key=_generality):
        rows.setdefault(registry.key_template(row)[0], row)
    return [row for row in registry.rows() if rows[registry.key_template(row)[0]] is row]


def _generality(row: Row) -> tuple[bool, bool]:
    base, _, overload = row.name.partition(".")
    return base.endswith("_"), "Scalar" in overload


def all_kernels() -> list[Kernel]:
    """Every kernel that the frontend can ask for."""
    return list(specs.kernels())


def sample(kernels: list[Kernel], count: int) -> list[Kernel]:
    """Some kernels of each op: the first, and `count` others that differ from op to op, so that every dtype occurs.

    Args:
        kernels: The kernels.
        count: How many beside the first.
    """
    groups: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.op, kernel.key.partition("[")[0]].append(kernel)
    chosen = []
    for number, group in enumerate(groups.values()):
        rest = group[1:]
        stride = max(1, len(rest) // max(1, count))
        others = {rest[(number + i * stride) % len(rest)].key: None for i in range(min(count, len(rest)))}
        chosen += [group[0], *(kernel for kernel in rest if kernel.key in others)]
    return chosen
