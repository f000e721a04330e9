"""What can go wrong between a torch graph and a MAX graph."""

from __future__ import annotations


class UnsupportedOps(NotImplementedError):
    """A graph holds ops, dtypes or inputs that have no lowering; the message names all of them."""


class LoweringError(RuntimeError):
    """An op has a lowering, which failed; the message names the node and the user's source line."""


class CompileFailed(RuntimeError):
    """MAX could not compile a graph; the message holds its diagnostics."""
