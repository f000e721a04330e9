"""A forked child cannot use the devices of its parent, and says so; a spawned one can."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest

import mojo_runtime
from mojo_runtime import _native


def _try_everything(device: mojo_runtime.Device, array: mojo_runtime.Array, event: mojo_runtime.Event, slot, results):
    attempts = {
        "allocate": lambda: mojo_runtime.Memory(10, device),
        "pinned": lambda: mojo_runtime.PinnedMemory(10, device),
        "copy": lambda: mojo_runtime.array(np.zeros(3), target=device),
        "launch": lambda: mojo_runtime.launch(slot, [array]),
        "synchronize": device.synchronize,
        "stream": lambda: mojo_runtime.Stream(device),
        "event": event.record,
        "query": event.query,
        "statistics": lambda: mojo_runtime.memory_statistics(device),
        "threads": lambda: mojo_runtime.set_threads(1),
        "wait": slot.wait,
    }
    errors = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            errors[name] = "worked"
        except RuntimeError as error:
            errors[name] = str(error)
    _native.library().mojo_free(array.address)  # silent, and does nothing
    results.send((mojo_runtime.in_bad_fork(), errors))


def _use(results) -> None:
    results.send(mojo_runtime.array(np.arange(3)).numpy().tolist())


def test_forked_child_fails_with_advice(stand_ins, device):
    array, event = mojo_runtime.empty(1, "int64", device), mojo_runtime.Event(device)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            _try_everything(device, array, event, stand_ins.unfilled(), sender)
        finally:
            os._exit(0)
    assert receiver.poll(30)
    bad_fork, errors = receiver.recv()
    os.waitpid(pid, 0)
    assert bad_fork
    assert not mojo_runtime.in_bad_fork()
    assert {name for name, error in errors.items() if "'spawn'" not in error} == set()


def test_spawned_child_works(device):
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_use, args=(sender,))
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == [0, 1, 2]
    process.join()


def test_child_forked_before_initialization_works(device):
    """In a fresh process, as this one has its devices open."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_fork_then_use, args=(sender,))
    process.start()
    assert receiver.poll(60)
    assert receiver.recv() == [0, 1, 2]
    process.join()


def _fork_then_use(results) -> None:
    _native.library()
    pid = os.fork()
    if pid == 0:
        try:
            _use(results)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("choice", ["cpu:0", "cpu:x", "tpu"])
def test_choice_that_is_not_understood(choice):
    from mojo_runtime.devices import _requested_cpus

    with pytest.raises(ValueError, match="MOJO_RUNTIME_DEVICES"):
        _requested_cpus(choice)
