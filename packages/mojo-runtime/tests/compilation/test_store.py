from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mojo_runtime.compiler import Build
from mojo_runtime.sources import SourceIndex, register_include, resolve
from mojo_runtime.spec import KernelSpec
from mojo_runtime.store import CacheRefused, Entry, Store, Versions, check_private

VERSIONS = Versions("mojo 1", "x86_64-test")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "cache")
    store.open()
    return store


@pytest.fixture
def spec(kernel_file: Path) -> KernelSpec:
    return KernelSpec(kernel_file, "saxpy", dtype="float32")


def install(store: Store, *specs: KernelSpec, versions: Versions = VERSIONS) -> dict[KernelSpec, Entry]:
    with store.build_folder() as folder:
        library = folder / "kernels.so"
        library.write_bytes(b"machine code")
        return store.install(Build(library, {spec: f"mojo_kernel_{i}" for i, spec in enumerate(specs)}), versions)


def test_what_was_installed_is_found_once(store: Store, spec: KernelSpec) -> None:
    other = KernelSpec(spec.module, "saxpy", dtype="int8")
    entries = install(store, spec, other)
    again = Store(store.folder)
    assert again.scan(VERSIONS).kernels == {spec.key: entries[spec], other.key: entries[other]}
    assert again.scan(VERSIONS).kernels == {}
    assert list((store.folder / "builds").iterdir()) == []
    assert store.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "versions",
    [Versions("mojo 2", "x86_64-test"), Versions("mojo 1", "x86_64-other"), Versions("mojo 1", "x86_64-test", abi=2)],
)
def test_other_versions_are_left_alone_silently(store: Store, spec: KernelSpec, versions: Versions) -> None:
    install(store, spec, versions=versions)
    report = Store(store.folder).scan(VERSIONS)
    assert (report.kernels, report.ignored) == ({}, [])


def test_any_compiler_agrees_where_none_is_installed(store: Store, spec: KernelSpec) -> None:
    install(store, spec)
    assert list(Store(store.folder).scan(Versions(None, "x86_64-test")).kernels) == [spec.key]


def damage(path: Path, content: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        (".so", b"machine", "has 7 bytes instead of 12"),
        (".so", b"machine cod3", "has changed"),
        (".so", None, ""),
        (".json", b"", ""),
        (".json", b'{"format": 1', ""),
        (".json", b"[]", ""),
        (".json", b'{"format": 1, "compiler": "mojo 1", "target": "x86_64-test", "abi": 1, "kernels": [1]}', ""),
        (".json", b"\xff\xfe\x00", ""),
    ],
)
def test_damaged_entries_are_ignored_with_a_line_each(
    store: Store, spec: KernelSpec, suffix: str, content: bytes | None, message: str
) -> None:
    library = install(store, spec)[spec].library
    other = KernelSpec(spec.module, "saxpy", dtype="int8")
    install(store, other)
    path = library.with_suffix(suffix)
    if content is None:
        path.unlink()
    else:
        damage(path, content)
    again = Store(store.folder)
    report = again.scan(VERSIONS)
    assert list(report.kernels) == [other.key]
    if content is not None:
        assert len(report.ignored) == 1
        assert library.stem in report.ignored[0]
        assert message in report.ignored[0]
    assert again.scan(VERSIONS).ignored == []
    install(store, spec)  # the repair
    assert list(again.scan(VERSIONS).kernels) == [spec.key]


def test_a_future_format_is_left_alone(store: Store, spec: KernelSpec) -> None:
    manifest = install(store, spec)[spec].library.with_suffix(".json")
    damage(manifest, json.dumps({"format": 99}).encode())
    report = Store(store.folder).scan(VERSIONS)
    assert (report.kernels, report.ignored) == ({}, [])


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_refused(store: Store, mode: int) -> None:
    store.folder.chmod(mode)
    with pytest.raises(CacheRefused, match="can be written by others"):
        Store(store.folder).open()
    store.folder.chmod(0o755)
    Store(store.folder).open()
    assert store.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_a_file_that_others_can_write_is_refused(store: Store, spec: KernelSpec, suffix: str) -> None:
    path = install(store, spec)[spec].library.with_suffix(suffix)
    path.chmod(0o666)
    report = Store(store.folder).scan(VERSIONS)
    assert report.kernels == {}
    assert "can be written by others" in report.ignored[0]


@pytest.mark.parametrize("suffix", [".so", ".json"])
def test_symbolic_links_are_refused(store: Store, spec: KernelSpec, suffix: str, tmp_path: Path) -> None:
    path = install(store, spec)[spec].library.with_suffix(suffix)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    report = Store(store.folder).scan(VERSIONS)
    assert report.kernels == {}
    assert len(report.ignored) == 1


def test_what_belongs_to_others_is_refused(tmp_path: Path) -> None:
    status = tmp_path.stat()
    check_private(tmp_path, status)
    foreign = os.stat_result((*status[:4], status.st_uid + 1, *status[5:]))
    with pytest.raises(CacheRefused, match=f"belongs to user {status.st_uid + 1}"):
        check_private(tmp_path, foreign)


def test_clean_and_size(store: Store, spec: KernelSpec) -> None:
    install(store, spec)
    assert store.size() == (1, 12)
    assert store.clean() == 1
    assert store.size() == (0, 0)
    assert Store(store.folder).scan(VERSIONS).kernels == {}


def test_leftovers_of_killed_processes_are_removed_after_a_day(store: Store) -> None:
    for leftover in (store.folder / "builds" / "old", store.libraries / ".partial"):
        leftover.write_text("")
        os.utime(leftover, (0, 0))
    (store.folder / "builds" / "new").mkdir()
    store.remove_stale()
    assert [path.name for path in (store.folder / "builds").iterdir()] == ["new"]
    assert list(store.libraries.iterdir()) == []


# ---- sources ---------------------------------------------------------------------------------------------------------


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


PACKAGE = {
    "pack/__init__.mojo": "",
    "pack/sub/__init__.mojo": "",
    "pack/sub/kernel.mojo": "from ..shared import (\n  helper,\n  x,\n)\nfrom . import sibling\nimport pack.named\n",
    "pack/shared.mojo": "from pack.deep import x  # why\n",
    "pack/deep.mojo": "",
    "pack/named.mojo": "",
    "pack/sub/sibling.mojo": "",
    "pack/unrelated.mojo": "",
}


@pytest.mark.parametrize("changed", sorted(PACKAGE))
def test_the_digest_covers_exactly_what_a_module_reaches(tmp_path: Path, changed: str) -> None:
    write(tmp_path, PACKAGE)
    spec = KernelSpec(tmp_path / "pack" / "sub" / "kernel.mojo", "kernel")
    assert resolve(spec.module).root == tmp_path
    before = SourceIndex().digest(spec.module)
    write(tmp_path, {changed: PACKAGE[changed] + "# changed\n"})
    assert (SourceIndex().digest(spec.module) != before) == (changed != "pack/unrelated.mojo")


def test_the_digest_does_not_depend_on_the_folder(tmp_path: Path) -> None:
    digests = set()
    for name in ("here", "there"):
        write(tmp_path / name, PACKAGE)
        digests.add(SourceIndex().digest(str(tmp_path / name / "pack" / "sub" / "kernel.mojo")))
    assert len(digests) == 1


def test_digests_are_kept_until_forgotten(kernel_file: Path) -> None:
    index, spec = SourceIndex(), KernelSpec(kernel_file, "saxpy")
    before = index.digest(spec.module)
    kernel_file.write_text("# mended")
    assert index.digest(spec.module) == before
    index.forget(spec.module)
    assert index.digest(spec.module) != before


def test_registered_folders_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mojo_runtime.sources._registered", [])
    write(tmp_path, {"mine/__init__.mojo": "", "mine/kernels.mojo": ""})
    with pytest.raises(FileNotFoundError, match=r"no module mine\.kernels"):
        resolve("mine.kernels")
    register_include(tmp_path)
    assert resolve("mine.kernels").file == tmp_path / "mine" / "kernels.mojo"
    with pytest.raises(NotADirectoryError):
        register_include(tmp_path / "none")
