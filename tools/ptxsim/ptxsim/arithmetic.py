"""Elementwise PTX arithmetic on NumPy arrays or scalars.

Registers are unsigned integers; these functions take and return values already viewed as the type that the instruction
names. Nothing here knows about threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .memory import Array

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I64 = np.int64
F32, F64 = np.float32, np.float64
SMALLEST_NORMAL_F32 = F32(2.0**-126)


# ---- 16-bit floats -------------------------------------------------------------------------------------------------


def bf16_to_f32(bits: Array) -> Array:
    """The values of bfloat16 bit patterns."""
    return np.asarray((bits.astype(U32) << U32(16)).view(F32))


def f32_to_bf16(x: Array) -> Array:
    """Rounds to nearest even; NaN becomes the canonical 0x7FFF."""
    bits = x.view(U32)
    rounded = ((bits + (U32(0x7FFF) + ((bits >> U32(16)) & U32(1)))) >> U32(16)).astype(U16)
    return np.where(x != x, U16(0x7FFF), rounded).astype(U16)


def f32_to_bf16_rz(x: Array) -> Array:
    """Rounds toward zero; NaN becomes the canonical 0x7FFF."""
    return np.where(x != x, U16(0x7FFF), (x.view(U32) >> U32(16)).astype(U16)).astype(U16)


def f64_to_f32_odd(x: Array) -> Array:
    """Rounds to odd, so that a second rounding to a narrower type is exact."""
    nearest = np.atleast_1d(x).astype(F32)
    bits = nearest.view(U32).copy()
    back = nearest.astype(F64)
    inexact = (back != x) & np.isfinite(nearest)
    bits = np.where(inexact & (np.abs(back) > np.abs(x)), bits - U32(1), bits)
    return np.where(inexact, bits | U32(1), bits).astype(U32).view(F32)


def f64_to_bf16(x: Array) -> Array:
    """Rounds a float64 to bfloat16 once."""
    return f32_to_bf16(f64_to_f32_odd(x))


# ---- integers ------------------------------------------------------------------------------------------------------


def mulhi_u64(a: Array, b: Array) -> Array:
    """The upper half of the 128-bit product."""
    mask, half = U64(0xFFFFFFFF), U64(32)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    low = a_low * b_low
    middle = a_high * b_low + (low >> half)
    other = a_low * b_high + (middle & mask)
    return np.asarray(a_high * b_high + (middle >> half) + (other >> half))


def mulhi_s64(a: Array, b: Array) -> Array:
    """The upper half of the signed 128-bit product; operands and result as unsigned bit patterns."""
    result = mulhi_u64(a, b)
    result = result - np.where(a.view(I64) < 0, b, U64(0))
    return np.asarray(result - np.where(b.view(I64) < 0, a, U64(0)))


def divide(a: Array, b: Array) -> Array:
    """Truncating division; by zero gives all ones, as NVIDIA hardware does."""
    zero = b == 0
    if np.any(zero):
        quotient = divide(a, np.where(zero, b.dtype.type(1), b))
        return np.where(zero, ~a.dtype.type(0), quotient).astype(a.dtype)
    if a.dtype.kind == "u":
        return np.asarray(a // b)
    return np.asarray((a - np.fmod(a, b)) // b)


def remainder(a: Array, b: Array) -> Array:
    """The remainder of the truncating division; by zero gives the dividend."""
    zero = b == 0
    if np.any(zero):
        return np.where(zero, a, np.fmod(a, np.where(zero, b.dtype.type(1), b))).astype(a.dtype)
    return np.asarray(np.fmod(a, b))


def shl(a: Array, count: Array) -> Array:
    """Left shift; counts of the width or more give 0."""
    width = U32(a.dtype.itemsize * 8)
    shifted = a << (count & (width - U32(1))).astype(a.dtype)
    return np.asarray(np.where(count < width, shifted, a.dtype.type(0)).astype(a.dtype))


def shr(a: Array, count: Array) -> Array:
    """Right shift, arithmetic where `a` is signed; counts are clamped to the width."""
    width = U32(a.dtype.itemsize * 8)
    if a.dtype.kind == "i":
        return np.asarray(a >> np.minimum(count, width - U32(1)).astype(a.dtype))
    shifted = a >> (count & (width - U32(1))).astype(a.dtype)
    return np.asarray(np.where(count < width, shifted, a.dtype.type(0)).astype(a.dtype))


def funnel_shift(low: Array, high: Array, count: Array, left: bool, wrap: bool) -> Array:
    """shf: 32 bits of the shifted 64-bit concatenation."""
    count = (count & U32(31)) if wrap else np.minimum(count, U32(32))
    value = (high.astype(U64) << U64(32)) | low.astype(U64)
    count = count.astype(U64)
    return ((value << count) >> U64(32)).astype(U32) if left else (value >> count).astype(U32)


def popc(a: Array) -> Array:
    """The number of one bits."""
    return np.asarray(np.bitwise_count(a).astype(U32))


def clz(a: Array) -> Array:
    """The number of leading zero bits."""
    a = np.atleast_1d(a)
    width, filled = a.dtype.itemsize * 8, a.copy()
    step = 1
    while step < width:
        filled |= filled >> a.dtype.type(step)
        step *= 2
    return (U32(width) - np.bitwise_count(filled).astype(U32)).astype(U32)


def bfind(a: Array, shift_amount: bool = False) -> Array:
    """The position of the most significant bit that differs from the sign, all ones if there is none."""
    if a.dtype.kind == "i":
        a = np.where(a < 0, ~a, a).view(a.dtype.str.replace("i", "u"))
    width = a.dtype.itemsize * 8
    zeros = clz(a)
    position = zeros if shift_amount else U32(width - 1) - zeros
    return np.where(zeros == width, U32(0xFFFFFFFF), position).astype(U32)


def brev(a: Array) -> Array:
    """The bits in reverse order."""
    a = np.atleast_1d(a)
    octets = np.ascontiguousarray(a).view(U8).reshape(-1, a.dtype.itemsize)
    bits = np.unpackbits(octets, axis=1, bitorder="little")[:, ::-1]
    return np.packbits(bits, axis=1, bitorder="little").reshape(-1).view(a.dtype).copy()


def bfe(a: Array, position: Array, length: Array) -> Array:
    """Extracts a bit field, sign-extended where `a` is signed."""
    width = a.dtype.itemsize * 8
    start, count = (position & U32(255)).astype(I64), (length & U32(255)).astype(I64)
    if a.dtype.kind == "u":
        value = shr(a, start.astype(U32))
        ones = ~a.dtype.type(0)
        return np.asarray(value & np.where(count >= width, ones, ~shl(np.full_like(value, ones), count.astype(U32))))
    end = np.minimum(start + count, width)
    value = shl(a.view(a.dtype.str.replace("i", "u")), (width - end).astype(U32)).view(a.dtype)
    result = shr(value, (width - end + np.minimum(start, width)).astype(U32))
    return np.where(count == 0, a.dtype.type(0), result).astype(a.dtype)


def bfi(a: Array, b: Array, position: Array, length: Array) -> Array:
    """Inserts the low bits of `a` into `b` as a bit field."""
    width = b.dtype.itemsize * 8
    position, length = position & U32(255), length & U32(255)
    ones = ~b.dtype.type(0)
    all_ones = np.full(np.shape(b + position.astype(b.dtype)), ones, b.dtype)
    mask = shl(np.where(length >= width, ones, ~shl(all_ones, length)).astype(b.dtype), position)
    return np.asarray((shl(a, position) & mask) | (b & ~mask))


def lop3(a: Array, b: Array, c: Array, table: int) -> Array:
    """Any bitwise function of three operands, given by its truth table."""
    result = np.zeros_like(a | b | c)
    for i in range(8):
        if table >> i & 1:
            result = result | ((a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c))
    return result


def prmt(a: Array, b: Array, selector: Array) -> Array:
    """Picks four of the eight bytes of `b:a`, or their replicated signs."""
    value = (b.astype(U64) << U64(32)) | a.astype(U64)
    result: Any = U32(0)
    for i in range(4):
        choice = (selector >> U32(4 * i)) & U32(15)
        octet = ((value >> ((choice & U32(7)).astype(U64) * U64(8))) & U64(255)).astype(U32)
        sign = np.where(octet & U32(128), U32(255), U32(0))
        octet = np.where(choice & U32(8), sign, octet).astype(U32)
        result = result | (octet << U32(8 * i))
    return np.asarray(result)


def dp4a(a: Array, b: Array, c: Array, a_signed: bool, b_signed: bool) -> Array:
    """The dot product of four bytes plus `c`."""

    def split(x: Array, signed: bool) -> Array:
        x = np.ascontiguousarray(np.atleast_1d(x))
        return x.view(np.int8 if signed else U8).reshape(-1, 4).astype(I64)

    return np.asarray(((split(a, a_signed) * split(b, b_signed)).sum(1) + c.astype(I64)).astype(U32))


# ---- floats --------------------------------------------------------------------------------------------------------


def reciprocal_square_root(x: Array) -> Array:
    """1 / sqrt(x)."""
    return np.asarray(1.0 / np.sqrt(x))


def flush(x: Array) -> Array:
    """Subnormal float32 become zeros of their sign (.ftz)."""
    return np.where(np.abs(x) < SMALLEST_NORMAL_F32, np.copysign(F32(0), x), x).astype(F32)


def saturate(x: Array) -> Array:
    """Clamps to [0, 1]; NaN becomes 0 (.sat)."""
    zero, one = x.dtype.type(0), x.dtype.type(1)
    return np.where(x != x, zero, np.clip(x, zero, one)).astype(x.dtype)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, correctly rounded: through float64, repairing the rare double-rounding cases."""
    product = a.astype(F64) * b
    total = product + c
    sums = np.atleast_1d(total)
    bits = sums.view(U64)
    risky = (bits & U64(0x1FFFFFFF)) == U64(0x10000000)
    risky |= np.abs(sums) < 2.0**-125
    if risky.any():
        addend = np.broadcast_to(np.asarray(c, F64), sums.shape)
        products = np.broadcast_to(product, sums.shape)
        virtual = sums - products
        error = (products - (sums - virtual)) + (addend - virtual)
        fix = risky & (error != 0) & ((bits & U64(1)) == 0) & np.isfinite(sums)
        away = (error > 0) == (sums > 0)
        bits = np.where(fix, np.where(away, bits + U64(1), bits - U64(1)), bits)
        total = bits.view(F64)
    return np.asarray(total.astype(F32))


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c through a double-double product and sum (Dekker, Knuth): at most one rounding off in extreme cases."""
    splitter = F64(134217729.0)
    product = a * b
    scaled = a * splitter
    a_high = scaled - (scaled - a)
    a_low = a - a_high
    scaled = b * splitter
    b_high = scaled - (scaled - b)
    b_low = b - b_high
    product_error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total = product + c
    virtual = total - product
    error = (product - (total - virtual)) + (c - virtual) + product_error
    return np.where(np.isfinite(error), total + error, total)


def float_to_integer(x: Array, dtype: Any, rounding: str) -> Array:
    """Saturating conversion; NaN gives 0. `rounding` is rni, rzi, rmi or rpi."""
    round_: Callable[..., Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding]
    x = np.atleast_1d(round_(x.astype(F64)))
    limits = np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)
    too_big, too_small = x >= high, x <= low
    result = np.where((x != x) | too_big | too_small, 0.0, x).astype(dtype)
    result = np.where(too_big, dtype(limits.max), result)
    return np.where(too_small, dtype(limits.min), result).astype(dtype)


def integer_to_integer_saturating(x: Array, dtype: Any) -> Array:
    """cvt.sat between integer types."""
    target, source = np.iinfo(dtype), np.iinfo(x.dtype)
    low, high = max(target.min, source.min), min(target.max, source.max)
    return np.asarray(np.clip(x, x.dtype.type(low), x.dtype.type(high)).astype(dtype))


APPROXIMATE_BOUND: dict[str, tuple[float, float]] = {
    "ex2": (2.0**-22, 0),
    "lg2": (0, 2.0**-22),
    "sin": (0, 2.0**-20.5),
    "cos": (0, 2.0**-20.5),
    "tanh": (2.0**-11, 0),
    "sqrt": (2.0**-22, 0),
    "rcp": (2.0**-23, 0),
    "rsqrt": (2.0**-22, 0),
}
"""Largest (relative, absolute) error of the f32 .approx instructions, to within a factor of two."""


def approximate(function: Callable[..., Any], x: Array, ftz: bool, name: str | None = None) -> Array:
    """A float32 transcendental, evaluated in float64 and rounded once.

    Args:
        function: The NumPy function.
        x: The operand.
        ftz: Whether subnormals are flushed.
        name: With the instruction's name, a pseudo-random error up to its bound is added that depends on the operand,
            so that a test sees what hardware may return. Outside [-pi, pi] the bound of sin and cos grows with |x|.

    Returns:
        float32 values.
    """
    if ftz:
        x = flush(x)
    y = function(x.astype(F64))
    if name:
        relative, absolute = APPROXIMATE_BOUND[name]
        noise = ((np.atleast_1d(x).view(U32).astype(U64) * U64(0x9E3779B97F4A7C15)) >> U64(40)).astype(F64)
        noise = noise * 2.0**-23 - 1.0
        bound = absolute * np.maximum(1.0, np.abs(x) / np.pi) if name in ("sin", "cos") else absolute
        y = np.where(np.isfinite(y) & (x != 0), y + noise * (relative * np.abs(y) + bound), y)
    y = y.astype(F32)
    return flush(y) if ftz else np.asarray(y)


def has_property(x: Array, which: str) -> Array:
    """testp: finite, infinite, number, notanumber, normal or subnormal."""
    tests: dict[str, Callable[[Array], Any]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda v: ~np.isnan(v),
        "notanumber": np.isnan,
        "normal": lambda v: np.isfinite(v) & (np.abs(v) >= np.finfo(v.dtype).tiny),
        "subnormal": lambda v: (v != 0) & (np.abs(v) < np.finfo(v.dtype).tiny),
    }
    return np.asarray(tests[which](x))


def tf32(x: Array) -> Array:
    """What a tf32 mma reads of a float32 operand: the low 13 mantissa bits are ignored."""
    return (x.view(U32) & U32(0xFFFFE000)).view(F32)
