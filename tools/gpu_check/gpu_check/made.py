"""Samples made here: of overloads that torch's database does not reach, and sizes that reach every path of a kernel."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gpu_check.samples import overload


class Maker:
    """Makes tensors of a base dtype."""

    def __init__(self, dtype: torch.dtype, generator: torch.Generator) -> None:
        self._dtype, self._generator = dtype, generator

    def __call__(self, *shape: int) -> torch.Tensor:
        """Normally distributed values, small integers or booleans."""
        if self._dtype.is_floating_point:
            return torch.randn(shape, generator=self._generator)
        low, high = (0, 2) if self._dtype == torch.bool else (-9, 10)
        return torch.randint(low, high, shape, generator=self._generator).to(self._dtype)

    def indices(self, limit: int, *shape: int) -> torch.Tensor:
        """Indices in [0, limit)."""
        return torch.randint(0, limit, shape, generator=self._generator)


def _products(make: Maker) -> Iterator[dict[str, Any]]:
    for m, n, k in ((1, 1, 1), (3, 5, 7), (17, 33, 65), (64, 64, 32), (70, 130, 20), (5, 7, 0)):
        yield {"self": make(m, k), "mat2": make(k, n)}


def _batched_products(make: Maker) -> Iterator[dict[str, Any]]:
    for b, m, n, k in ((1, 3, 5, 7), (3, 17, 33, 20), (2, 66, 70, 18)):
        yield {"self": make(b, m, k), "mat2": make(b, k, n)}


def _added_products(make: Maker) -> Iterator[dict[str, Any]]:
    for m, n, k in ((3, 5, 7), (33, 65, 17)):
        yield {"self": make(n), "mat1": make(m, k), "mat2": make(k, n), "beta": 1, "alpha": 1}
        yield {"self": make(m, n), "mat1": make(m, k), "mat2": make(k, n), "beta": 2, "alpha": 3}
        yield {"self": make(m, 1), "mat1": make(m, k), "mat2": make(k, n), "beta": 0, "alpha": 1}


def _clamped(make: Maker) -> Iterator[dict[str, Any]]:
    for low, high in ((-1, 1), (None, 1), (0, None), (2, -2)):
        yield {"self": make(5, 7), "min": low, "max": high}


def _powers(make: Maker) -> Iterator[dict[str, Any]]:
    for exponent in (0, 1, 2, 3, 5):
        yield {"self": make(5, 7), "exponent": exponent}


def _index_filled(make: Maker) -> Iterator[dict[str, Any]]:
    for dim in (0, 1, -1):
        yield {"self": make(5, 7, 3), "dim": dim, "index": torch.tensor([2, 0]), "value": 3}
    yield {"self": make(5), "dim": 0, "index": torch.tensor([4]), "value": 1}


def _scattered(make: Maker) -> Iterator[dict[str, Any]]:
    yield {"self": make(5, 7), "dim": 0, "index": torch.tensor([[4, 0, 2], [1, 3, 0]]), "value": 1}
    yield {"self": make(5), "dim": 0, "index": make.indices(5, 0), "value": 1}


def _thresholds(make: Maker) -> Iterator[dict[str, Any]]:
    yield {"grad_output": make(5, 7), "self": make(5, 7), "threshold": 1}


def _means(make: Maker) -> Iterator[dict[str, Any]]:
    """Integers have a mean only in a dtype that is asked for."""
    for dim in ([0], [1], [0, 1], None):
        yield {"self": make(5, 7), "dim": dim, "keepdim": False, "dtype": torch.float32}


def _windows(make: Maker) -> Iterator[dict[str, Any]]:
    """Of regular pooling: torch's database has floating-point samples only."""
    yield {"self": make(2, 3, 7, 6), "kernel_size": [3, 2], "stride": [2, 1], "padding": [1, 1]}
    yield {"self": make(5, 9, 8), "kernel_size": [2, 2], "ceil_mode": True}


def _windows_3d(make: Maker) -> Iterator[dict[str, Any]]:
    yield {"self": make(2, 3, 4, 5, 6), "kernel_size": [2, 3, 2], "stride": [1, 2, 2], "padding": [1, 1, 0]}


def _averaged_backward(name: str, make: Maker) -> Iterator[dict[str, Any]]:
    """The gradients of `_windows` and `_windows_3d`; of integers too, each element's share is a whole number."""
    arguments = [a.name for a in overload(name)._schema.arguments]
    defaults = {"stride": [], "padding": 0, "ceil_mode": False, "count_include_pad": True, "divisor_override": 2}
    for windows in (_windows if "2d" in name else _windows_3d)(make):
        sample = {**defaults, **windows}
        output = overload(name.removesuffix("_backward"))(**{**sample, "self": windows["self"].float()})
        sample["grad_output"] = 2 * make(*output.shape)
        yield {name: sample[name] for name in arguments}


def _adaptive(make: Maker) -> Iterator[dict[str, Any]]:
    """The database's samples reach what the op is composed of."""
    for size in ([1, 1], [2, 3], [7, 6], [9, 4]):
        yield {"self": make(2, 3, 7, 6), "output_size": size}


def _padded(make: Maker) -> Iterator[dict[str, Any]]:
    for padding in ([2, 1], [3, 4], [-1, 3]):
        yield {"self": make(2, 3, 5), "padding": padding}


def _padded_backward(make: Maker) -> Iterator[dict[str, Any]]:
    for sample in _padded(make):
        yield sample | {"grad_output": make(2, 3, 5 + sum(sample["padding"]))}


def _interpolated(name: str, make: Maker) -> Iterator[dict[str, Any]]:
    """To more and to fewer elements; sizes alone, corners aligned, and given factors."""
    arguments = [a.name for a in overload(name)._schema.arguments]
    rank = sum(name.startswith("scales") for name in arguments)
    inputs, outputs = (4, 7, 5)[:rank], (9, 3, 5)[:rank]
    for aligned, factor in ((False, None), (True, None), (False, 1.7)):
        sample: dict[str, Any] = dict.fromkeys((a for a in arguments if a.startswith("scales")), factor)
        sample |= {"output_size": outputs, "input_size": (2, 3, *inputs), "align_corners": aligned}
        sample |= {"self": make(2, 3, *inputs), "grad_output": make(2, 3, *outputs)}
        yield {name: value for name, value in sample.items() if name in arguments}


def _scanned(make: Maker) -> Iterator[dict[str, Any]]:
    """Of integers the database has samples for some dtypes only."""
    for dim in (0, 1):
        yield {"self": make(5, 7), "dim": dim}


Samples = Callable[[Maker], Iterator[dict[str, Any]]]
MADE: dict[str, Samples] = {
    "mm": _products,
    "bmm": _batched_products,
    "addmm": _added_products,
    "clamp": _clamped,
    "threshold_backward": _thresholds,
    "mean.dim": _means,
    **dict.fromkeys(("reflection_pad1d", "replication_pad1d"), _padded),
    **dict.fromkeys(("reflection_pad1d_backward", "replication_pad1d_backward"), _padded_backward),
    "cumsum": _scanned,
    "cumprod": _scanned,
    "max_pool2d_with_indices": _windows,
    "max_pool3d_with_indices": _windows_3d,
    "avg_pool2d": _windows,
    "avg_pool3d": _windows_3d,
    **{name: functools.partial(_averaged_backward, name) for name in ("avg_pool2d_backward", "avg_pool3d_backward")},
    "adaptive_avg_pool2d": _adaptive,
    "pow.Tensor_Scalar": _powers,
    "scatter.value": _scattered,
    "index_fill_.int_Scalar": _index_filled,
}
"""Samples by functional overload, beside those of torch's database: sizes that reach every path of a kernel."""


# ---- lists of tensors: optimizers ----------------------------------------------------------------------------------

LIST_SHAPES = ((5, 7), (1037,), (), (0,), (3, 1, 4))


def _list_of_tensors(make: Maker) -> list[torch.Tensor]:
    return [make(*shape).abs() + 0.5 for shape in LIST_SHAPES]


def _foreach(name: str, make: Maker) -> Iterator[dict[str, Any]]:
    """By the schema: lists of positive tensors, numbers, lists of numbers, 0-dim tensors."""
    values: dict[str, Callable[[], Any]] = {
        "List[Tensor]": functools.partial(_list_of_tensors, make),
        "List[number]": lambda: [0.5 * (i + 1) for i in range(len(LIST_SHAPES))],
        "number": lambda: 1.5,
        "Tensor": lambda: make().abs() + 0.5,
    }
    yield {a.name: values[str(a.type)]() for a in overload(name)._schema.arguments}


def _fused(name: str, make: Maker) -> Iterator[dict[str, Any]]:
    """Steps with and without every switch; gradients scaled and not."""
    schema = overload(name)._schema
    names = {a.name for a in schema.arguments}
    numbers = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "momentum": 0.9, "dampening": 0.1}
    numbers["lr_decay"] = 0.1
    for switch, scaled in itertools.product((False, True), (False, True)):
        arguments: dict[str, Any] = {a.name: numbers.get(a.name) for a in schema.arguments}
        arguments |= {a.name: switch for a in schema.arguments if str(a.type) == "bool"}
        arguments |= {a.name: _list_of_tensors(make) for a in schema.arguments if str(a.type) == "List[Tensor]"}
        arguments["lr"] = torch.tensor(0.01) if name.endswith("tensor_lr") else 0.01
        if "state_steps" in names:
            arguments["state_steps"] = [torch.tensor(3.0) for _ in LIST_SHAPES]
        if "max_exp_avg_sqs" in names and not switch:
            arguments["max_exp_avg_sqs"] = []
        if "nesterov" in names:
            arguments["dampening"] = 0.0 if switch else 0.1
        if scaled:
            arguments |= {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)}
        yield arguments
    if "momentum_buffer_list" in names:
        yield arguments | {"momentum": 0.0, "momentum_buffer_list": [], "nesterov": False, "is_first_step": False}
    yield arguments | {"found_inf": torch.tensor(1.0)}


def _unscaled(make: Maker) -> Iterator[dict[str, Any]]:
    for bad in (False, True):
        gradients = _list_of_tensors(make)
        if bad:
            gradients[1][1000] = torch.inf
        yield {"self": gradients, "found_inf": torch.tensor(0.0), "inv_scale": torch.tensor(0.25)}


def _updated_scale(make: Maker) -> Iterator[dict[str, Any]]:
    for tracker, found in ((0, 0.0), (0, 1.0), (4, 0.0)):
        yield {
            "self": torch.tensor(8.0),
            "growth_tracker": torch.tensor(tracker, dtype=torch.int32),
            "found_inf": torch.tensor(found),
            "scale_growth_factor": 2.0,
            "scale_backoff_factor": 0.5,
            "growth_interval": 5,
        }


MADE |= {
    "_amp_foreach_non_finite_check_and_unscale_": _unscaled,
    "_amp_update_scale_": _updated_scale,
}


def made_samples(name: str) -> Samples | None:
    """The samples of an overload, None if there are none."""
    if name.startswith(("upsample_", "_upsample_")):
        return functools.partial(_interpolated, name)
    if name.startswith("_foreach_"):
        return functools.partial(_foreach, name)
    if name.startswith("_fused_"):
        return functools.partial(_fused, name)
    return MADE.get(name)
