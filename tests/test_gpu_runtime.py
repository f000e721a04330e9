"""The runtime's GPU side whole: its Mojo driver, the native core and a compiled kernel, on the simulated device.

The simulator takes the place of Mojo's device library, so that this file runs itself in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_runtime_on_the_simulated_gpu():
    tools = Path(__file__).parents[1] / "tools" / "ptxsim"
    environment = {**os.environ, "MOJO_RUNTIME_DEVICES": "gpu", "PYTHONPATH": str(tools)}
    result = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, timeout=600, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "1 kernel ran\n"


def main() -> None:
    from ptxsim.asyncrt import Simulator
    from ptxsim.memory import DeviceMemory

    simulator = Simulator(DeviceMemory())  # before Mojo's libraries

    import numpy as np
    import pytest

    import mojo_runtime
    from mojo_runtime import driver, memory
    from mojo_runtime.target import Target
    from mojo_runtime.toolchain import preload_runtime_libraries

    target = Target.parse("sm_80")
    library = driver.build_driver(target)
    preload_runtime_libraries()
    simulator.load(library)  # refuses what it does not stand in for
    driver.open_gpus = lambda: driver.describe_gpus(library, target)
    (gpu,) = mojo_runtime.initialize()
    assert (gpu.kind, gpu.name, gpu.cores, gpu.architecture) == ("gpu", "NVIDIA A100", 108, "sm_80")
    main_stream, side = mojo_runtime.default_stream(), mojo_runtime.Stream()
    assert side.id == 1

    values = np.arange(1000, dtype=np.float32)
    there = mojo_runtime.array(values)
    assert memory.pointer_device(there.address) == gpu
    other = mojo_runtime.empty(1000)
    other.copy_from(there)
    assert np.array_equal(other.numpy(), values)
    pinned = mojo_runtime.empty(1000, pinned=True)
    pinned.copy_from(there, stream=side)
    side.synchronize()
    assert np.array_equal(pinned.numpy(), values)

    event = side.record_event(mojo_runtime.Event(timing=True))
    main_stream.wait_event(event)
    event.synchronize()
    assert event.query()
    assert side.query()
    with pytest.raises(RuntimeError, match="no event times"):
        event.elapsed_time(event)

    # The values of CUDA for this seed.
    uniform = mojo_runtime.PhiloxGenerator(seed=0).uniform(mojo_runtime.empty(4))
    assert uniform.numpy() == pytest.approx([0.3990, 0.5167, 0.0249, 0.9401], abs=5e-5)
    simulator.check()

    with pytest.raises(mojo_runtime.OutOfMemoryError, match=r"tried to allocate 32\.00 TiB"):
        mojo_runtime.Memory(1 << 45)
    address = there.address
    del there, other, uniform
    mojo_runtime.empty_cache()
    assert memory.pointer_device(address) is None  # given back
    simulator.check()
    print(f"{len(simulator.launches)} kernel ran")


if __name__ == "__main__":
    main()
