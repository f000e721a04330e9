"""From rows of the op tables and arguments to kernel calls, as the frontend makes them."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from gpu_check.samples import Sample, overload, written_arguments
from mojo_runtime._native import DTYPE_CODES
from mojo_runtime.aten import Native, Pointwise, Row, fill_key, key_template
from torch_mojo_eager.ops import registry

DTYPES = {name: getattr(torch, name) for name in DTYPE_CODES}
CODES = {dtype: DTYPE_CODES[name] for name, dtype in DTYPES.items()}
HOST_SCALAR, ABSENT = 1, 2


@dataclasses.dataclass
class Operand:
    """A tensor of a kernel call.

    Attributes:
        tensor: None where it is optional and not given.
        is_output: The kernel writes it.
        holds_values: The kernel may read it: every input, and outputs that are updated in place.
        is_host_scalar: It is passed with the flag HOST_SCALAR.
    """

    tensor: torch.Tensor | None
    is_output: bool = False
    holds_values: bool = True
    is_host_scalar: bool = False


@dataclasses.dataclass
class KernelCall:
    """A kernel with its operands, outputs first, and its scalar words."""

    key: str
    operands: list[Operand]
    scalars: list[int]


class NotCallable(Exception):
    """The row has no kernel for these arguments."""


def _float_word(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def encode(value: Any, schema_type: str) -> list[int]:
    """The words of a scalar argument; see docs/architecture.md.

    Args:
        value: The argument.
        schema_type: As torch prints it, e.g. "Optional[List[int]]".
    """
    if schema_type.startswith("Optional["):
        inner = schema_type.removeprefix("Optional[").removesuffix("]")
        if value is None:
            return [0]
        return encode(value, inner) if inner.startswith("List[") else [1, *encode(value, inner)]
    if schema_type.startswith("List["):
        values = [value] if isinstance(value, int) else list(value)
        inner = schema_type.removeprefix("List[").removesuffix("]")
        return [len(values), *(word for item in values for word in encode(item, inner))]
    if schema_type == "number":
        integer = int(value) if value == value and abs(value) < 2**63 else 0
        return [integer, _float_word(float(value))]
    if schema_type == "float":
        return [_float_word(float(value))]
    if isinstance(value, torch.dtype):
        return [CODES[value]]
    if isinstance(value, str):
        return [int.from_bytes(value.encode()[:8], "little", signed=True)]
    return [int(value)]


def functional_name(row: Row) -> str:
    """The overload of a row that returns new tensors, or the row's own name."""
    return registry.forms_of(row.name)[0] or row.name


def _key(row: Row, dtypes: Sequence[torch.dtype]) -> str:
    template, _, allowed = key_template(row)
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    for name, among in zip(names, allowed, strict=True):
        if name not in among:
            raise NotCallable(f"{row.name} has no kernel for {name}")
    return fill_key(template, names)


def native_call(row: Native, sample: Sample, outputs: Sequence[Any]) -> KernelCall:
    """The kernel call of a row.

    Args:
        row: The row.
        sample: The arguments.
        outputs: What the op writes, in the schema's order: tensors and lists of them. Those that are updated in place
            are given their values here.

    Raises:
        NotCallable: There is no kernel for the dtypes.
    """
    schema = overload(row.name)._schema
    written = written_arguments(overload(row.name))
    if not written:  # a functional overload: the row names its outputs itself
        written = [name for name in row.tensors if name not in sample.arguments]
    updated = [name for name in written if name in sample.arguments and sample.arguments[name] is not None]
    values = sample.arguments | dict(zip(written, outputs, strict=True))
    for name in updated:
        for output, value in zip(tree_leaves(values[name]), tree_leaves(sample.arguments[name]), strict=True):
            output.copy_(value)
    operands = []
    for i, name in enumerate(row.tensors):
        tensors = values[name] if isinstance(values[name], (list, tuple)) else [values[name]]
        is_output = name in written and name not in row.tensors[:i]
        holds_values = not is_output or name in updated
        operands += [Operand(tensor, is_output, holds_values) for tensor in tensors]
    scalars: list[int] = []
    types = {argument.name: str(argument.type) for argument in schema.arguments}
    for name in row.scalars:
        if name.startswith("="):
            scalars.append(int(name[1:]))
        elif name.startswith("len("):
            scalars.append(len(values[name[4:-1]]))
        else:
            scalars += encode(values[name], types[name])
    _, dtype_arguments, _ = key_template(row)
    dtypes = []
    for name in dtype_arguments:
        value = values[name]
        value = value[0] if isinstance(value, (list, tuple)) else value
        if value is None:
            raise NotCallable(f"{row.name}: {name} is not given")
        dtypes.append(value.dtype)
    return KernelCall(_key(row, dtypes), operands, scalars)


def pointwise_call(
    row: Pointwise, dtype: torch.dtype, inputs: Sequence[Operand], output: torch.Tensor, sample: Sample
) -> KernelCall:
    """The kernel call of a row, with dimensions broadcast, sorted by the output's strides and coalesced.

    Args:
        row: The row.
        dtype: The computation dtype, which all inputs have.
        inputs: Operands that broadcast to the output.
        output: The output.
        sample: The other arguments.
    """
    views = [output, *(o.tensor.expand(output.shape) for o in inputs if o.tensor is not None)]
    order = sorted(range(output.ndim), key=lambda d: -output.stride()[d])
    views = [view.permute(order) for view in views]
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for d, size in enumerate(views[0].shape):
        steps = [view.stride(d) for view in views]
        if size == 1:
            continue
        if sizes and all(known[-1] == size * step for known, step in zip(strides, steps, strict=True)):
            sizes[-1] *= size
            for known, step in zip(strides, steps, strict=True):
                known[-1] = step
        else:
            sizes.append(size)
            for known, step in zip(strides, steps, strict=True):
                known.append(step)
    views = [v.as_strided(sizes, s, v.storage_offset()) for v, s in zip(views, strides, strict=True)]
    operands = [Operand(views[0], is_output=True, holds_values=False)]
    for view, operand in zip(views[1:], inputs, strict=True):
        tensor = operand.tensor if operand.is_host_scalar else view
        operands.append(Operand(tensor, is_host_scalar=operand.is_host_scalar))
    types = {argument.name: str(argument.type) for argument in overload(row.name)._schema.arguments}
    scalars = [word for name in row.scalars for word in encode(sample.arguments[name], types[name])]
    return KernelCall(_key(row, [dtype]), operands, scalars)
