"""What one call of an op costs the host: operands of four elements, so that the kernel itself costs nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from measure import Budget, Result, alternate

# name, statement, whether it is one of the ops with a goal
ROWS = (
    ("a + b", "a + b", True),
    ("a.add_(b)", "a.add_(b)", True),
    ("a * 2", "a * 2", True),
    ("a.view(2, 2)", "a.view(2, 2)", True),
    ("m.transpose(0, 1)", "m.transpose(0, 1)", True),
    ("a.fill_(1.0)", "a.fill_(1.0)", True),
    ("a.sum()", "a.sum()", True),
    ("m.mm(m)", "m.mm(m)", True),
    ("empty_like", "torch.empty_like(a)", False),
    ("a.sqrt()", "a.sqrt()", False),
    ("a[1]", "a[1]", False),
    ("a + row (broadcast)", "m + r", False),
    ("a.sum(-1)", "m.sum(-1)", False),
    ("F.linear", "F.linear(m, m, r)", False),
    ("F.layer_norm", "F.layer_norm(m, (2,), r, r)", False),
    ("softmax", "torch.softmax(m, -1)", False),
    ("cat", "torch.cat((a, b))", False),
    ("a.copy_(b)", "a.copy_(b)", False),
    ("a + b with autograd", "p + b", False),
)
GOAL = 1.1


def run(device: torch.device, reference: torch.device, budget: Budget) -> Iterator[Result]:
    """Yields the results of all rows."""
    sides = []
    for where in (device, reference):
        a = torch.ones(4, device=where)
        operands = {
            "torch": torch,
            "F": F,
            "a": a,
            "b": torch.zeros(4, device=where),
            "m": torch.ones(2, 2, device=where),
            "r": torch.ones(2, device=where),
            "p": torch.ones(4, device=where, requires_grad=True),
        }
        sides.append((where, operands))
    for name, statement, has_goal in ROWS:
        row = Result("host_cost", "host cost, 4-element float32", name, goal=GOAL if has_goal else None)
        yield alternate(row, statement, sides, budget)
