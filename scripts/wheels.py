"""Builds the wheels of a release: like `uv build`, but with compiled code, so that a fresh install compiles nothing.

    uv run python scripts/wheels.py                                        # for this machine's CPU
    uv run python scripts/wheels.py --target cpu:x86-64-v3 --target cpu:icelake-server --target cpu:sapphirerapids

mojo-kernels gets the kernels of the eager frontend, mojo-runtime its native core, torch-mojo-eager the shim for the
installed PyTorch (with another version the shim is compiled at first use). A machine takes the kernels of the best CPU
of the wheel that it has all features of. Build on the oldest Linux that the wheels are for.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DTYPES = "float32,bfloat16,int64,bool"
COMPILED = {"mojo-kernels": "mojo_kernels", "mojo-runtime": "mojo_runtime", "torch-mojo-eager": "torch_mojo_eager"}


def copy_sources(folder: Path) -> None:
    """Copies the files that git knows or would add: compiled files never enter the working copy."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def prebuilt(folder: Path, package: str) -> Path:
    """Returns the folder of a package's compiled files, in a copy of the sources."""
    return folder / "packages" / package / "src" / COMPILED[package] / "prebuilt"


def add_native_libraries(folder: Path) -> None:
    """Compiles the native core and the shim, or takes them from the cache."""
    from mojo_runtime import _native
    from torch_mojo_eager import shim

    for package, library in (("mojo-runtime", _native.library_path()), ("torch-mojo-eager", shim.library_path())):
        target = prebuilt(folder, package)
        target.mkdir()
        # In the cache the name ends with the compiler's identity, which is nobody's concern here.
        name = re.sub(r"-[0-9a-f]{8}(\.\w+)$", r"\1", library.name)
        shutil.copyfile(library, target / name)
        (target / name).chmod(0o755)


def add_kernels(folder: Path, targets: list[str], dtypes: str, match: str) -> None:
    """Compiles the kernels for each target."""
    for target in targets:
        command = [sys.executable, "-m", "mojo_runtime.cli", "prebuild", "--output"]
        output = prebuilt(folder, "mojo-kernels")
        subprocess.run([*command, output, "--target", target, "--dtypes", dtypes, "--match", match], check=True)


def build(folder: Path, output: Path) -> None:
    """Builds all wheels of a copy of the sources; those with compiled files are tagged for this platform."""
    subprocess.run(["uv", "build", "--quiet", "--all-packages", "--wheel", "--out-dir", output], cwd=folder, check=True)
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    for module in COMPILED.values():
        (wheel,) = output.glob(f"{module}-*-py3-none-any.whl")
        tool = ["uv", "run", "--quiet", "--no-project", "--with", "wheel", "python", "-m", "wheel", "tags"]
        subprocess.run([*tool, "--remove", "--platform-tag", platform, wheel], check=True, stdout=subprocess.DEVNULL)


def main(arguments: list[str] | None = None) -> None:
    """Builds as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder of the wheels")
    parser.add_argument("--target", action="append", help="a CPU as prebuild names it; more than one may be given")
    parser.add_argument("--dtypes", default=DTYPES, help="only kernels of these dtypes")
    parser.add_argument("--match", default="*", help="only kernels whose key matches")
    settings = parser.parse_args(arguments)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_sources(folder)
        add_native_libraries(folder)
        add_kernels(folder, settings.target or ["cpu"], settings.dtypes, settings.match)
        build(folder, settings.output)
    print(f"{settings.output}, after {time.perf_counter() - start:.0f} s")
    for wheel in sorted(settings.output.glob("*.whl")):
        print(f"{wheel.stat().st_size / 1e6:7.1f} MB  {wheel.name}")


if __name__ == "__main__":
    main()
