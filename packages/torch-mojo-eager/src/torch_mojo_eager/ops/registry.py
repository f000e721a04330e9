"""How ops reach torch: rows of the tables through the shim, Python functions through torch.library.

`op` registers a Python function, `launch` calls a kernel from it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import torch

from mojo_runtime import aten
from mojo_runtime._native import DTYPE_CODES
from mojo_runtime.aten import Pointwise, Row, key_template, rows

Function = Callable[..., Any]
AnyFunction = TypeVar("AnyFunction", bound=Function)

_PYTHON_OPS: dict[str, Function] = {}

PROMOTIONS = {"common": 0, "float": 1, "bool": 2, "first": 3, "condition": 4, "output": 5}


def dtype_mask(names: Sequence[str]) -> int:
    """Returns the bit mask over dtype codes that the shim takes."""
    mask = 0
    for name in names:
        mask |= 1 << DTYPE_CODES[name]
    return mask


def op(name: str) -> Callable[[AnyFunction], AnyFunction]:
    """Registers the decorated function for an overload, e.g. `@op("aten::flip")`, when the device is registered.

    Args:
        name: The overload with its namespace. The function takes the schema's arguments and returns its results.
    """

    def decorate(function: AnyFunction) -> AnyFunction:
        _PYTHON_OPS[name.removeprefix("aten::")] = function
        return function

    return decorate


_COMPLEX_OPS: dict[str, Function] = {}


def complex_op(name: str) -> Callable[[AnyFunction], AnyFunction]:
    """Registers the decorated function as the complex form of a Native row's overload, e.g. `@complex_op("mm.out")`."""

    def decorate(function: AnyFunction) -> AnyFunction:
        _COMPLEX_OPS[name] = function
        return function

    return decorate


def define_complex_forms(library: torch.library.Library) -> None:
    """Defines the ops of the library mojo_complex, to which rows hand complex tensors: same schemas, other name."""
    _import_modules()
    for name, function in _COMPLEX_OPS.items():
        library.define(str(schema_of(name)).removeprefix("aten::"))
        library.impl(name, function, "CompositeExplicitAutograd")


def python_ops() -> dict[str, Function]:
    """Returns the Python ops by overload name, without the namespace."""
    _import_modules()
    return dict(_PYTHON_OPS)


def number(value: float | int | bool) -> tuple[int, int]:
    """Returns the two words of a Number: its int64 value and the bits of its float64 value."""
    integer = int(value) if abs(value) < 2**63 else 0
    return integer, float_word(float(value))


def float_word(value: float) -> int:
    """Returns the bits of a float64 as an int64."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


# Kernels that only move elements: they take complex64 as uint64.
_MOVERS = {
    "cat:cat",
    "indexing.masks:masked_select",
    "indexing.gather_scatter:gather",
    "mapping:mapped_copy",
}


@functools.cache
def _launch_key(kernel: str, parameters: tuple[tuple[str, Any], ...]) -> str:
    """The KernelSpec key of a kernel whose parameters may be torch dtypes."""
    names = {}
    for name, value in parameters:
        if not isinstance(value, torch.dtype):
            continue
        if value.is_complex and (value != torch.complex64 or kernel not in _MOVERS):
            raise NotImplementedError(f"{kernel} is not implemented on mojo for dtype {value}; compute the real parts")
        names[name] = "uint64" if value.is_complex else str(value).removeprefix("torch.")
    return aten.kernel_key(kernel, {**dict(parameters), **names})


def launch(
    kernel: str,
    tensors: Sequence[torch.Tensor | None],
    scalars: Sequence[int | float | bool] = (),
    **parameters: torch.dtype | str | int | bool,
) -> None:
    """Launches a kernel on the current stream of the tensors' device.

    Args:
        kernel: "module:function" below `mojo_kernels`.
        tensors: Outputs first; None is an absent optional tensor.
        scalars: Words in the kernel's order: floats are passed as float64, ints and bools as int64. `number(x)` gives
            the two words of a Number.
        parameters: The kernel's compile-time parameters.
    """
    words = [float_word(word) if isinstance(word, float) else int(word) for word in scalars]
    torch.ops.mojo.launch(_launch_key(kernel, tuple(parameters.items())), list(tensors), words)


def _modules(package: str) -> Iterator[str]:
    root = importlib.import_module(package)
    for module in pkgutil.iter_modules(root.__path__, prefix=package + "."):
        if not module.ispkg:
            yield module.name


@functools.lru_cache(maxsize=1)
def _import_modules() -> tuple[ModuleType, ...]:
    return tuple(importlib.import_module(name) for name in _modules("torch_mojo_eager.ops"))


def python_kernels() -> Iterator[tuple[str, tuple[tuple[str, ...], ...]]]:
    """Yields what the modules of Python ops list as KERNELS.

    An item is a key below mojo_kernels with placeholders {0}, {1} for dtypes, and the dtypes of each placeholder.
    """
    for module in _import_modules():
        yield from getattr(module, "KERNELS", ())


def schema_of(name: str) -> torch._C.FunctionSchema:
    """Returns the schema of an aten overload such as "add.out"."""
    base, _, overload = name.partition(".")
    schema: torch._C.FunctionSchema = getattr(getattr(torch.ops.aten, base), overload or "default")._schema
    return schema


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@functools.cache
def forms_of(name: str) -> tuple[str, str]:
    """Returns the functional and in-place overloads that belong to an out overload, "" where there is none.

    They have the same arguments without the outputs; the in-place one writes to its first.
    """
    schema = schema_of(name)
    inputs = [(a.name, str(a.type)) for a in schema.arguments if not _is_written(a)]
    if len(inputs) == len(schema.arguments) or not any(a.is_out for a in schema.arguments):
        return "", ""
    base = name.partition(".")[0]

    def find(packet_name: str, written: list[bool]) -> str:
        packet = getattr(torch.ops.aten, packet_name, None)
        for overload in packet.overloads() if packet is not None else ():
            arguments = getattr(packet, overload)._schema.arguments
            if [(a.name, str(a.type)) for a in arguments] != inputs:
                continue
            if [_is_written(a) for a in arguments] == written:
                return packet_name if overload == "default" else f"{packet_name}.{overload}"
        return ""

    functional = find(base, [False] * len(inputs))
    in_place = find(base + "_", [True] + [False] * (len(inputs) - 1))
    return functional, in_place


def out_form_of(name: str) -> tuple[str, tuple[str, ...]]:
    """Returns the out overload of a functional one and its outputs' names, "" where there is none or torch has it."""
    schema = schema_of(name)
    inputs = [(a.name, str(a.type)) for a in schema.arguments]
    if not schema.returns or any(_is_written(a) for a in schema.arguments):
        return "", ()
    base = name.partition(".")[0]
    packet = getattr(torch.ops.aten, base)
    for overload in packet.overloads():
        arguments = getattr(packet, overload)._schema.arguments
        outputs = tuple(a.name for a in arguments if a.is_out)
        if not outputs or [(a.name, str(a.type)) for a in arguments if not a.is_out] != inputs:
            continue
        found = base if overload == "default" else f"{base}.{overload}"
        composite = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
        if any(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{found}", key) for key in composite):
            return "", ()
        return found, outputs
    return "", ()


# Ops whose out must have the result's dtype. What writes to single elements of it refuses overlapping tensors.
_EXACT_OUT = frozenset({"take.out", "multinomial.out"})
_SEPARATE_OUT = frozenset({"take.out", "masked_select.out"})


def _lie_together(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the ranges of memory of two tensors meet."""

    def end(tensor: torch.Tensor) -> int:
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return tensor.data_ptr() + (last + 1) * tensor.element_size()

    return bool(a.numel() and b.numel()) and a.data_ptr() < end(b) and b.data_ptr() < end(a)


def _check_output(name: str, output: torch.Tensor, inputs: Iterable[Any]) -> None:
    if torch._debug_has_internal_overlap(output) == 1:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    if name in _SEPARATE_OUT and any(isinstance(x, torch.Tensor) and _lie_together(output, x) for x in inputs):
        raise RuntimeError(
            "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
            "memory location. Please clone() the tensor before performing the operation."
        )


def out_form(function: Function, name: str, outputs: tuple[str, ...]) -> Function:
    """Returns a function that copies the results of another to given tensors, which it resizes.

    Args:
        function: The Python op.
        name: The out overload.
        outputs: The names of its outputs.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [kwargs.pop(output) for output in outputs]
        for output in given:
            _check_output(name, output, (*args, *kwargs.values()))
        results = function(*args, **kwargs)
        for output, result in zip(given, results if len(given) > 1 else (results,), strict=True):
            if not torch.can_cast(result.dtype, output.dtype):
                raise RuntimeError(
                    f"result type {result.dtype} can't be cast to the desired output type {output.dtype}"
                )
            if name in _EXACT_OUT and result.dtype != output.dtype:
                raise RuntimeError(f"{name}: expected out to have dtype {result.dtype}, but got {output.dtype}")
            if result.device != output.device:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but got out on {output.device} and others on "
                    f"{result.device}"
                )
            output.resize_(result.shape).copy_(result)
        return tuple(given) if len(given) > 1 else given[0]

    return call


def structured_forms(name: str) -> tuple[str, ...]:
    """Returns the functional and in-place forms of a Python op that is a structured op's out form, else nothing."""
    key = "CompositeExplicitAutogradNonFunctional"
    forms = tuple(form for form in forms_of(name) if form)
    structured = forms and torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{forms[0]}", key)
    return forms if structured else ()


def _structured_out(function: Function, name: str, functional: str, take_trust: Callable[[], int]) -> Function:
    """Returns the out form of a structured op with what torch does before it only for the other forms."""
    outputs = [argument.name for argument in schema_of(name).arguments if argument.is_out]
    packet, _, overload = functional.partition(".")
    infer = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def to_meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    def fit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {key: to_meta(value) for key, value in kwargs.items() if key not in outputs}
        metas = infer(*(to_meta(value) for value in args), **given)
        for output, meta in zip(outputs, metas if len(outputs) > 1 else (metas,), strict=True):
            out = kwargs[output]
            if out.dtype != meta.dtype:
                raise RuntimeError(f"Expected out tensor to have dtype {meta.dtype}, but got {out.dtype} instead")
            _check_output(name, out, ())
            if out.shape != meta.shape:
                out.resize_(meta.shape).as_strided_(meta.shape, meta.stride())

    def call(*args: Any, **kwargs: Any) -> Any:
        if not take_trust():
            fit(args, kwargs)
        return function(*args, **kwargs)

    return call


def added_out_forms() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields the out overloads that are made of Python ops: their names, the ops' and the outputs'."""
    python = python_ops()
    given = {*python, *(row.name for row in rows())}
    for name in python:
        out, outputs = out_form_of(name)
        if out and out not in given:
            yield out, name, outputs


def has_complex_form(name: str) -> bool:
    """Whether a Python function computes complex tensors for a Native row's overload."""
    _import_modules()
    return name in _COMPLEX_OPS


def complex_key(row: Row) -> str:
    """Returns a row's KernelSpec key for complex64, "" where that is its own key for uint64, or there is none."""
    return f"mojo_kernels.pointwise.complex:{row.complex}" if row.complex not in ("", "bits") else ""


def register_all(shim: Any, library: torch.library.Library) -> None:
    """Registers every row and every Python op for the device."""
    python = python_ops()
    for row in rows():
        if row.name in python:
            raise RuntimeError(f"aten::{row.name} has both a row and a Python op")
        register_row(shim, row)
    for name, function in python.items():
        forms = structured_forms(name)
        if forms:
            function = _structured_out(function, name, forms[0], shim.take_trust)
        for form in forms:
            shim.register_structured_form(form)
        library.impl(name, function, "PrivateUse1")
    for out, name, outputs in added_out_forms():
        library.impl(out, out_form(python[name], out, outputs), "PrivateUse1")


def register_row(shim: Any, row: Row) -> None:
    """Registers one row through the shim."""
    template, arguments, allowed = key_template(row)
    functional, in_place = forms_of(row.name)
    if isinstance(row, Pointwise):
        shim.register_pointwise(
            row.name,
            template,
            complex_key(row),
            dtype_mask(row.dtypes) | (dtype_mask(["complex64"]) if row.complex else 0),
            PROMOTIONS[row.promotion],
            ",".join(row.inputs),
            ",".join(row.scalars),
            ",".join(form for form in (functional, in_place) if form),
        )
    else:
        shim.register_native(
            row.name,
            template,
            [dtype_mask(names) | (dtype_mask(["complex64"]) if row.complex else 0) for names in allowed],
            ",".join(row.tensors),
            ",".join(row.scalars),
            ",".join(arguments),
            functional,
            in_place,
            ",".join(f"{name}={DTYPE_CODES[dtype] if dtype else ''}" for name, dtype in row.other_dtypes),
            row.promotes,
        )


__all__ = ["forms_of", "launch", "number", "op", "python_ops", "register_all"]
