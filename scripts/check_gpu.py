"""Compiles the kernels of the op tables for GPUs, on a machine that needs none; assembles NVIDIA's if ptxas is there.

uv run python scripts/check_gpu.py                           # every target, common dtypes
uv run python scripts/check_gpu.py sm_90a --match "*:mm*"    # some kernels for one
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mojo_runtime.generate import generate
from mojo_runtime.listing import kernel_keys
from mojo_runtime.sources import include_roots, resolve
from mojo_runtime.spec import KernelSpec
from mojo_runtime.target import Target
from mojo_runtime.toolchain import find_toolchain

TARGETS = ("sm_80", "sm_90a", "gfx942", "apple-m1")
DTYPES = ("float32", "bfloat16", "int64", "bool")
BATCH = 32  # kernels of one compiler run


def failures(specs: Sequence[KernelSpec], target: Target) -> Iterator[str]:
    """Compiles kernels to assembly and yields a message for each failure of the compiler or of ptxas."""
    source = generate(specs, {spec.module: resolve(spec).name for spec in specs})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernels.mojo").write_text(source.text)
        includes = [argument for root in include_roots() for argument in ("-I", str(root))]
        command = [str(find_toolchain().mojo), "build", "--emit", "asm", *target.arguments(), *includes, "kernels.mojo"]
        environment = {**os.environ, "MODULAR_CACHE_DIR": str(folder / "cache")}
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            listed = "\n".join(f"  line {line}: {spec.key}" for spec, line in source.lines.items())
            yield f"{target} does not compile:\n{run.stderr[-4000:]}\nkernels.mojo:\n{listed}"
        ptxas = shutil.which("ptxas")
        for ptx in folder.rglob("*.ptx") if ptxas else ():
            check = [str(ptxas), f"-arch={target.accelerator}", "-o", os.devnull, str(ptx)]
            run = subprocess.run(check, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                yield f"{target} {ptx.name}: {run.stderr}"


def main() -> int:
    """Checks what the command line says; returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"default: {' '.join(TARGETS)}")
    parser.add_argument(
        "--dtypes", default=",".join(DTYPES), help="only kernels of these; empty for all (default: %(default)s)"
    )
    parser.add_argument("--match", default="*", help="only kernels whose key matches")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every Nth kernel")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at the same time")
    options = parser.parse_args()
    dtypes = options.dtypes.split(",") if options.dtypes else None
    keys = [key for key in kernel_keys(dtypes) if fnmatch.fnmatch(key, options.match)][:: options.sample]
    specs = [KernelSpec.parse(key) for key in keys]
    batches = [
        (specs[start : start + BATCH], Target.parse(name))
        for name in options.targets or TARGETS
        for start in range(0, len(specs), BATCH)
    ]
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for (batch, target), messages in zip(batches, pool.map(lambda b: list(failures(*b)), batches), strict=True):
            print(f"{target.accelerator}: {len(batch)} kernels, {len(messages)} failures", flush=True)
            print("\n".join(messages), file=sys.stderr)
            failed += len(messages)
    return int(failed > 0 or not batches)


if __name__ == "__main__":
    sys.exit(main())
