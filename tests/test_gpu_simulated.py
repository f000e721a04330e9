"""The GPU body and the host launch code of every kernel, run in the PTX simulator against CPU torch.

Kernels are compiled for sm_80, many to a library, and called through their C entry. The simulator reports out-of-bounds
and uninitialised reads and races.
"""

from __future__ import annotations

import functools

import pytest
import torch

from gpu_check.calls import DTYPES, functional_name
from gpu_check.cases import cases
from gpu_check.samples import capture
from gpu_check.simulate import KernelRunner
from mojo_runtime.service import CompileService
from mojo_runtime.target import Target
from torch_mojo_eager.ops import registry, specs
from torch_mojo_eager.ops.table import Pointwise

ROWS = {row.name: row for row in registry.rows()}
TARGET = "sm_80"


@functools.cache
def captured():
    return capture(frozenset(functional_name(row) for row in ROWS.values()))


@pytest.fixture(scope="session")
def runner(tmp_path_factory, pytestconfig):
    """Runs kernel calls; kernels compile in the background in the order of the tests."""
    folder = pytestconfig.cache.mkdir("gpu-kernels")
    service = CompileService(Target.parse(TARGET), folder)
    service.request([kernel.key for kernel in specs.kernels() if kernel.row is not None])

    def find(key):
        ((_, entry),) = service.compile(key).items()
        return str(entry.library), entry.symbol

    runner = KernelRunner(find)
    yield runner
    runner.close()
    service.close()


def parameters():
    for name, row in ROWS.items():
        for dtype in row.dtypes:
            yield pytest.param(row, DTYPES[dtype], id=f"{name}-{dtype}")


@pytest.mark.parametrize(("row", "dtype"), parameters())
def test_row(runner, row, dtype):
    count = 0
    for case in cases(row, dtype, captured()):
        runner.run(case.call)
        for output, expected in zip(case.outputs, case.expected, strict=True):
            tolerance = {}
            if isinstance(row, Pointwise) and dtype == torch.float32:
                tolerance = dict(zip(("rtol", "atol"), row.tolerance, strict=True))
            torch.testing.assert_close(
                output, expected, equal_nan=True, **tolerance, msg=lambda m, case=case: f"{case.name}: {m}"
            )
        count += 1
    assert count, f"no sample calls {functional_name(row)}: add one to gpu_check.cases.MADE"
