"""The table of opcodes."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Unsupported
from ..parser import Instruction
from .generator import BlockGenerator

Translator = Callable[[Instruction, BlockGenerator], None]
IGNORED = frozenset(
    (
        *("membar", "fence", "prefetch", "prefetchu", "griddepcontrol", "nanosleep", "discard", "applypriority"),
        *("setmaxnreg", "pmevent", "createpolicy"),
    )
)
"""Opcodes without an effect that a sequentially consistent machine could show."""
_TRANSLATORS: dict[str, Translator] = {}


def translates(*heads: str) -> Callable[[Translator], Translator]:
    """Enters a function as the translator of opcodes that start with one of `heads`."""

    def enter(function: Translator) -> Translator:
        _TRANSLATORS.update(dict.fromkeys(heads, function))
        return function

    return enter


def unsupported(instruction: Instruction) -> Unsupported:
    """The error for an instruction without a translation."""
    return Unsupported(f"PTX line {instruction.line}: `{instruction.text}` is not supported by the simulator")


def translate(instruction: Instruction, generator: BlockGenerator) -> None:
    """Appends the code of an instruction.

    Raises:
        Unsupported: There is no translation.
    """
    if instruction.head in IGNORED:
        return
    translator = _TRANSLATORS.get(instruction.head)
    if translator is None:
        raise unsupported(instruction)
    try:
        translator(instruction, generator)
    except (KeyError, ValueError, StopIteration, AttributeError, AssertionError) as error:
        raise unsupported(instruction) from error
