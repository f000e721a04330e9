"""What the compile service tells: events for listeners, a JSON line per event, and progress for people on stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Literal

from mojo_runtime.config import config
from mojo_runtime.spec import KernelSpec

EventKind = Literal["requested", "loaded", "started", "finished", "split", "failed", "warning"]


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happened to kernels.

    Attributes:
        kind: "requested": wanted and not compiled in this process's view. "loaded": found in the cache. "started" and
            "finished": one run of the compiler. "split": a run failed and its kernels are built again in parts.
            "failed": the kernel does not compile. "warning": `message` says what is wrong with the cache.
        specs: The kernels it is about.
        target: What they are compiled for.
        seconds: How long the compiler ran.
        message: The compiler's message, or the warning.
        left: How many kernels are wanted and not ready, after this event.
    """

    kind: EventKind
    specs: tuple[KernelSpec, ...] = ()
    target: str = ""
    seconds: float = 0.0
    message: str = ""
    left: int = 0


Listener = Callable[[Event], None]


class Trace:
    """Distributes events to listeners, the trace file and the terminal. Any thread may emit."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._progress = Progress()
        self._file_lock = threading.Lock()

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Calls a function with every event, on the thread where it happens.

        Returns:
            A function that removes the listener again.
        """
        self._listeners = [*self._listeners, listener]

        def remove() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return remove

    def emit(self, event: Event) -> None:
        """Hands an event to everybody; a listener that raises is reported and does not stop the others."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _write(traceback.format_exc())
        if config.trace_file is not None:
            self._append(event)
        if config.trace:
            self._progress.show(event)

    def _append(self, event: Event) -> None:
        record: dict[str, object] = {"time": time.time(), "process": os.getpid(), "event": event.kind}
        record["kernels"] = [spec.key for spec in event.specs]
        record |= {"target": event.target, "seconds": round(event.seconds, 3), "message": event.message}
        record["left"] = event.left
        with self._file_lock, contextlib.suppress(OSError), open(config.trace_file or os.devnull, "a") as file:
            file.write(json.dumps(record) + "\n")


class Progress:
    """Shows builds on stderr: one line that is updated in place on a terminal, a line per build otherwise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[KernelSpec, ...], float] = {}
        self._left = 0
        self._done = 0
        self._begin = 0.0
        self._ticking = False

    def show(self, event: Event) -> None:
        """Updates what is shown."""
        with self._lock:
            self._left = event.left
            if event.kind == "started":
                if not self._running and not self._done:
                    self._begin = time.monotonic()
                self._running[event.specs] = time.monotonic()
            elif event.kind in ("finished", "split", "failed"):
                self._running.pop(event.specs, None)
                self._done += len(event.specs) if event.kind == "finished" else 0
            if not _is_terminal():
                self._line(event)
                return
            if event.kind in ("failed", "warning"):
                _write(f"\r\x1b[2K{_describe(event)}\n")
            self._update()
            if self._running and not self._ticking:
                self._ticking = True
                threading.Thread(target=self._tick, name="mojo-progress", daemon=True).start()

    def _line(self, event: Event) -> None:
        if event.kind in ("finished", "failed", "warning"):
            _write(_describe(event) + "\n")
        if not event.left:
            self._done = 0

    def _update(self) -> None:
        elapsed = time.monotonic() - self._begin
        if self._running:
            first = next(iter(self._running))
            wanted = self._left - sum(len(specs) for specs in self._running)
            text = f"mojo: compiling {_names(first)}"
            text += f" (1 of {len(self._running)} compilers)" if len(self._running) > 1 else ""
            text += f", {wanted} waiting" if wanted > 0 else ""
            text += f", {self._done} done, {elapsed:.0f} s"
            _write(f"\r\x1b[2K{text[: shutil.get_terminal_size().columns - 1]}")
        elif self._done and not self._left:
            kernels = "kernel" if self._done == 1 else "kernels"
            _write(f"\r\x1b[2Kmojo: compiled {self._done} {kernels} in {elapsed:.1f} s\n")
            self._done = 0

    def _tick(self) -> None:
        while True:
            time.sleep(0.5)
            with self._lock:
                if not self._running or not config.trace:
                    self._ticking = False
                    return
                self._update()


def _describe(event: Event) -> str:
    if event.kind == "warning":
        return f"mojo: {event.message}"
    if event.kind == "failed":
        lines = event.message.splitlines()
        lines = [line for word in ("constraint failed", ": error: ", "") for line in lines if word in line]
        return f"mojo: {_names(event.specs)} does not compile: {lines[0] if lines else ''}"
    left = f", {event.left} waiting" if event.left else ""
    return f"mojo: compiled {_names(event.specs)} in {event.seconds:.1f} s{left}"


def _names(specs: tuple[KernelSpec, ...]) -> str:
    return specs[0].label + (f" and {len(specs) - 1} more" if len(specs) > 1 else "") if specs else ""


def _is_terminal() -> bool:
    with contextlib.suppress(AttributeError, ValueError):
        return sys.stderr.isatty()
    return False


def _write(text: str) -> None:
    with contextlib.suppress(AttributeError, ValueError, OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
