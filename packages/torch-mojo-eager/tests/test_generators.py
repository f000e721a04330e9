"""Generators: their state, seeding of all devices, and training that is resumed from a checkpoint."""

from __future__ import annotations

import io

import pytest
import torch
from torch.nn import functional as F

# What CUDA prints after torch.manual_seed(42); public in many posts.
CUDA_42 = {
    "rand": [0.6130, 0.0101, 0.3984, 0.0403, 0.1563, 0.4825, 0.7362, 0.4060],
    "randn": [0.1940, 2.1614, -0.1721, 0.8491, -1.9244, 0.6530, -0.6494, -0.8175],
}


@pytest.mark.parametrize("name", CUDA_42)
def test_cuda_values_of_another_seed(device, name):
    torch.manual_seed(42)
    drawn = getattr(torch, name)(8, device=device).cpu()
    torch.testing.assert_close(drawn, torch.tensor(CUDA_42[name]), atol=6e-5, rtol=0)


def test_state(device):
    generator = torch.Generator(device)
    assert generator.device == torch.device(device.type, 0)
    assert generator.manual_seed(5) is generator and generator.initial_seed() == 5
    state = generator.get_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    assert state.tolist() == [5] + [0] * 15
    torch.rand(10, device=device, generator=generator)
    assert generator.get_offset() == 4
    assert generator.get_state()[8] == 4
    twin = generator.clone_state()
    expected = torch.rand(5, device=device, generator=generator)
    assert torch.equal(torch.rand(5, device=device, generator=twin).cpu(), expected.cpu())
    generator.set_offset(4)
    assert torch.equal(torch.rand(5, device=device, generator=generator).cpu(), expected.cpu())
    other = torch.Generator(device)
    other.set_state(state)
    assert other.initial_seed() == 5 and other.get_offset() == 0
    seed = generator.seed()
    assert generator.initial_seed() == seed and generator.get_offset() == 0
    assert generator.manual_seed(-1).initial_seed() == 2**64 - 1


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (torch.zeros(16), TypeError),
        (torch.zeros(15, dtype=torch.uint8), RuntimeError),
        (torch.zeros(32, dtype=torch.uint8), RuntimeError),
    ],
)
def test_states_that_are_refused(device, state, error):
    with pytest.raises(error, match="RNG state"):
        torch.Generator(device).set_state(state)
    with pytest.raises(RuntimeError, match="multiple of 4"):
        torch.Generator(device).set_offset(3)


def test_manual_seed_seeds_every_device(device, second):
    torch.manual_seed(9)
    first = [torch.rand(3, device=place).cpu() for place in (device, second)]
    assert torch.equal(*first)
    torch.rand(7, device=second)
    torch.manual_seed(9)
    assert all(torch.equal(torch.rand(3, device=place).cpu(), first[0]) for place in (device, second))
    torch.seed()
    assert not torch.equal(torch.rand(3, device=second).cpu(), first[0])


def test_fork_rng(device):
    torch.manual_seed(1)
    expected = torch.rand(3, device=device)
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=[0], device_type=device.type):
        torch.manual_seed(77)
        inside = torch.rand(3, device=device)
    assert torch.equal(torch.rand(3, device=device).cpu(), expected.cpu())
    assert not torch.equal(inside.cpu(), expected.cpu())


def test_generator_of_another_device_is_refused(device, second):
    for generator in (torch.Generator(), torch.Generator(second)):
        for draw in (
            lambda g: torch.rand(3, device=device, generator=g),
            lambda g: torch.empty(3, device=device).normal_(generator=g),
            lambda g: torch.randperm(3, device=device, generator=g),
            lambda g: torch.randint(3, (3,), device=device, generator=g),
            lambda g: torch.multinomial(torch.ones(3, device=device), 1, generator=g),
        ):
            with pytest.raises(RuntimeError, match=r"[Gg]enerator"):
                draw(generator)


@pytest.mark.parametrize("draw", ["rand", "randn", "bernoulli", "dropout", "randint", "randperm", "multinomial"])
def test_same_seed_same_values_whatever_was_drawn_before(device, draw):
    draws = {
        "rand": lambda: torch.rand(1000, device=device),
        "randn": lambda: torch.randn(1000, device=device),
        "bernoulli": lambda: torch.bernoulli(torch.full((1000,), 0.5, device=device)),
        "dropout": lambda: F.dropout(torch.ones(1000, device=device)),
        "randint": lambda: torch.randint(1000, (1000,), device=device),
        "randperm": lambda: torch.randperm(1000, device=device),
        "multinomial": lambda: torch.multinomial(torch.ones(1000, device=device), 50),
    }[draw]
    torch.manual_seed(3)
    first, second = draws().cpu(), draws().cpu()
    torch.manual_seed(3)
    again = draws().cpu()
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_dropout_training_resumes_exactly(device):
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.4), torch.nn.Linear(32, 2)
        ).to(device)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train(model, optimizer, steps):
        for _ in range(steps):
            x = torch.randn(16, 8, device=device)
            optimizer.zero_grad()
            F.mse_loss(model(x), x[:, :2] + torch.randint(0, 2, (16, 2), device=device)).backward()
            optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    model, optimizer = make()
    train(model, optimizer, 4)
    file = io.BytesIO()
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.random.get_rng_state(),
            "device rng": torch.get_device_module(device).get_rng_state(),
        },
        file,
    )
    expected = train(model, optimizer, 4)

    model, optimizer = make()
    torch.manual_seed(123)
    file.seek(0)
    checkpoint = torch.load(file)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    torch.random.set_rng_state(checkpoint["rng"].cpu())
    torch.get_device_module(device).set_rng_state(checkpoint["device rng"])
    assert all(map(torch.equal, train(model, optimizer, 4), expected))


def test_state_of_all_devices(device):
    module = torch.get_device_module(device)
    states = module.get_rng_state_all()
    drawn = [torch.rand(3, device=torch.device(device.type, i)).cpu() for i in range(len(states))]
    module.set_rng_state_all(states)
    again = [torch.rand(3, device=torch.device(device.type, i)).cpu() for i in range(len(states))]
    assert all(map(torch.equal, drawn, again))


def test_activation_checkpoint_replays_dropout(device):
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(500, device=device, requires_grad=True)
    out = checkpoint(lambda x: F.dropout(x, 0.5), x, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(x.grad.cpu(), out.detach().cpu())
