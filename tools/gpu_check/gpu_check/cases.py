"""What to run for a row of the op tables: kernel calls with expected results, over samples and layouts."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gpu_check import samples
from gpu_check.calls import KernelCall, NotCallable, Operand, functional_name, native_call, pointwise_call
from gpu_check.exact import EXACT
from gpu_check.made import Maker, made_samples
from gpu_check.samples import LAYOUTS, Sample
from mojo_runtime.aten.table import Native, Pointwise, Row

ODD_SIZE = 1037
"""Elements of the long case: several blocks of vectors, and a tail."""


WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
"""Types in which kernels may compute what is rounded to a narrower one."""


@dataclasses.dataclass
class Case:
    """A kernel call, and what its outputs are to be.

    Attributes:
        name: What is special about it.
        call: The call, whose outputs are still to be written.
        outputs: Its outputs, in their own shapes.
        expected: What torch computes, and what it computes in a wider type, rounded once; or the exact results.
    """

    name: str
    call: KernelCall
    outputs: list[Any]
    expected: list[list[Any]]

    def compare(self, rtol: float | None = None, atol: float | None = None) -> None:
        """Compares the outputs with what was expected.

        Args:
            rtol: Relative tolerance; torch's default for the dtype where not given.
            atol: Absolute tolerance, given together with `rtol`.

        Raises:
            AssertionError: They differ from every expectation.
        """
        problems = []
        for expected in self.expected:
            try:
                for output, wanted in zip(tree_leaves(self.outputs), tree_leaves(expected), strict=True):
                    torch.testing.assert_close(output, wanted, equal_nan=True, rtol=rtol, atol=atol)
                return
            except AssertionError as problem:
                problems.append(str(problem))
        shapes = ", ".join(str(tuple(o.tensor.shape)) for o in self.call.operands if o.tensor is not None)
        raise AssertionError(f"{self.call.key}, {self.name}, operands {shapes}: {problems[0]}")


def references(sample: Sample) -> list[list[Any]]:
    """What torch computes on the CPU, or what is exact; nothing where it refuses."""
    if sample.overload in EXACT:
        return [EXACT[sample.overload](sample)]
    found: list[list[Any]] = []
    for dtype in (sample.dtype, *([WIDER[sample.dtype]] if sample.dtype in WIDER else ())):
        with contextlib.suppress(RuntimeError, NotImplementedError, ValueError, IndexError, TypeError):
            results = sample.to(dtype).run()
            found.append(tree_map(lambda x, dtype=dtype: x.to(sample.dtype) if x.dtype == dtype else x, results))
    dtypes = [[x.dtype for x in tree_leaves(results)] for results in found]
    return [results for results, own in zip(found, dtypes, strict=True) if own == dtypes[0]]


def _base(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_floating_point:
        return torch.float32
    return torch.bool if dtype == torch.bool else torch.int32


def samples_of(row: Row, dtype: torch.dtype, captured: dict[str, list[Sample]]) -> list[Sample]:
    """The samples of a row with its tensors in a dtype."""
    name = functional_name(row)
    found = [sample for sample in captured.get(name, ()) if sample.dtype == _base(dtype)]
    made = made_samples(name)
    if made is not None:
        generator = torch.Generator().manual_seed(0)
        found += [
            Sample(name, samples.bind(samples.overload(name), (), arguments), _base(dtype))
            for arguments in made(Maker(_base(dtype), generator))
        ]
    return [sample.to(dtype) for sample in found]


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
    if "buffer" in arguments:  # of log_sigmoid: what its forward has kept on CPUs
        arguments["buffer"] = torch.exp(-arguments["self"].abs())
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
            expected = references(arguments)
            if not expected:
                continue
            (result,) = expected[0]
            if result.dtype not in (dtype, torch.bool):
                continue  # a number among the arguments promotes: another kernel's call
            output = LAYOUTS[layout](torch.zeros(result.shape, dtype=result.dtype))
            try:
                call = pointwise_call(row, dtype, operands, output, sample)
            except NotCallable:
                continue
            yield Case(f"sample {i}, {name}", call, [output], expected)


# ---- native rows ---------------------------------------------------------------------------------------------------


def _enlarged(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """For a sample with one tensor: long rows, and many of them."""
    tensors = sample.tensors
    if len(tensors) != 1 or tensors[0].ndim == 0 or tensors[0].numel() == 0 or "output_size" in sample.arguments:
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
            if "stable" in arguments.arguments:  # where it is not asked for, torch leaves the order of equals open
                arguments = dataclasses.replace(arguments, arguments={**arguments.arguments, "stable": True})
            # Contiguous for the reference: CPU torch misreads strided indices of some poolings.
            expected = references(arguments.map_tensors(torch.Tensor.contiguous))
            if not expected:
                continue
            layout = LAYOUTS.get(name, LAYOUTS["contiguous"])
            outputs = tree_map(lambda x, layout=layout: layout(torch.zeros_like(x)), expected[0])
            try:
                call = native_call(row, arguments, outputs)
            except NotCallable:
                continue
            yield Case(f"sample {i}, {name}", call, outputs, expected)


def cases(row: Row, dtype: torch.dtype, captured: dict[str, list[Sample]]) -> Iterator[Case]:
    """Cases of a row."""
    return pointwise_cases(row, dtype, captured) if isinstance(row, Pointwise) else native_cases(row, dtype, captured)
