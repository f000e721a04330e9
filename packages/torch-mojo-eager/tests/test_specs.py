"""What `prebuild` and the GPU checks know: every kernel that an op can ask for."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from torch_mojo_eager import ops
from torch_mojo_eager.ops import specs


def test_kernels_of_python_ops_are_listed():
    listed = {kernel.key.partition("[")[0].removeprefix("mojo_kernels.") for kernel in specs.kernels()}
    launched = {}
    for path in Path(ops.__file__).parent.glob("*.py"):
        for name in re.findall(r'launch\(\s*"([\w.]+:\w+)"', path.read_text()):
            launched.setdefault(name, path.name)
    assert len(launched) > 10
    assert {name: file for name, file in launched.items() if name not in listed} == {}


def test_every_registered_op_is_listed_once(device):
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1")
    names = {name.removeprefix("aten::") for name in registered if name.startswith("aten::")}
    listed = [line.name for line in specs.listing()]
    assert names - set(listed) == set()
    assert len(listed) == len(set(listed))
