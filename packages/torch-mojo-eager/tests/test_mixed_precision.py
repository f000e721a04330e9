"""Autocast with CUDA's policy, and GradScaler without host synchronization."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from torch_mojo_eager import autocast

HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    ("macro", "names"),
    [
        ("AT_FORALL_LOWER_PRECISION_FP", autocast.LOWER_PRECISION),
        ("AT_FORALL_FP32", autocast.FLOAT32),
        ("AT_FORALL_FP32_SET_OPT_DTYPE", autocast.FLOAT32_RESULT),
        ("AT_FORALL_PROMOTE", autocast.PROMOTE),
    ],
)
def test_policies_are_those_of_cuda(macro, names):
    """torch's headers list the ops of each policy for the backends that take CUDA's."""
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    body = re.search(rf"#define {macro}\(_\)(.*?[^\\])\n", header, re.DOTALL)[1]
    listed = {re.sub(r",\s*", ".", name) for name in re.findall(r"_\(([\w, ]+)\)", body)}
    assert listed - set(names) == set()
    # norm appends a dtype argument on CUDA, which gives the same result as casting before
    assert set(names) - listed <= {"norm.Scalar", "norm.ScalarOpt_dim", "rms_norm", "linalg_matrix_norm.str_ord"}


LOWER = {
    "mm": lambda a, b: a @ b,
    "linear": lambda a, b: F.linear(a, b, b[0]),
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "conv1d": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "conv2d": lambda a, b: F.conv2d(a[None, None], b[None, None, :3, :3]),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None, None], b[None, None], b[None, None]),
    "prelu": lambda a, b: F.prelu(a, b[0, :1]),
}
FLOAT32 = {
    "exp": lambda a, b: a.exp(),
    "log": lambda a, b: a.abs().log(),
    "pow": lambda a, b: a**2,
    "rsqrt": lambda a, b: a.abs().rsqrt(),
    "softplus": lambda a, b: F.softplus(a),
    "softmax": lambda a, b: a.softmax(-1),
    "log_softmax": lambda a, b: a.log_softmax(-1),
    "sum": lambda a, b: a.sum(),
    "sum of a dimension": lambda a, b: a.sum(1),
    "cumsum": lambda a, b: a.cumsum(0),
    "prod": lambda a, b: a.prod(),
    "norm": lambda a, b: a.norm(),
    "norm of a dimension": lambda a, b: torch.norm(a, 2, 1),
    "logsumexp": lambda a, b: a.logsumexp(0),
    "layer_norm": lambda a, b: F.layer_norm(a, (4,)),
    "group_norm": lambda a, b: F.group_norm(a[None], 2),
    "mse_loss": lambda a, b: F.mse_loss(a, b),
    "cross_entropy": lambda a, b: F.cross_entropy(a, torch.zeros(4, dtype=torch.long, device=a.device)),
    "bce with logits": lambda a, b: F.binary_cross_entropy_with_logits(a, b.sigmoid()),
    "cosine_similarity": lambda a, b: F.cosine_similarity(a, b),
}
UNCHANGED = {
    "add": lambda a, b: a + b,
    "relu": lambda a, b: a.relu(),
    "gelu": lambda a, b: F.gelu(a),
    "max": lambda a, b: a.max(),
    "mean": lambda a, b: a.mean(),
    "cat": lambda a, b: torch.cat([a, b]),
}


@pytest.mark.parametrize("dtype", HALVES)
def test_policy_per_op(device, dtype):
    a, b = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
    half_a, half_b = a.to(dtype), b.to(dtype)
    wrong = {}
    with torch.autocast(device.type, dtype=dtype):
        for operands, kind in (((a, b), "float32"), ((half_a, half_b), "half")):
            for table, expected in ((LOWER, dtype), (FLOAT32, torch.float32), (UNCHANGED, operands[0].dtype)):
                for name, function in table.items():
                    if (found := function(*operands).dtype) != expected:
                        wrong[name, kind] = found
    assert wrong == {}


@pytest.mark.parametrize("dtype", HALVES)
def test_mixed_operands(device, dtype):
    """The widest dtype for ops that promote, float64 and integers as they are."""
    a = torch.randn(4, 4, device=device)
    half = a.to(dtype)
    with torch.autocast(device.type, dtype=dtype):
        assert torch.addcmul(half, half, a).dtype == torch.float32
        assert torch.addcmul(half, half, half).dtype == dtype
        assert torch.dot(a[0], half[0]).dtype == torch.float32
        assert torch.tensordot(half, half).dtype == dtype
        index = torch.zeros(1, 4, dtype=torch.long, device=device)
        assert a.clone().scatter_add(0, index, half).dtype == torch.float32
        assert (half + a).dtype == torch.float32
        assert (a.double() @ a.double()).dtype == torch.float64
        assert a.double().exp().dtype == torch.float64
        assert torch.arange(3, device=device).sum().dtype == torch.int64
        assert torch.mm(a, half).dtype == dtype
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            F.binary_cross_entropy(a.sigmoid(), a.sigmoid())
        assert a.softmax(-1, dtype=dtype).dtype == dtype  # what the caller asks for stands


def test_default_dtype_is_cudas(device):
    a = torch.randn(4, 4, device=device)
    assert torch.get_autocast_dtype(device.type) == torch.float16
    with torch.autocast(device.type):
        assert (a @ a).dtype == torch.float16
    with pytest.warns(UserWarning, match=r"not supported|disabl"), torch.autocast(device.type, dtype=torch.int8):
        assert (a @ a).dtype == torch.float32


def test_regions(device):
    a = torch.randn(4, 4, device=device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        b = a @ a
        with torch.autocast(device.type, enabled=False):
            assert (a @ a).dtype == torch.float32
            with pytest.raises(RuntimeError, match="dtype"):
                b @ a
            assert (b.float() @ a).dtype == torch.float32
            with torch.autocast(device.type, dtype=torch.float16):
                assert (a @ b).dtype == torch.float16
        assert (a @ a).dtype == torch.bfloat16
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (a @ a).dtype == torch.bfloat16
    assert (a @ a).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.float32
    with pytest.raises(ZeroDivisionError), torch.autocast(device.type):
        _ = 1 / 0
    assert not torch.is_autocast_enabled(device.type)

    @torch.autocast(device.type, dtype=torch.bfloat16)
    def decorated(x):
        return x @ x

    assert decorated(a).dtype == torch.bfloat16


class CountCasts(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the casts to half of what is watched."""

    def __init__(self, watched):
        super().__init__()
        self.watched, self.count = watched.data_ptr(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default and args[0].data_ptr() == self.watched:
            self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("cache_enabled", [True, False])
def test_weights_are_cast_once_per_region(device, cache_enabled):
    layer, x = torch.nn.Linear(4, 4, device=device), torch.randn(2, 4, device=device)
    with CountCasts(layer.weight) as casts:
        for _ in range(2):
            with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=cache_enabled):
                for _ in range(3):
                    out = layer(x)
    assert casts.count == (2 if cache_enabled else 6)
    out.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_custom_functions(device):
    seen = {}

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device.type)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            seen["forward"] = (a @ b).dtype
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type=device.type)
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            seen["backward"] = (gradient @ b.t()).dtype
            seen["enabled"] = torch.is_autocast_enabled(device.type)
            return gradient @ b.t(), a.t() @ gradient

    class Exact(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device.type, cast_inputs=torch.float32)
        def forward(ctx, a):
            seen["exact"] = (a.dtype, (a @ a).dtype)
            return a * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type=device.type)
        def backward(ctx, gradient):
            seen["exact backward"] = torch.is_autocast_enabled(device.type)
            return gradient * 2

    a, b = (torch.randn(3, 3, device=device, requires_grad=True) for _ in range(2))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = Product.apply(a, b)
        exact = Exact.apply(a.bfloat16())
    (out.float().sum() + exact.sum()).backward()
    assert seen == {
        "forward": torch.bfloat16,
        "backward": torch.bfloat16,
        "enabled": True,
        "exact": (torch.float32, torch.float32),
        "exact backward": False,
    }
    assert a.grad.dtype == torch.float32


def test_checkpoint_keeps_autocast(device):
    from torch.utils.checkpoint import checkpoint

    layer, x = torch.nn.Linear(4, 4, device=device), torch.randn(2, 4, device=device, requires_grad=True)
    seen = []

    def forward(x):
        seen.append(layer(x).dtype)
        return layer(x)

    with torch.autocast(device.type, dtype=torch.float16):
        out = checkpoint(forward, x, use_reentrant=False)
    out.float().sum().backward()
    assert seen == [torch.float16] * 2


def make(device, fused=True):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3).to(device)
    return model, torch.optim.AdamW(model.parameters(), fused=fused)


@pytest.mark.parametrize("fused", [True, False])
def test_scaler_steps_as_plain_training(device, fused):
    x, target = torch.randn(8, 6, device=device), torch.randint(0, 3, (8,), device=device)
    model, optimizer = make(device, fused)
    plain, plain_optimizer = make(device, fused)
    scaler = torch.amp.GradScaler(device.type)
    assert scaler.get_scale() == 65536
    for _ in range(3):
        loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        F.cross_entropy(plain(x), target).backward()
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        plain_optimizer.step()
        plain_optimizer.zero_grad()
        torch.testing.assert_close(norm.cpu(), expected.cpu())
    torch.testing.assert_close(model.weight.detach().cpu(), plain.weight.detach().cpu())
    assert scaler.get_scale() == 65536


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_overflowing_steps_are_skipped(device, fused, bad):
    model, optimizer = make(device, fused)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=2)
    before = copy.deepcopy(model.state_dict())
    x = torch.ones(2, 6, device=device)
    scaler.scale(model(x * bad).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512
    assert all(torch.equal(value.cpu(), before[name].cpu()) for name, value in model.state_dict().items())
    for expected in (512, 1024):
        optimizer.zero_grad()
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == expected  # grows after growth_interval good steps
    assert not torch.equal(model.weight.detach().cpu(), before["weight"].cpu())
    if fused:
        assert optimizer.state[model.weight]["step"].item() == 2


def test_scaler_never_waits_for_the_device(device, hold):
    """All of a step runs while the stream is held: whatever waited for the device would wait until the release."""
    model, optimizer = make(device)
    scaler = torch.amp.GradScaler(device.type)
    x, target = torch.randn(8, 6, device=device), torch.randint(0, 3, (8,), device=device)

    def step():
        with torch.autocast(device.type, dtype=torch.float16):
            loss = F.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    step()
    before = model.weight.detach().clone()
    torch.accelerator.synchronize()
    main = torch.accelerator.current_stream()
    held = hold(main)
    for _ in range(3):
        step()
    assert not main.query()
    held.release()
    assert scaler.get_scale() == 65536 and not torch.equal(model.weight.detach().cpu(), before.cpu())


def test_scaler_state_and_errors(device):
    model, optimizer = make(device)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    scaler.scale(model(torch.ones(2, 6, device=device)).sum()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    other = torch.amp.GradScaler(device.type)
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8 and other.state_dict() == scaler.state_dict()
    half = torch.nn.Linear(2, 2, dtype=torch.float16, device=device)
    half_optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
    scaler.scale(half(torch.ones(1, 2, dtype=torch.float16, device=device)).sum()).backward()
    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(half_optimizer)


def test_gradients_on_two_devices(device, second):
    parameters = [torch.ones(3, device=place, requires_grad=True) for place in (device, second)]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    for factor, expected in ((float("inf"), 1.0), (0.5, 0.5)):
        optimizer.zero_grad()
        loss = parameters[0].sum() * 0.5 + (parameters[1] * factor).sum().to(device)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert [p.tolist() for p in parameters] == [[expected] * 3] * 2
    assert scaler.get_scale() == 2


def test_float32_matmul_precision_is_accepted(device):
    a = torch.randn(8, 8, device=device)
    exact = (a @ a).cpu()
    for precision in ("high", "medium", "highest"):
        torch.set_float32_matmul_precision(precision)
        torch.testing.assert_close((a @ a).cpu(), exact, rtol=1e-3, atol=1e-2)
