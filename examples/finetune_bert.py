"""Teaches a small BERT which package of Python's standard library a piece of source code comes from.

    uv run examples/finetune_bert.py                # on the mojo device
    uv run examples/finetune_bert.py --device cpu   # the same on stock PyTorch

The model has transformers' architecture and random weights. It is first trained to fill in masked words, then
fine-tuned on the labels, both with bfloat16 autocast and with gradients accumulated over several small batches.
"""

from __future__ import annotations

import argparse
import random
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

PACKAGES = ("asyncio", "email", "encodings", "idlelib", "multiprocessing", "tkinter", "unittest", "xml")
PADDING, UNKNOWN, CLASSIFY, MASK = range(4)
LENGTH = 64
WORD = re.compile(r"[A-Za-z_]+|\d+|[^\sA-Za-z_\d]")


def pieces(seed: int) -> tuple[list[tuple[list[str], int]], list[tuple[list[str], int]]]:
    """Returns training and test examples, words of neighbouring lines with their package; no file is in both."""
    generator = random.Random(seed)
    parts: tuple[list[tuple[list[str], int]], list[tuple[list[str], int]]] = ([], [])
    library = Path(sysconfig.get_paths()["stdlib"])
    for label, package in enumerate(PACKAGES):
        files = sorted(path for path in (library / package).rglob("*.py") if "test" not in path.parts)
        generator.shuffle(files)
        tests = len(files) // 4
        for part, chosen, count in zip(parts, (files[tests:], files[:tests]), (300, 60), strict=True):
            examples = []
            for path in chosen:
                words = WORD.findall(path.read_text(encoding="utf-8", errors="ignore"))
                examples += [words[i : i + LENGTH - 1] for i in range(0, len(words) - LENGTH // 2, LENGTH - 1)]
            part.extend((words, label) for words in generator.sample(examples, min(len(examples), count)))
    for part in parts:
        generator.shuffle(part)
    return parts


def encode(examples: list[tuple[list[str], int]], vocabulary: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Returns tokens [n, LENGTH], int64, padded, and labels [n]."""
    tokens = torch.full((len(examples), LENGTH), PADDING)
    for row, (words, _) in zip(tokens, examples, strict=True):
        row[0] = CLASSIFY
        row[1 : len(words) + 1] = torch.tensor([vocabulary.get(word, UNKNOWN) for word in words])
    return tokens, torch.tensor([label for _, label in examples])


def mask_words(tokens: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hides 15 % of the words; returns the tokens to read and the ones to guess, -100 elsewhere."""
    hidden = (torch.rand(tokens.shape, generator=generator) < 0.15) & (tokens > MASK)
    return tokens.masked_fill(hidden, MASK), tokens.masked_fill(~hidden, -100)


def batches(tokens: Tensor, labels: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields shuffled batches without end."""
    while True:
        order = torch.randperm(len(tokens), generator=generator)
        for chosen in order.split(size)[: len(tokens) // size]:
            yield tokens[chosen], labels[chosen]


def train(
    model: nn.Module,
    next_batch: Callable[[], tuple[Tensor, Tensor]],
    device: torch.device,
    steps: int,
    accumulate: int,
    learning_rate: float,
) -> None:
    """Trains a model that computes its own loss; a step is the mean gradient of `accumulate` batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (steps // 10 + 1), (steps - step) / steps)
    )
    model.train()
    start = time.perf_counter()
    total = torch.zeros((), device=device)
    for step in range(1, steps + 1):
        for _ in range(accumulate):
            tokens, labels = (x.to(device) for x in next_batch())
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = model(input_ids=tokens, attention_mask=(tokens != PADDING).long(), labels=labels).loss
            (loss / accumulate).backward()
            total += loss.detach() / accumulate
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps:
            count = step % 50 or 50
            print(f"step {step:4d}  loss {float(total) / count:.4f}  {time.perf_counter() - start:.1f} s", flush=True)
            total.zero_()


@torch.no_grad()
def accuracy(model: nn.Module, tokens: Tensor, labels: Tensor, device: torch.device) -> float:
    """Returns the share of examples whose package is found."""
    model.eval()
    correct = 0
    for part, wanted in zip(tokens.split(64), labels.split(64), strict=True):
        part = part.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(input_ids=part, attention_mask=(part != PADDING).long()).logits
        correct += int((logits.argmax(1).cpu() == wanted).sum())
    return correct / len(labels)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Trains as the command line says; returns the accuracy on the test files and that of the commonest answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="mojo", help="mojo (default), mojo:1, cpu, ...")
    parser.add_argument("--pretraining-steps", type=int, default=200)
    parser.add_argument("--steps", type=int, default=400, help="of fine-tuning")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=2, help="batches per step")
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args(arguments)
    if settings.device != "cpu":
        import torch_mojo_backend  # not needed on stock PyTorch

        torch_mojo_backend.register_mojo_devices()
    device = torch.device(settings.device)

    train_part, test_part = pieces(settings.seed)
    counts = Counter(word for words, _ in train_part for word in words)
    vocabulary = {word: i for i, (word, _) in enumerate(counts.most_common(4000), start=MASK + 1)}
    tokens, labels = encode(train_part, vocabulary)
    test_tokens, test_labels = encode(test_part, vocabulary)
    baseline = float(test_labels.bincount(minlength=len(PACKAGES)).max()) / len(test_labels)
    print(f"{len(tokens)} pieces of code to train on, {len(test_tokens)} to test; {device}")

    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    stream = batches(tokens, labels, settings.batch_size, generator)
    config = BertConfig(
        vocab_size=len(vocabulary) + MASK + 1,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=LENGTH,
        pad_token_id=PADDING,
        id2label=dict(enumerate(PACKAGES)),
    )
    print("filling in masked words")
    language_model: nn.Module = BertForMaskedLM(config)
    language_model.to(device)
    train(
        language_model,
        lambda: mask_words(next(stream)[0], generator),
        device,
        settings.pretraining_steps,
        settings.accumulate,
        1e-3,
    )
    print("classifying")
    classifier: nn.Module = BertForSequenceClassification(config)
    classifier.to(device)
    classifier.load_state_dict(language_model.state_dict(), strict=False)  # their heads differ
    train(classifier, lambda: next(stream), device, settings.steps, settings.accumulate, 1e-3)
    result = accuracy(classifier, test_tokens, test_labels, device)
    print(f"{result:.1%} of the pieces of unseen files are classified right; the commonest package is {baseline:.1%}")
    return result, baseline


if __name__ == "__main__":
    main()
