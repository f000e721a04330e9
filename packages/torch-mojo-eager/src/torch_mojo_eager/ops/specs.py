"""Every kernel that the frontend can ask for, for `prebuild`, the GPU checks and the op listing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from mojo_runtime.aten import fill_key, key_template, rows
from mojo_runtime.aten.table import ALL, FLOATING, NUMERIC, Row
from torch_mojo_eager.ops import registry

_FILLS = "mojo_kernels.random.distributions"

# Kernels that the shim's C++ launches by itself.
_SHIM: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("mojo_kernels.copy:copy[dtype={0}]", (("uint8", "uint16", "uint32", "uint64"),)),
    ("mojo_kernels.copy:cast[destination={0},source={1}]", (ALL, ALL)),
    ("mojo_kernels.fill:fill[dtype={0}]", (ALL,)),
    ("mojo_kernels.convolution.convolve:convolve[dtype={0}]", ((*FLOATING, "int64"),)),
    ("mojo_kernels.convolution.weight:weight_gradient[dtype={0}]", ((*FLOATING, "int64"),)),
    ("mojo_kernels.indexing.gather_scatter:gather[dtype={0},index=int64,indices=slices]", (ALL,)),
    *(
        (f"mojo_kernels.indexing.advanced:index[count={count},dtype={{0}},op={action}]", (ALL,))
        for count in (1, 2)
        for action in ("get", "set", "add")
    ),
    ("mojo_kernels.attention.forward:forward[dtype={0}]", (FLOATING,)),
    ("mojo_kernels.attention.backward:backward[dtype={0}]", (FLOATING,)),
    (f"{_FILLS}:uniform[dtype={{0}}]", (FLOATING,)),
    *((f"{_FILLS}:normal[dtype={{0}},logarithmic={flag}]", (FLOATING,)) for flag in ("false", "true")),
    *((f"{_FILLS}:integer[dtype={{0}},wide={flag}]", (NUMERIC,)) for flag in ("false", "true")),
    (f"{_FILLS}:bernoulli[dtype={{0}}]", (NUMERIC,)),
    *((f"{_FILLS}:inverse[dtype={{0}},kind={kind}]", (FLOATING,)) for kind in ("exponential", "cauchy")),
    (f"{_FILLS}:inverse[dtype={{0}},kind=geometric]", (NUMERIC,)),
    ("mojo_kernels.random.dropout:dropout[dtype={0}]", (FLOATING,)),
    ("mojo_kernels.random.dropout:backward[dtype={0}]", (FLOATING,)),
    ("mojo_kernels.random.dropout:bernoulli[dtype={0},probability={1}]", (NUMERIC, FLOATING)),
    ("mojo_kernels.normalization.layer_norm:forward[dtype={0}]", (FLOATING,)),
    ("mojo_kernels.normalization.layer_norm:backward[dtype={0}]", (FLOATING,)),
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel and what asks for it.

    Attributes:
        key: The KernelSpec key.
        op: The row's aten overload, or "".
        dtypes: The dtypes of the key's placeholders.
        row: The op's row, or None.
    """

    key: str
    op: str
    dtypes: tuple[str, ...]
    row: Row | None


def _combinations(template: str, op: str, allowed: Sequence[Sequence[str]], row: Row | None) -> Iterator[Kernel]:
    for dtypes in itertools.product(*allowed):
        yield Kernel(fill_key(template, dtypes), op, dtypes, row)


def kernels(dtypes: Sequence[str] | None = None) -> Iterator[Kernel]:
    """Yields every kernel of the rows, the shim and the Python ops once, in a stable order.

    Args:
        dtypes: Only kernels all of whose dtypes are among these; None for all.
    """
    seen: set[str] = set()

    def fresh(found: Iterator[Kernel]) -> Iterator[Kernel]:
        for kernel in found:
            wanted = dtypes is None or all(dtype in dtypes for dtype in kernel.dtypes)
            if wanted and kernel.key not in seen:
                seen.add(kernel.key)
                yield kernel

    for template, allowed in _SHIM:
        yield from fresh(_combinations(template, "", allowed, None))
    for row in rows():
        template, _, allowed = key_template(row)
        yield from fresh(_combinations(template, row.name, allowed, row))
        if row.complex == "bits":
            fixed = [("uint64",) if i == 0 else names for i, names in enumerate(allowed)]
            yield from fresh(_combinations(template, row.name, fixed, None))
        elif row.complex:
            yield from fresh(iter([Kernel(registry.complex_key(row), row.name, ("complex64",), None)]))
    for template, allowed in registry.python_kernels():
        yield from fresh(_combinations(f"mojo_kernels.{template}", "", allowed, None))


@dataclasses.dataclass(frozen=True)
class Listing:
    """One line of the op listing: the overload, the dtypes it takes, "native" or "Python", and what it does."""

    name: str
    dtypes: tuple[str, ...]
    path: str
    doc: str


def listing() -> list[Listing]:
    """Returns every op that the frontend registers, sorted by name."""
    lines: list[Listing] = []
    for row in rows():
        forms = (row.name, *registry.forms_of(row.name))
        lines.extend(Listing(name, row.dtypes, "native", row.doc) for name in forms if name)
    for name, function in registry.python_ops().items():
        lines.append(Listing(name, (), "Python", (function.__doc__ or "").partition("\n")[0]))
    return sorted(lines, key=lambda line: line.name)


def missing(script: str, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Runs a program to its end and yields lines that say which ops it lacks."""
    from torch_mojo_eager.missing import missing_ops

    yield from missing_ops(script, arguments)


__all__ = ["Kernel", "Listing", "kernels", "listing", "missing"]
