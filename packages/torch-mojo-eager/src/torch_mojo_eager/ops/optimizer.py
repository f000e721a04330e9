"""Functional `_foreach` ops, whose outputs torch does not allocate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_mojo_eager.ops.registry import launch, number, op
from torch_mojo_eager.ops.tables.optimizer import FOREACH, FOREACH_OPS, Foreach

Tensors = Sequence[torch.Tensor]


def _functional(spec: Foreach) -> Callable[..., list[torch.Tensor]]:
    """The functional form of an op: the in-place kernel with outputs of its own."""

    def foreach(self: Tensors, *positional: Any, **named: Any) -> list[torch.Tensor]:
        arguments = dict(zip([*spec.lists[1:], *([spec.argument] if spec.argument else [])], positional, strict=False))
        arguments.update(named)
        lists = [self, *(arguments[name] for name in spec.lists[1:])]
        dtype = self[0].dtype
        if not dtype.is_floating_point or any(tensor.dtype != dtype for tensors in lists for tensor in tensors):
            raise NotImplementedError(
                f"aten::_foreach_{spec.name} of tensors that are not all of one floating dtype; pass foreach=False or "
                "call the op tensor by tensor"
            )
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
    source = self[0].dtype
    if any(tensor.dtype != source for tensor in self):
        raise NotImplementedError("aten::_foreach_norm of tensors of different dtypes; call norm tensor by tensor")
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
