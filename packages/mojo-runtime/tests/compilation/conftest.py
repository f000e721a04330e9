"""Kernel files, caches and compilers for the tests of the compilation side, none of which need a device."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mojo_runtime._native import library_path
from mojo_runtime.config import config
from mojo_runtime.service import CompileService
from mojo_runtime.target import Target

SAXPY = """
from mojo_kernels.abi import KernelCall

def saxpy[dtype: DType](call: KernelCall) raises:
    var y = call.tensor(0).pointer[dtype]()
    var x = call.tensor(1).pointer[dtype]()
    var a = call.float_scalar(0).cast[dtype]()
    for i in range(Int(call.tensor(0).numel)):
        y.unsafe_store(i, y.unsafe_load(i) + a * x.unsafe_load(i))
"""

FAKE_COMPILER = """#!{python}
# Stands in for `mojo build`: exports what the generated source exports, without compiling it.
import json, os, re, subprocess, sys, time
from pathlib import Path

here = Path(__file__).parent
source = Path(sys.argv[-1]).read_text()
with open(here / "log", "a") as log:
    log.write(json.dumps(re.findall(r"^# (.*)$", source, re.MULTILINE)) + "\\n")
settings = json.loads((here / "settings.json").read_text())
time.sleep(settings["seconds"])
for number, line in enumerate(source.splitlines(), 1):
    if line.startswith("# ") and settings["broken"] and settings["broken"] in line:
        place = f"kernels.mojo:{{number + 4}}:9: " if settings["locate"] else ""
        print(f"{{place}}error: no such operation")
        sys.exit(1)
symbols = re.findall(r'@export\\("(\\w+)"\\)', source)
code = "".join(f"int {{symbol}}(void *call) {{{{ return 0; }}}}\\n" for symbol in symbols)
output = sys.argv[sys.argv.index("-o") + 1]
subprocess.run(["cc", "-xc", "-fPIC", "-c", "-o", output, "-"], input=code, text=True, check=True)
"""


class FakeCompiler:
    """A program that stands in for the Mojo compiler, where a test is about what surrounds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "mojo"
        self.path.write_text(FAKE_COMPILER.format(python=sys.executable))
        self.path.chmod(0o755)
        self.configure()

    def configure(self, seconds: float = 0.0, broken: str = "", locate: bool = True) -> None:
        """Says how long a build takes, which kernels do not compile, and whether the message names the line."""
        text = json.dumps({"seconds": seconds, "broken": broken, "locate": locate})
        (self.folder / "settings.json").write_text(text)

    def runs(self) -> list[list[str]]:
        """Returns the kernels of each run so far."""
        log = self.folder / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def kernel_file(tmp_path: Path) -> Path:
    """A user's own Mojo file with one kernel, saxpy[dtype]."""
    folder = tmp_path / "user"
    folder.mkdir()
    file = folder / "saxpy.mojo"
    file.write_text(SAXPY)
    return file


@pytest.fixture
def cache_folder(tmp_path: Path) -> Iterator[Path]:
    """An empty cache folder, which is the configured one."""
    folder = tmp_path / "cache"
    with config.scope(cache_dir=folder, trace=False):
        yield folder


@pytest.fixture
def fake_compiler(tmp_path: Path) -> Iterator[FakeCompiler]:
    """A stand-in for the Mojo compiler, which is the configured one."""
    folder = tmp_path / "compiler"
    folder.mkdir()
    compiler = FakeCompiler(folder)
    with config.scope(compiler=compiler.path):
        yield compiler


@pytest.fixture
def make_service(cache_folder: Path) -> Iterator[Callable[..., CompileService]]:
    """Makes compile services on the configured cache, which end with the test."""
    services = []

    def make(workers: int = 2, target: Target | None = None) -> CompileService:
        services.append(CompileService(target, workers=workers))
        return services[-1]

    yield make
    for service in services:
        service.close()


@pytest.fixture
def fake_environment(cache_folder: Path, fake_compiler: FakeCompiler) -> dict[str, str]:
    """The environment for child processes that share the test's cache and stand-in compiler."""
    return {
        **os.environ,
        "TORCH_MOJO_BACKEND_CACHE_DIR": str(cache_folder),
        "TORCH_MOJO_BACKEND_MOJO": str(fake_compiler.path),
    }


@pytest.fixture
def fresh_environment(tmp_path: Path) -> dict[str, str]:
    """The environment for child processes with a cache that holds no kernels, but the native core."""
    core = library_path()
    native = tmp_path / "cache" / "native"
    native.mkdir(parents=True)
    for folder in (native.parent, native):
        folder.chmod(0o700)
    shutil.copy2(core, native)
    return {**os.environ, "TORCH_MOJO_BACKEND_CACHE_DIR": str(native.parent)}


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Writes a Python program; returns the command that runs it."""

    def write(text: str) -> list[str]:
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(text))
        return [sys.executable, str(file)]

    return write
