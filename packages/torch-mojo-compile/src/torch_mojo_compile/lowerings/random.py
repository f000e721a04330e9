"""Random ops: Philox, with the generator's seed and offset as an input, so that each call draws new numbers.

The values are those of eager mojo, and of CUDA, for the same seed: the ops of a graph take their parts of the sequence
one after the other, each as much as the eager op would.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from max.dtype import DType
from max.graph import DeviceRef, TensorValue, ops

from mojo_runtime import PhiloxGenerator
from mojo_runtime.generator import BLOCK, words_per_thread
from torch_mojo_compile import custom_mojo_ops, rows
from torch_mojo_compile.lowerings.table import Node, lowering
from torch_mojo_compile.symbols import Size

OPS: set[Any] = set()
"""The overloads that draw whatever their arguments."""

ATTENTION = "_scaled_dot_product_fused_attention_overrideable.default"


@dataclasses.dataclass
class State:
    """The generator's state in a graph that is being made.

    Attributes:
        words: Seed and offset, int64 [2] in host memory; None in a graph that draws nothing.
        offset: How far the ops up to now have moved the offset; an int, or a value of the graph.
        advances: For each op a size and the function that computes from it how many words the op takes.
    """

    words: TensorValue | None
    offset: int | TensorValue = 0
    advances: list[tuple[Size, Callable[[int], int]]] = dataclasses.field(default_factory=list)


_state: contextvars.ContextVar[State] = contextvars.ContextVar("state")


@contextlib.contextmanager
def state(words: Any) -> Iterator[State]:
    """Gives the graph that is being made its generator."""
    made = State(words.tensor if words is not None else None)
    token = _state.set(made)
    try:
        yield made
    finally:
        _state.reset(token)


def _random(*names: str) -> Callable[[Any], Any]:
    for name in names:
        op = rows.overload(name)
        if op is not None:
            OPS.add(op)
    return lowering(*names)


def draws(node: torch.fx.Node) -> bool:
    """Whether a node moves the generator."""
    if node.target is rows.overload(ATTENTION):
        probability = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
        return isinstance(probability, float | int) and probability > 0
    return node.target in OPS


def advance(
    advances: Sequence[tuple[Callable[[Sequence[Any]], int], Callable[[int], int]]], arguments: Sequence[Any]
) -> int:
    """Returns how far a call moves the generator's offset."""
    return sum(words(size(arguments)) for size, words in advances)


@functools.cache
def _max_blocks() -> int:
    return PhiloxGenerator().max_blocks


def _take(size: Size, words: Callable[[int], int], in_graph: Callable[[], TensorValue]) -> list[TensorValue]:
    """Takes an op's part of the sequence; returns seed and offset.

    Args:
        size: What the part's length depends on.
        words: Computes the length.
        in_graph: Computes it of a symbolic size.
    """
    current = _state.get()
    assert current.words is not None
    seed, first = current.words[0], current.words[1]
    offset = first + current.offset if isinstance(current.offset, TensorValue) or current.offset else first
    current.advances.append((size, words))
    current.offset = current.offset + (words(size) if isinstance(size, int) else in_graph())
    return [seed, offset]


def _reserve(node: Node, numel: Size, unroll: int) -> list[Any]:
    """Takes the part of an op that draws for each element; returns the kernel's first scalars, the last max_blocks."""
    blocks = _max_blocks()
    words = functools.partial(words_per_thread, unroll=unroll, max_blocks=blocks)
    return [*_take(numel, words, lambda: _increment(node, numel, unroll, blocks)), blocks]


def attention_state(node: Node, keys: Size) -> list[TensorValue]:
    """Takes the part of attention with dropout, which counts by four keys; returns seed and offset."""

    def in_graph() -> TensorValue:
        four = ops.constant(4, DType.int64, DeviceRef.CPU())
        return ops.floor_div(TensorValue(node.dim(keys)) + (four - 1), four) * four

    return _take(keys, lambda count: (count + 3) // 4 * 4, in_graph)


def _increment(node: Node, numel: Size, unroll: int, blocks: int) -> TensorValue:
    """`words_per_thread` in the graph."""

    def constant(value: int) -> TensorValue:
        return ops.constant(value, DType.int64, node.device)

    count = TensorValue(node.dim(numel))
    blocks_needed = ops.floor_div(count + constant(BLOCK - 1), constant(BLOCK))
    threads = constant(BLOCK) * ops.min(blocks_needed, constant(blocks))
    served = threads * constant(unroll)
    return constant(4) * ops.floor_div(count + served - constant(1), ops.max(served, constant(1)))


def _fill(node: Node, kernel: str, scalars: Sequence[Any], unroll: int | None = None, **parameters: Any) -> TensorValue:
    fake = node.result()
    if unroll is None:
        unroll = 2 if fake.dtype == torch.float64 else 4
    numel = fake.numel()
    state = _reserve(node, numel, unroll)
    drawn = custom_mojo_ops.random_fill(kernel, node.dim(numel), node.dtype, state, scalars, **parameters)
    return ops.reshape(drawn, node.shape)


@_random("rand.default", "rand_like.default")
def rand(node: Node, *_: Any, **__: Any) -> TensorValue:
    """Uniform numbers in [0, 1)."""
    return _fill(node, "uniform", [0.0, 1.0])


@_random("randn.default", "randn_like.default")
def randn(node: Node, *_: Any, **__: Any) -> TensorValue:
    """Normal numbers."""
    return _fill(node, "normal", [0.0, 1.0], logarithmic=False)


@_random("prims.normal.default")
def normal_of_shape(node: Node, shape: Any, *, mean: float = 0.0, std: float = 1.0, **_: Any) -> TensorValue:
    """Normal numbers of a mean and a deviation, in a shape."""
    return _fill(node, "normal", [float(mean), float(std)], logarithmic=False)


@_random("uniform.default")
def uniform(node: Node, x: TensorValue, from_: float = 0.0, to: float = 1.0, **named: Any) -> TensorValue:
    """Uniform numbers between two bounds."""
    return _fill(node, "uniform", [float(named.get("from", from_)), float(to)])


@_random("normal_functional.default")
def normal(node: Node, x: TensorValue, mean: float = 0.0, std: float = 1.0, **_: Any) -> TensorValue:
    """Normal numbers of a mean and a deviation."""
    return _fill(node, "normal", [float(mean), float(std)], logarithmic=False)


@_random("log_normal.default")
def log_normal(node: Node, x: TensorValue, mean: float = 1.0, std: float = 2.0, **_: Any) -> TensorValue:
    """Exponentials of normal numbers."""
    return _fill(node, "normal", [float(mean), float(std)], logarithmic=True)


@_random("exponential.default")
def exponential(node: Node, x: TensorValue, lambd: float = 1.0, **_: Any) -> TensorValue:
    """Exponentially distributed numbers."""
    return _fill(node, "inverse", [float(lambd), 0.0], kind="exponential")


@_random("cauchy.default")
def cauchy(node: Node, x: TensorValue, median: float = 0.0, sigma: float = 1.0, **_: Any) -> TensorValue:
    """Numbers of a Cauchy distribution."""
    return _fill(node, "inverse", [float(median), float(sigma)], kind="cauchy")


@_random("geometric.default")
def geometric(node: Node, x: TensorValue, p: float, **_: Any) -> TensorValue:
    """Trials up to the first success."""
    return _fill(node, "inverse", [float(p), 0.0], kind="geometric")


def _integers(node: Node, low: int, high: int) -> TensorValue:
    count = high - low
    wide = count >= 2**28
    return _fill(node, "integer", [low, count], 2 if wide else 4, wide=wide)


@_random("randint.default", "randint_like.default")
def randint(node: Node, *arguments: Any, **_: Any) -> TensorValue:
    """Integers below a bound."""
    high = next(a for a in arguments if isinstance(a, int))
    return _integers(node, 0, high)


@_random("randint.low", "randint_like.low_dtype")
def randint_low(node: Node, *arguments: Any, **_: Any) -> TensorValue:
    """Integers between two bounds."""
    low, high = [a for a in arguments if isinstance(a, int)][:2]
    return _integers(node, low, high)


@_random("bernoulli.p", "bernoulli.Tensor", "bernoulli.default")
def bernoulli(node: Node, x: TensorValue, p: Any = None, **_: Any) -> TensorValue:
    """1 with a probability, else 0."""
    if isinstance(p, float | int):
        return _fill(node, "bernoulli", [float(p)])
    numel = node.result().numel()
    probabilities = ops.reshape(ops.broadcast_to(x if p is None else p, node.shape), [node.dim(numel)])
    drawn = custom_mojo_ops.random_bernoulli(probabilities, node.dtype, _reserve(node, numel, 4))
    return ops.reshape(drawn, node.shape)


@_random("native_dropout.default")
def native_dropout(node: Node, x: TensorValue, p: float, train: bool | None = True) -> list[TensorValue]:
    """Dropout and its mask."""

    def keep(value: bool) -> TensorValue:
        return ops.broadcast_to(ops.constant(value, DType.bool, node.device), node.shape)

    if train is False:
        return [x, keep(True)]
    if p == 1:
        return [ops.broadcast_to(node.tensor(0), node.shape), keep(False)]
    numel = node.result().numel()
    flat = ops.reshape(x, [node.dim(numel)])
    output, mask = custom_mojo_ops.random_dropout(flat, 1.0 - p, _reserve(node, numel, 4))
    return [ops.reshape(output, node.shape), ops.reshape(mask, node.shape)]


@lowering("native_dropout_backward.default")
def native_dropout_backward(node: Node, grad: TensorValue, mask: TensorValue, scale: float) -> TensorValue:
    """The gradient where the mask kept, scaled."""
    return node.tensor(grad) * node.tensor(mask) * node.tensor(scale)


__all__ = ["OPS", "State", "advance", "state"]
