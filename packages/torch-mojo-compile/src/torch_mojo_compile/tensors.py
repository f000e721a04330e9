"""torch tensors as MAX buffers and back, without copying."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from max.driver import Buffer


class _Capsule:
    """A tensor as a DLPack producer, without torch's checks of what has been checked already."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return torch._C._to_dlpack(self.tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@functools.cache
def barrier() -> Buffer:
    """Returns the input by which a graph keeps some calls from being evaluated while it is compiled."""
    return Buffer._from_dlpack(_Capsule(torch.zeros(1, dtype=torch.int64)))


_sizes: dict[int, Buffer] = {}


def size_carrier(size: int) -> Buffer:
    """Returns an empty tensor [size, 0], by which a graph learns a number that is no tensor's size."""
    found = _sizes.get(size)
    if found is None:
        found = _sizes[size] = Buffer._from_dlpack(_Capsule(torch.empty((size, 0))))
    return found


def to_buffer(tensor: torch.Tensor) -> Buffer:
    """Returns a contiguous tensor's memory as a buffer; those of mojo devices that are the CPU need `to_host` first."""
    if tensor.is_cpu:
        return Buffer._from_dlpack(_Capsule(tensor))
    return Buffer.from_dlpack(tensor.detach())


def to_host(values: Sequence[Any]) -> Sequence[Any]:
    """Returns values in which tensors of mojo devices are CPU tensors with their memory.

    What is queued on the device has run then.

    Raises:
        NotImplementedError: The devices are GPUs.
    """
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor) and value.device.type == "mojo"]
    if not places:
        return values
    found = list(values)
    for i, alias in zip(places, torch.ops.mojo.host_aliases([values[i] for i in places]), strict=True):
        found[i] = alias
    torch.accelerator.current_stream(values[places[0]].device).synchronize()
    return found


def from_buffers(buffers: Sequence[Buffer], device: torch.device) -> list[torch.Tensor]:
    """Returns the memory of buffers as tensors on a device."""
    made: list[torch.Tensor] = [torch._C._from_dlpack(buffer.__dlpack__()) for buffer in buffers]
    if device.type == "mojo":
        return torch.ops.mojo.from_hosts(made, device.index or 0)  # type: ignore[no-any-return]
    return made


def random_state(device: torch.device, words: int) -> Buffer:
    """Returns seed and offset of the device's generator for one call, and moves the offset on.

    On the CPU, whose generator of torch is no Philox one, each call draws a seed of its own from it, so that
    `torch.manual_seed` makes programs repeatable.

    Args:
        device: The device of the results.
        words: How far the call moves the offset.
    """
    if device.type == "mojo":
        seed, offset = torch.ops.mojo.philox_state(None, device.index or 0, words)
        return to_buffer(torch.tensor([seed, offset], dtype=torch.int64))
    drawn = torch.empty(2, dtype=torch.int64).random_()
    drawn[1] = 0
    return to_buffer(drawn)
