"""Every row of the pointwise table against CPU torch: op x dtype x layout.

The rows name the kernels, their operands and scalars; the frontend that reads them is not needed.
"""

from __future__ import annotations

import functools
import os

import pytest
import torch

tables = pytest.importorskip("mojo_runtime.aten.tables.pointwise")

# All dtypes with MOJO_TEST_DTYPES=all: ten minutes of compilation.
DTYPES = {"float32", "bfloat16", "int32"} if os.environ.get("MOJO_TEST_DTYPES") != "all" else set(tables.ALL)
DIVISIONS = {"div_mode", "div_floor", "div_trunc", "remainder", "fmod"}

# What the scalar arguments are, by name: for floats, for integers.
SCALARS = {
    "alpha": (1.5, 3),
    "value": (0.5, 3),
    "weight": (0.75, None),
    "decimals": (1, None),
    "eps": (0.1, None),
    "nan": (1.0, None),
    "posinf": (None, None),
    "neginf": (-2.0, None),
    "exponent": (2.5, 3),
    "min": (-0.5, -3),
    "max": (1.25, 7),
    "min_val": (-0.5, 1),
    "max_val": (1.25, 7),
    "approximate": ("tanh", None),
    "rounding_mode": ("floor", "trunc"),
    "beta": (2, None),
    "threshold": (0.5, 2),
    "scale": (1.5, None),
    "input_scale": (0.5, None),
    "negative_slope": (0.1, None),
    "self_is_result": (False, None),
    "is_result": (False, None),
    "lambd": (0.5, None),
    "values": (0.5, 3),
    "other": (0.75, 2),
    "self": (1.5, 2),
}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -3.0, 20.5, -90.0, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))


def cases():
    for row in tables.ROWS:
        for dtype in row.dtypes:
            if dtype in DTYPES or (dtype == "bool" and row.kernel == tables.COMPARISON) or row.dtypes == (dtype,):
                yield pytest.param(row, dtype, id=f"{row.name}-{dtype}")


def key(row, dtype):
    return f"{row.kernel}[dtype={dtype},op={row.op}]"


def schema(row):
    base, _, overload = row.name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")._schema


@functools.cache
def arguments(row):
    """The schema's arguments by name that are not outputs: name to type."""
    return {a.name: str(a.type) for a in schema(row).arguments if not a.is_out}


def values(dtype, shape, *, generator, nonzero=False, limit=1e30):
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        drawn = torch.randint(1 if dtype == torch.uint8 else -9, 10, shape, generator=generator)
        return torch.where(drawn == 0, 5, drawn).to(dtype) if nonzero else drawn.to(dtype)
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    flat = drawn.view(-1)
    if flat.numel() > 4 * len(SPECIAL):
        positions = torch.randperm(flat.numel(), generator=generator)[: 2 * len(SPECIAL)]
        special = torch.tensor(SPECIAL * 2, dtype=torch.float64)
        flat[positions] = torch.where(special.abs() == 1e30, special.sign() * limit, special)
    return drawn.to(dtype)


def layouts(make):
    """Name, output and operands by position (the last stands for all further ones)."""

    def permuted():
        return make((5, 7, 33)).permute(2, 0, 1)

    def sliced():
        return make((9, 160))[1:8, 3:141:3]

    def dense(*shape):
        return make(shape)

    yield "contiguous", dense(7, 129), [dense(7, 129), dense(7, 129)]
    yield "one row", dense(1003), [dense(1003), dense(1003)]
    yield "permuted", permuted(), [permuted(), permuted()]
    yield "permuted to contiguous", dense(33, 5, 7), [permuted(), dense(33, 5, 7)]
    yield "contiguous to permuted", permuted(), [dense(33, 5, 7), permuted()]
    yield "sliced", sliced(), [sliced(), dense(7, 46)]
    yield "contiguous to sliced", sliced(), [dense(7, 46), sliced()]
    yield "expanded", dense(7, 46), [dense(46).expand(7, 46), dense(7, 1).expand(7, 46)]
    yield "scalar operand", dense(7, 46), [dense(7, 46), dense().expand(7, 46)]
    yield "short rows", dense(50, 3), [dense(50, 3), dense(3).expand(50, 3), dense(50, 1).expand(50, 3)]
    yield "0-dim", dense(), [dense(), dense()]
    yield "empty", dense(0, 3), [dense(0, 3), dense(0, 3)]


def encode(library, kind, value):
    if kind.startswith("Optional["):
        return None if value is None else library.given(encode(library, kind[9:-1], value))
    if kind == "number":
        return library.number(value)
    if kind == "str":
        return library.text(value)
    return float(value) if kind == "float" else value


CASES = list(cases())


@pytest.fixture(scope="module")
def library_of(kernels, request):
    """The library of the selected cases' kernels for a dtype."""
    calls = [item.callspec.params for item in request.session.items if item.function is test_row]

    @functools.cache
    def build(dtype):
        return kernels([key(call["row"], dtype) for call in calls if call["dtype"] == dtype])

    return build


def operands_of(row, dtype, tensors, generator):
    """The tensors of a layout as the row's operands, with the values that its inputs can have."""
    operands = []
    for i, _ in enumerate(row.inputs):
        tensor = tensors[min(i, len(tensors) - 1)]
        wanted = torch.bool if row.promotion == "condition" and i == 0 else dtype
        fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=wanted)
        storage = torch.as_strided(fresh, (fresh.untyped_storage().nbytes() // fresh.itemsize,), (1,))
        nonzero = row.op in DIVISIONS and i == 1
        # A huge gradient times a tiny slope shows torch's rounding errors.
        limit = 1e30 if len(row.inputs) == 1 else 1e4
        storage.copy_(values(wanted, storage.shape, generator=generator, nonzero=nonzero, limit=limit))
        operands.append(fresh)
    return operands


@pytest.mark.parametrize(("row", "dtype"), CASES)
def test_row(library_of, row, dtype):
    """Every layout, against the op on CPU tensors."""
    library = library_of(dtype)
    generator = torch.Generator().manual_seed(0)
    element_type = getattr(torch, dtype)
    of_integers = not element_type.is_floating_point
    scalars = {name: SCALARS[name][of_integers] for name in row.scalars}
    words = [encode(library, arguments(row)[name], value) for name, value in scalars.items()]
    result_type = torch.bool if row.promotion == "bool" else element_type
    for layout, shape_of_output, tensors in layouts(functools.partial(torch.empty, dtype=result_type)):
        operands = operands_of(row, element_type, tensors, generator)
        given = dict(zip(row.inputs, operands, strict=True)) | scalars
        output = torch.empty_strided(shape_of_output.shape, shape_of_output.stride(), dtype=result_type)
        for i, name in enumerate(row.inputs):
            if arguments(row)[name] == "number":  # the frontend passes it as an operand without dimensions
                given[name] = True if dtype == "bool" else SCALARS[name][of_integers]
                operands[i] = torch.tensor(given[name], dtype=element_type).expand(output.shape)
            elif row.name.startswith("masked_fill_") and name == "value":
                given[name] = torch.tensor(2, dtype=element_type)
                operands[i] = given[name].expand(output.shape)
        library.pointwise(key(row, dtype), output, operands, words)
        expected = reference(row, given)
        rtol, atol = row.tolerance if dtype == "float32" else (None, None)
        if element_type.is_floating_point and result_type == element_type and row.op != "nextafter":
            # Torch's own rounding errors are no yardstick: what is right in float64 is right.
            precise = {
                n: v.double() if isinstance(v, torch.Tensor) and v.dtype == element_type else v
                for n, v in given.items()
            }
            exact = reference(row, precise).to(element_type)
            close = torch.isclose(output, exact, rtol=rtol or 4 * torch.finfo(element_type).eps, atol=atol or 1e-5)
            expected = torch.where(close, output, expected)
        torch.testing.assert_close(
            output, expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text, at=layout: f"{at}: {text}"
        )


def reference(row, given):
    """The op on contiguous copies: torch's kernels for strided operands treat NaN differently in places."""
    for name in arguments(row):
        if name not in given and name == "buffer":  # of log_sigmoid, which the kernel does not read
            given[name] = torch.exp(-abs(given["self"]))
        if name not in given and name == "self_is_result":
            given[name] = False
    function = getattr(torch.ops.aten, row.name.partition(".")[0])
    ordered = {
        name: value.clone(memory_format=torch.contiguous_format) if isinstance(value, torch.Tensor) else value
        for name, value in ((name, given[name]) for name in arguments(row) if name in given)
    }
    return function(**ordered)
