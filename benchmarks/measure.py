"""Two devices, one statement: alternating measurements in one process, so that both see the same noise."""

from __future__ import annotations

import dataclasses
import statistics
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

# Threads of stock PyTorch's loops look for work for some milliseconds after the last one (3.6 on an AMD server, by
# OpenMP's default of 300000 looks) and would take cores from what is measured next.
REST_SECONDS = 0.02


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long to measure one case.

    Attributes:
        rounds: Pairs of runs, ours and the reference's in turn.
        run_seconds: What the repetitions of a statement in one run take, about.
        quick: Whether slow cases are left out.
    """

    rounds: int = 15
    run_seconds: float = 0.01
    quick: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of the report; times in seconds per execution of the statement.

    Attributes:
        group: What is measured: the table it stands in.
        family: Rows of a family are summarized together.
        name: The case.
        ours: Median time on the device, None if the case did not run.
        reference: Median time on the reference device, None if there is none.
        ratio: Median of the rounds' ours / reference: below 1, ours is faster.
        low: First quartile of those ratios.
        high: Third quartile of those ratios.
        error: Why the case did not run.
        goal: The ratio, or the seconds where there is no reference, to stay below.
    """

    group: str
    family: str
    name: str
    ours: float | None = None
    reference: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    error: str = ""
    goal: float | None = None


def synchronizer(device: torch.device) -> Callable[[], None]:
    """Returns a function that waits for all work of the device."""
    if device.type == "cpu":
        return lambda: None
    module = torch.get_device_module(device)
    return lambda: module.synchronize(device)


def seconds(statement: Callable[[], Any] | timeit.Timer, repetitions: int, synchronize: Callable[[], None]) -> float:
    """Returns the time of one execution of the statement, over `repetitions` with one wait at the end."""
    timer = statement if isinstance(statement, timeit.Timer) else timeit.Timer(statement)
    start = time.perf_counter()
    timer.timeit(repetitions)
    synchronize()
    return (time.perf_counter() - start) / repetitions


def rested(statement: timeit.Timer, repetitions: int, synchronize: Callable[[], None]) -> float:
    """Returns what `seconds` does, after a rest in which the other side's threads go to sleep."""
    time.sleep(REST_SECONDS)
    return seconds(statement, repetitions, synchronize)


def alternate(
    result: Result,
    statement: str,
    sides: Sequence[tuple[torch.device, Mapping[str, Any]]],
    budget: Budget,
) -> Result:
    """Measures a statement in two namespaces in turn.

    Args:
        result: The row to fill in.
        statement: Python source, executed with each namespace as its globals.
        sides: Ours, then the reference: a device, and the statement's operands on it.
        budget: How long to measure.

    Returns:
        The row with times, or with the error that the statement raised on either device.
    """
    timers = [timeit.Timer(statement, globals=dict(namespace)) for _, namespace in sides]
    waits = [synchronizer(device) for device, _ in sides]
    try:
        for timer, wait in zip(timers, waits, strict=True):
            seconds(timer, 2, wait)
        once = seconds(timers[1], 1, waits[1])
        once = seconds(timers[1], max(1, int(1e-4 / once)), waits[1])
        repetitions = max(1, int(budget.run_seconds / once))
        pairs = [
            [rested(timer, repetitions, wait) for timer, wait in zip(timers, waits, strict=True)]
            for _ in range(budget.rounds)
        ]
    except (RuntimeError, TypeError, ValueError) as error:
        return dataclasses.replace(result, error=f"{type(error).__name__}: {error}".splitlines()[0])
    ratios = [ours / reference for ours, reference in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return dataclasses.replace(
        result,
        ours=statistics.median(ours for ours, _ in pairs),
        reference=statistics.median(reference for _, reference in pairs),
        ratio=middle,
        low=low,
        high=high,
    )
