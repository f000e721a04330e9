"""Runs random programs for a while: `uv run python -m tests.soak --minutes 20 --seed 1`.

A failure prints the program's seed; `--seed N --programs 1` runs that one again. `--forget-waits` leaves the waits
between streams out, and must find mismatches.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import resource
import sys
import time

os.environ.setdefault("MOJO_RUNTIME_DEVICES", "cpu:2")

import torch
from tests.soak.program import Mismatch, Program

import torch_mojo_backend

SIDE_STREAMS = 4
STEPS = 120


def arguments() -> argparse.Namespace:
    """Returns the command line's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next ones count up")
    parser.add_argument("--programs", type=int, default=None, help="how many programs at most")
    parser.add_argument("--no-faults", dest="faults", action="store_false", help="nothing is made to fail")
    parser.add_argument("--forget-waits", action="store_true")
    return parser.parse_args()


def allocated() -> list[int]:
    """Returns the allocated bytes of every device, when nothing runs."""
    gc.collect()
    count = torch.accelerator.device_count()
    for index in range(count):
        torch.accelerator.synchronize(index)
    return [torch.accelerator.memory_allocated(index) for index in range(count)]


def main() -> int:
    """Runs programs until the time is over or one fails."""
    options = arguments()
    torch_mojo_backend.register_mojo_devices()
    device = torch.accelerator.current_accelerator()
    assert device is not None
    devices = [torch.device(device.type, index) for index in range(torch.accelerator.device_count())]
    streams = [
        [torch.accelerator.current_stream(each), *(torch.Stream(each) for _ in range(SIDE_STREAMS))] for each in devices
    ]
    start, seed, counts = time.monotonic(), options.seed, collections.Counter[str]()
    rss = before = None
    reported = 0.0
    while time.monotonic() - start < 60 * options.minutes and (
        options.programs is None or seed - options.seed < options.programs
    ):
        program = Program(seed, streams, forgets_waits=options.forget_waits, faults=options.faults)
        try:
            program.run(STEPS)
            counts.update(program.counts)
            del program
            after = allocated()
            if before is not None and after != before:
                raise Mismatch(f"the program leaves {after} bytes allocated, {before} before it")
            before = after
        except Exception as error:
            print(f"program {seed}: {type(error).__name__}: {error}", flush=True)
            raise
        seed += 1
        if seed - options.seed == 50:  # kernels are loaded by now
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if time.monotonic() - reported > 60:
            reported = time.monotonic()
            print(f"{(reported - start) / 60:5.1f} min  {seed - options.seed} programs", flush=True)
    growth = "" if rss is None else f", memory +{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss) >> 10} MiB"
    print(f"{seed - options.seed} programs from seed {options.seed} passed{growth}: {dict(counts.most_common())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
