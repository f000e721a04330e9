"""PyTorch on any accelerator through kernels written in Mojo: what programs need, from the packages that define it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_mojo_eager import register_mojo_devices

if TYPE_CHECKING:
    from torch_mojo_compile import mojo_backend, mojo_op

__all__ = ["mojo_backend", "mojo_op", "register_mojo_devices"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Dynamo and MAX take seconds to import, which programs that only run eagerly need not wait for.
    if name in ("mojo_backend", "mojo_op"):
        import torch_mojo_compile

        return getattr(torch_mojo_compile, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
