"""Basic blocks: where control flow, barriers and warp operations cut a kernel's code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ..errors import Unsupported
from ..parser import Instruction, Kernel, Symbol

WARP_INSTRUCTIONS = ("shfl", "vote", "redux", "match", "ldmatrix", "mma", "elect", "stmatrix")
"""They start a block, which the threads of a warp enter together."""


@dataclasses.dataclass
class RawBlock:
    """Instructions and how the block ends.

    Attributes:
        instructions: In order; control flow is not among them.
        kind: "fall", "jump", "branch", "branch_not", "exit", "barrier" or "warp" (the next block starts with a warp
            instruction).
        last: The instruction that ends the block; for "warp" the one that starts the next.
        target: The label to jump to.
    """

    instructions: list[Instruction]
    kind: str
    last: Instruction | None = None
    target: str | None = None


@dataclasses.dataclass
class Block:
    """A translated basic block.

    Attributes:
        kind: "jump", "branch", "exit", "barrier" or "warp".
        target: The block of a taken branch or jump; else the next one.
        otherwise: The block of a branch not taken.
        instructions: How many instructions a thread executes.
        first_line: Of the PTX.
        last_line: Of the PTX.
        run: Called with the machine, the registers, the threads (None: all) and their number; returns the branch
            condition, the barrier's operands, the warp instruction's mask, or None.
    """

    kind: str
    target: int
    otherwise: int
    instructions: int
    first_line: int
    last_line: int
    run: Callable[..., Any]


def is_block_barrier(instruction: Instruction) -> bool:
    """Whether it is a barrier of the whole block."""
    return instruction.head in ("bar", "barrier") and instruction.modifiers[1] not in ("warp", "cluster")


def is_warp_instruction(instruction: Instruction) -> bool:
    """Whether the threads of a warp execute it together."""
    return instruction.head in WARP_INSTRUCTIONS or (
        instruction.head in ("bar", "barrier") and instruction.modifiers[1] == "warp"
    )


def split_blocks(kernel: Kernel) -> tuple[list[RawBlock], dict[str, int]]:
    """Cuts a kernel into basic blocks; instructions with a guard become branches around them.

    Args:
        kernel: The parsed entry.

    Returns:
        The blocks, and the number of the block at each label.

    Raises:
        Unsupported: An indirect branch or a barrier that does not wait.
    """
    blocks: list[RawBlock] = []
    labels: dict[str, int] = {}
    current: list[Instruction] = []

    def close(kind: str, last: Instruction | None = None, target: str | None = None) -> None:
        nonlocal current
        blocks.append(RawBlock(current, kind, last, target))
        current = []

    def next_block() -> int:
        if current:
            close("fall")
        return len(blocks)

    def append(instruction: Instruction) -> None:
        if instruction.head in ("ret", "exit"):
            close("exit", instruction)
        elif is_block_barrier(instruction):
            if instruction.modifiers[1] in ("arrive", "red"):
                raise Unsupported(f"PTX line {instruction.line}: {instruction.opcode}")
            close("barrier", instruction)
        elif is_warp_instruction(instruction):
            close("warp", instruction)
            current.append(instruction)
        else:
            current.append(instruction)
            if instruction.head == "trap":
                close("exit", instruction)

    for item in kernel.code:
        if isinstance(item, str):
            labels[item] = next_block()
        elif item.head == "bra":
            label = item.operands[-1]
            assert isinstance(label, Symbol)
            close("branch" if item.predicate else "jump", item, label.name)
        elif item.head == "brx":
            raise Unsupported(f"PTX line {item.line}: {item.opcode}")
        elif item.predicate is not None:
            after = f"$after{len(blocks)}_{item.line}_{len(current)}"
            close("branch_not", item, after)
            append(Instruction(item.opcode, item.operands, None, item.line, item.text))
            labels[after] = next_block()
        else:
            append(item)
    close("exit")
    return blocks, labels
