"""Checks of factorizations, which decompositions/linalg.py writes in terms of kernels."""

from __future__ import annotations

from typing import Any

import torch
from max.graph import TensorValue
from torch._higher_order_ops.effects import with_effects

from torch_mojo_compile import factorizations
from torch_mojo_compile.lowerings.table import Node, lowering_of


def effects(node: Node, token: TensorValue | None, op: Any, *args: Any, **_: Any) -> list[Any]:
    """What must happen although no value depends on it: the errors of singular matrices."""
    if op is not torch.ops.aten._linalg_check_errors.default:
        raise NotImplementedError(str(op))
    made = factorizations.check_info(args[0], node.shape, node.dtype)
    return [made, *[None] * (len(node.fake) - 1)]


lowering_of(with_effects, effects)
