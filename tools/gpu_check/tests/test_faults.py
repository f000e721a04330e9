"""Both checks find what is wrong with a kernel."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch

from gpu_check import selection
from gpu_check.calls import KernelCall, Operand
from gpu_check.compile import check
from gpu_check.simulate import Finding, KernelRunner
from mojo_runtime.service import CompileService
from mojo_runtime.spec import KernelSpec
from mojo_runtime.target import Target

FAULTY = Path(__file__).parent / "faulty.mojo"
RUN_TIME = ("none", "bounds", "unwritten", "value", "between", "race", "raises", "host")


def key(mistake: str) -> str:
    return KernelSpec(FAULTY, "copy", mistake=mistake).key


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    service = CompileService(Target.parse("sm_80"), tmp_path_factory.mktemp("kernels"))
    entries = service.compile([key(mistake) for mistake in RUN_TIME])
    libraries = {spec.key: (str(entry.library), entry.symbol) for spec, entry in entries.items()}
    runner = KernelRunner(libraries.__getitem__)
    yield runner
    runner.close()
    service.close()


def copy(runner, mistake):
    x, storage = torch.arange(300.0), torch.zeros(600)
    y = storage[::2]
    runner.run(KernelCall(key(mistake), [Operand(y, is_output=True, holds_values=False), Operand(x)], []))
    torch.testing.assert_close(y, x)


def test_a_right_kernel_passes(runner):
    copy(runner, "none")
    assert runner.ran == {key("none")}


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        ("bounds", Finding, "out-of-bounds.*byte offset 1200 of tensor 1"),
        ("unwritten", Finding, "an element of tensor 0 is not written, at storage element 598"),
        ("value", AssertionError, "not close"),
        ("between", Finding, "memory between the elements of tensor 0 is written, at storage element 1"),
        ("race", Finding, "race"),
        ("raises", IndexError, "no such element"),
        ("host", Finding, "launches nothing"),
    ],
)
def test_a_mistake_is_found(runner, mistake, error, message):
    with pytest.raises(error, match=message):
        copy(runner, mistake)


@pytest.mark.parametrize("target", ["sm_80", "apple-m1"])
def test_what_does_not_compile_is_named(target):
    (result,) = check([key(mistake) for mistake in ("none", "syntax", "value")], [target], jobs=1)
    assert (result.kernels, result.functions) == (2, 2)
    assert list(result.failures) == [key("syntax")]
    assert "this kernel does not compile" in result.failures[key("syntax")]


def test_samples_hold_every_op_and_dtype():
    kernels = selection.all_kernels()
    sample = selection.sample(kernels, 2)
    assert {kernel.key.partition("[")[0] for kernel in sample} == {kernel.key.partition("[")[0] for kernel in kernels}
    assert max(Counter((kernel.op, kernel.key.partition("[")[0]) for kernel in sample).values()) == 3
    dtypes = ["float32", "a", "b", "c", "d", "e"]
    chosen = [selection.dtypes_to_run(number, dtypes) for number in range(5)]
    assert all(found[0] == "float32" and len(found) == 3 for found in chosen)
    assert set(itertools.chain(*chosen)) == set(dtypes)
