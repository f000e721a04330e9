"""Softmax and log-softmax, which compute half types in float32 and may return float32 for them."""

from __future__ import annotations

from mojo_runtime.aten.table import FLOATING, Native, Row


def _forward(op: str, doc: str) -> Native:
    return Native(
        name=f"_{op}.out",
        kernel="softmax:softmax",
        tensors=("out", "self"),
        scalars=("dim",),
        parameters=(("dtype", "self"), ("op", f"={op}"), ("out", "out")),
        dtypes=FLOATING,
        dtype_parameters=(("out", FLOATING),),
        doc=doc,
    )


def _backward(op: str, output: str, doc: str) -> Native:
    return Native(
        name=f"_{op}_backward_data.out",
        kernel="softmax:softmax_backward",
        tensors=(output, "grad_output", "output"),
        scalars=("dim",),
        parameters=(("dtype", "grad_output"), ("op", f"={op}"), ("out", output)),
        dtypes=FLOATING,
        dtype_parameters=(("out", FLOATING),),
        doc=doc,
    )


ROWS: tuple[Row, ...] = (
    _forward("softmax", "Softmax along a dimension."),
    _forward("log_softmax", "Logarithm of softmax along a dimension."),
    _backward("softmax", "grad_input", "Gradient of softmax."),
    _backward("log_softmax", "out", "Gradient of log-softmax."),
)
