"""The device that tests run on."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The default mojo device: a GPU where there is one, else the host CPU."""
    import torch_mojo_backend

    torch_mojo_backend.register_mojo_devices()
    return torch.device("mojo")
