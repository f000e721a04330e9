"""Kernels called by a text, as compiled graphs call them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import mojo_runtime
from mojo_runtime import _native

MATRIX_PRODUCT = "mojo_kernels.matmul.products:mm[dtype=float32]"
MATRIX_SUM = "mojo_kernels.matmul.products:addmm[dtype=float32]"


def call(site: str, *arrays: np.ndarray) -> None:
    """Calls a site with contiguous arrays; raises what the kernel reports."""
    mojo_runtime.devices()
    words = (ctypes.c_int64 * (16 * len(arrays)))()
    for i, array in enumerate(arrays):
        words[16 * i : 16 * i + 3 + array.ndim] = [
            array.ctypes.data,
            _native.DTYPE_CODES[str(array.dtype)],
            array.ndim,
            *array.shape,
        ]
    error = ctypes.create_string_buffer(512)
    status = _native.library().mojo_call_site(site.encode(), words, len(arrays), None, error, len(error))
    if status:
        raise _native.EXCEPTIONS[status](error.value.decode())


@pytest.fixture
def matrices() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.random((3, 5), dtype=np.float32), generator.random((5, 4), dtype=np.float32)


def test_contiguous_operands(matrices: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = matrices
    result = np.empty((3, 4), np.float32)
    call(f"{MATRIX_PRODUCT}\n\n. . .", result, a, b)
    np.testing.assert_allclose(result, a @ b, rtol=1e-6)


def test_dimensions_in_another_order(matrices: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = matrices
    result = np.empty((3, 4), np.float32)
    call(f"{MATRIX_PRODUCT}\n\n. . 1,0", result, a, np.ascontiguousarray(b.T))
    np.testing.assert_allclose(result, a @ b, rtol=1e-6)


def test_new_dimensions_and_scalars(matrices: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = matrices
    bias = np.arange(3, dtype=np.float32)
    result = np.empty((3, 4), np.float32)
    two, three = (int(np.float64(value).view(np.int64)) for value in (2, 3))
    call(f"{MATRIX_SUM}\n2 {two} 3 {three}\n. *0,x . .", result, bias, a, b)
    np.testing.assert_allclose(result, 2 * bias[:, None] + 3 * (a @ b), rtol=1e-6)


def test_scalars_from_an_operand(matrices: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = matrices
    bias = np.ones((3, 4), np.float32)
    result = np.empty((3, 4), np.float32)
    words = np.array([7, 3, np.float64(3).view(np.int64)])
    call(f"{MATRIX_SUM}\n0 0 @1 @2\n. . . .", result, bias, a, b, words)
    np.testing.assert_allclose(result, 3 * (a @ b), rtol=1e-6)


def test_errors_have_the_kernels_message(matrices: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = matrices
    with pytest.raises(RuntimeError, match="names 3 tensors and was given 2"):
        call(f"{MATRIX_PRODUCT}\n\n. . .", a, b)
    with pytest.raises(RuntimeError, match="no_such_module"):
        call("mojo_kernels.no_such_module:kernel\n\n. .", a, b)
