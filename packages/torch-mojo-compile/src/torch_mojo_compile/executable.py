"""The functions that AOTAutograd calls: they pass torch tensors to a MAX model and its results back, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from max.driver import Buffer

from torch_mojo_compile import tensors
from torch_mojo_compile.graph import Lowered


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
        results: Sequence[Any] = ()
        if lowered.has_results:
            device = lowered.device
            tensors.before_run(device)
            buffers: list[Buffer] = []
            kept: list[torch.Tensor] = []
            for plan in lowered.inputs:
                argument = arguments[plan.argument]
                if plan.is_size:
                    size = argument if plan.order is None else argument.shape[plan.order[0]]
                    buffers.append(tensors.size_carrier(size))
                    continue
                tensor = argument if plan.order is None else argument.permute(plan.order)
                if not tensor.is_contiguous():
                    if plan.is_mutated:
                        # The graph writes to a dense copy, which is copied back.
                        copy = tensor.contiguous()
                        kept += [tensor, copy]
                        tensor = copy
                    else:
                        tensor = tensor.contiguous()
                buffers.append(tensors.to_buffer(tensor))
            if lowered.has_barrier:
                buffers.append(tensors.barrier())
            if lowered.random is not None:
                buffers.append(tensors.random_state(device, lowered.random(arguments)))
            results = self._model._execute_device_tensors(buffers)
            for original, copy in zip(kept[::2], kept[1::2], strict=True):
                original.copy_(copy)
        made: list[Any] = []
        for output in lowered.outputs:
            if output.kind == "result":
                tensor = tensors.from_buffer(results[output.value], lowered.device)
                made.append(tensor if output.order is None else tensor.permute(output.order))
            elif output.kind == "argument":
                made.append(arguments[output.value])
            elif output.kind == "size":
                made.append(output.value(arguments))
            else:
                made.append(output.value)
        arguments.clear()
        return made
