"""Training steps on the device against CPU torch: same numbers, no memory growth."""

from __future__ import annotations

import copy
import gc
import inspect
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mojo_runtime


class Block(nn.Module):
    """One pre-LayerNorm transformer block over token embeddings, with a tied head."""

    def __init__(self, vocabulary: int = 31, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        # Keys have no bias: softmax takes it out, and Adam would scale its rounding errors up.
        self.qkv, self.projection = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.projection(attended)
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x @ self.embedding.weight.t()


def step(model, optimizer, tokens, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW loop": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_match_cpu(device, name):
    torch.manual_seed(0)
    host_model = Block()
    model = copy.deepcopy(host_model).to(device)
    host_optimizer = OPTIMIZERS[name](host_model.parameters())
    optimizer = OPTIMIZERS[name](model.parameters())
    for _ in range(10):
        tokens, targets = torch.randint(31, (3, 12)), torch.randint(31, (3, 12))
        expected = step(host_model, host_optimizer, tokens, targets)
        loss = step(model, optimizer, tokens.to(device), targets.to(device))
        torch.testing.assert_close(loss.cpu(), expected, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(model.parameters(), host_model.parameters(), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


OPTIMIZER_CLASSES = {
    name: value
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name not in ("Optimizer", "SparseAdam")
}
IMPLEMENTATIONS = {"default": {}, "foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "capturable"])
@pytest.mark.parametrize("name", OPTIMIZER_CLASSES)
def test_every_optimizer(device, name, implementation):
    kind = OPTIMIZER_CLASSES[name]
    options = IMPLEMENTATIONS.get(implementation, {})
    if not set(options) <= set(inspect.signature(kind).parameters):
        pytest.skip(f"{name} has no such implementation")
    if implementation == "capturable":  # on accelerators only: it keeps its steps there
        if "capturable" not in inspect.signature(kind).parameters:
            pytest.skip(f"{name} has no such implementation")
        options = {"capturable": True}
    torch.manual_seed(0)
    host_model = nn.Sequential(nn.Linear(5, 7, bias=name != "Muon"), nn.Tanh(), nn.Linear(7, 3, bias=name != "Muon"))
    models = host_model, copy.deepcopy(host_model).to(device)
    host_options = {key: value for key, value in options.items() if key != "capturable"}
    optimizers = [
        kind(model.parameters(), lr=1e-2, **chosen)
        for model, chosen in zip(models, (host_options, options), strict=True)
    ]
    x = torch.randn(4, 5)
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            place = next(model.parameters()).device

            def closure(model=model, optimizer=optimizer, place=place):
                optimizer.zero_grad()
                loss = model(x.to(place)).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)
    for theirs, ours in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5)


def test_foreach_over_lists_that_differ(device):
    tensors = [torch.randn(3, 4), torch.randn(5), torch.arange(4)]
    others = [torch.randn(4), torch.randn(5, dtype=torch.float64), torch.tensor(2)]
    there = [[x.to(device) for x in part] for part in (tensors, others)]
    for function in (torch._foreach_add, torch._foreach_mul, torch._foreach_div, torch._foreach_maximum):
        for ours, theirs in zip(function(*there), function(tensors, others), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)
    torch._foreach_add_(there[0][:1], there[1][:1])
    torch.testing.assert_close(there[0][0].cpu(), tensors[0] + others[0])
    with pytest.raises(RuntimeError, match="same number of tensors"):
        torch._foreach_add(there[0], there[1][:2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_tracks_cpu(device, dtype):
    torch.manual_seed(0)
    host_model = Block()
    model = copy.deepcopy(host_model).to(device)
    tokens, targets = torch.randint(31, (4, 16)), torch.randint(31, (4, 16))
    with torch.autocast(device.type, dtype=dtype):
        logits = model(tokens.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.to(device).flatten())
    assert logits.dtype == dtype and loss.dtype == torch.float32
    loss.backward()
    expected = F.cross_entropy(host_model(tokens).flatten(0, 1), targets.flatten())
    expected.backward()
    torch.testing.assert_close(loss.cpu(), expected, rtol=2e-2, atol=2e-2)
    for ours, theirs in zip(model.parameters(), host_model.parameters(), strict=True):
        assert ours.grad.dtype == torch.float32
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, rtol=0.1, atol=2e-3)


def test_memory_does_not_grow(device):
    torch.manual_seed(0)
    model = Block().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(31, (2, 8)).to(device)

    def allocated_after(steps):
        for _ in range(steps):
            step(model, optimizer, tokens, tokens)
        torch.accelerator.synchronize()
        return torch.accelerator.memory_allocated()

    gc.collect()
    first = allocated_after(10)
    torch.accelerator.reset_peak_memory_stats()
    peak_of_one = (allocated_after(1), torch.accelerator.max_memory_allocated())[1]
    assert allocated_after(1000) == first
    assert torch.accelerator.max_memory_allocated() <= peak_of_one * 1.01


def test_shapes_and_values_compile_nothing(device):
    from mojo_runtime.service import service

    model = Block().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(31, (2, 8)).to(device)
    step(model, optimizer, tokens, tokens).item()
    builds = service().builds()
    for batch, length in ((1, 1), (3, 5), (2, 33), (5, 64)):
        tokens = torch.randint(31, (batch, length)).to(device)
        step(model, optimizer, tokens, tokens).item()
        (model(tokens)[:, ::2].transpose(0, 2) * 1.5).sum().item()
    assert service().builds() <= builds + 3, "only the last line's new ops may compile"
    builds = service().builds()
    for batch, length in ((4, 7), (2, 3)):
        tokens = torch.randint(31, (batch, length)).to(device)
        (model(tokens)[:, ::2].transpose(0, 2) * 2.5).sum().item()
    assert service().builds() == builds


def test_backward_runs_in_the_callers_thread(device):
    """On CPUs handing a backward pass to another thread costs more than small kernels do."""
    if mojo_runtime.device(device.index or 0).kind != "cpu":
        pytest.skip("GPUs keep autograd's threads")
    x = torch.ones(3, device=device, requires_grad=True)
    threads = []
    y = x * 2
    y.register_hook(lambda gradient: threads.append(threading.get_ident()))
    y.sum().backward()
    assert threads == [threading.get_ident()]
