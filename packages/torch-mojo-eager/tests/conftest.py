"""The device under test: two virtual CPU devices unless the environment chooses others."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator

os.environ.setdefault("MOJO_RUNTIME_DEVICES", "cpu:2")

import pytest
import torch

import torch_mojo_eager
from mojo_runtime import _native

torch_mojo_eager.register_mojo_devices()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The accelerator."""
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def _first_device_is_current() -> None:
    torch.accelerator.set_device_index(0)


class Held:
    """A stream that stays where it is, as if a slow kernel ran on it, until it is released."""

    def __init__(self, stream: torch.Stream) -> None:
        self._released = threading.Event()
        self._function = _native.HOST_FUNCTION(lambda _: self._wait())
        function = ctypes.cast(self._function, ctypes.c_void_p)
        _native.library().mojo_stream_call(stream.device_index, stream.stream_id, function, None)

    def _wait(self) -> None:
        self._released.wait(120)

    def release(self) -> None:
        """Lets the stream go on."""
        self._released.set()

    def release_after(self, seconds: float) -> None:
        """Lets the stream go on after a while, for a test that waits for it meanwhile."""
        threading.Timer(seconds, self.release).start()


@pytest.fixture
def hold() -> Iterator[Callable[[torch.Stream], Held]]:
    """Holds streams; what a test leaves held is released and waited for at its end."""
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [torch.accelerator.synchronize(i) for i in range(torch.accelerator.device_count())])
        held: list[Held] = []
        stack.callback(lambda: [one.release() for one in held])

        def hold(stream: torch.Stream) -> Held:
            held.append(Held(stream))
            return held[-1]

        yield hold


@pytest.fixture
def side(device: torch.device) -> torch.Stream:
    """A stream beside the default one."""
    return torch.Stream(device)


@pytest.fixture
def second(device: torch.device) -> torch.device:
    """Another device of the same type."""
    if torch.accelerator.device_count() < 2:
        pytest.skip("needs two devices")
    return torch.device(device.type, 1)
