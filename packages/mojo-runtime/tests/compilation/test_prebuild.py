from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mojo_runtime.config import config
from mojo_runtime.jobs import JobQueue
from mojo_runtime.prebuild import KERNELS_PER_LIBRARY, prebuild
from mojo_runtime.service import CompileService
from mojo_runtime.spec import KernelSpec
from mojo_runtime.target import Target


def numbered(file: Path, count: int) -> list[KernelSpec]:
    return [KernelSpec(file, "saxpy", number=i) for i in range(count)]


def test_many_kernels_go_into_few_libraries(
    kernel_file: Path, cache_folder: Path, fake_compiler: Any, make_service: Callable[..., CompileService]
) -> None:
    wanted = numbered(kernel_file, 2 * KERNELS_PER_LIBRARY + 30)
    counters, failures = prebuild(wanted, jobs=2)
    assert (counters.compiled, counters.failed, failures) == (len(wanted), 0, {})
    assert counters.builds == 3
    assert max(len(run) for run in fake_compiler.runs()) == KERNELS_PER_LIBRARY
    counters, _ = prebuild([*wanted, KernelSpec(kernel_file, "saxpy", number=-1)])
    assert (counters.loaded, counters.compiled) == (len(wanted), 1)
    service = make_service()
    service.compile(wanted)
    assert service.builds() == 0


def test_only_the_faulty_kernel_is_missing(kernel_file: Path, cache_folder: Path, fake_compiler: Any) -> None:
    fake_compiler.configure(broken="number=17")
    wanted = numbered(kernel_file, 30)
    counters, failures = prebuild(wanted)
    assert counters.compiled == 29
    assert list(failures) == [wanted[17]]
    assert "no such operation" in failures[wanted[17]]


def test_a_folder_can_be_installed_or_copied_into_a_cache(
    kernel_file: Path,
    tmp_path: Path,
    cache_folder: Path,
    fake_compiler: Any,
    make_service: Callable[..., CompileService],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted, folder = numbered(kernel_file, 5), tmp_path / "output"
    prebuild(wanted, folder=folder)
    assert [path.name for path in folder.iterdir()] == ["libs"]
    assert not list(cache_folder.rglob("*.so"))
    modes = {path.stat().st_mode & 0o777 for path in (folder / "libs").iterdir()}
    assert (modes, folder.stat().st_mode & 0o777) == ({0o644}, 0o755)
    with monkeypatch.context() as installed:
        installed.setattr("mojo_runtime.cache.prebuilt_folders", lambda: [folder])
        service = make_service()
        assert len(service.compile(wanted)) == 5
        assert (service.builds(), service.counters.loaded) == (0, 5)
    (cache_folder / "libs").rmdir()
    (folder / "libs").rename(cache_folder / "libs")
    service = make_service()
    service.compile(wanted)
    assert service.builds() == 0


def test_an_unusable_folder_is_an_error(kernel_file: Path, tmp_path: Path, fake_compiler: Any) -> None:
    (tmp_path / "file").touch()
    with config.scope(trace=False), pytest.raises(OSError, match="can't be used"):
        prebuild(numbered(kernel_file, 1), folder=tmp_path / "file" / "output")


def test_gpu_kernels_are_built_without_a_gpu(kernel_file: Path, tmp_path: Path, cache_folder: Path) -> None:
    spec = KernelSpec(kernel_file, "saxpy", dtype="float32")
    counters, failures = prebuild(spec, Target.parse("sm_90a"), tmp_path / "output")
    assert (counters.compiled, failures) == (1, {})
    (manifest,) = (tmp_path / "output" / "libs").glob("*.json")
    assert '+sm_90a"' in manifest.read_text()


def test_the_queue_takes_the_size_it_is_given() -> None:
    from mojo_runtime.jobs import Job

    queue = JobQueue(maximum=7)
    queue.add([Job(Target.host(), KernelSpec("mojo_kernels.fill", "fill", n=i)) for i in range(10)])
    assert [len(queue.next_batch(1)) for _ in range(2)] == [7, 3]
