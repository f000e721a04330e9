"""What the cases run with."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["aot_eager"])
def backend(request: pytest.FixtureRequest) -> str:
    """A backend of torch.compile that runs the graphs on the device's eager kernels."""
    torch._dynamo.reset()
    return request.param
