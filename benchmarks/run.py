"""Measures the mojo device against stock PyTorch on the CPU, in one process, alternating.

    uv run python benchmarks/run.py                            # everything, about a quarter of an hour
    uv run python benchmarks/run.py --quick                    # a sample of everything
    uv run python benchmarks/run.py kernels --only "matmul:"   # some kernel cases

Writes OUT.json and OUT.html.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

import torch

import compiled
import host_cost
import kernels
import report
import startup
from measure import Budget, Result

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "examples"))

import training  # noqa: E402 (measures the example found through the line above)

GROUPS = ("host_cost", "kernels", "training", "startup", "compiled")


def processor() -> str:
    """Returns the CPU's name, as well as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def environment(device: torch.device, reference: torch.device) -> dict[str, str]:
    """Returns what was measured where."""
    versions = {name: metadata.version(name) for name in ("torch", "mojo", "max")}
    describe = ["git", "describe", "--always", "--dirty"]
    revision = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "ours": str(device),
        "reference": str(reference),
        "machine": f"{processor()}, {os.cpu_count()} processors, {platform.system()}",
        "threads": str(torch.get_num_threads()),
        "versions": ", ".join([f"python {platform.python_version()}", *(f"{n} {v}" for n, v in versions.items())]),
        "revision": revision or "unknown",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def line(result: Result) -> str:
    """Returns a result as a line for the terminal."""
    name = f"{result.family}: {result.name}"
    if result.error:
        return f"{name:84} {result.error}"
    ratio = "" if result.ratio is None else f"{result.ratio:6.2f}"
    return f"{name:84} {report.duration(result.ours):>9} {report.duration(result.reference):>9} {ratio}"


def main() -> int:
    """Runs the benchmarks; returns 1 if a case did not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--device", default="mojo", help="what is measured")
    parser.add_argument("--reference", default="cpu", help="what it is compared with")
    parser.add_argument("--only", default="", help='regular expression over "family: case" of the kernels')
    parser.add_argument(
        "--threads", type=int, help="of both sides; 1 where other work disturbs (default: one per core)"
    )
    parser.add_argument("--quick", action="store_true", help="few cases, few rounds")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "benchmarks", help="path without suffix")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}: choose from {', '.join(GROUPS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
        os.environ["TORCH_MOJO_BACKEND_THREADS"] = str(options.threads)
    if options.device.split(":")[0] == "mojo":
        import torch_mojo_backend

        torch_mojo_backend.register_mojo_devices()
    device, reference = torch.device(options.device), torch.device(options.reference)
    budget = Budget(rounds=11, run_seconds=0.001, quick=True) if options.quick else Budget()
    runners: dict[str, Callable[..., Iterator[Result]]] = {
        "host_cost": host_cost.run,
        "kernels": partial(kernels.run, only=options.only),
        "training": training.run,
        "startup": startup.run,
        "compiled": compiled.run,
    }
    results = []
    for group in options.groups or GROUPS:
        for result in runners[group](device, reference, budget):
            results.append(result)
            print(line(result), flush=True)
    facts = environment(device, reference)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [dataclasses.asdict(result) for result in results]
    options.out.with_suffix(".json").write_text(json.dumps({"environment": facts, "results": rows}, indent=1))
    options.out.with_suffix(".html").write_text(report.page(results, facts))
    for family, members in report.families(results):
        ratio = report.median_ratio(members)
        if ratio is not None:
            print(f"{family}: median ratio {ratio:.2f} over {len(members)} cases")
    print(f"report: {options.out.with_suffix('.html')}")
    return int(any(result.error for result in results))


if __name__ == "__main__":
    sys.exit(main())
