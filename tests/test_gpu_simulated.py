"""The GPU body and the host launch code of every kernel, run in the PTX simulator against CPU torch.

Kernels are compiled for sm_80, many to a library, and called through their C entry. The simulator reports out-of-bounds
and uninitialised reads and races. With GPU_CHECK_ALL in the environment every dtype of every row runs.
"""

from __future__ import annotations

import functools

import pytest
import torch

from gpu_check.calls import DTYPES, functional_name
from gpu_check.cases import cases
from gpu_check.samples import capture
from gpu_check.selection import distinct_rows, dtypes_to_run
from gpu_check.simulate import KernelRunner
from mojo_runtime.aten.table import Pointwise
from mojo_runtime.service import CompileService
from mojo_runtime.target import Target
from ptxsim import Options

ROWS = {row.name: row for row in distinct_rows()}
TARGET = "sm_80"


@functools.cache
def captured():
    return capture(frozenset(functional_name(row) for row in ROWS.values()))


@functools.cache
def cases_of(name, dtype):
    return list(cases(ROWS[name], dtype, captured()))


@pytest.fixture(scope="session")
def find(request, pytestconfig):
    """From keys to libraries; the kernels of the selected tests compile in the background, in the tests' order."""
    selected = [item.callspec.params for item in request.session.items if "find" in item.fixturenames]
    keys = [case.call.key for params in selected for case in cases_of(params["name"], params["dtype"])]
    service = CompileService(Target.parse(TARGET), pytestconfig.cache.mkdir("gpu-kernels"))
    service.request(list(dict.fromkeys(keys)))

    def find(key):
        ((_, entry),) = service.compile(key).items()
        return str(entry.library), entry.symbol

    yield find
    service.close()


@pytest.fixture(scope="session")
def runner(find):
    runner = KernelRunner(find)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def inexact_runner(find):
    """Gives approximate instructions the error that hardware may have."""
    runner = KernelRunner(find, Options(races=False, approximate_error=True))
    yield runner
    runner.close()


ROW_DTYPES = [
    pytest.param(name, DTYPES[dtype], id=f"{name}-{dtype}")
    for number, (name, row) in enumerate(ROWS.items())
    for dtype in dtypes_to_run(number, row.dtypes)
]


def check(runner, name, dtype):
    row = ROWS[name]
    tolerance = {}
    if isinstance(row, Pointwise) and dtype == torch.float32:
        tolerance = dict(zip(("rtol", "atol"), row.tolerance, strict=True))
    for case in cases_of(name, dtype):
        runner.run(case.call)
        case.compare(**tolerance)


@pytest.mark.parametrize(("name", "dtype"), ROW_DTYPES)
def test_row(runner, name, dtype):
    check(runner, name, dtype)
    assert cases_of(name, dtype), f"no sample calls {functional_name(ROWS[name])}: add one to gpu_check.made.MADE"


MATH_ROWS = [
    pytest.param(name, torch.float32, id=name)
    for name, row in ROWS.items()
    if isinstance(row, Pointwise) and row.kernel.startswith(("pointwise.unary", "pointwise.activation"))
]


@pytest.mark.parametrize(("name", "dtype"), MATH_ROWS)
def test_math_is_exact_enough_with_approximate_instructions(inexact_runner, name, dtype):
    check(inexact_runner, name, dtype)
