"""Copies, casts, fills and sequences against CPU torch."""

from __future__ import annotations

import itertools

import pytest
import torch

BITS = {torch.uint8: "uint8", torch.int16: "uint16", torch.float32: "uint32", torch.int64: "uint64"}
DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8", "int8", "bool")


def copy_key(dtype):
    return f"copy:copy[dtype={BITS[dtype]}]"


def cast_key(source, destination):
    return f"copy:cast[destination={destination},source={source}]"


def fill_key(dtype):
    return f"fill:fill[dtype={dtype}]"


def range_key(function, dtype):
    return f"range:{function}[dtype={dtype}]"


RANGES = ("float32", "bfloat16", "float64", "int64", "uint8")


@pytest.fixture(scope="module")
def library(kernels):
    pairs = itertools.permutations(DTYPES, 2)
    return kernels(
        [copy_key(dtype) for dtype in BITS]
        + [cast_key(*pair) for pair in pairs]
        + [fill_key(dtype) for dtype in DTYPES]
        + [range_key(function, dtype) for function in ("arange", "linspace") for dtype in RANGES]
    )


def views(dtype):
    """Pairs of views of the same sizes: every order of dimensions, gaps, expanded inputs, sizes around the tiles."""

    def numbered(*shape):
        count = torch.Size(shape).numel()
        return (torch.arange(count) % 251).to(dtype).reshape(shape)

    for shape in ((33, 47), (16, 16), (8, 200), (1, 70), (3, 2), (130, 17)):
        yield numbered(*shape).t(), numbered(*reversed(shape))
        yield numbered(*shape), numbered(*shape)
    cube = numbered(5, 18, 34)
    for order in itertools.permutations(range(3)):
        permuted = cube.permute(order)
        yield permuted, torch.zeros(permuted.shape, dtype=dtype)
        yield permuted.contiguous(), torch.zeros_like(cube).permute(order)
    wide = numbered(40, 90)
    yield wide[3:35, 1:81:2].t(), torch.zeros(40, 32, dtype=dtype)
    yield wide[3:35, 1:81:2], torch.zeros(32, 120, dtype=dtype)[:, ::3]
    yield numbered(40).expand(20, 40), torch.zeros(20, 40, dtype=dtype)
    yield numbered(40, 1).expand(40, 20), torch.zeros(20, 40, dtype=dtype).t()
    yield numbered(4, 3, 20, 24).permute(0, 2, 3, 1), torch.zeros(4, 20, 24, 3, dtype=dtype)
    yield numbered(1), torch.zeros(1, dtype=dtype)
    yield numbered(0, 3), torch.zeros(0, 3, dtype=dtype)
    yield numbered(1), torch.zeros(1, dtype=dtype).reshape(())
    yield numbered(2, 300, 400).transpose(1, 2), torch.zeros(2, 400, 300, dtype=dtype)


@pytest.mark.parametrize("dtype", list(BITS), ids=str)
def test_copy_between_layouts(library, dtype):
    for source, destination in views(dtype):
        source = source.reshape(destination.shape) if source.numel() == 1 else source
        for call in (library, lambda key, tensors: library.pointwise(key, tensors[0], tensors[1:])):
            destination.zero_()
            call(copy_key(dtype), [destination, source])
            torch.testing.assert_close(destination, source, rtol=0, atol=0)


@pytest.mark.parametrize("destination", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_cast(library, source, destination):
    """Values that every type holds, then the edges, where the conversion is torch's."""
    if source == destination:
        pytest.skip("a copy")
    source_type, destination_type = getattr(torch, source), getattr(torch, destination)
    x = (torch.arange(1003) % 120).to(source_type)
    if source_type.is_floating_point:
        x[: x.numel() // 2] -= 60 if destination != "uint8" else 0
        x += torch.linspace(0, 0.99, x.numel()).to(source_type)
        if destination_type.is_floating_point or destination == "bool":
            x[::100] = float("nan")
            x[1::100] = float("inf")
            x[2::100] = -0.0
            x[3::100] = 3e4
    elif source not in ("bool", "uint8"):
        x[::3] = -x[::3]
        x[5] = torch.iinfo(source_type).max
    out = torch.empty(x.shape, dtype=destination_type)
    library(cast_key(source, destination), [out, x])
    torch.testing.assert_close(out, x.to(destination_type), rtol=0, atol=0, equal_nan=True)
    strided = torch.empty(17, 59, dtype=destination_type).t()
    library(cast_key(source, destination), [strided, x.reshape(59, 17)])
    torch.testing.assert_close(strided, x.reshape(59, 17).to(destination_type), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("destination", ["int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16"])
def test_cast_beyond_the_range(library, source, destination):
    """Floats that no integer of the type is near give what the CPU's conversion gives, as in torch."""
    values = [1e3, -1e3, 7e4, float("nan")] if destination in ("int8", "uint8") else [float("nan"), float("inf"), -1e30]
    x = torch.tensor(values * 40, dtype=getattr(torch, source))
    out = torch.empty(x.shape, dtype=getattr(torch, destination))
    library(cast_key(source, destination), [out, x])
    torch.testing.assert_close(out, x.to(out.dtype), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill(library, dtype):
    for view in (torch.zeros(1003), torch.zeros(30, 40)[::2, 1::3], torch.zeros(())):
        base = torch.zeros(view.untyped_storage().nbytes() // 4, dtype=getattr(torch, dtype))
        filled = base.as_strided(view.shape, view.stride(), view.storage_offset())
        library.pointwise(fill_key(dtype), filled, [], [library.number(3)])
        expected = torch.zeros_like(base)
        expected.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(3)
        torch.testing.assert_close(base, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize(("start", "end", "step"), [(0, 100, 1), (3, 200, 7), (1, 2, 5), (90, 3, -4)])
def test_arange(library, dtype, start, end, step):
    expected = torch.arange(start, end, step, dtype=getattr(torch, dtype))
    for out in (torch.empty_like(expected), torch.empty(2 * len(expected), dtype=expected.dtype)[::2]):
        library(range_key("arange", dtype), [out], [library.number(start), library.number(step)])
        torch.testing.assert_close(out, expected)


def test_arange_of_fractions(library):
    expected = torch.arange(-1.5, 100, 0.1)
    out = torch.empty_like(expected)
    library(range_key("arange", "float32"), [out], [library.number(-1.5), library.number(0.1)])
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 1000])
def test_linspace(library, dtype, steps):
    expected = torch.linspace(3, 97, steps, dtype=getattr(torch, dtype))
    out = torch.empty_like(expected)
    library(range_key("linspace", dtype), [out], [library.number(3), library.number(97)])
    torch.testing.assert_close(out, expected)
