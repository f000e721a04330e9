"""PTX modules and launches."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import PtxError
from .inlining import inline_calls
from .machine import Machine
from .memory import Array, DeviceArray, DeviceMemory
from .parser import parse_module
from .program import Program
from .races import RaceTracker
from .state import Dim3, LaunchReport, Options

MAX_THREADS_PER_BLOCK, MAX_BLOCK_Z, MAX_GRID_YZ = 1024, 64, 65535
MAX_SHARED_BYTES = 163 << 10
"""Of compute capability 8.0; above 48 KiB only as dynamic shared memory."""
MAX_STATIC_SHARED_BYTES = 48 << 10
Argument = int | float | bytes | np.generic | Array | DeviceArray


def dim3(value: int | Sequence[int]) -> Dim3:
    """Fills up to three dimensions with ones."""
    sizes = (value,) if isinstance(value, int) else tuple(int(size) for size in value)
    x, y, z = sizes + (1,) * (3 - len(sizes))
    return x, y, z


class Module:
    """PTX text, and the device memory that its kernels run on.

    Args:
        text: The PTX.
        memory: Where module-level variables go.
    """

    def __init__(self, text: str, memory: DeviceMemory) -> None:
        self.memory = memory
        parsed = parse_module(text)
        self.variables = parsed.variables
        self.kernels = {name: inline_calls(kernel, parsed.functions) for name, kernel in parsed.kernels.items()}
        self.addresses: dict[str, int] = {}
        self._programs: dict[str, Program] = {}
        variables = [v for v in self.variables if v.space in ("global", "const") and not v.external]
        for variable in variables:
            alignment = max(variable.alignment, 16)
            self.addresses[variable.name] = memory.allocate(variable.nbytes, variable.name, alignment, permanent=True)
        for variable in variables:
            content = bytearray(variable.initial or bytes(variable.nbytes))
            for offset, symbol in variable.initial_symbols:
                content[offset : offset + 8] = struct.pack("<Q", self.addresses[symbol])
            start = self.addresses[variable.name] - memory.base
            memory.bytes[start : start + variable.nbytes] = np.frombuffer(bytes(content), np.uint8)
            memory.mark_initialised(self.addresses[variable.name], variable.nbytes)

    def program(self, name: str) -> Program:
        """An entry's translation, made once."""
        if name not in self._programs:
            self._programs[name] = Program(self.kernels[name], self)
        return self._programs[name]

    def parameter_block(self, name: str, arguments: Sequence[Argument]) -> Array:
        """Lays arguments out as the entry declares its parameters.

        Raises:
            PtxError: Their number or size differs from the declaration.
        """
        kernel = self.kernels[name]
        if len(arguments) != len(kernel.parameters):
            raise PtxError(f"{name}: {len(kernel.parameters)} parameters, {len(arguments)} arguments")
        block = np.zeros(-(-max(kernel.parameter_bytes, 1) // 16) * 16, np.uint8)
        for i, (parameter, argument) in enumerate(zip(kernel.parameters, arguments, strict=True)):
            content = _argument_bytes(argument, parameter.nbytes)
            if len(content) != parameter.nbytes:
                raise PtxError(f"{name}: argument {i} has {len(content)} bytes, the parameter {parameter.nbytes}")
            block[parameter.offset : parameter.offset + parameter.nbytes] = np.frombuffer(content, np.uint8)
        return block

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        arguments: Sequence[Argument],
        name: str | None = None,
        shared: int = 0,
        options: Options | None = None,
    ) -> LaunchReport:
        """Runs a kernel to its end.

        Args:
            grid: Blocks.
            block: Threads of a block.
            arguments: One per parameter; `bytes` for structs.
            name: The entry; the first by default.
            shared: Bytes of dynamic shared memory.
            options: How to run.

        Returns:
            What was found.

        Raises:
            PtxError: The launch is invalid, or a thread did what a GPU would crash or hang on.
            Unsupported: The simulator has no translation for an instruction.
        """
        name = name or next(iter(self.kernels))
        options = options or Options()
        program = self.program(name)
        grid, block = dim3(grid), dim3(block)
        threads = block[0] * block[1] * block[2]
        self._check_launch(program, grid, block, shared)
        parameters = self.parameter_block(name, arguments)
        report = LaunchReport(name)
        total = grid[0] * grid[1] * grid[2]
        batch = max(1, options.max_threads // threads)
        races = None
        if options.races:
            races = RaceTracker(self.memory.top, program.granule["global"], -(-threads // 32) * 32)
        started = time.perf_counter()
        with np.errstate(all="ignore"):
            for first in range(0, total, batch):
                blocks = np.arange(first, min(total, first + batch))
                Machine(program, self.memory, blocks, grid, block, parameters, shared, options, report, races).run()
        report.seconds = time.perf_counter() - started
        return report

    def _check_launch(self, program: Program, grid: Dim3, block: Dim3, shared: int) -> None:
        threads = block[0] * block[1] * block[2]
        name = program.kernel.name
        if (
            min(grid) < 1
            or min(block) < 1
            or threads > MAX_THREADS_PER_BLOCK
            or block[2] > MAX_BLOCK_Z
            or max(grid[1:]) > MAX_GRID_YZ
        ):
            raise PtxError(f"{name}: invalid launch, grid {grid}, block {block}")
        if program.shared_size(0) > MAX_STATIC_SHARED_BYTES or program.shared_size(shared) > MAX_SHARED_BYTES:
            raise PtxError(
                f"{name}: {program.shared_size(0)} bytes of static and {shared} of dynamic shared memory are too many"
            )
        for directive in ("reqntid", "maxntid"):
            if directive in program.kernel.directives:
                limits = [int(x) for x in program.kernel.directives[directive].split(",")]
                limit = int(np.prod(limits))
                if threads > limit or (directive == "reqntid" and threads != limit):
                    raise PtxError(f"{name}: block {block} violates .{directive} {limits}")


def _argument_bytes(argument: Argument, nbytes: int) -> bytes:
    if isinstance(argument, DeviceArray):
        argument = argument.address
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, (np.generic, np.ndarray)):
        return argument.tobytes()
    if isinstance(argument, float):
        return struct.pack("<f" if nbytes == 4 else "<d", argument)
    value: Any = int(argument) & ((1 << 8 * nbytes) - 1)
    return int(value).to_bytes(nbytes, "little")
