"""The fused cells that torch.nn.LSTM, GRU, LSTMCell and GRUCell call once per step after their matrix products."""

from __future__ import annotations

from torch import Tensor

from mojo_runtime.aten.table import FLOATING
from torch_mojo_eager.ops.registry import launch, op

KERNELS = tuple(
    (f"recurrent:{name}[dtype={{0}}]", (FLOATING,))
    for name in ("lstm_cell", "lstm_cell_backward", "gru_cell", "gru_cell_backward")
)


def _check(name: str, gates: int, state: Tensor, *all_gates: Tensor) -> None:
    if state.ndim != 2 or not state.is_floating_point():
        raise RuntimeError(
            f"{name}: expected a floating state [batch, hidden], but got {list(state.shape)} {state.dtype}"
        )
    shape = [state.shape[0], gates * state.shape[1]]
    for tensor in all_gates:
        if list(tensor.shape) != shape or tensor.dtype != state.dtype:
            raise RuntimeError(
                f"{name}: expected gates {shape} {state.dtype}, but got {list(tensor.shape)} {tensor.dtype}"
            )


def _rows(tensor: Tensor | None) -> Tensor | None:
    """With an innermost stride of 1, which the kernels need."""
    return tensor if tensor is None or tensor.stride(-1) == 1 else tensor.contiguous()


@op("aten::_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of an LSTM after the matrix products: the new states and the activated gates."""
    _check("_thnn_fused_lstm_cell", 4, cx, input_gates, hidden_gates)
    hy, cy, workspace = (x.new_empty(x.shape) for x in (cx, cx, input_gates))
    operands = [_rows(x) for x in (input_gates, hidden_gates, cx, input_bias, hidden_bias)]
    launch("recurrent:lstm_cell", [hy, cy, workspace, *operands], dtype=cx.dtype)
    return hy, cy, workspace


@op("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of the gates, of the cell state and of the biases."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    grad_gates, grad_cx = workspace.new_empty(workspace.shape), cx.new_empty(cx.shape)
    operands = [_rows(x) for x in (grad_hy, grad_cy, cx, cy, workspace)]
    launch("recurrent:lstm_cell_backward", [grad_gates, grad_cx, *operands], dtype=cx.dtype)
    return grad_gates, grad_cx, grad_gates.sum(0) if has_bias else None


@op("aten::_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of a GRU after the matrix products: the new state and what its gradient needs."""
    _check("_thnn_fused_gru_cell", 3, hx, input_gates, hidden_gates)
    batch, hidden = hx.shape
    hy, workspace = hx.new_empty(hx.shape), hx.new_empty(batch, 5 * hidden)
    operands = [_rows(x) for x in (input_gates, hidden_gates, hx, input_bias, hidden_bias)]
    launch("recurrent:gru_cell", [hy, workspace, *operands], dtype=hx.dtype)
    return hy, workspace


@op("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of both parts of the gates, of the state and of the biases."""
    batch, hidden = grad_hy.shape
    grad_input, grad_hidden = (workspace.new_empty(batch, 3 * hidden) for _ in range(2))
    grad_hx = grad_hy.new_empty(grad_hy.shape)
    launch(
        "recurrent:gru_cell_backward",
        [grad_input, grad_hidden, grad_hx, _rows(grad_hy), _rows(workspace)],
        dtype=workspace.dtype,
    )
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hx, *biases
