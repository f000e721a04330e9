"""From an FX graph of aten ops to a MAX graph, and to the plan of how its inputs and outputs are passed."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from max.driver import Buffer
from max.dtype import DType
from max.graph import (
    DeviceRef,
    Dim,
    Graph,
    KernelLibrary,
    Module,
    TensorType,
    TensorValue,
    ops,
)
from torch._higher_order_ops.effects import with_effects
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torch_mojo_compile import lowerings, values
from torch_mojo_compile.dtypes import is_supported, to_max
from torch_mojo_compile.errors import LoweringError, UnsupportedOps
from torch_mojo_compile.lowerings import random
from torch_mojo_compile.lowerings.creation import FILLS
from torch_mojo_compile.lowerings.table import INTEGER_ARITHMETIC, Node, cast, device_of, find
from torch_mojo_compile.refusals import Refusals, user_line
from torch_mojo_compile.symbols import Place, Symbols, evaluator, expression, hint

COPY = torch.ops.aten.copy_.default


@dataclasses.dataclass(frozen=True)
class Input:
    """How one input of the MAX graph is made at a call.

    Attributes:
        argument: The call's argument.
        order: The order of its dimensions in which it is contiguous, or None where that is its own.
        is_size: The argument is an int: it becomes the size of an empty tensor.
        storage: Which storage of the trace the argument has, None where nothing may share its memory.
    """

    argument: int
    order: tuple[int, ...] | None = None
    is_size: bool = False
    storage: int | None = None


@dataclasses.dataclass(frozen=True)
class Output:
    """How one result of a call is made.

    Attributes:
        kind: "result": of the MAX graph; "argument": one that the call was given; "constant"; "size": computed.
        value: The result's or argument's index, the constant, or the function of the arguments.
        order: For a result whose dimensions torch wants in another order in memory: what to permute it by.
    """

    kind: str
    value: Any
    order: tuple[int, ...] | None = None


@dataclasses.dataclass
class Lowered:
    """A MAX graph with its plan.

    Attributes:
        name: The graph's name in its module.
        inputs: Its inputs in order; the generator's state, where there is one, comes after them.
        outputs: The call's results.
        storages: For each result of the MAX graph the storage that it has in the trace, as for the inputs.
        mutations: What is copied after the call: an argument's index, and the result that it becomes.
        has_barrier: Whether an int64 input [1] of any value comes after the inputs; see `values.not_folded`.
        random: How far a call moves the generator's offset, a function of the arguments; None without random ops.
        device: Where the results are.
        text: The MAX graph as text, the content that the store keys by.
        nodes: How many FX nodes were lowered.
    """

    name: str
    inputs: list[Input]
    outputs: list[Output]
    storages: list[int | None]
    mutations: list[tuple[int, Output]]
    has_barrier: bool
    random: Callable[[Sequence[Any]], int] | None
    device: torch.device
    has_results: bool
    text: str = ""
    nodes: int = 0


def dense_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Returns the order of dimensions in which a tensor is contiguous, outermost first; None where there is none."""
    sizes, strides = [hint(s) for s in tensor.shape], [hint(s) for s in tensor.stride()]
    if 0 in sizes:
        return tuple(range(tensor.dim()))
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], sizes[d] == 1, d))
    # A dimension of size 1 may have any stride: it goes where its neighbours in the shape are.
    expected = 1
    for d in reversed([d for d in order if sizes[d] != 1]):
        if strides[d] != expected:
            return None
        expected *= sizes[d]
    big = [d for d in order if sizes[d] != 1]
    if big == sorted(big):
        return tuple(range(tensor.dim()))
    result = list(big)
    for d in range(tensor.dim()):
        if sizes[d] == 1:
            place = next((i for i, other in enumerate(result) if other > d), len(result))
            result.insert(place, d)
    return tuple(result)


def permutation(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Returns `dense_order` where it is not the order of the dimensions themselves."""
    order = dense_order(tensor)
    return None if order is None or order == tuple(range(tensor.dim())) else order


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(order.index(d) for d in range(len(order)))


def is_lowered(node: torch.fx.Node) -> bool:
    """Whether a node that calls a function can be part of a MAX graph."""
    return node.target in (operator.getitem, COPY, *INTEGER_ARITHMETIC) or find(node.target) is not None


def obstacles(value: Any) -> list[str]:
    """What keeps a traced value, or one of several, from being one of a MAX graph."""
    found = []
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, torch.Tensor):
            if item.device.type == "meta":
                found.append("tensors without data, of the meta device")
            elif not is_supported(item.dtype):
                found.append(f"{item.dtype} tensors")
    return found


def check_values(module: torch.fx.GraphModule, refusals: Refusals) -> bool:
    """Notes what can't be a value of a MAX graph; returns whether there is none of it."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        for what in obstacles(value):
            refusals.note(what, node)
        if isinstance(value, torch.SymFloat) and node.op == "placeholder":
            refusals.note("float arguments that change from call to call", node)
    return not refusals


def _is_token(node: torch.fx.Node) -> bool:
    """Whether an argument is one that only keeps effects in order; at a call it is None."""
    users = list(node.users)
    return bool(users) and all(user.target is with_effects and user.args[0] is node for user in users)


class GraphBuilder:
    """Lowers one FX graph.

    Args:
        module: The graph with traced values in `meta`.
        name: Its name, which is part of error messages only.
        max_module: What to add the MAX graph to.
        library: The kernels that custom ops come from.
    """

    def __init__(self, module: torch.fx.GraphModule, name: str, max_module: Module, library: KernelLibrary) -> None:
        self.module = module
        self.name = name
        self.max_module = max_module
        self.library = library
        self.symbols = Symbols()
        self.inputs: list[Input] = []
        self.types: list[TensorType] = []
        self.values: dict[torch.fx.Node, Any] = {}
        # MAX compiles graphs that write to dozens of inputs for minutes: their new values are results.
        self.mutations: dict[torch.fx.Node, torch.fx.Node] = {}
        self.mutated = {
            node.args[0].meta["val"].untyped_storage()._cdata
            for node in module.graph.nodes
            if node.op == "call_function" and node.target is COPY
        }
        self.places: dict[sympy.Symbol, Place] = {}
        self.placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.refusals = Refusals(name)

    def build(self) -> Lowered:
        """Makes the MAX graph.

        Raises:
            UnsupportedOps: Names each op without a lowering with how often it occurs and a line of the user's.
            LoweringError: A lowering failed.
        """
        if not check_values(self.module, self.refusals):
            for node in self.module.graph.nodes:
                if node.op == "call_function" and not is_lowered(node):
                    self.refusals.note(str(node.target), node)
            self.refusals.raise_if_any()
        used = self._plan_inputs()
        is_random = any(map(random.draws, self.module.graph.nodes))
        constant = self._constant_nodes()
        types = list(self.types)
        if constant:
            types.append(TensorType(DType.int64, [1], DeviceRef.CPU()))
        if is_random:
            types.append(TensorType(DType.int64, [2], DeviceRef.CPU()))
        graph = Graph(self.name, input_types=types, module=self.max_module, kernel_library=self.library)
        with graph, values.tracked_views(), random.state(graph.inputs[-1] if is_random else None) as state:
            self._bind_inputs(used, graph)
            barrier = graph.inputs[len(self.types)].tensor if constant else None
            outputs: list[Output] = []
            storages: list[int | None] = []
            mutations: list[tuple[int, Output]] = []
            for node in self.module.graph.nodes:
                if node.op == "call_function":
                    with values.not_folded(barrier if node in constant else None):
                        self._lower(node)
                elif node.op == "get_attr":
                    self.values[node] = self._constant(node)
                elif node.op == "output":
                    self.refusals.raise_if_any()
                    outputs, storages, mutations = self._outputs(node, graph)
        advance = None
        if is_random:
            advances = [(evaluator(size, self.places), words) for size, words in state.advances]
            advance = functools.partial(random.advance, advances)
        fakes = [node.meta.get("val") for node in self.module.graph.nodes]
        device = next((f.device for f in fakes if isinstance(f, torch.Tensor)), torch.device("cpu"))
        has_results = bool(mutations) or any(output.kind == "result" for output in outputs)
        return Lowered(
            self.name,
            self.inputs,
            outputs,
            storages,
            mutations,
            bool(constant),
            advance,
            device,
            has_results,
            str(graph),
            len(self.module.graph.nodes),
        )

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def _plan_inputs(self) -> list[torch.fx.Node]:
        """Fills `inputs`, `types` and `places`; returns the placeholders that are inputs, in order."""
        fakes = [node.meta["val"] for node in self.placeholders]
        bound: set[sympy.Symbol] = set()
        for i, fake in enumerate(fakes):
            if isinstance(fake, torch.Tensor):
                for d, size in enumerate(fake.shape):
                    if isinstance(expression(size), sympy.Symbol):
                        self.places.setdefault(expression(size), (i, d))
            elif isinstance(fake, torch.SymInt) and isinstance(expression(fake), sympy.Symbol):
                self.places.setdefault(expression(fake), (i, None))
        used: list[torch.fx.Node] = []
        for i, (node, fake) in enumerate(zip(self.placeholders, fakes, strict=True)):
            if not isinstance(fake, torch.Tensor) or not node.users or _is_token(node):
                continue
            bound |= {expression(s) for s in fake.shape if isinstance(expression(s), sympy.Symbol)}
            self._plan_tensor(i, node, fake)
            used.append(node)
        for symbol in sorted(self._free_symbols() - bound, key=str):
            # Its size is known from an int among the arguments, or from a tensor that is not an input otherwise.
            argument, dim = self.places[symbol]
            self.inputs.append(Input(argument, None if dim is None else (dim,), is_size=True))
            self.types.append(TensorType(DType.float32, [self.symbols.dim(symbol), 0], DeviceRef.CPU()))
        return used

    def _free_symbols(self) -> set[sympy.Symbol]:
        """The symbols that sizes and numbers of the graph are made of."""
        found: set[sympy.Symbol] = set()
        for node in self.module.graph.nodes:
            if not node.users and node.op == "placeholder":
                continue
            value = node.meta.get("val")
            for item in value if isinstance(value, list | tuple) else [value]:
                sizes = item.shape if isinstance(item, torch.Tensor) else [item]
                for size in sizes:
                    if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
                        found |= sympy.sympify(size.node.expr).free_symbols
        return {symbol for symbol in found if symbol in self.places}

    def _plan_tensor(self, index: int, node: torch.fx.Node, fake: torch.Tensor) -> None:
        order = permutation(fake)
        shape: list[Dim] = []
        for size in fake.shape:
            expr = expression(size)
            # MAX takes names and numbers as the sizes of inputs; what is derived is checked inside.
            plain = isinstance(expr, sympy.Symbol | sympy.Integer)
            shape.append(self.symbols.dim(size) if plain else self.symbols.fresh())
        if order is not None:
            shape = [shape[d] for d in order]
        self.inputs.append(Input(index, order, storage=self._storage(fake)))
        self.types.append(TensorType(to_max(fake.dtype), shape, device_of(fake)))

    def _bind_inputs(self, used: Sequence[torch.fx.Node], graph: Graph) -> None:
        for node, plan, value in zip(used, self.inputs, graph.inputs, strict=False):
            fake = node.meta["val"]
            shape = self.symbols.dims(fake.shape)
            tensor = value.tensor
            if plan.order is not None:
                tensor = ops.rebind(tensor, [shape[d] for d in plan.order])
                tensor = values.permute(tensor, _inverse(plan.order))
            elif list(tensor.shape) != shape:
                tensor = ops.rebind(tensor, shape)
            self.values[node] = tensor
        for node in self.placeholders:
            if _is_token(node):
                self.values[node] = None
            elif node not in self.values and not isinstance(node.meta["val"], torch.Tensor):
                self.values[node] = node.meta["val"]

    def _constant_nodes(self) -> set[torch.fx.Node]:
        """The nodes that compute tensors from no input's elements."""
        constant: set[torch.fx.Node] = set()
        for node in self.module.graph.nodes:
            read = () if node.target in FILLS else node.all_input_nodes
            depends = [argument for argument in read if argument not in constant]
            if node.op == "get_attr" or (node.op == "call_function" and not depends):
                constant.add(node)
        return {node for node in constant if node.op == "call_function"}

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.values[argument]
        if isinstance(argument, list | tuple):
            return [self._value(item) for item in argument]
        return argument

    def _lower(self, fx: torch.fx.Node) -> None:
        fake = fx.meta.get("val")
        if fx.target is operator.getitem:
            self.values[fx] = self.values[fx.args[0]][fx.args[1]]  # type: ignore[index]
            return
        if isinstance(fake, torch.SymInt | torch.SymFloat | torch.SymBool | int | float) or fx.target in (
            INTEGER_ARITHMETIC
        ):
            self.values[fx] = fake
            return
        args = [self._value(argument) for argument in fx.args]
        node = Node(fx, self.symbols)
        try:
            if fx.target is COPY:
                self.values[fx] = self._copy(fx, args)
                return
            function = find(fx.target)
            if function is None:
                self._refuse(fx, str(fx.target))
                return
            result = function(node, *args, **{name: self._value(value) for name, value in fx.kwargs.items()})
            self.values[fx] = self._fit(result, fake)
        except UnsupportedOps:
            raise
        except NotImplementedError as error:
            self._refuse(fx, f"{fx.target}: {error}")
        except Exception as error:
            # It may have failed at what stands for a refused op's result.
            self.refusals.raise_if_any()
            raise LoweringError(f"while lowering {fx.format_node()}: {error}\n{user_line(fx)}", [fx]) from error

    def _refuse(self, fx: torch.fx.Node, what: str) -> None:
        self.refusals.note(what, fx)
        try:
            self.values[fx] = self._stand_in(fx.meta.get("val"))
        except Exception as error:
            self.refusals.raise_if_any(error)

    def _stand_in(self, fake: Any) -> Any:
        """Values in the place of a refused op's results, so that the rest of the graph names what else is refused."""
        if isinstance(fake, list | tuple):
            return [self._stand_in(item) for item in fake]
        if not isinstance(fake, torch.Tensor):
            return None
        zero = ops.constant(0, to_max(fake.dtype), device_of(fake))
        return ops.broadcast_to(zero, self.symbols.dims(fake.shape))

    def _copy(self, fx: torch.fx.Node, args: Sequence[Any]) -> TensorValue:
        """A write to an input, which only traced mutations of inputs are: after all that reads it."""
        target = fx.args[0]
        assert isinstance(target, torch.fx.Node)
        self.mutations[target] = fx
        fake = target.meta["val"]
        source = cast(args[1], to_max(fake.dtype))
        shape = self.symbols.dims(fake.shape)
        if list(source.shape) != shape:
            source = ops.broadcast_to(source, shape)
        return source

    def _fit(self, result: Any, fake: Any) -> Any:
        """Gives results the dtypes and sizes that torch expects; MAX checks sizes that it can't prove when it runs."""
        if isinstance(fake, list | tuple):
            return [self._fit(r, f) if r is not None else None for r, f in zip(result, fake, strict=True)]
        if not isinstance(fake, torch.Tensor):
            return result
        fitted = cast(result, to_max(fake.dtype))
        shape = self.symbols.dims(fake.shape)
        if list(fitted.shape) != shape:
            fitted = ops.rebind(fitted, shape)
        return fitted

    def _constant(self, node: torch.fx.Node) -> TensorValue:
        tensor: Any = self.module
        for name in str(node.target).split("."):
            tensor = getattr(tensor, name)
        with unset_fake_temporarily():
            host = tensor.detach().cpu().contiguous()
            flat = host.reshape(-1).view(torch.uint8).numpy() if host.numel() else host.reshape(-1).numpy()
            dtype = to_max(host.dtype)
            made = ops.constant(Buffer.from_numpy(flat).view(dtype, [host.numel()]), dtype, device_of(tensor))
            return ops.reshape(made, list(host.shape))

    # ---- outputs -----------------------------------------------------------------------------------------------------

    def _storage(self, fake: torch.Tensor) -> int | None:
        storage = fake.untyped_storage()._cdata
        return None if storage in self.mutated else storage

    def _outputs(
        self, output: torch.fx.Node, graph: Graph
    ) -> tuple[list[Output], list[int | None], list[tuple[int, Output]]]:
        results: list[TensorValue] = []
        storages: list[int | None] = []
        positions: dict[tuple[torch.fx.Node, Any], int] = {}

        def result(node: torch.fx.Node, order: tuple[int, ...] | None) -> Output:
            """A value of the graph, with its dimensions in an order."""
            if (node, order) not in positions:
                positions[node, order] = len(results)
                value = self.values[node]
                results.append(value if order is None else values.permute(value, order))
                storages.append(self._storage(node.meta["val"]))
            return Output("result", positions[node, order], None if order is None else _inverse(order))

        plan: list[Output] = []
        items = output.args[0]
        for item in items if isinstance(items, list | tuple) else [items]:
            if not isinstance(item, torch.fx.Node):
                plan.append(Output("constant", item))
                continue
            fake = item.meta["val"]
            if isinstance(fake, torch.SymInt):
                plan.append(Output("size", evaluator(fake, self.places)))
            elif not isinstance(fake, torch.Tensor):
                plan.append(Output("constant", fake))
            elif item.op == "placeholder":
                plan.append(Output("argument", self.placeholders.index(item)))
            else:
                plan.append(result(item, permutation(fake)))
        mutations = [
            (self.placeholders.index(target), result(written, permutation(target.meta["val"])))
            for target, written in self.mutations.items()
        ]
        graph.output(*results)
        return plan, storages, mutations


__all__ = ["GraphBuilder", "Input", "Lowered", "Output", "is_lowered", "lowerings"]
