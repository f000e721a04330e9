"""What to run for a row of the op tables: kernel calls with expected results, over samples and layouts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gpu_check import samples
from gpu_check.calls import KernelCall, NotCallable, Operand, functional_name, native_call, pointwise_call
from gpu_check.samples import LAYOUTS, Sample
from torch_mojo_eager.ops.table import Native, Pointwise, Row

ODD_SIZE = 1037
"""Elements of the long case: several blocks of vectors, and a tail."""


@dataclasses.dataclass
class Case:
    """A kernel call, what its outputs are to be, and what it is about."""

    name: str
    call: KernelCall
    outputs: Sequence[torch.Tensor]
    expected: Sequence[torch.Tensor]


def reference(sample: Sample) -> tuple[torch.Tensor, ...] | None:
    """What torch computes on the CPU; in float32 where it has no kernel for a half type; None where it refuses."""
    try:
        return sample.run()
    except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError) as error:
        if "not implemented for" not in str(error) or sample.dtype not in (torch.float16, torch.bfloat16):
            return None
    results = reference(sample.to(torch.float32))
    return results and tuple(x.to(sample.dtype) if x.dtype == torch.float32 else x for x in results)


def _base(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return torch.float32
    return torch.bool if dtype == torch.bool else torch.int32


def samples_of(row: Row, dtype: torch.dtype, captured: dict[str, list[Sample]]) -> list[Sample]:
    """The samples of a row with its tensors in a dtype."""
    name = functional_name(row)
    found = [sample for sample in captured.get(name, ()) if sample.dtype == _base(dtype)]
    made = MADE.get(name)
    if made is not None:
        generator = torch.Generator().manual_seed(0)
        found += [
            Sample(name, samples.bind(samples.overload(name), (), arguments), _base(dtype))
            for arguments in made(_Maker(_base(dtype), generator))
        ]
    return [sample.to(dtype) for sample in found]


class _Maker:
    """Makes tensors of a base dtype."""

    def __init__(self, dtype: torch.dtype, generator: torch.Generator) -> None:
        self._dtype, self._generator = dtype, generator

    def __call__(self, *shape: int) -> torch.Tensor:
        if self._dtype.is_floating_point:
            return torch.randn(shape, generator=self._generator)
        low, high = (0, 2) if self._dtype == torch.bool else (-9, 10)
        return torch.randint(low, high, shape, generator=self._generator).to(self._dtype)

    def indices(self, limit: int, *shape: int) -> torch.Tensor:
        """Indices in [0, limit)."""
        return torch.randint(0, limit, shape, generator=self._generator)


def _products(make: _Maker) -> Iterator[dict[str, Any]]:
    for m, n, k in ((1, 1, 1), (3, 5, 7), (17, 33, 65), (64, 64, 32), (70, 130, 20), (5, 7, 0)):
        yield {"self": make(m, k), "mat2": make(k, n)}


def _batched_products(make: _Maker) -> Iterator[dict[str, Any]]:
    for b, m, n, k in ((1, 3, 5, 7), (3, 17, 33, 20), (2, 66, 70, 18)):
        yield {"self": make(b, m, k), "mat2": make(b, k, n)}


def _added_products(make: _Maker) -> Iterator[dict[str, Any]]:
    for m, n, k in ((3, 5, 7), (33, 65, 17)):
        yield {"self": make(n), "mat1": make(m, k), "mat2": make(k, n), "beta": 1, "alpha": 1}
        yield {"self": make(m, n), "mat1": make(m, k), "mat2": make(k, n), "beta": 2, "alpha": 3}
        yield {"self": make(m, 1), "mat1": make(m, k), "mat2": make(k, n), "beta": 0, "alpha": 1}


MADE: dict[str, Callable[[_Maker], Iterator[dict[str, Any]]]] = {
    "mm": _products,
    "bmm": _batched_products,
    "addmm": _added_products,
}
"""Samples by functional overload, beside those of torch's database: sizes that reach every path of a kernel."""


# ---- pointwise rows ------------------------------------------------------------------------------------------------


def _input_tensors(row: Pointwise, sample: Sample) -> list[torch.Tensor]:
    """The inputs in the computation dtype, as the frontend passes them; numbers become 0-dim."""
    found = []
    for i, name in enumerate(row.inputs):
        dtype = torch.bool if i == 0 and row.promotion == "condition" else sample.dtype
        found.append(torch.as_tensor(sample.arguments[name]).to(dtype))
    return found


def _with_inputs(row: Pointwise, sample: Sample, inputs: Sequence[torch.Tensor]) -> Sample:
    arguments = dict(sample.arguments)
    for name, tensor in zip(row.inputs, inputs, strict=True):
        arguments[name] = tensor if isinstance(arguments[name], torch.Tensor) else arguments[name]
    return Sample(sample.overload, arguments, sample.dtype)


def _variants(row: Pointwise, sample: Sample) -> Iterator[tuple[str, list[Operand], Sample, str]]:
    """Name, operands, the sample for the reference, and the output's layout."""
    inputs = _input_tensors(row, sample)
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in inputs))
    for layout in LAYOUTS:
        laid_out = [LAYOUTS[layout](tensor) for tensor in inputs]
        yield layout, [Operand(tensor) for tensor in laid_out], _with_inputs(row, sample, laid_out), layout
    if len(shape) and shape.numel():
        flat = [tensor.expand(shape).reshape(-1) if tensor.ndim else tensor for tensor in inputs]
        times = -(-ODD_SIZE // shape.numel())
        long = [tensor.repeat(times)[:ODD_SIZE] if tensor.ndim else tensor for tensor in flat]
        yield "long", [Operand(tensor) for tensor in long], _with_inputs(row, sample, long), "contiguous"
        offset = [torch.cat([tensor[:1], tensor])[1:] if tensor.ndim else tensor for tensor in long]
        yield "misaligned", [Operand(tensor) for tensor in offset], _with_inputs(row, sample, offset), "contiguous"
        expanded = [tensor.expand(shape)[:1].expand(shape) for tensor in inputs]
        yield "expanded", [Operand(tensor) for tensor in expanded], _with_inputs(row, sample, expanded), "contiguous"
        empty = [tensor.expand(shape)[:0] for tensor in inputs]
        yield "empty", [Operand(tensor) for tensor in empty], _with_inputs(row, sample, empty), "contiguous"
        for k in range(1, len(inputs)):
            host = [tensor.reshape(-1)[0].clone() if i == k else tensor for i, tensor in enumerate(inputs)]
            operands = [Operand(tensor, is_host_scalar=i == k) for i, tensor in enumerate(host)]
            yield f"host scalar {k}", operands, _with_inputs(row, sample, host), "contiguous"


def pointwise_cases(row: Pointwise, dtype: torch.dtype, captured: dict[str, list[Sample]]) -> Iterator[Case]:
    """Cases of a row for a computation dtype: every sample contiguous, the largest in every layout."""
    found = samples_of(row, dtype, captured)
    largest = max(found, key=lambda s: max((t.numel() for t in s.tensors), default=0), default=None)
    for i, sample in enumerate(found):
        variants = _variants(row, sample)
        for name, operands, arguments, layout in variants if sample is largest else itertools.islice(variants, 1):
            results = reference(arguments)
            if results is None:
                continue
            (expected,) = results
            if expected.dtype not in (dtype, torch.bool):
                continue  # a number among the arguments promotes: another kernel's call
            output = LAYOUTS[layout](torch.zeros(expected.shape, dtype=expected.dtype))
            try:
                call = pointwise_call(row, dtype, operands, output, sample)
            except NotCallable:
                continue
            yield Case(f"sample {i}, {name}", call, [output], [expected])


# ---- native rows ---------------------------------------------------------------------------------------------------


def _enlarged(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """For a sample with one tensor: long rows, and many of them."""
    tensors = sample.tensors
    if len(tensors) != 1 or tensors[0].ndim == 0 or tensors[0].numel() == 0:
        return
    ndim = tensors[0].ndim
    for d, name in ((ndim - 1, "long last"), (0, "long first")):
        times = [1] * ndim
        times[d] = -(-ODD_SIZE // tensors[0].shape[d])

        def enlarge(tensor: torch.Tensor, d: int = d, times: Sequence[int] = tuple(times)) -> torch.Tensor:
            return tensor.repeat(*times).narrow(d, 0, ODD_SIZE)

        yield name, sample.map_tensors(enlarge)


def native_cases(row: Native, dtype: torch.dtype, captured: dict[str, list[Sample]]) -> Iterator[Case]:
    """Cases of a row for its first dtype: every sample in every layout, and enlarged."""
    found = samples_of(row, dtype, captured)
    for i, sample in enumerate(found):
        variants = [*samples.layouts(sample), *(_enlarged(sample) if i % 3 == 0 else ())]
        for name, arguments in variants:
            results = reference(arguments)
            if results is None:
                continue
            layout = LAYOUTS.get(name, LAYOUTS["contiguous"])
            outputs = [layout(torch.zeros(result.shape, dtype=result.dtype)) for result in results]
            try:
                call = native_call(row, arguments, outputs)
            except NotCallable:
                continue
            yield Case(f"sample {i}, {name}", call, outputs, results)


def cases(row: Row, dtype: torch.dtype, captured: dict[str, list[Sample]]) -> Iterator[Case]:
    """Cases of a row."""
    return pointwise_cases(row, dtype, captured) if isinstance(row, Pointwise) else native_cases(row, dtype, captured)
