"""Fragment layouts of mma.sync.m16n8kK and the product itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import arithmetic
from .memory import Array


def _halves(register: Array, dtype: str) -> Array:
    """The two 16-bit floats of each register, (warps, 32, 2), as float32."""
    halves = np.ascontiguousarray(register).view(np.uint16).reshape(register.shape[0], 32, 2)
    return arithmetic.bf16_to_f32(halves) if dtype == "bf16" else halves.view(np.float16).astype(np.float32)


def mma(
    shape: str, dtype: str, a: Sequence[Array], b: Sequence[Array], c: Sequence[Array], accumulator: str
) -> list[Array]:
    """D = A @ B + C for every warp.

    Sums in float64 and rounds once: hardware may differ in the last bits. Fragment layouts are those of the PTX ISA,
    "Matrix Fragments for mma.m16n8k*", with g = lane / 4 and t = lane % 4.

    Args:
        shape: "m16n8kK".
        dtype: Of A and B: f16, bf16, tf32, s8 or u8.
        a: A's registers, each (warps, 32) uint32.
        b: B's registers.
        c: C's registers.
        accumulator: Of C and D: f32, f16 or s32.

    Returns:
        D's registers, flat.

    Raises:
        NotImplementedError: Another operand or accumulator type.
    """
    k = int(shape[shape.index("k") + 1 :])
    warps = a[0].shape[0]
    lane = np.arange(32)
    g, t = lane >> 2, lane & 3
    matrix_a, matrix_b = np.zeros((warps, 16, k)), np.zeros((warps, k, 8))
    if dtype in ("f16", "bf16"):
        for r, register in enumerate(a):
            values = _halves(register, dtype)
            for e in range(2):
                matrix_a[:, g + 8 * (r & 1), 2 * t + e + 8 * (r >> 1)] = values[:, :, e]
        for r, register in enumerate(b):
            values = _halves(register, dtype)
            for e in range(2):
                matrix_b[:, 2 * t + e + 8 * r, g] = values[:, :, e]
    elif dtype == "tf32":
        for r, register in enumerate(a):
            matrix_a[:, g + 8 * (r & 1), t + 4 * (r >> 1)] = arithmetic.tf32(_floats(register))
        for r, register in enumerate(b):
            matrix_b[:, t + 4 * r, g] = arithmetic.tf32(_floats(register))
    elif dtype in ("s8", "u8"):
        element = np.int8 if dtype == "s8" else np.uint8
        for r, register in enumerate(a):
            values = np.ascontiguousarray(register).view(element).reshape(warps, 32, 4)
            for e in range(4):
                matrix_a[:, g + 8 * (r & 1), 4 * t + e + 16 * (r >> 1)] = values[:, :, e]
        for r, register in enumerate(b):
            values = np.ascontiguousarray(register).view(element).reshape(warps, 32, 4)
            for e in range(4):
                matrix_b[:, 4 * t + e + 16 * r, g] = values[:, :, e]
    else:
        raise NotImplementedError(f"mma operand type {dtype}")
    product = matrix_a @ matrix_b
    places = [(g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)]
    if accumulator == "f32":
        return [
            (product[:, i, j] + _floats(register)).astype(np.float32).view(np.uint32).reshape(-1)
            for (i, j), register in zip(places, c, strict=True)
        ]
    if accumulator == "s32":
        return [
            (product[:, i, j].astype(np.int64) + np.ascontiguousarray(register).view(np.int32))
            .astype(np.uint32)
            .reshape(-1)
            for (i, j), register in zip(places, c, strict=True)
        ]
    if accumulator == "f16":
        result = []
        for r, register in enumerate(c):
            halves = np.ascontiguousarray(register).view(np.float16).reshape(warps, 32, 2)
            sums = np.stack(
                [product[:, places[2 * r + e][0], places[2 * r + e][1]] + halves[:, :, e] for e in range(2)], -1
            )
            result.append(np.ascontiguousarray(sums.astype(np.float16)).view(np.uint32).reshape(-1))
        return result
    raise NotImplementedError(f"mma accumulator type {accumulator}")


def _floats(register: Array) -> Array:
    return np.ascontiguousarray(register).view(np.float32)
