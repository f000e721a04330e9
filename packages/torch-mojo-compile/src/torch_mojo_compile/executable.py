"""The functions that AOTAutograd calls: they pass torch tensors to a MAX model and its results back, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from max.driver import Buffer

from torch_mojo_compile import engine, tensors
from torch_mojo_compile.graph import Lowered, Output

# How often a model without loops is asked again whether it has any, since they depend on sizes.
_RUNS_UNTIL_ASKED = 50


class Executable:
    """A lowered graph that is callable once its model is there.

    Args:
        lowered: The graph's plan.
        unit: What compiles it.
        graph: The graph itself, for calls before the model is ready where the program does not wait.
    """

    def __init__(self, lowered: Lowered, unit: Any, graph: torch.fx.GraphModule) -> None:
        # Of the instance, since torch's wrappers copy no attributes of classes: the arguments come in one list.
        self._boxed_call = True
        self.lowered = lowered
        self._unit = unit
        self._graph = graph
        self._model: Any = None
        self._shared: list[int] | None = None
        self._inputs = [(plan.argument, plan.order, plan.is_size) for plan in lowered.inputs]
        self._returns_results = lowered.outputs == [Output("result", i) for i in range(len(lowered.storages))]
        # Programs on mojo tensors leave torch's own threads asleep.
        self._team: engine.Team = "openmp" if lowered.device.type == "cpu" else "pool"
        self._runs = 0
        self._has_loops = False

    def bind(self, model: Any) -> None:
        """Gives the graph its model."""
        self._model = model

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Runs the graph.

        Args:
            arguments: Tensors and ints, as AOTAutograd gives them; the list is emptied.

        Returns:
            The graph's results.
        """
        if self._model is None and self.lowered.has_results and not self._unit.is_ready():
            given = list(arguments)
            arguments.clear()
            with torch.no_grad():
                results = self._graph(*given)
                return list(results) if isinstance(results, list | tuple) else [results]
        return self.run(arguments)

    def __reduce__(self) -> NoReturn:
        """Refuses: what runs is a model of this process.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a compiled graph can't be pickled; pickle the module, or its state_dict, and compile it again")

    def run(self, arguments: list[Any]) -> list[Any]:
        """Runs the model."""
        lowered = self.lowered
        results: list[torch.Tensor] = []
        if lowered.has_results:
            given: list[Any] = []
            on_host = True
            for index, order, is_size in self._inputs:
                value = arguments[index]
                if is_size:
                    value = value if order is None else value.shape[order[0]]
                else:
                    value = value if order is None else value.permute(order)
                    value = value if value.is_contiguous() else value.contiguous()
                    on_host = on_host and value.is_cpu
                given.append(value)
            values = given if on_host else tensors.to_host(given)
            buffers = [
                tensors.size_carrier(value) if is_size else tensors.to_buffer(value)
                for value, (_, _, is_size) in zip(values, self._inputs, strict=True)
            ]
            if lowered.has_barrier:
                buffers.append(tensors.barrier())
            if lowered.random is not None:
                buffers.append(tensors.random_state(lowered.device, lowered.random(arguments)))
            results = tensors.from_buffers(self._execute(buffers), lowered.device)
            shared = self._shared
            if shared is None:
                shared, self._shared = self._find_shared(given, results)
            for i in shared:
                results[i] = results[i].clone()
        if lowered.mutations:
            targets = [arguments[index] for index, _ in lowered.mutations]
            with torch.no_grad():
                torch._foreach_copy_(targets, [_ordered(results, output) for _, output in lowered.mutations])
        made = results
        if not self._returns_results:
            made = [self._output(output, results, arguments) for output in lowered.outputs]
        arguments.clear()
        return made

    @staticmethod
    def _output(output: Output, results: Sequence[torch.Tensor], arguments: Sequence[Any]) -> Any:
        if output.kind == "result":
            return _ordered(results, output)
        if output.kind == "argument":
            return arguments[output.value]
        return output.value(arguments) if output.kind == "size" else output.value

    def _execute(self, buffers: list[Buffer]) -> list[Buffer]:
        team: engine.Team = self._team if self._has_loops or self._runs % _RUNS_UNTIL_ASKED == 0 else ""
        self._runs += 1
        results, had_loop = engine.execute(self._model, buffers, team=team)
        if team:
            self._has_loops = had_loop
        return results

    def _find_shared(self, given: Sequence[Any], results: Sequence[torch.Tensor]) -> tuple[list[int], list[int] | None]:
        """The results that share memory with an input or another result though torch's do not.

        MAX passes on what it sees is a copy or a slice of something. That depends on the graph alone, so the first call
        tells, unless tensors without elements hide it.

        Returns:
            Those of this call, and those of all calls where this one tells.
        """
        known = [
            (_span(value), plan.storage)
            for plan, value in zip(self.lowered.inputs, given, strict=True)
            if not plan.is_size
        ]
        found = []
        for i, (result, storage) in enumerate(zip(results, self.lowered.storages, strict=True)):
            begin, end = _span(result)
            if any(
                begin < other_end and other < end and (storage is None or storage != other_storage)
                for (other, other_end), other_storage in known
            ):
                found.append(i)
            else:
                known.append(((begin, end), storage))
        return found, None if any(begin == end for (begin, end), _ in known) else found


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a contiguous tensor."""
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()


def _ordered(results: Sequence[torch.Tensor], output: Output) -> torch.Tensor:
    """A result with its dimensions in the order that torch wants."""
    tensor: torch.Tensor = results[output.value]
    return tensor if output.order is None else tensor.permute(output.order)
