"""Padding, interpolation and sampling over one to three dimensions.

The kernels' first scalars say what is done, and along how many dimensions: mojo_kernels/resampling/axis.mojo.
"""

from __future__ import annotations

from mojo_runtime.aten.table import FLOATING, NUMERIC, Native, Row

CONSTANT, REFLECT, REPLICATE = "=1", "=2", "=3"
NEAREST, NEAREST_EXACT = "=6", "=7"
LINEAR, CUBIC = "=8", "=9"
LINEAR_AA, CUBIC_AA, LANCZOS_AA = "=10", "=11", "=12"
PRECISE = ("float32", "float64")

SCALES = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}
COPIED = (*FLOATING, "uint8")


def _padding(mode: str, kind: str, rank: int) -> Native:
    return Native(
        name=f"{mode}_pad{rank}d.out",
        kernel="mapping:mapped_copy",
        tensors=("out", "self"),
        scalars=(kind, "padding"),
        dtypes=NUMERIC,
        doc=f"Padding by {mode} over {rank} dimensions.",
    )


def _nearest(name: str, kind: str, rank: int) -> Native:
    return Native(
        name=f"{name}{rank}d.out",
        kernel="mapping:mapped_copy",
        tensors=("out", "self"),
        scalars=(kind, f"={rank}", *SCALES[rank]),
        dtypes=COPIED,
        doc=f"Interpolation by the nearest element over {rank} dimensions.",
    )


def _padding_backward(mode: str, kind: str, rank: int) -> Native:
    return Native(
        name=f"{mode}_pad{rank}d_backward.grad_input",
        kernel="resampling.separable:resample_backward",
        tensors=("grad_input", "grad_output"),
        scalars=(kind, "padding"),
        dtypes=FLOATING,
        doc=f"Gradient of padding by {mode} over {rank} dimensions.",
    )


def _interpolation(
    name: str, kind: str, rank: int, *, backward: bool, aligned: bool = True, dtypes: tuple[str, ...] = FLOATING
) -> Native:
    """Interpolation by weighted sums, or its gradient; `aligned` where there is an argument align_corners."""
    tensors = ("grad_input", "grad_output") if backward else ("out", "self")
    return Native(
        name=f"{name}_backward.grad_input" if backward else f"{name}.out",
        kernel=f"resampling.separable:resample{'_backward' if backward else ''}",
        tensors=tensors,
        scalars=(kind, f"={rank}", *(("align_corners",) if aligned else ()), *SCALES[rank]),
        parameters=(("dtype", tensors[1]),),
        dtypes=dtypes,
        doc=f"{'Gradient of i' if backward else 'I'}nterpolation over {rank} dimensions.",
    )


INTERPOLATIONS = (
    ("upsample_linear1d", LINEAR, 1, FLOATING),
    ("upsample_bilinear2d", LINEAR, 2, FLOATING),
    ("upsample_trilinear3d", LINEAR, 3, FLOATING),
    ("upsample_bicubic2d", CUBIC, 2, FLOATING),
    ("_upsample_bilinear2d_aa", LINEAR_AA, 2, PRECISE),
    ("_upsample_bicubic2d_aa", CUBIC_AA, 2, PRECISE),
)

ROWS: tuple[Row, ...] = (
    Native(
        name="constant_pad_nd.out",
        kernel="mapping:mapped_copy",
        tensors=("out", "self"),
        scalars=(CONSTANT, "pad", "value"),
        doc="Padding of any dimensions with a number.",
    ),
    *(
        row(mode, kind, rank)
        for row in (_padding, _padding_backward)
        for mode, kind in (("reflection", REFLECT), ("replication", REPLICATE))
        for rank in (1, 2, 3)
    ),
    *(_nearest("upsample_nearest", NEAREST, rank) for rank in (1, 2, 3)),
    *(_nearest("_upsample_nearest_exact", NEAREST_EXACT, rank) for rank in (1, 2, 3)),
    *(
        _interpolation(f"{name}{rank}d", kind, rank, backward=True, aligned=False)
        for name, kind in (("upsample_nearest", NEAREST), ("_upsample_nearest_exact", NEAREST_EXACT))
        for rank in (1, 2, 3)
    ),
    *(
        _interpolation(name, kind, rank, backward=backward, dtypes=dtypes)
        for backward in (False, True)
        for name, kind, rank, dtypes in INTERPOLATIONS
    ),
    *(
        Native(
            name=f"grid_sampler_{rank}d{backward}.out",
            kernel=f"resampling.grid_sampler:grid_sample{backward}",
            tensors=(*outputs, "input", "grid"),
            scalars=("interpolation_mode", "padding_mode", "align_corners"),
            parameters=(("dtype", "input"),),
            dtypes=FLOATING,
            doc=f"{doc} at positions of a grid over {rank} dimensions.",
        )
        for rank in (2, 3)
        for backward, outputs, doc in (
            ("", ("out",), "Samples"),
            ("_backward", ("out0", "out1", "grad_output"), "Gradients of samples"),
        )
    ),
    _interpolation("_upsample_lanczos2d_aa", LANCZOS_AA, 2, backward=False, dtypes=PRECISE),
)
