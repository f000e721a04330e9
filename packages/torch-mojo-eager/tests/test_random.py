"""Random numbers: CUDA's values for a seed, Random123's vectors, and the statistics of every distribution."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

# What a CUDA device prints after torch.manual_seed(0); public in PyTorch's documentation and issues.
CUDA_RAND = [0.3990, 0.5167, 0.0249, 0.9401]
CUDA_RANDN = [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284]


def test_cuda_values(device):
    torch.manual_seed(0)
    torch.testing.assert_close(torch.rand(4, device=device).cpu(), torch.tensor(CUDA_RAND), atol=5e-5, rtol=0)
    torch.manual_seed(0)
    torch.testing.assert_close(torch.randn(8, device=device).cpu(), torch.tensor(CUDA_RANDN), atol=5e-5, rtol=0)


def test_random123_vector(device):
    """The published Philox 4x32-10 output for counter 0 and key 0: the raw words of the first draw."""
    torch.manual_seed(0)
    words = torch.empty(512, dtype=torch.int64, device=device).random_(-(2**63), None).cpu()
    assert words[0].item() & (2**64 - 1) == 0x6627E8D5E169C58D
    torch.manual_seed(0)
    # The second pair of words is the next element of thread 0, as many threads of the largest grid further on.
    words = torch.empty(2**19, dtype=torch.int64, device=device).random_(-(2**63), None).cpu()
    assert 0xBC57AC4C9B00DBD8 - 2**64 in words.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_views_are_filled_and_the_rest_is_kept(device, dtype):
    for fill in (
        lambda t: t.normal_(),
        lambda t: t.uniform_(1, 2),
        lambda t: t.bernoulli_(1.0),
        lambda t: t.exponential_(),
        lambda t: t.random_(1, 9),
        lambda t: t.bernoulli_(torch.ones(t.shape, device=t.device)),
    ):
        base = torch.zeros(6, 8, device=device, dtype=dtype)
        view = base.t()[::2]
        fill(view)
        assert (view.cpu() != 0).float().mean() > 0.9
        assert (base.cpu()[:, 1::2] == 0).all()


DISTRIBUTIONS = {
    # fill, mean, standard deviation
    "uniform": (lambda t: t.uniform_(2, 5), 3.5, 3 / math.sqrt(12)),
    "normal": (lambda t: t.normal_(1, 2), 1.0, 2.0),
    "log normal": (
        lambda t: t.log_normal_(0, 0.5),
        math.exp(0.125),
        math.sqrt((math.exp(0.25) - 1) * math.exp(0.25)),
    ),
    "exponential": (lambda t: t.exponential_(4), 0.25, 0.25),
    "geometric": (lambda t: t.geometric_(0.25), 4.0, math.sqrt(0.75) / 0.25),
    "bernoulli": (lambda t: t.bernoulli_(0.3), 0.3, math.sqrt(0.21)),
    "integers": (lambda t: t.random_(0, 7), 3.0, 2.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_statistics(device, name, dtype):
    fill, mean, deviation = DISTRIBUTIONS[name]
    torch.manual_seed(1)
    drawn = fill(torch.empty(400_000, device=device, dtype=dtype)).cpu().double()
    assert abs(drawn.mean() - mean) < 5 * deviation / math.sqrt(drawn.numel())
    assert abs(drawn.std() / deviation - 1) < 0.02
    # neighbours and both halves are independent draws
    left, right = drawn[:-1] - mean, drawn[1:] - mean
    assert abs((left * right).mean()) < 5 * deviation**2 / math.sqrt(drawn.numel())


def test_cauchy_quartiles(device):
    drawn = torch.empty(200_000, device=device).cauchy_(1, 2).cpu()
    quartiles = torch.quantile(drawn, torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 1.0, 3.0]), atol=0.05, rtol=0)


def test_bounds(device):
    drawn = torch.empty(1_000_000, device=device).uniform_(0, 1).cpu()
    assert drawn.min() >= 0 and drawn.max() < 1
    halves = torch.empty(100_000, device=device, dtype=torch.bfloat16).uniform_(0, 1).cpu()
    assert halves.min() >= 0 and halves.max() < 1
    integers = torch.randint(-3, 4, (10_000,), device=device).cpu()
    assert sorted(set(integers.tolist())) == [-3, -2, -1, 0, 1, 2, 3]


def test_dropout_and_its_gradient(device):
    x = torch.randn(1000, 64, device=device, requires_grad=True)
    torch.manual_seed(3)
    y = F.dropout(x, 0.25)
    kept = (y != 0).cpu()
    assert abs(kept.float().mean() - 0.75) < 0.01
    torch.testing.assert_close(y.cpu(), torch.where(kept, x.detach().cpu() / 0.75, 0.0))
    y.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), kept / 0.75)
    torch.manual_seed(3)
    assert torch.equal(F.dropout(x, 0.25).cpu(), y.cpu())
    assert not torch.equal(F.dropout(x, 0.25).cpu(), y.cpu())


def test_generators_and_offsets(device):
    generator = torch.Generator(device).manual_seed(7)
    first = torch.randn(5, device=device, generator=generator)
    second = torch.randn(5, device=device, generator=generator)
    assert not torch.equal(first.cpu(), second.cpu())
    other = torch.Generator(device).manual_seed(7)
    assert torch.equal(torch.randn(5, device=device, generator=other).cpu(), first.cpu())
    assert torch.equal(torch.randn(5, device=device, generator=other.clone_state()).cpu(), second.cpu())
    outer = torch.accelerator.current_accelerator()
    torch.manual_seed(5)
    with torch.random.fork_rng(device_type=outer.type):
        torch.rand(3, device=device)
    inside = torch.rand(3, device=device)
    torch.manual_seed(5)
    assert torch.equal(inside.cpu(), torch.rand(3, device=device).cpu())


@pytest.mark.parametrize(
    "body",
    [
        lambda t: t.uniform_(2, 1),
        lambda t: t.normal_(0, -1),
        lambda t: t.exponential_(0),
        lambda t: t.bernoulli_(1.5),
        lambda t: t.random_(5, 5),
        lambda t: t.geometric_(0),
    ],
)
def test_errors(device, body):
    with pytest.raises(RuntimeError, match=r"expects|found"):
        body(torch.empty(3, device=device))


@pytest.mark.parametrize("n", [0, 1, 2, 17, 5000])
def test_randperm(device, n):
    torch.manual_seed(0)
    drawn = [torch.randperm(n, device=device).cpu() for _ in range(2)]
    for permutation in drawn:
        assert torch.equal(permutation.sort().values, torch.arange(n))
    torch.manual_seed(0)
    again = torch.randperm(n, device=device, dtype=torch.int32)
    assert again.dtype == torch.int32
    assert torch.equal(again.cpu().long(), drawn[0])
    if n > 2:
        assert not torch.equal(*drawn)


def test_randperm_shuffles_equal_keys(device):
    """Every key equal: the thread at place 0 shuffles all with CUDA's generator."""
    from torch_mojo_eager.ops.sampling import _philox, _shuffle_equals

    draws = _philox(0, 0, 0)
    assert [next(draws) for _ in range(4)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    keys, order = torch.tensor([3, 3, 3, 5, 7, 7], device=device), torch.arange(6, device=device)
    seen = {tuple(_shuffle_equals(keys, order, seed, 0).tolist()) for seed in range(60)}
    assert len(seen) == 12  # 3! times 2!
    assert all(set(p[:3]) == {0, 1, 2} and p[3] == 3 for p in seen)


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_frequencies(device, replacement):
    torch.manual_seed(2)
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0], device=device)
    drawn = torch.multinomial(weights.expand(20_000, 4), 2, replacement=replacement).cpu()
    frequencies = torch.bincount(drawn[:, 0], minlength=4) / len(drawn)
    torch.testing.assert_close(frequencies, torch.tensor([0.125, 0, 0.375, 0.5]), atol=0.02, rtol=0)
    assert (drawn[:, 0] == drawn[:, 1]).any() == replacement


def test_normal_of_tensors(device):
    torch.manual_seed(2)
    mean, std = torch.arange(4.0, device=device), torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    drawn = torch.normal(mean.expand(50_000, 4), std.expand(50_000, 4)).cpu()
    torch.testing.assert_close(drawn.mean(0), mean.cpu(), atol=0.1, rtol=0)
    torch.testing.assert_close(drawn.std(0), std.cpu(), atol=0, rtol=0.02)
    torch.manual_seed(2)
    scaled = torch.normal(mean, 2.0)
    torch.manual_seed(2)
    assert torch.equal(scaled.cpu(), (mean + 2 * torch.randn(4, device=device)).cpu())
    with pytest.raises(RuntimeError, match=">= 0"):
        torch.normal(mean, -std)
