"""Generates one Python function per basic block.

Within a block every register value is a Python local that is assigned once; only registers that another block (or the
next trip of a loop) reads are written back to the register file. Generated code uses these names: `M` the machine, `R`
the registers (one array over all threads each), `I` the threads that execute the block (None: all), `n` their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Unsupported
from ..memory import UNSIGNED, Array
from ..parser import SINK, TYPE_SIZE, Address, Immediate, Operand, Register, Symbol

if TYPE_CHECKING:
    from ..program import Program

NUMPY: dict[str, Any] = {
    "pred": np.bool_,
    **dict.fromkeys(("b8", "u8"), np.uint8),
    "s8": np.int8,
    **dict.fromkeys(("b16", "u16", "bf16"), np.uint16),
    "s16": np.int16,
    "f16": np.float16,
    **dict.fromkeys(("b32", "u32", "f16x2", "bf16x2", "tf32"), np.uint32),
    "s32": np.int32,
    "f32": np.float32,
    **dict.fromkeys(("b64", "u64"), np.uint64),
    "s64": np.int64,
    "f64": np.float64,
}
"""The NumPy type that holds each PTX type."""
SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
BITS = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
"""The untyped PTX type of each size."""


def unsigned(ptx_type: str) -> str:
    """The unsigned type of an integer type's width; other types unchanged."""
    return "u" + ptx_type[1:] if ptx_type[0] == "s" else ptx_type


def write_back(value: Any, n: int, dtype: Any, copy: bool) -> Array:
    """A value as the register file's own array of `n` elements."""
    if np.shape(value) != (n,):
        return np.array(np.broadcast_to(value, (n,)), dtype=dtype)
    return value.copy() if copy else np.asarray(value)


class BlockGenerator:
    """Collects the lines of one block's function.

    Args:
        program: The kernel, which knows registers and symbols.
        namespace: The globals of the generated code; constants are added to it.
    """

    def __init__(self, program: Program, namespace: dict[str, Any]) -> None:
        self.program, self.namespace = program, namespace
        self._lines: list[str] = []
        self._views: dict[tuple[str, str], str] = {}  # (register, type) -> local
        self._base: dict[str, str] = {}  # register -> local holding it as unsigned or predicate
        self._owner: dict[str, str] = {}  # local -> local that owns its buffer
        self._loaded: set[str] = set()
        self._written: list[str] = []
        self._count = 0

    def new(self) -> str:
        """A fresh local's name."""
        self._count += 1
        return f"v{self._count}"

    def emit(self, line: str) -> None:
        """Appends a line."""
        self._lines.append("    " + line)

    def let(self, expression: str) -> str:
        """Assigns an expression to a fresh local and returns its name."""
        name = self.new()
        self.emit(f"{name} = {expression}")
        return name

    def constant(self, value: Any) -> str:
        """The name of a value in the generated code's globals."""
        name = f"K{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def dtype(self, ptx_type: Any) -> str:
        """The name of a NumPy type, given by PTX name or itself."""
        dtype = NUMPY[ptx_type] if isinstance(ptx_type, str) else ptx_type
        name = f"T_{np.dtype(dtype).name}"
        self.namespace[name] = dtype
        return name

    # ---- reading ----

    def _immediate(self, operand: Immediate, ptx_type: str) -> str:
        dtype = NUMPY[ptx_type]
        if ptx_type == "pred":
            return self.constant(np.bool_(operand.value))
        size = np.dtype(dtype).itemsize
        if operand.kind == "integer":
            assert isinstance(operand.value, int)
            if ptx_type in ("f32", "f64"):
                return self.constant(dtype(operand.value))
            return self.constant(UNSIGNED[size](operand.value & ((1 << 8 * size) - 1)).view(dtype))
        if operand.kind == "decimal":
            return self.constant(dtype(operand.value))
        bits = UNSIGNED[TYPE_SIZE[operand.kind]](operand.value)
        if ptx_type in ("f32", "f64"):
            return self.constant(dtype(bits.view(NUMPY[operand.kind])))
        return self.constant(bits.astype(UNSIGNED[size]).view(dtype))

    def register(self, name: str) -> str:
        """The local that holds a register as unsigned integers, or as booleans."""
        if name in self._base:
            return self._base[name]
        if self.program.is_special(name):
            local = self.let(f"M.special_register({name!r}, I)")
        else:
            k = self.program.register_index(name)
            local = self.let(f"R[{k}] if I is None else R[{k}][I]")
            self.program.read_before_written.add(name)
        self._base[name] = local
        self._owner[local] = local
        self._loaded.add(local)
        return local

    def value(self, operand: Operand, ptx_type: str) -> str:
        """An expression for an operand viewed as a type."""
        if isinstance(operand, Immediate):
            return self._immediate(operand, ptx_type)
        if isinstance(operand, Symbol):
            return self.constant(NUMPY[ptx_type](self.program.symbol(operand.name) + operand.offset))
        if not isinstance(operand, Register):
            raise Unsupported(f"operand {operand}")
        key = (operand.name, ptx_type)
        if key not in self._views:
            base = self.register(operand.name)
            register_type = self.program.register_type(operand.name)
            register_size, size = TYPE_SIZE[register_type], TYPE_SIZE[ptx_type]
            if "pred" in (ptx_type, register_type) or (NUMPY[ptx_type] == UNSIGNED[size] and register_size == size):
                self._views[key] = base
            elif register_size == size:
                view = self.let(f"{base}.view({self.dtype(ptx_type)})")
                self._owner[view] = self._owner[base]
                self._views[key] = view
            else:
                view = self.let(f"{base}.astype({self.dtype(UNSIGNED[size])}).view({self.dtype(ptx_type)})")
                self._owner[view] = view
                self._views[key] = view
        return f"(~{self._views[key]})" if operand.negated else self._views[key]

    def address(self, operand: Operand) -> str:
        """An expression for an address as uint64."""
        assert isinstance(operand, Address)
        if isinstance(operand.base, Symbol):
            return self.constant(np.uint64(self.program.symbol(operand.base.name) + operand.offset))
        if operand.base is None:
            return self.constant(np.uint64(operand.offset))
        assert isinstance(operand.base, Register)
        wide = TYPE_SIZE[self.program.register_type(operand.base.name)] == 8
        expression = self.value(operand.base, "u64" if wide else "u32")
        if operand.offset:
            dtype, mask = (np.uint64, 2**64 - 1) if wide else (np.uint32, 2**32 - 1)
            expression = f"({expression} + {self.constant(dtype(operand.offset & mask))})"
        return expression if wide else f"{expression}.astype({self.dtype('u64')})"

    # ---- writing ----

    def assign(self, operand: Operand, expression: str, ptx_type: str, alias: bool = False) -> None:
        """Assigns an expression to a register, extended to the register's width.

        Args:
            operand: The register, or the sink.
            expression: A value of `ptx_type`.
            ptx_type: Signed types are sign-extended.
            alias: The expression is a local that another register may hold too.
        """
        if operand == SINK:
            return
        assert isinstance(operand, Register)
        name = operand.name
        register_type = self.program.register_type(name)
        register_size, size = TYPE_SIZE[register_type], TYPE_SIZE[ptx_type]
        for key in [key for key in self._views if key[0] == name]:
            del self._views[key]
        kind = np.dtype(NUMPY[ptx_type]).kind
        if register_type != "pred" and size < register_size:
            if kind == "f":
                expression = f"({expression}).view({self.dtype(UNSIGNED[size])})"
            wide = (SIGNED if kind == "i" else UNSIGNED)[register_size]
            local = self.let(f"({expression}).astype({self.dtype(wide)}).view({self.dtype(UNSIGNED[register_size])})")
            self._owner[local] = local
            self._base[name] = local
        else:
            local = self.let(expression)
            self._owner[local] = self._owner.get(expression, expression) if alias else local
            if register_type == "pred" or NUMPY[ptx_type] == UNSIGNED[size]:
                self._base[name] = local
            else:
                self._views[(name, ptx_type)] = local
                base = self.let(f"{local}.view({self.dtype(UNSIGNED[size])})")
                self._owner[base] = self._owner[local]
                self._base[name] = base
        if name not in self._written:
            self._written.append(name)

    def finish(self, name: str, result: str) -> str:
        """The function's source.

        Args:
            name: Of the function.
            result: The expression to return.
        """
        taken = set(self._loaded)
        for register in self._written:
            if register not in self.program.live:
                continue
            k = self.program.register_index(register)
            local = self._base[register]
            owner = self._owner.get(local, local)
            dtype = self.dtype(self.program.register_type(register))
            self.emit(f"if I is None: R[{k}] = write_back({local}, n, {dtype}, {owner in taken})")
            self.emit(f"else: R[{k}][I] = {local}")
            taken.add(owner)
        self.emit(f"return {result}")
        return f"def {name}(M, R, I, n):\n" + "\n".join(self._lines) + "\n"
