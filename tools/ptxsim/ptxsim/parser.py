"""PTX text to plain data structures: the subset that compilers emit."""

from __future__ import annotations

import dataclasses
import re

TYPE_SIZE = (
    dict.fromkeys(("pred", "b8", "u8", "s8"), 1)
    | dict.fromkeys(("b16", "u16", "s16", "f16", "bf16"), 2)
    | dict.fromkeys(("b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32"), 4)
    | dict.fromkeys(("b64", "u64", "s64", "f64", "f32x2"), 8)
    | {"b128": 16}
)
"""Bytes of each PTX type."""


class PtxSyntaxError(Exception):
    """PTX text that this parser does not know."""


@dataclasses.dataclass(frozen=True)
class Register:
    """A register; `negated` for "!%p1"."""

    name: str
    negated: bool = False


@dataclasses.dataclass(frozen=True)
class Immediate:
    """A literal. `kind`: "integer"; "f32" or "f64" (a bit pattern); "decimal" (a float)."""

    kind: str
    value: int | float


@dataclasses.dataclass(frozen=True)
class Symbol:
    """A variable, parameter, label or function."""

    name: str
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Address:
    """[base + offset]"""

    base: Operand | None
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Vector:
    """{a, b, ...}"""

    items: tuple[Operand, ...]


@dataclasses.dataclass(frozen=True)
class Pair:
    """a|b"""

    first: Operand
    second: Operand


Operand = Register | Immediate | Symbol | Address | Vector | Pair
SINK = Register("_")


@dataclasses.dataclass
class Instruction:
    """One instruction: the full dotted opcode, its operands and its guard."""

    opcode: str
    operands: list[Operand]
    predicate: Register | None
    line: int
    text: str

    def __post_init__(self) -> None:
        self.modifiers = self.opcode.replace("::", ":").split(".")
        self.head = self.modifiers[0]

    @property
    def type(self) -> str:
        """The last type in the opcode."""
        for modifier in reversed(self.modifiers):
            if modifier in TYPE_SIZE:
                return modifier
        raise PtxSyntaxError(f"PTX line {self.line}: no type in {self.opcode}")

    @property
    def types(self) -> list[str]:
        """All types in the opcode."""
        return [modifier for modifier in self.modifiers[1:] if modifier in TYPE_SIZE]

    @property
    def vector_width(self) -> int:
        """How many elements a load or store moves."""
        return next((int(m[1:]) for m in self.modifiers if m in ("v2", "v4", "v8")), 1)


@dataclasses.dataclass
class Variable:
    """A .global, .shared, .const or .local variable."""

    name: str
    space: str
    alignment: int
    nbytes: int
    initial: bytes | None = None
    external: bool = False
    initial_symbols: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    """Byte offsets that hold the address of another variable."""


@dataclasses.dataclass
class Parameter:
    """A parameter of an entry, with its place in the parameter block."""

    name: str
    type: str
    offset: int
    nbytes: int


@dataclasses.dataclass
class Kernel:
    """An entry or a function. `code` holds instructions and, as strings, labels; `results` are a function's."""

    name: str
    parameters: list[Parameter]
    parameter_bytes: int
    directives: dict[str, str]
    results: list[Parameter] = dataclasses.field(default_factory=list)
    registers: dict[str, str] = dataclasses.field(default_factory=dict)
    variables: list[Variable] = dataclasses.field(default_factory=list)
    code: list[Instruction | str] = dataclasses.field(default_factory=list)


_INTEGER = re.compile(r"^[+-]?(0[xX][0-9a-fA-F]+|\d+)U?$")
_FLOAT32 = re.compile(r"^0[fF][0-9a-fA-F]{8}$")
_FLOAT64 = re.compile(r"^0[dD][0-9a-fA-F]{16}$")
_DECIMAL = re.compile(r"^[+-]?\d+\.\d*([eE][+-]?\d+)?$")


def _integer(text: str) -> int:
    text = text.rstrip("U")
    return int(text, 8) if re.match(r"^[+-]?0\d", text) else int(text, 0)


def split_top_level(text: str, separator: str = ",") -> list[str]:
    """Splits at separators outside brackets."""
    parts: list[str] = []
    depth, start = 0, 0
    for i, character in enumerate(text):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def parse_operand(text: str) -> Operand:
    """Parses one operand.

    Raises:
        PtxSyntaxError: An unknown form.
    """
    text = text.strip()
    if text == "_":
        return SINK
    if text[0] in "{(":
        return Vector(tuple(parse_operand(part) for part in split_top_level(text[1:-1])))
    if text.startswith("["):
        body = text[1:-1].strip()
        match = re.match(r"^([^+]+?)\s*\+\s*(-?\w+)$", body)
        base, offset = (match[1].strip(), _integer(match[2])) if match else (body, 0)
        if _INTEGER.match(base):
            return Address(None, _integer(base) + offset)
        return Address(parse_operand(base), offset)
    if "|" in text:
        first, second = text.split("|")
        return Pair(parse_operand(first), parse_operand(second))
    if text.startswith("!"):
        return Register(text[1:].strip(), True)
    if text.startswith("%"):
        return Register(text)
    if _FLOAT32.match(text):
        return Immediate("f32", int(text[2:], 16))
    if _FLOAT64.match(text):
        return Immediate("f64", int(text[2:], 16))
    if _INTEGER.match(text):
        return Immediate("integer", _integer(text))
    if _DECIMAL.match(text):
        return Immediate("decimal", float(text))
    match = re.match(r"^([A-Za-z_$][\w$]*)\s*(?:\+\s*(\d+))?$", text)
    if match:
        return Symbol(match[1], int(match[2] or 0))
    raise PtxSyntaxError(f"operand {text!r}")


def _without_comments(text: str) -> str:
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


_VARIABLE = re.compile(
    r"^(?:\.(?P<linkage>visible|extern|weak|common)\s+)?\.(?P<space>global|shared|const|local)\s+"
    r"(?:\.attribute\([^)]*\)\s+)?(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    r"(?P<name>[\w$]+)(?P<sizes>(?:\[\d*\])*)\s*(?:=\s*(?P<initial>.*))?$",
    re.S,
)


def _parse_variable(statement: str) -> Variable | None:
    match = _VARIABLE.match(statement)
    if not match:
        return None
    element = TYPE_SIZE[match["type"]]
    count, unsized = 1, False
    for size in re.findall(r"\[(\d*)\]", match["sizes"]):
        if size:
            count *= int(size)
        else:
            unsized = True
    initial, symbols = None, []
    if match["initial"]:
        items = [item for item in re.split(r"[{},\s]+", match["initial"]) if item]
        if unsized:
            count, unsized = len(items), False
        content = bytearray(count * element)
        for i, item in enumerate(items):
            if _FLOAT32.match(item) or _FLOAT64.match(item):
                value = int(item[2:], 16)
            elif _INTEGER.match(item):
                value = _integer(item)
            else:
                symbols.append((i * element, re.sub(r"^generic\((.*)\)$", r"\1", item)))
                continue
            content[i * element : (i + 1) * element] = (value & ((1 << (8 * element)) - 1)).to_bytes(element, "little")
        initial = bytes(content)
    return Variable(
        match["name"],
        match["space"],
        int(match["align"] or element),
        0 if unsized else count * element,
        initial,
        match["linkage"] == "extern" or unsized,
        symbols,
    )


_PARAMETER = re.compile(
    r"^\.param\s+(?P<before>(?:\.align\s+\d+\s+)?)\.(?P<type>\w+)\s+"
    r"(?:\.ptr\s+(?:\.(?:global|shared|const|local)\s+)?(?:\.align\s+\d+\s+)?)?(?P<name>[\w$]+)(?:\[(?P<n>\d+)\])?$",
    re.S,
)


def _parse_parameters(text: str) -> tuple[list[Parameter], int]:
    parameters, offset = [], 0
    for part in split_top_level(text):
        match = _PARAMETER.match(part)
        if not match:
            raise PtxSyntaxError(f"parameter {part!r}")
        element = TYPE_SIZE[match["type"]]
        align = re.search(r"\d+", match["before"])
        alignment = int(align[0]) if align else element
        offset = -(-offset // alignment) * alignment
        nbytes = element * int(match["n"] or 1)
        parameters.append(Parameter(match["name"], match["type"], offset, nbytes))
        offset += nbytes
    return parameters, offset


def _call_variable(text: str) -> Variable:
    """An argument or a result of a call, declared in the caller's body: memory of the thread."""
    (parameter,), nbytes = _parse_parameters(text)
    align = re.search(r"\.align (\d+)", text)
    return Variable(parameter.name, "local", int(align[1]) if align else TYPE_SIZE[parameter.type], nbytes)


def _parse_statement(text: str, line: int, kernel: Kernel) -> None:
    text = " ".join(text.split())
    if not text:
        return
    if text.startswith(".reg"):
        match = re.match(r"^\.reg\s+\.(\w+)\s+(.*)$", text)
        assert match
        for declaration in split_top_level(match[2]):
            several = re.match(r"^(%?[\w$]+)<(\d+)>$", declaration)
            if several:
                kernel.registers.update({f"{several[1]}{k}": match[1] for k in range(int(several[2]))})
            else:
                kernel.registers[declaration] = match[1]
        return
    if text.startswith("."):
        variable = _parse_variable(text)
        if variable:
            kernel.variables.append(variable)
        elif text.startswith(".param"):
            kernel.variables.append(_call_variable(text))
        elif not re.match(r"^\.(pragma|loc|branchtargets|callprototype|file|section)\b", text):
            raise PtxSyntaxError(f"PTX line {line}: directive {text!r}")
        return
    whole, predicate = text, None
    match = re.match(r"^@(!?)\s*(%?[\w$]+)\s+(.*)$", text)
    if match:
        predicate, text = Register(match[2], bool(match[1])), match[3]
    match = re.match(r"^([a-z][\w.:]*)\s*(.*)$", text)
    if not match:
        raise PtxSyntaxError(f"PTX line {line}: {text!r}")
    try:
        operands = [parse_operand(part) for part in split_top_level(match[2])]
    except PtxSyntaxError as error:
        raise PtxSyntaxError(f"PTX line {line}: {error} in {whole!r}") from None
    kernel.code.append(Instruction(match[1], operands, predicate, line, whole))


def _parse_body(body: str, first_line: int, kernel: Kernel) -> None:
    """Statements, labels and nested scopes of a function body (scopes are flattened)."""
    line, statement = first_line, ""
    start: int | None = None
    depth = 0
    for i, character in enumerate(body):
        if character == "\n":
            line += 1
        if character in "[(":
            depth += 1
        elif character in "])":
            depth -= 1
        if character == ";" and depth == 0:
            _parse_statement(statement, start or line, kernel)
            statement, start = "", None
        elif character in "{}" and not statement.strip():
            statement, start = "", None
        elif character == ":" and re.match(r"^\s*[\w$]+$", statement) and body[i + 1 : i + 2] != ":":
            kernel.code.append(statement.strip())
            statement, start = "", None
        else:
            if start is None and not character.isspace():
                start = line
            statement += character
            if character == "\n" and re.match(r"^\s*\.(loc|file)\b", statement):  # they end with the line
                statement, start = "", None


def _closing(text: str, start: int, opening: str, closing: str) -> int:
    """The position after the bracket that closes the first one at or after `start`."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] == opening:
            depth += 1
        elif text[i] == closing:
            depth -= 1
            if depth == 0:
                return i + 1
    raise PtxSyntaxError(f"no {closing!r} for {opening!r}")


@dataclasses.dataclass
class ParsedModule:
    """The entries and the functions by name, and the module-level variables."""

    kernels: dict[str, Kernel] = dataclasses.field(default_factory=dict)
    functions: dict[str, Kernel] = dataclasses.field(default_factory=dict)
    variables: list[Variable] = dataclasses.field(default_factory=list)


def parse_module(text: str) -> ParsedModule:
    """Parses a PTX module.

    Args:
        text: The PTX.

    Raises:
        PtxSyntaxError: A statement of an unknown form.
    """
    source = _without_comments(text)
    module = ParsedModule()
    head = re.compile(r"(?:\.(?:visible|weak|extern)\s+)?\.(entry|func)\b")
    line_directives = re.compile(r"^\s*(\.(version|target|address_size|file|loc)[^\n]*\n\s*)+")
    position = 0
    while True:
        match = head.search(source, position)
        for statement in source[position : match.start() if match else len(source)].split(";"):
            statement = line_directives.sub("", statement.strip() + "\n").strip()
            variable = _parse_variable(" ".join(statement.split())) if statement.startswith(".") else None
            if variable:
                module.variables.append(variable)
        if not match:
            return module
        end, depth = match.end(), 0
        while not (depth == 0 and source[end] in "{;"):
            depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
        header = source[match.end() : end]
        if source[end] == ";":  # a declaration
            position = end + 1
            continue
        position = _closing(source, end, "{", "}")
        parts = re.match(r"^\s*(?:\((.*?)\)\s*)?([\w$]+)\s*(?:\((.*?)\))?(.*)$", header, re.S)
        if not parts:
            raise PtxSyntaxError(f"{match[1]} {header!r}")
        parameters, nbytes = _parse_parameters(parts[3] or "")
        directives = dict(re.findall(r"\.(reqntid|maxntid|minnctapersm|maxnreg)\s+([\d, ]+)", parts[4]))
        kernel = Kernel(parts[2], parameters, nbytes, directives, _parse_parameters(parts[1] or "")[0])
        _parse_body(source[end + 1 : position - 1], source.count("\n", 0, end) + 1, kernel)
        (module.kernels if match[1] == "entry" else module.functions)[kernel.name] = kernel
