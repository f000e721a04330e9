"""Builds the sample kernels once per session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent / "kernels"


def mojo_build(kind: str, source: str, output: Path) -> None:
    """Runs `mojo build` for sm_80."""
    beside = Path(sys.executable).parent / "mojo"
    mojo = beside if beside.exists() else shutil.which("mojo")
    assert mojo, "no mojo compiler in this environment"
    command = [mojo, "build", "--emit", kind, "--target-accelerator", "sm_80", KERNELS / source, "-o", output]
    subprocess.run(command, check=True, cwd=KERNELS)


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """The sample kernels as a library with one exported C function per op."""
    path = tmp_path_factory.mktemp("ptxsim") / "libsamples.so"
    mojo_build("shared-lib", "samples.mojo", path)
    return path
