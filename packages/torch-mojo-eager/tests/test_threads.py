"""Many Python threads on one device, and exceptions from wherever they arise."""

from __future__ import annotations

import concurrent.futures
import copy
import threading

import pytest
import torch
from torch.nn import functional as F

THREADS = 8


def make(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 3))


def train(model, x, target, steps=15):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
    return [loss.detach().cpu(), *(p.detach().cpu() for p in model.parameters())]


def on_threads(function, count=THREADS):
    """Runs function(0), ..., function(count - 1) at once; returns the results."""
    barrier = threading.Barrier(count)

    def run(index):
        barrier.wait(60)
        return function(index)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


@pytest.mark.parametrize("streams", ["default", "own", "one side stream"])
def test_threads_train_at_once(device, streams):
    models = [make(i) for i in range(THREADS)]
    data = [(torch.randn(10, 6), torch.randint(0, 3, (10,))) for _ in range(THREADS)]
    expected = [train(copy.deepcopy(model), *each) for model, each in zip(models, data, strict=True)]
    shared = torch.Stream(device)

    def run(i):
        stream = {"default": torch.accelerator.current_stream(), "own": torch.Stream(device), "one side stream": shared}
        with stream[streams]:
            return train(models[i].to(device), *(t.to(device) for t in data[i]))

    for ours, theirs in zip(on_threads(run), expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_threads_on_two_devices(device, second):
    model = make(0)
    x, target = torch.randn(10, 6), torch.randint(0, 3, (10,))
    expected = train(copy.deepcopy(model), x, target)

    def run(i):
        with torch.accelerator.device_index(i % 2):
            results = train(copy.deepcopy(model).to(device), x.to(device), target.to(device))
            assert torch.accelerator.current_device_index() == i % 2
        return results

    for ours in on_threads(run):
        for one, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_backward_of_one_graph_from_several_threads(device):
    x = torch.ones(50, device=device, requires_grad=True)
    losses = [(x * (i + 1)).sum() for i in range(THREADS)]
    on_threads(lambda i: losses[i].backward())
    assert x.grad.tolist() == [float(sum(range(1, THREADS + 1)))] * 50


def test_threads_compile_and_read_the_same_new_kernels(device):
    x = torch.arange(1.0, 9.0, device=device)
    results = on_threads(lambda i: (x.lgamma() * x.erf()).sum().item())
    host = torch.arange(1.0, 9.0)
    assert results == pytest.approx([(host.lgamma() * host.erf()).sum().item()] * THREADS, rel=1e-5)


def test_hooks(device):
    model, order = make(0).to(device), []
    x = torch.randn(4, 6, device=device, requires_grad=True)
    model[0].register_forward_hook(lambda module, inputs, output: order.append("forward") or output * 2)
    model[0].register_full_backward_hook(lambda module, gradients, outputs: order.append("module"))
    model[0].weight.register_hook(lambda gradient: order.append("gradient") or gradient * 10)
    model[0].weight.register_post_accumulate_grad_hook(lambda parameter: order.append("accumulated"))
    x.register_hook(lambda gradient: order.append(str(gradient.device)))
    model(x).sum().backward()
    assert sorted(order) == sorted(["forward", "module", "gradient", "accumulated", "mojo:0"])
    reference = make(0)
    reference[0].register_forward_hook(lambda module, inputs, output: output * 2)
    reference(x.detach().cpu()).sum().backward()
    torch.testing.assert_close(model[0].weight.grad.cpu(), reference[0].weight.grad * 10, rtol=1e-4, atol=1e-5)


class OurError(Exception):
    """An exception that only Python knows."""


class Raises(torch.autograd.Function):
    error: BaseException | None = None

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise Raises.error


ERRORS = [OurError("ours"), IndexError("index"), KeyError("key"), torch.OutOfMemoryError("memory"), StopIteration("it")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_exceptions_of_backward_keep_their_type(device, side, error):
    x = torch.ones(3, device=device, requires_grad=True)
    Raises.error = error
    for stream in (torch.accelerator.current_stream(), side):
        with stream:
            loss = Raises.apply(x * 2).sum()
            with pytest.raises(type(error), match=str(error.args[0])):
                loss.backward()
            assert torch.accelerator.current_stream() == stream
    handle = x.register_hook(lambda gradient: (_ for _ in ()).throw(OurError("in a hook")))
    with pytest.raises((OurError, RuntimeError), match="in a hook"):
        (x * 2).sum().backward()
    handle.remove()
    x.grad = None
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2] * 3


@pytest.mark.parametrize(
    ("error", "body"),
    [
        (IndexError, lambda x: F.embedding(torch.tensor([7], device=x.device), x[None].expand(2, 3))),
        (NotImplementedError, lambda x: torch.linalg.eigvals(x[None].expand(3, 3))),
        (RuntimeError, lambda x: x @ torch.ones(4, device=x.device)),
        (torch.OutOfMemoryError, lambda x: x[0].expand(1 << 43).clone()),
        (TypeError, lambda x: x.new_empty(3, dtype="float")),
    ],
)
def test_errors_of_ops_inside_backward_and_threads(device, error, body):
    class Inside(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            body(gradient)
            torch.accelerator.synchronize()
            return gradient

    x = torch.ones(3, device=device, requires_grad=True)

    def run(x):
        body(x)
        torch.accelerator.current_stream().synchronize()

    with pytest.raises(error):
        run(x.detach())
    with pytest.raises(error):
        Inside.apply(x).sum().backward()

    def in_thread(i):
        with torch.Stream(device), pytest.raises(error):
            run(x.detach())
        return (x.detach() * i).sum().item()

    assert on_threads(in_thread, 4) == [0, 3, 6, 9]
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3] * 3


def test_failure_is_raised_by_its_own_stream_alone(device, side, hold):
    """A queued kernel that fails is reported where its stream is waited for, once, and stops nothing else."""
    table = torch.ones(2, 3, device=device)
    bad = torch.tensor([7], device=device)
    torch.accelerator.synchronize()
    held = hold(side)
    with side:
        F.embedding(bad, table)
        after = torch.ones(4, device=device) * 2
    assert table.sum().item() == 6
    held.release()
    with pytest.raises(IndexError):
        side.synchronize()
    side.synchronize()
    assert after.sum().item() == 8


def test_data_parallel_style_threads_with_events(device):
    """Producers on their own streams, a consumer that waits for their events."""
    streams, results = [torch.Stream(device) for _ in range(4)], [None] * 4

    def produce(i):
        with streams[i]:
            x = torch.full((1000,), float(i), device=device)
            for _ in range(10):
                x = x + 1
        results[i] = (x, streams[i].record_event())

    on_threads(produce, 4)
    main = torch.accelerator.current_stream()
    total = torch.zeros(1000, device=device)
    for x, event in results:
        main.wait_event(event)
        x.record_stream(main)
        total += x
    assert total.sum().item() == 1000 * (0 + 1 + 2 + 3 + 40)
