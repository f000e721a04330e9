"""How the cases compare results."""

from __future__ import annotations

from typing import Any

import torch


def same(ours: torch.Tensor, theirs: torch.Tensor, **tolerance: Any) -> None:
    """Asserts that two tensors have the same dtype, shape and values, wherever they are; NaN equals NaN."""
    torch.testing.assert_close(
        ours.detach().cpu(), theirs.detach().cpu(), equal_nan=True, check_stride=False, **tolerance
    )
