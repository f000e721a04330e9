"""Runs libraries that Mojo built for an NVIDIA GPU: their host code natively, their kernels interpreted.

    memory = DeviceMemory()
    simulator = Simulator(memory)  # one per process, before any library is loaded
    library = simulator.load("libkernels.so")
    library.my_kernel(...)  # pointers into `memory`, a DeviceContext from simulator.context
    simulator.check()

The library's own host code picks kernel, grid, block and arguments, so that it is tested too.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from .errors import PtxError
from .memory import DeviceMemory
from .module import Module
from .state import Dim3, LaunchReport, Options

_SOURCE = Path(__file__).with_name("asyncrt.c")
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
)
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_size_t)
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_uint64)
_COPY = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FILL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_size_t)
_MEMORY = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))


class _Callbacks(ctypes.Structure):
    _fields_ = (
        ("load", _LOAD),
        ("launch", _LAUNCH),
        ("allocate", _ALLOCATE),
        ("release", _RELEASE),
        ("copy", _COPY),
        ("fill", _FILL),
        ("memory", _MEMORY),
    )


def build_stand_in(folder: Path) -> Path:
    """Compiles asyncrt.c with the system's C compiler.

    Returns:
        The shared library.
    """
    library = folder / "libptxsim_asyncrt.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _SOURCE], check=True)
    return library


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch that host code made."""

    kernel: str
    grid: Dim3
    block: Dim3
    shared: int
    report: LaunchReport


class Simulator:
    """A GPU for this process: Mojo libraries that are loaded through it run on it.

    A process that has loaded Mojo's own AsyncRT library for a real device cannot hold one, nor can it hold two.

    Args:
        memory: The device memory.
        options: How kernels run.
    """

    def __init__(self, memory: DeviceMemory, options: Options | None = None) -> None:
        self.memory, self.options = memory, options or Options()
        self.launches: list[Launch] = []
        """Since the last `clear`."""
        self.error: Exception | None = None
        """The first failure since the last `clear`; host code saw its message."""
        self._modules: dict[str, Module] = {}
        self._functions: list[tuple[Module, str]] = []
        self._message = ctypes.create_string_buffer(1)
        with tempfile.TemporaryDirectory() as folder:
            self._stand_in = ctypes.CDLL(str(build_stand_in(Path(folder))), mode=ctypes.RTLD_GLOBAL)
        self._callbacks = _Callbacks(
            _LOAD(self._load),
            _LAUNCH(self._launch),
            _ALLOCATE(self._allocate),
            _RELEASE(self._release),
            _COPY(self._copy),
            _FILL(self._fill),
            _MEMORY(self._memory_info),
        )
        self._stand_in.ptxsim_set_callbacks(ctypes.byref(self._callbacks))
        self._stand_in.ptxsim_context.restype = ctypes.c_void_p
        self.context: int = self._stand_in.ptxsim_context()
        """The handle of the device's AsyncRT context."""

    def load(self, path: str | Path) -> ctypes.CDLL:
        """Loads a library.

        Raises:
            PtxError: It calls a device function of AsyncRT that the stand-in lacks, which would reach the real library
                with a context that is none.
        """
        called = set(re.findall(rb"\0(AsyncRT_Device\w+)(?=\0)", Path(path).read_bytes()))
        missing = sorted(name.decode() for name in called if not hasattr(self._stand_in, name.decode()))
        if missing:
            raise PtxError(f"{path} calls {', '.join(missing)}, which asyncrt.c does not stand in for")
        return ctypes.CDLL(str(path))

    def clear(self, keep_memory: bool = False) -> None:
        """Forgets launches and errors.

        Args:
            keep_memory: Do not forget all device memory too.
        """
        self.launches.clear()
        self.error = None
        if not keep_memory:
            self.memory.reset()

    def check(self, ignore: tuple[str, ...] = ()) -> None:
        """Raises the first error or hazard since the last `clear`.

        Args:
            ignore: Kinds of hazards that may occur.

        Raises:
            PtxError: What a launch did.
        """
        if self.error is not None:
            raise self.error
        for launch in self.launches:
            launch.report.check(ignore)

    # ---- callbacks: nothing may propagate through C ----

    def _fail(self, error: Exception) -> int:
        self.error = self.error or error
        self._message = ctypes.create_string_buffer(str(error).encode())
        return ctypes.addressof(self._message)

    def _load(self, name: bytes, ptx: int, length: int) -> int:
        try:
            text = ctypes.string_at(ptx, length).decode().rstrip("\0")
            if text not in self._modules:
                self._modules[text] = Module(text, self.memory)
            self._functions.append((self._modules[text], name.decode()))
            return len(self._functions) - 1
        except Exception as error:
            self._fail(error)
            return -1

    def _launch(self, function: int, dimensions, shared: int, arguments, count: int) -> int | None:  # type: ignore[no-untyped-def]
        try:
            module, name = self._functions[function]
            parameters = module.kernels[name].parameters
            if count != len(parameters):
                raise PtxError(f"{name}: {count} arguments for {len(parameters)} parameters")
            contents = [ctypes.string_at(arguments[i], p.nbytes) for i, p in enumerate(parameters)]
            sizes = [int(dimensions[i]) for i in range(6)]
            grid, block = (sizes[0], sizes[1], sizes[2]), (sizes[3], sizes[4], sizes[5])
            report = module.launch(grid, block, contents, name, shared, self.options)
            self.launches.append(Launch(name, grid, block, shared, report))
            return None
        except Exception as error:
            return self._fail(error)

    def _allocate(self, nbytes: int) -> int:
        try:
            return self.memory.allocate(nbytes, f"a buffer of {nbytes} bytes")
        except MemoryError:  # host code reports it
            return 0

    def _release(self, address: int) -> None:
        try:
            self.memory.free(address)
        except KeyError:
            self._fail(PtxError(f"released {address:#x}, which is not allocated"))

    def _copy(self, destination: int, source: int, nbytes: int, kind: int) -> int | None:
        if nbytes == 0:
            return None
        try:
            if kind != 0:
                self.memory.check_range(source, nbytes, "copies from")
            if kind != 1:
                self.memory.check_range(destination, nbytes, "copies to")
            ctypes.memmove(destination, source, nbytes)
            if kind == 0:
                self.memory.mark_initialised(destination, nbytes)
            elif kind == 2:
                self.memory.copy_shadow(destination, source, nbytes)
            return None
        except Exception as error:
            return self._fail(error)

    def _fill(self, destination: int, value: int, value_nbytes: int, nbytes: int) -> int | None:
        if nbytes == 0:
            return None
        try:
            self.memory.check_range(destination, nbytes, "fills")
            pattern = np.frombuffer(value.to_bytes(8, "little")[:value_nbytes], np.uint8)
            start = destination - self.memory.base
            self.memory.bytes[start : start + nbytes] = np.resize(pattern, nbytes)
            self.memory.mark_initialised(destination, nbytes)
            return None
        except Exception as error:
            return self._fail(error)

    def _memory_info(self, free, total) -> None:  # type: ignore[no-untyped-def]
        total[0] = self.memory.nbytes
        free[0] = self.memory.bottom_of_permanent - self.memory.top
