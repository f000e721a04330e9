"""Programs on the eager device of a simulated GPU against CPU torch: frontend, native core and GPU driver together."""

from __future__ import annotations

import pytest
import torch

from gpu_check.frontend import Frontend
from gpu_check.programs import PROGRAMS


@pytest.fixture(scope="module")
def frontend(pytestconfig):
    frontend = Frontend(pytestconfig.cache.mkdir("gpu-kernels"))
    yield frontend
    frontend.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(frontend, name):
    results = frontend(name)
    expected = [result.detach() for result in PROGRAMS[name](torch.device("cpu"))]
    for i, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5, msg=lambda m, i=i: f"{name}, result {i}: {m}")
