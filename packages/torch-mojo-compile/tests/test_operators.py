"""torch's operator database: what lowers, and that it computes what CPU torch does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from torch_mojo_compile import mojo_backend
from torch_mojo_compile.graph import Lowered

ENTRIES = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}

# The database's own draws are not those of the generator in a graph.
RANDOM = """
    bernoulli cauchy exponential geometric log_normal nn.functional.alpha_dropout nn.functional.dropout
    nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout.with_train normal.in_place
    normal rand_like randint randint_like randn randn_like randperm uniform empty empty_like empty_permuted
    empty_strided new_empty new_empty_strided nn.functional.rrelu multinomial normal.number_mean
    pca_lowrank svd_lowrank
"""

REFUSED = {
    "sizes, branches or numbers that depend on data": """
        item allclose equal masked_select unique unique_consecutive nonzero argwhere bincount
        corrcoef cov nn.functional.one_hot nn.functional.gaussian_nll_loss nn.functional.ctc_loss
    """,
    "complex, sparse and resized tensors": """
        view_as_complex complex polar cdouble cfloat chalf stft sparse.sampled_addmm sparse.mm.reduce to_sparse
        resize_as_ fft.fft fft.fft2 fft.fftn fft.hfft fft.hfft2 fft.hfftn fft.rfft fft.rfft2 fft.rfftn fft.ifft
        fft.ifft2 fft.ifftn fft.ihfft fft.ihfft2 fft.ihfftn fft.irfft fft.irfft2 fft.irfftn
    """,
    "factorizations without a kernel, or with sizes that depend on data": """
        linalg.eig linalg.eigvals linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve linalg.lstsq
        linalg.lstsq.grad_oriented linalg.matrix_sqrth linalg.polar matrix_exp
    """,
    "kernels that eager mode calls from Python, or does not have": """
        _segment_reduce.lengths _segment_reduce.offsets frexp hash_tensor
        nn.functional.linear_cross_entropy.chunked nn.functional.linear_cross_entropy.chunked_none
    """,
    "of CUDA alone": """
        jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary
        jiterator_binary_return_by_ref jiterator_unary
    """,
}
"""Entries that do not lower for float32 or int64, by reason; one that does is an error."""

TIES = {"argsort": 0, "sort": 0, "kthvalue": 1, "topk": 1}
"""Entries whose last result is positions, of which equal elements may have any: where `dim` is among the arguments."""

ABSENT = {name: reason for reason, names in REFUSED.items() for name in names.split()}


@dataclasses.dataclass(frozen=True)
class Case:
    """A sample of an entry.

    Attributes:
        name: The entry's.
        function: Takes the tensors, returns the results that are tensors.
        tensors: The sample's.
        positions: The dimension along which the last result is positions of elements, any of equal ones.
    """

    name: str
    function: Callable[..., list[Tensor]]
    tensors: list[Tensor]
    positions: int | None = None


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _dimension_of_positions(name: str, args: Any, kwargs: Any) -> int | None:
    place = TIES.get(name)
    if place is None or kwargs.get("stable"):
        return None
    dim = args[place] if place < len(args) else kwargs.get("dim", -1)
    return int(dim)


def cases(name: str, dtype: torch.dtype, count: int) -> Iterator[Case]:
    """Yields samples of an entry that have elements, spread over those of the database.

    Args:
        name: Of the entry.
        dtype: Of the samples; one that the entry does not have has no samples.
        count: How many, at most.
    """
    op = ENTRIES[name]
    if dtype not in op.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", dtype))
    trees = [((sample.input, sample.args, sample.kwargs), sample.output_process_fn_grad) for sample in samples]
    trees = [(tree, unique) for tree, unique in trees if all(tensor.numel() for tensor in _tensors(tree))]
    for tree, unique in trees[:: max(1, len(trees) // count)][:count]:
        leaves, layout = pytree.tree_flatten(tree)

        def function(
            *tensors: Tensor, _leaves: Any = leaves, _layout: Any = layout, _unique: Any = unique
        ) -> list[Tensor]:
            given = iter(tensors)
            filled = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in _leaves]
            first, args, kwargs = pytree.tree_unflatten(filled, _layout)
            # What is unique of the results: of singular vectors their absolute values.
            return _tensors(_unique(op(first, *args, **kwargs)))

        _, args, kwargs = tree
        tensors = [tensor.detach() for tensor in _tensors(tree)]
        yield Case(name, function, tensors, _dimension_of_positions(name, args, kwargs))


@torch.no_grad()
def compiled(function: Callable[..., list[Tensor]], tensors: list[Tensor]) -> Callable[[list[Tensor]], list[Tensor]]:
    """Compiles a function without dynamo, which does not trace what the database wraps functions in."""
    graph = make_fx(function)(*[tensor.clone() for tensor in tensors])
    call = mojo_backend(graph, [tensor.clone() for tensor in tensors])

    def run(given: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return list(call(*[tensor.clone() for tensor in given]))

    return run


@pytest.mark.parametrize("name", ENTRIES)
def test_lowers_unless_declared_absent(name: str, lowered: list[Lowered]) -> None:
    found = [case for dtype in (torch.float32, torch.int64) for case in cases(name, dtype, 1)]
    if not found:
        pytest.skip("no sample with elements of these dtypes")
    refusals = []
    for case in found:
        try:
            compiled(case.function, case.tensors)
        except Exception as error:
            refusals.append(error)
            if name not in ABSENT:
                raise
    assert bool(refusals) == (name in ABSENT), "an entry that is declared absent lowers"


def _batches(dtype: torch.dtype) -> list[list[str]]:
    names = [
        name
        for name, op in ENTRIES.items()
        if dtype in op.supported_dtypes("cpu") and name not in (*RANDOM.split(), *ABSENT)
    ]
    return [names[i : i + 100] for i in range(0, len(names), 100)]


def _assert_close(ours: Any, expected: Any) -> None:
    torch.testing.assert_close(ours, expected, equal_nan=True, check_stride=False)


def _assert_positions(x: Tensor, ours: Tensor, expected: Tensor, dim: int) -> None:
    """Positions choose the elements that the expected ones do, and none of them twice."""
    assert ours.dtype == expected.dtype and ours.shape == expected.shape
    if ours.ndim < x.ndim:
        ours, expected = ours.unsqueeze(dim), expected.unsqueeze(dim)
    _assert_close(torch.take_along_dim(x, ours, dim), torch.take_along_dim(x, expected, dim))
    assert not (torch.diff(ours.sort(dim).values, dim=dim) == 0).any(), "a position is there twice"


def _assert_like_cpu(case: Case, ours: list[Tensor]) -> None:
    """Results are CPU torch's; where rounding on its way took those further away, they are what it has in float64."""
    expected = case.function(*case.tensors)
    assert len(ours) == len(expected)
    if case.positions is not None:
        x = torch.atleast_1d(case.tensors[0])
        _assert_positions(x, torch.atleast_1d(ours[-1]), torch.atleast_1d(expected[-1]), case.positions)
        ours, expected = ours[:-1], expected[:-1]
    try:
        _assert_close(ours, expected)
    except AssertionError:
        if not any(tensor.is_floating_point() for tensor in case.tensors):
            raise
        exact = case.function(*[tensor.double() if tensor.is_floating_point() else tensor for tensor in case.tensors])
        assert [result.dtype for result in ours] == [result.dtype for result in expected]
        _assert_close(ours, [result.to(like.dtype) for result, like in zip(exact, expected, strict=True)])


@pytest.mark.models
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch", range(6))
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool], ids=str)
def test_numbers_match_cpu(dtype: torch.dtype, batch: int) -> None:
    """One model computes a hundred entries: compiling takes MAX seconds for any graph and little more for each op."""
    batches = _batches(dtype)
    if batch >= len(batches):
        pytest.skip("fewer entries have this dtype")
    chosen = [case for name in batches[batch] for case in cases(name, dtype, 1)]
    tensors = [tensor for case in chosen for tensor in case.tensors]

    def function(*given: Tensor) -> list[Tensor]:
        results: list[Tensor] = []
        remaining = list(given)
        for case in chosen:
            count = len(case.tensors)
            results += case.function(*remaining[:count])
            remaining = remaining[count:]
        return results

    found = compiled(function, tensors)(tensors)
    wrong = []
    for case in chosen:
        count = len(case.function(*case.tensors))
        ours, found = found[:count], found[count:]
        try:
            _assert_like_cpu(case, ours)
        except AssertionError as error:
            wrong.append(f"{case.name}: {error}")
    assert not wrong, "\n".join(wrong)
