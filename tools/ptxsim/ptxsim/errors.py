"""What a simulation raises and records."""

from __future__ import annotations

import dataclasses


class PtxError(Exception):
    """Something that a GPU would crash on, hang on or leave undefined."""


class Unsupported(PtxError):
    """PTX that the simulator has no translation for."""


@dataclasses.dataclass
class Hazard:
    """One finding that did not stop the launch.

    Attributes:
        kind: "uninitialised", "race", "barrier-after-exit", "divergent-barrier", "shuffle-inactive" or
            "division-by-zero".
        line: Of the PTX.
        text: The instruction.
        example: One thread, and what it did.
        count: How many accesses by threads.
    """

    kind: str
    line: int
    text: str
    example: str
    count: int

    def __str__(self) -> str:
        return f"{self.kind}: PTX line {self.line} `{self.text}`: {self.example} (x{self.count})"
