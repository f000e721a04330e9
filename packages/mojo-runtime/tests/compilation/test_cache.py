from __future__ import annotations

import dataclasses
import errno
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mojo_runtime.cache import KernelCache
from mojo_runtime.compiler import CompileError, CompilerProcesses
from mojo_runtime.config import config
from mojo_runtime.service import CompileService
from mojo_runtime.spec import KernelSpec
from mojo_runtime.store import Store, Versions
from mojo_runtime.target import Target, compatible_targets

DTYPES = ["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"]


def specs(file: Path, count: int = 8) -> list[KernelSpec]:
    return [KernelSpec(file, "saxpy", dtype=dtype) for dtype in DTYPES[:count]]


def open_cache(warnings: list[str]) -> KernelCache:
    return KernelCache(Target.host(), warnings.append)


def build_and_find_again(cache: KernelCache, spec: KernelSpec) -> None:
    entry = cache.build([spec], CompilerProcesses())[spec]
    assert entry.library.is_file()
    assert cache.find(spec) == entry


def test_entries_are_found_by_the_next_process(kernel_file: Path, cache_folder: Path, fake_compiler: Any) -> None:
    warnings: list[str] = []
    (spec,) = specs(kernel_file, 1)
    build_and_find_again(open_cache(warnings), spec)
    later = open_cache(warnings)
    assert later.find(spec) is None
    assert list(later.refresh()) == [spec.key]
    assert later.find(spec) is not None
    assert warnings == []
    kernel_file.write_text(kernel_file.read_text() + "# changed\n")
    later.forget(spec)
    assert later.find(spec) is None


def test_sources_that_change_meanwhile_are_built_again(
    kernel_file: Path, cache_folder: Path, fake_compiler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec,) = specs(kernel_file, 1)
    cache, run, edits = open_cache([]), CompilerProcesses.run, ["# edited\n"]

    def edit_and_run(self: CompilerProcesses, *arguments: Any) -> tuple[int, str]:
        if edits:
            kernel_file.write_text(kernel_file.read_text() + edits.pop())
        return run(self, *arguments)

    monkeypatch.setattr(CompilerProcesses, "run", edit_and_run)
    build_and_find_again(cache, spec)
    assert len(fake_compiler.runs()) == 2
    assert list(open_cache([]).refresh()) == [spec.key]


def test_a_refused_folder_is_replaced_by_a_private_one(
    kernel_file: Path, cache_folder: Path, fake_compiler: Any
) -> None:
    cache_folder.mkdir(mode=0o777)
    cache_folder.chmod(0o777)
    warnings: list[str] = []
    cache = open_cache(warnings)
    build_and_find_again(cache, specs(kernel_file, 1)[0])
    assert len(warnings) == 1
    assert "can be written by others" in warnings[0]
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert list(cache_folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_replaced(kernel_file: Path, tmp_path: Path, fake_compiler: Any) -> None:
    (tmp_path / "file").touch()
    warnings: list[str] = []
    with config.scope(cache_dir=tmp_path / "file" / "cache"):
        build_and_find_again(open_cache(warnings), specs(kernel_file, 1)[0])
    assert len(warnings) == 1
    assert f"{tmp_path}/file" in warnings[0]


@pytest.mark.parametrize("moment", ["install", "compile"])
def test_a_full_disk_loses_nothing(
    kernel_file: Path, cache_folder: Path, fake_compiler: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    warnings: list[str] = []
    cache = open_cache(warnings)
    full = cache.folder
    if moment == "install":
        write = Store._write

        def fails(self: Store, path: Path, content: bytes, mode: int) -> None:
            if self.folder == full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            write(self, path, content, mode)

        monkeypatch.setattr(Store, "_write", fails)
    else:
        run = CompilerProcesses.run

        def fails_in_full(self: CompilerProcesses, command: Any, folder: Path, environment: Any) -> tuple[int, str]:
            if folder.is_relative_to(full):
                return 1, "error: kernels.o: No space left on device"
            return run(self, command, folder, environment)

        monkeypatch.setattr(CompilerProcesses, "run", fails_in_full)
    for spec in specs(kernel_file, 2):
        build_and_find_again(cache, spec)
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    assert not list((full / "libs").iterdir())


def test_a_failure_is_kept_for_inspection(kernel_file: Path, cache_folder: Path, fake_compiler: Any) -> None:
    fake_compiler.configure(broken="saxpy")
    cache = open_cache([])
    with pytest.raises(CompileError) as caught:
        cache.build(specs(kernel_file, 1), CompilerProcesses())
    (folder,) = (cache_folder / "builds").iterdir()
    assert str(folder) in caught.value.command
    assert (folder / "kernels.mojo").is_file()


def test_prebuilt_folders_are_searched_and_not_written(
    kernel_file: Path, tmp_path: Path, cache_folder: Path, fake_compiler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec, other) = specs(kernel_file, 2)
    with config.scope(cache_dir=tmp_path / "prebuilt"):
        open_cache([]).build([spec], CompilerProcesses())
    monkeypatch.setattr("mojo_runtime.cache.prebuilt_folders", lambda: [tmp_path / "prebuilt"])
    before = sorted((tmp_path / "prebuilt").rglob("*"))
    cache = open_cache([])
    assert list(cache.refresh()) == [spec.key]
    cache.build([other], CompilerProcesses())
    assert sorted((tmp_path / "prebuilt").rglob("*")) == before


def test_prebuilt_kernels_of_a_lesser_cpu_and_another_compiler_serve(
    kernel_file: Path, tmp_path: Path, cache_folder: Path, fake_compiler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lesser = compatible_targets(Target.host())[-1]
    assert lesser != Target.host()
    (spec, other) = specs(kernel_file, 2)
    with config.scope(cache_dir=tmp_path / "prebuilt"):
        cache = KernelCache(lesser, lambda text: None)
        cache.versions = dataclasses.replace(cache.versions, compiler="another")
        cache.build([spec], CompilerProcesses())
    monkeypatch.setattr("mojo_runtime.cache.prebuilt_folders", lambda: [tmp_path / "prebuilt"])
    cache = open_cache([])
    assert list(cache.refresh()) == [spec.key]
    # The user's own library, made for this CPU, goes before.
    mine = cache.build([spec, other], CompilerProcesses())[spec]
    cache = open_cache([])
    cache.refresh()
    assert cache.find(spec) == mine


PROGRAM = """
    import sys
    from mojo_runtime.service import CompileService
    from mojo_runtime.spec import KernelSpec
    service = CompileService(workers=2)
    print("ready", flush=True)
    sys.stdin.readline()
    for batch in sys.argv[1].split():
        service.request(batch.split("|"))
    assert service.wait(60)
    print(service.counters, flush=True)
"""


def test_a_kernel_is_built_once_by_processes_that_ask_at_once(
    kernel_file: Path, fake_environment: dict[str, str], fake_compiler: Any, script: Callable[[str], list[str]]
) -> None:
    fake_compiler.configure(seconds=0.5)
    keys = [spec.key for spec in specs(kernel_file)]
    command = [*script(PROGRAM), f"{'|'.join(keys[:5])} {'|'.join(keys[3:])}"]
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen(command, env=fake_environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    results = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], results
    built = [key for run in fake_compiler.runs() for key in run]
    assert sorted(built) == sorted(keys)


def test_sigkill_at_any_moment_leaves_a_usable_cache(
    kernel_file: Path,
    cache_folder: Path,
    fake_environment: dict[str, str],
    fake_compiler: Any,
    script: Callable[[str], list[str]],
    make_service: Callable[..., CompileService],
) -> None:
    fake_compiler.configure(seconds=0.02)
    keys = [spec.key for spec in specs(kernel_file)]
    generator = random.Random(0)
    for _ in range(10):
        command = [*script(PROGRAM), " ".join(generator.sample(keys, len(keys)))]
        child = subprocess.Popen(
            command, env=fake_environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        child.stdin.write(b"\n")
        child.stdin.flush()
        time.sleep(generator.uniform(0.0, 0.4))
        child.send_signal(signal.SIGKILL)
        child.wait()
        manifests = sorted((cache_folder / "libs").glob("*.json"))
        for path in manifests[:: len(manifests) or 1]:
            path.unlink()  # so that there is something left to build in every round
    assert list((cache_folder / "builds").iterdir())  # some were killed in the middle of a build
    report = Store(cache_folder).scan(Versions(open_cache([]).versions.compiler, str(Target.host())))
    assert report.ignored == []
    service = make_service()
    entries = service.compile(keys)
    assert len(entries) == len(keys)
    assert all(entry.library.is_file() for entry in entries.values())
    assert service.counters.loaded + service.counters.compiled == len(keys)
