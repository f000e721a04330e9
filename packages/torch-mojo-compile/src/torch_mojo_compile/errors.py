"""What can go wrong between a torch graph and a MAX graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class _AtNodes(Exception):
    """An error with the places in the graph that it comes from.

    Attributes:
        nodes: Of the graph that was lowered.
    """

    def __init__(self, message: str, nodes: Sequence[torch.fx.Node] = ()) -> None:
        super().__init__(message)
        self.nodes = list(nodes)


class UnsupportedOps(_AtNodes, NotImplementedError):
    """A graph holds ops, dtypes or inputs that have no lowering; the message names all of them."""


class LoweringError(_AtNodes, RuntimeError):
    """An op has a lowering, which failed; the message names the node and the user's source line."""


class CompileFailed(RuntimeError):
    """MAX could not compile a graph; the message holds its diagnostics."""
