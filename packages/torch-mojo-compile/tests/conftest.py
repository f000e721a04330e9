"""Graphs that are lowered and checked, but neither compiled nor run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torch_mojo_compile import bridge
from torch_mojo_compile.graph import Lowered
from torch_mojo_compile.unit import Unit


class _NoKernel:
    """The slot of a kernel that nobody will call."""

    def request(self) -> None:
        """Asks for nothing."""


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Forgets what earlier tests compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[Lowered]:
    """Has graphs lowered only: calls run the graph eagerly. Collects what was lowered.

    MAX verifies a graph while it is made; compiling it takes half a minute, which few tests can afford.
    """
    found: list[Lowered] = []

    def submit(self: Unit) -> None:
        self._submitted = True
        found.extend(executable.lowered for executable in self.executables)

    monkeypatch.setattr(Unit, "submit", submit)
    monkeypatch.setattr(Unit, "is_ready", lambda self: False)
    monkeypatch.setattr(bridge, "slot", lambda key: _NoKernel())
    return found
