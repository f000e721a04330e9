"""The Philox 4x32-10 generator, counter for counter as cuRAND uses it.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). A draw's counter is 128 bits: the low half counts the
draws of one subsequence, the high half is the subsequence; the key is the seed.
"""

from std.math import iota

comptime _M0 = UInt64(0xD2511F53)
comptime _M1 = UInt64(0xCD9E8D57)
comptime _W0 = UInt32(0x9E3779B9)
comptime _W1 = UInt32(0xBB67AE85)


@fieldwise_init
struct Block[w: Int](TrivialRegisterPassable):
    """The 128 bits of one draw, for `w` draws at once.

    Parameters:
        w: The vector width.
    """

    var x: SIMD[DType.uint32, Self.w]
    """The first 32 bits."""
    var y: SIMD[DType.uint32, Self.w]
    """The second 32 bits."""
    var z: SIMD[DType.uint32, Self.w]
    """The third 32 bits."""
    var w_bits: SIMD[DType.uint32, Self.w]
    """The last 32 bits."""

    @inline(.always)
    def get[i: Int](self) -> SIMD[DType.uint32, Self.w]:
        """One of the four words.

        Parameters:
            i: Which, from 0.

        Returns:
            The word of every draw.
        """
        comptime if i == 0:
            return self.x
        elif i == 1:
            return self.y
        elif i == 2:
            return self.z
        else:
            return self.w_bits


@inline(.always)
def philox[
    w: Int
](seed: UInt64, subsequence: SIMD[DType.uint64, w], count: UInt64) -> Block[w]:
    """Draws 128 random bits for each of `w` subsequences.

    Parameters:
        w: The vector width.

    Args:
        seed: The key.
        subsequence: The high halves of the counters.
        count: The low half of the counters: how many draws came before.

    Returns:
        The bits.
    """
    comptime Half = SIMD[DType.uint32, w]
    var x = Half(count.cast[DType.uint32]())
    var y = Half((count >> 32).cast[DType.uint32]())
    var z = subsequence.cast[DType.uint32]()
    var v = (subsequence >> 32).cast[DType.uint32]()
    var k0 = seed.cast[DType.uint32]()
    var k1 = (seed >> 32).cast[DType.uint32]()
    comptime for _ in range(10):
        var p0 = x.cast[DType.uint64]() * _M0
        var p1 = z.cast[DType.uint64]() * _M1
        var next_x = (p1 >> 32).cast[DType.uint32]() ^ y ^ k0
        var next_z = (p0 >> 32).cast[DType.uint32]() ^ v ^ k1
        y = p1.cast[DType.uint32]()
        v = p0.cast[DType.uint32]()
        x = next_x
        z = next_z
        k0 += _W0
        k1 += _W1
    return Block[w](x, y, z, v)


@inline(.always)
def subsequences[w: Int](first: Int) -> SIMD[DType.uint64, w]:
    """The numbers of `w` neighbouring subsequences.

    Parameters:
        w: How many.

    Args:
        first: The first number.

    Returns:
        `first`, `first + 1` and so on.
    """
    return iota[DType.uint64, w](UInt64(first))


@inline(.always)
def uniform_float32[
    w: Int
](bits: SIMD[DType.uint32, w]) -> SIMD[DType.float32, w]:
    """Maps 32 bits to (0, 1] as `curand_uniform` does.

    Parameters:
        w: The vector width.

    Args:
        bits: Random bits.

    Returns:
        `bits * 2^-32 + 2^-33`, rounded to float32.
    """
    return bits.cast[DType.float32]() * Float32(2.3283064e-10) + Float32(
        2.3283064e-10 / 2
    )


@inline(.always)
def uniform_float64[
    w: Int
](low: SIMD[DType.uint32, w], high: SIMD[DType.uint32, w]) -> SIMD[
    DType.float64, w
]:
    """Maps 64 bits to (0, 1] as `curand_uniform_double` does.

    Parameters:
        w: The vector width.

    Args:
        low: Random bits.
        high: Random bits, of which the upper ones count.

    Returns:
        `(low ^ high << 21) * 2^-53 + 2^-54`.
    """
    var bits = low.cast[DType.uint64]() ^ (high.cast[DType.uint64]() << 21)
    return bits.cast[DType.float64]() * Float64(
        1.1102230246251565e-16
    ) + Float64(5.551115123125783e-17)
