"""examples/train_gpt.py: devices agree, and a resumed run is the uninterrupted one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "train_gpt.py"
# Rates at which a rounding difference does not grow: at 3e-3 a change of 1e-7 in the weights moves the losses by 1e-2.
TINY = """--layers 2 --heads 2 --embd 32 --block-size 32 --batch-size 4 --warmup 5 --learning-rate 2e-3
    --sample-length 0 --eval-interval 10"""
SMALL = """--layers 4 --heads 4 --embd 64 --block-size 64 --batch-size 8 --warmup 20 --learning-rate 1e-3
    --sample-length 0 --eval-interval 100"""


@pytest.fixture(scope="module")
def example(device):  # the device is there before autograd starts a thread for each
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["cpu", "mojo"])
def device_name(request) -> str:
    """The devices that the example's own --device option names."""
    return request.param


def train(example, tmp_path: Path, *options: str) -> list[float]:
    words = [word for option in options for word in option.split()]
    return example.main([*words, "--out", str(tmp_path / "gpt.pt")])


@pytest.mark.parametrize("dropout", ["0", "0.2"])
def test_resuming_continues_exactly(example, tmp_path, device_name, dropout):
    options = (TINY, f"--device {device_name} --dropout {dropout} --steps 20")
    uninterrupted = train(example, tmp_path, *options)
    first_half = train(example, tmp_path, *options, "--stop-after 10")
    second_half = train(example, tmp_path, f"--resume {tmp_path / 'gpt.pt'}")
    assert len(first_half) == len(second_half) == 10
    assert first_half + second_half == uninterrupted


def test_resuming_on_another_text_is_refused(example, tmp_path, monkeypatch):
    train(example, tmp_path, TINY, "--device cpu --steps 2")
    text = example.standard_library_text()
    monkeypatch.setattr(example, "standard_library_text", lambda: text[:-1])
    with pytest.raises(SystemExit, match="another Python"):
        train(example, tmp_path, f"--resume {tmp_path / 'gpt.pt'}")


@pytest.mark.parametrize(
    ("size", "steps"), [(TINY, 30), pytest.param(SMALL, 200, marks=pytest.mark.slow)], ids=["30 steps", "200 steps"]
)
def test_devices_agree_on_the_loss_curve(example, tmp_path, device, size, steps):
    options = (size, f"--dropout 0 --steps {steps}")
    reference = train(example, tmp_path, *options, "--device cpu")
    losses = train(example, tmp_path, *options, f"--device {device}")
    assert reference[-1] < reference[0] - 0.5, "the reference run learned nothing"
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(reference), rtol=0, atol=1e-3)


def test_bfloat16_autocast_learns(example, tmp_path, device_name):
    losses = train(example, tmp_path, TINY, f"--device {device_name} --dtype bfloat16 --dropout 0 --steps 30")
    assert losses[-1] < losses[0] - 0.5


def test_sample_continues_the_prompt(example, tmp_path, device_name, capsys):
    train(example, tmp_path, TINY, f"--device {device_name} --steps 1 --sample-length 40")
    written = capsys.readouterr().out
    text = written[written.index("def ") : written.index("\ncheckpoint ")]
    assert len(text) == len("def ") + 40


def test_learning_rate_schedule(example):
    rates = [example.learning_rate_at(step, steps=100, peak=1.0, warmup=10) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.1)
