"""The device under test: two virtual CPU devices unless the environment chooses others."""

from __future__ import annotations

import os

os.environ.setdefault("MOJO_RUNTIME_DEVICES", "cpu:2")

import pytest
import torch

import torch_mojo_eager

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
