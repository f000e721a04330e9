"""Compiles every GPU kernel for every target; see --help."""

from __future__ import annotations

import argparse
import sys
import time

from gpu_check.compile import TARGETS, check
from gpu_check.selection import all_kernels, sample


def main() -> int:
    """Returns the exit status: 1 if a kernel does not compile."""
    parser = argparse.ArgumentParser(prog="gpu_check", description=__doc__)
    parser.add_argument("--target", action="append", choices=TARGETS, help="an architecture; all by default")
    parser.add_argument("--sample", type=int, metavar="N", help="only N+1 kernels of each op")
    parser.add_argument("--match", default="", help="only kernels whose key contains this")
    parser.add_argument("--jobs", type=int, default=2, help="compilers to run at the same time")
    options = parser.parse_args()
    kernels = [kernel for kernel in all_kernels() if options.match in kernel.key]
    if options.sample is not None:
        kernels = sample(kernels, options.sample)
    started = time.monotonic()
    results = check(
        [k.key for k in kernels], options.target or TARGETS, options.jobs, lambda text: print(text, flush=True)
    )
    for result in results:
        for key, message in result.failures.items():
            print(f"\n{result.target}: {key}\n{message}")
    print(f"\n{'target':10} {'kernels':>9} {'functions':>9} {'failed':>9} {'seconds':>9}")
    for result in results:
        numbers = (result.kernels, result.functions, len(result.failures), round(result.seconds))
        print(f"{result.target:10}", *(f"{number:9}" for number in numbers))
    print(f"{time.monotonic() - started:.0f} s")
    return int(any(result.failures for result in results))


if __name__ == "__main__":
    sys.exit(main())
