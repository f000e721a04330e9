"""Kernel cases by family: a row of ROWS, for every dtype, size and layout that it lists, is one case."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from measure import Budget, Result, alternate, synchronizer

GOAL = 1.1
FLOATS = (torch.float32, torch.bfloat16)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the operands of one case look like.

    Attributes:
        dims: Lengths by the letters that operands use.
        dtype: Of the floating-point operands.
        strided: Whether matrices are transposed views.
        device: Where the operands are.
    """

    dims: Mapping[str, int]
    dtype: torch.dtype
    strided: bool
    device: torch.device


Operand = Callable[[Setting], Any]


def normal(dims: str, gradient: bool = False) -> Operand:
    """An operand of normally distributed values; `dims` such as "M N" names its lengths."""

    def make(setting: Setting) -> Tensor:
        shape = [setting.dims[dim] for dim in dims.split()]
        strided = setting.strided and len(shape) >= 2
        if strided:
            shape[-2:] = shape[:-3:-1]
        x = torch.randn(shape).to(setting.device, setting.dtype)
        return (x.transpose(-1, -2) if strided else x).requires_grad_(gradient)

    return make


def images(dims: str, gradient: bool = False) -> Operand:
    """An operand of normally distributed feature maps; strided ones are channels-last."""

    def make(setting: Setting) -> Tensor:
        x = torch.randn([setting.dims[dim] for dim in dims.split()]).to(setting.device, setting.dtype)
        layout = torch.channels_last if setting.strided else torch.contiguous_format
        return x.contiguous(memory_format=layout).requires_grad_(gradient)

    return make


def channels_last(operand: Operand) -> Operand:
    """The operand with its channels as neighbours in memory."""

    def make(setting: Setting) -> Tensor:
        x: Tensor = operand(setting)
        return x.detach().to(memory_format=torch.channels_last).requires_grad_(x.requires_grad)

    return make


def grid(dims: str) -> Operand:
    """An operand of positions in an image, most of them inside."""

    def make(setting: Setting) -> Tensor:
        shape = [setting.dims[dim] for dim in dims.split()]
        return (torch.rand(*shape, 2) * 2.2 - 1.1).to(setting.device, setting.dtype)

    return make


def index(limit: str, dims: str) -> Operand:
    """An operand of int64 indices below the length that `limit` names."""
    return lambda setting: torch.randint(setting.dims[limit], [setting.dims[dim] for dim in dims.split()]).to(
        setting.device
    )


def mask(dims: str) -> Operand:
    """An operand of bools, half of them True."""
    return lambda setting: (torch.randn([setting.dims[dim] for dim in dims.split()]) > 0).to(setting.device)


def optimizer(kind: type[torch.optim.Optimizer], **options: Any) -> Operand:
    """An optimizer over 24 parameters of M x N, half of them with bias-like length N, with gradients."""

    def make(setting: Setting) -> torch.optim.Optimizer:
        shapes = [(setting.dims["M"], setting.dims["N"]), (setting.dims["N"],)] * 12
        parameters = [torch.randn(shape).to(setting.device, setting.dtype).requires_grad_() for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        return kind(parameters, lr=1e-6, **options)  # type: ignore[call-arg]

    return make


@dataclasses.dataclass(frozen=True)
class Row:
    """One statement to measure.

    Attributes:
        family: Key of SIZES.
        name: Of the case, without dtype, size and layout.
        statement: Python source over the operands, `torch` and `F`.
        operands: By the names that the statement uses.
        dtypes: Of the floating-point operands.
        strided: Whether the case also runs on transposed operands.
    """

    family: str
    name: str
    statement: str
    operands: Mapping[str, Operand]
    dtypes: tuple[torch.dtype, ...] = FLOATS
    strided: bool = False


SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "pointwise": ({"M": 64, "N": 64}, {"M": 1024, "N": 2048}),
    "reduction": ({"M": 64, "N": 64}, {"M": 1024, "N": 2048}),
    "softmax and norm": ({"M": 64, "N": 64}, {"M": 2048, "N": 1024}),
    "matmul": ({"B": 4, "M": 64, "N": 64, "K": 64}, {"B": 8, "M": 512, "N": 512, "K": 512}),
    "convolution": (
        {"B": 4, "C": 8, "O": 16, "S": 12, "T": 24, "K": 3, "I": 1, "R": 3, "L": 7},
        {"B": 8, "C": 64, "O": 64, "S": 56, "T": 112, "K": 3, "I": 1, "R": 3, "L": 7},
    ),
    "attention": ({"B": 2, "H": 4, "T": 64, "D": 32}, {"B": 4, "H": 8, "T": 512, "D": 64}),
    "indexing": ({"V": 96, "T": 64, "N": 32}, {"V": 8192, "T": 2048, "N": 512}),
    "normalization": ({"B": 4, "C": 16, "H": 8, "W": 8}, {"B": 16, "C": 64, "H": 56, "W": 56}),
    "sorting": ({"M": 8, "N": 64}, {"M": 64, "N": 16384}),
    "copy": ({"M": 64, "N": 64}, {"M": 1024, "N": 2048}),
    "random": ({"M": 64, "N": 64}, {"M": 1024, "N": 2048}),
    "pooling": ({"B": 2, "C": 16, "H": 14, "W": 14}, {"B": 8, "C": 64, "H": 56, "W": 56}),
    "resampling": ({"B": 2, "C": 16, "H": 14, "W": 14}, {"B": 8, "C": 32, "H": 56, "W": 56}),
    "padding": ({"B": 2, "C": 16, "H": 14, "W": 14}, {"B": 8, "C": 64, "H": 56, "W": 56}),
    "optimizer": ({"M": 64, "N": 64}, {"M": 512, "N": 512}),
}

_A = {"a": normal("M N")}
_AB = {**_A, "b": normal("M N")}
_NORM = {**_A, "w": normal("N")}
_AG = {"a": normal("M N", gradient=True), "g": normal("M N")}
_QKV = {name: normal("B H T D") for name in "qkv"}
_QKV_G = {**{name: normal("B H T D", gradient=True) for name in "qkv"}, "g": normal("B H T D")}
_CONVOLUTION = {
    "x": normal("B C S S", gradient=True),
    "w": normal("O C K K", gradient=True),
    "b": normal("O", gradient=True),
    "g": normal("B O S S"),
}
_POINTWISE = {**_CONVOLUTION, "w": normal("O C I I", gradient=True)}
_STEM = {"x": normal("B R T T"), "w": normal("O R L L", gradient=True), "g": normal("B O S S")}
_DEPTHWISE = {
    "x": normal("B C S S", gradient=True),
    "w": normal("C I K K", gradient=True),
    "g": normal("B C S S"),
}
_TABLE = {"t": normal("V N"), "i": index("V", "T")}
_NONE: Mapping[str, Operand] = {}
_IMAGE = {"x": images("B C H W")}
_IMAGE_GRADIENT = {"x": images("B C H W", gradient=True)}


def _images(
    family: str,
    name: str,
    expression: str,
    others: Mapping[str, Operand] = _NONE,
    dtypes: tuple[torch.dtype, ...] = FLOATS,
) -> tuple[Row, Row]:
    """An op of feature maps and others, and the op with its gradient."""
    gradient = f"y = {expression}; torch.autograd.grad(y, x, y)"
    return (
        Row(family, name, expression, {**_IMAGE, **others}, dtypes, strided=True),
        Row(family, f"{name} with backward", gradient, {**_IMAGE_GRADIENT, **others}, dtypes, strided=True),
    )


_TABLE_G = {"t": normal("V N", gradient=True), "i": index("V", "T"), "s": normal("T N")}
_CHANNELS = {
    "x": normal("B C H W"),
    "w": normal("C"),
    "m": lambda setting: torch.zeros(setting.dims["C"], dtype=setting.dtype, device=setting.device),
    "v": lambda setting: torch.ones(setting.dims["C"], dtype=setting.dtype, device=setting.device),
}
_CHANNELS_G = {**_CHANNELS, "x": normal("B C H W", gradient=True), "g": normal("B C H W")}


def _channels_last(setting: Setting) -> Tensor:
    x: Tensor = normal("B C H W")(setting)
    return x.contiguous(memory_format=torch.channels_last)


_LAST = {**_CHANNELS, "x": _channels_last}


ROWS = (
    Row("pointwise", "add", "a + b", _AB, strided=True),
    Row("pointwise", "add row", "a + w", _NORM),
    Row("pointwise", "add in place", "a.add_(b, alpha=1e-6)", _AB),
    Row("pointwise", "mul scalar", "a * 2.0", _A, strided=True),
    Row("pointwise", "exp", "a.exp()", _A),
    Row("pointwise", "sigmoid", "a.sigmoid()", _A),
    Row("pointwise", "gelu", "F.gelu(a)", _A),
    Row("pointwise", "gelu backward", "torch.autograd.grad(F.gelu(a), a, g)", _AG),
    Row("pointwise", "greater", "a > b", _AB),
    Row("pointwise", "where", "torch.where(m, a, b)", {**_AB, "m": mask("M N")}),
    Row("pointwise", "clamp", "a.clamp(-1.0, 1.0)", _A),
    Row("reduction", "sum", "a.sum()", _A),
    Row("reduction", "sum rows", "a.sum(-1)", _A, strided=True),
    Row("reduction", "sum columns", "a.sum(0)", _A),
    Row("reduction", "mean rows", "a.mean(-1)", _A),
    Row("reduction", "amax rows", "a.amax(-1)", _A),
    Row("reduction", "argmax rows", "a.argmax(-1)", _A),
    Row("reduction", "vector norm", "torch.linalg.vector_norm(a)", _A),
    Row("softmax and norm", "softmax", "torch.softmax(a, -1)", _A, strided=True),
    Row("softmax and norm", "log_softmax", "torch.log_softmax(a, -1)", _A),
    Row("softmax and norm", "softmax backward", "torch.autograd.grad(torch.softmax(a, -1), a, g)", _AG),
    Row("softmax and norm", "layer_norm", "F.layer_norm(a, w.shape, w, w)", _NORM, strided=True),
    Row("softmax and norm", "layer_norm backward", "torch.autograd.grad(F.layer_norm(a, a.shape[1:]), a, g)", _AG),
    Row(
        "softmax and norm",
        "cross_entropy",
        "torch.autograd.grad(F.cross_entropy(a, y), a)",
        {"a": normal("M N", gradient=True), "y": index("N", "M")},
    ),
    Row("matmul", "mm", "a @ b", {"a": normal("M K"), "b": normal("K N")}, strided=True),
    Row("matmul", "linear", "F.linear(a, w, c)", {"a": normal("M K"), "w": normal("N K"), "c": normal("N")}),
    Row("matmul", "bmm", "a @ b", {"a": normal("B M K"), "b": normal("B K N")}, strided=True),
    Row("matmul", "mv", "a @ x", {"a": normal("M K"), "x": normal("K")}),
    Row("convolution", "3x3", "F.conv2d(x, w, b, padding=1)", _CONVOLUTION),
    *(
        Row(
            "convolution",
            f"{name}{layout} with backward",
            f"torch.autograd.grad({statement}, ({gradients}), g)",
            {name: change(operand) if name in "xwg" else operand for name, operand in operands.items()},
        )
        for name, statement, gradients, operands in (
            ("3x3", "F.conv2d(x, w, b, padding=1)", "x, w, b", _CONVOLUTION),
            ("1x1", "F.conv2d(x, w, b)", "x, w, b", _POINTWISE),
            ("7x7 stride 2", "F.conv2d(x, w, None, 2, 3)", "w,", _STEM),
            ("depthwise 3x3", "F.conv2d(x, w, None, padding=1, groups=x.shape[1])", "x, w", _DEPTHWISE),
        )
        for layout, change in (("", lambda operand: operand), (" channels last", channels_last))
    ),
    Row("attention", "causal", "F.scaled_dot_product_attention(q, k, v, is_causal=True)", _QKV),
    Row("attention", "full", "F.scaled_dot_product_attention(q, k, v)", _QKV),
    Row(
        "attention",
        "causal with backward",
        "torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), g)",
        _QKV_G,
    ),
    Row("indexing", "embedding", "F.embedding(i, t)", _TABLE),
    Row("indexing", "index_select", "t.index_select(0, i)", _TABLE),
    Row("indexing", "index", "t[i]", _TABLE),
    Row("indexing", "gather", "t.gather(0, j)", {"t": normal("V N"), "j": index("V", "T N")}),
    Row("indexing", "index_add", "t.index_add_(0, i, s)", {**_TABLE, "s": normal("T N")}),
    Row("indexing", "masked_fill", "t.masked_fill(m, 0.0)", {**_TABLE, "m": mask("V N")}),
    Row("indexing", "tril", "t.tril()", _TABLE),
    Row("indexing", "index_put", "t[i] = s", {**_TABLE, "s": normal("T N")}),
    Row("indexing", "index_put accumulate", "t.index_put_((i,), s, True)", {**_TABLE, "s": normal("T N")}),
    Row(
        "indexing",
        "scatter_add",
        "t.scatter_add_(0, j, s)",
        {"t": normal("V N"), "j": index("V", "T N"), "s": normal("T N")},
    ),
    Row("indexing", "embedding backward", "torch.autograd.grad(F.embedding(i, t), t, s)", _TABLE_G),
    Row("indexing", "index backward", "torch.autograd.grad(t[i], t, s)", _TABLE_G),
    Row(
        "indexing",
        "embedding_bag",
        "F.embedding_bag(i, t, mode='sum')",
        {"t": normal("V N"), "i": lambda setting: index("V", "T")(setting).view(-1, 8)},
    ),
    Row("normalization", "batch_norm", "F.batch_norm(x, m, v, w, w, True)", _CHANNELS),
    Row("normalization", "batch_norm eval", "F.batch_norm(x, m, v, w, w)", _CHANNELS),
    Row(
        "normalization",
        "batch_norm backward",
        "torch.autograd.grad(F.batch_norm(x, m, v, w, w, True), x, g)",
        _CHANNELS_G,
    ),
    Row("normalization", "group_norm", "F.group_norm(x, 8, w, w)", _CHANNELS),
    Row("normalization", "group_norm backward", "torch.autograd.grad(F.group_norm(x, 8, w, w), x, g)", _CHANNELS_G),
    Row("normalization", "batch_norm channels_last", "F.batch_norm(x, m, v, w, w, True)", _LAST),
    Row("normalization", "group_norm channels_last", "F.group_norm(x, 8, w, w)", _LAST),
    Row("softmax and norm", "rms_norm", "F.rms_norm(a, w.shape, w)", _NORM),
    Row("softmax and norm", "rms_norm backward", "torch.autograd.grad(F.rms_norm(a, a.shape[1:]), a, g)", _AG),
    Row("reduction", "var rows", "a.var(-1)", _A),
    Row("reduction", "max rows", "a.max(-1)", _A),
    Row("reduction", "cumsum rows", "a.cumsum(-1)", _A),
    Row("sorting", "sort", "a.sort(-1)", _A),
    Row("sorting", "topk", "a.topk(10, -1)", _A),
    Row("sorting", "median", "a.median(-1)", _A),
    Row("sorting", "unique", "a.unique()", _A),
    Row("copy", "clone", "a.clone()", _A, strided=True),
    Row("copy", "transpose", "a.t().contiguous()", _A),
    Row("copy", "to float64", "a.double()", _A),
    Row("copy", "cat", "torch.cat((a, b), -1)", _AB),
    Row("copy", "fill", "a.fill_(1.0)", _A),
    *_images("pooling", "max_pool2d 3x3/2", "F.max_pool2d(x, 3, 2, 1)"),
    *_images("pooling", "avg_pool2d 2x2/2", "F.avg_pool2d(x, 2)"),
    *_images("pooling", "adaptive_avg_pool2d 1x1", "F.adaptive_avg_pool2d(x, 1)"),
    *_images("pooling", "adaptive_avg_pool2d 7x7", "F.adaptive_avg_pool2d(x, 7)"),
    *_images("padding", "constant", "F.pad(x, (1, 1, 1, 1))"),
    *_images("padding", "reflect", "F.pad(x, (1, 1, 1, 1), 'reflect')"),
    *_images("resampling", "bilinear x2", "F.interpolate(x, scale_factor=2, mode='bilinear')"),
    *_images("resampling", "nearest x2", "F.interpolate(x, scale_factor=2)"),
    *_images(
        "resampling",
        "bilinear to half",
        "F.interpolate(x, scale_factor=0.5, mode='bilinear', antialias=True)",
        dtypes=FLOATS[:1],  # all that CPU torch has
    ),
    *_images("resampling", "grid_sample", "F.grid_sample(x, p, align_corners=False)", {"p": grid("B H W")}),
    Row("random", "uniform", "a.uniform_()", _A),
    Row("random", "normal", "a.normal_()", _A),
    Row("random", "dropout", "F.dropout(a, 0.1)", _A),
    Row("optimizer", "AdamW fused", "o.step()", {"o": optimizer(torch.optim.AdamW, fused=True)}),
    Row("optimizer", "AdamW foreach", "o.step()", {"o": optimizer(torch.optim.AdamW, foreach=True)}),
    Row("optimizer", "SGD fused", "o.step()", {"o": optimizer(torch.optim.SGD, momentum=0.9, fused=True)}),
)


def cases(quick: bool) -> Iterator[tuple[str, Row, dict[str, int], torch.dtype, bool]]:
    """Yields every case's name and setting; `quick` keeps one dtype, size and layout of each row."""
    for row in ROWS:
        for dtype in row.dtypes[:1] if quick else row.dtypes:
            for dims in SIZES[row.family][:1] if quick else SIZES[row.family]:
                for strided in (False, True) if row.strided and not quick else (False,):
                    lengths = " ".join(f"{dim}={length}" for dim, length in dims.items())
                    layout = " transposed" if strided else ""
                    yield f"{row.name} {str(dtype).removeprefix('torch.')}{layout} {lengths}", row, dims, dtype, strided


def namespace(row: Row, setting: Setting) -> dict[str, Any]:
    """Returns the statement's globals; the same values for every device."""
    torch.manual_seed(0)
    return {"torch": torch, "F": F, **{name: make(setting) for name, make in row.operands.items()}}


def run(device: torch.device, reference: torch.device, budget: Budget, only: str = "") -> Iterator[Result]:
    """Yields the results of the cases whose "family: name" matches the regular expression `only`."""
    chosen = [case for case in cases(budget.quick) if re.search(only, f"{case[1].family}: {case[0]}")]
    # Everything is asked for before anything is waited for: kernels that are not compiled yet are compiled together.
    for _, row, dims, dtype, strided in chosen:
        try:
            exec(row.statement, namespace(row, Setting(dims, dtype, strided, device)))
        except (RuntimeError, TypeError, ValueError):
            continue  # the measurement itself meets the error again and reports it
    with contextlib.suppress(RuntimeError):  # likewise: a kernel that does not compile raises again where it is used
        synchronizer(device)()
    for name, row, dims, dtype, strided in chosen:
        result = Result("kernels", row.family, name, goal=GOAL)
        try:
            sides = [(where, namespace(row, Setting(dims, dtype, strided, where))) for where in (device, reference)]
        except (RuntimeError, TypeError, ValueError) as error:
            yield dataclasses.replace(result, error=f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        yield alternate(result, row.statement, sides, budget)
