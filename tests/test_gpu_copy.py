"""GPU copies between layouts, in the PTX simulator: the tiled transposition and the strided kernel."""

from __future__ import annotations

import pytest
import torch

from gpu_check.calls import KernelCall, Operand
from gpu_check.simulate import KernelRunner
from mojo_runtime.service import CompileService
from mojo_runtime.target import Target

KEY = "mojo_kernels.copy:copy[dtype=uint32]"


@pytest.fixture(scope="module")
def runner(pytestconfig):
    service = CompileService(Target.parse("sm_80"), pytestconfig.cache.mkdir("gpu-kernels"))
    service.request([KEY])

    def find(key):
        ((_, entry),) = service.compile(key).items()
        return str(entry.library), entry.symbol

    runner = KernelRunner(find)
    yield runner
    runner.close()
    service.close()


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((40, 70), (1, 0)),
        ((16, 17), (1, 0)),
        ((3, 33, 35), (0, 2, 1)),
        ((20, 3, 18), (2, 1, 0)),
        ((2, 3, 20, 24), (0, 2, 3, 1)),
        ((5, 7), (1, 0)),
    ],
)
def test_permuted_copy(runner, shape, order):
    source = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape).permute(order)
    destination = torch.zeros(source.shape, dtype=torch.int32)
    runner.run(KernelCall(KEY, [Operand(destination, is_output=True, holds_values=False), Operand(source)], []))
    torch.testing.assert_close(destination, source.contiguous(), rtol=0, atol=0)
