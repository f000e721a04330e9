"""Small programs for a device: autograd, optimizers and the ops that are written in Python, as users write them.

Each takes a device and returns tensors on it, whose values must not depend on it. Nothing is read before the end, so
that kernels that are still to be compiled are compiled together.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Program = Callable[[torch.device], list[torch.Tensor]]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def _values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def copies(device: torch.device) -> list[torch.Tensor]:
    """Casts between dtypes, strided copies, fills."""
    results = []
    for source in DTYPES:
        x = (_values(5, 7) * 5).to(source).to(device)
        results += [x.to(target) for target in DTYPES]
        results += [x.T.contiguous(), x[1:, ::2].contiguous(), torch.full_like(x, 1), x * 0]
        y = torch.zeros(7, 5, dtype=source).to(device)
        y.T[:, 1:].copy_(x[:, 1:])
        results.append(y)
    return results


def layer_norm(device: torch.device) -> list[torch.Tensor]:
    """Layer norm forward and backward."""
    results = []
    for rows, columns in ((3, 5), (7, 300)):
        x, weight, bias = (
            t.to(device).requires_grad_() for t in (_values(rows, columns), _values(columns), _values(columns, seed=1))
        )
        y = functional.layer_norm(x, (columns,), weight, bias)
        y.backward(_values(rows, columns, seed=2).to(device))
        results += [y, x.grad, weight.grad, bias.grad]
    return [t for t in results if t is not None]


def normalization(device: torch.device) -> list[torch.Tensor]:
    """Batch, group and RMS norm forward and backward, contiguous and channels-last, in training and not."""
    results: list[torch.Tensor | None] = []
    modules = (nn.BatchNorm2d(35), nn.GroupNorm(5, 35), nn.BatchNorm2d(35).eval())
    for module, channels_last in itertools.product(modules, (False, True)):
        norm = copy.deepcopy(module).to(device)
        x = (_values(2, 35, 4, 3) * 2 + 1).to(device)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        y = norm(x)
        y.backward(_values(2, 35, 4, 3, seed=1).to(device))
        results += [y, x.grad, *(p.grad for p in norm.parameters()), *norm.buffers()]
    x = _values(3, 300).to(device).requires_grad_()
    rms = nn.RMSNorm(300).to(device)
    y = rms(x)
    y.backward(_values(3, 300, seed=1).to(device))
    results += [y, x.grad, rms.weight.grad]
    return [t for t in results if t is not None]


def attention(device: torch.device) -> list[torch.Tensor]:
    """Attention forward and backward: plain, causal, with a mask; lengths that are no multiples of a tile."""
    results = []
    for batch, heads, queries, keys, width in ((2, 2, 5, 5, 8), (1, 2, 33, 70, 16), (1, 1, 65, 65, 64)):
        for causal, masked in ((False, False), (True, False), (False, True)):
            if causal and queries != keys:
                continue
            shapes = ((batch, heads, n, width) for n in (queries, keys, keys))
            q, k, v = (_values(*shape, seed=i).to(device).requires_grad_() for i, shape in enumerate(shapes))
            mask = _values(queries, keys, seed=3).to(device) if masked else None
            y = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
            y.backward(_values(batch, heads, queries, width, seed=4).to(device))
            results += [y, q.grad, k.grad, v.grad]
    return [t for t in results if t is not None]


def convolution(device: torch.device) -> list[torch.Tensor]:
    """Convolutions and transposed ones with their gradients: dimensions, strides, groups, layouts, a long sum."""
    results = []
    cases: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype, dict[str, int]]] = [
        ((2, 3, 7, 8), (5, 3, 3, 3), torch.float32, {"padding": 1}),
        ((1, 4, 9, 8), (10, 2, 3, 2), torch.float32, {"stride": 2, "padding": 1, "groups": 2}),
        ((1, 2, 5, 4, 6), (3, 2, 2, 3, 1), torch.float32, {"dilation": 2, "padding": 2}),
        ((1, 1, 2100), (2, 1, 5), torch.float32, {"stride": 1}),
        ((1, 3, 6, 6), (70, 3, 3, 3), torch.bfloat16, {"padding": 1, "stride": 2}),
        ((1, 5, 5, 5), (5, 1, 3, 3), torch.float32, {"padding": 1, "groups": 5}),
    ]
    for shape, weight_shape, dtype, options in cases:
        convolve, transpose = (getattr(functional, f"{name}{len(shape) - 2}d") for name in ("conv", "conv_transpose"))
        given = [_values(*shape), _values(*weight_shape, seed=1), _values(weight_shape[0], seed=2)]
        if dtype == torch.bfloat16:
            given = [t.round() for t in given]
        elif len(shape) == 4:
            given[0] = given[0].to(memory_format=torch.channels_last)
        x, weight, bias = (t.to(device, dtype).requires_grad_() for t in given)
        y = convolve(x, weight, bias, **options)
        if dtype == torch.bfloat16:
            # Small integers: all sums are exact, also those that CPU torch rounds on their way where the CPU has no
            # instructions for bfloat16.
            z = y
            z.backward(_values(*z.shape, seed=3).round().to(device, dtype))
        else:
            z = transpose(y, weight, **options) if len(shape) > 3 else y * y
            z.backward(torch.ones_like(z))
        results += [t.float() for t in (y, z, x.grad, weight.grad, bias.grad) if t is not None]
    columns = functional.unfold(_values(2, 3, 7, 6).to(device), (3, 2), dilation=2, padding=1, stride=(1, 2))
    return [*results, columns, functional.fold(columns, (7, 6), (3, 2), dilation=2, padding=1, stride=(1, 2))]


def recurrent(device: torch.device) -> list[torch.Tensor]:
    """LSTM and GRU forward and backward."""
    results: list[torch.Tensor | None] = []
    for kind in (nn.LSTM, nn.GRU):
        torch.manual_seed(0)
        layer = kind(3, 5).to(device)
        x = _values(2, 3, 3).to(device).requires_grad_()
        y = layer(x)[0]
        y.backward(_values(2, 3, 5, seed=1).to(device))
        results += [y, x.grad, *(p.grad for p in layer.parameters())]
    return [t for t in results if t is not None]


def indexing(device: torch.device) -> list[torch.Tensor]:
    """Reading and writing by indices and masks, and gradients of reading."""
    x = _values(7, 5, 3).to(device).requires_grad_()
    i, j = torch.tensor([6, 0, 0, -1], device=device), torch.tensor([[4], [1], [0], [0]], device=device)
    results = [x[i], x[i, j[:, 0]], x[:, j], x[x > 0], x.flip(0, 2), x.roll((2, 1), (0, 1)), x[1::2, :, 1]]
    total = sum((result * result).sum() for result in results)
    assert isinstance(total, torch.Tensor)
    total.backward()
    y = _values(7, 5).to(device)
    y[i] = 1.5
    y[y < -1] = 0
    y.index_put_((i, j[:, 0]), torch.ones(4, device=device), accumulate=True)
    results += [y, y.take(i), torch.nonzero(y), y.masked_fill(y > 1, 7.0)]
    table = _values(9, 4).to(device).requires_grad_()
    functional.embedding(torch.tensor([[1, 2], [1, 8]], device=device), table).sum().backward()
    assert x.grad is not None
    assert table.grad is not None
    return [*results, x.grad, table.grad]


def sorting(device: torch.device) -> list[torch.Tensor]:
    """Order statistics, distinct elements, search, running extrema."""
    x = (_values(3, 40) * 4).round().to(device)
    results = [*x.sort(dim=1, stable=True), x.topk(3, 1)[0], x.median(1)[0], x.kthvalue(2, 0, True)[0], x.mode(1)[0]]
    results += [*x.cummax(1), *x.cummin(0)]
    results += [x.logcumsumexp(1), *x.unique(return_inverse=True, return_counts=True)]
    edges = torch.arange(-4.0, 4.0, device=device)
    results += [torch.bucketize(x, edges), torch.isin(x, edges), torch.histc(x, 5, -2, 2)]
    long = _values(300).to(device)
    return [*results, *long.cummax(0), long.logcumsumexp(0)]


def bags(device: torch.device) -> list[torch.Tensor]:
    """Embedding bags, and losses of sequences and images, forward and backward."""
    table = _values(9, 4).to(device).requires_grad_()
    weights = _values(7, seed=1).to(device).requires_grad_()
    tokens, starts = torch.tensor([1, 2, 1, 8, 3, 3, 0], device=device), torch.tensor([0, 3, 3], device=device)
    results = [functional.embedding_bag(tokens, table, starts, mode=mode) for mode in ("sum", "mean", "max")]
    results.append(functional.embedding_bag(tokens, table, starts, mode="sum", per_sample_weights=weights))
    scores = _values(9, 2, 5, seed=2).to(device).requires_grad_()
    labels, lengths = torch.tensor([[1, 1, 2], [3, 4, 1]]), (torch.tensor([9, 7]), torch.tensor([3, 2]))
    results.append(functional.ctc_loss(scores.log_softmax(2), labels.to(device), *lengths))
    images = _values(2, 5, 3, 2, seed=3).to(device).requires_grad_()
    results.append(functional.cross_entropy(images, torch.arange(12).view(2, 3, 2).to(device) % 5))
    torch.stack([(result * result).sum() for result in results]).sum().backward()
    return [*results, *(x.grad for x in (table, weights, scores, images) if x.grad is not None)]


def coordinates(device: torch.device) -> list[torch.Tensor]:
    """Padding, flips and rolls, pooling and sampling, where they are written in Python, with gradients."""
    x = _values(2, 3, 5, 6).to(device).requires_grad_()
    last = _values(2, 18, 5, 4).to(device, memory_format=torch.channels_last).requires_grad_()
    grid = (_values(2, 4, 3, 2, seed=1) * 0.7).to(device).requires_grad_()
    results = [functional.pad(x, (1, -2, 0, 3), value=2.0), functional.pad(last, (1, 1)), x.unfold(2, 3, 2)]
    results += [functional.pad(x, (3, 1, 2, 2), mode) for mode in ("reflect", "replicate")]
    results += [x.flip(0, 3), x.roll((1, -2), (0, 3)), functional.adaptive_avg_pool2d(last, (2, 3))]
    for mode, padding in (("bilinear", "zeros"), ("bicubic", "reflection"), ("nearest", "border")):
        results.append(functional.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=False))
    total = sum((result * result).sum() for result in results)
    assert isinstance(total, torch.Tensor)
    total.backward()
    assert x.grad is not None
    assert last.grad is not None
    assert grid.grad is not None
    return [*results, x.grad, last.grad, grid.grad]


def creation(device: torch.device) -> list[torch.Tensor]:
    """Ranges and the like."""
    made = [
        torch.arange(1, 20, 3, device=device),
        torch.arange(0, 1, 0.13, device=device),
        torch.eye(4, 6, device=device),
    ]
    made += [
        torch.linspace(-1, 2, 11, device=device),
        torch.logspace(0, 2, 5, device=device),
        torch.ones(3, 4, device=device),
    ]
    made += [torch.tril(_values(6, 7).to(device), 1), torch.triu(_values(6, 7).to(device), -1)]
    return made


def statistics(device: torch.device) -> list[torch.Tensor]:
    """Reductions that are written in Python."""
    x = _values(6, 300).to(device)
    results = [x.var(1), x.std(0), *torch.var_mean(x, 1), x.max(), x.min(), x.prod(), x.nansum(1), x.norm(), x.mean()]
    results += [torch.count_nonzero(x > 0, 1), torch.dot(x[0], x[1]), x.argmax(), x.sum()]
    return results


def random(device: torch.device) -> list[torch.Tensor]:
    """Whether draws have the mean of their distribution, within five standard errors, and lie in its range."""
    torch.manual_seed(0)
    count = 4000
    uniform = torch.rand(count, device=device)
    draws = [
        (uniform, 0.5, 0.29),
        (torch.randn(count, device=device), 0.0, 1.0),
        (torch.zeros(count, device=device).bernoulli_(0.3), 0.3, 0.46),
        (torch.randint(0, 10, (count,), device=device).float(), 4.5, 2.9),
        (functional.dropout(torch.ones(count, device=device), 0.5), 1.0, 1.0),
        (torch.empty(count, device=device).exponential_(2.0), 0.5, 0.5),
    ]
    near = [(x.mean() - mean).abs() < 5 * deviation / count**0.5 for x, mean, deviation in draws]
    return [((uniform >= 0) & (uniform < 1)).all(), *near]


class _Gpt(nn.Module):
    """One transformer block with tied embeddings."""

    def __init__(self, vocabulary: int = 29, context: int = 12, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.first, self.second, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        batch, length = tokens.shape
        x = self.token(tokens) + self.position(torch.arange(length, device=tokens.device))
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, -1))
        x = x + self.mlp(self.second(x))
        logits: torch.Tensor = self.last(x) @ self.token.weight.T
        return logits


def training(device: torch.device) -> list[torch.Tensor]:
    """Three steps of a GPT with AdamW and gradient clipping: the losses and the parameters."""
    torch.manual_seed(0)
    model = copy.deepcopy(_Gpt()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        tokens = torch.randint(0, 29, (2, 13), generator=generator).to(device)
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss)
    return [*losses, *model.parameters()]


PROGRAMS: dict[str, Program] = {
    program.__name__: program
    for program in (
        copies,
        layer_norm,
        normalization,
        attention,
        convolution,
        recurrent,
        indexing,
        sorting,
        bags,
        coordinates,
        creation,
        statistics,
        random,
        training,
    )
}
"""By name."""
