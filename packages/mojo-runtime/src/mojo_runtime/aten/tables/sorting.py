"""Sorting and selection along a dimension. Both are stable.

The second scalar of order statistics says which one: mojo_kernels/selection.mojo.
"""

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
    *(
        Native(
            name=name,
            kernel="selection:select",
            tensors=("values", "indices", "self"),
            scalars=("dim", *scalars),
            dtypes=NUMERIC,
            doc=f"{doc} along a dimension, and its position.",
        )
        for name, scalars, doc in (
            ("kthvalue.values", ("=0", "k"), "The k-th smallest element"),
            ("median.dim_values", ("=1",), "The lower median, NaN where there is one,"),
            ("nanmedian.dim_values", ("=2",), "The lower median of what is not NaN"),
        )
    ),
)
