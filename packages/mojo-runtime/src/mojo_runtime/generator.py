"""A Philox generator with the state and the draw layout of CUDA's in PyTorch: the same seed gives the same numbers."""

from __future__ import annotations

import secrets
import struct
import threading

from mojo_runtime.arrays import Array
from mojo_runtime.devices import Device, device
from mojo_runtime.launch import launch
from mojo_runtime.spec import KernelSpec
from mojo_runtime.streams import Stream

DEFAULT_SEED = 67280421310721
"""The seed that PyTorch's generators start with."""
BLOCK = 256
"""Threads in a block of the draw layout."""
BLOCKS_PER_MULTIPROCESSOR = 2048 // BLOCK
REFERENCE_MULTIPROCESSORS = 132
"""Draws of devices that have no multiprocessors are laid out as on an H100."""
DISTRIBUTIONS = "mojo_kernels.random.distributions"

_STATE = struct.Struct("<QQ")
_WORD = 1 << 64


def words_per_thread(numel: int, unroll: int, max_blocks: int) -> int:
    """Returns how far one call moves a generator's offset: the 32-bit words that a thread of the grid draws.

    Args:
        numel: The elements that are drawn.
        unroll: Elements per draw of 128 bits.
        max_blocks: The largest grid.
    """
    if numel == 0:
        return 0
    threads = BLOCK * min(-(-numel // BLOCK), max_blocks)
    return 4 * -(-numel // (threads * unroll))


class PhiloxGenerator:
    """Philox 4x32-10 with 64 bits of seed and of offset.

    The function is that of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).

    Every method may be called from any thread.

    Args:
        index: The device whose arrays are filled.
        seed: Where to start.
    """

    def __init__(self, index: int | Device = 0, seed: int = DEFAULT_SEED) -> None:
        self.device = device(index)
        self._lock = threading.Lock()
        self._seed, self._offset = seed % _WORD, 0

    @property
    def max_blocks(self) -> int:
        """How many blocks the grid of the draw layout has at most."""
        gpu = self.device.kind == "gpu"
        return (self.device.cores if gpu else REFERENCE_MULTIPROCESSORS) * BLOCKS_PER_MULTIPROCESSOR

    def manual_seed(self, seed: int) -> PhiloxGenerator:
        """Starts again from a seed, of which the low 64 bits count."""
        with self._lock:
            self._seed, self._offset = seed % _WORD, 0
        return self

    def seed(self) -> int:
        """Starts again from a fresh seed of the operating system and returns it."""
        value = secrets.randbits(64)
        self.manual_seed(value)
        return value

    @property
    def initial_seed(self) -> int:
        """The seed."""
        return self._seed

    @property
    def state(self) -> bytes:
        """The state: 16 bytes, the seed and the offset as little-endian 64-bit words, as CUDA's generator has it.

        Setting it raises ValueError for another length or an offset that is no multiple of 4.
        """
        with self._lock:
            return _STATE.pack(self._seed, self._offset)

    @state.setter
    def state(self, state: bytes) -> None:
        if len(state) != _STATE.size:
            raise ValueError(f"a Philox state has {_STATE.size} bytes, not {len(state)}")
        seed, offset = _STATE.unpack(state)
        if offset % 4:
            raise ValueError(f"a Philox offset is a multiple of 4, not {offset}")
        with self._lock:
            self._seed, self._offset = seed, offset

    def advance(self, increment: int) -> tuple[int, int]:
        """Reserves draws.

        Args:
            increment: 32-bit numbers per thread of the grid, rounded up to a multiple of 4.

        Returns:
            Seed and offset to draw from.
        """
        with self._lock:
            offset = self._offset
            self._offset = (offset + -(-increment // 4) * 4) % _WORD
            return self._seed, offset

    def reserve(self, numel: int, unroll: int) -> list[int]:
        """Reserves the draws of one fill.

        Args:
            numel: How many elements.
            unroll: Elements per draw of 128 bits.

        Returns:
            What random kernels take first: seed, offset, max_blocks; seed and offset as int64 words.
        """
        words = self.advance(words_per_thread(numel, unroll, self.max_blocks))
        return [*(word - _WORD if word >= _WORD // 2 else word for word in words), self.max_blocks]

    def uniform(self, out: Array, low: float = 0.0, high: float = 1.0, stream: Stream | None = None) -> Array:
        """Fills an array with numbers from [low, high).

        Args:
            out: A contiguous floating array of the generator's device.
            low: The lower end.
            high: The upper end.
            stream: By default the current one.

        Returns:
            The array.

        Raises:
            ValueError: The array is not contiguous or of another device.
        """
        return self._fill(out, KernelSpec(DISTRIBUTIONS, "uniform", dtype=out.dtype), (low, high), stream)

    def normal(self, out: Array, mean: float = 0.0, std: float = 1.0, stream: Stream | None = None) -> Array:
        """Fills an array with normal numbers.

        Args:
            out: A contiguous floating array of the generator's device.
            mean: The mean.
            std: The standard deviation.
            stream: By default the current one.

        Returns:
            The array.

        Raises:
            ValueError: The array is not contiguous or of another device.
        """
        spec = KernelSpec(DISTRIBUTIONS, "normal", dtype=out.dtype, logarithmic=False)
        return self._fill(out, spec, (mean, std), stream)

    def _fill(self, out: Array, spec: KernelSpec, values: tuple[float, float], stream: Stream | None) -> Array:
        if out.device != self.device or not out.is_contiguous:
            raise ValueError(f"{out!r} is not a contiguous array of {self.device}")
        if out.size:
            unroll = 2 if out.dtype == "float64" else 4
            launch(spec, [out], [*self.reserve(out.size, unroll), *map(float, values)], stream)
        return out
