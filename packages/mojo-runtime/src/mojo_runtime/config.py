"""Every environment variable of the runtime, read in one place.

`config.cache_dir` and its like read the environment at each access; `config.scope(cache_dir=...)` overrides values for
the length of a `with` block, for all threads, which is what tests and embedding programs use.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


def _boolean(text: str) -> bool:
    return text.strip().lower() not in ("0", "false", "off", "no")


def positive(text: str) -> int:
    """Parses a number that is 1 or more."""
    value = int(text)
    if value < 1:
        raise ValueError("must be 1 or more")
    return value


def path(text: str) -> Path:
    """Parses the path of a file or folder."""
    return Path(text).expanduser().absolute()


def default_cache_dir() -> Path:
    """Returns `torch-mojo-backend` below the XDG cache home, which is `~/.cache` where the environment names none."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that relative paths are invalid and to be ignored.
    base = Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()
    return base / "torch-mojo-backend"


class Variable(Generic[T]):
    """A descriptor that reads one environment variable.

    Args:
        variable: The environment variable's name.
        parse: Makes the value from the variable's text; raises ValueError for what it does not understand.
        default: Makes the value where the variable is not set or empty.
        doc: What the variable does, for the command line and the README.
    """

    def __init__(self, variable: str, parse: Callable[[str], T], default: Callable[[], T], doc: str) -> None:
        self.variable = variable
        self.parse = parse
        self.default = default
        self.doc = doc
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Variable[T]: ...

    @overload
    def __get__(self, instance: Config, owner: type) -> T: ...

    def __get__(self, instance: Config | None, owner: type) -> Variable[T] | T:
        if instance is None:
            return self
        if self.name in instance._overrides:
            value: T = instance._overrides[self.name]
            return value
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as error:
            raise ValueError(f"{self.variable}={text!r}: {error}. {self.doc}") from None

    def __set__(self, instance: Config, value: T) -> None:
        raise AttributeError(f"set the environment variable {self.variable}, or use config.scope({self.name}=...)")


class Config:
    """The runtime's settings; `config` is the one instance."""

    devices = Variable(
        "MOJO_RUNTIME_DEVICES",
        lambda text: text.strip().lower(),
        lambda: "auto",
        "Which devices to use: auto (GPUs, else the CPU), gpu, cpu, or cpu:N for N virtual CPU devices.",
    )
    threads = Variable[int | None](
        "TORCH_MOJO_BACKEND_THREADS",
        positive,
        lambda: None,
        "Threads of a CPU kernel, the caller included. Default: the cores this process may use.",
    )
    cache_dir = Variable(
        "TORCH_MOJO_BACKEND_CACHE_DIR",
        path,
        default_cache_dir,
        "Folder of compiled kernels. Default: torch-mojo-backend in the user's cache folder.",
    )
    compile_jobs = Variable[int | None](
        "TORCH_MOJO_BACKEND_COMPILE_JOBS",
        positive,
        lambda: None,
        "How many compilers run at the same time. Default: by cores and free memory.",
    )
    compiler = Variable[Path | None](
        "TORCH_MOJO_BACKEND_MOJO",
        path,
        lambda: None,
        "The mojo executable. Default: the one installed beside this Python, then the one on PATH.",
    )
    include = Variable[tuple[Path, ...]](
        "TORCH_MOJO_BACKEND_INCLUDE",
        lambda text: tuple(path(part) for part in text.split(os.pathsep) if part),
        tuple,
        f"Further folders, separated by {os.pathsep!r}, where the modules of kernels are found.",
    )
    trace = Variable(
        "TORCH_MOJO_BACKEND_TRACE",
        _boolean,
        lambda: True,
        "0 silences the progress line and the line per build on stderr.",
    )
    trace_file = Variable[Path | None](
        "TORCH_MOJO_BACKEND_TRACE_FILE",
        path,
        lambda: None,
        "A file that receives every compile event as a line of JSON.",
    )

    def __init__(self) -> None:
        self._overrides: dict[str, Any] = {}

    @classmethod
    def variables(cls) -> list[Variable[Any]]:
        """Returns the descriptors of all settings, for listings."""
        return [value for value in vars(cls).values() if isinstance(value, Variable)]

    @contextlib.contextmanager
    def scope(self, **values: Any) -> Iterator[None]:
        """Overrides settings inside a `with` block, for every thread of the process.

        Args:
            values: Settings by attribute name, e.g. `cache_dir=Path(...)`, with values of the setting's type.

        Raises:
            TypeError: There is no such setting.
        """
        unknown = values.keys() - {variable.name for variable in self.variables()}
        if unknown:
            raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
        before = self._overrides
        self._overrides = {**before, **values}
        try:
            yield
        finally:
            self._overrides = before


config = Config()
