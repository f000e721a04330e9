"""Public bug reports about other backends: PyTorch framework integration."""

from __future__ import annotations

import torch
from tests.cases.compare import same
from torch import nn


def test_save_load_round_trip(device):
    # https://github.com/huggingface/transformers/issues/7976
    # `don't know how to restore data location ... (tagged with xla:0)`; in torch-mojo-backend torch.save of a
    # device tensor and map_location=device raise NotImplementedError (its docs).
    import io

    m = nn.Linear(3, 2).to(device)
    base = torch.arange(8.0, device=device)
    buf = io.BytesIO()
    torch.save({"sd": m.state_dict(), "view": base[2:5], "base": base}, buf)
    for loc in (None, "cpu", device):
        buf.seek(0)
        d = torch.load(buf, map_location=loc, weights_only=True)
        same(d["view"], torch.tensor([2.0, 3, 4]))
        same(d["sd"]["weight"], m.weight.detach().cpu())
        d["base"][2] = 99
        assert d["view"][0].item() == 99  # storage sharing survives
    n = nn.Linear(3, 2).to(device)
    n.load_state_dict(d["sd"])
    same(n.weight.detach(), m.weight.detach().cpu())


def test_deepcopy_of_modules_parameters_and_views(device):
    # https://github.com/pytorch/pytorch/pull/96026
    # Custom devices need storage clone + compatible shallow copy; otherwise deepcopy fails or aliases.
    import copy
    import pickle

    m = nn.Linear(2, 2).to(device)
    m.weight.grad = torch.ones(2, 2, device=device)
    c = copy.deepcopy(m)
    with torch.no_grad():
        m.weight.add_(1)
    assert c.weight.device == m.weight.device and c.weight.requires_grad and c.weight.data_ptr() != m.weight.data_ptr()
    same(m.weight.detach().cpu() - c.weight.detach().cpu(), torch.ones(2, 2))
    assert c.weight.grad is None
    t = torch.ones(3, device=device)[1:]
    same(copy.deepcopy([t, t])[0], torch.ones(2))
    same(pickle.loads(pickle.dumps(m.bias.detach())), m.bias.detach().cpu())


def test_gradscaler(device):
    # https://github.com/pytorch/pytorch/issues/119358
    # https://github.com/pytorch/pytorch/pull/196195
    # GradScaler asserted cuda/xla, later silently disabled itself on non-CUDA devices; needs
    # `_amp_foreach_non_finite_check_and_unscale_` and `_amp_update_scale_`.
    s = torch.amp.GradScaler(device, init_scale=4.0, growth_interval=1)
    p = torch.ones(2, device=device, requires_grad=True)
    o = torch.optim.SGD([p], lr=1.0)
    assert s.is_enabled()
    s.scale((p * 2).sum()).backward()
    s.step(o)
    s.update()
    same(p.detach(), torch.full((2,), -1.0))
    assert s.get_scale() == 8.0
    o.zero_grad()
    s.scale((p * float("inf")).sum()).backward()
    s.step(o)
    s.update()
    same(p.detach(), torch.full((2,), -1.0))
    assert s.get_scale() == 4.0


def test_pinned_memory_and_dataloader(device):
    # https://github.com/pytorch/pytorch/issues/124908
    # https://github.com/pytorch/pytorch/pull/125016
    # https://github.com/pytorch/pytorch/pull/146821
    # pin_memory=True was ignored for third-party devices.
    if device.type != "cpu":
        h = torch.arange(8.0).pin_memory()
        assert h.is_pinned() and not torch.arange(8.0).is_pinned()
        dl = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True
        )
        for (b,) in dl:
            assert b.is_pinned()
            same(b.to(device, non_blocking=True) + 1, b + 1)


def test_device_module_and_generic_api(device):
    # https://github.com/pytorch/pytorch/issues/134293
    # https://github.com/pytorch/pytorch/issues/144955
    # https://github.com/pytorch/pytorch/issues/172803
    # https://github.com/sgl-project/sglang/pull/39423
    # `No module named torch.privateuseone` when the module is not registered; KeyError in the distributed default
    # map.
    if device.type != "cpu":
        mod = torch.get_device_module(device)
        t = torch.device(device).type
        for n in (
            "is_available",
            "device_count",
            "current_device",
            "set_device",
            "synchronize",
            "manual_seed_all",
            "get_rng_state",
            "set_rng_state",
            "_is_in_bad_fork",
            "get_amp_supported_dtype",
        ):
            assert hasattr(mod, n), n
        assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == t
        assert torch.ones(1, device=device).device.index is not None and getattr(torch.ones(1), t)().device.type == t
    with torch.device(device):
        assert torch.zeros(2).device.type == torch.device(device).type


def test_masked_fill_where_ops_with_a_0_dim_cpu_tensor_operand(device, backend):
    # https://github.com/pytorch/pytorch/pull/113363
    # CPU scalars as `value` were allowed for cuda/xpu only (also in the reference/decomp used by torch.compile).
    x = torch.zeros(3, device=device)
    m = torch.tensor([True, False, True], device=device)
    v = torch.tensor(2.0)
    same(x.masked_fill(m, v), torch.tensor([2.0, 0, 2]))
    same(torch.where(m, x, v), torch.tensor([0.0, 2, 0]))
    same(x + v, torch.full((3,), 2.0))
    same(torch.compile(lambda a, b, c: a.masked_fill(b, c) + c, backend=backend)(x, m, v), torch.tensor([4.0, 2, 4]))


def test_backward_allocates_on_the_right_index(device):
    # TensorImpl always carried index 0, so `at::zeros(sizes, grad.options())` in a generated backward allocated on
    # another device and aborted the process.
    n = torch.accelerator.device_count() if device.type != "cpu" else 1
    for i in range(n):
        d = torch.device(device) if device.type == "cpu" else torch.device(torch.device(device).type, i)
        x = torch.tensor([[3.0, 1, 2]], device=d, requires_grad=True)
        x.min(1)[0].sum().backward()
        assert x.grad.device == x.device
        same(x.grad, torch.tensor([[0.0, 1, 0]]))
        x.grad = None
        x.topk(2)[0].sum().backward()
        same(x.grad, torch.tensor([[1.0, 0, 1]]))
        assert torch.mm(x, x.t()).device == x.device
