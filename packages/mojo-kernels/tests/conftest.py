"""Builds kernels and calls them on CPU torch tensors, without a runtime or a frontend.

A test names its kernels by key, e.g. "pointwise.binary:binary[dtype=float32,op=add]", the module below `mojo_kernels`,
and asks the `kernels` fixture for a library of them; kernels of a list are compiled together, once per content of the
sources that they reach:

    @pytest.fixture(scope="module")
    def library(kernels):
        return kernels([ADD])

    def test_add(library):
        library(ADD, tensors=[out, a, b], scalars=[library.number(1)])
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import torch

INCLUDE = Path(__file__).resolve().parent.parent / "src"
THREADS = 2

DTYPE_CODES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}
DTYPE_NAMES = {str(dtype).removeprefix("torch.") for dtype in DTYPE_CODES}
HOST_SCALAR = 1
ABSENT = 2
EXCEPTIONS: dict[int, type[Exception]] = {
    1: NotImplementedError,
    2: RuntimeError,
    3: torch.OutOfMemoryError,
    4: IndexError,
    5: ValueError,
    6: TypeError,
}


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


TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
PARALLEL_FOR = ctypes.CFUNCTYPE(None, TASK, ctypes.c_void_p, ctypes.c_int64)
_pool = concurrent.futures.ThreadPoolExecutor(THREADS)


def _parallel_for(task: Callable[[int, int], None], context: int, count: int) -> None:
    """Runs the tasks on several threads at a time; the call into the library releases the interpreter's lock."""
    list(_pool.map(lambda i: task(context, i), range(count)))


parallel_for = PARALLEL_FOR(_parallel_for)


class MojoKernelCall(ctypes.Structure):
    """`MojoKernelCall` of kernel_abi.h."""

    _fields_ = (
        ("tensors", ctypes.c_void_p),
        ("n_tensors", ctypes.c_int64),
        ("scalars", ctypes.c_void_p),
        ("n_scalars", ctypes.c_int64),
        ("device_context", ctypes.c_void_p),
        ("parallel_for", PARALLEL_FOR),
        ("threads", ctypes.c_int64),
        ("error", ctypes.c_void_p),
        ("error_capacity", ctypes.c_int64),
    )


@dataclasses.dataclass(frozen=True)
class Words:
    """Encoded scalars."""

    values: tuple[int, ...]


Argument = int | float | torch.dtype | None | Sequence[int] | Words


def _float_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)


def _encode(value: Argument) -> tuple[int, ...]:
    if isinstance(value, Words):
        return value.values
    if value is None:
        return (0,)
    if isinstance(value, torch.dtype):
        return (DTYPE_CODES[value],)
    if isinstance(value, float):
        return (_float_bits(value),)
    if isinstance(value, int):
        return (int(value),)
    return (len(value), *value)


class Library:
    """Compiled kernels, called by key."""

    def __init__(self, path: Path, symbols: dict[str, str]) -> None:
        self._library = ctypes.CDLL(str(path))
        self._symbols = symbols

    @staticmethod
    def number(value: int | float | bool) -> Words:
        """A schema's Scalar: two words, the int64 value and the float64 bits."""
        try:
            integer = int(value)
        except (ValueError, OverflowError):
            integer = 0
        integer = (integer + 2**63) % 2**64 - 2**63
        return Words((integer, _float_bits(float(value))))

    @staticmethod
    def text(value: str) -> Words:
        """A str: one word, its first 8 bytes, the first the lowest."""
        return Words((int.from_bytes(value.encode()[:8], "little"),))

    @staticmethod
    def given(value: Argument) -> Words:
        """An optional scalar that is given: the word 1, then its words."""
        return Words((1, *_encode(value)))

    def __call__(
        self,
        key: str,
        tensors: Sequence[torch.Tensor | None],
        scalars: Sequence[Argument] = (),
        host_scalars: Sequence[int] = (),
    ) -> None:
        """Runs a kernel.

        Args:
            key: One of the keys that the library was built from.
            tensors: CPU tensors, outputs first; None for an optional tensor that is not given.
            scalars: int, bool and dtype are one word, float one, a sequence of ints its length and its values, None the
                word 0; `number` and `given` encode the other cases.
            host_scalars: Positions of tensors that get the flag HOST_SCALAR.

        Raises:
            RuntimeError, IndexError, ...: What the kernel raised.
        """
        records = (MojoTensor * len(tensors))()
        alive: list[object] = []
        for i, (record, tensor) in enumerate(zip(records, tensors, strict=True)):
            if tensor is None:
                record.flags = ABSENT
                continue
            assert tensor.device.type == "cpu"
            sizes = (ctypes.c_int64 * tensor.ndim)(*tensor.shape)
            strides = (ctypes.c_int64 * tensor.ndim)(*tensor.stride())
            alive += [sizes, strides]
            record.data = tensor.data_ptr() or None
            record.sizes = ctypes.addressof(sizes)
            record.strides = ctypes.addressof(strides)
            record.numel = tensor.numel()
            record.dtype = DTYPE_CODES[tensor.dtype]
            record.ndim = tensor.ndim
            record.flags = HOST_SCALAR if i in host_scalars else 0
        words = [word for scalar in scalars for word in _encode(scalar)]
        word_array = (ctypes.c_int64 * max(1, len(words)))(*words)
        error = ctypes.create_string_buffer(1024)
        call = MojoKernelCall(
            ctypes.addressof(records),
            len(tensors),
            ctypes.addressof(word_array),
            len(words),
            None,
            parallel_for,
            THREADS,
            ctypes.addressof(error),
            len(error),
        )
        status = getattr(self._library, self._symbols[key])(ctypes.byref(call))
        if status != 0:
            raise EXCEPTIONS[status](error.value.decode())

    def pointwise(
        self,
        key: str,
        output: torch.Tensor,
        inputs: Sequence[torch.Tensor],
        scalars: Sequence[Argument] = (),
    ) -> None:
        """Calls a pointwise kernel as a frontend does: broadcast, sorted by the output's strides and coalesced."""
        operands = [output, *(tensor.expand(output.shape) for tensor in inputs)]
        order = sorted(range(output.ndim), key=lambda d: -output.stride()[d])
        operands = [tensor.permute(order) for tensor in operands]
        sizes: list[int] = []
        strides: list[list[int]] = [[] for _ in operands]
        for d, size in enumerate(operands[0].shape):
            if size == 1:
                continue
            inner = [tensor.stride(d) for tensor in operands]
            if sizes and all(s[-1] == size * step for s, step in zip(strides, inner, strict=True)):
                sizes[-1] *= size
                for s, step in zip(strides, inner, strict=True):
                    s[-1] = step
            else:
                sizes.append(size)
                for s, step in zip(strides, inner, strict=True):
                    s.append(step)
        views = [t.as_strided(sizes, s, t.storage_offset()) for t, s in zip(operands, strides, strict=True)]
        self(key, views, scalars)


def _render(value: str) -> str:
    if value in DTYPE_NAMES:
        return f"DType.{value}"
    if value in ("true", "false"):
        return value.capitalize()
    if re.fullmatch(r"-?\d+", value):
        return value
    return f'"{value}"'


def _split(key: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"(?:mojo_kernels\.)?([\w.]+):(\w+)(?:\[(.*)\])?", key)
    assert match, f"not a kernel key: {key}"
    parameters = [pair.split("=", 1) for pair in (match[3] or "").split(",") if pair]
    return match[1], match[2], ", ".join(f"{name}={_render(value)}" for name, value in parameters)


def _reached_sources(modules: Iterable[str]) -> list[Path]:
    """The files of the kernels' modules and of the mojo_kernels modules that they import, directly or not."""
    pending = sorted(set(modules))
    found: dict[str, Path] = {}
    while pending:
        module = pending.pop()
        if module in found:
            continue
        found[module] = INCLUDE.joinpath("mojo_kernels", *module.split(".")).with_suffix(".mojo")
        pending += re.findall(r"from mojo_kernels\.([\w.]+) import", found[module].read_text())
    return [found[module] for module in sorted(found)]


def mojo_compiler() -> str:
    """The `mojo` program beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).parent / "mojo"
    found = str(beside) if beside.exists() else shutil.which("mojo")
    if found is None:
        raise RuntimeError("no mojo compiler: install the `mojo` package into this environment")
    return found


def build(keys: Sequence[str], folder: Path, options: Sequence[str] = ()) -> Library:
    """Compiles kernels into one shared library, or finds the library in `folder`.

    Args:
        keys: The kernels.
        folder: Where libraries are kept, named by the content that they are built from.
        options: Further options for `mojo build`.

    Raises:
        RuntimeError: The compiler's message.
    """
    keys = sorted(set(keys))
    modules = [_split(key)[0] for key in keys]
    digest = hashlib.sha256("\n".join((*keys, *options)).encode())
    for source in _reached_sources(modules):
        digest.update(source.read_bytes())
    symbols = {key: f"kernel_{i}" for i, key in enumerate(keys)}
    library = folder / f"{digest.hexdigest()[:32]}.so"
    if not library.exists():
        imports = sorted({f"from mojo_kernels.{_split(key)[0]} import {_split(key)[1]}" for key in keys})
        exports = [
            f'@export("{symbols[key]}")\ndef {symbols[key]}(call: Call) abi("C") -> Int32:\n    try:\n'
            f"        {_split(key)[1]}[{_split(key)[2]}](call[])\n        return 0\n    except e:\n"
            f"        return call[].fail(e)\n".replace("[](call[])", "(call[])")
            for key in keys
        ]
        source = library.with_suffix(f".{os.getpid()}.mojo")
        source.write_text("\n".join(("from mojo_kernels.abi import Call", *imports, "", *exports)))
        partial = library.with_suffix(f".{os.getpid()}.so")
        command = [mojo_compiler(), "build", "--emit", "shared-lib", *options, "-I", str(INCLUDE), str(source)]
        result = subprocess.run([*command, "-o", str(partial)], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
        source.unlink()
        partial.rename(library)
    return Library(library, symbols)


@pytest.fixture(scope="session")
def kernels(pytestconfig: pytest.Config) -> Callable[[Sequence[str]], Library]:
    """Builds a library of kernels from their keys; see the top of this file."""
    folder = pytestconfig.cache.mkdir("mojo-kernels")
    return lambda keys: build(keys, folder)


@pytest.fixture
def run_mojo(tmp_path: Path) -> Callable[[str], str]:
    """Compiles and runs a Mojo program that may import mojo_kernels; returns what it prints."""

    def run(program: str) -> str:
        source = tmp_path / "program.mojo"
        source.write_text(program)
        command = [mojo_compiler(), "build", "-I", str(INCLUDE), str(source), "-o", str(tmp_path / "program")]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr
        return subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True).stdout

    return run
