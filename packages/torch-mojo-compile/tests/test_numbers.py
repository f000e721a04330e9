"""Compiled graphs against eager torch. MAX takes half a minute for each, so that each test holds many cases."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_mojo_compile import Compilation, compilations, mojo_backend
from torch_mojo_compile.executable import Executable
from torch_mojo_compile.graph import dense_order

Case = Callable[..., Any]
UNARY = """
    abs neg relu floor ceil trunc round sign exp expm1 log log1p sqrt rsqrt sin cos tan tanh sigmoid erf erfc reciprocal
    square isnan isinf isfinite logical_not atan asinh sinh cosh
"""


def check(cases: dict[str, Case], inputs: Sequence[Tensor]) -> None:
    """Compiles all cases as one graph and compares each with eager torch: values, dtypes, sizes and strides.

    A part of another result, which has gaps in memory, is one without gaps here.
    """

    def together(*arguments: Tensor) -> list[Any]:
        return [case(*arguments) for case in cases.values()]

    expected = together(*(x.clone() for x in inputs))
    found = torch.compile(together, backend=mojo_backend, fullgraph=True)(*(x.clone() for x in inputs))
    failures = []
    for name, result, wanted in zip(cases, found, expected, strict=True):
        try:
            torch.testing.assert_close(result, wanted, equal_nan=True)
            for one, other in zip(*(torch.utils._pytree.tree_leaves(x) for x in (result, wanted)), strict=True):
                dense = dense_order(other) is not None
                assert not dense or one.stride() == other.stride(), f"strides {one.stride()}, expected {other.stride()}"
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert not failures, "\n".join(failures)


@pytest.mark.models
def test_half_types_are_rounded_once() -> None:
    """Numbers and what comes between are float32, as on GPUs; CPU torch rounds some of the numbers first."""
    cases: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "mul number": lambda x, y: x * 0.1,
        "add number": lambda x, y: x + 0.1,
        "add alpha": lambda x, y: torch.add(x, y, alpha=0.1),
        "sub alpha": lambda x, y: torch.sub(x, y, alpha=0.1),
        "rsub": lambda x, y: torch.rsub(x, 0.1, alpha=3),
        "div number": lambda x, y: x / 0.3,
        "lerp": lambda x, y: torch.lerp(x, y, 0.3),
        "lerp from the end": lambda x, y: torch.lerp(x, y, 0.7),
        "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.1),
        "cube": lambda x, y: x**3,
    }
    torch.manual_seed(0)
    pairs = [torch.randn(2, 200).to(dtype).unbind(0) for dtype in (torch.bfloat16, torch.float16)]

    def together(*inputs: Tensor) -> list[Tensor]:
        return [case(*inputs[i : i + 2]) for i in (0, 2) for case in cases.values()]

    inputs = [x for pair in pairs for x in pair]
    found = torch.compile(together, backend=mojo_backend, fullgraph=True)(*inputs)
    exact = together(*(x.double() for x in inputs))
    names = [f"{name} {x.dtype}" for x, _ in pairs for name in cases]
    assert len(found) == len(names)
    assert not [name for name, x, y in zip(names, found, exact, strict=True) if not torch.equal(x, y.to(x.dtype))]


@pytest.mark.models
def test_elementwise() -> None:
    nan, inf = math.nan, math.inf
    x = torch.tensor([-2.5, -1.5, -0.5, -0.0, 0.0, 0.3, 0.5, 1.5, 2.5, 100.0, nan, inf, -inf])
    y = torch.tensor([1.0, nan, -3.0, 2.0, -0.0, 0.3, 0.1, -1.5, 2.0, 3.0, 1.0, 2.0, nan])
    n = torch.tensor([-7, -3, -1, 0, 1, 2, 3, 5, 7, 100, -100, 12, 13])
    k = torch.tensor([3, 2, -2, 5, -1, 2, -7, 5, 3, 9, 7, -5, 4])
    b = torch.tensor([True, False] * 6 + [True])
    cases: dict[str, Case] = {
        **{name: lambda x, *_, name=name: getattr(torch, name)(x) for name in UNARY.split()},
        # At infinity CPU torch's gelu is NaN in float32 and bfloat16, though not in float64 and float16.
        "gelu": lambda x, *_: functional.gelu(x[:-2]),
        "gelu tanh": lambda x, *_: functional.gelu(x, approximate="tanh"),
        "silu": lambda x, *_: functional.silu(x),
        "softplus": lambda x, *_: functional.softplus(x),
        "clamp": lambda x, *_: x.clamp(-1, 1),
        "clamp below": lambda x, *_: x.clamp(min=0.5),
        "add alpha": lambda x, y, *_: torch.add(x, y, alpha=2.5),
        "rsub": lambda x, *_: 3 - x,
        "div": lambda x, y, *_: x / y,
        "div floor": lambda x, y, *_: torch.div(x, y, rounding_mode="floor"),
        "div trunc": lambda x, y, *_: torch.div(x, y, rounding_mode="trunc"),
        "remainder": lambda x, y, *_: torch.remainder(x, y),
        "remainder number": lambda x, *_: x % 0.75,
        "pow": lambda x, y, *_: torch.pow(x.abs(), y),
        "pow number": lambda x, *_: x**3,
        "pow fraction": lambda x, *_: x.abs() ** 1.7,
        "maximum": lambda x, y, *_: torch.maximum(x, y),
        "minimum": lambda x, y, *_: torch.minimum(x, y),
        "atan2": lambda x, y, *_: torch.atan2(x, y),
        **{op: lambda x, y, *_, op=op: getattr(torch, op)(x, y) for op in ("eq", "ne", "lt", "le", "gt", "ge")},
        "where": lambda x, y, n, k, b: torch.where(b, x, y),
        "where number": lambda x, y, n, k, b: torch.where(b, x, 2.0),
        "masked fill": lambda x, y, n, k, b: x.masked_fill(b, -1.0),
        "lerp": lambda x, y, *_: torch.lerp(x, y, 0.3),
        "addcmul": lambda x, y, *_: torch.addcmul(x, x * 1e38, y * 3, value=0.5),
        "addcdiv": lambda x, y, *_: torch.addcdiv(x, y, x, value=0.5),
        "int add": lambda x, y, n, k, b: n + k,
        "int mul": lambda x, y, n, k, b: n * 3,
        "int div": lambda x, y, n, k, b: n / k,
        "int floor": lambda x, y, n, k, b: n // k,
        "int remainder": lambda x, y, n, k, b: n % k,
        "int and": lambda x, y, n, k, b: n & k,
        "int shift": lambda x, y, n, k, b: n << 2,
        "int not": lambda x, y, n, k, b: ~n,
        "int and number": lambda x, y, n, k, b: n & 6,
        "bool and": lambda x, y, n, k, b: b & (x > 0),
        "bool mul": lambda x, y, n, k, b: b * (x > 0),
        "bool add": lambda x, y, n, k, b: b + (x > 0),
        "equal to itself": lambda x, *_: (x == x, x != x, x >= x),
        "bool not": lambda x, y, n, k, b: ~b,
        "bool to float": lambda x, y, n, k, b: b.float() * x,
        "float to int": lambda x, y, n, k, b: y.nan_to_num().long(),
        "float to bool": lambda x, y, n, k, b: y.bool(),
        "int and float": lambda x, y, n, k, b: n + x,
        "half": lambda x, y, *_: x.nan_to_num(posinf=5, neginf=-5).half() * y.nan_to_num().half(),
        "bfloat16": lambda x, y, *_: functional.gelu(x[:-2].bfloat16()) + y[:-2].bfloat16(),
        "double": lambda x, y, *_: torch.exp(x.double().clamp(max=3)),
        "logical xor": lambda x, y, n, k, b: torch.logical_xor(b, n),
        "exp beyond": lambda x, y, n, k, b: (x.exp() * 2, (x + 88.0 - 100 * b).exp(), (x * 200).bfloat16().exp()),
        "exp at -inf": lambda x, *_: x.exp().log(),
        "half tanh": lambda x, *_: x.half().tanh(),
        "times zero": lambda x, *_: (x * 0, x * -0.0, functional.softshrink(x)),
        "threshold gradient": lambda x, y, *_: torch.ops.aten.threshold_backward(y, x, 0.5),
        "unsigned negative": lambda x, y, n, k, b: (-n.abs().byte(), 0 - n.abs().byte(), n.abs().byte().abs()),
        "unsigned difference": lambda x, y, n, k, b: n.abs().byte() - k.abs().byte(),
        "numbers out of range": lambda x, y, n, k, b: (n.abs().byte() + 300, n.abs().byte() > -1, n.int() < 2**31),
    }
    check(cases, [x, y, n, k, b])


@pytest.mark.models
def test_shapes_reductions_and_indexing() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5)
    rows = torch.tensor([[0, 3, -1], [2, 2, 1]])
    values = torch.randn(2, 3, 6, 5)
    cases: dict[str, Case] = {
        "transpose": lambda x, *_: x.transpose(0, 2),
        "permute and add": lambda x, *_: x.permute(2, 0, 1) + 1,
        "view": lambda x, *_: x.view(4, -1) * 2,
        "reshape of transposed": lambda x, *_: x.transpose(0, 1).reshape(6, 20),
        "expand": lambda x, *_: x[:1].expand(4, 6, 5) + x,
        "repeat": lambda x, *_: x.repeat(2, 1, 3),
        "cat": lambda x, *_: torch.cat([x, x * 2], 1),
        "stack": lambda x, *_: torch.stack([x, x * 2], -1),
        "split": lambda x, *_: torch.split(x * 1, [1, 2, 3], 1),
        "chunk": lambda x, *_: (x * 1).chunk(2, 1)[1] + 1,
        "slices": lambda x, *_: x[1:, ::2, -2:] + 0,
        "select": lambda x, *_: x[:, -1] * 2,
        "unbind": lambda x, *_: sum(x.unbind(1)),
        "flip": lambda x, *_: x.flip(0, 2),
        "roll": lambda x, *_: x.roll((1, -2), (0, 2)),
        "diagonal": lambda x, *_: x[:4, :4].diagonal(0, 0, 1) + 0,
        "tril": lambda x, *_: x.tril(-1),
        "pad": lambda x, *_: functional.pad(x, (1, 2, 0, 1), value=3.0),
        "slice write": lambda x, *_: _written(x, (slice(None), 1), 7.0),
        "stepped write": lambda x, *_: _written(x, (slice(0, 4, 2),), x[1::2] * 2),
        "sum": lambda x, *_: x.sum(),
        "sum of dims": lambda x, *_: x.sum((0, 2), keepdim=True),
        "mean": lambda x, *_: x.mean(1),
        "var": lambda x, *_: x.var(1),
        "std": lambda x, *_: x.std((0, 1), correction=0),
        "amax": lambda x, *_: x.amax((0, 1)),
        "max": lambda x, *_: x.max(1),
        "max of all": lambda x, *_: x.max(),
        "argmax": lambda x, *_: x.argmax(2),
        "prod": lambda x, *_: x.prod(0),
        "any": lambda x, *_: (x > 2).any(1),
        "all": lambda x, *_: (x > -3).all(),
        "norm": lambda x, *_: torch.linalg.vector_norm(x, dim=1),
        "logsumexp": lambda x, *_: torch.logsumexp(x, 1),
        "softmax": lambda x, *_: x.softmax(-1),
        "log softmax": lambda x, *_: x.log_softmax(1),
        "cumsum": lambda x, *_: x.cumsum(1),
        "sort": lambda x, *_: x.sort(1),
        "topk": lambda x, *_: x.topk(3, 2),
        "index": lambda x, rows, *_: x[rows],
        "index two": lambda x, rows, *_: x[:, rows, rows.abs()],
        "index apart": lambda x, rows, *_: x[rows, :, rows.abs()],
        "index write": lambda x, rows, values: x.index_put((rows,), values),
        "index add": lambda x, rows, values: x.index_put((rows,), values, accumulate=True),
        "gather": lambda x, rows, *_: x.gather(0, rows.abs()[:, :, None].expand(2, 3, 5)),
        "scatter": lambda x, rows, *_: x.scatter(0, rows.abs()[:, :, None].expand(2, 3, 5), 1.5),
        "scatter add": lambda x, rows, v: x.scatter_add(0, rows.abs()[:, :, None].expand(2, 3, 5), v[:, :, 0]),
        "scatter multiply": lambda x, rows, v: x.scatter_reduce(
            0, rows.abs()[:, :, None].expand(2, 3, 5), v[:, :, 0], "prod"
        ),
        "scatter mean": lambda x, rows, v: x.scatter_reduce(
            0, rows.abs()[:, :, None].expand(2, 3, 5), v[:, :, 0], "mean", include_self=False
        ),
        "scatter largest": lambda x, rows, v: x.scatter_reduce(
            0, rows.abs()[:, :, None].expand(2, 3, 5), v[:, :, 0], "amax", include_self=False
        ),
        "as strided": lambda x, *_: x.as_strided((2, 3), (7, 2), 4) * 2,
        "write diagonal": lambda x, *_: x.transpose(0, 1).diagonal_scatter(x[:, :4, 0], 1, 0, 2),
        "write as strided": lambda x, *_: x.as_strided_scatter(x[:2, :3, 0], (2, 3), (7, 2), 4),
        "other dtype": lambda x, *_: functional.mse_loss(x, x.double() * 0.5),
        "index select": lambda x, rows, *_: x.index_select(1, rows[0].abs()),
        "embedding": lambda x, rows, *_: functional.embedding(rows.abs(), x[:, 0]),
        "embedding of one": lambda x, rows, *_: functional.embedding(rows[0, 1], x[:, 0]),
        "index of one": lambda x, rows, *_: torch.ops.aten.index(x, [rows[0, 0], None, rows[0, 1]]),
        "one hot": lambda x, rows, *_: functional.one_hot(rows.abs(), 5),
        "mm": lambda x, *_: x[0].t() @ x[1],
        "bmm": lambda x, *_: x @ x.transpose(1, 2),
        "addmm": lambda x, *_: torch.addmm(x[0, :5, 0], x[0].t(), x[1], beta=0.5, alpha=2),
        "mv": lambda x, *_: x[0] @ x[0, 0],
        "einsum": lambda x, *_: torch.einsum("abc,dbc->ad", x, x),
        "arange": lambda x, *_: torch.arange(1, 7, 2, dtype=torch.float32) + x[0, 0, :3],
        "full": lambda x, *_: torch.full((2, 3), 4) + torch.ones(3, dtype=torch.int64),
        "empty": lambda x, *_: x[:0] * 2,
        "scalar": lambda x, *_: x.sum() * torch.tensor(2.0),
        "alias": lambda x, *_: x,
        "clone": lambda x, *_: x.clone(),
        "layer norm": lambda x, *_: functional.layer_norm(x, (5,), x[0, 0], x[0, 1]),
        "group norm": lambda x, *_: functional.group_norm(x, 3),
        "attention": lambda x, *_: functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        "mse": lambda x, *_: functional.mse_loss(x, x * 0.5),
        "cross entropy": lambda x, rows, *_: functional.cross_entropy(x[:3, :, 0], rows[0].abs()),
    }
    check(cases, [x, rows, values])


def _written(x: Tensor, place: Any, value: Any) -> Tensor:
    result = x.clone()
    result[place] = value
    return result


@pytest.mark.models
def test_images() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3)
    cases: dict[str, Case] = {
        "conv": lambda x, w: functional.conv2d(x, w, x[0, 0, 0, :6], padding=1),
        "strided": lambda x, w: functional.conv2d(x, w, stride=2, dilation=2),
        "grouped": lambda x, w: functional.conv2d(x, w[:4, :2], groups=2),
        "transposed": lambda x, w: functional.conv_transpose2d(x, w.transpose(0, 1), stride=2, output_padding=1),
        "conv1d": lambda x, w: functional.conv1d(x[0], w[:, 0:1, 0].expand(6, 9, 3)[:, :9]),
        "channels last": lambda x, w: functional.conv2d(x.to(memory_format=torch.channels_last), w),
        "max pool": lambda x, w: functional.max_pool2d(x, 2),
        "max pool indices": lambda x, w: functional.max_pool2d(x, 3, 2, 1, return_indices=True),
        "average pool": lambda x, w: functional.avg_pool2d(x, 3, 2, 1),
        "adaptive pool": lambda x, w: functional.adaptive_avg_pool2d(x, 1),
        "adaptive max pool": lambda x, w: functional.adaptive_max_pool2d(x, 3),
        "nearest": lambda x, w: functional.interpolate(x, scale_factor=2),
        "bilinear": lambda x, w: functional.interpolate(x, (5, 7), mode="bilinear"),
        "batch norm": lambda x, w: functional.batch_norm(x, None, None, training=True),
        "batch norm inference": lambda x, w: functional.batch_norm(x, x[0, :, 0, 0], x[0, :, 0, 1] ** 2),
        "instance norm": lambda x, w: functional.instance_norm(x),
        "group norm": lambda x, w: functional.group_norm(x, 2, x[0, :, 0, 0], x[0, :, 0, 1]),
        "reflect": lambda x, w: functional.pad(x, (1, 2, 1, 0), mode="reflect"),
    }
    check(cases, [x, weight])


class Net(nn.Module):
    """Everything whose gradient is a lowering of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.group_norm = nn.GroupNorm(2, 4)
        self.pool = nn.MaxPool2d(2)
        self.table = nn.Embedding(7, 16)
        self.layer_norm = nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, image: Tensor, tokens: Tensor) -> Tensor:
        """Scores [batch, 3] of images [batch, 1, 8, 8] with tokens [batch, length]."""
        features = self.pool(self.group_norm(functional.relu(self.norm(self.convolution(image))))).flatten(2)
        sequence = torch.cat([features, self.table(tokens)], 1)
        x = self.layer_norm(sequence)
        x = sequence + self.attention(x, x, x, need_weights=False)[0]
        return self.head(functional.gelu(x.mean(1)))


@pytest.mark.timeout(1800)  # MAX and the kernels take minutes where nothing is stored
def test_training_matches_eager_and_is_stored() -> None:
    torch.manual_seed(0)
    model = Net()
    reference = copy.deepcopy(model)
    function = torch.compile(model, backend=mojo_backend)
    for step in range(5):
        image, tokens = torch.randn(6, 1, 8, 8), torch.randint(0, 7, (6, 5))
        target = torch.randint(0, 3, (6,))
        for network, call in ((model, function), (reference, reference)):
            loss = functional.cross_entropy(call(image, tokens), target)
            loss.backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        assert step < 5
    for (name, ours), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, msg=name)
    # Another compilation of the same finds the model on disk.
    torch._dynamo.reset()
    again = copy.deepcopy(reference)
    torch.compile(again, backend=mojo_backend)(image, tokens).sum().backward()
    last: Compilation = compilations()[-1]
    assert last.from_store
    assert last.compile_seconds == 0


def test_mutation_and_random_numbers() -> None:
    counter = torch.zeros(3)
    buffer = torch.zeros(4, 4)

    def function(x: Tensor, counter: Tensor, strided: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        counter.add_(1)
        strided.mul_(2).add_(x[:, :2])
        return functional.dropout(x, 0.5), torch.rand(1000), x.view(-1)

    compiled = torch.compile(function, backend=mojo_backend, fullgraph=True)
    x = torch.ones(4, 4)
    torch.manual_seed(3)
    first, second = compiled(x, counter, buffer[:, ::2]), compiled(x, counter, buffer[:, ::2])
    torch.testing.assert_close(counter, torch.full((3,), 2.0))
    torch.testing.assert_close(buffer[:, ::2], torch.full((4, 2), 3.0))
    assert buffer[:, 1::2].eq(0).all(), "what lies between is not touched"
    assert first[0].unique().tolist() == [0.0, 2.0]
    assert not torch.equal(first[1], second[1]), "new numbers at each call"
    assert 0.45 < first[1].mean() < 0.55
    assert first[2].data_ptr() == x.data_ptr(), "a view of an input is one"
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x, counter, buffer[:, ::2])[1], first[1])


@pytest.mark.models
@pytest.mark.timeout(1800)
def test_async_goes_on_eagerly_and_changes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Executable] = []
    run = Executable.run
    monkeypatch.setattr(Executable, "run", lambda self, arguments: (runs.append(self), run(self, arguments))[1])
    model = nn.Sequential(nn.Linear(5, 7), nn.SiLU(), nn.Linear(7, 3))
    reference = copy.deepcopy(model)
    # A number of this run, so that the graph is in no store.
    factor = time.time()
    compiled = torch.compile(lambda x: model(x) * factor / factor, backend=mojo_backend, options={"async": True})
    x = torch.randn(4, 5)
    steps = 0
    while not runs:
        for network, call in ((model, compiled), (reference, reference)):
            network.zero_grad()
            call(x).square().sum().backward()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        steps += 1
        time.sleep(0.05)
    assert steps > 2, "the program did not wait"
    assert not compilations()[-1].from_store


def test_inputs_that_exchange_their_values() -> None:
    def function(a: Tensor, b: Tensor, c: Tensor) -> None:
        old = a.clone()
        a.copy_(b)
        b.copy_(old)
        c.t().copy_(a + 1)

    a, b, c = torch.zeros(3, 3), torch.ones(3, 3), torch.zeros(3, 3)
    torch.compile(function, backend=mojo_backend, fullgraph=True)(a, b, c)
    assert a.eq(1).all()
    assert b.eq(0).all()
    assert c.eq(2).all()


def test_copies_are_copies() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        doubled = y * 2
        return x.clone(), x[1:].clone(), x.t() + 0, x.view(9) * 1, doubled, doubled.clone(), y.detach(), y.view(4)

    compiled = torch.compile(function, backend=mojo_backend, fullgraph=True)
    x, y = torch.randn(3, 3), torch.randn(2, 2)
    expected = function(x.clone(), y.clone())
    found = compiled(x, y)
    torch.testing.assert_close(found, expected)
    for result in found[:-2]:
        result.zero_()
    torch.testing.assert_close(compiled(x, y), expected)
    assert found[-1].data_ptr() == found[-2].data_ptr() == y.data_ptr(), "views of inputs"


@pytest.mark.parametrize("length", [3, 5])
def test_dynamic_sizes(length: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Flatten(0), nn.Softmax(0))
    function = torch.compile(model, backend=mojo_backend, dynamic=True)
    x = torch.randn(length, 4, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    found, expected = function(x), model(y)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(expected.shape)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
