"""Gradients of grid sampling, into tensors of any layout."""

import pytest
import torch

KEYS = {
    dtype: f"resampling.grid_sampler:grid_sample_backward[dtype={str(dtype).removeprefix('torch.')}]"
    for dtype in (torch.float32, torch.bfloat16)
}


@pytest.fixture(scope="module")
def library(kernels):
    return kernels(KEYS.values())


@pytest.mark.parametrize("dtype", KEYS, ids=str)
@pytest.mark.parametrize("sizes", [(5, 7, 6), (3, 2, 4, 5)], ids=["2d", "3d"])
def test_gradients(library, sizes, dtype):
    rank = len(sizes) - 1
    shapes = ((2, *sizes), (2, *sizes), (2, *sizes[1:], rank))  # the output's gradient, the input, the grid
    operands = [
        torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(dtype) for i, shape in enumerate(shapes)
    ]
    function = getattr(torch.ops.aten, f"grid_sampler_{rank}d_backward")
    expected = [t.to(dtype) for t in function(*(t.float() for t in operands), 0, 0, False, [True, True])]
    wholes = [torch.full((*t.shape, 2), 7.0, dtype=dtype) for t in expected]
    strided = [whole[..., 1] for whole in wholes]
    transposed = [torch.empty(t.shape[::-1], dtype=dtype).permute(*range(t.ndim)[::-1]) for t in expected]
    for outputs in (list(map(torch.empty_like, expected)), strided, transposed):
        library(KEYS[dtype], [*outputs, *operands], [0, 0, 0])
        for output, wanted in zip(outputs, expected, strict=True):
            torch.testing.assert_close(output, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert all((whole[..., 0] == 7).all() for whole in wholes)  # what lies between the elements
