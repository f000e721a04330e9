"""What is checked: nodes, each an entry of the operator database, a kind of check and a dtype."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import torch

FIVE = ("float32", "bfloat16", "float16", "int64", "bool")
NINE = (*FIVE, "float64", "int32", "uint8", "complex64")
KINDS = ("forward", "noncontiguous", "out", "inplace", "gradient", "gradcheck", "errors")

_PREFIXES = {
    "linalg.": "linear algebra",
    "fft.": "fft",
    "special.": "special functions",
    "masked.": "masked",
    "signal.": "windows",
    "sparse.": "sparse",
    "nn.functional.": "neural networks",
    "index_": "indexing",
    "scatter": "indexing",
    "new_": "creation",
    "rand": "random",
    "normal": "random",
}
_NAMES = {
    "linear algebra": """addmm addmv addbmm baddbmm dot vdot bmm mv addr mm outer inner tensordot einsum kron matmul
        __rmatmul__ matrix_exp cholesky cholesky_inverse cholesky_solve lu lu_solve lu_unpack geqrf ormqr
        svd svd_lowrank pca_lowrank pinverse triangular_solve logdet qr cdist cross trace norm norm.nuc
        norm.fro norm.inf renorm cov corrcoef dist""",
    "fft": "stft istft",
    "creation": """arange linspace linspace.tensor_overload logspace logspace.tensor_overload empty empty_like
        empty_strided empty_permuted zeros zeros_like ones ones_like full full_like eye scalar_tensor
        tril_indices triu_indices""",
    "random": "bernoulli cauchy exponential geometric log_normal multinomial uniform",
    "indexing": """gather take put take_along_dim __getitem__ masked_fill masked_scatter masked_select nonzero
        nonzero_static argwhere where _unsafe_masked_index _unsafe_masked_index_put_accumulate
        select_scatter slice_scatter diagonal_scatter as_strided_scatter""",
    "sorting": """sort argsort msort topk kthvalue mode median nanmedian unique unique_consecutive searchsorted
        bucketize isin quantile nanquantile""",
    "reductions": """cumsum cumprod cummax cummin logcumsumexp logsumexp aminmax var_mean var_mean.unbiased std_mean
        std_mean.unbiased max.reduction_with_dim max.reduction_no_dim min.reduction_with_dim
        min.reduction_no_dim count_nonzero trapz trapezoid cumulative_trapezoid""",
    "histograms": "histogram histogramdd histc bincount",
    "complex": """view_as_real view_as_complex complex polar real imag angle conj conj_physical resolve_conj
        resolve_neg""",
    "neural networks": """softmax softmax.with_dtype log_softmax log_softmax.with_dtype _softmax_backward_data
        native_group_norm native_layer_norm native_batch_norm _native_batch_norm_legit
        _batch_norm_with_update constant_pad_nd grid_sampler_2d grid_sampler_3d _upsample_bilinear2d_aa
        max_pool2d_with_indices_backward native_dropout_backward""",
}
_CLASSES = {
    "UnaryUfuncInfo": "unary",
    "BinaryUfuncInfo": "binary",
    "ReductionOpInfo": "reductions",
    "SpectralFuncInfo": "fft",
}


@dataclasses.dataclass(frozen=True, order=True)
class Node:
    """One check.

    Attributes:
        op: The entry's name with its variant, e.g. "max.reduction_with_dim".
        kind: One of `KINDS`.
        dtype: A torch dtype's name; of error inputs, whose dtypes the entry chooses, "any".
    """

    op: str
    kind: str
    dtype: str


@functools.cache
def operators() -> dict[str, Any]:
    """Returns the entries of the operator database by name with variant."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, Any] = {}
    for entry in op_db:
        assert entry.full_name not in found, entry.full_name
        found[entry.full_name] = entry
    return found


@functools.cache
def family_of(op: str) -> str:
    """Returns the family that an entry is counted in."""
    for family, names in _NAMES.items():
        if op in names.split():
            return family
    for prefix, family in _PREFIXES.items():
        if op.startswith(prefix):
            return family
    return _CLASSES.get(type(operators()[op]).__name__, "shape and others")


def nodes_of(op: str, kinds: tuple[str, ...] = KINDS, dtypes: tuple[str, ...] = NINE) -> Iterator[Node]:
    """Yields the nodes of an entry: the dtypes and variants that torch's CPU device has."""
    entry = operators()[op]
    supported = [name for name in dtypes if getattr(torch, name) in entry.dtypes]
    differentiable = entry.supported_backward_dtypes("cpu") if entry.supports_autograd else ()
    of_gradients = {"gradient": "float32", "gradcheck": "float64"}
    has = {
        "forward": True,
        "noncontiguous": True,
        "out": entry.supports_out,
        "inplace": entry.get_inplace() is not None,
    }
    for kind in kinds:
        if has.get(kind):
            yield from (Node(op, kind, dtype) for dtype in supported)
        elif kind in of_gradients:
            dtype = of_gradients[kind]
            if dtype in dtypes and getattr(torch, dtype) in differentiable:
                yield Node(op, kind, dtype)
        elif kind == "errors" and entry.error_inputs_func is not None:
            yield Node(op, kind, "any")
