from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mojo_runtime import doctor, listing
from mojo_runtime.cli import main
from mojo_runtime.config import config


@dataclasses.dataclass
class Kernel:
    key: str


@dataclasses.dataclass
class Operation:
    name: str
    dtypes: tuple[str, ...]
    path: str
    doc: str


@pytest.fixture
def frontend(kernel_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only installed frontend, with three kernels and two ops."""

    def kernels(dtypes: Sequence[str] | None = None) -> list[Kernel]:
        names = [name for name in ("float32", "int8", "bool") if dtypes is None or name in dtypes]
        return [Kernel(f"{kernel_file}:saxpy[dtype={name}]") for name in names]

    operations = [
        Operation("add.out", ("float32", "int8"), "native", "Adds."),
        Operation("sort", (), "Python", "Sorts."),
    ]
    module: Any = types.ModuleType("a_frontend")
    module.kernels, module.listing = kernels, lambda: operations
    monkeypatch.setitem(sys.modules, "a_frontend", module)
    point = importlib.metadata.EntryPoint("test", "a_frontend", listing.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == listing.GROUP else [])


@pytest.mark.usefixtures("frontend")
def test_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "add.out  native  float32,int8  Adds.",
        "sort     Python  -  Sorts.",
    ]
    assert main(["ops", "so*"]) == 0
    assert capsys.readouterr().out.splitlines() == ["sort  Python  -  Sorts."]
    assert main(["ops", "nothing"]) == 1


@pytest.mark.usefixtures("frontend")
def test_prebuild_and_cache(
    capsys: pytest.CaptureFixture[str], cache_folder: Path, fake_compiler: Any, tmp_path: Path
) -> None:
    assert main(["cache", "dir"]) == 0
    assert capsys.readouterr().out == f"{cache_folder}\n"
    assert main(["cache", "stats"]) == 0
    assert "does not exist yet" in capsys.readouterr().out
    assert main(["prebuild", "--target", "cpu", "--dtypes", "float32,int8"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 were there, 2 compiled in 1 builds, 0 failed"
    assert main(["prebuild", "--target", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 were there, 1 compiled in 1 builds, 0 failed"
    assert main(["prebuild", "--target", "sm_80", "--match", "*int8*", "--output", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out" / "libs").glob("*.json"))) == 1
    capsys.readouterr()
    assert main(["cache", "stats"]) == 0
    assert "     3 kernels  " in capsys.readouterr().out
    assert main(["cache", "clean"]) == 0
    assert "removed 2 libraries" in capsys.readouterr().out
    assert not list(cache_folder.rglob("*.so"))


@pytest.mark.usefixtures("frontend")
def test_prebuild_reports_failures(capsys: pytest.CaptureFixture[str], cache_folder: Path, fake_compiler: Any) -> None:
    fake_compiler.configure(broken="int8")
    assert main(["prebuild", "--target", "cpu"]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].endswith("1 failed")
    assert "no such operation" in captured.err
    assert main(["prebuild", "--match", "nothing"]) == 1
    assert main(["prebuild", "--target", "h100"]) == 1
    assert "unknown target 'h100'" in capsys.readouterr().err


def test_a_cache_that_others_can_write_is_not_cleaned(capsys: pytest.CaptureFixture[str], cache_folder: Path) -> None:
    cache_folder.mkdir()
    cache_folder.chmod(0o777)
    assert main(["cache", "clean"]) == 1
    assert "can be written by others" in capsys.readouterr().err


def test_doctor_on_a_working_machine(fresh_environment: dict[str, str]) -> None:
    environment = {**fresh_environment, "MOJO_RUNTIME_DEVICES": "cpu:2"}
    result = subprocess.run(
        [sys.executable, "-m", "mojo_runtime.cli", "doctor"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result.stdout + result.stderr
    assert lines[-1] == "all is well"
    assert all(line.startswith("[ok]  ") for line in lines[:-1])
    assert sum("smoke kernel right after" in line for line in lines) == 2


def test_doctor_says_what_to_do(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache_folder.mkdir()
    cache_folder.chmod(0o770)
    monkeypatch.setattr(doctor, "find_compiler", lambda: None)
    monkeypatch.setattr(doctor, "_devices", lambda: iter([doctor._attempt("mojo:0", lambda: str(1 // 0))]))
    monkeypatch.setenv("TORCH_MOJO_BACKEND_THREADS", "many")
    with config.scope(compiler=tmp_path / "none"):
        assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    problems = [(line, lines[i + 1]) for i, line in enumerate(lines) if line.startswith("[fix]")]
    assert len(problems) == 5
    for problem, advice in problems:
        assert advice.startswith("      -> "), problem
    text = "\n".join(lines)
    for words in ("TORCH_MOJO_BACKEND_THREADS='many'", "no Mojo compiler", "g++", "chmod go-w", "ZeroDivisionError"):
        assert words in text
    assert lines[-1] == "5 to fix"
