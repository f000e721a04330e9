"""Matrix products. `linear`, `matmul`, `mv`, `einsum` and their like decompose to these in torch itself."""

from __future__ import annotations

from mojo_runtime.aten.table import NUMERIC, Native, Row

ROWS: tuple[Row, ...] = (
    Native(
        name="mm.out",
        kernel="matmul.products:mm",
        tensors=("out", "self", "mat2"),
        dtypes=NUMERIC,
        doc="Product of two matrices.",
    ),
    Native(
        name="bmm.out",
        kernel="matmul.products:mm",
        tensors=("out", "self", "mat2"),
        dtypes=NUMERIC,
        doc="Products of two batches of matrices.",
    ),
    Native(
        name="addmm.out",
        kernel="matmul.products:addmm",
        tensors=("out", "self", "mat1", "mat2"),
        scalars=("beta", "alpha"),
        parameters=(("dtype", "mat1"),),
        dtypes=NUMERIC,
        doc="Product of two matrices, added to a matrix.",
    ),
    Native(
        name="baddbmm.out",
        kernel="matmul.products:addmm",
        tensors=("out", "self", "batch1", "batch2"),
        scalars=("beta", "alpha"),
        parameters=(("dtype", "batch1"),),
        dtypes=NUMERIC,
        doc="Products of two batches of matrices, added to a batch.",
    ),
    Native(
        name="addmv.out",
        kernel="matmul.products:addmv",
        tensors=("out", "self", "mat", "vec"),
        scalars=("beta", "alpha"),
        parameters=(("dtype", "mat"),),
        dtypes=NUMERIC,
        doc="Product of a matrix and a vector, added to a vector.",
    ),
)
