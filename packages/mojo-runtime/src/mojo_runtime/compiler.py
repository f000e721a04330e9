"""One run of `mojo build`: from KernelSpecs to a shared library that can lie anywhere."""

from __future__ import annotations

import bisect
import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from mojo_runtime.generate import Source, generate
from mojo_runtime.sources import include_roots, resolve
from mojo_runtime.spec import KernelSpec
from mojo_runtime.target import Target
from mojo_runtime.toolchain import Toolchain, ToolchainError, link_libraries

SOURCE_NAME = "kernels.mojo"
LIBRARY_SUFFIX = ".dylib" if sys.platform == "darwin" else ".so"


class CompileError(RuntimeError):
    """A kernel did not compile.

    Attributes:
        specs: The kernels of the build.
        target: What it was for.
        diagnostics: The compiler's own message.
        command: A shell command that runs the same build again.
        suspects: Those of the kernels that the diagnostics point at; empty where they point at none.
    """

    def __init__(
        self,
        specs: Sequence[KernelSpec],
        target: Target | str,
        diagnostics: str,
        command: str = "",
        suspects: Sequence[KernelSpec] = (),
    ) -> None:
        self.specs = tuple(specs)
        self.target = target
        self.diagnostics = diagnostics
        self.command = command
        self.suspects = tuple(suspects)
        names = ", ".join(spec.key for spec in specs[:3]) + (f" and {len(specs) - 3} more" if len(specs) > 3 else "")
        text = f"{names} does not compile for {target}:\n{diagnostics}"
        super().__init__(f"{text}\nTo reproduce: {command}" if command else text)

    def __reduce__(self) -> tuple[object, ...]:
        return (CompileError, (self.specs, self.target, self.diagnostics, self.command, self.suspects))


@dataclasses.dataclass(frozen=True)
class Build:
    """A finished build.

    Attributes:
        library: The shared library, still in the build's folder.
        symbols: The C symbol of each kernel in it.
    """

    library: Path
    symbols: dict[KernelSpec, str]


class CompilerProcesses:
    """The compiler processes that run now, so that all can be ended at once, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._closed = False

    def run(self, command: Sequence[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
        """Runs a command to its end in a session of its own, so that a Ctrl-C at the terminal leaves the build alone.

        Returns:
            The exit status, negative for a signal, and everything it wrote.

        Raises:
            OSError: It can't be started.
        """
        with self._lock:
            if self._closed:
                return -15, "the process is exiting"
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._running.add(process)
        try:
            output, _ = process.communicate()
            return process.returncode, output
        finally:
            with self._lock:
                self._running.discard(process)

    def close(self) -> None:
        """Kills what runs; later calls of `run` return at once with a failure."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed


def build(
    specs: Sequence[KernelSpec],
    target: Target,
    folder: Path,
    toolchain: Toolchain,
    processes: CompilerProcesses | None = None,
) -> Build:
    """Compiles kernels into one shared library, in a folder that is left as it is, for inspection where this fails.

    The compiler works on relative paths through links in the folder, and the linker is called without a search path:
    nothing in the library depends on where anything lies.

    Args:
        specs: The kernels; all of whose modules must be in one folder beside the common include folders.
        target: What to compile for.
        folder: An empty folder.
        toolchain: The compiler.
        processes: Where to enter the running compiler.

    Raises:
        CompileError: The kernels do not compile.
        OSError: The folder can't be written.
    """
    processes = processes or CompilerProcesses()
    try:
        modules = {spec.module: resolve(spec.module) for spec in specs}
    except FileNotFoundError as error:
        raise CompileError(specs, target, str(error)) from error
    source = generate(specs, {module: found.name for module, found in modules.items()})
    (folder / SOURCE_NAME).write_text(source.text)
    roots = list(dict.fromkeys([*include_roots(), *(module.root for module in modules.values())]))
    links = {f"include{i}": root for i, root in enumerate(roots)}
    for name, root in links.items():
        (folder / name).symlink_to(root)

    run = compile_library(SOURCE_NAME, folder, list(links), target, toolchain, processes)
    if run.status != 0:
        diagnostics = _diagnostics(run.output, folder, links) or f"the compiler ended with status {run.status}"
        if run.status == -9 and not processes.closed:
            diagnostics += "\nIt was killed, probably for lack of memory; TORCH_MOJO_BACKEND_COMPILE_JOBS=1 needs less."
        raise CompileError(specs, target, diagnostics, run.command, _suspects(run.output, source))
    return Build(run.library, source.symbols)


@dataclasses.dataclass(frozen=True)
class Run:
    """How a run of the compiler ended.

    Attributes:
        library: The shared library, where it succeeded.
        status: 0, or the exit status of what failed, negative for a signal.
        output: Everything that was written.
        command: A shell command that does the same again.
    """

    library: Path
    status: int
    output: str
    command: str


def compile_library(
    source: str,
    folder: Path,
    includes: Sequence[str],
    target: Target,
    toolchain: Toolchain,
    processes: CompilerProcesses | None = None,
) -> Run:
    """Compiles one Mojo file to a shared library beside it.

    Args:
        source: The file's name in the folder.
        folder: Where the compiler runs.
        includes: Include folders. What is given relative to `folder` leaves no absolute path in the library.
        target: What to compile for.
        toolchain: The compiler.
        processes: Where to enter the running compiler.

    Raises:
        ToolchainError: There is no linker.
        OSError: The folder can't be written.
    """
    processes = processes or CompilerProcesses()
    output = folder / Path(source).with_suffix(LIBRARY_SUFFIX).name
    object_file = Path(source).with_suffix(".o").name
    compile_command = [str(toolchain.mojo), "build", "--emit", "object", *target.arguments()]
    compile_command += [argument for include in includes for argument in ("-I", include)]
    compile_command += ["-o", object_file, source]
    link = _link_command(toolchain, object_file, output.name)
    # The compiler's cache is for this build alone: ours is keyed by content, nothing else may decide what is built.
    environment = {"MODULAR_CRASH_REPORTING_ENABLED": "0", **os.environ, "MODULAR_CACHE_DIR": str(folder / "compiler")}
    if toolchain.linker is not None and shutil.which("cc") is None:
        # It looks for a C compiler even to write an object, for which it runs none.
        (folder / "cc").symlink_to(toolchain.linker)
        environment["PATH"] = os.pathsep.join(filter(None, [environment.get("PATH"), str(folder)]))
    shell = f"cd {shlex.quote(str(folder))} && {shlex.join(compile_command)}"
    status, text = processes.run(compile_command, folder, environment)
    if status == 0:
        status, text = processes.run(link, folder, environment)
        shell += f" && {shlex.join(link)}"
        (folder / object_file).unlink()
    shutil.rmtree(folder / "compiler", ignore_errors=True)
    return Run(output, status, text, shell)


def _link_command(toolchain: Toolchain, source: str, output: str) -> list[str]:
    """Returns the command that links an object.

    The compiler's own link step would need a C compiler and write an absolute search path into the library.
    """
    libraries = [str(library) for library in link_libraries()]
    if sys.platform == "linux" and toolchain.linker is not None:
        options = ["-shared", "--eh-frame-hdr", "--gc-sections", "--as-needed", "-z", "defs", "--build-id=none"]
        return [str(toolchain.linker), "-flavor", "gnu", *options, "-o", output, source, *libraries]
    compiler = shutil.which("cc") or shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        raise ToolchainError("no linker: install the mojo package into this environment, or a C compiler")
    if sys.platform == "darwin":
        return [compiler, "-dynamiclib", "-Wl,-undefined,dynamic_lookup", "-o", output, source]
    return [compiler, "-shared", "-Wl,--as-needed", "-o", output, source, *libraries, "-lm"]


def _diagnostics(output: str, folder: Path, links: dict[str, Path]) -> str:
    """Returns the compiler's message with the files' own paths in place of the links."""
    text = output.replace(f"{folder}{os.sep}", "")
    for name, root in sorted(links.items(), reverse=True):
        text = re.sub(rf"(?<![\w/]){name}/", f"{root}/", text)
    return re.sub(rf"(?m)^{re.escape(SOURCE_NAME)}:", f"{folder / SOURCE_NAME}:", text).strip()


def _suspects(output: str, source: Source) -> list[KernelSpec]:
    """Returns the kernels whose lines of the generated file are named in an error or its notes. An import line concerns
    every kernel of that function."""
    specs, starts = list(source.lines), list(source.lines.values())
    text = source.text.splitlines()
    suspects: dict[KernelSpec, None] = {}
    # "Imported from" and "Included from" name a line of imports for every message inside the imported module.
    for match in re.finditer(rf"(?m)^(?!Imported from|Included from).*?{re.escape(SOURCE_NAME)}:(\d+):", output):
        line = int(match[1])
        position = bisect.bisect_right(starts, line)
        if position:
            suspects[specs[position - 1]] = None
        elif (alias := text[line - 1].rpartition(" as ")[2]) and alias != text[line - 1]:
            uses = (spec for spec, start in source.lines.items() if alias in re.split(r"\W", text[start + 3]))
            suspects.update(dict.fromkeys(uses))
    return list(suspects)
