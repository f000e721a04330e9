"""Matrix products, by the GEMM of mojo-kernels: MAX's own takes it a minute to compile for each model."""

from __future__ import annotations

from typing import Any

from max.graph import TensorValue, ops

from torch_mojo_compile import custom_mojo_ops
from torch_mojo_compile.lowerings.table import Node, lowering


@lowering("mm.default", "bmm.default")
def mm(node: Node, a: TensorValue, b: TensorValue) -> TensorValue:
    """Product of matrices, or of batches of them."""
    return custom_mojo_ops.matrix_product(node.tensor(a), node.tensor(b))


@lowering("addmm.default", "baddbmm.default")
def addmm(node: Node, x: TensorValue, a: TensorValue, b: TensorValue, *, beta: Any = 1, alpha: Any = 1) -> TensorValue:
    """Product of matrices plus a tensor, which is added where it fuses with what follows."""
    product = custom_mojo_ops.matrix_product(node.tensor(a), node.tensor(b))
    if alpha != 1:
        product = product * node.tensor(alpha)
    if beta == 0:
        return product
    return product + (node.tensor(x) if beta == 1 else node.tensor(x) * node.tensor(beta))


@lowering("mv.default", "dot.default", "vdot.default")
def mv(node: Node, a: TensorValue, b: TensorValue) -> TensorValue:
    """Product of a matrix or a vector with a vector."""
    rows = a if a.rank == 2 else ops.unsqueeze(a, 0)
    product = custom_mojo_ops.matrix_product(node.tensor(rows), node.tensor(ops.unsqueeze(b, 1)))
    return ops.reshape(product, node.shape)


@lowering("addbmm.default")
def addbmm(node: Node, x: TensorValue, a: TensorValue, b: TensorValue, *, beta: Any = 1, alpha: Any = 1) -> TensorValue:
    """The sum of a batch's products plus a matrix: one product over the batch's columns side by side."""
    columns = a.shape[0] * a.shape[2]
    left = ops.reshape(ops.permute(node.tensor(a), [1, 0, 2]), [a.shape[1], columns])
    right = ops.reshape(node.tensor(b), [columns, b.shape[2]])
    return addmm(node, x, left, right, beta=beta, alpha=alpha)
