"""Whole ops, host code and kernels, compiled from Mojo and run through the stand-in for AsyncRT."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest
import torch

from ptxsim import DeviceArray, DeviceMemory, Options, PtxError, Simulator
from ptxsim.worker import Worker


@dataclasses.dataclass(frozen=True)
class InOut:
    """An array that the op changes."""

    array: np.ndarray


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an exported function: arrays go to device memory, a (shape, dtype) is an output that comes back."""

    library: str
    function: str
    arguments: tuple[object, ...]


@dataclasses.dataclass(frozen=True)
class Result:
    """The outputs, which of their elements were written, the status, and what was found."""

    outputs: list[np.ndarray]
    written: bool
    status: int
    found: str
    launches: int


def run(simulator: Simulator, call: Call) -> Result:
    library = simulator.load(call.library)
    arguments, outputs = [], []
    for i, argument in enumerate(call.arguments):
        if isinstance(argument, np.ndarray):
            array = simulator.memory.array(argument, f"argument {i}")
        elif isinstance(argument, InOut):
            array = simulator.memory.array(argument.array, f"argument {i}")
            outputs.append(array)
        elif isinstance(argument, tuple):
            array = simulator.memory.empty(*argument, f"argument {i}")
            outputs.append(array)
        else:
            arguments.append(ctypes.c_int64(argument))
            continue
        arguments.append(ctypes.c_void_p(array.address))
    status = getattr(library, call.function)(ctypes.c_void_p(simulator.context), *arguments)
    found = ""
    try:
        simulator.check()
    except PtxError as error:
        found = str(error)
    written = all(output.written().all() for output in outputs)
    return Result([o.numpy().copy() for o in outputs], written, status, found, len(simulator.launches))


@pytest.fixture(scope="module", params=[True, False], ids=["races", "no races"])
def sample(request, library):
    """Calls an op and returns its outputs; raises on any finding."""
    with Worker(run, options=Options(races=request.param)) as worker:

        def call(function, *arguments, check=True):
            result = worker(Call(str(library), function, arguments))
            if check:
                assert not result.found
                assert result.status == 0
                assert result.written
            return result

        call.races = request.param
        yield call


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def to_numpy(tensor):
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def from_numpy(array, dtype):
    return torch.from_numpy(array).view(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64], ids=str)
def test_elementwise_with_strides(sample, dtype):
    a, b = (normal(37, 50) * 100).to(dtype), (normal(50, 37, seed=1) * 100).to(dtype)
    o = ((37, 50), to_numpy(a).dtype)
    name = f"multiply_add_{str(dtype).removeprefix('torch.')}"
    result = sample(name, to_numpy(a), to_numpy(b), o, a.numel(), 50)
    expected = a * b.T + a if dtype == torch.int64 else (a.double() * b.T.double() + a.double()).to(dtype)
    torch.testing.assert_close(from_numpy(result.outputs[0], dtype), expected, rtol=0, atol=0)


def test_floor_division(sample):
    rng = np.random.default_rng(1)
    x, y = rng.integers(-(2**62), 2**62, 5000), rng.integers(-1000, 1000, 5000)
    y[y == 0] = 7
    result = sample("floor_divide", x, y, (5000, np.int64), 5000)
    np.testing.assert_array_equal(result.outputs[0], (x // y) * 1000 + x % y)


def test_math_functions(sample):
    x = torch.cat([torch.linspace(-6, 6, 1001), normal(500) * 3, torch.tensor([0.0, -0.0, 88.0, -100.0, 1e-3])])
    result = sample("math", to_numpy(x), ((6, x.numel()), np.float32), x.numel())
    functions = (torch.exp, torch.tanh, torch.erf, torch.log, torch.sqrt, torch.sin)
    expected = torch.stack([function(x) for function in functions])
    torch.testing.assert_close(torch.from_numpy(result.outputs[0]), expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_vectors_of_octets(sample):
    u = np.random.default_rng(2).integers(0, 256, 4096).astype(np.uint8)
    result = sample("copy_octets", u, (4096, np.int8), 4096)
    np.testing.assert_array_equal(result.outputs[0], ((u + np.uint8(200)).astype(np.int8) // 3).astype(np.int8))


def test_two_launches_with_a_temporary_buffer(sample):
    a, b = normal(37, 45), normal(45, 50, seed=1)
    result = sample("softmax_product", to_numpy(a), to_numpy(b), ((37, 50), np.float32), 37, 50, 45)
    assert result.launches == 2
    torch.testing.assert_close(torch.from_numpy(result.outputs[0]), a.softmax(-1) @ b, rtol=1e-4, atol=1e-5)


def test_a_missing_barrier_is_a_race(sample):
    a, b = normal(70, 45), normal(45, 50, seed=1)
    arguments = (to_numpy(a), to_numpy(b), ((70, 50), np.float32), 70, 50, 45)
    result = sample("racy_product", *arguments, check=False)
    assert ("race" in result.found) == sample.races


def test_dynamic_shared_memory(sample):
    x = normal(5, 200)
    arguments = (to_numpy(x), ((5, 200), np.float32), 5, 200)
    torch.testing.assert_close(torch.from_numpy(sample("reverse", *arguments, 800).outputs[0]), x.flip(1))
    result = sample("reverse", *arguments, 796, check=False)
    assert result.status == 1
    assert "out-of-bounds" in result.found
    assert "shared memory at offset 796" in result.found


def test_out_of_bounds_fails_the_call(sample):
    """A grid that is one block too large."""
    x = normal(5, 200)
    result = sample("reverse", to_numpy(x), ((6, 200), np.float32), 6, 200, 800, check=False)
    assert result.status == 1
    assert "byte offset 4000 of argument 0 (4000 bytes)" in result.found


def test_warp_operations(sample):
    x = normal(300)
    result = sample("warp_operations", to_numpy(x), ((3, 300), np.float32), 300)
    warps = torch.zeros(384)
    warps[:300] = x
    warps = warps.view(-1, 32)
    expected = [warps.cumsum(1), warps.amax(1, True).expand(-1, 32), warps[:, 3:4].expand(-1, 32)]
    expected = torch.stack([t.reshape(-1)[:300] for t in expected])
    torch.testing.assert_close(torch.from_numpy(result.outputs[0]), expected, rtol=1e-5, atol=1e-5)


def test_tensor_cores(sample):
    a, b = normal(48, 64).bfloat16(), normal(64, 40, seed=1).bfloat16()
    result = sample("tensor_core_product_bfloat16", to_numpy(a), to_numpy(b), ((48, 40), np.float32), 48, 40, 64)
    torch.testing.assert_close(torch.from_numpy(result.outputs[0]), a.float() @ b.float(), rtol=1e-4, atol=1e-4)


def test_local_arrays(sample):
    x = np.random.default_rng(3).integers(0, 100, (128, 25))
    result = sample("histogram", x, ((128, 8), np.int64), 128, 25)
    np.testing.assert_array_equal(result.outputs[0], [np.bincount(row & 7, minlength=8) for row in x])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_atomics(sample, dtype):
    index = torch.randint(0, 97, (2000,), generator=torch.Generator().manual_seed(0))
    source = torch.randint(-8, 8, (2000,), generator=torch.Generator().manual_seed(1)).to(dtype)
    o = InOut(to_numpy(torch.zeros(97, dtype=dtype)))
    name = f"scatter_add_{str(dtype).removeprefix('torch.')}"
    result = sample(name, to_numpy(source), to_numpy(index), o, 2000)
    expected = torch.zeros(97, dtype=torch.float64).index_add_(0, index, source.double()).to(dtype)
    torch.testing.assert_close(from_numpy(result.outputs[0], dtype), expected, rtol=0, atol=0)


def test_argument_layout(sample):
    result = sample("argument_layout", (10, np.int64))
    assert result.outputs[0].tolist() == [-3, 1 << 40, -77, 10, 200, 11, 22, 33, -5, 65535]


def test_device_array_knows_what_was_written():
    memory = DeviceMemory(1 << 16)
    array: DeviceArray = memory.empty((2, 3), np.float32)
    assert not array.written().any()
    memory.mark_initialised(array.address, 8)
    assert array.written().tolist() == [[True, True, False], [False, False, False]]
