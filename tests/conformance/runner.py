"""Runs many nodes in another process, so that a crash or a hang costs one node."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance.check import Outcome, run
from tests.conformance.nodes import Node

_ROOT = Path(__file__).resolve().parents[2]


def worker() -> None:
    """Reads nodes from the standard input, one a line, and writes their outcomes."""
    import torch_mojo_backend

    torch_mojo_backend.register_mojo_devices()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what ops print is no answer
    for line in sys.stdin:
        op, kind, dtype, limit = line.split()
        outcome = run(Node(op, kind, dtype), int(limit))
        answers.write(json.dumps([outcome.status, outcome.reason, outcome.seconds]) + "\n")
        answers.flush()


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.conformance", "worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
    )


def outcomes(nodes: Sequence[Node], limit: int = 0, patience: float = 300) -> Iterator[Outcome]:
    """Yields the outcomes of nodes.

    Args:
        nodes: What to run.
        limit: At most so many samples of each; 0 for all.
        patience: After so many seconds without an answer a node has failed.
    """
    process: subprocess.Popen[bytes] | None = None
    for node in nodes:
        if process is None:
            process = _start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(" ".join((*dataclasses.astuple(node), str(limit))).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], patience)
        answer = process.stdout.readline() if ready else b""
        if answer:
            yield Outcome(node, *json.loads(answer))
            continue
        process.kill()
        process.wait()
        reason = f"the process died with status {process.returncode}" if ready else "hangs"
        yield Outcome(node, "failed", reason, patience)
        process = None
    if process is not None:
        process.communicate()
