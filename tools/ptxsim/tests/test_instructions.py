"""Single instructions: hand-written PTX against references on Python integers, and on NumPy and torch floats."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from ptxsim import DeviceMemory, Module

TEMPLATE = """
.version 8.1
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 o)
{{
 .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<99>; .reg .b64 %d<99>;
 mov.u32 %r90, %ctaid.x; mov.u32 %r91, %ntid.x; mov.u32 %r92, %tid.x;
 mad.lo.s32 %r93, %r90, %r91, %r92;
 mul.wide.u32 %d90, %r93, 8;
 ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c]; ld.param.u64 %d4, [o];
 add.s64 %d1, %d1, %d90; add.s64 %d2, %d2, %d90; add.s64 %d3, %d3, %d90; add.s64 %d4, %d4, %d90;
 ld.global.b64 %d5, [%d1]; ld.global.b64 %d6, [%d2]; ld.global.b64 %d7, [%d3];
 cvt.u32.u64 %r5, %d5; cvt.u32.u64 %r6, %d6; cvt.u32.u64 %r7, %d7;
 cvt.u16.u32 %h5, %r5; cvt.u16.u32 %h6, %r6;
 {body}
 st.global.b64 [%d4], %d9;
 ret;
}}
"""
N = 256
MASK32, MASK64 = 2**32 - 1, 2**64 - 1


def run(body, a, b, c, wide=False):
    """Runs PTX on 64-bit operands in %d5 to %d7 (low halves in %r5 to %r7); the result is %d9, or %r9 if not wide."""
    memory = DeviceMemory(1 << 20)
    operands = [memory.array(x, name) for x, name in ((a, "a"), (b, "b"), (c, "c"))]
    output = memory.empty(N, np.uint64, "o")
    body += "" if wide else " cvt.u64.u32 %d9, %r9;"
    Module(TEMPLATE.format(body=body), memory).launch(2, 128, [*operands, output]).check()
    return output.numpy().copy()


def integers():
    rng = np.random.default_rng(5)
    a, b, c = (rng.integers(0, 2**64, N, dtype=np.uint64) for _ in range(3))
    a[:8] = [0, 1, 2**32 - 1, 2**31, 2**63, 2**64 - 1, 5, 2**32]
    b[:8] = [1, 0, 2**32 - 1, 1, 2**64 - 1, 2**64 - 1, 64, 33]
    c[:8] = [0, 31, 32, 33, 5, 8, 255, 1]
    return a, b, c


def signed(value, bits=32):
    value &= (1 << bits) - 1
    return value - (1 << bits) * (value >> (bits - 1))


def low(value):
    return value & MASK32


def truncating(x, y):
    quotient = abs(x) // abs(y)
    return quotient if (x < 0) == (y < 0) else -quotient


def extract_signed(a, position, length):
    position, length, a = position & 255, length & 255, signed(a)
    sign = (a >> min(position + length - 1, 31)) & 1
    bits = [(a >> (position + i)) & 1 if i < length and position + i <= 31 else sign for i in range(32)]
    return sum(bit << i for i, bit in enumerate(bits)) if length else 0


def extract_unsigned(a, position, length):
    return low(low(a) >> (position & 255) & ((1 << (length & 255)) - 1))


def insert(a, b, position, length):
    position, result = position & 255, low(b)
    for i in range(min(length & 255, max(0, 32 - position))):
        result = (result & ~(1 << (position + i))) | (((low(a) >> i) & 1) << (position + i))
    return result


def permute(a, b, selector):
    value, result = (low(b) << 32) | low(a), 0
    for i in range(4):
        choice = (selector >> (4 * i)) & 15
        octet = (value >> (8 * (choice & 7))) & 255
        if choice & 8:
            octet = 255 if octet & 128 else 0
        result |= octet << (8 * i)
    return result


def truth_table(a, b, c, table):
    place = [((a >> i) & 1) * 4 + ((b >> i) & 1) * 2 + ((c >> i) & 1) for i in range(32)]
    return sum(((table >> p) & 1) << i for i, p in enumerate(place))


def less_and_greater(a, b, c):
    less, greater = signed(a) < signed(b), low(c) > low(a)
    return (7 if less and greater else 3) + (16 if not less and greater else 0)


NARROW = {
    "mul.hi.u32 %r9, %r5, %r6;": lambda a, b, c: (low(a) * low(b)) >> 32,
    "mul.hi.s32 %r9, %r5, %r6;": lambda a, b, c: (signed(a) * signed(b)) >> 32,
    "mul.wide.s16 %r9, %h5, %h6;": lambda a, b, c: signed(a, 16) * signed(b, 16),
    "mad.hi.u32 %r9, %r5, %r6, %r7;": lambda a, b, c: ((low(a) * low(b)) >> 32) + c,
    "or.b32 %r6, %r6, 1; div.u32 %r9, %r5, %r6;": lambda a, b, c: low(a) // (low(b) | 1),
    "shl.b32 %r9, %r5, %r7;": lambda a, b, c: low(a) << low(c) if low(c) < 32 else 0,
    "shr.s32 %r9, %r5, %r7;": lambda a, b, c: signed(a) >> min(low(c), 31),
    "shf.l.wrap.b32 %r9, %r5, %r6, %r7;": lambda a, b, c: (((low(b) << 32) | low(a)) << (c & 31)) >> 32,
    "shf.r.clamp.b32 %r9, %r5, %r6, %r7;": lambda a, b, c: ((low(b) << 32) | low(a)) >> min(low(c), 32),
    "bfe.u32 %r9, %r5, %r6, %r7;": extract_unsigned,
    "bfe.s32 %r9, %r5, %r6, %r7;": extract_signed,
    "bfi.b32 %r9, %r5, %r6, %r7, 9;": lambda a, b, c: insert(a, b, c, 9),
    "prmt.b32 %r9, %r5, %r6, %r7;": permute,
    "lop3.b32 %r9, %r5, %r6, %r7, 0x6a;": lambda a, b, c: truth_table(a, b, c, 0x6A),
    "popc.b64 %r9, %d5;": lambda a, b, c: a.bit_count(),
    "clz.b32 %r9, %r5;": lambda a, b, c: 32 - low(a).bit_length(),
    "clz.b64 %r9, %d5;": lambda a, b, c: 64 - a.bit_length(),
    "bfind.u32 %r9, %r5;": lambda a, b, c: low(a).bit_length() - 1,
    "brev.b32 %r9, %r5;": lambda a, b, c: int(f"{low(a):032b}"[::-1], 2),
    "min.s32 %r9, %r5, %r6;": lambda a, b, c: min(signed(a), signed(b)),
    "abs.s32 %r9, %r5;": lambda a, b, c: abs(signed(a)),
    "cvt.s32.s8 %r9, %r5;": lambda a, b, c: signed(a, 8),
    "cvt.u32.u8 %r9, %r5;": lambda a, b, c: a & 255,
    "cvt.sat.u8.s32 %r9, %r5;": lambda a, b, c: min(max(signed(a), 0), 255),
    "setp.lt.s32 %p1, %r5, %r6; selp.b32 %r9, 7, 3, %p1;": lambda a, b, c: 7 if signed(a) < signed(b) else 3,
    "setp.gt.u32 %p2, %r7, %r5; setp.lt.s32.and %p1|%p3, %r5, %r6, %p2; selp.b32 %r8, 7, 3, %p1;"
    " selp.b32 %r9, 16, 0, %p3; add.s32 %r9, %r9, %r8;": less_and_greater,
    "mov.b32 %r9, 1; setp.lt.s32 %p1, %r5, 0; @%p1 add.s32 %r9, %r9, %r6; @!%p1 sub.s32 %r9, %r9, %r7;": (
        lambda a, b, c: 1 + b if signed(a) < 0 else 1 - c
    ),
    "slct.b32.s32 %r9, %r5, %r6, %r7;": lambda a, b, c: a if signed(c) >= 0 else b,
    "dp4a.u32.u32 %r9, %r5, %r6, %r7;": (
        lambda a, b, c: sum(((a >> 8 * i) & 255) * ((b >> 8 * i) & 255) for i in range(4)) + c
    ),
    "and.b32 %r10, %r5, 15; mov.b32 %r9, 0;\nL1:\n setp.eq.s32 %p1, %r10, 0; @%p1 bra L2; add.s32 %r9, %r9, %r10;"
    " sub.s32 %r10, %r10, 1; bra L1;\nL2:\n shfl.sync.bfly.b32 %r9, %r9, 0, 31, -1;": (
        lambda a, b, c: (a & 15) * ((a & 15) + 1) // 2
    ),
}
WIDE = {
    "mul.hi.u64 %d9, %d5, %d6;": lambda a, b, c: (a * b) >> 64,
    "mul.hi.s64 %d9, %d5, %d6;": lambda a, b, c: (signed(a, 64) * signed(b, 64)) >> 64,
    "mul.wide.s32 %d9, %r5, %r6;": lambda a, b, c: signed(a) * signed(b),
    "mad.wide.u32 %d9, %r5, %r6, %d7;": lambda a, b, c: low(a) * low(b) + c,
    "or.b64 %d6, %d6, 1; div.s64 %d9, %d5, %d6;": lambda a, b, c: truncating(signed(a, 64), signed(b | 1, 64)),
    "or.b64 %d6, %d6, 1; rem.s64 %d9, %d5, %d6;": (
        lambda a, b, c: signed(a, 64) - truncating(signed(a, 64), signed(b | 1, 64)) * signed(b | 1, 64)
    ),
    "or.b64 %d6, %d6, 1; rem.u64 %d9, %d5, %d6;": lambda a, b, c: a % (b | 1),
    "shr.s64 %d9, %d5, %r7;": lambda a, b, c: signed(a, 64) >> min(low(c), 63),
    "max.u64 %d9, %d5, %d6;": lambda a, b, c: max(a, b),
    "neg.s64 %d9, %d5;": lambda a, b, c: -a,
    "cvt.s64.s32 %d9, %r5;": lambda a, b, c: signed(a),
    "mov.b64 {%r10, %r11}, %d5; mov.b64 %d9, {%r11, %r6};": lambda a, b, c: (a >> 32) | (low(b) << 32),
    "mov.b64 {%h1, %h2, %h3, %h4}, %d5; mov.b64 %d9, {%h4, %h3, %h2, %h1};": (
        lambda a, b, c: sum(((a >> (16 * i)) & 65535) << (48 - 16 * i) for i in range(4))
    ),
}


@pytest.mark.parametrize("body", [*NARROW, *WIDE])
def test_integers(body):
    operands = integers()
    result = run(body, *operands, wide=body in WIDE)
    reference, mask = (WIDE[body], MASK64) if body in WIDE else (NARROW[body], MASK32)
    expected = [reference(*(int(x) for x in row)) & mask for row in zip(*operands, strict=True)]
    assert [int(x) for x in result] == expected


WARP = {
    "setp.lt.s32 %p1, %r5, 0; vote.sync.ballot.b32 %r9, %p1, -1;": (
        lambda lanes: [sum(1 << i for i in range(32) if lanes[i] < 0)] * 32
    ),
    "redux.sync.add.s32 %r9, %r5, -1;": lambda lanes: [sum(lanes)] * 32,
    "and.b32 %r5, %r5, 3; match.any.sync.b32 %r9, %r5, -1;": (
        lambda lanes: [sum(1 << i for i in range(32) if lanes[i] & 3 == lane & 3) for lane in lanes]
    ),
    "shfl.sync.bfly.b32 %r9, %r5, 5, 31, -1;": lambda lanes: [lanes[i ^ 5] for i in range(32)],
    "shfl.sync.up.b32 %r9|%p1, %r5, 3, 0, -1; selp.b32 %r9, %r9, 0, %p1;": lambda lanes: [0, 0, 0, *lanes[:29]],
    "shfl.sync.down.b32 %r9, %r5, 2, 0x1807, -1;": (
        lambda lanes: [lanes[i + 2] if i % 8 < 6 else lanes[i] for i in range(32)]
    ),
}


@pytest.mark.parametrize("body", WARP)
def test_warp_operations(body):
    a, b, c = integers()
    lanes = a.astype(np.uint32).view(np.int32).reshape(-1, 32).tolist()
    expected = [value & MASK32 for warp in lanes for value in WARP[body](warp)]
    assert [int(x) for x in run(body, a, b, c)] == expected


def floats():
    rng = np.random.default_rng(6)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 1.00390625, 1.01171875, 2.5, -0.5, -1.5]
    special += [65504, 65520, 1e10, -1e10, 2147483648.0]
    x = np.concatenate([rng.standard_normal(120), rng.standard_normal(100) * 1e6, special])
    x = np.resize(x, N).astype(np.float32)
    return x, np.roll(x, 37), np.roll(x, 91)


def bits(x):
    return x.view(np.uint32).astype(np.uint64)


def flushed(x):
    return np.where(abs(x) < np.float32(2.0**-126), x * 0, x)


def bfloat16(x):
    return torch.from_numpy(x.copy()).bfloat16()


FLOATS = {
    "add.f32 %r9, %r5, %r6;": lambda x, y, z: x + y,
    "add.ftz.f32 %r9, %r5, %r6;": lambda x, y, z: flushed(flushed(x) + flushed(y)),
    "div.rn.f32 %r9, %r5, %r6;": lambda x, y, z: x / y,
    "sqrt.rn.f32 %r9, %r5;": lambda x, y, z: np.sqrt(x),
    "rcp.rn.f32 %r9, %r5;": lambda x, y, z: np.float32(1) / x,
    "min.f32 %r9, %r5, %r6;": lambda x, y, z: np.fmin(x, y),
    "max.NaN.f32 %r9, %r5, %r6;": lambda x, y, z: np.maximum(x, y),
    "abs.f32 %r9, %r5;": lambda x, y, z: abs(x),
    "copysign.f32 %r9, %r5, %r6;": lambda x, y, z: np.copysign(y, x),
    "cvt.rni.f32.f32 %r9, %r5;": lambda x, y, z: np.rint(x),
    "cvt.rmi.f32.f32 %r9, %r5;": lambda x, y, z: np.floor(x),
    "setp.ltu.f32 %p1, %r5, %r6; selp.f32 %r9, %r5, %r6, %p1;": lambda x, y, z: np.where(~(x >= y), x, y),
    "setp.ne.f32 %p1, %r5, %r6; selp.f32 %r9, 0f3F800000, 0f00000000, %p1;": lambda x, y, z: (x < y) | (x > y),
    "setp.nan.f32 %p1, %r5, %r6; selp.f32 %r9, 0f3F800000, 0f00000000, %p1;": lambda x, y, z: np.isnan(x) | np.isnan(y),
    "cvt.rn.f16.f32 %h1, %r5; cvt.f32.f16 %r9, %h1;": lambda x, y, z: x.astype(np.float16),
    "cvt.rn.bf16.f32 %h1, %r5; cvt.f32.bf16 %r9, %h1;": lambda x, y, z: bfloat16(x).float().numpy(),
    "cvt.rn.bf16x2.f32 %r8, %r5, %r6; and.b32 %r9, %r8, 0xffff0000;": lambda x, y, z: bfloat16(x).float().numpy(),
    "cvt.f64.f32 %d10, %r5; cvt.f64.f32 %d11, %r6; add.f64 %d12, %d10, %d11; cvt.rn.f32.f64 %r9, %d12;": (
        lambda x, y, z: x.astype(np.float64) + y
    ),
    "cvt.rn.bf16.f32 %h1, %r5; cvt.rn.bf16.f32 %h2, %r6; cvt.rn.bf16.f32 %h3, %r7; fma.rn.bf16 %h4, %h1, %h2, %h3;"
    " cvt.f32.bf16 %r9, %h4;": (
        lambda x, y, z: (bfloat16(x).double() * bfloat16(y).double() + bfloat16(z).double()).bfloat16().float().numpy()
    ),
}


@pytest.mark.parametrize("body", FLOATS)
def test_floats(body):
    operands = floats()
    result = run(body, *map(bits, operands)).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        expected = np.asarray(FLOATS[body](*operands)).astype(np.float32)
    np.testing.assert_array_equal(result, expected)


def test_fused_multiply_add_is_rounded_once():
    rng = np.random.default_rng(7)
    x, y, z = (rng.standard_normal(N).astype(np.float32) for _ in range(3))
    z[:128] = -(x[:128].astype(np.float64) * y[:128]).astype(np.float32)
    result = run("fma.rn.f32 %r9, %r5, %r6, %r7;", *map(bits, (x, y, z))).astype(np.uint32).view(np.float32)
    for a, b, c, value in zip(x, y, z, result, strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        error = abs(Fraction(float(value)) - exact)
        for neighbour in (np.nextafter(value, np.float32(-np.inf)), np.nextafter(value, np.float32(np.inf))):
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_float_to_integer_saturates():
    x = floats()[0]
    result = run("cvt.rzi.s32.f32 %r9, %r5;", *[bits(x)] * 3).astype(np.uint32).view(np.int32)
    finite = np.nan_to_num(x.astype(np.float64), nan=0, posinf=1e30, neginf=-1e30)
    np.testing.assert_array_equal(result, np.clip(np.trunc(finite), -(2**31), 2**31 - 1).astype(np.int64))
