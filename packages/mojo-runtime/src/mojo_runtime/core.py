"""What the compile service needs from the native core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mojo_runtime.store import Entry


class Core(Protocol):
    """Where requests for kernels come from and compiled kernels go."""

    def next_requests(self, timeout_milliseconds: int) -> Sequence[tuple[int, str]]:
        """Waits for slots that need a kernel; returns each with its key."""

    def interrupt_requests(self) -> None:
        """Ends a wait."""

    def index_add(self, key: str, entry: Entry) -> None:
        """Tells where a kernel is."""

    def load(self, slot: int, entry: Entry) -> None:
        """Fills a slot; raises RuntimeError where the library can't be loaded."""

    def fail(self, slot: int, message: str) -> None:
        """Marks a slot as failed: launches raise RuntimeError with the message."""

    def reset(self, slot: int) -> None:
        """Makes a failed slot ask again at its next use."""


class NoCore:
    """A process without the native core: kernels are only compiled and returned."""

    def next_requests(self, timeout_milliseconds: int) -> list[tuple[int, str]]:
        """Returns nothing."""
        return []

    def interrupt_requests(self) -> None:
        """Does nothing."""

    def index_add(self, key: str, entry: Entry) -> None:
        """Does nothing."""

    def load(self, slot: int, entry: Entry) -> None:
        """Does nothing."""

    def fail(self, slot: int, message: str) -> None:
        """Does nothing."""

    def reset(self, slot: int) -> None:
        """Does nothing."""
