"""The store of compiled models, with files that are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mojo_runtime.store import CacheRefused
from torch_mojo_compile import store
from torch_mojo_compile.config import config


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty store."""
    with config.scope(graph_cache_dir=tmp_path):
        yield tmp_path / "models"


def write(key: str, content: bytes = b"model") -> Path:
    """Puts a file into the store."""
    with store.writing(key, ["forward_0"]) as path:
        path.write_bytes(content)
    found = store.find(key)
    assert found is not None
    return found


def test_a_written_model_is_found_and_listed() -> None:
    assert store.find("a") is None
    path = write("a")
    assert path.read_bytes() == b"model"
    assert path.stat().st_mode & 0o077 == 0
    assert [(model.path, model.bytes, model.graphs) for model in store.models()] == [(path, 5, ("forward_0",))]


def test_an_interrupted_writer_leaves_nothing_to_be_found(folder: Path) -> None:
    def write_half() -> None:
        with store.writing("a", []) as path:
            path.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert store.find("a") is None
    assert list(folder.iterdir()) == []


def test_the_last_of_two_writers_wins() -> None:
    with store.writing("a", []) as first:
        first.write_bytes(b"first")
        with store.writing("a", []) as second:
            second.write_bytes(b"second")
    found = store.find("a")
    assert found is not None
    assert found.read_bytes() == b"first"


def test_a_model_that_others_can_write_is_refused() -> None:
    path = write("a")
    path.chmod(0o666)
    with pytest.raises(CacheRefused, match="can be written by others"):
        store.find("a")


def test_an_empty_file_is_no_model() -> None:
    write("a").write_bytes(b"")
    assert store.find("a") is None


def test_cleaning_spares_what_was_used_lately(folder: Path) -> None:
    old = write("old")
    write("new")
    os.utime(old, (0, 0))
    leftover = folder / ".new.1.1"
    leftover.write_bytes(b"")
    os.utime(leftover, (0, 0))
    assert store.clean(older_than_seconds=3600) == 1
    assert [model.path.stem for model in store.models()] == ["new"]
    assert not leftover.exists()
    assert store.clean() == 1


def test_keys_depend_on_graphs_and_packages() -> None:
    package = Path("/somewhere/digest/package.mojoc")
    keys = {
        store.model_key(["a", "b"], [package]),
        store.model_key(["ab"], [package]),
        store.model_key(["b", "a"], [package]),
        store.model_key(["a", "b"], [Path("/somewhere/other/package.mojoc")]),
    }
    assert len(keys) == 4
    assert store.model_key(["a", "b"], [package]) in keys
