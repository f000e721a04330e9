"""Fused optimizer steps, `_foreach` functions and loss scaling against torch on lists of tensors."""

from __future__ import annotations

import math

import pytest
import torch

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}
FOREACH = {
    "add_number": (1, lambda x, a, b, v: x + v),
    "sub_number": (1, lambda x, a, b, v: x - v),
    "mul_number": (1, lambda x, a, b, v: x * v),
    "div_number": (1, lambda x, a, b, v: x / v),
    "maximum_number": (1, lambda x, a, b, v: x.clamp(min=v)),
    "minimum_number": (1, lambda x, a, b, v: x.clamp(max=v)),
    "pow_number": (1, lambda x, a, b, v: x**v),
    "neg": (1, lambda x, a, b, v: -x),
    "abs": (1, lambda x, a, b, v: x.abs()),
    "zero": (1, lambda x, a, b, v: x.new_zeros(x.shape)),
    "reciprocal": (1, lambda x, a, b, v: 1 / x),
    "sqrt": (1, lambda x, a, b, v: x.sqrt()),
    "exp": (1, lambda x, a, b, v: x.exp()),
    "add": (2, lambda x, a, b, v: x + v * a),
    "sub": (2, lambda x, a, b, v: x - v * a),
    "mul": (2, lambda x, a, b, v: x * a),
    "div": (2, lambda x, a, b, v: x / a),
    "maximum": (2, lambda x, a, b, v: torch.maximum(x, a)),
    "minimum": (2, lambda x, a, b, v: torch.minimum(x, a)),
    "lerp": (2, lambda x, a, b, v: x + v * (a - x)),
    "lerp_tensors": (3, lambda x, a, b, v: x + b * (a - x)),
    "addcmul": (3, lambda x, a, b, v: x + v * a * b),
    "addcdiv": (3, lambda x, a, b, v: x + v * a / b),
}
NO_NUMBER = {
    *("neg", "abs", "zero", "reciprocal", "sqrt", "exp", "mul", "div", "maximum", "minimum", "lerp_tensors"),
}


def foreach_key(op: str, dtype: torch.dtype, number: str | None = None) -> str:
    number = number or ("none" if op in NO_NUMBER else "one")
    return f"optimizer.foreach:foreach[dtype={NAMES[dtype]},inputs={FOREACH[op][0]},number={number},op={op}]"


def adam_key(op: str, dtype: torch.dtype, learning_rate: str = "number") -> str:
    return f"optimizer.adam:adam[dtype={NAMES[dtype]},learning_rate={learning_rate},op={op}]"


def sgd_key(dtype: torch.dtype, learning_rate: str = "number") -> str:
    return f"optimizer.sgd:sgd[dtype={NAMES[dtype]},learning_rate={learning_rate}]"


@pytest.fixture(scope="module")
def library(kernels):
    keys = [foreach_key(op, torch.float32) for op in FOREACH]
    keys += [foreach_key("addcdiv", dtype) for dtype in (torch.float64, torch.bfloat16)]
    keys += [foreach_key("addcmul", torch.float32, "list"), foreach_key("mul_number", torch.float32, "tensor")]
    keys += [adam_key("adamw", dtype) for dtype in NAMES] + [adam_key("adam", torch.float32)]
    keys += [adam_key("adamw", torch.float32, "tensor"), sgd_key(torch.float32), sgd_key(torch.float32, "tensor")]
    keys += [sgd_key(torch.bfloat16), "optimizer.loss_scale:update_loss_scale"]
    keys += [f"optimizer.foreach:foreach_norm[dtype={d},out={d}]" for d in ("float32", "bfloat16")]
    return kernels([*keys, *(f"optimizer.foreach:unscale[dtype={d}]" for d in ("float32", "float16"))])


def tensors(dtype: torch.dtype, seed: int, positive: bool = False) -> list[torch.Tensor]:
    """A list with empty, one-element, large, transposed, sliced and channels-last tensors."""
    generator = torch.Generator().manual_seed(seed)

    def make(*shape: int) -> torch.Tensor:
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (x.abs() + 0.5 if positive else x).to(dtype)

    return [
        make(3, 5),
        make(0, 4),
        make(),
        make(40_000),
        make(7, 30).t(),
        make(20, 6)[:, ::2],
        make(2, 3, 4, 5).to(memory_format=torch.channels_last),
        make(100, 300),
    ]


@pytest.mark.parametrize("op", FOREACH)
def test_foreach(library, op: str) -> None:
    inputs, reference = FOREACH[op]
    for dtype in (torch.float32, torch.float64, torch.bfloat16) if op == "addcdiv" else (torch.float32,):
        positive = op in ("sqrt", "pow_number", "div", "reciprocal", "addcdiv")
        lists = [tensors(dtype, seed, positive) for seed in range(inputs)]
        value = 2.5
        expected = [
            reference(*(x.double() for x in group), *([None] * (3 - inputs)), value).to(dtype)
            for group in zip(*lists, strict=True)
        ]
        scalars = [len(lists[0])] + ([] if op in NO_NUMBER else [library.number(value)])
        outputs = [torch.empty_like(x) for x in lists[0]]
        library(foreach_key(op, dtype), [x for group in (outputs, *lists) for x in group], scalars)
        library(foreach_key(op, dtype), [x for group in (lists[0], *lists) for x in group], scalars)
        for output, in_place, e in zip(outputs, lists[0], expected, strict=True):
            torch.testing.assert_close(output, e)
            torch.testing.assert_close(in_place, e)


def test_foreach_numbers(library) -> None:
    """A number per tensor, a number in a tensor, operands of other strides."""
    x, a, b = (tensors(torch.float32, seed) for seed in range(3))
    numbers = [0.5 * i - 1 for i in range(len(x))]
    expected = [t + n * u * v for t, u, v, n in zip(x, a, b, numbers, strict=True)]
    a = [t.t().contiguous().t() if t.ndim == 2 else t for t in a]
    words = [word for n in numbers for word in library.number(n).values]
    scalars = [len(x), len(x), type(library.number(0))(tuple(words))]
    library(foreach_key("addcmul", torch.float32, "list"), [*x, *x, *a, *b], scalars)
    for output, e in zip(x, expected, strict=True):
        torch.testing.assert_close(output, e)
    for host_scalars in ((), (2 * len(x),)):
        expected = [t * 0.25 for t in x]
        key = foreach_key("mul_number", torch.float32, "tensor")
        library(key, [*x, *x, torch.tensor(0.25)], [len(x)], host_scalars)
        for output, e in zip(x, expected, strict=True):
            torch.testing.assert_close(output, e)


def test_lists_that_do_not_fit(library) -> None:
    key = foreach_key("mul", torch.float32)
    with pytest.raises(RuntimeError, match="same size"):
        library(key, [torch.ones(3), torch.ones(3), torch.ones(2)], [1])
    with pytest.raises(NotImplementedError, match="different dtypes"):
        library(key, [torch.ones(3), torch.ones(3), torch.ones(3, dtype=torch.float64)], [1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=NAMES.get)
@pytest.mark.parametrize("order", [2.0, 1.0, math.inf])
def test_foreach_norm(library, dtype: torch.dtype, order: float) -> None:
    x = tensors(dtype, 0)
    if order == math.inf:
        x = [t for t in x if t.numel()]
    out = [torch.empty((), dtype=dtype) for _ in x]
    library(
        f"optimizer.foreach:foreach_norm[dtype={NAMES[dtype]},out={NAMES[dtype]}]",
        [*out, *x],
        [len(x), library.number(order)],
    )
    for output, t in zip(out, x, strict=True):
        torch.testing.assert_close(output, torch.linalg.vector_norm(t.double(), order).to(dtype))


@pytest.mark.parametrize("op", ["adam", "adamw"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("learning_rate", ["number", "tensor"])
def test_adam(library, op: str, amsgrad: bool, maximize: bool, learning_rate: str) -> None:
    dtypes = NAMES if op == "adamw" and learning_rate == "number" else (torch.float32,)
    if op == "adam" and learning_rate == "tensor":
        learning_rate = "number"
    for dtype in dtypes:
        parameters = [x.clone() for x in tensors(dtype, 0) if x.numel()]
        twins = [x.double().clone() for x in parameters]
        optimizer = (torch.optim.AdamW if op == "adamw" else torch.optim.Adam)(
            twins, lr=0.1, betas=(0.8, 0.9), weight_decay=0.3, amsgrad=amsgrad, maximize=maximize, foreach=False
        )
        count = len(parameters)
        states = [[torch.zeros_like(x) for x in parameters] for _ in range(3 if amsgrad else 2)]
        for step in range(1, 4):
            gradients = [x for x in tensors(dtype, step) if x.numel()]
            for twin, gradient in zip(twins, gradients, strict=True):
                twin.grad = gradient.double()
            optimizer.step()
            steps = [torch.tensor(float(step)) for _ in parameters]
            lists = [x for group in (parameters, gradients, *states, steps) for x in group]
            rate = [torch.tensor(0.1)] if learning_rate == "tensor" else []
            scalars = [count, count if amsgrad else 0, *([] if rate else [0.1]), 0.8, 0.9, 0.3, 1e-8, amsgrad, maximize]
            library(adam_key(op, dtype, learning_rate), [*lists, *rate, None, None], scalars)
        tolerance = {
            torch.float32: {"rtol": 1e-5, "atol": 1e-5},
            torch.float64: {},
            torch.bfloat16: {"rtol": 2e-2, "atol": 3e-2},
            torch.float16: {"rtol": 2e-3, "atol": 5e-3},
        }[dtype]
        for parameter, twin in zip(parameters, twins, strict=True):
            torch.testing.assert_close(parameter.double(), twin, **tolerance)


def test_scaled_gradients(library) -> None:
    """The scale divides the gradients, which keep the result; an infinity skips everything."""
    parameter, gradient = torch.randn(50), torch.randn(50)
    state = [torch.zeros(50) for _ in range(2)]
    before, scaled = parameter.clone(), gradient * 8
    arguments = [parameter, scaled, *state, torch.tensor(1.0), torch.tensor(8.0)]
    scalars = [1, 0, 0.1, 0.9, 0.999, 0.0, 1e-8, False, False]
    library(adam_key("adamw", torch.float32), [*arguments, torch.tensor(1.0)], scalars)
    assert torch.equal(parameter, before)
    assert torch.equal(scaled, gradient * 8)
    library(adam_key("adamw", torch.float32), [*arguments, torch.tensor(0.0)], scalars)
    torch.testing.assert_close(scaled, gradient)
    torch.testing.assert_close(parameter, before - 0.1 * gradient.sign(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("learning_rate", ["number", "tensor"])
def test_sgd(library, momentum: float, nesterov: bool, learning_rate: str) -> None:
    if nesterov and not momentum:
        momentum = 0.5
    for dtype in (torch.float32, torch.bfloat16) if learning_rate == "number" else (torch.float32,):
        parameters = [x.clone() for x in tensors(dtype, 0) if x.numel()]
        twins = [x.double().clone() for x in parameters]
        optimizer = torch.optim.SGD(
            twins, 0.1, momentum, 0.0 if nesterov else 0.25, 0.2, nesterov=nesterov, maximize=True, foreach=False
        )
        buffers = [torch.full_like(x, math.nan) for x in parameters] if momentum else []
        for step in range(3):
            gradients = [x for x in tensors(dtype, 1 + step) if x.numel()]
            for twin, gradient in zip(twins, gradients, strict=True):
                twin.grad = gradient.double()
            optimizer.step()
            rate = [torch.tensor(0.1)] if learning_rate == "tensor" else []
            library(
                sgd_key(dtype, learning_rate),
                [*parameters, *gradients, *buffers, *rate, None, None],
                [
                    *(len(parameters), len(buffers)),
                    *([] if rate else [0.1]),
                    *(0.2, momentum, 0.0 if nesterov else 0.25, nesterov, True, step == 0),
                ],
            )
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
        for parameter, twin in zip(parameters, twins, strict=True):
            torch.testing.assert_close(parameter.double(), twin, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=NAMES.get)
@pytest.mark.parametrize("bad", [None, math.inf, -math.inf, math.nan])
def test_unscale(library, dtype: torch.dtype, bad: float | None) -> None:
    gradients = tensors(dtype, 0)
    if bad is not None:
        gradients[3][777] = bad
    expected = [gradient.double() * 0.125 for gradient in gradients]
    found = torch.zeros(())
    library(
        f"optimizer.foreach:unscale[dtype={NAMES[dtype]}]", [*gradients, found, torch.tensor(0.125)], [len(gradients)]
    )
    assert found == (bad is not None)
    for gradient, e in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, e.to(dtype), equal_nan=True)


def test_loss_scale(library) -> None:
    scale, tracker = torch.tensor(1024.0), torch.tensor(0, dtype=torch.int32)
    twin, twin_tracker = scale.clone(), tracker.clone()
    for found in (0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0):
        library("optimizer.loss_scale:update_loss_scale", [scale, tracker, torch.tensor(found)], [2.0, 0.5, 3])
        torch._amp_update_scale_(twin, twin_tracker, torch.tensor(found), 2.0, 0.5, 3)
        assert (scale, tracker) == (twin, twin_tracker)
    scale.fill_(3e38)
    tracker.fill_(2)
    library("optimizer.loss_scale:update_loss_scale", [scale, tracker, torch.tensor(0.0)], [2.0, 0.5, 3])
    assert scale.isfinite()
