"""Sample calls of aten overloads: what torch's own op database makes each op do, captured below the autograd layer.

    calls = capture(["sum.dim_IntList", "gelu_backward"])
    calls["gelu_backward"][0].arguments  # {"grad_output": tensor, "self": tensor, "approximate": "none"}

Backward overloads are captured by running the database's samples backward.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES_PER_OP = 12
"""How many of the database's samples are run."""
BASE_DTYPES = (torch.float32, torch.int32, torch.bool)
"""Samples of other dtypes are made from these; int64 tensors among the arguments are indices and stay."""
ALWAYS_FLOAT32 = ("state_steps", "lr", "grad_scale", "found_inf", "inv_scale")
"""Arguments of optimizers and loss scaling that do not have the parameters' dtype."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A call of an overload.

    Attributes:
        overload: Without the namespace, e.g. "sum.dim_IntList".
        arguments: By the schema's names, all of them; CPU tensors.
        dtype: Of the database's sample.
    """

    overload: str
    arguments: dict[str, Any]
    dtype: torch.dtype

    def to(self, dtype: torch.dtype) -> Sample:
        """Converts the tensors that have the sample's dtype, but for those that are float32 beside any dtype."""

        def convert(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype == self.dtype else value

        arguments = {
            name: value if name in ALWAYS_FLOAT32 else tree_map(convert, value)
            for name, value in self.arguments.items()
        }
        return Sample(self.overload, arguments, dtype)

    def map_tensors(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
        """Replaces every tensor."""

        def convert(value: Any) -> Any:
            return function(value) if isinstance(value, torch.Tensor) else value

        return Sample(self.overload, tree_map(convert, self.arguments), self.dtype)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments."""
        return [value for value in tree_leaves(self.arguments) if isinstance(value, torch.Tensor)]

    def run(self) -> list[Any]:
        """Runs the overload on the CPU.

        Returns:
            What it returns, or for an overload that works in place the arguments that it writes; tensors and lists of
            them.
        """
        function = overload(self.overload)
        written = written_arguments(function)
        if not written:
            result = function(**self.arguments)
            return list(result) if len(function._schema.returns) > 1 else [result]
        arguments = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, self.arguments)
        function(**arguments)
        return [arguments[name] for name in written]


def overload(name: str) -> torch._ops.OpOverload:
    """The aten overload of a name such as "sum.dim_IntList" or "relu"."""
    base, _, which = name.partition(".")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, base), which or "default")
    return found


def written_arguments(function: torch._ops.OpOverload) -> list[str]:
    """The names of the arguments that an overload writes."""
    return [a.name for a in function._schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def _name(function: torch._ops.OpOverload) -> str:
    return str(function).removeprefix("aten.").removesuffix(".default")


def bind(function: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Names all arguments of a call, defaults included."""
    bound = {argument.name: argument.default_value for argument in function._schema.arguments}
    bound.update(zip(bound, args, strict=False))
    bound.update(kwargs)
    return bound


class _Capture(TorchDispatchMode):
    """Records the calls of some overloads."""

    def __init__(self, wanted: frozenset[str], dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Sample] = []
        self._wanted, self._dtype = wanted, dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = _name(func)
        if name in self._wanted:
            arguments = bind(func, args, kwargs or {})
            copied = tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, arguments)
            self.calls.append(Sample(name, copied, self._dtype))
        return func(*args, **(kwargs or {}))


def _run_with_backward(op: Any, sample: Any) -> None:
    output = op(sample.input, *sample.args, **sample.kwargs)
    outputs = [value for value in tree_leaves(output) if isinstance(value, torch.Tensor) and value.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.randn_like(value) for value in outputs])


_AFFIXES = re.compile(r"^(_+|special_|linalg_)+|(_kernel|_forward|_backward|_backward_data|_with_indices|_)+$")
_ALIASES = {"log_sigmoid": "logsigmoid"}


def _stem(name: str) -> str:
    """What the names of an op, of its forms and of its backward have in common."""
    stem = _AFFIXES.sub("", name.partition(".")[0])
    return _ALIASES.get(stem, stem)


def _database(wanted: Iterable[str]) -> list[Any]:
    """The ops of torch's database that are named like one of the overloads."""
    from torch.testing._internal.common_methods_invocations import op_db

    stems = {_stem(name) for name in wanted}
    return [
        op
        for op in op_db
        if not op.name.startswith(("jiterator", "to_sparse", "masked."))
        and {_stem(op.name.rpartition(".")[2]), _stem(op.aten_name or "")} & stems
    ]


@functools.lru_cache(maxsize=4)
def _capture(wanted: frozenset[str]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op, dtype in itertools.product(_database(wanted), BASE_DTYPES):
            if dtype not in op.dtypes or op.name.startswith(("jiterator", "to_sparse")):
                continue
            torch.manual_seed(0)
            differentiable = dtype.is_floating_point and op.supports_autograd
            samples = op.sample_inputs("cpu", dtype, requires_grad=differentiable)
            for sample in itertools.islice(samples, SAMPLES_PER_OP):
                with _Capture(wanted, dtype) as capture:
                    _run_with_backward(op, sample)
                for call in capture.calls:
                    found[call.overload].append(call)
    return dict(found)


def _signature(sample: Sample) -> str:
    """What makes samples worth running both: shapes and scalars."""

    def describe(value: Any) -> Any:
        return (value.ndim, value.numel() == 0, value.dtype) if isinstance(value, torch.Tensor) else value

    return repr((sample.dtype, tree_map(describe, sample.arguments)))


def capture(overloads: Iterable[str], limit: int = 8) -> dict[str, list[Sample]]:
    """Finds sample calls of overloads.

    Args:
        overloads: Names without the namespace.
        limit: At most so many per overload and base dtype; samples that differ in rank and scalars come first.

    Returns:
        By overload; those that no sample reaches are not in it.
    """
    chosen: dict[str, list[Sample]] = {}
    for name, samples in _capture(frozenset(overloads)).items():
        chosen[name] = []
        for dtype in BASE_DTYPES:
            of_dtype = [sample for sample in samples if sample.dtype == dtype]
            distinct = {_signature(sample): sample for sample in of_dtype}
            chosen[name] += itertools.islice(distinct.values(), limit)
    return chosen


# ---- layouts -------------------------------------------------------------------------------------------------------


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between the elements and a storage offset."""
    if tensor.ndim == 0:
        base = tensor.new_zeros(3)
        view = base[2]
    else:
        base = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1))
        view = base[..., 1::2]
    view.copy_(tensor)
    return view


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with the first dimension the fastest."""
    order = list(reversed(range(tensor.ndim)))
    return tensor.permute(order).contiguous().permute(order)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda tensor: tensor.contiguous(),
    "strided": strided,
    "transposed": transposed,
}


def layouts(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yields a sample in several layouts, each with its name."""
    has_lists = any(isinstance(value, list) and sample.tensors for value in sample.arguments.values())
    for name, layout in LAYOUTS.items():
        if name == "transposed" and all(tensor.ndim < 2 for tensor in sample.tensors):
            continue
        if name == "strided" and has_lists and sample.overload.startswith(("_foreach_", "_fused_", "_amp_")):
            continue  # on GPUs, which update all tensors of a list in one launch, these must be dense
        yield name, sample.map_tensors(layout)
