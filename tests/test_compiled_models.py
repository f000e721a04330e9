"""Models under torch.compile on MAX against eager torch: inference and training, on CPU and on mojo tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tests.models.checks import assert_trains_like_cpu, build
from torch import Tensor, nn
from torch.nn import functional

import torch_mojo_backend
from torch_mojo_backend import mojo_backend

pytestmark = pytest.mark.models

torch_mojo_backend.register_mojo_devices()


class Block(nn.Module):
    """A transformer's block, as GPT-2 has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.shrink(functional.gelu(self.grow(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A small GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(64, 32), nn.Embedding(16, 32)
        self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 64, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, length] to scores [batch, length, 64]."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        same = stride == 1 and channels == out
        self.shortcut = nn.Identity() if same else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] to [batch, out, height / stride, width / stride]."""
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet() -> nn.Module:
    """A small ResNet."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def perceptron() -> nn.Module:
    """Three layers."""
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def tokens(batch: int) -> tuple[Tensor, Tensor]:
    """Tokens and the ones that follow."""
    text = torch.randint(0, 64, (batch, 13))
    return text[:, :-1], text[:, 1:]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]]]] = {
    "perceptron": (perceptron, lambda batch: (torch.randn(batch, 16), torch.randint(0, 5, (batch,)))),
    "gpt": (GPT, tokens),
    "resnet": (resnet, lambda batch: (torch.randn(batch, 3, 16, 16), torch.randint(0, 5, (batch,)))),
}


def loss_of(scores: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of scores whose classes are the last dimension."""
    return functional.cross_entropy(scores.flatten(0, -2), target.flatten())


@pytest.mark.parametrize("device", ["cpu", "mojo"])
@pytest.mark.parametrize("name", MODELS)
def test_training_matches_eager(name: str, device: str) -> None:
    make, data = MODELS[name]
    torch.manual_seed(0)
    reference = make()
    model = copy.deepcopy(reference).to(device)
    compiled = torch.compile(model, backend=mojo_backend)
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9) for network in (model, reference)]
    for step in range(20):
        # The second size makes the batch symbolic; no later one compiles again.
        x, target = data((6, 4, 5)[step % 3])
        for call, optimizer, place in ((compiled, optimizers[0], device), (reference, optimizers[1], "cpu")):
            optimizer.zero_grad()
            loss = loss_of(call(x.to(place)), target.to(place))
            loss.backward()
            optimizer.step()
    for (key, ours), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        assert ours.device.type == device
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4, msg=lambda m, key=key: f"{key}: {m}")
    x, _ = data(3)
    model.eval()
    reference.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.to(device)).cpu(), reference(x), rtol=1e-4, atol=1e-4)


COMPILED = ("resnet18", "lstm_tagger", "unet", "gpt2", "llama", "bert", "vit", "whisper", "t5", "clip")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", COMPILED)
def test_models_of_the_field_train_like_cpu(name: str) -> None:
    torch._dynamo.reset()
    assert_trains_like_cpu(name, torch.device("cpu"), lambda model: torch.compile(model, backend=mojo_backend))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["llama", "whisper"])
def test_generation_gives_the_tokens_of_eager(name: str) -> None:
    torch._dynamo.reset()
    model, inputs, _ = build(name)
    model.eval()
    prompt = {key: inputs[key] for key in ("input_ids", "attention_mask", "input_features") if key in inputs}
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(**prompt, **options)
    # Keys and values of earlier tokens are cached: every call sees one token and a longer cache.
    model.forward = torch.compile(model.forward, backend=mojo_backend)
    assert model.generate(**prompt, **options).tolist() == expected.tolist()


def test_attention_drops_what_eager_mojo_drops(device: torch.device) -> None:
    x = torch.randn(3, 2, 4, 7, 8, device=device, requires_grad=True)

    def attend(x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(*x.unbind(0), dropout_p=0.5, is_causal=True)

    compiled = torch.compile(attend, backend=mojo_backend, fullgraph=True)
    results = []
    for call in (attend, compiled):
        torch.manual_seed(5)
        for _ in range(2):
            output = call(x)
            (gradient,) = torch.autograd.grad(output.square().sum(), x)
            results.append((output.detach().cpu(), gradient.cpu()))
    torch.testing.assert_close(results[2:], results[:2])
    assert not torch.equal(results[0][0], results[1][0])


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_whole_step_in_one_function(optimizer: str) -> None:
    torch.manual_seed(0)
    reference = perceptron()
    model = copy.deepcopy(reference)
    first, second = (getattr(torch.optim, optimizer)(m.parameters(), lr=0.01) for m in (model, reference))

    def step(network: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(network(x), target)
        loss.backward()
        optimizer.step()
        return loss

    compiled = torch.compile(step, backend=mojo_backend)
    for _ in range(20):
        x, target = torch.randn(8, 16), torch.randint(0, 5, (8,))
        torch.testing.assert_close(compiled(model, first, x, target), step(reference, second, x, target))
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
