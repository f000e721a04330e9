"""Which kernels a check looks at: all of them, or a sample that has every op and every dtype."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from mojo_runtime.aten import Row, key_template, rows
from torch_mojo_eager.ops import specs
from torch_mojo_eager.ops.specs import Kernel

OTHER_DTYPES = 2
"""How many dtypes of a row run beside its first, unless all do."""


def distinct_rows() -> list[Row]:
    """Rows that between them reach every kernel of the tables: of those that share their kernels, the most general.

    Rows whose first scalars are different constants use a kernel in different ways.
    """
    chosen: dict[str, Row] = {}
    for row in sorted(rows(), key=_generality):
        chosen.setdefault(_use(row), row)
    return [row for row in rows() if chosen[_use(row)] is row]


def _use(row: Row) -> str:
    constant = row.scalars[0] if row.scalars and row.scalars[0].startswith("=") else ""
    return key_template(row)[0] + constant


def _generality(row: Row) -> tuple[bool, bool]:
    base, _, overload = row.name.partition(".")
    return base.endswith("_"), "Scalar" in overload


def dtypes_to_run(number: int, dtypes: Sequence[str]) -> list[str]:
    """Some dtypes of a row: the first, and others that differ from row to row, so that a family's rows have all.

    Args:
        number: The row's.
        dtypes: What it exists for.

    Returns:
        All of them where the environment variable GPU_CHECK_ALL is set.
    """
    rest = dtypes[1:]
    if "GPU_CHECK_ALL" in os.environ or len(rest) <= OTHER_DTYPES:
        return list(dtypes)
    chosen = {rest[(number * OTHER_DTYPES + i) % len(rest)] for i in range(OTHER_DTYPES)}
    return [dtypes[0], *(dtype for dtype in rest if dtype in chosen)]


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
    for number, (first, *rest) in enumerate(groups.values()):
        stride = max(1, len(rest) // max(1, count))
        others = {rest[(number + i * stride) % len(rest)].key for i in range(min(count, len(rest)))}
        chosen += [first, *(kernel for kernel in rest if kernel.key in others)]
    return chosen
