"""examples/train_digits.py and examples/finetune_bert.py, as users start them but for their length."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # worker processes find the dataset's class by it
    spec.loader.exec_module(module)
    return module


def test_digits_are_recognized(device):
    assert load("train_digits").main([]) >= 0.98


@pytest.mark.usefixtures("device")
def test_fine_tuning_learns():
    # A short run's accuracy is an accident of rounding; that the masked words and labels are learned is not.
    module = load("finetune_bert")
    losses = []
    train = module.train

    def watched(model, next_batch, place, *rest):
        def loss():
            tokens, labels = (x.to(place) for x in batch)
            model.eval()
            return float(model(input_ids=tokens, attention_mask=(tokens != 0).long(), labels=labels).loss.detach())

        batch = next_batch()
        before = loss()
        train(model, next_batch, place, *rest)
        losses.append((before, loss()))

    module.train = watched
    module.main(["--pretraining-steps", "20", "--steps", "100", "--batch-size", "16"])
    assert len(losses) == 2
    for before, after in losses:
        assert after < before - 0.1
