"""A user's own kernel file, from source to result, as the README shows."""

from __future__ import annotations

import numpy as np
import pytest

import mojo_runtime

SOURCE = '''
from mojo_kernels.abi import KernelCall


def saxpy[dtype: DType](call: KernelCall) raises:
    """Computes out = a * x + y."""
    var out = call.tensor(0).pointer[dtype]()
    var x = call.tensor(1).pointer[dtype]()
    var y = call.tensor(2).pointer[dtype]()
    var a = call.float_scalar(0).cast[dtype]()
    for i in range(Int(call.tensor(0).numel)):
        out.unsafe_store(i, a * x.unsafe_load(i) + y.unsafe_load(i))
'''


def test_kernel_of_a_user(tmp_path):
    if mojo_runtime.device().kind != "cpu":
        pytest.skip("the example's loop is for CPUs")
    (tmp_path / "saxpy.mojo").write_text(SOURCE)
    saxpy = mojo_runtime.KernelSpec(tmp_path / "saxpy.mojo", "saxpy", dtype="float32")
    x = mojo_runtime.array(np.arange(1000, dtype=np.float32))
    y = mojo_runtime.array(np.ones(1000, dtype=np.float32))
    out = mojo_runtime.empty(x.shape, x.dtype)
    mojo_runtime.launch(saxpy, [out, x, y], [2.0])
    assert np.array_equal(np.asarray(out), 2 * np.arange(1000) + 1)
