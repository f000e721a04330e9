"""Recurrent layers and cells against CPU torch: outputs, gradients, packed sequences."""

from __future__ import annotations

import copy

import pytest
import torch

LAYERS = {
    "lstm": lambda **options: torch.nn.LSTM(5, 7, **options),
    "gru": lambda **options: torch.nn.GRU(5, 7, **options),
    "tanh": lambda **options: torch.nn.RNN(5, 7, **options),
    "relu": lambda **options: torch.nn.RNN(5, 7, nonlinearity="relu", **options),
}
OPTIONS = {
    "plain": {},
    "deep": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"bias": False},
}


def compare(device, module, run, dtype=torch.float32, **tolerance):
    """Runs a module on both devices; compares outputs and all gradients."""
    results = []
    for place in (torch.device("cpu"), device):
        there = copy.deepcopy(module).to(place, dtype)
        output = run(there, place)
        sum(value.float().square().sum() for value in output).backward()
        gradients = [parameter.grad for parameter in there.parameters()]
        results.append([value.detach().cpu() for value in (*output, *gradients)])
    for ours, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layer(device, layer, options):
    torch.manual_seed(0)
    x = torch.randn(4, 4, 5)

    def run(module, place):
        inputs = x.to(place).requires_grad_()
        output, state = module(inputs)
        states = state if isinstance(state, tuple) else (state,)
        return [output, *states]

    compare(device, LAYERS[layer](**OPTIONS[options]), run)


@pytest.mark.parametrize("layer", ["lstm", "gru"])
def test_half_precision(device, layer):
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5, dtype=torch.bfloat16)
    compare(device, LAYERS[layer](), lambda m, place: [m(x.to(place))[0]], torch.bfloat16, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_cell_with_strided_state(device, cell):
    torch.manual_seed(0)
    x, state = torch.randn(5, 3).t(), torch.randn(7, 3).t()

    def run(module, place):
        h = state.to(place)
        output = module(x.to(place), (h, h * 2) if cell is torch.nn.LSTMCell else h)
        return list(output) if isinstance(output, tuple) else [output]

    compare(device, cell(5, 7), run)


def test_gradient_of_one_state_only(device):
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5)
    compare(device, torch.nn.LSTM(5, 7), lambda m, place: [m(x.to(place))[1][1]])


def test_packed_sequence(device):
    torch.manual_seed(0)
    x = torch.randn(3, 6, 5)

    def run(module, place):
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            x.to(place), torch.tensor([3, 6, 1]), batch_first=True, enforce_sorted=False
        )
        return [torch.nn.utils.rnn.pad_packed_sequence(module(packed)[0], batch_first=True)[0]]

    compare(device, torch.nn.LSTM(5, 7, batch_first=True), run)
    compare(device, torch.nn.GRU(5, 7, bidirectional=True, batch_first=True), run)


def test_wrong_gates(device):
    with pytest.raises(RuntimeError, match="expected gates"):
        torch.ops.aten._thnn_fused_lstm_cell(*(torch.zeros(2, n, device=device) for n in (8, 7, 2)))
