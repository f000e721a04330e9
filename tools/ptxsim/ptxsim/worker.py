"""A process of its own for a simulator, so that the stand-in never meets Mojo's own AsyncRT library.

with Worker("my_module:run") as worker:
    result = worker(argument)  # my_module.run(simulator, argument) there; exceptions come back
"""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from .asyncrt import Simulator
from .memory import DeviceMemory
from .state import Options


class WorkerError(RuntimeError):
    """What a job raised, with the worker's traceback; or the worker died."""


class Worker:
    """A process that holds a `Simulator` and runs jobs in it, one at a time; it is started again if a job kills it.

    Args:
        function: "module:name" of the function `name(simulator, argument)`, or the function itself; picklable.
        memory_bytes: The simulated device memory.
        options: How kernels run.
        keep_memory: Whether device memory outlives a job; an allocator of the worker's own needs it.
    """

    def __init__(
        self,
        function: str | Callable[[Simulator, Any], Any],
        memory_bytes: int = 64 << 20,
        options: Options | None = None,
        keep_memory: bool = False,
    ) -> None:
        self._arguments = (function, memory_bytes, options or Options(), keep_memory)
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None

    def __call__(self, argument: Any) -> Any:
        """Runs a job in the worker.

        Args:
            argument: For the function; picklable.

        Returns:
            What the function returned.

        Raises:
            WorkerError: The function raised, or the process died.
        """
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, there = context.Pipe()
            self._process = context.Process(target=_serve, args=(there, *self._arguments), daemon=True)
            self._process.start()
            there.close()
        assert self._process is not None
        try:
            self._connection.send(argument)
            failed, result = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            self.close()
            raise WorkerError(f"the simulator's process died with exit code {code} on {argument!r}") from None
        if failed:
            raise WorkerError(result)
        return result

    def close(self) -> None:
        """Ends the process."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join(10)
            self._process.kill()
        self._process = self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _serve(
    connection: Connection[Any, Any],
    function: str | Callable[[Simulator, Any], Any],
    memory_bytes: int,
    options: Options,
    keep_memory: bool,
) -> None:
    simulator = Simulator(DeviceMemory(memory_bytes), options)
    run: Callable[[Simulator, Any], Any]
    if isinstance(function, str):
        module, _, name = function.partition(":")
        run = getattr(importlib.import_module(module), name)
    else:
        run = function
    while True:
        try:
            argument = connection.recv()
        except EOFError:
            return
        simulator.clear(keep_memory)
        try:
            message = pickle.dumps((False, run(simulator, argument)))
        except Exception:
            message = pickle.dumps((True, traceback.format_exc()))
        connection.send_bytes(message)
