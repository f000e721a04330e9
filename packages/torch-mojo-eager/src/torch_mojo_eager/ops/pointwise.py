"""Elementwise ops that no single row can say."""

from __future__ import annotations

import torch

from mojo_runtime.aten.table import FLOATING
from torch_mojo_eager.ops.registry import launch, op

KERNELS = (("pointwise.activation:activation[dtype={0},op=log_sigmoid]", (FLOATING,)),)


@op("aten::clamp.Tensor_out")
def clamp_tensor(
    self: torch.Tensor, min: torch.Tensor | None = None, max: torch.Tensor | None = None, *, out: torch.Tensor
) -> torch.Tensor:
    """Limits to tensors, either of which may be missing; NaN in any operand gives NaN."""
    if max is None:
        assert min is not None  # torch has checked
        return torch.maximum(self, min, out=out)
    return torch.minimum(self if min is None else torch.maximum(self, min), max, out=out)


@op("aten::log_sigmoid_forward.output")
def log_sigmoid_out(
    self: torch.Tensor, *, output: torch.Tensor, buffer: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """log(sigmoid(x)) into `output`; the buffer stays empty, as on CUDA, since the gradient needs only x."""
    output.resize_(self.shape)
    launch("pointwise.activation:activation", [output, self], dtype=self.dtype, op="log_sigmoid")
    return output, buffer


@op("aten::log_sigmoid_forward")
def log_sigmoid(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """log(sigmoid(x)), and an empty buffer."""
    return log_sigmoid_out(self, output=torch.empty_like(self), buffer=self.new_empty(0))


@op("aten::mvlgamma.out")
def mvlgamma_out(self: torch.Tensor, p: int, *, out: torch.Tensor) -> torch.Tensor:
    """Logarithm of the multivariate gamma function, for which torch has a kernel only without `out`."""
    return out.resize_(self.shape).copy_(torch.mvlgamma(self, p))
