"""The native core over a GPU driver, which here is a stand-in: each check runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mojo_runtime import driver, native_build
from mojo_runtime._native import DRIVER_FUNCTIONS
from mojo_runtime.target import Target

STAND_INS = Path(__file__).parent / "stand_ins"


@pytest.fixture(scope="session")
def library() -> Path:
    return native_build.build_library(
        "test_stand_in_driver",
        [STAND_INS / "driver.cpp"],
        include_directories=[native_build.include_directory()],
    )


@pytest.mark.parametrize(
    "check",
    [
        "properties",
        "launches_are_asynchronous_on_every_stream",
        "queued_launches_wait_for_the_kernel",
        "events_order_and_time_streams",
        "copies",
        "memory_is_reused_and_returned",
        "out_of_memory",
        "failures",
    ],
)
def test_stand_in_gpu(library, check):
    command = [sys.executable, str(STAND_INS / "gpu_process.py"), str(library), check]
    environment = {**os.environ, "MOJO_RUNTIME_DEVICES": "gpu"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="session")
def mojo_driver() -> Path:
    return driver.build_driver(Target.parse("sm_80"))


def test_mojo_driver_exports_every_function(mojo_driver):
    found, table = driver.load_driver(mojo_driver)
    assert all(getattr(table, name) for name in DRIVER_FUNCTIONS)
    assert found.mojo_driver_count() >= 0


def test_mojo_driver_without_gpus(mojo_driver):
    if driver.has_gpu_device_files():
        pytest.skip("this machine has a GPU")
    assert driver.describe_gpus(mojo_driver, Target.parse("sm_80")) is None
