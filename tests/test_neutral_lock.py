"""uv.lock is committed without the name of a package index, and uv fills it in again to the byte."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = os.environ.get("UV") or shutil.which("uv") or "uv"


def load_filter():
    spec = importlib.util.spec_from_file_location("neutral_lock", ROOT / "scripts" / "neutral_lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


neutralize = load_filter().neutralize


@pytest.fixture(scope="module")
def committed() -> str:
    return subprocess.run(["git", "show", "HEAD:uv.lock"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def lock_again(folder: Path, lock: str) -> str:
    """Lets uv complete a lock file beside copies of the workspace's pyproject files; returns the file's text after."""
    for pyproject in [ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]:
        copy = folder / pyproject.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(pyproject, copy)
    (folder / "uv.lock").write_text(lock)
    subprocess.run([UV, "lock", "--quiet", "--project", folder], cwd=folder, check=True)
    return (folder / "uv.lock").read_text()


def test_neutralizing_keeps_versions_names_and_hashes():
    filled = """\
version = 1

[[package]]
name = "six"
version = "1.17.0"
source = { registry = "scheme://index.invalid/simple" }
sdist = { url = "scheme://files.invalid/a/b/six-1.17.0.tar.gz", hash = "sha256:ff", size = 3, upload-time = "2024" }

[[package]]
name = "own"
source = { editable = "." }
dependencies = [
    { name = "six" },
]

[package.dev-dependencies]
dev = [
    { name = "six" },
]

[package.metadata]
requires-dist = [{ name = "six", specifier = ">=1", index = "scheme://index.invalid/simple" }]

[package.metadata.requires-dev]
dev = [
    { name = "six", specifier = ">=1" },
]

[[package]]
name = "last"
source = { editable = "last" }
"""
    neutral = """\
version = 1

[[package]]
name = "six"
version = "1.17.0"
source = { registry = "index" }
sdist = { filename = "six-1.17.0.tar.gz", hash = "sha256:ff", size = 3 }

[[package]]
name = "own"
source = { editable = "." }
dependencies = [
    { name = "six" },
]

[package.dev-dependencies]
dev = [
    { name = "six" },
]

[[package]]
name = "last"
source = { editable = "last" }
"""
    assert neutralize(filled) == neutral
    assert neutralize(neutral) == neutral


def test_committed_lock_names_no_host(committed):
    assert "://" not in committed
    assert neutralize(committed) == committed


def test_git_applies_the_filter():
    attribute = subprocess.run(
        ["git", "check-attr", "filter", "uv.lock"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert attribute.split() == ["uv.lock:", "filter:", "neutral-lock"]


def test_lock_is_up_to_date_and_fills_in_to_the_byte(committed, tmp_path):
    filled = lock_again(tmp_path, committed)
    assert "://" in filled
    assert neutralize(filled) == committed, (
        "the pyproject files ask for something else: run `uv lock` and commit uv.lock"
    )
    assert lock_again(tmp_path, neutralize(filled)) == filled
