"""Which device: torch.accelerator's functions, every form of `to`, and two devices side by side."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


def test_the_accelerator(device):
    assert torch.accelerator.is_available() and device.type == "mojo" and device.index is None
    assert torch.accelerator.current_accelerator(check_available=True) == device
    assert torch.accelerator.device_count() == torch.get_device_module(device).device_count()
    assert torch.accelerator.current_device_index() == 0
    x = torch.ones(3, device=device)
    assert x.device == torch.device(device.type, 0) and x.device.type == device.type
    assert x.is_mojo and not x.is_cuda and not x.is_cpu and not torch.ones(1).is_mojo


def test_current_device(device, second):
    for i in range(torch.accelerator.device_count()):
        with torch.accelerator.device_index(i):
            assert torch.accelerator.current_device_index() == i
            assert torch.ones(2, device=device).device.index == i
            assert torch.empty_like(torch.ones(2), device=device).device.index == i
            assert torch.ones(2).to(device).device.index == i
        assert torch.accelerator.current_device_index() == 0
        assert torch.ones(2).to(torch.device(device.type, i)).device.index == i
    with torch.accelerator.device_index(None):
        assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(1)
    assert torch.zeros(1, device=device).device == second
    torch.accelerator.set_device_index(torch.device(device.type, 0))
    with pytest.raises(ZeroDivisionError), torch.accelerator.device_index(1):
        _ = 1 / 0
    assert torch.accelerator.current_device_index() == 0


@pytest.mark.parametrize("index", [2, 63, 100])
def test_devices_that_are_not_there(device, second, index):
    if torch.accelerator.device_count() > index:
        pytest.skip("this machine has it")
    for attempt in (
        lambda: torch.ones(1, device=torch.device(device.type, index)),
        lambda: torch.ones(1).to(torch.device(device.type, index)),
        lambda: torch.accelerator.set_device_index(index),
        lambda: torch.accelerator.device_index(index).__enter__(),
        lambda: torch.accelerator.memory_allocated(index),
        lambda: torch.accelerator.current_stream(index),
        lambda: torch.accelerator.synchronize(index),
        lambda: torch.Stream(torch.device(device.type, index)),
        lambda: torch.Generator(torch.device(device.type, index)),
        lambda: torch.manual_seed(0) and torch.get_device_module(device).get_rng_state(index),
    ):
        with pytest.raises((RuntimeError, ValueError), match="device"):
            attempt()
    assert torch.accelerator.current_device_index() == 0 and torch.ones(2, device=device).sum().item() == 2


def test_every_form_of_to(device, second):
    host = torch.arange(4)
    like = torch.ones(1, dtype=torch.float64, device=second)
    x = host.to(device)
    assert x.to(device) is x and x.to(device, copy=True) is not x
    forms = {
        "device": x.to(second),
        "string": x.to(str(second)),
        "device and dtype": x.to(second, torch.float16),
        "keywords": x.to(device=second, dtype=torch.float16, copy=True),
        "other": x.to(like),
        "cpu": x.to("cpu"),
        "dtype": x.to(torch.int32),
        "type": x.type(torch.float32),
        "method": host.mojo(),
        "method with index": host.mojo(1),
        "cpu()": x.cpu(),
    }
    expected = {
        "device": (second, torch.int64),
        "string": (second, torch.int64),
        "device and dtype": (second, torch.float16),
        "keywords": (second, torch.float16),
        "other": (second, torch.float64),
        "cpu": (torch.device("cpu"), torch.int64),
        "dtype": (x.device, torch.int32),
        "type": (x.device, torch.float32),
        "method": (x.device, torch.int64),
        "method with index": (second, torch.int64),
        "cpu()": (torch.device("cpu"), torch.int64),
    }
    assert {name: (t.device, t.dtype) for name, t in forms.items()} == expected
    assert all(t.tolist() == [0, 1, 2, 3] for t in forms.values())
    channels = torch.ones(1, 2, 3, 4).to(device, memory_format=torch.channels_last)
    assert channels.is_contiguous(memory_format=torch.channels_last)


def test_factory_functions(device, second):
    like = torch.ones(2, 3, dtype=torch.float64)
    made = [
        torch.empty(2, device=second),
        torch.zeros(2, device=second),
        torch.ones(2, device=second),
        torch.full((2,), 3, device=second),
        torch.arange(3, device=second),
        torch.linspace(0, 1, 3, device=second),
        torch.logspace(0, 1, 3, device=second),
        torch.eye(3, device=second),
        torch.rand(2, device=second),
        torch.randn(2, device=second),
        torch.randint(5, (2,), device=second),
        torch.randperm(4, device=second),
        torch.tensor([1.5], device=second),
        torch.as_tensor([1], device=second),
        torch.empty_strided((2, 2), (1, 2), device=second),
        torch.zeros_like(like, device=second),
        torch.rand_like(like, device=second),
        torch.full_like(like, 2, device=second),
        like.new_tensor([1], device=second),
        like.new_zeros(2, device=second),
        torch.tril_indices(3, 3, device=second),
    ]
    assert [t.device for t in made] == [second] * len(made)
    torch.accelerator.synchronize(second)


def test_default_device(device, second):
    torch.set_default_device(device)
    try:
        assert torch.ones(2).device.type == device.type and torch.nn.Linear(2, 2).weight.device.type == device.type
        assert torch.tensor([1.0]).device.type == device.type and torch.randperm(3).device.type == device.type
        with torch.device("cpu"):
            assert torch.ones(2).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    with torch.device(second):
        assert torch.arange(3).device == second and torch.nn.Linear(2, 2).weight.device == second
    assert torch.ones(1).device.type == "cpu"


def test_training_on_the_second_device(device, second):
    torch.manual_seed(0)
    reference = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model.load_state_dict(reference.state_dict())
    assert model.to(second) is model
    x = torch.randn(16, 4)
    for options in ({}, {"fused": True}, {"foreach": False}):
        pair = []
        for net, place in ((reference, "cpu"), (model, second)):
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, **options)
            for _ in range(3):
                optimizer.zero_grad()
                loss = net(x.to(place)).square().mean()
                loss.backward()
                optimizer.step()
            pair.append(loss.item())
        assert pair[0] == pytest.approx(pair[1], rel=1e-4)
    assert all(p.device == second and p.grad.device == second for p in model.parameters())
    assert torch.accelerator.current_device_index() == 0


def test_devices_do_not_mix_in_one_op(device, second):
    a, b = torch.ones(3, device=device), torch.ones(3, device=second)
    for op in (torch.add, torch.dot, torch.minimum, lambda a, b: torch.cat([a, b])):
        with pytest.raises(RuntimeError, match=r"same device|on device|devices"):
            op(a, b)
        with pytest.raises(RuntimeError, match=r"same device|on device|devices|cpu"):
            op(torch.ones(3), a)
    assert (a + torch.tensor(2.0)).tolist() == [3] * 3  # 0-dim CPU tensors are numbers


def test_results_are_where_their_operands_are(device, second):
    """Whatever device is current; also outputs that start empty and grow."""
    x = torch.arange(12.0, device=second).reshape(3, 4).t()
    out, grown, shared = (torch.empty(0, device=second) for _ in range(3))
    torch.exp(x, out=out)
    grown.resize_(5).fill_(2)
    grown.resize_(50)
    shared.set_(grown.untyped_storage(), 0, (60,), (1,))
    for result in (x.abs(), out, grown, shared, x.clone(), torch.mm(x, x.t()), x.contiguous(), x[0]):
        assert result.device == result.untyped_storage().device == second
    assert grown[:5].tolist() == [2] * 5 and x.abs().sum().item() == 66
    assert shared.untyped_storage().nbytes() == 240 and shared[:5].tolist() == [2] * 5


@pytest.mark.parametrize("grow", ["resize_", "storage"])
def test_growing_is_ordered_with_the_stream(device, side, hold, grow):
    with side:
        x = torch.zeros(5, device=device)
        held = hold(side)
        x.fill_(3)
        if grow == "resize_":
            x.resize_(5000)
        else:
            x.untyped_storage().resize_(20000)
        held.release()
        assert x[:5].tolist() == [3] * 5


MIXED = {
    "index": lambda a, b: a[b.long()],
    "index_put": lambda a, b: a.index_put((a.long(),), b),
    "gather": lambda a, b: a.gather(0, b.long()),
    "embedding": lambda a, b: F.embedding(a.long(), b[:, None]),
    "linear": lambda a, b: F.linear(a, b[:, None].t()),
    "conv": lambda a, b: F.conv1d(a[None, None], b[None, None]),
    "layer_norm": lambda a, b: F.layer_norm(a, (3,), b),
    "rms_norm": lambda a, b: F.rms_norm(a, (3,), b),
    "batch_norm": lambda a, b: F.batch_norm(a[None], b, b),
    "attention": lambda a, b: F.scaled_dot_product_attention(*(t[None, None, None] for t in (a, b, b))),
    "nll_loss": lambda a, b: F.nll_loss(a[:, None], b.long() * 0),
    "mse_loss": F.mse_loss,
    "bernoulli": lambda a, b: a.clone().bernoulli_(b),
    "out": lambda a, b: torch.mm(a[None], a[:, None], out=b[None, :1]),
    "foreach": lambda a, b: torch._foreach_add([a], [b]),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_of_different_devices_are_refused(device, second, name):
    """Also where no TensorIterator looks at them; a kernel would follow a pointer to another memory."""
    for first, other in ((device, second), (device, "cpu"), ("cpu", device)):
        if name == "index" and (first, other) == (device, "cpu"):
            continue  # indices may be on the CPU
        with pytest.raises((RuntimeError, NotImplementedError), match=r"device|should be the same|not implemented"):
            MIXED[name](torch.ones(3, device=first), torch.ones(3, device=other))
        torch.accelerator.synchronize()


def test_model_over_two_devices(device, second):
    first, then = torch.nn.Linear(4, 4).to(device), torch.nn.Linear(4, 1).to(second)
    optimizer = torch.optim.SGD([*first.parameters(), *then.parameters()], lr=0.1)
    before = first.weight.detach().cpu()
    loss = then(first(torch.ones(2, 4, device=device)).to(second)).sum()
    loss.backward()
    optimizer.step()
    assert first.weight.grad.device.index == 0 and then.weight.grad.device == second
    assert not torch.equal(first.weight.detach().cpu(), before)
