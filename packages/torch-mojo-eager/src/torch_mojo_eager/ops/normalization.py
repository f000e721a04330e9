"""Overloads of batch norm that few call, and weight norm. The others are in csrc/channel_norm.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mojo_runtime.aten.table import FLOATING
from torch_mojo_eager.ops.registry import op

# What the shim launches. Parameters have the input's dtype, or float32 beside half types.
KERNELS = (
    *(
        (f"normalization.{module}:{name}[dtype={{0}},parameter={parameter}]", (dtypes,))
        for module in ("batch_norm", "group_norm")
        for name in ("forward", "backward")
        for parameter, dtypes in (("{0}", FLOATING), ("float32", ("bfloat16", "float16")))
    ),
    ("normalization.layer_norm:forward[centered=false,dtype={0}]", (FLOATING,)),
    ("normalization.layer_norm:backward[centered=false,dtype={0}]", (FLOATING,)),
)


@op("aten::_native_batch_norm_legit.out")
@op("aten::native_batch_norm.out")
def native_batch_norm_out(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    out: Tensor,
    save_mean: Tensor,
    save_invstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization into given tensors."""
    results = torch.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    outputs = out, save_mean, save_invstd
    for result, output in zip(results, outputs, strict=True):
        output.resize_(result.shape).copy_(result)
    return outputs


@op("aten::_batch_norm_with_update")
def batch_norm_with_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch normalization in training, which updates the running statistics; nothing is kept beside the statistics."""
    results = torch.native_batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *results, input.new_empty((0,), dtype=torch.uint8)


@op("aten::batch_norm_backward")
def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of input, weight and bias of `_batch_norm_with_update`."""
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None] = torch.ops.aten.native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )
    return gradients


def _other_dimensions(x: Tensor, dim: int) -> list[int]:
    """All dimensions but one, of which torch passes the first or the last."""
    return [d for d in range(x.ndim) if d != dim % max(x.ndim, 1)]


@op("aten::_weight_norm_interface")
def weight_norm_interface(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors scaled to the norms `g`, and the norms that they had."""
    dtype = torch.float32 if v.dtype in (torch.bfloat16, torch.float16) else v.dtype
    norms = torch.linalg.vector_norm(v, 2, _other_dimensions(v, dim), True, dtype=dtype).reshape(g.shape)
    return (v * (g / norms)).to(v.dtype), norms


@op("aten::_weight_norm_interface_backward")
def weight_norm_interface_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients for vectors v of norm n: dv = g / n (dw - v (dw . v) / n^2) and dg = (dw . v) / n."""
    accumulation = saved_norms.dtype
    dots = (grad_w.to(accumulation) * saved_v).sum(_other_dimensions(saved_v, dim), True).reshape(saved_g.shape)
    grad_v = (saved_g / saved_norms) * (grad_w - saved_v * (dots / (saved_norms * saved_norms)))
    return grad_v.to(saved_v.dtype), (dots / saved_norms).to(saved_g.dtype)
