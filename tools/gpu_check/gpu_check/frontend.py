"""The eager frontend on a simulated GPU: programs run through the dispatcher, the native core and its GPU driver.

This reaches the kernels that ops in Python and the shim launch, in the way that they launch them. Memory comes from the
runtime's allocator, so that only accesses outside of its blocks are found.
"""

from __future__ import annotations

import functools
import io
from pathlib import Path

import pytest
import torch

from gpu_check.programs import PROGRAMS
from mojo_runtime import driver
from mojo_runtime.target import Target
from mojo_runtime.toolchain import preload_runtime_libraries
from ptxsim import Simulator
from ptxsim.worker import Worker


@functools.cache
def _device(simulator: Simulator) -> torch.device:
    """Opens the simulated GPU and registers the frontend's device."""
    target = Target.parse("sm_80")
    library = driver.build_driver(target)
    preload_runtime_libraries()
    simulator.load(library)
    driver.open_gpus = lambda: driver.describe_gpus(library, target)
    import torch_mojo_eager

    torch_mojo_eager.register_mojo_devices()
    return torch.device("mojo")


def run_program(simulator: Simulator, name: str) -> tuple[bytes, list[str]]:
    """Runs in the worker; returns the saved results and the names of the kernels that were launched."""
    results = [result.detach().cpu() for result in PROGRAMS[name](_device(simulator))]
    simulator.check()
    buffer = io.BytesIO()
    torch.save(results, buffer)
    return buffer.getvalue(), [launch.kernel for launch in simulator.launches]


class Frontend:
    """Runs programs on a simulated GPU, in a worker.

    Args:
        cache: The folder of compiled kernels.
        memory_bytes: Of the GPU.
    """

    def __init__(self, cache: Path, memory_bytes: int = 256 << 20) -> None:
        self._cache = cache
        self._worker = Worker(run_program, memory_bytes, keep_memory=True)

    def __call__(self, name: str) -> list[torch.Tensor]:
        """Runs a program.

        Returns:
            What it returns.

        Raises:
            WorkerError: It raised, or the simulator found a hazard.
        """
        with pytest.MonkeyPatch.context() as patch:  # the worker, if it starts now, inherits it
            patch.setenv("TORCH_MOJO_BACKEND_CACHE_DIR", str(self._cache))
            patch.setenv("MOJO_RUNTIME_DEVICES", "gpu")
            results, launched = self._worker(name)
        if not launched:
            raise RuntimeError(f"{name} launched nothing on the GPU")
        tensors: list[torch.Tensor] = torch.load(io.BytesIO(results))
        return tensors

    def close(self) -> None:
        """Ends the worker."""
        self._worker.close()
