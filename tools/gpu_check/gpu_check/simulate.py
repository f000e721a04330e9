"""Runs kernel calls in the simulator: the worker's side and the caller's."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gpu_check.calls import ABSENT, CODES, HOST_SCALAR, KernelCall
from mojo_runtime.toolchain import preload_runtime_libraries
from ptxsim import Simulator
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


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor on its way to the worker: its storage's bytes and how it lies in them."""

    storage: np.ndarray[Any, np.dtype[np.uint8]] | None
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int
    dtype: int
    flags: int = 0
    is_output: bool = False


@dataclasses.dataclass(frozen=True)
class Job:
    """A kernel call for the worker."""

    library: str
    symbol: str
    views: tuple[View, ...]
    scalars: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        status: The kernel's return value.
        message: Its error message.
        found: What the simulator reports, or "".
        storages: The outputs' bytes, in order.
        written: Which of them the kernel wrote.
        launches: Names, grids and blocks.
    """

    status: int
    message: str
    found: str
    storages: list[np.ndarray[Any, np.dtype[np.uint8]]]
    written: list[np.ndarray[Any, np.dtype[np.bool_]]]
    launches: list[tuple[str, Dim3, Dim3]]


_libraries: dict[str, ctypes.CDLL] = {}


def run_job(simulator: Simulator, job: Job) -> Outcome:
    """Runs in the worker."""
    if job.library not in _libraries:
        preload_runtime_libraries()  # behind the stand-in, whose symbols come first
        _libraries[job.library] = simulator.load(job.library)
    records = (MojoTensor * len(job.views))()
    alive: list[Any] = []
    outputs: list[tuple[int, int]] = []
    memory = simulator.memory
    for i, (record, view) in enumerate(zip(records, job.views, strict=True)):
        record.flags, record.dtype, record.ndim = view.flags, view.dtype, len(view.sizes)
        record.numel = 0 if view.flags & ABSENT else int(np.prod(view.sizes, dtype=np.int64))
        sizes = (ctypes.c_int64 * max(1, len(view.sizes)))(*view.sizes)
        strides = (ctypes.c_int64 * max(1, len(view.sizes)))(*view.strides)
        alive += [sizes, strides]
        record.sizes, record.strides = ctypes.addressof(sizes), ctypes.addressof(strides)
        if view.storage is None:
            continue
        label = f"tensor {i}{' (output)' if view.is_output else ''}"
        if view.flags & HOST_SCALAR:
            alive.append(view.storage)
            address = view.storage.ctypes.data
        else:
            address = memory.allocate(view.storage.nbytes, label)
            if view.is_output:
                outputs.append((address, view.storage.nbytes))
            else:
                start = address - memory.base
                memory.bytes[start : start + view.storage.nbytes] = view.storage
                memory.mark_initialised(address, view.storage.nbytes)
        if record.numel:
            record.data = address + view.offset * view.itemsize
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
    for address, nbytes in outputs:
        start = address - memory.base
        storages.append(memory.bytes[start : start + nbytes].copy())
        written.append(memory.shadow[start : start + nbytes] == INITIALISED)
    launches = [(launch.kernel, launch.grid, launch.block) for launch in simulator.launches]
    return Outcome(status, error.value.decode(errors="replace"), found, storages, written, launches)


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    content: np.ndarray[Any, np.dtype[np.uint8]] = raw.numpy().copy()
    return content


def _view(operand: Any) -> View:
    tensor = operand.tensor
    if tensor is None:
        return View(None, (), (), 0, 0, 0, ABSENT)
    return View(
        _bytes(tensor),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.storage_offset(),
        tensor.element_size(),
        CODES[tensor.dtype],
        HOST_SCALAR if operand.is_host_scalar else 0,
        operand.is_output,
    )


class Finding(AssertionError):
    """Something is wrong with a kernel."""


class KernelRunner:
    """Runs kernel calls in a worker.

    Args:
        find: From a kernel's key to its library and symbol.
    """

    def __init__(self, find: Callable[[str], tuple[str, str]]) -> None:
        self._find = find
        self._worker = Worker("gpu_check.simulate:run_job")
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
        library, symbol = self._find(call.key)
        outcome = self._worker(Job(library, symbol, tuple(map(_view, call.operands)), tuple(call.scalars)))
        if outcome.found:
            raise Finding(f"{call.key}: {outcome.found}")
        if outcome.status != 0:
            raise EXCEPTIONS[outcome.status](f"{call.key}: {outcome.message}")
        outputs = [operand.tensor for operand in call.operands if operand.is_output and operand.tensor is not None]
        if outcome.launches:
            self.ran.add(call.key)
        elif any(tensor.numel() for tensor in outputs):
            raise Finding(f"{call.key}: launches nothing; has it no GPU body?")
        for i, (tensor, storage, written) in enumerate(zip(outputs, outcome.storages, outcome.written, strict=True)):
            raw = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            raw.copy_(torch.from_numpy(storage))
            expected = np.zeros(len(storage), bool)
            marks = torch.zeros(len(storage) // tensor.element_size(), dtype=torch.bool)
            marks.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
            expected[: marks.numel() * tensor.element_size()] = np.repeat(marks.numpy(), tensor.element_size())
            if (expected & ~written).any():
                first = int(np.flatnonzero(expected & ~written)[0]) // tensor.element_size()
                raise Finding(f"{call.key}: output {i} is not written at storage element {first}")
            if (written & ~expected).any():
                first = int(np.flatnonzero(written & ~expected)[0]) // tensor.element_size()
                raise Finding(f"{call.key}: output {i} is written between its elements, at storage element {first}")
