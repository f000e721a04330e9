"""`torch.compile(model, backend=mojo_backend)`: dynamo's graphs, lowered to MAX."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config

from torch_mojo_compile.decompositions import decompositions
from torch_mojo_compile.unit import Unit

_numbers = itertools.count()


def mojo_backend(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compiles a graph of dynamo's with MAX; pass it as `torch.compile(..., backend=mojo_backend)`.

    Forward and backward are compiled as one model, in another process; the first call waits for it.

    Args:
        module: The graph.
        example_inputs: Its inputs, fake tensors among them.
        options: What `torch.compile(options=...)` was given: "async": True runs the graph eagerly until the model is
            ready; "fallback": "eager" runs ops without a lowering eagerly, between compiled parts.

    Returns:
        A function with the graph's arguments and results.

    Raises:
        UnsupportedOps: The graph holds what has no lowering; the message names all of it.
        ValueError: There is no such option.
    """
    unknown = set(options or ()) - {"async", "fallback"}
    if unknown:
        raise ValueError(f"mojo_backend has no options {sorted(unknown)}; it has async and fallback")
    if (options or {}).get("fallback", "eager") != "eager":
        raise ValueError(f'the option fallback is "eager" or not given, not {options["fallback"]!r}')  # type: ignore[index]
    unit = Unit(f"graph{next(_numbers)}", dict(options or {}))

    def compiler(kind: str) -> Callable[..., Any]:
        def compile_graph(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
            return unit.add(graph, kind)

        return compile_graph

    # At once, so that the backward graph can be in one model with the forward one.
    with functorch_config.patch(force_non_lazy_backward_lowering=True):
        compiled = aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )(module, example_inputs)
    unit.submit()
    return compiled
