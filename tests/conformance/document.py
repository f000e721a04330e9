"""Writes docs/operators.md: every aten op of the device, from the op listing, autograd's formulas and the database."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from pathlib import Path

import torch
import torchgen
from tests.conformance import results
from tests.conformance.nodes import NINE, Node, operators

from mojo_runtime.aten.table import FLOATING, INTEGRAL
from torch_mojo_eager.ops.specs import Listing, listing

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
_HEADER = """\
# Operators

Every aten op that the `mojo` device registers; `torch-mojo-backend ops` lists the same, one overload a line. Ops that
PyTorch composes of others (`softmax` of `_softmax`, `linear` of `addmm`) work through them and are not named here.

- *served by*: native ops run no Python when they are called; the others are Python functions that launch kernels.
- *dtypes*: what PyTorch's operator database finds to work of the dtypes that CPU PyTorch has among float32, float64,
  bfloat16, float16, int64, int32, uint8, bool and complex64; of ops that it does not test, what the kernel is made for.
  The column is empty where neither says. "floating" is all four of those; "integers" include int8 and int16.
- *gradient*: "yes" where autograd has a formula; backward ops and views that autograd knows by itself have none.
- *notes* name what the database has and the device lacks, from `tests/conformance/absent.txt`.

Written by `uv run python -m tests.conformance document`; [conformance.md](conformance.md) says how it is measured.

| op | overloads | served by | dtypes | gradient | what it does, notes |
|---|---|---|---|---|---|
"""


def differentiable() -> set[str]:
    """Returns the ops for which torch's autograd has a formula."""
    path = Path(torchgen.__file__).parent / "packaged" / "autograd" / "derivatives.yaml"
    found: set[str] = set()
    for block in re.split(r"^- name: ", path.read_text(), flags=re.MULTILINE)[1:]:
        name, _, body = block.partition("(")
        formulas = re.findall(r"^ +(?!output_differentiability|result|dispatch)[\w, ]+: *(\S+)", body, re.MULTILINE)
        if any(formula not in ("non_differentiable", "auto_linear", "auto_element_wise") for formula in formulas):
            found.add(name.partition(".")[0])
    return found


def _spelled(dtypes: Iterable[str]) -> str:
    left = set(dtypes)
    parts = []
    for name, members in (("floating", set(FLOATING)), ("integers", {"uint8", "int32", "int64"})):
        if members <= left:
            parts.append(name)
            left -= members | (set(INTEGRAL) if name == "integers" else set())
    return ", ".join([*parts, *sorted(left)])


_PARTS = {
    "_fft_c2c": "fft_fft",
    "_fft_c2r": "fft_irfft",
    "_fft_r2c": "fft_rfft",
    "_histogramdd_bin_edges": "histogramdd",
    "_histogramdd_from_bin_cts": "histogramdd",
    "_histogramdd_from_bin_tensors": "histogramdd",
    "_unique2": "unique",
    "linalg_matrix_exp": "matrix_exp",
    "nll_loss2d_backward": "nn.functional.nll_loss",
    "nll_loss2d_forward": "nn.functional.nll_loss",
    "rrelu_with_noise": "nn.functional.rrelu",
    "unique_dim": "unique",
    "unique_dim_consecutive": "unique_consecutive",
}


def _tested_as(base: str, names: Iterable[str]) -> str:
    """The database's name of an op, or of the one that an internal op is a part of."""
    ends = "_helper|_kernel|_interface|_dense|_per_sample_weights|_forward|_only|_backward|_overrideable|_ex"
    trimmed = re.sub(f"({ends})+$", "", base).strip("_")
    candidates = (_PARTS.get(base, base), *(f"{start}{trimmed}" for start in ("", "linalg_", "nn.functional.")))
    return next((name for name in candidates if name in names), base)


def _rows() -> dict[str, list[Listing]]:
    """The lines of the listing by op, with in-place forms among the others."""
    lines = listing()
    names = {line.name.partition(".")[0] for line in lines}
    found: dict[str, list[Listing]] = collections.defaultdict(list)
    for line in lines:
        base = line.name.partition(".")[0]
        if base.endswith("_") and not base.endswith("__") and base[:-1] in names:
            base = base[:-1]
        found[base].append(line)
    return found


def page() -> str:
    """Returns the page."""
    formulas, declared = differentiable(), results.declared()
    entries = collections.defaultdict(list)
    for op, entry in operators().items():
        entries[entry.aten_name].append((op, entry))
    text = []
    for base, lines in sorted(_rows().items()):
        known = entries[_tested_as(base, entries.keys())]
        tested = {name: {op for op, entry in known if getattr(torch, name) in entry.dtypes} for name in NINE}
        absent = {name: {op for op in ops if Node(op, "forward", name) in declared} for name, ops in tested.items()}
        works = [name for name in NINE if tested[name] - absent[name]] or {d for line in lines for d in line.dtypes}
        lacks = [name for name in NINE if absent[name]]
        overloads = ", ".join(f"`{line.name[len(base) :].lstrip('.') or 'default'}`" for line in lines)
        gradient = base in formulas
        doc = next((line.doc for line in lines if line.doc), "")
        note = f" Absent: {_spelled(lacks)}." if lacks else ""
        paths = "/".join(sorted({line.path for line in lines}))
        notes = doc.replace("|", "\\|") + note
        cells = [f"`{base}`", overloads, paths, _spelled(works), "yes" if gradient else "", notes]
        text.append("| " + " | ".join(cells) + " |")
    return _HEADER + "\n".join(text) + "\n"


def write() -> str:
    """Writes the page and returns a summary."""
    PAGE.write_text(page())
    return f"{len(PAGE.read_text().splitlines()) - _HEADER.count(chr(10))} ops in {PAGE.name}"
