"""Losses. Cross entropy is log-softmax and the negative log likelihood loss."""

from __future__ import annotations

from mojo_runtime.aten.table import FLOATING, Native, Row


def _pair(name: str, output: str, op: str, parameter: str = "", *, weight: bool = False) -> tuple[Native, Native]:
    """A loss of input and target, and its gradient by the input."""
    inputs = ("self", "target", *(("weight",) if weight else ()))
    scalars = ("reduction", *((parameter,) if parameter else ()))
    gradient_overload = "out" if name == "huber_loss" else "grad_input"
    promotes = not weight
    return (
        Native(
            name=f"{name}.out",
            kernel="loss.pair:pair_loss",
            tensors=("out", *inputs),
            scalars=scalars,
            parameters=(("dtype", "out" if promotes else "self"), ("op", f"={op}")),
            dtypes=FLOATING,
            promotes=promotes,
            doc=f"{output} loss.",
        ),
        Native(
            name=f"{name}_backward.{gradient_overload}",
            kernel="loss.pair:pair_loss_backward",
            tensors=("grad_input", "grad_output", *inputs),
            scalars=scalars,
            parameters=(("dtype", "grad_input" if promotes else "self"), ("op", f"={op}")),
            dtypes=FLOATING,
            promotes=promotes,
            doc=f"Gradient of the {output.lower()} loss.",
        ),
    )


ROWS: tuple[Row, ...] = (
    *_pair("mse_loss", "Squared error", "mse"),
    *_pair("smooth_l1_loss", "Smooth absolute error", "smooth_l1", "beta"),
    *_pair("huber_loss", "Huber", "huber", "delta"),
    *_pair("binary_cross_entropy", "Binary cross entropy", "binary_cross_entropy", weight=True),
    Native(
        name="nll_loss_forward.output",
        kernel="loss.nll:nll_loss",
        tensors=("output", "total_weight", "self", "target", "weight"),
        scalars=("reduction", "ignore_index"),
        dtypes=FLOATING,
        other_dtypes=(("target", "int64"),),
        doc="Negative log likelihood loss.",
    ),
    Native(
        name="nll_loss_backward.grad_input",
        kernel="loss.nll:nll_loss_backward",
        tensors=("grad_input", "grad_output", "self", "target", "weight", "total_weight"),
        scalars=("reduction", "ignore_index"),
        dtypes=FLOATING,
        other_dtypes=(("target", "int64"),),
        doc="Gradient of the negative log likelihood loss.",
    ),
)
