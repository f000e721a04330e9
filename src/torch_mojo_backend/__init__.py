"""PyTorch on any accelerator through kernels written in Mojo: what programs need, from the packages that define it."""

from __future__ import annotations

from torch_mojo_eager import register_mojo_devices

__all__ = ["register_mojo_devices"]
__version__ = "0.1.0"
