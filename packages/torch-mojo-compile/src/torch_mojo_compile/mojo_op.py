"""A Mojo kernel of the user's own as a torch op: eager, under `torch.compile` with any backend, with a gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mojo_runtime import KernelSpec
from torch_mojo_compile import rows
from torch_mojo_compile.dtypes import kernel_dtype
from torch_mojo_compile.kernel_calls import call_on_tensors
from torch_mojo_compile.lowerings.table import Node, lowering_of


@functools.cache
def _library() -> torch.library.Library:
    return torch.library.Library("mojo_ops", "FRAGMENT")


def mojo_op(
    file: str | Path,
    function: str,
    schema: str,
    outputs: Callable[..., Any],
    *,
    parameters: Mapping[str, str | int | bool] | None = None,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
) -> torch._ops.OpOverload:
    """Makes a torch op of a kernel in a Mojo file.

    The kernel is `def function[dtype: DType](call: KernelCall) raises`, with the types of `mojo_kernels.abi`. Its
    tensors are the outputs, then the schema's tensor arguments, all contiguous; its scalars are the other arguments:
    ints, bools and floats a word each, lists of ints their length and the ints.

    Args:
        file: The Mojo file; a relative path is one from the working folder.
        function: The kernel's name there, which is the op's name too.
        schema: The op's arguments and results, e.g. "(Tensor x, float factor) -> Tensor".
        outputs: Called with the arguments; returns empty tensors for the results.
        parameters: The kernel's compile-time parameters: the name of a tensor argument stands for its dtype, "=text"
            for a text. By default `dtype` is that of the first tensor.
        backward: As of `torch.library.register_autograd`: gets a context and the results' gradients.
        setup_context: As of `torch.library.register_autograd`: keeps what the backward needs.

    Returns:
        The op, `torch.ops.mojo_ops.<function>.default`.

    Raises:
        FileNotFoundError: There is no such file.
        RuntimeError: There is an op of this name already, or the schema is wrong.
    """
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"mojo_op: there is no file {path}")
    library = _library()
    library.define(f"{function}{schema}")
    op: torch._ops.OpOverload = getattr(torch.ops.mojo_ops, function).default
    arguments = op._schema.arguments
    tensor_names = [a.name for a in arguments if "Tensor" in str(a.type)]
    if not tensor_names:
        raise ValueError(f"mojo_op {function}: the schema {schema} has no tensor argument")
    chosen = dict(parameters if parameters is not None else {"dtype": tensor_names[0]})

    def key_of(dtypes: Mapping[str, torch.dtype]) -> str:
        values: dict[str, Any] = {}
        for name, source in chosen.items():
            if isinstance(source, str) and source in dtypes:
                values[name] = kernel_dtype(dtypes[source])
            else:
                values[name] = source.removeprefix("=") if isinstance(source, str) else source
        return KernelSpec(path, function, **values).key

    def split(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any], list[Any]]:
        named = {
            a.name: args[i] if i < len(args) else kwargs.get(a.name, a.default_value) for i, a in enumerate(arguments)
        }
        tensors = [named[name] for name in tensor_names]
        scalars: list[Any] = []
        for a in arguments:
            if a.name not in tensor_names:
                scalars += rows.words(named[a.name], str(a.type))
        return named, tensors, scalars

    def run(*args: Any, **kwargs: Any) -> Any:
        named, tensors, scalars = split(args, kwargs)
        made = outputs(*args, **kwargs)
        results = list(made) if isinstance(made, tuple | list) else [made]
        dtypes = {name: named[name].dtype for name in tensor_names if named[name] is not None}
        inputs = [None if t is None else t.contiguous() for t in tensors]
        call_on_tensors(key_of(dtypes), results, inputs, scalars)
        return made

    def lower(node: Node, *args: Any, **kwargs: Any) -> Any:
        _, tensors, scalars = split(args, kwargs)
        fakes = {a.name: node.argument(i, a.name) for i, a in enumerate(arguments)}
        dtypes = {name: fakes[name].dtype for name in tensor_names if fakes[name] is not None}
        results = node.call(key_of(dtypes), tensors, scalars, contiguous=True)
        return results[0] if isinstance(node.fake, torch.Tensor) else results

    library.impl(function, run, "CPU")
    library.impl(function, run, "PrivateUse1")
    torch.library.register_fake(f"mojo_ops::{function}", outputs, lib=library)
    if backward is not None:
        torch.library.register_autograd(f"mojo_ops::{function}", backward, setup_context=setup_context, lib=library)
    lowering_of(op, lower)
    return op
