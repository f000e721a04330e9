"""What is known of a graph value beyond its type: that it only shows another one's dimensions in another order.

MAX writes a transposed tensor out before a custom op reads it. Our kernels take strides, so a call passes the tensor
below the transposition and the order of its dimensions instead.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Sequence

from max.graph import TensorValue, ops


@dataclasses.dataclass(frozen=True)
class View:
    """A contiguous value with its dimensions in another order.

    Attributes:
        base: The contiguous value.
        order: For each dimension the base's dimension that it is; None for one of size 1 that the base does not have.
            None as a whole where nothing is reordered.
    """

    base: TensorValue
    order: tuple[int | None, ...] | None


_views: contextvars.ContextVar[dict[int, tuple[TensorValue, View]]] = contextvars.ContextVar("views")


@contextlib.contextmanager
def tracked_views() -> Iterator[None]:
    """Keeps views for as long as one graph is made."""
    token = _views.set({})
    try:
        yield
    finally:
        _views.reset(token)


_barrier: contextvars.ContextVar[TensorValue | None] = contextvars.ContextVar("barrier", default=None)


@contextlib.contextmanager
def not_folded(barrier: TensorValue | None) -> Iterator[None]:
    """Keeps MAX from evaluating the calls made here while it compiles, in a process that has no kernels.

    Args:
        barrier: An int64 input [1] that such calls take as one more operand; None where nothing is constant.
    """
    token = _barrier.set(barrier)
    try:
        yield
    finally:
        _barrier.reset(token)


def barrier() -> TensorValue | None:
    """Returns what a call has to take so that it is not evaluated while MAX compiles."""
    return _barrier.get()


def view_of(value: TensorValue) -> View:
    """Returns the view that a value is, its own base where it is none."""
    found = _views.get().get(id(value))
    return found[1] if found is not None else View(value, None)


def _remember(value: TensorValue, view: View) -> TensorValue:
    # The value is kept with its view, so that no other value gets its id.
    _views.get()[id(value)] = (value, view)
    return value


def _order(view: View) -> tuple[int | None, ...]:
    return view.order if view.order is not None else tuple(range(view.base.rank))


def permute(value: TensorValue, dims: Sequence[int]) -> TensorValue:
    """Returns a value with its dimensions in another order.

    Args:
        value: Any value.
        dims: For each dimension of the result the one it comes from.
    """
    dims = [d % value.rank for d in dims]
    if dims == list(range(value.rank)):
        return value
    view = view_of(value)
    order = _order(view)
    return _remember(ops.permute(value, list(dims)), View(view.base, tuple(order[d] for d in dims)))


def unsqueeze(value: TensorValue, dim: int) -> TensorValue:
    """Returns a value with a new dimension of size 1 at `dim`."""
    dim %= value.rank + 1
    view = view_of(value)
    if view.order is None:
        return ops.unsqueeze(value, dim)
    order = _order(view)
    return _remember(ops.unsqueeze(value, dim), View(view.base, (*order[:dim], None, *order[dim:])))
