"""Normalization modules against CPU torch in float64: forward, gradients and running statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

CONTIGUOUS, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
MODULES = {
    "batch": (lambda: nn.BatchNorm2d(35), (6, 35, 9, 8)),
    "batch_large_planes": (lambda: nn.BatchNorm2d(3), (2, 3, 90, 80)),
    "batch_vectors": (lambda: nn.BatchNorm1d(21), (150, 21)),
    "batch_sequences": (lambda: nn.BatchNorm1d(5), (4, 5, 33)),
    "batch_volumes": (lambda: nn.BatchNorm3d(5, affine=False), (2, 5, 3, 4, 6)),
    "batch_cumulative_average": (lambda: nn.BatchNorm2d(4, momentum=None), (3, 4, 5, 6)),
    "batch_untracked": (lambda: nn.BatchNorm2d(4, track_running_stats=False), (3, 4, 5, 6)),
    "batch_evaluated": (lambda: nn.BatchNorm2d(35).eval(), (6, 35, 9, 8)),
    "instance": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (3, 4, 5, 6)),
    "group": (lambda: nn.GroupNorm(5, 35), (3, 35, 9, 8)),
    "group_vectors": (lambda: nn.GroupNorm(2, 6, affine=False), (30, 6)),
    "layer": (lambda: nn.LayerNorm((5, 6)), (3, 4, 5, 6)),
    "rms": (lambda: nn.RMSNorm(35), (6, 35)),
    "weight": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 6)), (4, 5)),
}


def run(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two steps: the result, all gradients and buffers by name."""
    module = copy.deepcopy(module).to(x.device)
    x = x.detach().clone().requires_grad_()
    for _ in range(2):
        y = module(x)
        y.backward(dy)
    named = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **named, **{f"{name} buffer": b for name, b in module.named_buffers()}}


def check(device, name, dtype, memory_format, parameter_dtype=None, offset=1.0):
    torch.manual_seed(0)
    make, shape = MODULES[name]
    module = make().to(parameter_dtype or dtype)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x, dy = ((torch.randn(shape) * 2 + offset).to(dtype) for _ in range(2))
    if len(shape) == 4:
        x = x.contiguous(memory_format=memory_format)
    if name == "weight":
        dy = dy[:, :1].expand(4, 6)
    ours = run(module, x.to(device), dy.to(device))
    exact = run(copy.deepcopy(module).double(), x.double(), dy.double())
    assert ours["y"].is_contiguous(memory_format=memory_format)
    assert ours["x"].is_contiguous(memory_format=memory_format)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for what, expected in exact.items():
        assert ours[what].dtype == (dtype if what in ("x", "y") else parameter_dtype or dtype) or "num" in what
        actual = ours[what].cpu().to(expected.dtype)
        scale = expected.abs().max().clamp(min=1) if expected.is_floating_point() else 1
        torch.testing.assert_close(actual / scale, expected / scale, **tolerance, msg=lambda m, w=what: f"{w}: {m}")


@pytest.mark.parametrize("memory_format", [CONTIGUOUS, CHANNELS_LAST], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("name", MODULES)
def test_float32(device, name, memory_format):
    if memory_format == CHANNELS_LAST and len(MODULES[name][1]) != 4:
        pytest.skip("only images are channels-last")
    if memory_format == CHANNELS_LAST and name in ("instance", "layer"):
        pytest.skip("contiguous in torch too")
    check(device, name, torch.float32, memory_format)


@pytest.mark.parametrize("name", ["batch", "group", "rms"])
def test_bfloat16(device, name):
    check(device, name, torch.bfloat16, CONTIGUOUS)


@pytest.mark.parametrize("name", ["batch", "group"])
def test_bfloat16_with_float32_parameters(device, name):
    check(device, name, torch.bfloat16, CONTIGUOUS, torch.float32)


@pytest.mark.parametrize("memory_format", [CONTIGUOUS, CHANNELS_LAST], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("name", ["batch", "group"])
def test_moments_of_values_far_from_zero(device, name, memory_format):
    """A sum of squares would have no correct digit."""
    make, shape = MODULES[name]
    torch.manual_seed(0)
    x = (torch.randn(shape) + 10000).contiguous(memory_format=memory_format)
    y = make().to(device)(x.to(device))
    expected = make().double()(x.double())
    torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-2, atol=5e-3)


def test_gradients_do_not_change_from_run_to_run(device):
    x = torch.randn(8, 35, 30, 30).to(device)
    runs = [run(nn.BatchNorm2d(35), x, x) for _ in range(3)]
    for what, value in runs[0].items():
        assert all(torch.equal(value.cpu(), other[what].cpu()) for other in runs[1:]), what


def test_strided_gradient(device):
    x = torch.randn(3, 4, 5, 6)
    leaves = [x.to(where).requires_grad_() for where in (device, "cpu")]
    for leaf in leaves:
        functional.batch_norm(leaf, None, None, training=True).mul(leaf).sum((0, 2)).sum().backward()
    torch.testing.assert_close(leaves[0].grad.cpu(), leaves[1].grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: functional.batch_norm(x, x.new_ones(3), x.new_ones(4)), "should contain 4 elements"),
        (lambda x: functional.group_norm(x, 3), "divisible"),
        (lambda x: torch.native_group_norm(x, x.new_ones(3), None, 2, 4, 30, 2, 1e-5), "Expected weight to be"),
        (lambda x: functional.rms_norm(x, (5,)), "expected input with shape"),
    ],
)
def test_errors(device, call, message):
    with pytest.raises(RuntimeError, match=message):
        call(torch.randn(2, 4, 5, 6).to(device))
