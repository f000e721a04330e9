from __future__ import annotations

import ctypes
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mojo_runtime.compiler import CompileError, CompilerProcesses, build
from mojo_runtime.config import config
from mojo_runtime.spec import KernelSpec
from mojo_runtime.target import Target
from mojo_runtime.toolchain import ToolchainError, find_toolchain, package_root

# Mojo keeps the place of a GPU launch in the library, and in that the file's path.
LAUNCHER = """
from mojo_kernels.abi import KernelCall
from max.gpu import global_idx
from max.gpu.host import DeviceContext
from std.sys.info import has_accelerator

def double[dtype: DType](y: Pointer[Scalar[dtype], MutUntrackedOrigin], n: Int64):
    var i = Int(global_idx.x)
    if i < Int(n):
        y.unsafe_store(i, y.unsafe_load(i) * 2)

def launcher[dtype: DType](call: KernelCall) raises:
    var y = call.tensor(0)
    comptime if has_accelerator():
        var context = DeviceContext(
            Pointer[NoneType, MutUntrackedOrigin](unsafe_from_address=Int(call.device_context))
        )
        context.enqueue_function[double[dtype]](y.pointer[dtype](), y.numel, grid_dim=1, block_dim=256)
    else:
        raise Error("IndexError: this is the body for CPUs, of ", y.numel, " elements")
"""
ABSOLUTE_PATH = re.compile(rb"(?<![\w.:/-])/(?:[\w.+-]{2,}/)+[\w.+-]{2,}")


def folder(tmp_path: Path) -> Path:
    path = tmp_path / "build"
    path.mkdir()
    return path


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
def test_libraries_are_relocatable_and_need_no_c_compiler(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "launcher.mojo").write_text(LAUNCHER)
    specs = [KernelSpec(tmp_path / "launcher.mojo", "launcher", dtype=dtype) for dtype in ("float32", "int64")]
    toolchain = find_toolchain()
    monkeypatch.setenv("PATH", str(tmp_path))
    built = build(specs, Target.parse(target), folder(tmp_path), toolchain)
    content = built.library.read_bytes()
    assert ABSOLUTE_PATH.findall(content) == []
    assert str(tmp_path).encode() not in content
    assert b"modular/lib" not in content
    assert (b"launcher.mojo" in content) == (target != "cpu")  # the reason for this test
    moved = built.library.rename(tmp_path / "moved.so")
    library = ctypes.CDLL(str(moved))
    assert [hasattr(library, built.symbols[spec]) for spec in specs] == [True, True]


def test_a_failure_has_the_message_the_spec_and_a_command_that_reproduces_it(tmp_path: Path, kernel_file: Path) -> None:
    good, bad = (KernelSpec(kernel_file, "saxpy", dtype=dtype) for dtype in ("float32", "no_such_type"))
    with pytest.raises(CompileError) as caught:
        build([good, bad], Target.host(), folder(tmp_path), find_toolchain())
    error = caught.value
    assert error.specs == (good, bad)
    assert error.suspects == (bad,)
    assert bad.key in str(error)
    assert "error: " in error.diagnostics
    again = subprocess.run(error.command, shell=True, capture_output=True, text=True, check=False)
    assert again.returncode != 0
    first = next(line for line in error.diagnostics.splitlines() if ": error: " in line).partition(": error: ")[2]
    assert first in again.stderr


def test_a_missing_function_concerns_its_kernels_only(tmp_path: Path, kernel_file: Path) -> None:
    good, bad = (KernelSpec(kernel_file, name, dtype="float32") for name in ("saxpy", "daxpy"))
    with pytest.raises(CompileError, match="does not contain 'daxpy'") as caught:
        build([good, bad], Target.host(), folder(tmp_path), find_toolchain())
    assert caught.value.suspects == (bad,)


def test_a_missing_file_or_module_is_a_compile_error(tmp_path: Path) -> None:
    for spec in (KernelSpec(tmp_path / "none.mojo", "f"), KernelSpec("mojo_kernels.no_such_module", "f")):
        path = tmp_path / spec.module.replace("/", "_")
        path.mkdir()
        with pytest.raises(CompileError, match=re.escape(spec.key)):
            build([spec], Target.host(), path, find_toolchain())


def test_closing_kills_the_compilers(tmp_path: Path, kernel_file: Path, fake_compiler: Any) -> None:
    fake_compiler.configure(seconds=60)
    processes = CompilerProcesses()
    begin = time.monotonic()
    threading.Timer(0.5, processes.close).start()
    with pytest.raises(CompileError):
        build([KernelSpec(kernel_file, "saxpy")], Target.host(), folder(tmp_path), find_toolchain(), processes)
    assert time.monotonic() - begin < 20


def test_the_compiler_is_the_one_of_this_environment_unless_configured(tmp_path: Path) -> None:
    installed = find_toolchain()
    assert installed.version.startswith("mojo ")
    root = package_root()
    assert root is not None
    assert installed.linker == root / "bin" / "lld"
    with config.scope(compiler=tmp_path / "mojo"), pytest.raises(ToolchainError, match="TORCH_MOJO_BACKEND_MOJO"):
        find_toolchain()
    (tmp_path / "mojo").touch()
    with config.scope(compiler=tmp_path / "mojo"):
        assert find_toolchain().mojo == tmp_path / "mojo"
        assert find_toolchain().version != installed.version
