"""`options={"fallback": "eager"}`: ops without a lowering run eagerly, between parts that are compiled."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from torch_mojo_compile import report
from torch_mojo_compile.executable import Executable
from torch_mojo_compile.graph import COPY, is_lowered, obstacles


def can_be_compiled(node: torch.fx.Node) -> bool:
    """Whether a node can be part of a MAX graph: it has a lowering, and MAX has all its values."""
    values = [node.meta.get("val"), *(argument.meta.get("val") for argument in node.all_input_nodes)]
    allowed = not any(isinstance(value, torch.SymFloat) or obstacles(value) for value in values)
    # Writes to inputs stay outside, after everything that reads them.
    return node.op == "call_function" and allowed and node.target is not COPY and is_lowered(node)


class _Support(OperatorSupportBase):
    def __init__(self, refused: set[str]) -> None:
        self.refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:
        return node.name not in self.refused and can_be_compiled(node)


class _Part(torch.nn.Module):
    """A compiled part in the place of the nodes that it was made from."""

    def __init__(self, executable: Executable, single: bool) -> None:
        super().__init__()
        self._executable = executable
        self._single = single

    def forward(self, *arguments: Any) -> Any:
        """Runs the part."""
        results = self._executable(list(arguments))
        return results[0] if self._single else tuple(results)


def with_eager_parts(
    graph: torch.fx.GraphModule,
    name: str,
    find_refused: Callable[[torch.fx.GraphModule], list[torch.fx.Node]],
    compile_part: Callable[[torch.fx.GraphModule], Executable],
) -> Callable[[list[Any]], Any]:
    """Compiles what can be compiled of a graph.

    Args:
        graph: Of aten ops.
        name: For the message that says what runs eagerly.
        find_refused: Lowers a part to nowhere; returns the nodes that this fails at.
        compile_part: Lowers a part.

    Returns:
        A function that takes the list of the graph's arguments, which it empties, and returns its results.
    """
    refused: set[str] = set()
    while True:
        # Parts keep the names of their nodes.
        fused, parts = _cut(graph, refused)
        found = {node.name for part in parts.values() for node in find_refused(part)}
        if not found:
            break
        refused |= found
    for target, part in parts.items():
        single = not isinstance(part.graph.output_node().args[0], list | tuple)
        setattr(fused, target, _Part(compile_part(part), single))
    eager = collections.Counter(str(node.target) for node in fused.graph.nodes if node.op == "call_function")
    counts = ", ".join(f"{op} (x{count})" for op, count in sorted(eager.items()))
    report.warn(f"{name}: {len(parts)} compiled parts; run eagerly: {counts}")

    def run(arguments: list[Any]) -> Any:
        given = list(arguments)
        arguments.clear()
        with torch.no_grad():
            return fused(*given)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _cut(
    graph: torch.fx.GraphModule, refused: set[str]
) -> tuple[torch.fx.GraphModule, dict[str, torch.fx.GraphModule]]:
    """Makes submodules of what can be compiled; returns a graph that calls them, and the submodules by target."""
    nodes = torch.fx.Graph()
    nodes.output(nodes.graph_copy(graph.graph, {}))
    partitioner = CapabilityBasedPartitioner(
        torch.fx.GraphModule(graph, nodes), _Support(refused), allows_single_node_partition=True
    )
    fused = partitioner.fuse_partitions(partitioner.propose_partitions())
    targets = [str(node.target) for node in fused.graph.nodes if node.op == "call_module"]
    return fused, {target: fused.get_submodule(target) for target in targets}  # type: ignore[misc]
