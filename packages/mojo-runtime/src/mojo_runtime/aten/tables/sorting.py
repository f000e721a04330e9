"""Sorting and selection along a dimension. Both are stable."""

from __future__ import annotations

from mojo_runtime.aten.table import ALL, NUMERIC, Native, Row

ROWS: tuple[Row, ...] = (
    Native(
        name="sort.values_stable",
        kernel="sorting:sort",
        tensors=("values", "indices", "self"),
        scalars=("dim", "descending"),
        dtypes=ALL,
        doc="Sorted elements and their positions.",
    ),
    Native(
        name="topk.values",
        kernel="sorting:sort",
        tensors=("values", "indices", "self"),
        scalars=("dim", "largest"),
        dtypes=NUMERIC,
        doc="The k largest or smallest elements, sorted, and their positions.",
    ),
)
