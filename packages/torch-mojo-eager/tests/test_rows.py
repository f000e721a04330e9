"""Every Pointwise row against CPU torch: its functional form, over dtypes and layouts."""

from __future__ import annotations

import pytest
import torch

from mojo_runtime.aten import Pointwise, rows
from torch_mojo_eager.ops import registry

DTYPES = ("float32", "int64", "bool")
ROWS = [row for row in rows() if isinstance(row, Pointwise)]

# Arguments that are neither tensors nor numbers, and numbers for which 2 is no good value.
VALUES = {
    "approximate": "tanh",
    "rounding_mode": "floor",
    "min": 1,
    "max": 3,
    "min_val": -1,
    "max_val": 1,
    "eps": 1e-3,
    "is_result": False,
    "decimals": 1,
    "negative_slope": 0.5,
}


def form_to_call(row: Pointwise) -> str:
    functional, _ = registry.forms_of(row.name)
    return functional or row.name


def tensor_for(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if dtype == torch.bool or name in ("condition", "mask"):
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return torch.rand(shape, dtype=dtype) * 0.9 + 0.05  # within every function's domain
    return torch.randint(1, 5, shape, dtype=dtype)


LAYOUTS = {
    "contiguous": lambda name: (slice(None), (6, 5)),
    "transposed": lambda name: ("t", (5, 6)),
    "strided": lambda name: ((slice(None, None, 2), slice(1, None)), (12, 6)),
    "broadcast": lambda name: (slice(None), (6, 1) if name in ("other", "end", "exponent", "tensor2") else (6, 5)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("row", "dtype"),
    [
        pytest.param(row, getattr(torch, dtype), id=f"{row.name}-{dtype}")
        for row in ROWS
        for dtype in DTYPES
        if dtype in row.dtypes
    ],
)
def test_matches_cpu(device, row, dtype, layout):
    torch.manual_seed(0)
    name = form_to_call(row)
    schema = registry.schema_of(name)
    base, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, base), overload or "default")
    arguments, host = [], []
    for argument in schema.arguments:
        if argument.name == "buffer":  # of log_sigmoid: only the CPU's implementation keeps one
            host.append(torch.exp(-host[-1].abs()))
            arguments.append(torch.empty(0, device=device))
            continue
        kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
        if kind == "Tensor":
            if row.name == "masked_fill_.Tensor" and argument.name == "value":
                value = torch.tensor(1).to(dtype)
                host.append(value)
                arguments.append(value.to(device))
                continue
            how, shape = LAYOUTS[layout](argument.name)
            whole = tensor_for(argument.name, dtype, shape)
            on_device = whole.to(device)
            host.append(whole.t() if how == "t" else whole[how])
            arguments.append(on_device.t() if how == "t" else on_device[how])
        else:
            value = VALUES.get(argument.name, True if dtype == torch.bool else 2)
            host.append(value)
            arguments.append(value)
    keyword_only = [a.kwarg_only for a in schema.arguments]
    names = [a.name for a in schema.arguments]

    def call(values):
        positional = [v for v, k in zip(values, keyword_only, strict=True) if not k]
        keywords = {n: v for n, v, k in zip(names, values, keyword_only, strict=True) if k}
        return function(*positional, **keywords)

    try:
        expected = call(host)
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented for" not in str(error) and "not supported" not in str(error):
            raise
        pytest.skip(f"CPU torch: {error}")
    result = call(arguments)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert result.stride() == expected.stride()
    rtol, atol = row.tolerance
    torch.testing.assert_close(result.cpu(), expected, rtol=rtol, atol=atol, equal_nan=True)
    for ours, theirs in zip(arguments, host, strict=True):
        if isinstance(ours, torch.Tensor) and ours.shape == theirs.shape:
            torch.testing.assert_close(ours.cpu(), theirs, rtol=rtol, atol=atol, equal_nan=True)
