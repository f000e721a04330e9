"""The module `torch.mojo`: what torch itself looks up on a device's module, and what users know from `torch.cuda`.

Programs should use `torch.accelerator`; this module adds nothing to it.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch

_C: Any = torch._C
_initialized = True  # torch.utils.checkpoint keeps the random state of devices that are


MEMORY_FUNCTIONS = (
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
)


def _index(device: Any) -> int:
    """Returns the index of a device given as an int, string, torch.device or None (the current one)."""
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "mojo":
        raise ValueError(f"Expected a mojo device, but got: {device}")
    return current_device() if device.index is None else int(device.index)


def is_available() -> bool:
    """Returns whether there is a mojo device."""
    return bool(device_count() > 0)


def is_initialized() -> bool:
    """Returns True: registration initializes the device."""
    return True


def _lazy_init() -> None:
    """Does nothing: registration initializes the device."""


def _lazy_call(function: Callable[[], Any], **_: Any) -> None:
    """Calls at once what other devices put off until they are initialized."""
    function()


def device_count() -> int:
    """Returns the number of mojo devices."""
    return int(_C._accelerator_hooks_device_count())


def current_device() -> int:
    """Returns the index of the current device."""
    return int(_C._accelerator_hooks_get_current_device())


def set_device(device: Any) -> None:
    """Makes a device current."""
    _C._accelerator_hooks_set_current_device(_index(device))


def _exchange_device(index: int) -> int:
    return int(_C._accelerator_hooks_exchange_device(index))


def _maybe_exchange_device(index: int) -> int:
    return int(_C._accelerator_hooks_maybe_exchange_device(index))


def synchronize(device: Any = None) -> None:
    """Waits for all streams of a device."""
    _C._accelerator_synchronizeDevice(_index(device))


def current_stream(device: Any = None) -> torch.Stream:
    """Returns the current stream of a device."""
    return torch.accelerator.current_stream(_index(device))


def stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
    """Makes a stream current in a `with` block; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


class device:
    """Makes a device current in a `with` block."""

    def __init__(self, device: Any) -> None:
        self.index = _index(device)

    def __enter__(self) -> None:
        self.previous = _maybe_exchange_device(self.index)

    def __exit__(self, *_: object) -> None:
        _maybe_exchange_device(self.previous)


def _is_in_bad_fork() -> bool:
    from mojo_runtime import in_bad_fork

    return in_bad_fork()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Returns the dtypes that autocast takes; the first is the default, as on CUDA."""
    return [torch.float16, torch.bfloat16, torch.float32]


def default_generator(device: Any = None) -> torch.Generator:
    """Returns the default generator of a device."""
    generator: torch.Generator = torch.ops.mojo.default_generator(_index(device))
    return generator


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    default_generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seeds every device."""
    for index in range(device_count()):
        default_generator(index).manual_seed(seed)


def seed_all() -> None:
    """Seeds every device with the same fresh random number."""
    manual_seed_all(default_generator(0).seed())


def initial_seed() -> int:
    """Returns the seed of the current device."""
    return int(default_generator().initial_seed())


def get_rng_state(device: Any = "mojo") -> torch.Tensor:
    """Returns a device's generator state: 16 bytes (seed, offset), a CPU uint8 tensor."""
    return default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "mojo") -> None:
    """Sets a device's generator state."""
    default_generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the generator state of every device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Sets the generator state of every device."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def create() -> types.ModuleType:
    """Returns the module object to register as `torch.mojo`."""
    module = types.ModuleType("torch.mojo", __doc__)
    for name, value in globals().items():
        if getattr(value, "__module__", None) == __name__ and name != "create":
            setattr(module, name, value)
    for name in MEMORY_FUNCTIONS:
        setattr(module, name, getattr(torch.accelerator, name))
    vars(module).update(_initialized=_initialized, Stream=torch.Stream, Event=torch.Event)
    return module
