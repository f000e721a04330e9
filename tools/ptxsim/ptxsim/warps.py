"""Shuffles, votes, warp reductions and matrix instructions of many warps at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import tensor_core
from .accesses import MemoryOperations
from .errors import PtxError
from .memory import Array
from .state import I64, U32, U64


class WarpOperations(MemoryOperations):
    """Warp instructions as generated code uses them."""

    def shuffle(
        self, mode: str, a: Array, b: Array, c: Array, active: Array | None, n: int, line: int
    ) -> tuple[Array, Array]:
        """shfl.sync; returns the values and whether the source lane was in range."""
        a = np.broadcast_to(a, (n,))
        threads = self.members(active)
        lane = (self.lane if active is None else self.lane[active]).astype(I64)
        clamp, segment = np.asarray(c & U32(31)).astype(I64), np.asarray((c >> U32(8)) & U32(31)).astype(I64)
        distance = np.asarray(b & U32(31)).astype(I64)
        last = (lane & segment) | (clamp & ~segment & 31)
        if mode == "up":
            source = lane - distance
            in_range = source >= last
        else:
            source = {
                "down": lane + distance,
                "bfly": lane ^ distance,
                "idx": (lane & segment) | (distance & ~segment & 31),
            }[mode]
            in_range = source <= last
        source = threads - lane + np.where(in_range, source, lane)
        if n == self.n and self.whole_warps:
            return a[source], in_range
        values = np.zeros(self.n + 32, a.dtype)
        takes_part = np.zeros(self.n + 32, bool)
        values[threads], takes_part[threads] = a, True
        warp = np.full(self.n + 32, -1, I64)
        warp[: self.n] = self.warp
        inactive = ~(takes_part[source] & (warp[source] == self.warp[threads]))
        if inactive.any():
            self.hazard("shuffle-inactive", line, active, inactive, "shuffles from a lane that does not take part")
        return values[source], in_range

    def ballot(self, predicate: Any, active: Array | None, n: int) -> Array:
        """Per thread the bits of its warp's active threads whose predicate holds."""
        threads = self.members(active)
        voting = threads[np.broadcast_to(predicate, (n,))]
        bits = np.zeros(self.warps, U32)
        np.bitwise_or.at(bits, self.warp[voting], U32(1) << self.lane[voting])
        return bits[self.warp[threads]]

    def active_mask(self, active: Array | None, n: int) -> Array:
        """Per thread the bits of its warp's active threads."""
        return self.ballot(np.True_, active, n)

    def warp_reduce(self, function: np.ufunc, a: Array, active: Array | None, n: int) -> Array:
        """redux.sync with a NumPy function."""
        warp = self.warp[self.members(active)]
        order = np.argsort(warp, kind="stable")
        ordered = warp[order]
        start = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        values = np.broadcast_to(a, (n,))[order]
        reduced = function.reduceat(values, start, dtype=values.dtype)
        result = np.empty(n, values.dtype)
        result[order] = np.repeat(reduced, np.diff(np.r_[start, n]))
        return result

    def match_any(self, a: Array, active: Array | None, n: int) -> Array:
        """match.any.sync: the bits of the threads of the warp with an equal value."""
        threads = self.members(active)
        key = np.stack([self.warp[threads].astype(U64), np.broadcast_to(a, (n,)).astype(U64)], 1)
        _, group = np.unique(key, axis=0, return_inverse=True)
        group = group.reshape(-1)
        bits = np.zeros(group.max() + 1, U32)
        np.bitwise_or.at(bits, group, U32(1) << self.lane[threads])
        return bits[group]

    def warp_barrier(self, active: Array | None) -> None:
        """bar.warp.sync orders memory among the threads of a warp."""
        self.stamp[self.members(active)] += 1

    # ---- matrices ----

    def _whole_warps(self, active: Array | None, n: int, line: int) -> int:
        lane = self.lane if active is None else self.lane[active]
        if n % 32 or (lane != np.arange(n) % 32).any():
            raise PtxError(f"PTX line {line}: a matrix instruction is executed by a part of a warp")
        return n // 32

    def load_matrices(
        self, address: Array, active: Array | None, n: int, count: int, transposed: bool, line: int
    ) -> list[Array]:
        """ldmatrix: thread 8 k + i gives the address of row i of matrix k; every thread gets two elements of each."""
        warps = self._whole_warps(active, n, line)
        rows = np.broadcast_to(address, (n,)).reshape(warps, 32)
        threads = self.members(active).reshape(warps, 32)
        result = []
        for k in range(count):
            part = slice(8 * k, 8 * k + 8)
            row, thread = rows[:, part].reshape(-1), threads[:, part].reshape(-1)
            words = np.stack(self.load("shared", row, thread, len(row), 4, 4, line, False), 1)
            matrix = np.ascontiguousarray(words.reshape(warps, 8, 4)).view(np.uint16)
            if transposed:
                matrix = matrix.transpose(0, 2, 1)
            result.append(np.ascontiguousarray(matrix).reshape(warps, 64).view(U32).reshape(n))
        return result

    def mma(
        self,
        shape: str,
        dtype: str,
        a: list[Array],
        b: list[Array],
        c: list[Array],
        accumulator: str,
        active: Array | None,
        n: int,
        line: int,
    ) -> list[Array]:
        """mma.sync: registers in, registers out; see `tensor_core.mma`."""
        warps = self._whole_warps(active, n, line)
        first, second, third = ([np.broadcast_to(x, (n,)).reshape(warps, 32) for x in operand] for operand in (a, b, c))
        return tensor_core.mma(shape, dtype, first, second, third, accumulator)
