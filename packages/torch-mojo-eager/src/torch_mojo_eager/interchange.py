"""Exchanging tensors: where torch does not think of an extension's device, or takes it for one that it is not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

# Methods of storages that put the memory where other processes see it.
SHARING = ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_")


def _refusing(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method of storages that refuses those of the device; torch's own does nothing or fails obscurely."""

    @functools.wraps(method)
    def share(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if self.device.type == "mojo":
            raise NotImplementedError(
                "memory of mojo devices cannot be shared with other processes: share or send a copy, tensor.cpu() or "
                "module.cpu(), and move that to the device there"
            )
        return method(self, *args, **kwargs)

    return share


def _with_extension_device(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `Tensor.__dlpack_device__` that knows the device; torch's own knows "privateuse1" only by that name."""

    @functools.wraps(method)
    def dlpack_device(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type == "mojo":
            return DLDeviceType.kDLExtDev, self.device.index
        return method(self)  # type: ignore[no-any-return]

    return dlpack_device


def install() -> None:
    """Replaces the methods."""
    for name in SHARING:
        setattr(torch.UntypedStorage, name, _refusing(getattr(torch.UntypedStorage, name)))
    torch.Tensor.__dlpack_device__ = _with_extension_device(torch.Tensor.__dlpack_device__)  # type: ignore[method-assign]
