"""Pooling over two and three spatial dimensions; torch turns the one-dimensional ops into these.

The kernels' first scalars are the kind of windows, of mojo_kernels/pooling, and the number of spatial dimensions.
"""

from __future__ import annotations

from mojo_runtime.aten.table import FLOATING, NUMERIC, Native, Row

REGULAR, ADAPTIVE, FRACTIONAL = "=0", "=1", "=2"
AVERAGED = (*FLOATING, "int64")


def _pool(
    name: str,
    kernel: str,
    tensors: tuple[str, ...],
    rank: int,
    kind: str,
    scalars: tuple[str, ...] = (),
    *,
    dtype: str = "self",
    dtypes: tuple[str, ...] = FLOATING,
    doc: str,
) -> Native:
    return Native(
        name=name,
        kernel=f"pooling.{kernel}",
        tensors=tensors,
        scalars=(kind, f"={rank}", *scalars),
        parameters=(("dtype", dtype),),
        dtypes=dtypes,
        other_dtypes=(("indices", "int64"),),
        doc=f"{doc} over {rank} dimensions.",
    )


def _rows(rank: int) -> tuple[Native, ...]:
    """The ops of a number of spatial dimensions."""
    window = ("kernel_size", "stride", "padding")
    average = (*window, "count_include_pad", "divisor_override")
    maximum = (*window, "dilation")
    found = ("out", "indices", "self")
    gradient = ("grad_input", "grad_output")
    return (
        _pool(
            f"max_pool{rank}d_with_indices.out",
            "maximum:max_pool",
            found,
            rank,
            REGULAR,
            maximum,
            dtypes=NUMERIC,
            doc="Maxima and their positions",
        ),
        _pool(
            f"max_pool{rank}d_with_indices_backward.grad_input",
            "maximum:max_pool_backward",
            (*gradient, "indices"),
            rank,
            REGULAR,
            maximum,
            doc="Gradient of the maxima",
        ),
        _pool(
            f"avg_pool{rank}d.out",
            "average:avg_pool",
            ("out", "self"),
            rank,
            REGULAR,
            average,
            dtypes=AVERAGED,
            doc="Averages",
        ),
        _pool(
            f"avg_pool{rank}d_backward.grad_input",
            "average:avg_pool_backward",
            gradient,
            rank,
            REGULAR,
            average,
            dtypes=AVERAGED,
            doc="Gradient of the averages",
        ),
        _pool(
            f"adaptive_max_pool{rank}d.out",
            "maximum:max_pool",
            found,
            rank,
            ADAPTIVE,
            doc="Maxima of as many windows as asked for",
        ),
        _pool(
            f"adaptive_max_pool{rank}d_backward.grad_input",
            "maximum:max_pool_backward",
            (*gradient, "indices"),
            rank,
            ADAPTIVE,
            doc="Gradient of those maxima",
        ),
        *(
            _pool(
                f"{name}.out",
                "average:avg_pool",
                ("out", "self"),
                rank,
                ADAPTIVE,
                doc="Averages of as many windows as asked for",
            )
            for name in (f"adaptive_avg_pool{rank}d", f"_adaptive_avg_pool{rank}d")
        ),
        _pool(
            f"_adaptive_avg_pool{rank}d_backward.out",
            "average:avg_pool_backward",
            ("out", "grad_output"),
            rank,
            ADAPTIVE,
            doc="Gradient of those averages",
        ),
        _pool(
            f"fractional_max_pool{rank}d.output",
            "maximum:max_pool",
            ("output", "indices", "self", "random_samples"),
            rank,
            FRACTIONAL,
            ("kernel_size",),
            doc="Maxima of windows at pseudorandom places",
        ),
        _pool(
            f"fractional_max_pool{rank}d_backward.grad_input",
            "maximum:max_pool_backward",
            (*gradient, "indices"),
            rank,
            FRACTIONAL,
            ("kernel_size",),
            doc="Gradient of those maxima",
        ),
    )


ROWS: tuple[Row, ...] = (*_rows(2), *_rows(3))
