"""Forms of an op (functional, in-place, out), promotion, broadcasting, and torch's own errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F


def both(device, *shape, dtype=torch.float32):
    if dtype.is_floating_point:
        host = torch.randn(shape).to(dtype)
    else:
        host = torch.randint(-9 if dtype.is_signed else 0, 9, shape).to(dtype)
    return host, host.to(device)


def test_functional_in_place_and_out(device):
    x, a = both(device, 3, 5)
    y, b = both(device, 3, 5)
    assert torch.equal((a + b).cpu(), x + y)
    alias = a
    alias += b
    assert alias is a and torch.equal(a.cpu(), x + y)
    out = torch.empty(0, device=device)
    returned = torch.mul(a, b, out=out)
    assert returned is out and torch.equal(out.cpu(), (x + y) * y)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 5), (5,)), ((3, 1), (1, 5)), ((2, 3, 4), (3, 1)), ((), (4,)), ((0, 3), (3,)), ((1,), (1,))],
)
def test_broadcasting(device, left, right):
    x, a = both(device, *left)
    y, b = both(device, *right)
    torch.testing.assert_close((a - b).cpu(), x - y, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "offset", "expanded", "flipped order"])
def test_layouts(device, layout):
    x, a = both(device, 6, 8)
    views = {
        "transposed": lambda t: t.t(),
        "sliced": lambda t: t[::2, 1::3],
        "offset": lambda t: t[2:, 3:],
        "expanded": lambda t: t[:, :1].expand(6, 7),
        "flipped order": lambda t: t.view(2, 3, 8).permute(2, 0, 1),
    }
    view = views[layout]
    torch.testing.assert_close((view(a) * view(a) + 1).cpu(), view(x) * view(x) + 1)
    assert (view(a) * 2).stride() == (view(x) * 2).stride()


def test_promotion(device):
    x, a = both(device, 4)
    i, j = both(device, 4, dtype=torch.int64)
    k, m = both(device, 4, dtype=torch.uint8)
    for ours, theirs in [
        (a + j, x + i),
        (j + 1, i + 1),
        (j + 1.5, i + 1.5),
        (m * j, k * i),
        (j / 2, i / 2),
        (j == a, i == x),
        (a > 0, x > 0),
        (torch.sqrt(j.abs()), torch.sqrt(i.abs())),
    ]:
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours.cpu(), theirs)


def test_cpu_scalar_operand(device):
    x, a = both(device, 4)
    assert torch.equal((a + torch.tensor(2.5)).cpu(), x + 2.5)
    assert torch.equal((torch.tensor(2.5) - a).cpu(), 2.5 - x)


def test_comparison_into_another_dtype(device):
    x, a = both(device, 8)
    y = x.clone().eq_(x.roll(1))
    b = a.clone().eq_(x.roll(1).to(device))
    assert torch.equal(b.cpu(), y)


def test_views_share_storage(device):
    base = torch.zeros(4, 6, device=device)
    base[1:3, ::2] = 1
    base.t()[5].add_(2)
    expected = torch.zeros(4, 6)
    expected[1:3, ::2] = 1
    expected.t()[5].add_(2)
    assert torch.equal(base.cpu(), expected)


ERRORS = {
    "shapes": (lambda t: t + t.new_zeros(7), RuntimeError, "must match the size"),
    "matrix shapes": (lambda t: torch.mm(t, t), RuntimeError, "cannot be multiplied"),
    "cpu operand": (lambda t: t + torch.zeros(3, 5), RuntimeError, "same device"),
    "cpu operand of mm": (lambda t: torch.mm(t, torch.zeros(5, 2)), RuntimeError, "same device"),
    "other device": (lambda t: t + t.to(torch.device(t.device.type, 1)), RuntimeError, "same device"),
    "out dtype": (lambda t: torch.add(t, t, out=t.new_empty(3, 5, dtype=torch.int32)), RuntimeError, "can't be cast"),
    "out dtype of mm": (
        lambda t: torch.mm(t, t.t(), out=t.new_empty(3, 3, dtype=torch.float64)),
        RuntimeError,
        "Expected out tensor to have dtype",
    ),
    "in-place dtype": (lambda t: t.long().add_(t), RuntimeError, "can't be cast"),
    "in-place shape": (lambda t: t[0].add_(t.clone()), RuntimeError, "doesn't match the broadcast shape"),
    "overlap": (lambda t: t[:, :1].expand(3, 5).add_(1), RuntimeError, "single memory location"),
    "dimension": (lambda t: t.sum(dim=3), IndexError, "Dimension out of range"),
    "device index": (
        lambda t: torch.empty(1, device=torch.device(t.device.type, 99)),
        RuntimeError,
        "invalid device index",
    ),
    "unimplemented": (
        lambda t: torch.linalg.eig(t[:3, :3]),
        NotImplementedError,
        r"aten::\S+ is not implemented on mojo",
    ),
    "unimplemented dtype": (lambda t: t.to(torch.complex128) + 1, NotImplementedError, "complex128"),
    "layout": (lambda t: torch.empty(2, device=t.device, layout=torch.sparse_coo), NotImplementedError, "parse"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(device, case):
    body, error, message = ERRORS[case]
    with pytest.raises(error, match=message):
        body(torch.ones(3, 5, device=device))
    assert torch.ones(2, device=device).sum().item() == 2  # the device goes on


def test_partial_overlap_is_refused(device):
    base = torch.zeros(10, device=device)
    with pytest.raises(RuntimeError, match="single memory location"):
        base[1:].add_(base[:-1])


def test_registration_is_idempotent(device):
    import torch_mojo_eager

    torch_mojo_eager.register_mojo_devices()
    assert torch.ones(1, device=device).item() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_half_types(device, dtype):
    """Ties, overflow, subnormal numbers and what is not a number, in vectors and at their ends."""
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 1 + 2**-11, 1 + 3 * 2**-11])
    special = torch.tensor([3.4e38, 65519.0, 65520.0, 1e-40, 1e-45, 6e-8, 0.0, torch.inf, torch.nan])
    x = torch.cat((ties, special)).repeat(5)
    x = torch.cat((x, -x))
    assert torch.equal(x.to(device).to(dtype).cpu().nan_to_num(7), x.to(dtype).nan_to_num(7))
    one = torch.ones((), dtype=dtype)
    assert torch.equal((x.to(dtype).to(device) * one.to(device)).cpu().nan_to_num(7), x.to(dtype).nan_to_num(7))


SMALLEST: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "grid_sample": lambda x: F.grid_sample(x, x.new_zeros(1, 4, 16, 2), align_corners=False),
    "embedding_bag": lambda x: F.embedding_bag(x.new_zeros(1, 1, dtype=torch.long), x.flatten(0, 2)),
    "cumsum": lambda x: x.cumsum(0),
    "clamp": lambda x: x.clamp(-1, 1),
    "nll_loss": lambda x: F.nll_loss(-x.flatten(2), x.new_zeros(1, 128, dtype=torch.long), reduction="none"),
    "conv2d": lambda x: F.conv2d(x, x.new_ones(x.shape[1], 1, 1, 1), groups=x.shape[1]),
}


@pytest.mark.parametrize("channels", [1, 32])
@pytest.mark.parametrize("name", SMALLEST)
def test_subnormal_bfloat16_stays(device, name, channels):
    """There is an instruction that rounds them to zero."""
    x = torch.full((1, channels, 4, 32), 5e-39, dtype=torch.bfloat16)
    if channels > 1:
        x = x.contiguous(memory_format=torch.channels_last)
    actual = SMALLEST[name](x.to(device)).detach().cpu()
    assert torch.equal(actual, x.flatten()[0].expand_as(actual))
