"""Batch, group, RMS and weight normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mojo_eager.ops.registry import launch, op
from torch_mojo_eager.ops.table import FLOATING

BATCH_NORM = "normalization.batch_norm"
GROUP_NORM = "normalization.group_norm"
LAYER_NORM = "normalization.layer_norm"

# Parameters have the input's dtype, or float32 beside half types.
_HALF = ("bfloat16", "float16")
KERNELS = (
    *(
        (f"{module}:{name}[dtype={{0}},parameter={parameter}]", (dtypes,))
        for module in (BATCH_NORM, GROUP_NORM)
        for name in ("forward", "backward")
        for parameter, dtypes in (*(("{0}", (dtype,)) for dtype in FLOATING), ("float32", _HALF))
    ),
    *((f"{LAYER_NORM}:{name}[centered=false,dtype={{0}}]", (FLOATING,)) for name in ("forward", "backward")),
)

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Statistics of half types are float32, as on CUDA."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _check_dtype(name: str, input: Tensor) -> None:
    if str(input.dtype).removeprefix("torch.") not in FLOATING:
        raise NotImplementedError(f'"{name}" not implemented for {input.dtype}; convert the input to a floating dtype')


def _parameter_dtype(name: str, input: Tensor, parameters: Sequence[Tensor | None]) -> torch.dtype:
    """The one dtype of all parameters: the input's, or float32 beside a half type."""
    found = {parameter.dtype for parameter in parameters if parameter is not None}
    if not found:
        return input.dtype
    if len(found) == 1 and found <= {input.dtype, _accumulation_dtype(input.dtype)}:
        return found.pop()
    raise RuntimeError(
        f"{name}: expected parameters of dtype {input.dtype} or {_accumulation_dtype(input.dtype)} for an input of "
        f"dtype {input.dtype}, got {', '.join(sorted(map(str, found)))}"
    )


def _dense(input: Tensor) -> tuple[Tensor, torch.memory_format]:
    """The tensor contiguous or channels-last, whichever it is nearer to, and which of the two."""
    if input.is_contiguous():
        return input, torch.contiguous_format
    if input.ndim in (4, 5):
        channels_last = torch.channels_last if input.ndim == 4 else torch.channels_last_3d
        if input.is_contiguous(memory_format=channels_last):
            return input, channels_last
        # The order of strides that torch goes by.
        if input.stride(1) == 1 and input.stride(1) < input.stride(-1):
            return input.contiguous(memory_format=channels_last), channels_last
    return input.contiguous(), torch.contiguous_format


def _vector(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _check_batch_norm(input: Tensor, parameters: dict[str, Tensor | None]) -> None:
    if input.ndim < 2:
        raise RuntimeError(f"batch_norm: expected an input of at least 2 dimensions, got {input.ndim}")
    channels = input.shape[1]
    for name, parameter in parameters.items():
        if parameter is not None and parameter.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {parameter.numel()}")


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_dtype("batch_norm", input)
    parameters = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    _check_batch_norm(input, parameters)
    if (running_mean is None) != (running_var is None):
        raise RuntimeError("running_mean and running_var must either both be None or neither be None")
    if not training and running_mean is None:
        raise RuntimeError("Expected running_mean and running_var to be defined when training=False")
    parameter = _parameter_dtype("batch_norm", input, list(parameters.values()))
    x, memory_format = _dense(input)
    out = torch.empty_like(x, memory_format=memory_format)
    shape = (input.shape[1] if training else 0,)
    save_mean = x.new_empty(shape, dtype=_accumulation_dtype(x.dtype))
    save_rstd = torch.empty_like(save_mean)
    if x.numel() == 0:
        # Nothing to normalize, and no statistics to update.
        if training:
            save_mean.zero_()
            save_rstd.zero_()
        return out, save_mean, save_rstd
    running = [_vector(running_mean), _vector(running_var)]
    launch(
        f"{BATCH_NORM}:forward",
        [out, save_mean, save_rstd, *running, x, _vector(weight), _vector(bias)],
        [training, float(momentum), float(eps)],
        dtype=x.dtype,
        parameter=parameter,
    )
    if training:
        for given, updated in zip((running_mean, running_var), running, strict=True):
            if given is not None and updated is not None and updated is not given:
                given.copy_(updated)
    return out, save_mean, save_rstd


@op("aten::native_batch_norm")
def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalized channels, and in training the mean and reciprocal standard deviation that were used."""
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


@op("aten::_native_batch_norm_legit")
def native_batch_norm_legit(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization with running statistics."""
    return _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


@op("aten::_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization without running statistics."""
    return _batch_norm(input, weight, bias, None, None, training, momentum, eps)


def _fill_outputs(results: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    for result, output in zip(results, outputs, strict=True):
        output.resize_(result.shape).copy_(result)


@op("aten::native_batch_norm.out")
def native_batch_norm_out(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    *,
    out: Tensor,
    save_mean: Tensor,
    save_invstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization into given tensors."""
    results = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    _fill_outputs(results, (out, save_mean, save_invstd))
    return out, save_mean, save_invstd


@op("aten::_native_batch_norm_legit.out")
def native_batch_norm_legit_out(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    *,
    out: Tensor,
    save_mean: Tensor,
    save_invstd: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalization with running statistics into given tensors."""
    results = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    _fill_outputs(results, (out, save_mean, save_invstd))
    return out, save_mean, save_invstd


@op("aten::_batch_norm_with_update")
def batch_norm_with_update(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Batch normalization in training, which updates the running statistics; nothing is kept beside the statistics."""
    results = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps)
    return *results, input.new_empty((0,), dtype=torch.uint8)


def _batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_rstd: Tensor | None,
    training: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Gradients:
    _check_dtype("batch_norm_backward", input)
    used = (weight,) if training else (weight, running_mean, running_var)
    parameter = _parameter_dtype("batch_norm_backward", input, used)
    x, memory_format = _dense(input)
    dy = grad_out.to(x.dtype).contiguous(memory_format=memory_format)
    dx = torch.empty_like(x, memory_format=memory_format) if output_mask[0] else None
    dweight, dbias = (x.new_empty((input.shape[1],), dtype=parameter) if wanted else None for wanted in output_mask[1:])
    if x.numel() == 0:
        for gradient in (dweight, dbias):
            if gradient is not None:
                gradient.zero_()
        return dx, dweight, dbias
    if training:
        statistics = [_vector(save_mean), _vector(save_rstd), None, None]
    else:
        statistics = [None, None, _vector(running_mean), _vector(running_var)]
    launch(
        f"{BATCH_NORM}:backward",
        [dx, dweight, dbias, dy, x, *statistics, _vector(weight)],
        [training, float(eps)],
        dtype=x.dtype,
        parameter=parameter,
    )
    return dx, dweight, dbias


@op("aten::native_batch_norm_backward")
def native_batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Gradients:
    """The gradients of input, weight and bias."""
    return _batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
    )


@op("aten::batch_norm_backward")
def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor,
) -> Gradients:
    """The gradients of input, weight and bias of `_batch_norm_with_update`."""
    return _batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


def _check_group_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, channels: int, groups: int) -> None:
    if groups <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {groups}")
    if channels % groups != 0:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(input.shape)} and num_groups={groups}"
        )
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None and (parameter.ndim != 1 or parameter.numel() != channels):
            raise RuntimeError(
                f"Expected {name} to be a vector of size equal to the number of channels in input, but got {name} of "
                f"shape {list(parameter.shape)} and input of shape {list(input.shape)}"
            )


def _with_batch(x: Tensor, batch: int, channels: int, positions: int) -> Tensor:
    """The tensor [batch, channels, ...]; composites of torch may pass other shapes of as many elements."""
    if x.ndim >= 2 and x.shape[0] == batch and x.shape[1] == channels:
        return x
    return x.reshape(batch, channels, positions)


@op("aten::native_group_norm")
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalized groups of channels, and the mean and reciprocal standard deviation of each."""
    _check_dtype("group_norm", input)
    _check_group_norm(input, weight, bias, C, group)
    parameter = _parameter_dtype("group_norm", input, (weight, bias))
    x, memory_format = _dense(input)
    out = torch.empty_like(x, memory_format=memory_format)
    mean = x.new_empty((N, group), dtype=_accumulation_dtype(x.dtype))
    rstd = torch.empty_like(mean)
    if x.numel() == 0:
        return out, mean.fill_(math.nan), rstd.fill_(math.nan)
    launch(
        f"{GROUP_NORM}:forward",
        [_with_batch(out, N, C, HxW), mean, rstd, _with_batch(x, N, C, HxW), _vector(weight), _vector(bias)],
        [group, float(eps)],
        dtype=x.dtype,
        parameter=parameter,
    )
    return out, mean, rstd


@op("aten::native_group_norm_backward")
def native_group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """The gradients of input, weight and bias."""
    _check_dtype("group_norm_backward", input)
    parameter = _parameter_dtype("group_norm_backward", input, (weight,))
    x, memory_format = _dense(input)
    dy = grad_out.to(x.dtype).contiguous(memory_format=memory_format)
    dx = torch.empty_like(x, memory_format=memory_format) if output_mask[0] else None
    dweight, dbias = (x.new_empty((C,), dtype=parameter) if wanted else None for wanted in output_mask[1:])
    if x.numel() == 0:
        for gradient in (dweight, dbias):
            if gradient is not None:
                gradient.zero_()
        return dx, dweight, dbias
    dense = [None if t is None else _with_batch(t, N, C, HxW) for t in (dx, dy, x)]
    accumulation = _accumulation_dtype(x.dtype)
    launch(
        f"{GROUP_NORM}:backward",
        [
            dense[0],
            dweight,
            dbias,
            *dense[1:],
            mean.to(accumulation).contiguous(),
            rstd.to(accumulation).contiguous(),
            _vector(weight),
        ],
        [group],
        dtype=x.dtype,
        parameter=parameter,
    )
    return dx, dweight, dbias


def _normalized_rows(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None) -> tuple[int, int]:
    """The numbers of rows and columns that normalization sees."""
    axes = len(normalized_shape)
    if axes < 1:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            f"normalized_shape = {list(normalized_shape)}"
        )
    if weight is not None and list(weight.shape) != list(normalized_shape):
        raise RuntimeError(
            "Expected weight to be of same shape as normalized_shape, but got weight of shape "
            f"{list(weight.shape)} and normalized_shape = {list(normalized_shape)}"
        )
    if list(input.shape[-axes:]) != list(normalized_shape):
        sizes = ", ".join(map(str, normalized_shape))
        raise RuntimeError(
            f"Given normalized_shape={list(normalized_shape)}, expected input with shape [*, {sizes}], "
            f"but got input of size{list(input.shape)}"
        )
    return math.prod(input.shape[:-axes]), math.prod(normalized_shape)


@op("aten::_fused_rms_norm")
def fused_rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Rows divided by their root mean square, and its reciprocal."""
    _check_dtype("rms_norm", input)
    rows, columns = _normalized_rows(input, normalized_shape, weight)
    x = input.contiguous()
    accumulation = _accumulation_dtype(x.dtype)
    out = torch.empty_like(x)
    rstd = x.new_empty((*input.shape[: -len(normalized_shape)], *[1] * len(normalized_shape)), dtype=accumulation)
    if rows:
        scale = None if weight is None else weight.to(x.dtype).contiguous()
        launch(
            f"{LAYER_NORM}:forward",
            [out, None, rstd, x, scale, None],
            [rows, columns, torch.finfo(accumulation).eps if eps is None else float(eps)],
            dtype=x.dtype,
            centered=False,
        )
    return out, rstd


@op("aten::_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and weight."""
    _check_dtype("rms_norm_backward", input)
    rows, columns = _normalized_rows(input, normalized_shape, weight)
    x = input.contiguous()
    dx = torch.empty_like(x) if output_mask[0] else None
    dweight = x.new_empty(tuple(normalized_shape)) if output_mask[1] and weight is not None else None
    if rows and columns:
        scale = None if weight is None else weight.to(x.dtype).contiguous()
        launch(
            f"{LAYER_NORM}:backward",
            [dx, dweight, None, grad_out.to(x.dtype).contiguous(), x, None, rstd.contiguous(), scale],
            [rows, columns],
            dtype=x.dtype,
            centered=False,
        )
    elif dweight is not None:
        dweight.zero_()
    if dweight is not None and weight is not None:
        dweight = dweight.to(weight.dtype)
    return dx, dweight


def _other_dimensions(x: Tensor, dim: int) -> list[int]:
    """All dimensions but one, of which torch passes the first or the last."""
    return [d for d in range(x.ndim) if d != dim % max(x.ndim, 1)]


@op("aten::_weight_norm_interface")
def weight_norm_interface(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors scaled to the norms `g`, and the norms that they had."""
    accumulation = _accumulation_dtype(v.dtype)
    norms = torch.linalg.vector_norm(v, 2, _other_dimensions(v, dim), True, dtype=accumulation).reshape(g.shape)
    return (v * (g / norms)).to(v.dtype), norms


@op("aten::_weight_norm_interface_backward")
def weight_norm_interface_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients for vectors v of norm n: dv = g / n (dw - v (dw . v) / n^2) and dg = (dw . v) / n."""
    accumulation = saved_norms.dtype
    dots = (grad_w.to(accumulation) * saved_v).sum(_other_dimensions(saved_v, dim), True).reshape(saved_g.shape)
    grad_v = (saved_g / saved_norms) * (grad_w - saved_v * (dots / (saved_norms * saved_norms)))
    return grad_v.to(saved_v.dtype), (dots / saved_norms).to(saved_g.dtype)
