"""Compiles kernels to the assembly of GPU architectures that need not be here, and NVIDIA's further with ptxas."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mojo_runtime.generate import generate
from mojo_runtime.sources import include_roots, resolve
from mojo_runtime.spec import KernelSpec
from mojo_runtime.toolchain import find_toolchain

TARGETS = ("sm_80", "sm_90a", "gfx942", "apple-m1")
NO_FLOAT64 = ("apple-m1",)
"""Targets without float64."""
BATCH = 40
"""Kernels in one run of the compiler."""
_SOURCE = "kernels.mojo"


@dataclasses.dataclass
class Result:
    """What came of a target.

    Attributes:
        target: Mojo's name of the architecture.
        kernels: How many kernels compiled.
        functions: How many GPU functions they hold.
        failures: The compiler's or assembler's message by kernel key.
        seconds: Of all runs of the compiler.
    """

    target: str
    kernels: int = 0
    functions: int = 0
    failures: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


# Seconds for one batch. Mojo 1.2 has been seen to wait for itself for ever over code for apple-m1.
_LIMIT = 600


def _run_compiler(specs: Sequence[KernelSpec], target: str, folder: Path) -> str:
    """Writes one assembly file per GPU function to a folder; returns the compiler's message if it fails, else ""."""
    modules = {spec.module: resolve(spec.module) for spec in specs}
    source = generate(specs, {name: module.name for name, module in modules.items()})
    (folder / _SOURCE).write_text(source.text)
    command = [str(find_toolchain().mojo), "build", "--emit", "asm", "--target-accelerator", target]
    for root in dict.fromkeys([*include_roots(), *(module.root for module in modules.values())]):
        command += ["-I", str(root)]
    command += ["-o", "kernels.s", _SOURCE]
    environment = {**os.environ, "MODULAR_CACHE_DIR": str(folder / "cache"), "MODULAR_CRASH_REPORTING_ENABLED": "0"}
    try:
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=_LIMIT
        )
    except subprocess.TimeoutExpired:
        return f"the compiler did not end within {_LIMIT} s"
    finally:
        shutil.rmtree(folder / "cache", ignore_errors=True)
    if result.returncode == 0:
        return ""
    return result.stderr.strip() or f"the compiler ended with status {result.returncode}"


def _run_ptxas(path: Path, target: str) -> str:
    """Assembles a PTX file; returns the message if it fails, else ""."""
    command = ["ptxas", f"-arch={target}", str(path), "-o", os.devnull]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stderr.strip() if result.returncode else ""


def _functions(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix in (".ptx", ".amdgcn", ".ll")]


def _suspects(message: str, specs: Sequence[KernelSpec], text: str) -> list[KernelSpec]:
    """The kernels of the generated file whose lines the message names."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if line.startswith("# ")]
    found: dict[KernelSpec, None] = {}
    for match in re.finditer(rf"{re.escape(_SOURCE)}:(\d+):", message):
        before = [i for i, start in enumerate(starts) if start <= int(match[1])]
        if before:
            found[specs[before[-1]]] = None
    return list(found)


def check_batch(specs: Sequence[KernelSpec], target: str, use_ptxas: bool) -> Result:
    """Compiles kernels together; where that fails, apart, until each that fails has its own message.

    Args:
        specs: The kernels.
        target: The architecture.
        use_ptxas: Assemble NVIDIA code.
    """
    result = Result(target)
    if not specs:
        return result
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as name:
        folder = Path(name)
        message = _run_compiler(specs, target, folder)
        functions = _functions(folder)
        if not message and use_ptxas and target.startswith("sm_"):
            refused = [(path, said) for path in functions if (said := _run_ptxas(path, target))]
            message = "\n".join(f"{path.name}: {said}" for path, said in refused)
        suspects = _suspects(message, specs, (folder / _SOURCE).read_text()) if message else []
    result.seconds = time.monotonic() - started
    if not message:
        result.kernels, result.functions = len(specs), len(functions)
        return result
    if len(specs) == 1:
        result.failures[specs[0].key] = message
        return result
    if 0 < len(suspects) < min(5, len(specs)):
        parts = [[spec for spec in specs if spec not in suspects], *([spec] for spec in suspects)]
    else:
        parts = [list(specs[: len(specs) // 2]), list(specs[len(specs) // 2 :])]
    for part in parts:
        merge(result, check_batch(part, target, use_ptxas))
    return result


def merge(total: Result, part: Result) -> None:
    """Adds a part's result."""
    total.kernels += part.kernels
    total.functions += part.functions
    total.failures |= part.failures
    total.seconds += part.seconds


def check(
    keys: Sequence[str],
    targets: Sequence[str] = TARGETS,
    jobs: int = 2,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Compiles kernels for several targets.

    Args:
        keys: KernelSpec keys.
        targets: Architectures.
        jobs: Compilers to run at the same time.
        progress: Told after every batch.

    Returns:
        One result per target.
    """
    use_ptxas = shutil.which("ptxas") is not None
    specs = [KernelSpec.parse(key) for key in keys]
    results = {target: Result(target) for target in targets}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        pending = []
        for target in targets:
            wanted = [spec for spec in specs if target not in NO_FLOAT64 or "float64" not in spec.key]
            batches = -(-len(wanted) // BATCH)
            pending += [pool.submit(check_batch, wanted[i::batches], target, use_ptxas) for i in range(batches)]
        for done in concurrent.futures.as_completed(pending):
            part = done.result()
            merge(results[part.target], part)
            progress(f"{part.target}: {part.kernels} kernels in {part.seconds:.0f} s, {len(part.failures)} failed")
    return list(results.values())
