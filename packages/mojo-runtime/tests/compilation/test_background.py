from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

CHAINED = """
    import time
    import numpy as np
    import mojo_runtime as mojo

    specs = [mojo.KernelSpec({file!r}, "saxpy", dtype="float32", variant=i) for i in range(6)]
    x, y = mojo.array(np.ones(1000), "float32"), mojo.array(np.zeros(1000), "float32")
    slots = [mojo.slot(spec) for spec in specs]
    begin = time.perf_counter()
    for i in range(200):
        mojo.launch(slots[i % 6], [y, x], [1.0])
    issued = time.perf_counter() - begin
    builds = mojo.builds()
    result = y.numpy()
    waited = time.perf_counter() - begin
    assert (result == 200).all(), result
    print(issued, waited, builds)
"""

SHAPES = """
    import numpy as np
    import mojo_runtime as mojo

    spec = mojo.KernelSpec({file!r}, "saxpy", dtype="float32", variant=0)
    events = []
    for n in (1, 5, 64, 1000):
        for a in (0.0, 2.5, -1.0):
            x = mojo.array(np.arange(2 * n), "float32")
            y = mojo.array(np.ones(n), "float32")
            mojo.launch(spec, [y, x.strided((n,), (2,))], [a])
            assert (y.numpy() == 1 + a * np.arange(2 * n)[::2]).all(), (n, a)
            if not events:
                mojo.add_listener(events.append)
                events.append("listening")
    print(mojo.builds(), len(events) - 1)
"""

SAXPY = """
from mojo_kernels.abi import KernelCall

def saxpy[dtype: DType, variant: Int](call: KernelCall) raises:
    var y = call.tensor(0)
    var x = call.tensor(1)
    var a = call.float_scalar(0).cast[dtype]()
    for i in range(Int(y.numel)):
        var value = x.pointer[dtype]().unsafe_load(i * x.stride(0))
        y.pointer[dtype]().unsafe_store(i, y.pointer[dtype]().unsafe_load(i) + a * value)
"""


def run(program: str, tmp_path: Path, environment: dict[str, str], script: Callable[[str], list[str]]) -> list[float]:
    file = tmp_path / "saxpy.mojo"
    file.write_text(SAXPY)
    environment = {**environment, "MOJO_RUNTIME_DEVICES": "cpu"}
    command = script(program.format(file=str(file)))
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return [float(word) for word in result.stdout.split()]


def test_launches_return_at_once_while_kernels_compile(
    tmp_path: Path, fresh_environment: dict[str, str], script: Callable[[str], list[str]]
) -> None:
    issued, waited, builds = run(CHAINED, tmp_path, fresh_environment, script)
    assert issued < 0.02
    assert waited > 0.5
    assert builds <= 2  # as many as there are compilers, none of them done
    issued, waited, builds = run(CHAINED, tmp_path, fresh_environment, script)
    assert builds == 0
    assert waited < 0.5


def test_other_shapes_strides_and_values_compile_nothing(
    tmp_path: Path, fresh_environment: dict[str, str], script: Callable[[str], list[str]]
) -> None:
    assert run(SHAPES, tmp_path, fresh_environment, script) == [1, 0]
