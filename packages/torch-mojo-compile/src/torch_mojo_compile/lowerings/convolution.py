"""Convolutions, forward and backward, by the kernels of mojo-kernels: MAX has no gradients of them."""

from __future__ import annotations

from collections.abc import Sequence

from max.graph import TensorValue

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, lowering


@lowering("convolution.default")
def convolution(
    node: Node,
    x: TensorValue,
    weight: TensorValue,
    bias: TensorValue | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> TensorValue:
    """Convolution, or a transposed one."""
    return custom_mojo_ops.convolution(
        x, weight, bias, node.shape, stride, padding, dilation, groups, transposed=transposed
    )


@lowering("convolution_backward.default")
def convolution_backward(
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    weight: TensorValue,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> list[TensorValue | None]:
    """The gradients of a convolution's input, weight and bias."""
    window = (stride, padding, dilation, groups)
    grad_input = grad_weight = grad_bias = None
    if mask[0]:
        shape = node.type_of(0).shape
        grad_input = custom_mojo_ops.convolution(grad, weight, None, shape, *window, transposed=not transposed)
    if mask[1]:
        output_side, input_side = (x, grad) if transposed else (grad, x)
        shape = node.type_of(1).shape
        grad_weight = custom_mojo_ops.convolution_weight_gradient(output_side, input_side, shape, *window)
    if mask[2]:
        dims = (0, *range(2, grad.rank))
        grad_bias = custom_mojo_ops.reduce("sum", grad, dims, node.type_of(2).shape)
    return [grad_input, grad_weight, grad_bias]
