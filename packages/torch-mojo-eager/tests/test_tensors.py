"""Everyday tensor code: printing, copies, casts, saving, two devices."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
]


def sample(dtype, *shape):
    return torch.randint(0, 100, shape).to(dtype) if not dtype.is_floating_point else (torch.randn(shape) * 9).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(device, dtype):
    host = sample(dtype, 3, 4)
    assert torch.equal(host.to(device).cpu(), host)
    assert torch.equal(host.t().to(device).cpu(), host.t())
    assert torch.equal(host.to(device).t()[1:].cpu(), host.t()[1:])


def test_casts(device):
    """All pairs: everything is launched before anything is read, so that the kernels are built together."""
    hosts = {source: sample(source, 5, 3) for source in DTYPES}
    pairs = [
        (source, destination)
        for source in DTYPES
        for destination in DTYPES
        if not (source.is_floating_point and destination == torch.uint8)  # negative to unsigned is not defined
    ]
    results = {(source, destination): hosts[source].to(device).to(destination) for source, destination in pairs}
    for (source, destination), result in results.items():
        assert torch.equal(result.cpu(), hosts[source].to(destination)), (source, destination)


def test_print(device):
    text = repr(torch.arange(6.0, device=device).reshape(2, 3))
    assert text == f"tensor([[0., 1., 2.],\n        [3., 4., 5.]], device='{device.type}:0')"
    assert "True" in repr(torch.tensor([True, False], device=device))
    assert "..." in repr(torch.zeros(2000, device=device))


def test_item_bool_and_iteration(device):
    t = torch.tensor([1, 2, 3], device=device)
    assert [int(x) for x in t] == [1, 2, 3]
    assert t.tolist() == [1, 2, 3] and bool((t > 0).all()) and len(t) == 3
    assert torch.tensor(2.5, device=device).item() == 2.5


def test_copy_into_a_view(device):
    out = torch.zeros(4, 6, device=device)
    out[:, 1::2].copy_(torch.arange(12.0).reshape(4, 3))
    expected = torch.zeros(4, 6)
    expected[:, 1::2] = torch.arange(12.0).reshape(4, 3)
    assert torch.equal(out.cpu(), expected)
    host = torch.zeros(6, 4).t()
    host.copy_(out)
    assert torch.equal(host, expected)


def test_save_load_pickle_deepcopy(device):
    t = torch.arange(6.0, device=device).reshape(2, 3)
    buffer = io.BytesIO()
    torch.save({"base": t, "view": t[1]}, buffer)
    for map_location, expected in ((None, device.type), ("cpu", "cpu"), (device, device.type)):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=map_location)
        assert loaded["base"].device.type == expected
        assert torch.equal(loaded["base"].cpu(), t.cpu())
        assert loaded["view"].untyped_storage().data_ptr() == loaded["base"].untyped_storage().data_ptr()
    for other in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert other.device == t.device and torch.equal(other.cpu(), t.cpu())


def test_pinned_memory(device):
    host = torch.arange(10.0).pin_memory()
    assert host.is_pinned() and not torch.arange(3).is_pinned()
    on_device = host.to(device, non_blocking=True)
    back = (on_device * 2).to("cpu", non_blocking=True)
    torch.accelerator.synchronize()
    assert back.is_pinned() and torch.equal(back, host * 2)


def test_two_devices(device):
    if torch.accelerator.device_count() < 2:
        pytest.skip("needs two devices")
    first, second = torch.device(device.type, 0), torch.device(device.type, 1)
    a = torch.ones(4, device=first, requires_grad=True)
    b = torch.ones(4, device=second, requires_grad=True)
    ((a * 3).to(second) * b).sum().backward()
    assert a.grad.device == first and b.grad.device == second
    assert a.grad.tolist() == [3] * 4 and b.grad.tolist() == [3] * 4
    with torch.accelerator.device_index(1):
        assert torch.empty(1, device=device).device == second


def test_resize_and_set(device):
    t = torch.zeros(2, device=device)
    t.resize_(1000).fill_(3)
    u = torch.empty(0, device=device)
    u.set_(t.untyped_storage(), 0, (10,), (1,))
    assert t.untyped_storage().nbytes() == 4000 and u.tolist() == [3.0] * 10


def test_memory_statistics(device):
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    t = torch.empty(1 << 18, device=device)
    view = t[10:]
    assert torch.accelerator.memory_allocated() - before == 1 << 20
    del t, view
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() >= before + (1 << 20)


def test_out_of_memory(device):
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(1 << 50, device=device)
    assert torch.ones(3, device=device).sum().item() == 3


def test_generator_state(device):
    generator = torch.Generator(device).manual_seed(42)
    state = generator.get_state()
    assert state.dtype == torch.uint8 and state.numel() == 16
    first = torch.rand(7, device=device, generator=generator)
    generator.set_state(state)
    assert torch.equal(first.cpu(), torch.rand(7, device=device, generator=generator).cpu())
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, device=device, generator=torch.Generator())


def test_module_conversion_keeps_its_parameters(device):
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight  # tied
    parameter = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.tensor([1, 4])
    loss = model(tokens).sum()  # keeps a graph alive
    loss.backward()
    model.to(device)
    assert model[0].weight is model[1].weight is parameter
    assert parameter.device.type == parameter.grad.device.type == device.type
    assert [name for name, _ in model.named_parameters()] == ["0.weight"]
    before = parameter.detach().cpu()
    model(tokens.to(device)).sum().backward()
    optimizer.step()
    assert (parameter.detach().cpu() != before).any()
    model.cpu()
    assert parameter.device.type == parameter.grad.device.type == "cpu"
    assert model[0].weight is model[1].weight is parameter


def test_data_can_be_replaced_across_devices(device):
    parameter = torch.nn.Parameter(torch.arange(3.0))
    (parameter * 2).sum().backward()
    parameter.grad = None
    parameter.data = parameter.data.to(device)
    (parameter * parameter).sum().backward()
    assert parameter.grad.device.type == device.type
    assert parameter.grad.tolist() == [0, 2, 4]
