"""One entry of a PTX module, laid out and translated to Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import arithmetic
from .errors import PtxError
from .parser import Address, Instruction, Kernel, Operand, Pair, Register, Vector
from .translation import NUMPY, Block, BlockGenerator, RawBlock, split_blocks, translate, write_back

if TYPE_CHECKING:
    from .module import Module

_SPECIAL_64_BITS = frozenset(("%clock64", "%globaltimer", "%gridid"))
_SPECIAL = _SPECIAL_64_BITS | {
    *(
        f"%{name}"
        for name in ("tid", "ntid", "ctaid", "nctaid", "laneid", "warpid", "nwarpid", "smid", "nsmid", "clock")
    ),
    *(f"%lanemask_{name}" for name in ("eq", "lt", "le", "ge", "gt")),
    *("%dynamic_smem_size", "%total_smem_size", "%clusterid", "%nclusterid"),
    *(f"%cluster_{name}" for name in ("ctaid", "nctaid", "ctarank", "nctarank")),
}
_BITS_OF = {f"{kind}{bits}": f"b{bits}" for kind in "usf" for bits in (8, 16, 32, 64)}


class Program:
    """A translated entry.

    Args:
        kernel: The parsed entry.
        module: Where it stands: its variables are known to the entry.

    Raises:
        Unsupported: It has an instruction without a translation.
    """

    RED_ZONE = 32
    """Bytes between shared variables."""

    def __init__(self, kernel: Kernel, module: Module) -> None:
        self.kernel, self._module = kernel, module
        self.granule = {"shared": 8, "global": 8}
        """The smallest access to each space in bytes."""
        self.register_dtypes: list[Any] = []
        self.live: set[str] = set()
        """Registers whose value some block reads before it writes it."""
        self.read_before_written: set[str] = set()
        self._register_indices: dict[str, int] = {}
        self._symbols: dict[str, int] = {}
        self._parameters = {parameter.name: parameter.offset for parameter in kernel.parameters}
        self._shared_variables: list[tuple[int, int]] = []
        self._layout()
        instructions = [item for item in kernel.code if isinstance(item, Instruction)]
        self._texts = {instruction.line: instruction.text for instruction in instructions}
        self._read = set(_registers_read(instructions))
        self.blocks = self._translate()

    # ---- symbols ----

    def _layout(self) -> None:
        shared = local = 0
        dynamic: str | None = None
        for variable in [*self._module.variables, *self.kernel.variables]:
            if variable.space == "shared" and variable.external:
                dynamic = variable.name
            elif variable.space == "shared":
                alignment = max(variable.alignment, 4)
                shared = -(-shared // alignment) * alignment
                self._symbols[variable.name] = shared
                self._shared_variables.append((shared, variable.nbytes))
                shared += variable.nbytes + self.RED_ZONE
            elif variable.space == "local":
                local = -(-local // variable.alignment) * variable.alignment
                self._symbols[variable.name] = local
                local += variable.nbytes
        self._static_shared = shared
        self._dynamic_offset = -(-shared // 128) * 128
        if dynamic is not None:
            self._symbols[dynamic] = self._dynamic_offset
        self.local_size = local
        """Bytes of local memory per thread."""

    def shared_extents(self, dynamic: int) -> list[tuple[int, int]]:
        """(offset, bytes) of the shared variables, with `dynamic` bytes of dynamic shared memory."""
        return self._shared_variables + ([(self._dynamic_offset, dynamic)] if dynamic else [])

    def shared_size(self, dynamic: int) -> int:
        """Bytes of shared memory per block."""
        return self._dynamic_offset + dynamic if dynamic else self._static_shared

    def is_parameter(self, name: str) -> bool:
        """Whether a symbol is a parameter of the entry."""
        return name in self._parameters

    def symbol(self, name: str) -> int:
        """A symbol's address: in its space, in the parameter block, or of a global variable.

        Raises:
            PtxError: There is no such symbol.
        """
        for table in (self._parameters, self._symbols, self._module.addresses):
            if name in table:
                return table[name]
        raise PtxError(f"unknown symbol {name}")

    # ---- registers ----

    def is_special(self, name: str) -> bool:
        """Whether a register is one of the machine's, e.g. %tid.x."""
        return name.split(".")[0] in _SPECIAL

    def register_type(self, name: str) -> str:
        """A register's type without its interpretation: pred, b16, b32 or b64.

        Raises:
            PtxError: It was not declared.
        """
        if self.is_special(name):
            return "b64" if name in _SPECIAL_64_BITS else "b32"
        if name not in self.kernel.registers:
            raise PtxError(f"unknown register {name}")
        declared = self.kernel.registers[name]
        return _BITS_OF.get(declared, declared)

    def register_index(self, name: str) -> int:
        """A register's place in the register file."""
        if name not in self._register_indices:
            self._register_indices[name] = len(self.register_dtypes)
            self.register_dtypes.append(NUMPY[self.register_type(name)])
        return self._register_indices[name]

    def is_read(self, name: str) -> bool:
        """Whether any instruction reads a register."""
        return name in self._read

    def note_access(self, space: str, size: int) -> None:
        """Races are tracked per granule, the smallest access that was noted."""
        for one in ("shared", "global") if space == "generic" else (space,):
            if one in self.granule:
                self.granule[one] = min(self.granule[one], size)

    def text_of(self, line: int) -> str:
        """The instruction in a line of the PTX."""
        return self._texts.get(line, "")

    # ---- translation ----

    def _translate(self) -> list[Block]:
        raw, labels = split_blocks(self.kernel)
        # The first pass finds the registers that live across blocks, the second writes them back.
        self._generate(raw, {})
        self.live = set(self.read_before_written)
        namespace: dict[str, Any] = {"arithmetic": arithmetic, "np": np, "write_back": write_back}
        sources = self._generate(raw, namespace)
        exec(compile("\n".join(sources), f"<PTX {self.kernel.name}>", "exec"), namespace)
        blocks = []
        for i, block in enumerate(raw):
            lines = [instruction.line for instruction in block.instructions]
            if block.last is not None:
                lines.append(block.last.line)
            counted = block.last is not None and block.kind not in ("branch_not", "warp")
            blocks.append(
                Block(
                    kind={"fall": "jump", "branch_not": "branch"}.get(block.kind, block.kind),
                    target=labels[block.target] if block.target is not None else i + 1,
                    otherwise=i + 1,
                    instructions=len(block.instructions) + counted,
                    first_line=lines[0] if lines else 0,
                    last_line=lines[-1] if lines else 0,
                    run=namespace[f"block_{i}"],
                )
            )
        return blocks

    def _generate(self, raw: list[RawBlock], namespace: dict[str, Any]) -> list[str]:
        sources = []
        for i, block in enumerate(raw):
            generator = BlockGenerator(self, namespace)
            for instruction in block.instructions:
                translate(instruction, generator)
            sources.append(generator.finish(f"block_{i}", _result(block, generator)))
        return sources


def _result(block: RawBlock, generator: BlockGenerator) -> str:
    """What a block's function returns; see `Block.run`."""
    last = block.last
    if last is None:
        return "None"
    if block.kind in ("branch", "branch_not"):
        assert last.predicate is not None
        condition = generator.value(Register(last.predicate.name), "pred")
        return f"~{condition}" if last.predicate.negated != (block.kind == "branch_not") else condition
    if block.kind == "barrier":
        number, *count = (generator.value(operand, "u32") for operand in last.operands)
        return f"({number}, {count[0] if count else None})"
    if block.kind == "warp" and last.head not in ("ldmatrix", "mma", "stmatrix"):
        mask = last.operands[-1]
        if getattr(mask, "value", None) not in (-1, 0xFFFFFFFF):
            return generator.value(mask, "u32")
    return "None"


def _registers_read(instructions: Iterable[Instruction]) -> Iterable[str]:
    for instruction in instructions:
        only_sources = instruction.head in ("st", "red", "bar", "barrier", "cp", "bra")
        stack: list[Operand | None] = list(instruction.operands if only_sources else instruction.operands[1:])
        stack.append(instruction.predicate)
        while stack:
            operand = stack.pop()
            if isinstance(operand, Register):
                yield operand.name
            elif isinstance(operand, Address):
                stack.append(operand.base)
            elif isinstance(operand, Vector):
                stack += operand.items
            elif isinstance(operand, Pair):
                stack += [operand.first, operand.second]
