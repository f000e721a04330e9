"""The home of the `torch.compile` backend that lowers aten graphs to MAX graphs: under construction."""

from __future__ import annotations

__version__ = "0.1.0"
