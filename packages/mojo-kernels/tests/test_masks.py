"""Advanced indexing, masks, and the ranks of set elements, against torch."""

from __future__ import annotations

import pytest
import torch

NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int64: "int64", torch.bool: "bool"}


def index_key(op: str, dtype: torch.dtype, count: int) -> str:
    return f"indexing.advanced:index[count={count},dtype={NAMES[dtype]},op={op}]"


def key(name: str, dtype: torch.dtype, extra: str = "") -> str:
    return f"indexing.masks:{name}[dtype={NAMES[dtype]}{extra}]"


@pytest.fixture(scope="module")
def library(kernels):
    keys = [index_key(op, torch.float32, count) for op in ("get", "set", "add") for count in (1, 2)]
    keys += [index_key("add", torch.bfloat16, 1), index_key("get", torch.bool, 1)]
    keys += [key(name, dtype) for name in ("masked_select", "nonzero") for dtype in NAMES]
    return kernels([*keys, key("masked_select", torch.float32, ",scatters=yes")])


def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape).to(dtype)
    return torch.randint(-3, 4, shape)


def arrange(
    x: torch.Tensor, indices: list[torch.Tensor | None]
) -> tuple[torch.Tensor, list[torch.Tensor], list[object]]:
    """The kernel's views for neighbouring indices: see `indexing.advanced:index`."""
    indexed = [d for d, index in enumerate(indices) if index is not None]
    shape = torch.broadcast_shapes(*(index.shape for index in indices if index is not None))
    before, after = indexed[0], x.ndim - indexed[-1] - 1
    sizes = [*x.shape[:before], *shape, *x.shape[x.ndim - after :]]
    strides = [*x.stride()[:before], *[0] * len(shape), *x.stride()[x.ndim - after :]]
    views = [
        index.expand(shape).as_strided(
            sizes, [*[0] * before, *index.expand(shape).stride(), *[0] * after], index.storage_offset()
        )
        for index in indices
        if index is not None
    ]
    scalars = [word for d in indexed for word in (d, x.shape[d], x.stride(d))]
    return x.as_strided(sizes, strides, x.storage_offset()), views, scalars


INDICES = {
    "rows": [torch.tensor([3, 0, -1, 3, 2])],
    "columns": [None, torch.tensor([[1, -2], [5, 5]])],
    "last": [None, None, torch.tensor([8, 0])],
    "two": [torch.tensor([[0], [3], [-4]]), torch.tensor([1, 6])],
    "two_last": [None, torch.tensor([0, 3, 3, 0]), torch.tensor([1, 2, 2, 4])],
    "empty": [torch.tensor([], dtype=torch.int64)],
}


@pytest.mark.parametrize("case", INDICES)
def test_index(library, case: str) -> None:
    indices = INDICES[case]
    count = sum(index is not None for index in indices)
    selection = tuple(slice(None) if index is None else index for index in indices)
    for x in (torch.randn(4, 7, 9), torch.randn(9, 7, 4).permute(2, 1, 0), torch.randn(8, 7, 18)[::2, :, ::2]):
        expected = x[selection]
        view, views, scalars = arrange(x, indices)
        out = torch.empty_like(expected, memory_format=torch.contiguous_format)
        library(index_key("get", torch.float32, count), [out, view, *views], scalars)
        torch.testing.assert_close(out, expected)
        values = torch.randn(expected.shape)
        for op in ("set", "add"):
            if op == "set" and case in ("rows", "columns", "two_last"):
                continue  # repeated positions: any value may win
            target = x.clone(memory_format=torch.preserve_format)
            view, views, scalars = arrange(target, indices)
            library(index_key(op, torch.float32, count), [values, view, *views], scalars)
            wanted = torch.ops.aten.index_put(x, indices, values, op == "add")
            torch.testing.assert_close(target, wanted)


def test_index_many(library) -> None:
    """Sizes above the threshold for threads; sums of repeated positions."""
    x = torch.randn(3000, 50)
    i = torch.randint(-3000, 3000, (4000,))
    view, views, scalars = arrange(x, [i])
    out = torch.empty(4000, 50)
    library(index_key("get", torch.float32, 1), [out, view, *views], scalars)
    torch.testing.assert_close(out, x[i])
    for dtype in (torch.float32, torch.bfloat16):
        target = x[:50].to(dtype)
        j = torch.randint(0, 50, (400,))
        values = torch.ones(400, 50).to(dtype)
        view, views, scalars = arrange(target, [j])
        expected = target.index_put((j,), values, accumulate=True)
        library(index_key("add", dtype, 1), [values, view, *views], scalars)
        torch.testing.assert_close(target, expected)


def test_index_out_of_range(library) -> None:
    x = torch.randn(4, 3)
    for bad in (4, -5):
        for d in (0, 1):
            index = torch.tensor([0, bad])
            view, views, scalars = arrange(x, [None] * d + [index])
            size = x.shape[d]
            with pytest.raises(IndexError, match=f"index {bad} is out of bounds for dimension {d} with size {size}"):
                library(index_key("get", torch.float32, 1), [torch.empty(view.shape), view, *views], scalars)


MASKED = {
    "contiguous": lambda x: x,
    "permuted": lambda x: x.permute(2, 0, 1),
    "sliced": lambda x: x[:, ::2, 1:],
}


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("view", MASKED)
def test_masked_select_and_nonzero(library, dtype: torch.dtype, view: str) -> None:
    for shape in ((4, 6, 50), (3, 500, 70), (1, 2, 2)):
        x = MASKED[view](make(shape, dtype))
        mask = MASKED[view](torch.rand(shape) > 0.7)
        expected = x.masked_select(mask)
        out = torch.empty_like(expected)
        library(key("masked_select", dtype), [out, mask, x])
        torch.testing.assert_close(out, expected)
        wanted = x.nonzero()
        coordinates = torch.empty(wanted.shape, dtype=torch.int64)
        library(key("nonzero", dtype), [coordinates, x])
        assert torch.equal(coordinates, wanted)


def test_nonzero_of_nan(library) -> None:
    x = torch.tensor([0.0, float("nan"), -0.0, 2.0])
    out = torch.empty(2, 1, dtype=torch.int64)
    library(key("nonzero", torch.float32), [out, x])
    assert out.tolist() == [[1], [3]]


def test_masked_scatter(library) -> None:
    x, mask, source = torch.randn(50, 60).t(), torch.rand(60, 50) > 0.5, torch.randn(3000)
    expected = x.masked_scatter(mask, source)
    library(key("masked_select", torch.float32, ",scatters=yes"), [source, mask, x])
    torch.testing.assert_close(x, expected)
