"""Reductions and running sums. What torch calls `sum`, `mean` or `norm` of everything reaches these from torch."""

from __future__ import annotations

from mojo_runtime.aten.table import ALL, FLOATING, NUMERIC, Native, Row

KERNEL = "reduction.reduce:reduce"
INT64 = ("int64",)
TRUTH = ("bool", "uint8")


def _row(
    name: str,
    op: str,
    tensors: tuple[str, ...] = ("out", "self"),
    scalars: tuple[str, ...] = ("dim",),
    *,
    dtypes: tuple[str, ...] = ALL,
    out_dtypes: tuple[str, ...] = (),
    one_dimension: bool = False,
    doc: str,
) -> Native:
    """A row whose kernel is specialized for the dtypes of the input and of each output.

    The first output has the input's dtype where `out_dtypes` is empty; a second one holds positions or is like it.
    """
    parameters = [("dtype", "self"), ("op", f"={op}"), ("out", tensors[0] if out_dtypes else "self")]
    if len(tensors) == 3:
        parameters.append(("second", "self" if op == "aminmax" else "=int64"))
    if one_dimension:
        parameters.append(("dimensions", "=one"))
    return Native(
        name=name,
        kernel=KERNEL,
        tensors=tensors,
        scalars=scalars,
        parameters=tuple(parameters),
        dtypes=dtypes,
        dtype_parameters=(("out", out_dtypes),),
        doc=doc,
    )


ROWS: tuple[Row, ...] = (
    _row("sum.IntList_out", "sum", out_dtypes=ALL, doc="Sum; integers add up in int64."),
    _row("mean.out", "mean", out_dtypes=FLOATING, doc="Mean."),
    _row("prod.int_out", "prod", out_dtypes=ALL, one_dimension=True, doc="Product over a dimension."),
    _row("amax.out", "amax", doc="Maximum over dimensions; NaN wins."),
    _row("amin.out", "amin", doc="Minimum over dimensions; NaN wins."),
    _row("aminmax.out", "aminmax", ("min", "max", "self"), doc="Minimum and maximum."),
    _row(
        "max.dim_max",
        "max",
        ("max", "max_values", "self"),
        one_dimension=True,
        doc="Maximum over a dimension and its first position.",
    ),
    _row(
        "min.dim_min",
        "min",
        ("min", "min_indices", "self"),
        one_dimension=True,
        doc="Minimum over a dimension and its first position.",
    ),
    _row("argmax.out", "argmax", dtypes=NUMERIC, out_dtypes=INT64, doc="First position of the maximum."),
    _row("argmin.out", "argmin", dtypes=NUMERIC, out_dtypes=INT64, doc="First position of the minimum."),
    _row(
        "any.out", "any", out_dtypes=TRUTH, one_dimension=True, doc="Whether any element along a dimension is not zero."
    ),
    _row("any.all_out", "any", out_dtypes=TRUTH, scalars=(), doc="Whether any element is not zero."),
    _row("all.out", "all", out_dtypes=TRUTH, one_dimension=True, doc="Whether no element along a dimension is zero."),
    _row("all.all_out", "all", out_dtypes=TRUTH, scalars=(), doc="Whether no element is zero."),
    _row(
        "linalg_vector_norm.out",
        "norm",
        scalars=("dim", "ord"),
        dtypes=FLOATING,
        out_dtypes=FLOATING,
        doc="Vector norm of any order.",
    ),
    _row(
        "norm.out",
        "norm",
        scalars=("dim", "p"),
        dtypes=FLOATING,
        out_dtypes=FLOATING,
        doc="Vector norm of any order.",
    ),
    _row(
        "norm.dtype_out",
        "norm",
        scalars=("dim", "p"),
        dtypes=FLOATING,
        out_dtypes=FLOATING,
        doc="Vector norm of any order in a given dtype.",
    ),
    *(
        Native(
            name=f"{op}.out",
            kernel="cumulative:cumulative",
            tensors=("out", "self"),
            scalars=("dim",),
            parameters=(("dtype", "self"), ("op", f"={op}"), ("out", "out")),
            dtype_parameters=(("out", ALL),),
            doc=f"Running {name} along a dimension.",
        )
        for op, name in (("cumsum", "sum"), ("cumprod", "product"))
    ),
)
