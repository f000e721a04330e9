"""Imports point down: kernels <- runtime <- eager; kernels and runtime <- compile; all of them <- the meta-package."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each import package may import of the project and of PyTorch.
MAY_IMPORT = {
    "mojo_kernels": set(),
    "mojo_runtime": {"mojo_kernels"},
    "torch_mojo_eager": {"mojo_kernels", "mojo_runtime", "torch"},
    "torch_mojo_compile": {"mojo_kernels", "mojo_runtime", "torch"},
    "torch_mojo_backend": {"torch_mojo_eager", "torch_mojo_compile"},
}
LAYERED = set(MAY_IMPORT) | {"torch"}
ACCELERATOR = re.compile(r"(mojo|cuda|mps|xpu|hip|privateuseone)(:\d+)?")


def source_folder(package: str) -> Path:
    if package == "torch_mojo_backend":
        return ROOT / "src" / package
    return ROOT / "packages" / package.replace("_", "-") / "src" / package


def python_imports(source: str) -> set[str]:
    """Returns the top-level names that Python source imports, by statement or by `import_module` of a literal."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            names |= {str(a.value).split(".")[0] for a in node.args if isinstance(a, ast.Constant)}
    return names


def mojo_imports(source: str) -> set[str]:
    """Returns the top-level names that Mojo source imports, of Python modules too."""
    names = re.findall(r"^\s*(?:from|import)\s+(\w+)", source, re.MULTILINE)
    return {*names, *re.findall(r"import_module\(\s*\"(\w+)", source)}


def cpp_includes(source: str) -> set[str]:
    """Returns "torch" if C++ source includes one of its headers, else nothing."""
    return {"torch"} if re.search(r"#\s*include\s*[<\"](torch|ATen|c10|caffe2)/", source) else set()


READERS = {".py": python_imports, ".mojo": mojo_imports, ".cpp": cpp_includes, ".h": cpp_includes}


def layered_imports(package: str) -> dict[str, set[str]]:
    """Returns, for each source file of a package, which of the layered packages it imports."""
    found = {}
    for path in sorted(source_folder(package).rglob("*")):
        if path.suffix in READERS:
            names = READERS[path.suffix](path.read_text()) & LAYERED - {package}
            found[path.relative_to(ROOT).as_posix()] = names
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_down(package):
    imports = layered_imports(package)
    assert imports, f"no sources of {package}"
    assert {path: names - MAY_IMPORT[package] for path, names in imports.items() if names - MAY_IMPORT[package]} == {}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_are_declared_dependencies(package):
    folder = source_folder(package).parent.parent
    dependencies = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
    declared = {re.match(r"[\w-]+", dependency)[0].replace("-", "_") for dependency in dependencies}
    assert set().union(*layered_imports(package).values()) <= declared


def test_an_upward_import_is_seen():
    assert python_imports("def f():\n    from torch_mojo_eager.ops import table") & LAYERED == {"torch_mojo_eager"}
    assert python_imports("importlib.import_module('torch.nn')") & LAYERED == {"torch"}
    assert mojo_imports('var m = Python.import_module("torch")\n') & LAYERED == {"torch"}
    assert cpp_includes("#include <c10/core/Device.h>") == {"torch"}


def hard_coded_devices(source: str) -> Iterator[int]:
    """Yields the lines on which a call is given the literal name of an accelerator as its device."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        values = [keyword.value for keyword in node.keywords if keyword.arg in ("device", "device_type")]
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "device"):
            values += node.args
        for value in values:
            if isinstance(value, ast.Constant) and ACCELERATOR.fullmatch(str(value.value)):
                yield node.lineno


def test_a_hard_coded_device_is_seen():
    source = (
        'x = torch.ones(2, device="mojo")\nx.to("cuda:1")\ntorch.device("mps")\nx.to("cpu")\ntorch.ones(2, device=d)'
    )
    assert sorted(hard_coded_devices(source)) == [1, 2, 3]


def test_tests_and_examples_take_their_device_from_outside():
    files = [*ROOT.glob("tests/*.py"), *ROOT.glob("packages/*/tests/**/*.py"), *ROOT.glob("examples/*.py")]
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in files
        if path.name != "conftest.py"  # where the fixtures name it once
        for line in hard_coded_devices(path.read_text())
    ]
    assert found == []
