"""Reading and writing by indices against CPU torch: every op, its gradient, and its errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

Move = Callable[[torch.Tensor], torch.Tensor]
X = torch.randn(6, 7, 4, generator=torch.Generator().manual_seed(0))
SOURCE = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(1))
AT = torch.tensor([3, 0, 3, 6, 1])
PLACES = torch.randint(0, 7, (6, 5, 4), generator=torch.Generator().manual_seed(2))
TABLE = torch.randn(20, 5, generator=torch.Generator().manual_seed(3))
TOKENS = torch.randint(0, 20, (11,), generator=torch.Generator().manual_seed(4))
BAGS = torch.tensor([0, 4, 4, 9])
WEIGHTS = torch.randn(11, generator=torch.Generator().manual_seed(5))


def _bag(on: Move, **options: object) -> torch.Tensor:
    return functional.embedding_bag(on(TOKENS), on(TABLE), on(BAGS), **options)


def _gradients(function: Callable[..., torch.Tensor], *leaves: torch.Tensor) -> list[torch.Tensor]:
    leaves = tuple(leaf.detach().clone().requires_grad_() for leaf in leaves)
    result = function(*leaves)
    weight = torch.arange(1.0, result.numel() + 1).view(result.shape).to(result.device)
    return list(torch.autograd.grad((result * weight).sum(), leaves))


def _renormed(on: Move) -> list[torch.Tensor]:
    table = on(TABLE).clone()
    return [functional.embedding(on(TOKENS), table, max_norm=1.0), table]


REDUCTIONS = [(reduce, include) for reduce in ("prod", "mean", "amax", "amin") for include in (False, True)]
CASES: dict[str, Callable[[Move], torch.Tensor | tuple[torch.Tensor, ...] | list[torch.Tensor]]] = {
    **{
        f"index_reduce_{reduce}_{include}": lambda on, r=reduce, i=include: on(X).index_reduce(
            1, on(AT), on(SOURCE), r, include_self=i
        )
        for reduce, include in REDUCTIONS
    },
    **{
        f"scatter_reduce_{reduce}_{include}": lambda on, r=reduce, i=include: on(X).scatter_reduce(
            1, on(PLACES), on(SOURCE), r, include_self=i
        )
        for reduce, include in REDUCTIONS
    },
    "index_add": lambda on: on(X).index_add(1, on(AT), on(SOURCE), alpha=0.5),
    "index_copy": lambda on: on(X).index_copy(1, on(AT[1:]), on(SOURCE[:, 1:])),
    "index_fill": lambda on: on(X).index_fill(0, on(AT[1:3]), 2.5),
    "index_select_out": lambda on: torch.index_select(on(X), 1, on(AT), out=on(torch.empty(0))),
    "index_of_scalar": lambda on: on(X[0, 0, 0]).index_select(0, on(torch.tensor([0]))),
    "index_int32": lambda on: on(X)[:, on(AT.int())],
    "index_of_mask_and_none": lambda on: on(X)[on(X[:, :, 0] > 0), None],
    "index_of_empty": lambda on: on(X)[on(torch.zeros(0, dtype=torch.int64))],
    "index_strided": lambda on: on(X).transpose(0, 2)[:, on(AT)[::2], 1:],
    "put": lambda on: on(X).put(on(AT), on(SOURCE[0, :, 0])),
    "put_accumulate": lambda on: on(X).transpose(0, 1).put(on(AT), on(SOURCE[0, :, 0]), accumulate=True),
    "index_put_repeated": lambda on: on(X).index_put((on(AT[:3]),) * 2, on(torch.ones(4)), accumulate=True),
    "take_along_dim": lambda on: torch.take_along_dim(on(X), on(X).argsort(1), 1),
    "nonzero_static": lambda on: torch.nonzero_static(on(X > 1), size=40, fill_value=-7),
    "tril_indices": lambda on: torch.tril_indices(4, 6, 1, device=on(X).device),
    "triu_indices": lambda on: torch.triu_indices(4, 6, -1, device=on(X).device),
    "one_hot": lambda on: functional.one_hot(on(AT), 9),
    "repeat_interleave": lambda on: on(X).repeat_interleave(on(torch.tensor([2, 0, 1, 3, 1, 1])), 0),
    "renorm": lambda on: torch.renorm(on(X), 2, 1, 3.0),
    "embedding_max_norm": _renormed,
    "bag_sum": lambda on: _bag(on, mode="sum", per_sample_weights=on(WEIGHTS)),
    "bag_mean": lambda on: _bag(on, mode="mean", padding_idx=int(TOKENS[1])),
    "bag_max": lambda on: functional.embedding_bag(
        on(TOKENS), on(TABLE), on(torch.tensor([0, 4, 4, 11])), mode="max", include_last_offset=True
    ),
    "bag_matrix": lambda on: functional.embedding_bag(on(TOKENS[:10].view(2, 5)), on(TABLE)),
    "bag_sum_backward": lambda on: _gradients(
        lambda t, w: functional.embedding_bag(on(TOKENS), t, on(BAGS), mode="sum", per_sample_weights=w),
        on(TABLE),
        on(WEIGHTS),
    ),
    "bag_mean_backward": lambda on: _gradients(
        lambda t: functional.embedding_bag(on(TOKENS), t, on(BAGS), padding_idx=3), on(TABLE)
    ),
    "bag_max_backward": lambda on: _gradients(
        lambda t: functional.embedding_bag(on(TOKENS), t, on(BAGS), mode="max"), on(TABLE)
    ),
    "index_backward": lambda on: _gradients(lambda x: x[on(AT[:3]), on(AT[:3])], on(X)),
    "take_backward": lambda on: _gradients(lambda x: x.take(on(AT)), on(X)),
}


@pytest.mark.parametrize("name", CASES)
def test_values(device, name):
    expected, actual = CASES[name](lambda x: x), CASES[name](lambda x: x.to(device))
    if isinstance(expected, torch.Tensor):
        expected, actual = (expected,), (actual,)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.cpu(), theirs)


FAR = torch.tensor([0, 99])
ERRORS: dict[str, tuple[type[Exception], Callable[[Move], torch.Tensor]]] = {
    "index": (IndexError, lambda on: on(X)[on(FAR)]),
    "index_put": (IndexError, lambda on: on(X).index_put((on(FAR),), on(X[:2]))),
    "index_select": (IndexError, lambda on: on(X).index_select(0, on(FAR))),
    "index_add": (IndexError, lambda on: on(X[:, 0, 0]).index_add(0, on(FAR), on(X[:2, 0, 0]))),
    "index_reduce": (IndexError, lambda on: on(X).index_reduce(0, on(FAR), on(X[:2]), "prod")),
    "embedding": (IndexError, lambda on: functional.embedding(on(FAR), on(TABLE))),
    "take": (IndexError, lambda on: on(X).take(on(FAR * 99))),
    "put": (IndexError, lambda on: on(X).put(on(FAR * 99), on(X[0, 0, :2]))),
    "gather": (RuntimeError, lambda on: on(X).gather(0, on(PLACES[:1]) + 90)),
    "scatter": (RuntimeError, lambda on: on(X).scatter(0, on(PLACES[:1]) + 90, 1.0)),
    "mask": (IndexError, lambda on: on(X)[on(X[:2] > 0)]),
    "too_many": (IndexError, lambda on: on(X)[(on(AT),) * 4]),
    "no_broadcast": (IndexError, lambda on: on(X)[on(AT), on(AT[:2])]),
    "float": (IndexError, lambda on: on(X)[on(X)]),
    "dimension": (IndexError, lambda on: on(X).index_select(3, on(AT))),
    "values": (RuntimeError, lambda on: on(X).index_put((on(AT[:2]),), on(X[:3]))),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_those_of_torch(device, name):
    error, call = ERRORS[name]
    for where in ("cpu", device):
        with pytest.raises(error):
            call(lambda x, w=where: x.to(w)).cpu()


def test_accumulation_does_not_change_from_run_to_run(device):
    x, at = torch.randn(20000).to(device), torch.randint(0, 50, (20000,)).to(device)
    sums = [torch.zeros(50, device=device).index_put_((at,), x, accumulate=True).cpu() for _ in range(3)]
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])


OUT_FORMS: dict[str, Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]] = {
    "take": lambda x, out: torch.take(x, torch.tensor([1, 5], device=x.device), out=out[0]),
    "masked_select": lambda x, out: torch.masked_select(x, x > 0, out=out[0]),
    "var": lambda x, out: torch.var(x, 1, out=out[0]),
    "kthvalue": lambda x, out: torch.kthvalue(x, 2, 1, out=(out[0], out[1].long())),
}


@pytest.mark.parametrize("name", OUT_FORMS)
def test_out_forms_resize_and_refuse(device, name):
    results = []
    for where in (device, "cpu"):
        out = [torch.empty(0, device=where) for _ in range(2)]
        result = OUT_FORMS[name](X[0].to(where), out)
        first = result[0] if isinstance(result, tuple) else result
        assert first is out[0]
        results.append(first.cpu())
        if name == "take":
            with pytest.raises(RuntimeError, match="single memory location"):
                OUT_FORMS[name](X[0].to(where), [torch.zeros(1, device=where).expand(2)])
    torch.testing.assert_close(*results)


REFUSED_OUTPUTS: dict[str, Callable[[torch.Tensor], object]] = {
    "index_select into repeated memory": lambda x: torch.index_select(
        x, 1, torch.tensor([0, 1], device=x.device), out=x.new_empty(1, 8).expand(2, 8)
    ),
    "masked_select into its input": lambda x: torch.masked_select(x, x > 0, out=x[0]),
    "multinomial into floats": lambda x: torch.multinomial(x.abs(), 2, out=x.new_empty(0)),
    "aminmax into one tensor": lambda x: torch.aminmax(x, dim=0, out=(out := x.new_empty(x.shape[1]), out)),
    "addmm into a part of itself": lambda x: torch.addmm(x[:2, :2], x[:2, :7], x[:7, :2], out=x[1:3, :2]),
}


@pytest.mark.parametrize("name", REFUSED_OUTPUTS)
def test_outputs_that_torch_refuses(device, name):
    errors = []
    for where in ("cpu", device):
        with pytest.raises((RuntimeError, ValueError)) as raised:
            REFUSED_OUTPUTS[name](X[0].to(where))
        errors.append(type(raised.value))
    assert errors[0] == errors[1]


def test_an_output_may_be_what_the_in_place_form_updates(device):
    expected, left, right = X[1, :4, :4].clone(), X[0].t(), X[0]
    result = expected.to(device)
    torch.addmm(expected, left, right, out=expected)
    torch.addmm(result, left.to(device), right.to(device), out=result)
    torch.testing.assert_close(result.cpu(), expected)


def test_gradient_of_an_empty_index_with_more_dimensions(device):
    x = torch.randn(5, device=device, requires_grad=True)
    chosen = x.gather(0, torch.empty(2, 0, dtype=torch.int64, device=device))
    (grad,) = torch.autograd.grad(chosen, x, torch.empty_like(chosen))
    torch.testing.assert_close(grad.cpu(), torch.zeros(5))
