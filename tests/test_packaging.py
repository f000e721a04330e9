"""The wheels: complete, and each installs and works alone, with nothing but its own dependencies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = os.environ.get("UV") or shutil.which("uv") or "uv"
FOLDERS = {
    "mojo-kernels": ROOT / "packages/mojo-kernels",
    "mojo-runtime": ROOT / "packages/mojo-runtime",
    "torch-mojo-eager": ROOT / "packages/torch-mojo-eager",
    "torch-mojo-compile": ROOT / "packages/torch-mojo-compile",
    "torch-mojo-backend": ROOT,
}
PACKAGES = pytest.mark.parametrize("package", FOLDERS)

# What a user of the package alone would try first, by package: Python source.
SMOKE = {
    "mojo-kernels": """
import subprocess, sys
from pathlib import Path
printed = subprocess.run([sys.executable, "-m", "mojo_kernels"], capture_output=True, text=True, check=True).stdout
assert (Path(printed.strip()) / "mojo_kernels" / "abi.mojo").is_file(), printed
""",
    "mojo-runtime": """
import subprocess, sys
import mojo_runtime
doctor = Path(sys.executable).with_name("torch-mojo-backend")
subprocess.run([doctor, "doctor"], check=True)
assert "torch" not in sys.modules
""",
    "torch-mojo-eager": """
import torch, torch_mojo_eager
torch_mojo_eager.register_mojo_devices()
x = torch.ones(3, device="mojo", requires_grad=True)
(x * 2 + 1).sum().backward()
assert x.grad.cpu().tolist() == [2, 2, 2], x.grad
""",
    "torch-mojo-compile": """
import sys
import torch_mojo_compile
assert "torch_mojo_eager" not in sys.modules
""",
    "torch-mojo-backend": """
import torch, torch_mojo_backend
torch_mojo_backend.register_mojo_devices()
print(torch.ones(2, 2, device="mojo") + 1)
""",
}


def pyproject(package: str) -> dict:
    return tomllib.loads((FOLDERS[package] / "pyproject.toml").read_text())


def sources(package: str) -> dict[str, bytes]:
    """What of the package is in git's index or could be: its files by path below src."""
    source = FOLDERS[package] / "src"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "."]
    listed = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True).stdout.split("\0")
    return {name: (source / name).read_bytes() for name in listed if name and (source / name).is_file()}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """A folder with the sdist of every package, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("distributions")
    subprocess.run([UV, "build", "--quiet", "--all-packages", "--out-dir", folder], cwd=ROOT, check=True)
    return folder


def wheel(distributions: Path, package: str) -> Path:
    (path,) = distributions.glob(f"{package.replace('-', '_')}-*.whl")
    return path


def wheel_contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@PACKAGES
def test_wheel_holds_the_sources(distributions, package):
    contents = wheel_contents(wheel(distributions, package))
    expected = sources(package)
    assert {name: data for name, data in contents.items() if ".dist-info/" not in name} == expected
    assert f"{package.replace('-', '_')}/py.typed" in expected
    suffixes = {"mojo-kernels": {".mojo"}, "mojo-runtime": {".h", ".cpp"}, "torch-mojo-eager": {".h", ".cpp"}}
    assert suffixes.get(package, set()) <= {Path(name).suffix for name in expected}


@PACKAGES
def test_sdist_holds_the_sources(distributions, package):
    (path,) = distributions.glob(f"{package.replace('-', '_')}-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {f"src/{name}" for name in sources(package)} | {"LICENSE", "README.md", "pyproject.toml"} <= names
    # The workspace root holds much more than its package.
    assert not any(name.startswith(("packages/", ".git/", ".venv/", "benchmarks/")) for name in names)


@PACKAGES
def test_wheel_has_the_license_and_names_no_place(distributions, package):
    contents = wheel_contents(wheel(distributions, package))
    (license_text,) = (data for name, data in contents.items() if name.endswith(".dist-info/licenses/LICENSE"))
    assert license_text == (ROOT / "LICENSE").read_bytes()
    places = [os.fsencode(place) for place in (ROOT, Path.home(), Path(sys.prefix)) if place != Path("/")]
    assert [name for name, data in contents.items() for place in places if place + b"/" in data] == []


@PACKAGES
def test_requirements_between_members_are_compatible_releases(package):
    versions = {name: pyproject(name)["project"]["version"] for name in FOLDERS}
    requirements = [re.split("(?=[~=<>])", text, maxsplit=1) for text in pyproject(package)["project"]["dependencies"]]
    members = {name: specifier for name, specifier in requirements if name in versions}
    assert members == {name: f"~={versions[name]}" for name in members}


@PACKAGES
def test_version_is_that_of_the_module(package):
    init = (FOLDERS[package] / "src" / package.replace("-", "_") / "__init__.py").read_text()
    assert re.findall(r'^__version__ = "(.*)"$', init, re.MULTILINE) == [pyproject(package)["project"]["version"]]


def run_installed(tmp_path: Path, folder: Path, requirement: Path, program: str, **variables: str) -> None:
    """Runs a program in an empty environment with one of the wheels of a folder and what it requires."""
    # The versions that this environment tests, which are in uv's cache: a newer release is not this test's affair.
    # Of its own folder alone: other tests import packages that add the ones they vendor to the path.
    found = metadata.distributions(path=[sysconfig.get_paths()["purelib"]])
    installed = (f"{d.name}=={d.version}" for d in found if d.name not in FOLDERS)
    (tmp_path / "constraints.txt").write_text("\n".join(installed))
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["UV_FIND_LINKS"] = ",".join(filter(None, [str(folder), os.environ.get("UV_FIND_LINKS")]))
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv"], check=True, env=environment)
    python = tmp_path / "venv" / "bin" / "python"
    install = [UV, "pip", "install", "--quiet", "--python", python, "--constraints", tmp_path / "constraints.txt"]
    subprocess.run([*install, requirement], check=True, env=environment, cwd=tmp_path)
    try:
        run = subprocess.run(
            [python, "-c", "from pathlib import Path\n" + program],
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
    finally:
        shutil.rmtree(tmp_path / "venv")  # gigabytes, if only as links into uv's cache


@PACKAGES
@pytest.mark.slow
def test_installs_alone_and_works(distributions, package, tmp_path):
    run_installed(tmp_path, distributions, wheel(distributions, package), SMOKE[package])


COMPILES_NOTHING = """
import torch, torch_mojo_backend
torch_mojo_backend.register_mojo_devices()
x = torch.tensor([1.0, 2.0, 3.0]).to("mojo")
assert (x * x).tolist() == [1, 4, 9]
from mojo_runtime.compilation import builds
assert builds() == 0
"""


@pytest.mark.slow
def test_release_wheels_compile_nothing(tmp_path):
    folder = tmp_path / "wheels"
    command = [sys.executable, ROOT / "scripts" / "wheels.py", "--output", folder, "--match", "*binary*float32*"]
    subprocess.run(command, check=True)
    assert not list(ROOT.glob("packages/*/src/*/prebuilt"))
    names = {path.name.split("-")[0] for path in folder.glob("*.whl") if not path.name.endswith("-any.whl")}
    assert names == {"mojo_kernels", "mojo_runtime", "torch_mojo_eager"}
    # An empty cache, and no C++ compiler to be found.
    run_installed(
        tmp_path,
        folder,
        wheel(folder, "torch-mojo-backend"),
        COMPILES_NOTHING,
        TORCH_MOJO_BACKEND_CACHE_DIR=str(tmp_path / "cache"),
        CXX="no-compiler",
    )
