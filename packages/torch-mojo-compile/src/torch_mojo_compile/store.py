"""Compiled models on disk, so that a graph that was compiled once costs no compilation in any later process.

A model is a MEF file of MAX. Its key is the content of what it was made from: the text of the graphs, the precompiled
package of custom ops, MAX's version and the processor. Files are written under another name and renamed when they are
whole; one that can't be read is compiled again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mojo_runtime.store import check_private
from mojo_runtime.target import Target
from torch_mojo_compile.config import config

SUFFIX = ".mef"


@dataclasses.dataclass(frozen=True)
class StoredModel:
    """A compiled model in the store.

    Attributes:
        path: The MEF file.
        bytes: Its size.
        used: When it was last written or loaded, in seconds since 1970.
        graphs: The names of its graphs.
    """

    path: Path
    bytes: int
    used: float
    graphs: tuple[str, ...]


def model_key(texts: Sequence[str], packages: Sequence[Path]) -> str:
    """Returns the key of a model.

    Args:
        texts: Its graphs.
        packages: The custom ops it may use; their paths are named by their content.
    """
    parts = [importlib.metadata.version("max-core"), str(Target.host()), *(str(p.parent.name) for p in packages)]
    digest = hashlib.sha256()
    for part in (*parts, *texts):
        digest.update(hashlib.sha256(part.encode()).digest())
    return digest.hexdigest()[:40]


def _folder() -> Path:
    folder = config.store_folder / "models"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(folder, folder.stat())
    return folder


def find(key: str) -> Path | None:
    """Returns the file of a model, None where there is none.

    Raises:
        CacheRefused: Others can write there: loading it would run their code.
    """
    path = _folder() / f"{key}{SUFFIX}"
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    check_private(path, status)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return path


@contextlib.contextmanager
def writing(key: str, graphs: Sequence[str]) -> Iterator[Path]:
    """Gives a path to write a model to, which the store has when the block ends without an exception.

    Args:
        key: The model's key.
        graphs: The names of its graphs, for listings.
    """
    folder = _folder()
    staged = folder / f".{key}.{os.getpid()}.{time.monotonic_ns()}"
    try:
        yield staged
        staged.chmod(0o600)
        note = folder / f".{key}.{os.getpid()}.json"
        note.write_text(json.dumps({"graphs": list(graphs)}))
        os.replace(note, folder / f"{key}.json")
        os.replace(staged, folder / f"{key}{SUFFIX}")
    finally:
        staged.unlink(missing_ok=True)


def discard(path: Path) -> None:
    """Removes a model that can't be used."""
    path.unlink(missing_ok=True)
    path.with_suffix(".json").unlink(missing_ok=True)


def models() -> list[StoredModel]:
    """Returns what the store holds, the last used first."""
    found = []
    for path in _folder().glob(f"*{SUFFIX}"):
        try:
            status = path.stat()
            graphs = tuple(json.loads(path.with_suffix(".json").read_text())["graphs"])
        except (OSError, ValueError, KeyError):
            graphs = ()
        found.append(StoredModel(path, status.st_size, status.st_mtime, graphs))
    return sorted(found, key=lambda model: -model.used)


def clean(older_than_seconds: float = 0.0) -> int:
    """Removes models that were not used for a while, and what interrupted writers left; returns how many models."""
    now, removed = time.time(), 0
    for model in models():
        if now - model.used >= older_than_seconds:
            discard(model.path)
            removed += 1
    for leftover in _folder().glob(".*"):
        with contextlib.suppress(OSError):
            if now - leftover.stat().st_mtime > max(older_than_seconds, 3600):
                leftover.unlink()
    return removed
