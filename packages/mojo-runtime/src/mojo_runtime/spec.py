"""KernelSpec: the name of a kernel, a Mojo function with its compile-time parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DTYPES = frozenset(
    ["bool", "float16", "bfloat16", "float32", "float64"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)
"""Parameter values that are rendered as `DType.<name>`."""

_KEY = re.compile(r"(?P<module>[^\[\]\n]+):(?P<function>[A-Za-z_]\w*)(?:\[(?P<parameters>[^\[\]\n]*)\])?")
_NAME = re.compile(r"[A-Za-z_]\w*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_INTEGER = re.compile(r"-?(0|[1-9]\d*)")
_RESERVED = re.compile(r'[\[\],="\\\n]')

Value = str | int | bool


def _canonical(name: str, value: Value) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"KernelSpec parameter {name!r}: the name must be an identifier")
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if not text or _RESERVED.search(text):
        raise ValueError(f'KernelSpec parameter {name}={text!r}: a value is not empty and holds none of [ ] , = " \\')
    return text


class KernelSpec:
    """An immutable, hashable name of a kernel: module, function and compile-time parameters.

    Two specs with equal keys are equal. Parameter values are kept in the key's form, so that parsing a spec's key
    always gives an equal spec; how a value is rendered in Mojo depends on that text alone: the name of a dtype becomes
    `DType.<name>`, `true` and `false` a Bool, an integer an Int, everything else a string.

    Args:
        module: The Mojo module, e.g. "mojo_kernels.pointwise.binary", or the path of a .mojo file, made absolute here.
        function: The function in it: `def function[parameters](call: KernelCall) raises`.
        parameters: Compile-time parameters by name.

    Raises:
        ValueError: A name or value that a key cannot hold.
    """

    __slots__ = ("_hash", "function", "key", "module", "parameters")
    module: str
    function: str
    parameters: tuple[tuple[str, str], ...]
    key: str
    """The canonical text, parameters sorted by name: `mojo_kernels.pointwise.binary:binary[dtype=float32,op=add]`."""

    def __init__(self, module: str | Path, function: str, /, **parameters: Value) -> None:
        text = str(module)
        if isinstance(module, Path) or text.endswith(".mojo") or "/" in text:
            text = str(Path(text).expanduser().resolve())
            if not text.endswith(".mojo"):
                raise ValueError(f"KernelSpec module {text!r}: the path of a kernel's file ends with .mojo")
            if re.search(r"[\[\]\n]", text):
                raise ValueError(f"KernelSpec module {text!r}: the path holds a character that a key cannot hold")
        elif not _MODULE.fullmatch(text):
            raise ValueError(f"KernelSpec module {text!r}: neither a dotted module name nor a path to a .mojo file")
        if not _NAME.fullmatch(function):
            raise ValueError(f"KernelSpec function {function!r}: the name must be an identifier")
        values = tuple(sorted((name, _canonical(name, value)) for name, value in parameters.items()))
        key = f"{text}:{function}"
        if values:
            key += f"[{','.join(f'{name}={value}' for name, value in values)}]"
        for name, value in (("module", text), ("function", function), ("parameters", values), ("key", key)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_hash", hash(key))

    @classmethod
    def parse(cls, key: str) -> KernelSpec:
        """Makes the spec of a key; the inverse of `key`.

        Args:
            key: e.g. `mojo_kernels.pointwise.binary:binary[dtype=float32,op=add]`; the parameters in any order.

        Raises:
            ValueError: The text is not a key.
        """
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(f"not the key of a KernelSpec: {key!r} (expected module:function[name=value,...])")
        parameters: dict[str, Value] = {}
        for item in filter(None, (match["parameters"] or "").split(",")):
            name, separator, value = item.partition("=")
            if not separator or name in parameters:
                raise ValueError(f"not the key of a KernelSpec: {key!r} (at {item!r})")
            parameters[name] = value
        return cls(match["module"], match["function"], **parameters)

    @property
    def is_file(self) -> bool:
        """Whether `module` is the path of a .mojo file rather than a dotted name."""
        return self.module.endswith(".mojo")

    @property
    def label(self) -> str:
        """A short form for progress lines, e.g. `binary[float32,add]`."""
        values = ",".join(value for _, value in self.parameters)
        return f"{self.function}[{values}]" if values else self.function

    def render_parameters(self) -> str:
        """Returns the parameter list in Mojo, e.g. `[dtype=DType.float32, op="add"]`; empty without parameters."""
        if not self.parameters:
            return ""
        return f"[{', '.join(f'{name}={render(value)}' for name, value in self.parameters)}]"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a KernelSpec is immutable")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelSpec) and self.key == other.key

    def __hash__(self) -> int:
        value: int = self._hash  # type: ignore[attr-defined]
        return value

    def __repr__(self) -> str:
        return f"KernelSpec.parse({self.key!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (KernelSpec.parse, (self.key,))


def render(value: str) -> str:
    """Returns a parameter's text as a Mojo expression, e.g. `DType.float32` for `float32` and `"add"` for `add`."""
    if value in DTYPES:
        return f"DType.{value}"
    if value in ("true", "false"):
        return value.capitalize()
    if _INTEGER.fullmatch(value):
        return value
    return f'"{value}"'


def module_of(key: str) -> str:
    """Returns the module that a spec's key names, without parsing the rest."""
    return key.partition("[")[0].rpartition(":")[0]


def as_specs(specs: KernelSpec | str | Iterable[KernelSpec | str]) -> list[KernelSpec]:
    """Returns a list without duplicates, in order, from one spec, one key, or several of either."""
    if isinstance(specs, KernelSpec | str):
        specs = [specs]
    return list(dict.fromkeys(spec if isinstance(spec, KernelSpec) else KernelSpec.parse(spec) for spec in specs))
