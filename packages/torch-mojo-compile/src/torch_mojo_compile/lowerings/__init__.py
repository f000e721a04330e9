"""Lowerings of aten ops to MAX graph ops, a module per family; what no module names is served by a kernel's row."""

from __future__ import annotations

from torch_mojo_compile.lowerings import (
    attention,
    convolution,
    creation,
    embedding,
    indexing,
    linalg,
    matmul,
    normalization,
    pointwise,
    random,
    reduction,
    shape,
    sorting,
)

__all__ = [
    "attention",
    "convolution",
    "creation",
    "embedding",
    "indexing",
    "linalg",
    "matmul",
    "normalization",
    "pointwise",
    "random",
    "reduction",
    "shape",
    "sorting",
]
