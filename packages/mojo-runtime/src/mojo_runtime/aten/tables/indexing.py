"""Indexing along a dimension, concatenation, triangles. Index dtypes are int64 and, where torch has it, int32."""

from __future__ import annotations

from mojo_runtime.aten.table import ALL, Native, Row

INDEX = ("int64", "int32")


def _scatter(
    name: str,
    op: str,
    tensors: tuple[str, ...],
    scalars: tuple[str, ...] = ("dim",),
    *,
    indices: str = "elements",
    source: str = "tensor",
    dtypes: tuple[str, ...] = ALL,
    doc: str,
) -> Native:
    """A row of the scatter family; see the kernel for `indices` and `source`."""
    return Native(
        name=name,
        kernel="indexing.gather_scatter:scatter",
        tensors=tensors,
        scalars=scalars,
        parameters=(
            ("dtype", "self"),
            ("op", f"={op}"),
            ("index", "index"),
            ("indices", f"={indices}"),
            ("source", f"={source}"),
        ),
        dtypes=dtypes,
        dtype_parameters=(("index", INDEX),),
        complex="bits" if op == "set" and source == "tensor" else "",
        doc=doc,
    )


def _triangle(op: str, doc: str) -> Native:
    return Native(
        name=f"{op}.out",
        kernel="triangular:triangle",
        tensors=("out", "self"),
        scalars=("diagonal",),
        parameters=(("dtype", "self"), ("op", f"={op}")),
        complex="bits",
        doc=doc,
    )


ROWS: tuple[Row, ...] = (
    Native(
        name="gather.out",
        kernel="indexing.gather_scatter:gather",
        tensors=("out", "self", "index"),
        scalars=("dim",),
        parameters=(("dtype", "self"), ("index", "index"), ("indices", "=elements")),
        dtype_parameters=(("index", INDEX),),
        complex="bits",
        doc="Elements at given positions along a dimension.",
    ),
    _scatter("scatter.src_out", "set", ("out", "self", "index", "src"), doc="Writes elements along a dimension."),
    _scatter(
        "scatter.value_out",
        "set",
        ("out", "self", "index"),
        ("dim", "value"),
        source="number",
        doc="Writes a number along a dimension.",
    ),
    _scatter("scatter_add.out", "add", ("out", "self", "index", "src"), doc="Adds elements along a dimension."),
    _scatter(
        "index_add.out",
        "add",
        ("out", "self", "index", "source"),
        ("dim", "alpha"),
        indices="slices",
        source="scaled",
        doc="Adds slices at given positions of a dimension.",
    ),
    _scatter(
        "index_copy.out",
        "set",
        ("out", "self", "index", "source"),
        indices="slices",
        doc="Writes slices at given positions of a dimension.",
    ),
    _scatter(
        "index_fill_.int_Scalar",
        "set",
        ("self", "self", "index"),
        ("dim", "value"),
        indices="slices",
        source="number",
        doc="Writes a number at given positions of a dimension.",
    ),
    Native(
        name="cat.out",
        kernel="cat:cat",
        tensors=("out", "tensors"),
        scalars=("dim",),
        parameters=(("dtype", "out"),),
        other_dtypes=(("tensors", ""),),
        doc="Concatenation; inputs of other dtypes are converted.",
    ),
    _triangle("tril", "Lower triangle."),
    _triangle("triu", "Upper triangle."),
)
