"""Where the modules of kernels lie, and the content that each one reaches through its imports."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import mojo_kernels
from mojo_runtime.config import config

_FROM = re.compile(r"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([^\n]+)", re.MULTILINE)
_NAMES = re.compile(r"(\w[\w.]*)(?:\s+as\s+\w+)?")

_registered: list[Path] = []


def register_include(path: str | os.PathLike[str]) -> None:
    """Adds a folder in which dotted module names of kernels are found, as `mojo build -I` would.

    Args:
        path: The folder that holds the top-level module or package.

    Raises:
        NotADirectoryError: There is no such folder.
    """
    folder = Path(path).expanduser().resolve()
    if not folder.is_dir():
        raise NotADirectoryError(f"include folder {folder} does not exist")
    if folder not in _registered:
        _registered.append(folder)


def include_roots() -> list[Path]:
    """Returns the folders that are searched: mojo-kernels first, then what was registered, then the environment's."""
    return list(dict.fromkeys([mojo_kernels.include_path(), *_registered, *config.include]))


@dataclasses.dataclass(frozen=True)
class Module:
    """A Mojo module on disk.

    Attributes:
        name: The dotted name to import it by, as Mojo writes it.
        root: The include folder that the name starts from.
        file: Its source.
    """

    name: str
    root: Path
    file: Path


def _find(root: Path, parts: tuple[str, ...]) -> Path | None:
    """Returns the file of a dotted name below a folder: `a/b.mojo` or `a/b/__init__.mojo`."""
    base = root.joinpath(*parts)
    for file in (base.with_name(base.name + ".mojo"), base / "__init__.mojo"):
        if file.is_file():
            return file
    return None


def resolve(module: str) -> Module:
    """Finds a module on disk.

    Args:
        module: A KernelSpec's module: a dotted name or the path of a file.

    Raises:
        FileNotFoundError: It is not in any include folder; the message names them.
    """
    if module.endswith(".mojo"):
        file = Path(module)
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
        root, parts = file.parent, [file.stem]
        while (root / "__init__.mojo").is_file():
            parts.insert(0, root.name)
            root = root.parent
        # A file's name need not be an identifier, or may be a keyword.
        return Module(".".join(f"`{part}`" for part in parts), root, file)
    for root in include_roots():
        found = _find(root, tuple(module.split(".")))
        if found is not None:
            return Module(module, root, found)
    folders = ", ".join(str(root) for root in include_roots())
    raise FileNotFoundError(f"no module {module} in {folders}")


def _imports(file: Path, text: str, roots: tuple[Path, ...]) -> Iterator[Path]:
    """Yields the files within the roots that a source imports.

    Text that only looks like an import adds a file too many, which costs a rebuild at worst.
    """
    for dots, name, names in _FROM.findall(text):
        parts = tuple(part for part in name.split(".") if part)
        starts = (file.parents[len(dots) - 1],) if dots else roots
        imported = [match[1] for match in _NAMES.finditer(names.split("#")[0] if "(" not in names else names)]
        for start in starts:
            # Packages on the way are parsed too; an imported name may itself be a module.
            for candidate in [parts[:i] for i in range(1, len(parts) + 1)] + [(*parts, item) for item in imported]:
                found = _find(start, candidate)
                if found is not None:
                    yield found
    for names in _IMPORT.findall(text):
        for match in _NAMES.finditer(names.split("#")[0]):
            parts = tuple(match[1].split("."))
            for root in roots:
                for i in range(1, len(parts) + 1):
                    found = _find(root, parts[:i])
                    if found is not None:
                        yield found


class SourceIndex:
    """The digest of everything that a kernel's module reaches, computed once per module.

    The files of the standard library and of MAX are not part of it: the compiler's version stands for them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}
        self._files: dict[tuple[Path, tuple[Path, ...]], tuple[bytes, tuple[Path, ...]]] = {}

    def digest(self, module: str) -> str:
        """Returns the hex digest of the sources of a KernelSpec's module.

        Raises:
            FileNotFoundError: There is no such module.
        """
        with self._lock:
            known = self._digests.get(module)
            if known is None:
                known = self._digests[module] = self._compute(resolve(module))
            return known

    def forget(self, module: str) -> None:
        """Reads the module's sources again next time, e.g. since a build failed and the file is being mended."""
        with self._lock:
            self._digests.pop(module, None)
            self._files.clear()

    def _compute(self, module: Module) -> str:
        roots = tuple(dict.fromkeys([module.root, *include_roots()]))
        pending, reached = [module.file, *_packages(module)], dict[Path, bytes]()
        while pending:
            file = pending.pop()
            if file not in reached:
                reached[file], imports = self._read(file, roots)
                pending += imports
        digest = hashlib.sha256()
        for name, content in sorted((_relative(file, roots), content) for file, content in reached.items()):
            digest.update(f"{name}\0".encode() + content)
        return digest.hexdigest()

    def _read(self, file: Path, roots: tuple[Path, ...]) -> tuple[bytes, tuple[Path, ...]]:
        known = self._files.get((file, roots))
        if known is None:
            content = file.read_bytes()
            imports = tuple(dict.fromkeys(_imports(file, content.decode(errors="replace"), roots)))
            known = self._files[file, roots] = (hashlib.sha256(content).digest(), imports)
        return known


def _packages(module: Module) -> list[Path]:
    """Returns the `__init__.mojo` files of the packages that a module is in."""
    parts = module.name.replace("`", "").split(".")
    inits = (module.root.joinpath(*parts[:i]) / "__init__.mojo" for i in range(1, len(parts)))
    return [init for init in inits if init.is_file()]


def _relative(file: Path, roots: tuple[Path, ...]) -> str:
    """Returns a name that does not depend on where the include folder lies."""
    for root in roots:
        if file.is_relative_to(root):
            return file.relative_to(root).as_posix()
    return file.as_posix()


@functools.cache
def source_index() -> SourceIndex:
    """Returns the process's index of sources."""
    return SourceIndex()
