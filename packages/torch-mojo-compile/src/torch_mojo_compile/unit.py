"""A unit of compilation: the graphs that are known together, forward and backward, as one module of MAX."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from max.graph import KernelLibrary, Module

from torch_mojo_compile import bridge, engine, fallback, report, store
from torch_mojo_compile.errors import LoweringError, UnsupportedOps
from torch_mojo_compile.executable import Executable
from torch_mojo_compile.graph import GraphBuilder


class _Library(KernelLibrary):  # type: ignore[misc]
    """The ops that call kernels, which a graph takes as they are: `bridge` writes ops and calls alike.

    A process's first check reads MAX's own library, which takes a second; MAX checks again when it compiles.
    """

    def verify_custom_op(self, custom_op: Any) -> None:
        """Accepts the op."""


class Unit:
    """Collects graphs, compiles them together and gives each its model.

    Args:
        name: For reports.
        options: See `mojo_backend`.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.options = options
        self.executables: list[Executable] = []
        engine.host()
        self._packages: list[Path] = [bridge.package()]
        self._library = _Library(self._packages)
        self._module = Module()
        self._compiled: Future[Any] | None = None
        self._lock = threading.Lock()
        self._submitted = False
        self._bound = False
        self._failed = False

    def add(self, graph: torch.fx.GraphModule, kind: str) -> Callable[[list[Any]], Any]:
        """Lowers a graph.

        Args:
            graph: Of aten ops.
            kind: "forward", "backward" or "inference", part of its name.

        Returns:
            The function that AOTAutograd calls; it waits for the model.
        """
        if self._submitted:
            # A backward graph that AOTAutograd made later than its forward one.
            late = Unit(self.name, self.options)
            executable = late.add(graph, kind)
            late.submit()
            return executable
        if self.options.get("fallback") == "eager" and self._refused(graph):
            return fallback.with_eager_parts(
                graph, f"{self.name} {kind}", self._refused, lambda part: self._lower(part, kind)
            )
        return self._lower(graph, kind)

    def _refused(self, graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
        """The nodes that can't be lowered."""
        try:
            GraphBuilder(graph, "trial", Module(), self._library).build()
        except (UnsupportedOps, LoweringError) as error:
            return error.nodes
        return []

    def _lower(self, graph: torch.fx.GraphModule, kind: str) -> Executable:
        begin = time.perf_counter()
        name = f"{kind}_{len(self.executables)}"
        lowered = GraphBuilder(graph, name, self._module, self._library).build()
        executable = Executable(lowered, self, graph)
        self.executables.append(executable)
        report.lowered(self.name, graph, lowered, time.perf_counter() - begin)
        return executable

    def submit(self) -> None:
        """Starts the compilation, or finds the model in the store."""
        self._submitted = True
        graphs = [executable.lowered for executable in self.executables if executable.lowered.has_results]
        if not graphs:
            return
        names = [graph.name for graph in graphs]
        key = store.model_key([graph.text for graph in graphs], self._packages)
        path = store.find(key)
        if path is not None:
            try:
                self._bind(engine.read(path))
                report.compiled(self.name, key, 0.0, from_store=True)
                return
            except Exception as error:
                report.warn(f"{path} can't be loaded and is compiled again: {error}")
                store.discard(path)
        begin = time.perf_counter()
        self._compiled = engine.compile_module(self._module, self._packages, key, names)
        self._compiled.add_done_callback(
            lambda _: report.compiled(self.name, key, time.perf_counter() - begin, from_store=False)
        )

    def is_ready(self) -> bool:
        """Whether the model can run: waits for it, unless the program is to go on meanwhile (`async`).

        Raises:
            CompileFailed: MAX could not compile it, and the program waits for it.
        """
        if not self.options.get("async"):
            self.wait()
        elif self._failed or self._compiled is None or not self._compiled.done():
            return self._bound
        else:
            try:
                self.wait()
            except Exception as error:
                self._failed = True
                report.warn(f"{self.name} keeps running eagerly: {error}")
        return self._bound

    def wait(self) -> None:
        """Waits for the model.

        Raises:
            CompileFailed: MAX could not compile it.
        """
        if not self._submitted:
            self.submit()
        with self._lock:
            if not self._bound:
                assert self._compiled is not None
                self._bind(self._compiled.result())

    def _bind(self, compiled: Any) -> None:
        models = engine.load(compiled)
        for executable in self.executables:
            lowered = executable.lowered
            if lowered.has_results:
                executable.bind(models[lowered.name])
        self._bound = True
