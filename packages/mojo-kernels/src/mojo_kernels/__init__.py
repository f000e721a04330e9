"""Mojo kernels for CPUs and GPUs; this Python package only says where their sources are."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"


def include_path() -> Path:
    """Returns the folder to give to `mojo build -I` so that `from mojo_kernels... import ...` resolves."""
    return Path(__file__).resolve().parent.parent
