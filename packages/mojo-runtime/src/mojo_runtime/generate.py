"""The Mojo source text that exports kernels as C functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mojo_runtime.spec import KernelSpec


@dataclasses.dataclass(frozen=True)
class Source:
    """A generated Mojo file.

    Attributes:
        text: The file's content.
        symbols: The C symbol of each spec.
        lines: The first line, from 1, of each spec's function, to trace a diagnostic back to its kernel.
    """

    text: str
    symbols: dict[KernelSpec, str]
    lines: dict[KernelSpec, int]


def generate(specs: Sequence[KernelSpec], modules: dict[str, str]) -> Source:
    """Writes one exported C function per kernel, `mojo_kernel_0` and so on, in the order of `specs`.

    Args:
        specs: The kernels; each once.
        modules: The dotted name to import for each spec's `module`.

    Returns:
        The file and where everything is in it.
    """
    functions = list(dict.fromkeys((spec.module, spec.function) for spec in specs))
    aliases = {function: f"function_{i}" for i, function in enumerate(functions)}
    lines = ["from mojo_kernels.abi import Call"]
    lines += [f"from {modules[module]} import {name} as {aliases[module, name]}" for module, name in functions]
    symbols: dict[KernelSpec, str] = {}
    first_lines: dict[KernelSpec, int] = {}
    for i, spec in enumerate(specs):
        symbol = f"mojo_kernel_{i}"
        symbols[spec] = symbol
        lines += ["", ""]
        first_lines[spec] = len(lines) + 1
        lines += [
            f"# {spec.key}",
            f'@export("{symbol}")',
            f'def {symbol}(call: Call) abi("C") -> Int32:',
            "    try:",
            f"        {aliases[spec.module, spec.function]}{spec.render_parameters()}(call[])",
            "        return 0",
            "    except error:",
            "        return call[].fail(error)",
        ]
    return Source("\n".join(lines) + "\n", symbols, first_lines)
