"""Runs many nodes in another process, so that a crash or a hang costs one node."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import queue
import select
import subprocess
import sys
import threading
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


def outcomes(nodes: Sequence[Node], limit: int = 0, patience: float = 300, jobs: int = 1) -> Iterator[Outcome]:
    """Yields the outcomes of nodes, as they come.

    Args:
        nodes: What to run.
        limit: At most so many samples of each; 0 for all.
        patience: After so many seconds without an answer a node has failed.
        jobs: How many processes run nodes at the same time.
    """
    waiting, answers = collections.deque(nodes), queue.SimpleQueue[Outcome | None]()

    def work() -> None:
        for outcome in _answers(waiting, limit, patience):
            answers.put(outcome)
        answers.put(None)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    while threads:
        outcome = answers.get()
        if outcome is not None:
            yield outcome
        else:
            threads.pop()


def _answers(waiting: collections.deque[Node], limit: int, patience: float) -> Iterator[Outcome]:
    """Yields the outcomes of the nodes that one process after the other takes from the queue."""
    process: subprocess.Popen[bytes] | None = None
    while True:
        try:
            node = waiting.popleft()
        except IndexError:
            break
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
