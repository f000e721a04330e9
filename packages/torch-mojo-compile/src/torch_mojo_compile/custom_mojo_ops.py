"""The kernels that lowerings call, each as a typed function of graph values, or of torch tensors, eagerly.

A function says which kernel of mojo-kernels it is, what its results look like and what its arguments mean; registering
the kernel with the graph, and asking for its compilation, happens at the first call. Tensors of torch are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import torch
from max.dtype import DType
from max.graph import DeviceRef, TensorType, TensorValue
from torch._subclasses.fake_tensor import FakeTensor

from mojo_runtime import aten
from mojo_runtime.launch import Number
from torch_mojo_compile import bridge
from torch_mojo_compile.dtypes import kernel_dtype
from torch_mojo_compile.kernel_calls import call_on_tensors

Operand = TypeVar("Operand", TensorValue, torch.Tensor)
Shape = Sequence[Any]
"""Sizes: ints, or dimensions of the graph."""
Dropout = tuple[float, Any, Any]
"""Of attention: the probability, and the seed and offset of the generator that drops."""
NO_DROPOUT: Dropout = (0.0, 0, 0)
Result = tuple[Shape, Any]
"""Sizes and dtype of an output."""


def _name(dtype: DType | torch.dtype) -> str:
    return dtype.name if isinstance(dtype, DType) else kernel_dtype(dtype)


def kernel(
    name: str,
    outputs: Sequence[Result | None],
    inputs: Sequence[Any],
    scalars: Sequence[Any] = (),
    *,
    broadcast: bool = False,
    contiguous: bool = False,
    device: DeviceRef | None = None,
    **parameters: Any,
) -> list[Any]:
    """Calls a kernel of mojo-kernels in the current graph, or on tensors of torch, of which fake ones only get results.

    Args:
        name: "module:function" below mojo_kernels.
        outputs: Sizes and dtypes of the results; None is one that is not wanted.
        inputs: Graph values, or tensors; None is an optional one that is not given.
        scalars: The kernel's scalars; in a graph also values of single int64 numbers.
        broadcast: Whether the kernel wants all inputs in the sizes of the first output.
        contiguous: Whether the kernel reads no strides.
        device: Where to run; by default where the first input is.
        parameters: The kernel's compile-time parameters; dtypes of either kind by their names.

    Returns:
        The results, None where one is not wanted.
    """
    named = {k: _name(v) if isinstance(v, DType | torch.dtype) else v for k, v in parameters.items()}
    key = aten.kernel_key(name, named)
    first = next((value for value in inputs if value is not None), None)
    if isinstance(first, torch.Tensor):
        made = [None if o is None else torch.empty(o[0], dtype=o[1], device=first.device) for o in outputs]
        if not isinstance(first, FakeTensor):
            call_on_tensors(key, made, inputs, scalars, broadcast=broadcast)
        return made
    place = device or (first.device if first is not None else DeviceRef.CPU())
    types = [None if o is None else TensorType(o[1], o[0], place) for o in outputs]
    return list(bridge.call_kernel(key, types, inputs, scalars, broadcast=broadcast, contiguous=contiguous))


def only(like: Operand, results: Sequence[Any]) -> Operand:
    """Returns the only result of a kernel, of the kind of an operand."""
    result: Operand = results[0]
    return result


def statistics_dtype(value: Any) -> Any:
    """The dtype of statistics: float64 for float64, else float32."""
    if isinstance(value, TensorValue):
        return DType.float64 if value.dtype == DType.float64 else DType.float32
    return torch.float64 if value.dtype == torch.float64 else torch.float32


def int64_like(value: Any) -> Any:
    """int64 as MAX or torch names it, by the kind of a value."""
    return DType.int64 if isinstance(value, TensorValue) else torch.int64


def matrix_product(a: Operand, b: Operand, addend: Operand | None = None, *, beta: Any = 1, alpha: Any = 1) -> Operand:
    """The product of matrices, or of batches of them, times `alpha`; `beta` times an addend is added before rounding.

    Args:
        a: [..., m, k]; in a graph a transposed value is not copied.
        b: [..., k, n], of the same dtype.
        addend: Broadcastable to the result, of the same dtype; without one the factors are not used.
        beta: A number; 0 ignores the addend, NaN included.
        alpha: A number.

    Returns:
        [..., m, n]
    """
    outputs = [([*a.shape[:-1], b.shape[-1]], a.dtype)]
    if addend is None:
        return only(a, kernel("matmul.products:mm", outputs, [a, b], dtype=a.dtype))
    factors = [Number(beta), Number(alpha)]
    return only(a, kernel("matmul.products:addmm", outputs, [addend, a, b], factors, dtype=a.dtype))


def grouped_product(a: Operand, b: Operand, ends: Operand) -> Operand:
    """Products of groups of rows with a matrix each, as mixtures of experts have them; on CPUs only.

    Args:
        a: [m, k], whose rows are in groups; or [groups, m, k].
        b: [groups, k, n]; or [k, n], whose columns are in groups. Where a is a matrix too, what is summed over is.
        ends: Where each group ends, int32 [groups].

    Returns:
        [m, n], 0 behind the last group; of two matrices [groups, m, n].
    """
    shape: list[Any] = [a.shape[-2], b.shape[-1]]
    if len(a.shape) == len(b.shape):
        shape.insert(0, ends.shape[0])
    made = kernel("matmul.grouped:grouped_mm", [(shape, a.dtype)], [a, b, ends], dtype=a.dtype)
    return only(a, made)


def embedding_bag(
    table: Operand,
    indices: Operand,
    starts: Operand,
    weights: Operand | None,
    bags: Any,
    mode: Literal[0, 1, 2],
    padding: Any = -1,
    *,
    includes_last: bool = False,
) -> list[Operand | None]:
    """Combines the rows of a table that each bag looks up.

    Args:
        table: [rows, columns]
        indices: [lookups], int32 or int64.
        starts: Where each bag begins [bags], or one more, of the indices' dtype.
        weights: Of the lookups [lookups], of the table's dtype.
        bags: How many.
        mode: 0: sums, 1: means, 2: maxima.
        padding: An index that does not count; negative for none.
        includes_last: Whether `starts` says where the last bag ends.

    Returns:
        [bags, columns]; the bag of each lookup; how many lookups of each bag count; for maxima the rows they are from.
    """
    shape = [bags, table.shape[1]]
    outputs: list[Result | None] = [(shape, table.dtype), (indices.shape, indices.dtype), ([bags], indices.dtype)]
    outputs.append((shape, indices.dtype) if mode == 2 else None)
    inputs = [table, indices, starts, weights]
    scalars = [includes_last, mode, padding]
    parameters: dict[str, Any] = {"dtype": table.dtype, "index": indices.dtype}
    return kernel("embedding_bag:embedding_bag", outputs, inputs, scalars, contiguous=True, **parameters)


def convolution(
    x: Operand,
    weight: Operand,
    bias: Operand | None,
    shape: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    transposed: bool = False,
) -> Operand:
    """A convolution over one to three dimensions, or a transposed one, which is also the other one's gradient.

    Args:
        x: [batch, channels, *sizes]
        weight: [channels out, channels / groups, *sizes]; transposed: [channels, channels out / groups, *sizes].
        bias: [channels out]
        shape: Of the result.
        stride: A number for each dimension, as `padding` and `dilation`.
        padding: Zeros on both sides.
        dilation: Steps between the weight's elements.
        groups: Of channels.
        transposed: Whether x is what a convolution gives and the result what it takes.

    Returns:
        [batch, channels out, *sizes]
    """
    scalars = [transposed, groups, list(stride), list(padding), list(dilation)]
    inputs = [x, weight, bias]
    outputs = [(shape, x.dtype)]
    made = kernel("convolution.convolve:convolve", outputs, inputs, scalars, contiguous=True, dtype=x.dtype)
    return only(x, made)


def convolution_weight_gradient(
    grad: Operand,
    x: Operand,
    shape: Shape,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Operand:
    """The gradient of a convolution's weight.

    Args:
        grad: The gradient of the result; of a transposed convolution its input.
        x: The input; of a transposed convolution the gradient of the result.
        shape: Of the weight.
        stride: As of the convolution, like the rest.
        padding: Zeros on both sides.
        dilation: Steps between the weight's elements.
        groups: Of channels.
    """
    scalars = [groups, list(stride), list(padding), list(dilation)]
    outputs = [(shape, x.dtype)]
    made = kernel("convolution.weight:weight_gradient", outputs, [grad, x], scalars, contiguous=True, dtype=x.dtype)
    return only(x, made)


def layer_norm(
    x: Operand, weight: Operand | None, bias: Operand | None, statistics: Shape, rows: Any, columns: Any, eps: float
) -> tuple[Operand, Operand, Operand]:
    """Layer norm of rows.

    Args:
        x: Any sizes whose product is rows * columns.
        weight: [columns] in any sizes.
        bias: As the weight.
        statistics: The sizes of mean and reciprocal deviation.
        rows: How many; an int, or a value of the graph.
        columns: The number of elements that are normalized together.
        eps: Added to the variance.

    Returns:
        The result, the mean and the reciprocal deviation, which are float32 for half types.
    """
    outputs = [(x.shape, x.dtype), (statistics, statistics_dtype(x)), (statistics, statistics_dtype(x))]
    inputs = [x, weight, bias]
    scalars = [rows, columns, float(eps)]
    made = kernel("normalization.layer_norm:forward", outputs, inputs, scalars, contiguous=True, dtype=x.dtype)
    return made[0], made[1], made[2]


def layer_norm_gradients(
    grad: Operand,
    x: Operand,
    mean: Operand,
    rstd: Operand,
    weight: Operand | None,
    parameter_shape: Shape,
    rows: Any,
    columns: Any,
    wanted: Sequence[bool],
) -> list[Operand | None]:
    """The gradients of layer norm's input, weight and bias.

    Args:
        grad: The gradient of the result.
        x: The input.
        mean: As `layer_norm` returned it.
        rstd: As `layer_norm` returned it.
        weight: [columns] in any sizes.
        parameter_shape: The sizes of weight and bias.
        rows: As of `layer_norm`.
        columns: As of `layer_norm`.
        wanted: Which of the three to compute.
    """
    shapes = (x.shape, parameter_shape, parameter_shape)
    outputs = [(shape, x.dtype) if wants else None for shape, wants in zip(shapes, wanted, strict=True)]
    inputs = [grad, x, mean, rstd, weight]
    return kernel("normalization.layer_norm:backward", outputs, inputs, [rows, columns], contiguous=True, dtype=x.dtype)


def batch_norm(
    x: Operand,
    weight: Operand | None,
    bias: Operand | None,
    running_mean: Operand | None,
    running_var: Operand | None,
    momentum: float,
    eps: float,
) -> list[Operand | None]:
    """Normalizes channels by their own mean and variance.

    Args:
        x: [batch, channels, ...]
        weight: [channels], of one dtype with the other vectors: x's, or float32 beside a half type.
        bias: [channels]
        running_mean: [channels]
        running_var: [channels]
        momentum: How much of the new running statistics is this batch's.
        eps: Added to the variance.

    Returns:
        The result; mean and reciprocal deviation, which are float32 for half types; the new running mean and variance,
        None where there are no old ones.
    """
    channels = [x.shape[1]]
    statistics: Result = (channels, statistics_dtype(x))
    outputs: list[Result | None] = [(x.shape, x.dtype), statistics, statistics]
    outputs += [None if old is None else (channels, old.dtype) for old in (running_mean, running_var)]
    inputs = [x, weight, bias, running_mean, running_var]
    parameters = {"dtype": x.dtype, "parameter": _dtype_of_parameters(x, *inputs[1:])}
    scalars = [True, float(momentum), float(eps)]
    return kernel("normalization.batch_norm:forward", outputs, inputs, scalars, contiguous=True, **parameters)


def _dtype_of_parameters(x: Operand, *given: Operand | None) -> Any:
    return next((tensor.dtype for tensor in given if tensor is not None), x.dtype)


def batch_norm_gradients(
    grad: Operand,
    x: Operand,
    statistics: Sequence[Operand | None],
    weight: Operand | None,
    training: bool,
    eps: float,
    wanted: Sequence[bool],
) -> list[Operand | None]:
    """The gradients of batch norm's input, weight and bias.

    Args:
        grad: The gradient of the result.
        x: The input.
        statistics: In training what `batch_norm` returned as mean and reciprocal deviation, then None twice; else None
            twice, then running mean and variance.
        weight: [channels]
        training: Whether the statistics are those of x.
        eps: As of `batch_norm`.
        wanted: Which of the three to compute.
    """
    parameter = _dtype_of_parameters(x, weight, *statistics[2:])
    return _channel_gradients("batch_norm", [grad, x, *statistics, weight], [training, float(eps)], parameter, wanted)


def group_norm(
    x: Operand, weight: Operand | None, bias: Operand | None, groups: int, eps: float
) -> tuple[Operand, Operand, Operand]:
    """Normalizes groups of channels.

    Args:
        x: [batch, channels, ...]
        weight: [channels], of one dtype with the bias: x's, or float32 beside a half type.
        bias: [channels]
        groups: A divisor of channels.
        eps: Added to the variance.

    Returns:
        The result; mean and reciprocal deviation [batch, groups], which are float32 for half types.
    """
    statistics = ([x.shape[0], groups], statistics_dtype(x))
    outputs = [(x.shape, x.dtype), statistics, statistics]
    parameters = {"dtype": x.dtype, "parameter": _dtype_of_parameters(x, weight, bias)}
    inputs, scalars = [x, weight, bias], [groups, float(eps)]
    made = kernel("normalization.group_norm:forward", outputs, inputs, scalars, contiguous=True, **parameters)
    return made[0], made[1], made[2]


def group_norm_gradients(
    grad: Operand,
    x: Operand,
    statistics: Sequence[Operand],
    weight: Operand | None,
    groups: int,
    wanted: Sequence[bool],
) -> list[Operand | None]:
    """The gradients of group norm's input, weight and bias; arguments as of `group_norm`, with what it returned.

    Args:
        grad: The gradient of the result.
        x: The input.
        statistics: Mean and reciprocal deviation.
        weight: [channels]
        groups: A divisor of channels.
        wanted: Which of the three to compute.
    """
    parameter = _dtype_of_parameters(x, weight)
    return _channel_gradients("group_norm", [grad, x, *statistics, weight], [groups], parameter, wanted)


def _channel_gradients(
    norm: str, inputs: Sequence[Any], scalars: Sequence[Any], parameter: Any, wanted: Sequence[bool]
) -> list[Operand | None]:
    x = inputs[1]
    results = ((x.shape, x.dtype), ([x.shape[1]], parameter), ([x.shape[1]], parameter))
    outputs = [result if wants else None for result, wants in zip(results, wanted, strict=True)]
    parameters = {"dtype": x.dtype, "parameter": parameter}
    return kernel(f"normalization.{norm}:backward", outputs, inputs, scalars, contiguous=True, **parameters)


def attention(
    query: Operand,
    key: Operand,
    value: Operand,
    bias: Operand | None = None,
    *,
    is_causal: bool,
    scale: float,
    dropout: Dropout = NO_DROPOUT,
) -> tuple[Operand, Operand]:
    """Scaled dot-product attention that keeps no scores.

    Args:
        query: [batch, heads, queries, depth]
        key: [batch, key heads, keys, depth]; heads is a multiple of key heads.
        value: [batch, key heads, keys, value depth]
        bias: Broadcastable to [batch, heads, queries, keys]: bool, float32 or the query's dtype.
        is_causal: Whether query i sees keys up to i only.
        scale: The factor of the scores.
        dropout: The probability, and the generator's seed and offset: ints, or int64 values of the graph.

    Returns:
        [batch, heads, queries, value depth] and the scores' logsumexp [batch, heads, queries].
    """
    outputs = [([*query.shape[:3], value.shape[3]], query.dtype), (query.shape[:3], statistics_dtype(query))]
    inputs = [query, key, value, bias]
    scalars = [is_causal, float(scale), *dropout]
    made = kernel("attention.forward:forward", outputs, inputs, scalars, dtype=query.dtype)
    return made[0], made[1]


def attention_gradients(
    grad: Operand,
    query: Operand,
    key: Operand,
    value: Operand,
    result: Operand,
    logsumexp: Operand,
    bias: Operand | None = None,
    *,
    is_causal: bool,
    scale: float,
    dropout: Dropout = NO_DROPOUT,
) -> list[Operand]:
    """The gradients of query, key and value; arguments as of `attention`, with what it returned and its gradient."""
    outputs = [(tensor.shape, tensor.dtype) for tensor in (query, key, value)]
    inputs = [grad, query, key, value, result, logsumexp, bias]
    scalars = [is_causal, float(scale), *dropout]
    return kernel("attention.backward:backward", outputs, inputs, scalars, dtype=query.dtype)


def embedding_gradient(
    grad: Operand, indices: Operand, rows: Any, padding: Any = -1, *, by_frequency: bool = False
) -> Operand:
    """The gradient [rows, columns] of a table of embeddings.

    Args:
        grad: [lookups, columns]
        indices: [lookups], int32 or int64.
        rows: Of the table.
        padding: A row whose gradient stays 0; negative for none.
        by_frequency: Whether a row's gradient is divided by how often it was looked up.
    """
    outputs = [([rows, grad.shape[1]], grad.dtype)]
    scalars = [padding, by_frequency]
    parameters: dict[str, Any] = {"dtype": grad.dtype, "index": indices.dtype}
    inputs = [grad, indices]
    made = kernel("embedding:embedding_backward", outputs, inputs, scalars, contiguous=True, **parameters)
    return only(grad, made)


def gather_slices(x: Operand, dim: int, index: Operand) -> Operand:
    """Slices of a tensor at positions [n] of a dimension, int32 or int64; of a tensor without dimensions itself."""
    shape: list[Any] = list(x.shape)
    if shape:
        shape[dim] = index.shape[0] if len(index.shape) else 1
    parameters: dict[str, Any] = {"dtype": x.dtype, "index": index.dtype, "indices": "slices"}
    return only(x, kernel("indexing.gather_scatter:gather", [(shape, x.dtype)], [x, index], [dim], **parameters))


def scatter_elements(
    x: Operand, dim: int, index: Operand, source: Operand, op: Literal["set", "add", "multiply", "amax", "amin"]
) -> Operand:
    """A tensor whose elements at positions of a dimension are replaced by a source's, or combined with them.

    Args:
        x: [..., n, ...]
        dim: The dimension of size n.
        index: Positions in [0, n), int32 or int64, in no dimension but `dim` larger than x.
        source: x's dtype, in no dimension smaller than `index`.
        op: What is done with the element that is there; of several for one place "set" keeps any.
    """
    parameters: dict[str, Any] = {
        "dtype": x.dtype,
        "op": op,
        "index": index.dtype,
        "indices": "elements",
        "source": "tensor",
    }
    inputs = [x, index, source]
    return only(x, kernel("indexing.gather_scatter:scatter", [(x.shape, x.dtype)], inputs, [dim], **parameters))


def scatter_rows(table: Operand, positions: Operand, source: Operand, *, accumulate: bool = False) -> Operand:
    """A table with some rows replaced, or added to.

    Args:
        table: [n, k]
        positions: [m] in [0, n), int64.
        source: [m, k]
        accumulate: Whether to add; else, of equal positions, any one wins.
    """
    parameters: dict[str, Any] = {
        "dtype": table.dtype,
        "op": "add" if accumulate else "set",
        "index": positions.dtype,
        "indices": "slices",
        "source": "tensor",
    }
    outputs = [(table.shape, table.dtype)]
    inputs = [table, positions, source]
    return only(table, kernel("indexing.gather_scatter:scatter", outputs, inputs, [0], **parameters))


def binary(op: str, a: Operand, b: Operand, shape: Shape) -> Operand:
    """An elementwise op of two tensors of one dtype that MAX does not have.

    Args:
        op: A name of mojo_kernels.pointwise.binary, e.g. "bitwise_and".
        a: Broadcastable to `shape`.
        b: Broadcastable to `shape`.
        shape: Of the result.
    """
    outputs = [(shape, a.dtype)]
    return only(a, kernel("pointwise.binary:binary", outputs, [a, b], broadcast=True, dtype=a.dtype, op=op))


def reduce(
    op: str, x: Operand, dims: Sequence[int], shape: Shape, scalars: Sequence[Any] = (), *, out: Any = None
) -> Operand:
    """A reduction, in one pass over memory.

    Args:
        op: A name of mojo_kernels.reduction, e.g. "amax".
        x: Any tensor.
        dims: Over which to reduce; none of them are all.
        shape: Of the result: with those dimensions of size 1, or without them.
        scalars: The reduction's own ones.
        out: The result's dtype; by default x's.
    """
    return only(x, _reduce(op, x, dims, [(shape, x.dtype if out is None else out)], scalars))


def reduce_to_pair(
    op: str, x: Operand, dims: Sequence[int], shape: Shape, scalars: Sequence[Any] = ()
) -> tuple[Operand, Operand]:
    """A reduction with two results of x's dtype, e.g. "var_mean"; arguments as of `reduce`."""
    made = _reduce(op, x, dims, [(shape, x.dtype)] * 2, scalars)
    return made[0], made[1]


def _reduce(op: str, x: Operand, dims: Sequence[int], outputs: Sequence[Result], scalars: Sequence[Any]) -> list[Any]:
    parameters: dict[str, Any] = {"dtype": x.dtype, "op": op, "out": outputs[0][1]}
    if len(outputs) == 2:
        parameters["second"] = outputs[1][1]
    return kernel("reduction.reduce:reduce", outputs, [x], [list(dims), *scalars], **parameters)


def sort(x: Operand, dim: int, *, descending: bool = False) -> tuple[Operand, Operand]:
    """The elements sorted along a dimension, and the positions they had, int64. Equal ones keep their order."""
    outputs = [(x.shape, x.dtype), (x.shape, int64_like(x))]
    made = kernel("sorting:sort", outputs, [x], [dim, descending], dtype=x.dtype)
    return made[0], made[1]


def random_fill(
    distribution: str, numel: Any, dtype: DType, state: Sequence[Any], arguments: Sequence[float | int], **options: Any
) -> TensorValue:
    """Random numbers in a graph.

    Args:
        distribution: A function of mojo_kernels.random.distributions.
        numel: How many.
        dtype: Of the result.
        state: Seed and offset of the generator, values of the graph, and the largest grid.
        arguments: Of the distribution.
        options: Its compile-time parameters.

    Returns:
        [numel]
    """
    name = f"random.distributions:{distribution}"
    made = kernel(name, [([numel], dtype)], [], [*state, *arguments], dtype=dtype, **options)
    return made[0]


def random_bernoulli(probabilities: TensorValue, dtype: DType, state: Sequence[Any]) -> TensorValue:
    """1 with the probability [numel] of each element, else 0; `state` as of `random_fill`."""
    parameters: dict[str, Any] = {"dtype": dtype, "probability": probabilities.dtype}
    outputs = [(probabilities.shape, dtype)]
    made = kernel("random.dropout:bernoulli", outputs, [probabilities], state, contiguous=True, **parameters)
    return only(probabilities, made)


def random_dropout(x: TensorValue, keep: float, state: Sequence[Any]) -> tuple[TensorValue, TensorValue]:
    """Dropout of a vector [numel] in a graph, and the mask of what it keeps.

    Args:
        x: [numel]
        keep: The probability with which an element stays.
        state: As of `random_fill`.
    """
    outputs = [(x.shape, x.dtype), (x.shape, DType.bool)]
    made = kernel("random.dropout:dropout", outputs, [x], [*state, float(keep)], contiguous=True, dtype=x.dtype)
    return made[0], made[1]


__all__ = [
    "Operand",
    "attention",
    "attention_gradients",
    "batch_norm",
    "batch_norm_gradients",
    "binary",
    "convolution",
    "convolution_weight_gradient",
    "embedding_bag",
    "embedding_gradient",
    "gather_slices",
    "group_norm",
    "group_norm_gradients",
    "grouped_product",
    "kernel",
    "layer_norm",
    "layer_norm_gradients",
    "matrix_product",
    "random_bernoulli",
    "random_dropout",
    "random_fill",
    "reduce",
    "reduce_to_pair",
    "scatter_elements",
    "scatter_rows",
    "sort",
]
