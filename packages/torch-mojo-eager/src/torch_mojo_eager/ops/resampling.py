"""Sampling at positions of a grid. Interpolation at regular distances is rows in tables/resampling.py."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mojo_runtime.aten.table import FLOATING
from torch_mojo_eager.ops.registry import launch, op

KERNELS = (
    ("resampling.grid_sampler:grid_sample[dtype={0}]", (FLOATING,)),
    ("resampling.grid_sampler:grid_sample_backward[dtype={0}]", (FLOATING,)),
)


def _check(input: Tensor, grid: Tensor, rank: int, mode: int, padding: int) -> None:
    if input.dtype != grid.dtype:
        raise RuntimeError(
            f"grid_sampler(): expected input and grid to have same dtype, but input has {input.dtype} "
            f"and grid has {grid.dtype}"
        )
    if input.ndim != rank + 2 or grid.ndim != rank + 2:
        raise RuntimeError(
            f"grid_sampler(): expected {rank + 2}D input and grid with same number of dimensions, but got input with "
            f"sizes {list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if input.shape[0] != grid.shape[0]:
        raise RuntimeError(
            "grid_sampler(): expected grid and input to have same batch size, but got input with sizes "
            f"{list(input.shape)} and grid with sizes {list(grid.shape)}"
        )
    if grid.shape[-1] != rank:
        raise RuntimeError(
            f"grid_sampler(): expected grid to have size {rank} in last dimension, but got grid with sizes "
            f"{list(grid.shape)}"
        )
    if 0 in input.shape[2:]:
        raise RuntimeError(
            "grid_sampler(): expected input to have non-empty spatial dimensions, but input has sizes "
            f"{list(input.shape)}"
        )
    if mode not in range(3) or padding not in range(3):
        raise RuntimeError(f"grid_sampler(): unknown interpolation mode {mode} or padding mode {padding}")


def _sample(input: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, rank: int) -> Tensor:
    _check(input, grid, rank, mode, padding)
    result = input.new_empty((*input.shape[:2], *grid.shape[1:-1]))
    scalars = [mode, padding, align_corners]
    launch("resampling.grid_sampler:grid_sample", [result, input, grid], scalars, dtype=input.dtype)
    return result


def _sample_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    mode: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
    rank: int,
) -> tuple[Tensor | None, Tensor | None]:
    _check(input, grid, rank, mode, padding)
    expected = [*input.shape[:2], *grid.shape[1:-1]]
    if list(grad_output.shape) != expected or grad_output.dtype != input.dtype:
        raise RuntimeError(
            f"grid_sampler_{rank}d_backward(): expected grad_output of sizes {expected} and dtype {input.dtype}, "
            f"but got {list(grad_output.shape)} and {grad_output.dtype}"
        )
    contiguous = torch.contiguous_format
    grad_input = torch.empty_like(input, memory_format=contiguous) if output_mask[0] else None
    grad_grid = torch.empty_like(grid, memory_format=contiguous) if output_mask[1] else None
    tensors = [grad_input, grad_grid, grad_output, input, grid]
    scalars = [mode, padding, align_corners]
    launch("resampling.grid_sampler:grid_sample_backward", tensors, scalars, dtype=input.dtype)
    return grad_input, grad_grid


@op("aten::grid_sampler_2d")
def grid_sampler_2d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Samples of images at positions of a grid."""
    return _sample(input, grid, interpolation_mode, padding_mode, align_corners, 2)


@op("aten::grid_sampler_3d")
def grid_sampler_3d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """Samples of volumes at positions of a grid."""
    return _sample(input, grid, interpolation_mode, padding_mode, align_corners, 3)


@op("aten::grid_sampler_2d_backward")
def grid_sampler_2d_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of samples of images."""
    return _sample_backward(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, 2)


@op("aten::grid_sampler_3d_backward")
def grid_sampler_3d_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of samples of volumes."""
    return _sample_backward(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, 3)
