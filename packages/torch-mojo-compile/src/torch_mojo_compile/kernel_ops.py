"""Kernels as torch ops, for decompositions: lowered in a graph, called where a traced graph runs eagerly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_mojo_compile import factorizations
from torch_mojo_compile.lowerings.table import Node, lowering_of

_LIBRARY = torch.library.Library("mojo_compile", "DEF")


def _kernel_op(schema: str, function: Callable[..., Any]) -> torch._ops.OpOverload:
    """Makes a torch op of a function that takes values of a graph and tensors of torch, fake ones among them."""
    _LIBRARY.define(schema)
    name = schema.partition("(")[0]

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return function(*[arg.contiguous() if isinstance(arg, torch.Tensor) else arg for arg in args])

    @functools.wraps(function)
    def lower(node: Node, *args: Any) -> Any:
        made = function(*[node.dim(arg) if isinstance(arg, torch.SymInt) else arg for arg in args])
        return list(made) if isinstance(made, tuple) else made

    for key in ("CPU", "PrivateUse1"):
        _LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"mojo_compile::{name}", run, lib=_LIBRARY)
    op: torch._ops.OpOverload = getattr(torch.ops.mojo_compile, name).default
    lowering_of(op, lower)
    return op


lu_factor = _kernel_op("lu_factor(Tensor x, bool pivot) -> (Tensor, Tensor, Tensor)", factorizations.lu_factor)
lu_permutation = _kernel_op("lu_permutation(Tensor pivots, SymInt rows) -> Tensor", factorizations.lu_permutation)
solve_triangle = _kernel_op(
    "solve_triangle(Tensor right, Tensor triangle, bool upper, bool unit) -> Tensor", factorizations.solve_triangle
)
cholesky = _kernel_op("cholesky(Tensor x) -> (Tensor, Tensor)", factorizations.cholesky)
qr_factor = _kernel_op("qr_factor(Tensor x) -> (Tensor, Tensor)", factorizations.qr_factor)
qr_multiply = _kernel_op(
    "qr_multiply(Tensor x, Tensor reflections, Tensor factors, bool transposed) -> Tensor", factorizations.qr_multiply
)
symmetric_eigen = _kernel_op("symmetric_eigen(Tensor x) -> (Tensor, Tensor)", factorizations.symmetric_eigen)
singular_rows = _kernel_op("singular_rows(Tensor x) -> (Tensor, Tensor)", factorizations.singular_rows)

__all__ = [
    "cholesky",
    "lu_factor",
    "lu_permutation",
    "qr_factor",
    "qr_multiply",
    "singular_rows",
    "solve_triangle",
    "symmetric_eigen",
]
