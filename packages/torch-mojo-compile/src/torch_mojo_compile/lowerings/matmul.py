"""Matrix products, by the GEMM of mojo-kernels: MAX's own takes it a minute to compile for each model."""

from __future__ import annotations

from typing import Any

from max.dtype import DType
from max.graph import TensorValue, ops

from torch_mojo_compile import custom_mojo_ops, values
from torch_mojo_compile.lowerings.table import Node, cast, lowering


@lowering("mm.default", "bmm.default")
def mm(node: Node, a: TensorValue, b: TensorValue) -> TensorValue:
    """Product of matrices, or of batches of them."""
    return custom_mojo_ops.matrix_product(node.tensor(a), node.tensor(b))


@lowering("addmm.default", "baddbmm.default")
def addmm(node: Node, x: TensorValue, a: TensorValue, b: TensorValue, *, beta: Any = 1, alpha: Any = 1) -> TensorValue:
    """Product of matrices plus a tensor, added where it fuses with what follows; to half types before they round."""
    if a.dtype in (DType.bfloat16, DType.float16):
        return custom_mojo_ops.matrix_product(a, b, x, beta=beta, alpha=alpha)
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


@lowering("_grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_mm(
    node: Node,
    a: TensorValue,
    b: TensorValue,
    offs: TensorValue | None = None,
    bias: TensorValue | None = None,
    out_dtype: Any = None,
) -> TensorValue:
    """Products of groups of rows, columns or what is summed over with a matrix each."""
    if bias is not None:
        raise NotImplementedError("a bias; add it to the result")
    if node.dtype != a.dtype:
        raise NotImplementedError(f"a result of {node.dtype.name} for {a.dtype.name}; convert it with .to()")
    if offs is None:
        return custom_mojo_ops.matrix_product(a, b)
    return custom_mojo_ops.grouped_product(a, b, cast(offs, DType.int32))


@lowering("transformers.grouped_mm_fallback_backward.default")
def grouped_mm_backward(
    node: Node, a: TensorValue, b: TensorValue, offs: TensorValue, grad: TensorValue
) -> list[TensorValue]:
    """The gradients of groups of rows and of their matrices."""
    ends = cast(offs, DType.int32)
    of_rows = custom_mojo_ops.grouped_product(grad, values.permute(b, [0, 2, 1]), ends)
    return [of_rows, custom_mojo_ops.grouped_product(values.permute(a, [1, 0]), grad, ends)]
