"""`torch-mojo-backend ops --missing`: all that a program lacks, in one run."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import torch

library = torch.library.Library("missing_test", "DEF")
library.define("absent(Tensor x) -> Tensor")
library.define("absent_too_(Tensor(a!) x, int by) -> Tensor(a!)")
library.impl("absent", lambda x: x + 1, "CPU")
library.impl("absent_too_", lambda x, by: x.add_(by), "CPU")

x = torch.zeros(3, device="mojo")
y = torch.ops.missing_test.absent(x)
assert y.device.type == "mojo"
for _ in range(2):
    z = torch.ops.missing_test.absent_too_(y, 4)
assert z is y
assert y.tolist() == [9, 9, 9]
print("arguments:", *sys.argv[1:])
if "fail" in sys.argv:
    raise ValueError("the program's own")
"""


def run(tmp_path, *arguments, program=PROGRAM):
    path = tmp_path / "model.py"
    path.write_text(program)
    command = [sys.executable, "-m", "mojo_runtime.cli", "ops", "--missing", str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_names_all_that_is_missing(tmp_path):
    result = run(tmp_path, "one", "--two")
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    assert "arguments: one --two" in lines
    assert any(line.startswith("missing_test::absent  1 calls  (float32)  model.py:12") for line in lines), lines
    assert any(line.startswith("missing_test::absent_too_  2 calls  (float32)  model.py:15") for line in lines), lines
    assert lines[-1].startswith("2 ops are missing")


def test_program_that_fails(tmp_path):
    result = run(tmp_path, "fail")
    assert result.returncode == 1
    assert "ValueError: the program's own" in result.stdout
    assert "2 ops are missing" in result.stdout


def test_program_that_lacks_nothing(tmp_path):
    result = run(tmp_path, program="import torch\nassert (torch.zeros(3, device='mojo') + 1).tolist() == [1, 1, 1]")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("0 ops are missing")


def test_program_elsewhere(tmp_path):
    result = run(tmp_path, program="import torch\ntorch.zeros(3) + 1")
    assert result.returncode == 1
    assert "no op ran on the mojo device" in result.stdout
