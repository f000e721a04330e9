"""The table of lowerings: aten overloads, each with the function that adds it to a MAX graph."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sympy
import torch
from max.dtype import DType
from max.graph import DeviceRef, Dim, TensorType, TensorValue, ops

from mojo_runtime.aten import Native, Pointwise, fill_key, key_template
from torch_mojo_compile import bridge, rows, values
from torch_mojo_compile.dtypes import kernel_dtype, to_max
from torch_mojo_compile.symbols import Symbols, expression

Lowering = Callable[..., Any]
AnyLowering = TypeVar("AnyLowering", bound=Lowering)

_LOWERINGS: dict[str, Lowering] = {}
"""By the text of the overload, e.g. "aten.add.Tensor": other libraries' ops need not be there yet."""

INTEGER_ARITHMETIC = (
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.truediv,
    operator.mod,
    operator.neg,
    operator.and_,
    operator.or_,
    operator.eq,
    operator.ne,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    torch.sym_ite,
    torch.sym_not,
    torch.sym_max,
    torch.sym_min,
    torch.sym_float,
    torch.sym_int,
    getattr(torch, "sym_sum", torch.sym_max),
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_numel.default,
    torch.ops.aten.sym_storage_offset.default,
)
"""Functions on sizes, whose results are read off the traced graph."""


def lowering(*names: str) -> Callable[[AnyLowering], AnyLowering]:
    """Registers a function for overloads of aten, e.g. `@lowering("add.Tensor")`, or of a library that the name tells.

    The function is called with a `Node` and the op's arguments, whose tensors are graph values. A name that the
    installed torch does not have is passed over.
    """

    def decorate(function: AnyLowering) -> AnyLowering:
        for name in names:
            text = name if name.count(".") == 2 else f"aten.{name}"
            if not text.startswith(("aten.", "prims.")) or rows.overload(name) is not None:
                _LOWERINGS[text] = function
        return function

    return decorate


def lowering_of(op: torch._ops.OpOverload | torch._ops.HigherOrderOperator, function: Lowering) -> None:
    """Registers a function for an op of another library than aten."""
    _LOWERINGS[str(op)] = function


def find(target: Any) -> Lowering | None:
    """Returns the lowering of an FX node's target: one of its own, or the row that serves it."""
    found = _LOWERINGS.get(str(target))
    if found is None and target in rows.served():
        return lower_row
    return found


def own_lowerings() -> set[str]:
    """Returns the names of the overloads with a lowering of their own."""
    return {name.removeprefix("aten.") for name in _LOWERINGS}


def lowered() -> dict[str, str]:
    """Returns every lowered overload by name with the first line of what its lowering does."""
    result = {str(op).removeprefix("aten."): row.doc for op, row in rows.served().items()}
    for name, function in _LOWERINGS.items():
        result[name.removeprefix("aten.")] = (function.__doc__ or "").partition("\n")[0]
    return dict(sorted(result.items()))


@dataclasses.dataclass
class Node:
    """What a lowering knows of the node it lowers.

    Attributes:
        fx: The node.
        symbols: The graph's symbolic sizes.
        computes_in: The dtype of arguments where it is not the result's.
    """

    fx: torch.fx.Node
    symbols: Symbols
    computes_in: DType | None = None

    @property
    def name(self) -> str:
        """The op's name, without its overload's."""
        return self.fx.target._schema.name.removeprefix("aten::")  # type: ignore[union-attr, no-any-return]

    @property
    def fake(self) -> Any:
        """The traced result: a fake tensor, or a tuple of them."""
        return self.fx.meta["val"]

    def result(self, index: int = 0) -> torch.Tensor:
        """One of the traced results."""
        fake = self.fake
        return fake if isinstance(fake, torch.Tensor) else fake[index]

    def argument(self, position: int, name: str = "") -> Any:
        """The traced value of an argument, also where it is no tensor."""
        value = self.fx.args[position] if position < len(self.fx.args) else self.fx.kwargs.get(name)
        return value.meta["val"] if isinstance(value, torch.fx.Node) else value

    def is_used(self, index: int) -> bool:
        """Whether anybody reads one of several results."""
        return any(user.args[1] == index and user.users for user in self.fx.users)

    @property
    def dtype(self) -> DType:
        """The first result's dtype."""
        return to_max(self.result().dtype)

    @property
    def device(self) -> DeviceRef:
        """The first result's device."""
        return device_of(self.result())

    @property
    def shape(self) -> list[Dim]:
        """The first result's sizes."""
        return self.symbols.dims(self.result().shape)

    def type_of(self, index: int = 0) -> TensorType:
        """The type of a result."""
        fake = self.result(index)
        return TensorType(to_max(fake.dtype), self.symbols.dims(fake.shape), device_of(fake))

    def tensor(self, value: Any, dtype: DType | None = None) -> TensorValue:
        """Returns an argument as a value of a dtype, by default the result's, or what `in_float32` says: a tensor
        converted, a number made one.
        """
        dtype = dtype or self.computes_in or self.dtype
        if isinstance(value, TensorValue):
            return cast(value, dtype)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._symbolic(sympy.sympify(value.node.expr), dtype)
        if dtype == DType.bool:
            value = bool(value)
        elif dtype.is_integral():
            value = _wrapped(int(value), dtype)
        return ops.constant(value, dtype, self.device)

    def _symbolic(self, expr: sympy.Expr, dtype: DType) -> TensorValue:
        """The value of an expression of sizes, which is computed in the graph."""
        if expr.is_number:
            return ops.constant(int(expr) if dtype.is_integral() else float(expr), dtype, self.device)
        kind = type(expr).__name__
        if kind in ("FloatTrueDiv", "IntTrueDiv"):
            return ops.div(self._symbolic(expr.args[0], dtype), self._symbolic(expr.args[1], dtype))
        if kind == "ToFloat":
            return self._symbolic(expr.args[0], dtype)
        if kind in ("FloatPow", "PowByNatural"):
            return ops.pow(self._symbolic(expr.args[0], dtype), self._symbolic(expr.args[1], dtype))
        if not expr.is_integer and isinstance(expr, sympy.Add | sympy.Mul):
            result = self._symbolic(expr.args[0], dtype)
            for part in expr.args[1:]:
                other = self._symbolic(part, dtype)
                result = result + other if isinstance(expr, sympy.Add) else result * other
            return result
        return ops.cast(TensorValue(self.symbols.dim(expr)), dtype).to(self.device)

    def positions(self, size: Dim, dtype: DType = DType.int64) -> TensorValue:
        """0, 1, ... up to a size."""
        return ops.range(0, TensorValue(size), 1, out_dim=size, dtype=dtype, device=self.device)

    def dim(self, size: Any) -> Dim:
        """A size as a dimension."""
        return self.symbols.dim(size)

    def scalars(self, values: Sequence[Any]) -> list[Any]:
        """Returns a kernel's scalars with symbolic integers computed in the graph."""
        return [self.tensor(value, DType.int64) if isinstance(value, torch.SymInt) else value for value in values]

    def arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments by their names in the schema, defaults filled in."""
        named = {}
        for i, argument in enumerate(self.fx.target._schema.arguments):  # type: ignore[union-attr]
            if i < len(args) and not argument.kwarg_only:
                named[argument.name] = args[i]
            else:
                named[argument.name] = kwargs.get(argument.name, argument.default_value)
        return named

    def call(
        self,
        key: str,
        inputs: Sequence[TensorValue | None],
        scalars: Sequence[Any] = (),
        outputs: Sequence[TensorType | None] | None = None,
        *,
        broadcast: bool = False,
        contiguous: bool = False,
    ) -> list[Any]:
        """Calls a kernel by the key of its KernelSpec.

        Args:
            key: The key.
            inputs: Its tensors after the outputs.
            scalars: Its scalars; symbolic integers are computed in the graph.
            outputs: Their types; by default those of all results.
            broadcast: Whether the kernel wants all inputs in the sizes of the output.
            contiguous: Whether it reads no strides.
        """
        if outputs is None:
            count = 1 if isinstance(self.fake, torch.Tensor) else len(self.fake)
            outputs = [self.type_of(i) for i in range(count)]
        return bridge.call_kernel(
            key, outputs, inputs, self.scalars(scalars), broadcast=broadcast, contiguous=contiguous
        )


def in_float32(lower: Callable[..., TensorValue]) -> Callable[..., TensorValue]:
    """A lowering whose arguments of half types, numbers among them, are float32 and whose result is rounded once."""

    @functools.wraps(lower)
    def lower_wide(node: Node, *args: Any, **kwargs: Any) -> TensorValue:
        if not (node.dtype.is_float() and node.dtype.size_in_bytes == 2):
            return lower(node, *args, **kwargs)
        node.computes_in = DType.float32
        return cast(lower(node, *args, **kwargs), node.dtype)

    return lower_wide


def _wrapped(number: int, dtype: DType) -> int:
    """Returns a number as an integer dtype's bits hold it, as torch converts it."""
    span: int = 1 << 8 * dtype.size_in_bytes
    lowest: int = -span // 2 if dtype.is_signed_integral() else 0
    return (number - lowest) % span + lowest


def device_of(tensor: torch.Tensor) -> DeviceRef:
    """Returns where MAX keeps a tensor: the host for CPU tensors and for those of mojo devices that are the CPU."""
    if tensor.device.type == "cpu":
        return DeviceRef.CPU()
    if tensor.device.type == "mojo":
        from mojo_runtime import _native

        if _native.library().mojo_is_cpu():
            return DeviceRef.CPU()
    return DeviceRef.GPU(tensor.device.index or 0)


def cast(value: TensorValue, dtype: DType) -> TensorValue:
    """Returns a value in a dtype; itself where it has that. As a bool, NaN is True, which MAX's own cast says not."""
    if dtype == DType.bool and value.dtype.is_float():
        return ops.logical_not(ops.equal(value, ops.constant(0, value.dtype, value.device)))
    return value if value.dtype == dtype else ops.cast(value, dtype)


def gather(x: TensorValue, index: TensorValue, axis: int) -> TensorValue:
    """Returns slices of a dimension; MAX has no gather by an index without dimensions."""
    if index.rank:
        return ops.gather(x, index, axis=axis)
    return ops.squeeze(ops.gather(x, ops.reshape(index, [1]), axis=axis), axis)


def lower_row(node: Node, *args: Any, **kwargs: Any) -> Any:
    """Calls the kernel of an op's row."""
    op = node.fx.target
    assert isinstance(op, torch._ops.OpOverload)
    row = rows.served()[op]
    arguments = node.arguments(args, kwargs)
    template, dtype_arguments, allowed = key_template(row)
    if isinstance(row, Pointwise):
        results = _lower_pointwise(node, row, op, arguments, template, allowed)
    else:
        results = _lower_native(node, row, op, arguments, template, dtype_arguments, allowed)
    return results[0] if isinstance(node.fake, torch.Tensor) else results


def _check_dtypes(op: Any, dtypes: Sequence[str], allowed: Sequence[Sequence[str]]) -> None:
    for dtype, names in zip(dtypes, allowed, strict=True):
        if dtype not in names:
            raise NotImplementedError(f"{op} has no kernel for {dtype}; it has {', '.join(names)}")


def _lower_pointwise(
    node: Node, row: Pointwise, op: Any, arguments: dict[str, Any], template: str, allowed: Sequence[Sequence[str]]
) -> list[Any]:
    fakes = {argument.name: node.argument(i, argument.name) for i, argument in enumerate(op._schema.arguments)}
    inputs = [name for name in row.inputs if fakes[name] is not None]
    result = node.result().dtype
    if row.promotion == "bool":
        dtype = fakes[inputs[0]].dtype if len(inputs) == 1 else torch.result_type(*(fakes[name] for name in inputs))
    elif row.promotion == "first":
        dtype = fakes[inputs[0]].dtype
    else:
        dtype = result
    _check_dtypes(op, [kernel_dtype(dtype)], allowed)
    converted = []
    for i, name in enumerate(inputs):
        wanted = torch.bool if row.promotion == "condition" and i == 0 else dtype
        converted.append(node.tensor(arguments[name], to_max(wanted)))
    scalars = node.scalars(rows.scalars(row, op, arguments))
    key = fill_key(template, [kernel_dtype(dtype)])
    return bridge.call_kernel(key, [node.type_of()], converted, scalars, broadcast=True)


def _converted(tensor: TensorValue | None, name: str, expected: str, row: Native, op: Any) -> TensorValue | None:
    """An input in the dtype that the kernel reads it as; "" is any. Eager mode's rule is the same, in native.cpp."""
    if tensor is None or not expected or tensor.dtype == to_max(getattr(torch, expected)):
        return tensor
    # torch takes classes of either dtype.
    if row.promotes or (expected == "int64" and tensor.dtype == DType.uint8):
        return cast(tensor, to_max(getattr(torch, expected)))
    raise ValueError(f"{op}: expected {name} to have dtype {expected}, but got {tensor.dtype.name}; convert with .to()")


def _lower_native(
    node: Node,
    row: Native,
    op: Any,
    arguments: dict[str, Any],
    template: str,
    dtype_arguments: Sequence[str],
    allowed: Sequence[Sequence[str]],
) -> list[Any]:
    written = rows.overload(row.name)
    assert written is not None
    outputs = [a.name for a in written._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    count = 1 if isinstance(node.fake, torch.Tensor) else len(node.fake)
    types = {name: node.type_of(i) for i, name in enumerate(outputs[:count])}
    order = [name for name in row.tensors[:count] if name in types]
    if len(order) != len(types):
        raise NotImplementedError(f"{op}: the kernel of {row.name} works in place, which a graph can't")
    dtypes_of = {name: kernel_dtype(node.result(i).dtype) for i, name in enumerate(outputs[:count])}
    for i, argument in enumerate(op._schema.arguments):
        fake = node.argument(i, argument.name)
        first = fake[0] if isinstance(fake, list | tuple) and fake else fake
        first = first.meta["val"] if isinstance(first, torch.fx.Node) else first
        if isinstance(first, torch.Tensor):
            dtypes_of.setdefault(argument.name, kernel_dtype(first.dtype))
    dtypes = [dtypes_of.get(name, dtypes_of[dtype_arguments[0]]) for name in dtype_arguments]
    _check_dtypes(op, dtypes, allowed)
    inputs: list[TensorValue | None] = []
    for name in row.tensors[count:]:
        value = arguments[name]
        expected = "" if name in dtype_arguments else row.dtype_of(name, dtypes[0])
        tensors = value if isinstance(value, list | tuple) else [value]
        inputs += [_converted(tensor, name, expected, row, op) for tensor in tensors]
    scalars = node.scalars(rows.scalars(row, op, arguments))
    results = bridge.call_kernel(fill_key(template, dtypes), [types[name] for name in order], inputs, scalars)
    by_name = dict(zip(order, results, strict=True))
    return [by_name[name] for name in outputs[:count]]


__all__ = [
    "INTEGER_ARITHMETIC",
    "Node",
    "cast",
    "device_of",
    "expression",
    "find",
    "gather",
    "lower_row",
    "lowered",
    "lowering",
    "values",
]
