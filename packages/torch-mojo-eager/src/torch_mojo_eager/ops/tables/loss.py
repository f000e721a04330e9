"""Losses. Cross entropy is log-softmax and the negative log likelihood loss."""

from __future__ import annotations

from torch_mojo_eager.ops.table import FLOATING, Native, Row

ROWS: tuple[Row, ...] = (
    Native(
        name="nll_loss_forward.output",
        kernel="loss.nll:nll_loss",
        tensors=("output", "total_weight", "self", "target", "weight"),
        scalars=("reduction", "ignore_index"),
        dtypes=FLOATING,
        doc="Negative log likelihood loss.",
    ),
    Native(
        name="nll_loss_backward.grad_input",
        kernel="loss.nll:nll_loss_backward",
        tensors=("grad_input", "grad_output", "self", "target", "weight", "total_weight"),
        scalars=("reduction", "ignore_index"),
        dtypes=FLOATING,
        doc="Gradient of the negative log likelihood loss.",
    ),
)
