"""Every kernel that the frontend can ask for, for `prebuild`, the GPU checks and the op listing."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from mojo_runtime.aten import fill_key, key_template, rows
from mojo_runtime.aten.table import ALL, FLOATING, MOVED, NUMERIC, Row
from torch_mojo_eager.ops import registry

COPIED = (*ALL, "uint16", "uint32", "uint64", "complex64")
_FILLS = "mojo_kernels.random.distributions"

# Kernels that the shim's C++ launches by itself.
_SHIM: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("mojo_kernels.copy:copy[dtype={0}]", (("uint8", "uint16", "uint32", "uint64"),)),
    ("mojo_kernels.copy:cast[destination={0},source={1}]", (ALL, ALL)),
    ("mojo_kernels.fill:fill[dtype={0}]", (ALL,)),
    ("mojo_kernels.convolution.convolve:convolve[dtype={0}]", ((*FLOATING, "int64"),)),
    ("mojo_kernels.convolution.weight:weight_gradient[dtype={0}]", ((*FLOATING, "int64"),)),
    ("mojo_kernels.indexing.gather_scatter:gather[dtype={0},index=int64,indices=slices]", (MOVED,)),
    *(
        (f"mojo_kernels.indexing.advanced:index[count={count},dtype={{0}},op={action}]", (dtypes,))
        for count in (1, 2, 3)
        for action, dtypes in (("get", MOVED), ("set", MOVED), ("add", ALL))
    ),
    ("mojo_kernels.attention.forward:forward[dtype={0}]", (FLOATING,)),
    ("mojo_kernels.attention.backward:backward[dtype={0}]", (FLOATING,)),
    (f"{_FILLS}:uniform[dtype={{0}}]", (FLOATING,)),
    *((f"{_FILLS}:normal[dtype={{0}},logarithmic={flag}]", (FLOATING,)) for flag in ("false", "true")),
    *((f"{_FILLS}:integer[dtype={{0}},wide={flag}]", (NUMERIC,)) for flag in ("false", "true")),
    (f"{_FILLS}:bernoulli[dtype={{0}}]", (NUMERIC,)),
    *((f"{_FILLS}:inverse[dtype={{0}},kind={kind}]", (FLOATING,)) for kind in ("exponential", "cauchy")),
    (f"{_FILLS}:inverse[dtype={{0}},kind=geometric]", (NUMERIC,)),
    ("mojo_kernels.random.dropout:dropout[dtype={0}]", (FLOATING,)),
    ("mojo_kernels.random.dropout:backward[dtype={0}]", (FLOATING,)),
    ("mojo_kernels.random.dropout:bernoulli[dtype={0},probability={1}]", (NUMERIC, FLOATING)),
    ("mojo_kernels.normalization.layer_norm:forward[dtype={0}]", (FLOATING,)),
    ("mojo_kernels.normalization.layer_norm:backward[dtype={0}]", (FLOATING,)),
)

# The ops that the shim registers by itself: overloads, dtypes, description.
_CPP_OPS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("_copy_from _copy_from_and_resize", COPIED, "Copies within and between devices."),
    ("_local_scalar_dense", COPIED, "The value of one element, for which the host waits."),
    ("fill_.Scalar fill_.Tensor zero_", (*ALL, "complex64"), "Writes one value everywhere."),
    ("arange.start_out", NUMERIC, "start, start + step, ... below `end`."),
    ("empty.memory_format empty_strided _efficientzerotensor", COPIED, "Memory that holds anything."),
    ("resize_ set_.source_Tensor set_.source_Storage set_.source_Storage_storage_offset", COPIED, "Other memory."),
    ("as_strided view _reshape_alias unfold view_as_real view_as_complex", COPIED, "A view."),
    ("record_stream _has_compatible_shallow_copy_type", COPIED, "Bookkeeping."),
    ("index.Tensor _index_put_impl_", (*ALL, "complex64"), "Reads and writes at positions that tensors hold."),
    ("index_select index_select.out", (*ALL, "complex64"), "Slices at given positions of a dimension."),
    ("embedding_dense_backward", FLOATING, "The gradient of an embedding table."),
    (
        "_embedding_bag _embedding_bag_forward_only",
        FLOATING,
        "Sums, means or maxima of the rows that bags look up; the bag of each lookup, bag sizes, rows of maxima.",
    ),
    ("convolution_overrideable", (*FLOATING, "int64"), "Convolution, transposed or not, of 1 to 3 dimensions."),
    ("convolution_backward_overrideable", FLOATING, "The gradients of a convolution."),
    ("_fused_sdp_choice", FLOATING, "Which attention is chosen: ours where it can be."),
    ("_scaled_dot_product_fused_attention_overrideable", FLOATING, "Attention, in one pass over keys and values."),
    ("_scaled_dot_product_fused_attention_overrideable_backward", FLOATING, "The gradients of attention."),
    ("native_layer_norm native_layer_norm_backward", FLOATING, "Layer normalization and its gradients."),
    ("_fused_rms_norm _fused_rms_norm_backward", FLOATING, "Normalization by the root mean square and its gradients."),
    ("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats", FLOATING, "Batch normalization."),
    ("native_batch_norm_backward", FLOATING, "The gradients of batch normalization."),
    ("native_group_norm native_group_norm_backward", FLOATING, "Group normalization and its gradients."),
    ("native_dropout native_dropout_backward", FLOATING, "Dropout and its gradient."),
    ("uniform_ normal_ exponential_ cauchy_ log_normal_", FLOATING, "Random numbers, as CUDA draws them."),
    ("geometric_ random_ random_.from random_.to", NUMERIC, "Random numbers, as CUDA draws them."),
    ("bernoulli_.Tensor bernoulli_.float", NUMERIC, "1 with a probability, else 0."),
)


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel and what asks for it.

    Attributes:
        key: The KernelSpec key.
        op: The row's aten overload, or "".
        dtypes: The dtypes of the key's placeholders.
        row: The op's row, or None.
    """

    key: str
    op: str
    dtypes: tuple[str, ...]
    row: Row | None


def _combinations(template: str, op: str, allowed: Sequence[Sequence[str]], row: Row | None) -> Iterator[Kernel]:
    for dtypes in itertools.product(*allowed):
        yield Kernel(fill_key(template, dtypes), op, dtypes, row)


def kernels(dtypes: Sequence[str] | None = None) -> Iterator[Kernel]:
    """Yields every kernel of the rows, the shim and the Python ops once, in a stable order.

    Args:
        dtypes: Only kernels all of whose dtypes are among these; None for all.
    """
    seen: set[str] = set()

    def fresh(found: Iterator[Kernel]) -> Iterator[Kernel]:
        for kernel in found:
            wanted = dtypes is None or all(dtype in dtypes for dtype in kernel.dtypes)
            if wanted and kernel.key not in seen:
                seen.add(kernel.key)
                yield kernel

    for template, allowed in _SHIM:
        yield from fresh(_combinations(template, "", allowed, None))
    for row in rows():
        template, _, allowed = key_template(row)
        yield from fresh(_combinations(template, row.name, allowed, row))
        if row.complex == "bits":
            fixed = [("uint64",) if i == 0 else names for i, names in enumerate(allowed)]
            yield from fresh(_combinations(template, row.name, fixed, None))
        elif row.complex:
            yield from fresh(iter([Kernel(registry.complex_key(row), row.name, ("complex64",), None)]))
    for template, allowed in registry.python_kernels():
        yield from fresh(_combinations(f"mojo_kernels.{template}", "", allowed, None))


@dataclasses.dataclass(frozen=True)
class Listing:
    """One line of the op listing: the overload, the dtypes it takes, "native" or "Python", and what it does."""

    name: str
    dtypes: tuple[str, ...]
    path: str
    doc: str


def listing() -> list[Listing]:
    """Returns every op that the frontend registers, sorted by name."""
    lines: list[Listing] = []
    python = registry.python_ops()
    for row in rows():
        forms = (row.name, *registry.forms_of(row.name))
        complex_form = ("complex64",) if row.complex or registry.has_complex_form(row.name) else ()
        dtypes = (*row.dtypes, *complex_form)
        lines.extend(Listing(name, dtypes, "native", row.doc) for name in forms if name and name not in python)
    for names, dtypes, doc in _CPP_OPS:
        lines.extend(Listing(name, dtypes, "native", doc) for name in names.split())
    for name, function in python.items():
        doc = (function.__doc__ or "").partition("\n")[0]
        lines.extend(Listing(form, (), "Python", doc) for form in (name, *registry.structured_forms(name)))
    listed = {line.name for line in lines}
    for out, name, _ in registry.added_out_forms():
        if out not in listed:
            doc = (python[name].__doc__ or "").partition("\n")[0]
            lines.append(Listing(out, (), "Python", doc))
    return sorted(lines, key=lambda line: line.name)


def missing(script: str, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Runs a program to its end and yields lines that say which ops it lacks."""
    from torch_mojo_eager.missing import missing_ops

    yield from missing_ops(script, arguments)


__all__ = ["Kernel", "Listing", "kernels", "listing", "missing"]
