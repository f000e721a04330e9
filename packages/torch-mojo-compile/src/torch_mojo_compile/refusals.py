"""What a graph holds that can't be lowered, collected so that one error names all of it."""

from __future__ import annotations

import collections

import torch

from torch_mojo_compile.errors import UnsupportedOps


def user_line(node: torch.fx.Node) -> str:
    """The user's line that a node comes from."""
    trace = node.meta.get("stack_trace")
    lines = [line for line in (trace or "").strip().splitlines() if line.strip()]
    return "\n".join(lines[-2:]) if lines else "  (no source line is known)"


class Refusals:
    """The refused nodes of a graph.

    Args:
        graph: The graph's name.
    """

    def __init__(self, graph: str) -> None:
        self.graph = graph
        self._nodes: dict[str, list[torch.fx.Node]] = collections.defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def note(self, what: str, node: torch.fx.Node) -> None:
        """Adds a node, with what is missing for it."""
        self._nodes[what].append(node)

    def raise_if_any(self, cause: Exception | None = None) -> None:
        """Ends the lowering of a graph that can't run.

        Args:
            cause: What kept it from being looked at to its end.

        Raises:
            UnsupportedOps: Something was noted.
        """
        if not self:
            return
        lines = [f"{what} (x{len(nodes)})\n{user_line(nodes[0])}" for what, nodes in sorted(self._nodes.items())]
        raise UnsupportedOps(
            f"mojo_backend can't lower {len(lines)} things in the graph {self.graph}:\n"
            + "\n".join(lines)
            + '\nUse options={"fallback": "eager"} to run these eagerly, between compiled parts.',
            [node for nodes in self._nodes.values() for node in nodes],
        ) from cause
