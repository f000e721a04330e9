"""Which kernel serves which aten op: rows that name ops, kernels and argument names, and know nothing of torch itself.

Frontends read them: the eager one registers each row for its device, the compiler calls the same kernels from graphs.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

from mojo_runtime._native import DTYPE_CODES
from mojo_runtime.aten import tables
from mojo_runtime.aten.table import Native, Pointwise, Row


def kernel_key(kernel: str, parameters: Mapping[str, str | int | bool]) -> str:
    """Returns the KernelSpec key of "module:function" below mojo_kernels with compile-time parameters."""
    rendered = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in sorted(parameters.items())
    ]
    return f"mojo_kernels.{kernel}" + (f"[{','.join(rendered)}]" if rendered else "")


@functools.cache
def rows() -> tuple[Row, ...]:
    """Returns the rows of all tables, in a stable order."""
    found: list[Row] = []
    for module in pkgutil.iter_modules(tables.__path__, prefix=tables.__name__ + "."):
        found.extend(importlib.import_module(module.name).ROWS)
    return tuple(found)


def key_template(row: Row) -> tuple[str, tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Returns a row's KernelSpec key with placeholders for dtypes, their arguments, and what is allowed."""
    parameters: dict[str, Any] = {}
    arguments: list[str] = []
    allowed: list[tuple[str, ...]] = []
    if isinstance(row, Pointwise):
        parameters = {"dtype": "{0}", **({"op": row.op} if row.op else {}), **dict(row.parameters)}
        allowed = [row.dtypes]
    else:
        restricted = dict(row.dtype_parameters)
        for name, source in row.parameters:
            if source.startswith("="):
                parameters[name] = source[1:]
                continue
            if source not in arguments:
                allowed.append(restricted.get(name, tuple(DTYPE_CODES)) if arguments else row.dtypes)
                arguments.append(source)
            parameters[name] = f"{{{arguments.index(source)}}}"
    return kernel_key(row.kernel, parameters), tuple(arguments), tuple(allowed)


def fill_key(template: str, dtypes: Sequence[str]) -> str:
    """Returns the KernelSpec key of a template of `key_template` for dtypes."""
    for i, dtype in enumerate(dtypes):
        template = template.replace(f"{{{i}}}", dtype)
    return template


__all__ = ["Native", "Pointwise", "Row", "fill_key", "kernel_key", "key_template", "rows"]
