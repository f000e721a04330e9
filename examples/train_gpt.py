"""Trains a character-level GPT on the Python standard library's own source code, then lets it write some.

    uv run examples/train_gpt.py                          # on the mojo device
    uv run examples/train_gpt.py --device cpu             # the same on stock PyTorch
    uv run examples/train_gpt.py --resume results/gpt.pt  # continues exactly where the checkpoint was written

Batches and initial weights are drawn on the CPU, so that with `--dropout 0` two devices train on the same numbers.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

START = time.perf_counter()
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
TEXT_BYTES = 3_000_000


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT.

    Attributes:
        vocabulary: Number of tokens.
        block_size: Longest context, in tokens.
        layers: Number of transformer blocks.
        heads: Attention heads of a block.
        embd: Width of the residual stream, a multiple of `heads`.
        dropout: Probability of zeroing an activation while training.
    """

    vocabulary: int = len(CHARACTERS)
    block_size: int = 128
    layers: int = 4
    heads: int = 4
    embd: int = 128
    dropout: float = 0.1


class CausalSelfAttention(nn.Module):
    """Multi-head attention of every token to itself and those before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.embd, 3 * config.embd)
        self.projection = nn.Linear(config.embd, config.embd)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, tokens, embd) to the same shape."""
        batch, tokens, embd = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, embd // self.heads)
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        y = self.projection(y.transpose(1, 2).reshape(batch, tokens, embd))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """A pre-LayerNorm transformer block: attention, then a perceptron, each added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.embd)
        self.attention = CausalSelfAttention(config)
        self.mlp_norm = nn.LayerNorm(config.embd)
        self.mlp = nn.Sequential(nn.Linear(config.embd, 4 * config.embd), nn.GELU())
        self.projection = nn.Linear(4 * config.embd, config.embd)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, tokens, embd) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + F.dropout(self.projection(self.mlp(self.mlp_norm(x))), self.dropout, self.training)


class GPT(nn.Module):
    """A decoder-only transformer with learned positions and one matrix for embedding and output."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocabulary, config.embd)
        self.position_embedding = nn.Embedding(config.block_size, config.embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.embd)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                # 2 * layers projections add to the residual stream: together they start with the variance of one.
                std = 0.02 / math.sqrt(2 * config.layers) if "projection" in name else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps int64 tokens (batch, tokens) to logits (batch, tokens, vocabulary)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean cross entropy (0-dim, nats per token) of int64 `targets` (batch, tokens)."""
        return F.cross_entropy(self(tokens).flatten(0, 1), targets.flatten())


def make_optimizer(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """Returns a fused AdamW that decays matrices, but neither biases nor LayerNorm weights."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.99), fused=True)


def train_step(
    model: GPT, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Does one optimizer step and returns the loss before it, 0-dim on the model's device: nothing waits for it."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = model.loss(tokens, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def learning_rate_at(step: int, steps: int, peak: float, warmup: int) -> float:
    """Returns the learning rate of a step: a linear warm-up, then a cosine from `peak` to a tenth of it at `steps`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress))))


def standard_library_text() -> str:
    """Returns the largest modules of the standard library, up to about TEXT_BYTES, in alphabetical order.

    Modules with characters outside CHARACTERS are left out.
    """
    modules = sorted(
        Path(sysconfig.get_path("stdlib")).glob("*.py"), key=lambda path: (-path.stat().st_size, path.name)
    )
    chosen: dict[str, str] = {}
    for path in modules:
        source = path.read_text(encoding="utf-8")
        if set(source) <= set(CHARACTERS):
            chosen[path.name] = source
        if sum(map(len, chosen.values())) >= TEXT_BYTES:
            break
    return "".join(chosen[name] for name in sorted(chosen))


def encode(text: str) -> Tensor:
    """Returns the text's tokens, int64 on the CPU."""
    index = {character: token for token, character in enumerate(CHARACTERS)}
    return torch.tensor([index[character] for character in text])


def draw_batch(tokens: Tensor, batch: int, block: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws random windows of `tokens` on the CPU; returns inputs and targets, each (batch, block)."""
    starts = torch.randint(len(tokens) - block, (batch, 1), generator=generator)
    windows = tokens[starts + torch.arange(block + 1)]
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def evaluate(model: GPT, tokens: Tensor, batch: int, device: torch.device, batches: int = 8) -> float:
    """Returns the mean loss over the same random windows at every call."""
    generator = torch.Generator().manual_seed(0)
    model.eval()
    total = 0.0
    for _ in range(batches):
        inputs, targets = draw_batch(tokens, batch, model.config.block_size, generator)
        total += model.loss(inputs.to(device), targets.to(device)).item()
    model.train()
    return total / batches


@torch.no_grad()
def sample(model: GPT, prompt: str, length: int, device: torch.device, seed: int, temperature: float = 0.8) -> str:
    """Continues `prompt` by `length` characters, which the CPU draws, so that every device draws the same way."""
    generator = torch.Generator().manual_seed(seed)
    tokens = encode(prompt)
    model.eval()
    for _ in range(length):
        logits = model(tokens[None, -model.config.block_size :].to(device))[0, -1]
        probabilities = torch.softmax(logits.float().cpu() / temperature, dim=0)
        tokens = torch.cat([tokens, torch.multinomial(probabilities, 1, generator=generator)])
    model.train()
    return "".join(CHARACTERS[token] for token in tokens.tolist())


def random_state_module(device: torch.device) -> Any:
    """Returns the module whose `get_rng_state` and `set_rng_state` are those of the device."""
    return torch.random if device.type == "cpu" else torch.get_device_module(device)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes a checkpoint under a temporary name first: an interrupted write leaves the one before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    partial.replace(path)


def parse_arguments(arguments: list[str] | None) -> tuple[argparse.Namespace, dict[str, Any] | None]:
    """Returns the settings and the checkpoint to resume, whose settings hold where the command line gives no others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="mojo", help="mojo (default), mojo:1, cpu, ...")
    parser.add_argument("--steps", type=int, default=1500, help="length of the schedule")
    parser.add_argument("--stop-after", type=int, help="end at this step of the schedule, with a checkpoint")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--block-size", type=int, default=GPTConfig.block_size, help="context length, in characters")
    parser.add_argument("--layers", type=int, default=GPTConfig.layers)
    parser.add_argument("--heads", type=int, default=GPTConfig.heads)
    parser.add_argument("--embd", type=int, default=GPTConfig.embd, help="width of the residual stream")
    parser.add_argument("--dropout", type=float, default=GPTConfig.dropout)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak of the schedule")
    parser.add_argument("--warmup", type=int, default=100, help="steps of linear warm-up")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16: autocast")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--out", type=Path, default=Path("results/gpt.pt"), help="the checkpoint to write")
    parser.add_argument(
        "--resume", type=Path, help="the checkpoint to continue from, and to write unless --out is given"
    )
    parser.add_argument("--log-interval", type=int, default=50, help="steps between lines")
    parser.add_argument("--eval-interval", type=int, default=500, help="steps between validations and checkpoints")
    parser.add_argument("--sample-length", type=int, default=500, help="characters to write at the end")
    parser.add_argument("--threads", type=int, help="CPU threads (default: one per core)")
    settings = parser.parse_args(arguments)
    if settings.resume is None:
        return settings, None
    checkpoint = torch.load(settings.resume, map_location="cpu", weights_only=True)
    parser.set_defaults(out=settings.resume, **checkpoint["settings"])
    return parser.parse_args(arguments), checkpoint


def main(arguments: list[str] | None = None) -> list[float]:
    """Trains as the command line says; returns the losses of the steps done, in order."""
    settings, checkpoint = parse_arguments(arguments)
    if settings.threads:
        torch.set_num_threads(settings.threads)
        os.environ["TORCH_MOJO_BACKEND_THREADS"] = str(settings.threads)
    device = torch.device(settings.device) if settings.device == "cpu" else register(settings.device)

    text = standard_library_text()
    text_digest = hashlib.sha256(text.encode()).hexdigest()
    tokens = encode(text)
    train_tokens, validation_tokens = tokens.split([len(tokens) * 9 // 10, len(tokens) - len(tokens) * 9 // 10])

    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    config = GPTConfig(
        block_size=settings.block_size,
        layers=settings.layers,
        heads=settings.heads,
        embd=settings.embd,
        dropout=settings.dropout,
    )
    model = GPT(config).to(device)
    optimizer = make_optimizer(model, settings.learning_rate, settings.weight_decay)
    first_step = 0
    if checkpoint:
        if checkpoint["text"] != text_digest:
            sys.exit("the checkpoint was trained on the standard library of another Python: resume with that one")
        first_step = checkpoint["step"]
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        generator.set_state(checkpoint["generator"])
        torch.set_rng_state(checkpoint["random_state"])
        random_state_module(device).set_rng_state(checkpoint["device_random_state"])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(text):,} characters, {parameters:,} parameters, {device}, {settings.dtype}", flush=True)

    def checkpoint_state(step: int) -> dict[str, Any]:
        not_resumed = ("out", "resume", "stop_after", "threads")
        return {
            "settings": {name: value for name, value in vars(settings).items() if name not in not_resumed},
            "text": text_digest,
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": generator.get_state(),
            "random_state": torch.get_rng_state(),
            "device_random_state": random_state_module(device).get_rng_state(),
        }

    losses: list[float] = []
    pending: list[Tensor] = []
    last_step = min(settings.steps, settings.stop_after or settings.steps)
    mark = time.perf_counter()
    for step in range(first_step, last_step):
        learning_rate = learning_rate_at(step, settings.steps, settings.learning_rate, settings.warmup)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        inputs, targets = draw_batch(train_tokens, settings.batch_size, settings.block_size, generator)
        pending.append(
            train_step(model, optimizer, inputs.to(device), targets.to(device), getattr(torch, settings.dtype))
        )
        done = step + 1
        if done == first_step + 1 or done % settings.log_interval == 0 or done == last_step:
            # Reading the losses is what waits for the device: nothing else in the loop does.
            losses += [loss.item() for loss in pending]
            now = time.perf_counter()
            if done == first_step + 1:
                print(f"first step done {now - START:.1f} s after the start", flush=True)
            rate = len(pending) * settings.batch_size * settings.block_size / (now - mark)
            print(f"step {done:5d}  loss {losses[-1]:.4f}  {rate:9,.0f} tokens/s", flush=True)
            pending.clear()
            mark = now
        if done % settings.eval_interval == 0 or done == last_step:
            print(
                f"step {done:5d}  validation loss {evaluate(model, validation_tokens, settings.batch_size, device):.4f}"
            )
            save_checkpoint(settings.out, checkpoint_state(done))
            mark = time.perf_counter()
    if settings.sample_length:
        print(sample(model, "def ", settings.sample_length, device, settings.seed))
    print(f"checkpoint {settings.out}, {time.perf_counter() - START:.1f} s in all")
    return losses


def register(device: str) -> torch.device:
    """Makes the mojo device known to PyTorch and returns the device of that name."""
    import torch_mojo_backend  # not needed on stock PyTorch

    torch_mojo_backend.register_mojo_devices()
    return torch.device(device)


if __name__ == "__main__":
    main()
