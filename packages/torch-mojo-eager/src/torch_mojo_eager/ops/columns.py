"""Windows of images as columns (`unfold`) and back (`fold`); each is the other's gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mojo_runtime.aten.table import BOOL, FLOATING
from torch_mojo_eager.ops.registry import launch, op

DTYPES = (*FLOATING, *BOOL)

KERNELS = (
    ("convolution.columns:im2col[dtype={0}]", (DTYPES,)),
    ("convolution.columns:col2im[dtype={0}]", (DTYPES,)),
)


def _batched(tensor: Tensor, ndim: int) -> Tensor:
    return tensor if tensor.ndim == ndim else tensor.unsqueeze(0)


def _launch(name: str, output: Tensor, input: Tensor, ndims: tuple[int, int], lists: Sequence[Sequence[int]]) -> Tensor:
    if str(input.dtype).removeprefix("torch.") not in DTYPES:
        raise NotImplementedError(
            f"aten::{name} is not implemented on mojo for dtype {input.dtype}; convert with .to()"
        )
    words = [word for values in lists for word in (2, *values)]
    if output.numel() > 0:
        tensors = [_batched(output, ndims[0]), _batched(input, ndims[1])]
        launch(f"convolution.columns:{name}", tensors, words, dtype=input.dtype)
    return output


@op("aten::im2col")
def im2col(self: Tensor, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]) -> Tensor:
    """Windows of images as columns."""
    lists = (kernel_size, dilation, padding, stride)
    output = self.new_empty(torch.ops.aten.im2col(self.to("meta"), *lists).shape)
    return _launch("im2col", output, self, (3, 4), lists)


@op("aten::col2im")
def col2im(
    self: Tensor,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Tensor:
    """Columns added up to images."""
    lists = (kernel_size, dilation, padding, stride)
    output = self.new_empty(torch.ops.aten.col2im(self.to("meta"), output_size, *lists).shape)
    return _launch("col2im", output, self, (4, 3), lists)
