"""Forked, spawned and loader processes."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch


def in_fork(body):
    """Runs `body` in a forked child; returns what it sends."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            sender.send(body())
        except BaseException as error:
            sender.send(repr(error))
        finally:
            os._exit(0)
    assert receiver.poll(60)
    os.waitpid(pid, 0)
    return receiver.recv()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_is_told_to_spawn(device, side):
    x = torch.ones(3, device=device, requires_grad=True)
    generator, event, pinned = torch.Generator(device), side.record_event(), torch.ones(2).pin_memory()
    torch.accelerator.synchronize()
    attempts = {
        "op": lambda: x + 1,
        "python op": lambda: torch.nn.functional.pad(x, (1, 1)),
        "in place": lambda: x.detach().add_(1),
        "allocation": lambda: torch.empty(3, device=device),
        "empty allocation": lambda: torch.empty(0, device=device),
        "upload": lambda: torch.ones(3).to(device),
        "download": lambda: x.cpu(),
        "item": lambda: x[0].item(),
        "pin": lambda: torch.ones(3).pin_memory(),
        "pinned upload": lambda: pinned.to(device, non_blocking=True),
        "new generator": lambda: torch.Generator(device),
        "random": lambda: torch.rand(3, device=device),
        "random with a generator": lambda: torch.rand(3, device=device, generator=generator),
        "seed of the device": lambda: torch.get_device_module(device).manual_seed(1),
        "stream": lambda: torch.Stream(device),
        "synchronize": torch.accelerator.synchronize,
        "stream synchronize": side.synchronize,
        "event": event.query,
        "record": lambda: torch.Event(device).record(side),
        "memory": torch.accelerator.memory_allocated,
    }

    def body():
        results = {}
        for name, attempt in attempts.items():
            try:
                attempt()
                results[name] = "worked"
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}"
        torch.manual_seed(0)  # as loader workers do
        results["host"] = torch.ones(3).sum().item()
        return results

    results = in_fork(body)
    assert results.pop("host") == 3
    wrong = {name: r for name, r in results.items() if not (r.startswith("RuntimeError") and "'spawn'" in r)}
    assert wrong == {}
    assert (x + 1).sum().item() == 6


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((3,), float(index * index)), index


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_loader_workers(device):
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=2, pin_memory=True, multiprocessing_context="fork"
    )
    total = torch.zeros((), device=device)
    for x, index in loader:
        assert x.is_pinned() and index.is_pinned()
        total += x.to(device, non_blocking=True).mean(1).sum()
    assert total.item() == sum(i * i for i in range(12))


def _train(queue, device):
    import torch_mojo_eager

    torch_mojo_eager.register_mojo_devices()
    x = torch.ones(4, device=device, requires_grad=True)
    (x * 3).sum().backward()
    queue.put(x.grad.tolist())


def test_spawned_child_works(device):
    context = torch.multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_train, args=(queue, str(device)))
    process.start()
    assert queue.get(timeout=120) == [3] * 4
    process.join()
    assert process.exitcode == 0
