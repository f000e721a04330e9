"""Functional `_foreach` ops, whose outputs torch does not allocate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mojo_runtime.aten.table import FLOATING
from mojo_runtime.aten.tables.optimizer import FOREACH, FOREACH_OPS, Foreach
from torch_mojo_eager.ops.registry import launch, number, op

KERNELS = (("optimizer.foreach:foreach_norm[dtype={0},out={1}]", (FLOATING, FLOATING)),)

Tensors = Sequence[torch.Tensor]


def _uniform(lists: Sequence[Tensors]) -> bool:
    """Whether one launch can take the lists: one floating dtype, and corresponding tensors have the same sizes."""
    first = lists[0]
    return (
        len(first) > 0
        and first[0].dtype.is_floating_point
        and all(len(tensors) == len(first) for tensors in lists)
        and all(tensor.dtype == first[0].dtype for tensors in lists for tensor in tensors)
        and all(x.shape == y.shape for tensors in lists[1:] for x, y in zip(first, tensors, strict=True))
    )


def _default(name: str) -> Callable[..., list[torch.Tensor]]:
    """torch's own kernel of an op, which calls another op for each tensor."""
    packet, _, overload = f"_foreach_{name}".partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")
    # A backend that nobody registers for gets the default.
    return functools.partial(function.redispatch, torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse2))


def _functional(spec: Foreach) -> Callable[..., list[torch.Tensor]]:
    """The functional form of an op: the in-place kernel with outputs of its own."""

    tensor_by_tensor = _default(spec.name)

    def foreach(self: Tensors, *positional: Any, **named: Any) -> list[torch.Tensor]:
        arguments = dict(zip([*spec.lists[1:], *([spec.argument] if spec.argument else [])], positional, strict=False))
        arguments.update(named)
        lists = [self, *(arguments[name] for name in spec.lists[1:])]
        if not _uniform(lists):
            return tensor_by_tensor(self, *positional, **named)
        dtype = self[0].dtype
        results = [torch.empty_like(tensor) for tensor in self]
        count = len(results)
        value = arguments.get(spec.argument, 1)
        extra: list[torch.Tensor] = []
        words = [count]
        parameters: dict[str, Any] = {}
        if spec.number == "one":
            words += number(value)
        elif spec.number == "list":
            words += [count, *(word for item in value for word in number(item))]
        elif spec.number == "tensor":
            extra = [value]
            parameters["number_type"] = value.dtype
        launch(
            FOREACH,
            [*results, *(tensor for tensors in lists for tensor in tensors), *extra],
            words,
            dtype=dtype,
            op=spec.op,
            inputs=len(lists),
            number=spec.number,
            **parameters,
        )
        return results

    return foreach


for _spec in FOREACH_OPS:
    op(f"aten::_foreach_{_spec.name}")(_functional(_spec))


@op("aten::_foreach_norm.Scalar")
def foreach_norm(self: Tensors, ord: float = 2, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """The vector norm of each tensor."""
    if not _uniform([self]):
        return _default("norm.Scalar")(self, ord, dtype)
    source = self[0].dtype
    result = self[0].new_empty(len(self), dtype=dtype or source)
    norms = list(result.unbind())
    launch(
        "optimizer.foreach:foreach_norm",
        [*norms, *self],
        [len(norms), *number(ord)],
        dtype=source,
        out=result.dtype,
    )
    return norms
