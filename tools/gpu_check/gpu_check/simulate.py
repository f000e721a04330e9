"""Runs kernel calls in the simulator: the worker's side and the caller's."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gpu_check.calls import ABSENT, CODES, HOST_SCALAR, KernelCall, Operand
from mojo_runtime.toolchain import preload_runtime_libraries
from ptxsim import Options, Simulator
from ptxsim.memory import INITIALISED
from ptxsim.state import Dim3
from ptxsim.worker import Worker

EXCEPTIONS: dict[int, type[Exception]] = {
    1: NotImplementedError,
    2: RuntimeError,
    3: torch.OutOfMemoryError,
    4: IndexError,
    5: ValueError,
    6: TypeError,
}
_ERROR_CAPACITY = 1024


class MojoTensor(ctypes.Structure):
    """`MojoTensor` of kernel_abi.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("numel", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int16),
        ("flags", ctypes.c_int16),
    )


class MojoKernelCall(ctypes.Structure):
    """`MojoKernelCall` of kernel_abi.h."""

    _fields_ = (
        ("tensors", ctypes.c_void_p),
        ("n_tensors", ctypes.c_int64),
        ("scalars", ctypes.c_void_p),
        ("n_scalars", ctypes.c_int64),
        ("device_context", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("error", ctypes.c_void_p),
        ("error_capacity", ctypes.c_int64),
    )


Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclasses.dataclass(frozen=True)
class Storage:
    """Memory on its way to the worker: its bytes, and whether the kernel may read and write it."""

    content: Bytes
    label: str
    holds_values: bool
    is_output: bool
    is_on_host: bool


@dataclasses.dataclass(frozen=True)
class View:
    """How a tensor lies in a storage, given by its number; None for an absent tensor."""

    storage: int | None
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    byte_offset: int = 0
    dtype: int = 0
    flags: int = 0


@dataclasses.dataclass(frozen=True)
class Job:
    """A kernel call for the worker."""

    library: str
    symbol: str
    storages: tuple[Storage, ...]
    views: tuple[View, ...]
    scalars: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        status: The kernel's return value.
        message: Its error message.
        found: What the simulator reports, or "".
        storages: The bytes of the storages that are outputs, in order.
        written: Which of them hold a value.
        launches: Names, grids and blocks.
    """

    status: int
    message: str
    found: str
    storages: list[Bytes]
    written: list[np.ndarray[Any, np.dtype[np.bool_]]]
    launches: list[tuple[str, Dim3, Dim3]]


_libraries: dict[str, ctypes.CDLL] = {}


def _allocate(simulator: Simulator, storage: Storage) -> int:
    """The address of a storage in simulated or host memory."""
    if storage.is_on_host:
        return storage.content.ctypes.data
    memory = simulator.memory
    address = memory.allocate(storage.content.nbytes, storage.label)
    if storage.holds_values:
        start = address - memory.base
        memory.bytes[start : start + storage.content.nbytes] = storage.content
        memory.mark_initialised(address, storage.content.nbytes)
    return address


def run_job(simulator: Simulator, job: Job) -> Outcome:
    """Runs in the worker."""
    if job.library not in _libraries:
        preload_runtime_libraries()  # behind the stand-in, whose symbols come first
        _libraries[job.library] = simulator.load(job.library)
    memory = simulator.memory
    addresses = [_allocate(simulator, storage) for storage in job.storages]
    records = (MojoTensor * len(job.views))()
    alive: list[Any] = []
    for record, view in zip(records, job.views, strict=True):
        record.flags, record.dtype, record.ndim = view.flags, view.dtype, len(view.sizes)
        sizes = (ctypes.c_int64 * max(1, len(view.sizes)))(*view.sizes)
        strides = (ctypes.c_int64 * max(1, len(view.sizes)))(*view.strides)
        alive += [sizes, strides]
        record.sizes, record.strides = ctypes.addressof(sizes), ctypes.addressof(strides)
        if view.storage is not None:
            record.numel = int(np.prod(view.sizes, dtype=np.int64))
            if record.numel:
                record.data = addresses[view.storage] + view.byte_offset
    words = (ctypes.c_int64 * max(1, len(job.scalars)))(*job.scalars)
    error = ctypes.create_string_buffer(_ERROR_CAPACITY)
    call = MojoKernelCall(
        ctypes.addressof(records),
        len(job.views),
        ctypes.addressof(words),
        len(job.scalars),
        simulator.context,
        None,
        1,
        ctypes.addressof(error),
        _ERROR_CAPACITY,
    )
    status = getattr(_libraries[job.library], job.symbol)(ctypes.byref(call))
    found = ""
    try:
        simulator.check()
    except Exception as problem:
        found = str(problem)
    storages, written = [], []
    for address, storage in zip(addresses, job.storages, strict=True):
        if storage.is_output:
            part = slice(address - memory.base, address - memory.base + storage.content.nbytes)
            storages.append(memory.bytes[part].copy())
            written.append(memory.shadow[part] == INITIALISED)
    launches = [(launch.kernel, launch.grid, launch.block) for launch in simulator.launches]
    return Outcome(status, error.value.decode(errors="replace"), found, storages, written, launches)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's whole storage as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _job(call: KernelCall, library: str, symbol: str) -> tuple[Job, list[torch.Tensor]]:
    """The worker's form of a call, and a tensor of each storage that is an output."""
    groups: dict[int, list[tuple[int, Operand]]] = {}
    for i, operand in enumerate(call.operands):
        if operand.tensor is not None:
            groups.setdefault(operand.tensor.untyped_storage()._cdata, []).append((i, operand))
    numbers = {i: number for number, group in enumerate(groups.values()) for i, _ in group}
    storages, outputs = [], []
    for group in groups.values():
        tensor = group[0][1].tensor
        assert tensor is not None
        is_output = any(operand.is_output for _, operand in group)
        label = "tensor " + " and ".join(str(i) for i, _ in group)
        holds_values = any(operand.holds_values for _, operand in group)
        on_host = any(operand.is_host_scalar for _, operand in group)
        storages.append(Storage(_raw(tensor).numpy().copy(), label, holds_values, is_output, on_host))
        if is_output:
            outputs.append(tensor)
    views = []
    for i, operand in enumerate(call.operands):
        tensor = operand.tensor
        if tensor is None:
            views.append(View(None, flags=ABSENT))
            continue
        offset = int(tensor.storage_offset()) * tensor.element_size()
        flags = HOST_SCALAR if operand.is_host_scalar else 0
        views.append(View(numbers[i], tuple(tensor.shape), tuple(tensor.stride()), offset, CODES[tensor.dtype], flags))
    return Job(library, symbol, tuple(storages), tuple(views), tuple(call.scalars)), outputs


class Finding(AssertionError):
    """Something is wrong with a kernel."""


class KernelRunner:
    """Runs kernel calls in a worker.

    Args:
        find: From a kernel's key to its library and symbol.
        options: How the simulator runs.
    """

    def __init__(self, find: Callable[[str], tuple[str, str]], options: Options | None = None) -> None:
        self._find = find
        self._worker = Worker("gpu_check.simulate:run_job", options=options)
        self.ran: set[str] = set()
        """Keys of the kernels that launched at least once."""

    def close(self) -> None:
        """Ends the worker."""
        self._worker.close()

    def run(self, call: KernelCall) -> None:
        """Runs a call and writes its results to the output tensors.

        Raises:
            Finding: The simulator reports a hazard, or an element of an output was not written, or one between was.
            NotImplementedError, RuntimeError, IndexError, ...: What the kernel raised.
        """
        job, outputs = _job(call, *self._find(call.key))
        outcome: Outcome = self._worker(job)
        if outcome.found:
            raise Finding(f"{call.key}: {outcome.found}")
        if outcome.status != 0:
            raise EXCEPTIONS[outcome.status](f"{call.key}: {outcome.message}")
        if outcome.launches:
            self.ran.add(call.key)
        elif any(tensor.numel() for tensor in outputs):
            raise Finding(f"{call.key}: launches nothing; has it no GPU body?")
        fresh = [storage for storage in job.storages if storage.is_output]
        for tensor, storage, content, written in zip(outputs, fresh, outcome.storages, outcome.written, strict=True):
            _raw(tensor).copy_(torch.from_numpy(content))
            if not storage.holds_values:
                _check_written(call.key, storage.label, tensor, written)


def _check_written(key: str, label: str, tensor: torch.Tensor, written: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    """All of a tensor's elements must be written, and nothing between them."""
    size = tensor.element_size()
    marks = torch.zeros(len(written) // size, dtype=torch.bool)
    marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
    elements = written[: len(marks) * size].reshape(-1, size)
    expected = marks.numpy()
    for wrong, what in ((expected & ~elements.all(1), "is not written"), (~expected & elements.any(1), "is written")):
        if wrong.any():
            place = "an element" if what == "is not written" else "memory between the elements"
            first = int(np.flatnonzero(wrong)[0])
            raise Finding(f"{key}: {place} of {label} {what}, at storage element {first} (x{int(wrong.sum())})")
