"""Ops that a row of mojo_runtime.aten serves: the graph calls the kernel that eager mode calls."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

import torch

from mojo_runtime import aten
from mojo_runtime.aten import Row
from mojo_runtime.launch import Number
from torch_mojo_compile.dtypes import kernel_dtype


def overload(name: str) -> torch._ops.OpOverload | None:
    """Returns the overload of a name such as "add.out" or "prims.fma.default", None where this torch has none."""
    library = torch.ops.prims if name.startswith("prims.") else torch.ops.aten
    base, _, kind = name.removeprefix("prims.").partition(".")
    packet = getattr(library, base, None)
    return getattr(packet, kind or "default", None) if packet is not None else None


def _inputs(schema: torch._C.FunctionSchema) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]


def _functional(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The overload with the same arguments that writes to none of them."""
    if not any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments):
        return op
    base = op._schema.name.removeprefix("aten::").removesuffix("_")
    packet = getattr(torch.ops.aten, base, None)
    for kind in packet.overloads() if packet is not None else ():
        candidate = getattr(packet, kind)
        arguments = candidate._schema.arguments
        if not any(a.alias_info is not None for a in arguments) and _inputs(candidate._schema) == _inputs(op._schema):
            return candidate  # type: ignore[no-any-return]
    return None


@functools.cache
def served() -> dict[torch._ops.OpOverload, Row]:
    """Returns the functional ops that rows serve, and their rows."""
    found: dict[torch._ops.OpOverload, Row] = {}
    for row in aten.rows():
        op = overload(row.name)
        if op is None or any("Tensor[]" in str(a.type) for a in op._schema.arguments if a.is_out):
            continue
        functional = _functional(op)
        if functional is not None:
            found.setdefault(functional, row)
    return found


def first_bytes(text: str) -> int:
    """Returns the word that stands for a text among a kernel's scalars."""
    return int(struct.unpack("<q", text.encode()[:8].ljust(8, b"\0"))[0])


def words(value: Any, type_: str) -> list[Any]:
    """Returns a schema argument's scalars, by the rules of docs/architecture.md."""
    optional = type_.startswith("Optional[") or type_.endswith("?")
    inner = type_.removeprefix("Optional[").removesuffix("]") if type_.startswith("Optional[") else type_
    is_list = inner.startswith("List[")
    if value is None:
        return [0]
    found: list[Any] = [1] if optional and not is_list else []
    if is_list:
        items = value if isinstance(value, Sequence) else [value]
        found.append(len(items))
        found.extend(float(item) if "float" in inner else _fixed(item) for item in items)
    elif inner in ("number", "Scalar"):
        found.append(Number(value))
    elif isinstance(value, str):
        found.append(first_bytes(value))
    elif isinstance(value, torch.dtype):
        found.append(kernel_dtype(value))
    elif isinstance(value, float):
        found.append(value)
    else:
        found.append(_fixed(value))
    return found


def _fixed(value: Any) -> Any:
    """An int, or a symbolic one as it is, for the graph to compute."""
    return value if isinstance(value, torch.SymInt) else int(value)


def scalars(row: Row, op: torch._ops.OpOverload, arguments: dict[str, Any]) -> list[Any]:
    """Returns a kernel's scalars for a call of its op.

    Args:
        row: The op's row.
        op: The overload that was called.
        arguments: By name, with defaults filled in.
    """
    types = {a.name: str(a.type) for a in op._schema.arguments}
    found: list[Any] = []
    for source in row.scalars:
        if source.startswith("="):
            found.append(int(source[1:]))
        elif source.startswith("len("):
            found.append(len(arguments[source[4:-1]]))
        else:
            found += words(arguments[source], types[source])
    return found
