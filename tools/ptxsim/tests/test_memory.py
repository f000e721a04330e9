"""Memory, synchronisation and diagnostics: hand-written PTX that is right, and PTX with one mistake each."""

from __future__ import annotations

import numpy as np
import pytest

from ptxsim import DeviceMemory, Module, Options, PtxError

HEAD = """
.version 8.1
.target sm_80
.address_size 64
.global .align 4 .b8 table[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0};
.visible .entry k(.param .u64 .ptr .align 1 a, .param .u64 .ptr .align 1 o)
{
 .reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %d<99>; .reg .f32 %f<9>;
 .shared .align 16 .b8 sm[1024];
 .local .align 8 .b8 depot[64];
 ld.param.u64 %d1, [a]; ld.param.u64 %d2, [o];
 mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.s32 %r4, %r2, %r3, %r1;
 mul.wide.u32 %d3, %r4, 4; add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;
 shl.b32 %r5, %r1, 2; mov.u32 %r6, sm; add.s32 %r7, %r6, %r5;
"""
INPUT = np.arange(128, dtype=np.uint32) * 3 + 1
BLOCKS = INPUT.reshape(2, 64)


def run(body, a=INPUT, grid=2, block=64, n=None, options=None, output=None, ignore=()):
    """Runs PTX over %d4 (own input), %d5 (own output), %r7 (own shared word); returns the output."""
    memory = DeviceMemory(1 << 20)
    a = memory.array(a, "a")
    o = memory.empty(n or grid * block, np.uint32, "o") if output is None else memory.array(output, "o")
    Module(HEAD + body + "\n ret;\n}\n", memory).launch(grid, block, [a, o], options=options).check(ignore)
    return o.numpy().copy()


def test_generic_store_to_shared():
    output = run(
        "cvta.shared.u64 %d10, %d0; cvt.u64.u32 %d11, %r7; add.s64 %d10, %d10, %d11; ld.global.u32 %r10, [%d4];"
        " st.u32 [%d10], %r10; bar.sync 0; xor.b32 %r11, %r5, 252; add.s32 %r11, %r11, %r6; ld.shared.u32 %r12, [%r11];"
        " st.global.u32 [%d5], %r12;"
    )
    np.testing.assert_array_equal(output.reshape(2, 64), BLOCKS[:, ::-1])


def test_local_memory_through_two_windows():
    output = run(
        "mov.u64 %d10, depot; cvta.local.u64 %d11, %d10; and.b32 %r10, %r1, 7; mul.wide.u32 %d12, %r10, 8;"
        " add.s64 %d13, %d11, %d12; st.u32 [%d13], %r4; add.s64 %d14, %d10, %d12; ld.local.u32 %r11, [%d14];"
        " st.global.u32 [%d5], %r11;"
    )
    np.testing.assert_array_equal(output, np.arange(128))


def test_initialised_global_table():
    output = run(
        "and.b32 %r10, %r1, 3; mul.wide.u32 %d10, %r10, 4; mov.u64 %d11, table; add.s64 %d11, %d11, %d10;"
        " ld.global.u32 %r11, [%d11]; st.global.u32 [%d5], %r11;"
    )
    np.testing.assert_array_equal(output, np.arange(128) % 4 + 1)


STORE_OLD = " add.s64 %d6, %d5, 4; st.global.u32 [%d6], %r10;"


def test_atomic_add_returns_old_values():
    output = run("atom.global.add.u32 %r10, [%d2], 2;" + STORE_OLD, output=np.zeros(129, np.uint32))
    assert output[0] == 256
    assert sorted(output[1:]) == list(range(0, 256, 2))


def test_atomic_increment_wraps():
    output = run("atom.global.inc.u32 %r10, [%d2], 9;" + STORE_OLD, output=np.zeros(129, np.uint32))
    assert np.bincount(output[1:]).tolist() == [13] * 8 + [12] * 2


def test_compare_and_swap():
    output = run("atom.global.cas.b32 %r10, [%d2], 0, %r4;" + STORE_OLD, output=np.zeros(129, np.uint32))
    assert output[0] == 1
    assert set(output[1:].tolist()) == {0, 1}


def test_spin_lock_makes_progress():
    """The holder runs at a higher address than the spinners."""
    output = run(
        "LOCK: atom.global.cas.b32 %r10, [%d2], 0, 1; setp.ne.s32 %p1, %r10, 0; @%p1 bra LOCK;"
        " ld.volatile.global.u32 %r11, [%d2+4]; add.s32 %r11, %r11, 1; st.volatile.global.u32 [%d2+4], %r11;"
        " atom.global.exch.b32 %r12, [%d2], 0;",
        output=np.zeros(2, np.uint32),
    )
    assert output[1] == 128


def test_named_barriers():
    """Two halves of the block synchronise separately."""
    output = run(
        "ld.global.u32 %r10, [%d4]; st.shared.u32 [%r7], %r10; shr.u32 %r11, %r1, 5; add.s32 %r11, %r11, 1;"
        " bar.sync %r11, 32; xor.b32 %r12, %r5, 124; add.s32 %r12, %r12, %r6; ld.shared.u32 %r13, [%r12];"
        " st.global.u32 [%d5], %r13;"
    )
    np.testing.assert_array_equal(output.reshape(4, 32), INPUT.reshape(4, 32)[:, ::-1])


COPY = (
    "cp.async.ca.shared.global [%r7], [%d4], 4; cp.async.commit_group; {wait} bar.sync 0; xor.b32 %r11, %r5, 252;"
    " add.s32 %r11, %r11, %r6; ld.shared.u32 %r12, [%r11]; st.global.u32 [%d5], %r12;"
)


def test_asynchronous_copy():
    output = run(COPY.format(wait="cp.async.wait_group 0;"))
    np.testing.assert_array_equal(output.reshape(2, 64), BLOCKS[:, ::-1])


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_load_matrices(transposed):
    """8x8 matrices of 16 bits: thread t gets row t / 4, elements 2 (t % 4) and the next."""
    words = np.arange(256, dtype=np.uint16).view(np.uint32)
    stores = " ".join(
        f"ld.global.u32 %r10, [%d4+{offset}]; st.shared.u32 [%r7+{offset}], %r10;" for offset in (0, 128, 256, 384)
    )
    output = run(
        f"{stores} bar.sync 0; shl.b32 %r20, %r1, 4; add.s32 %r21, %r6, %r20;"
        f" ldmatrix.sync.aligned.m8n8.x4{transposed}.shared.b16 {{%r30, %r31, %r32, %r33}}, [%r21];"
        " mul.wide.u32 %d20, %r1, 16; add.s64 %d21, %d2, %d20; st.global.v4.b32 [%d21], {%r30, %r31, %r32, %r33};",
        words,
        grid=1,
        block=32,
        n=128,
    )
    matrices = words.view(np.uint16).reshape(4, 8, 8)
    if transposed:
        matrices = matrices.transpose(0, 2, 1)
    expected = np.ascontiguousarray(matrices).reshape(4, 64).view(np.uint32).T
    np.testing.assert_array_equal(output.reshape(32, 4), expected)


WARP_EXCHANGE = (
    "st.shared.u32 [%r7], %r1; {between} xor.b32 %r8, %r5, 4; add.s32 %r8, %r8, %r6; ld.shared.u32 %r9, [%r8];"
)
FAULTS = [
    ("cp.async without a wait", "uninitialised", COPY.format(wait="")),
    ("cp.async with a weak wait", "uninitialised", COPY.format(wait="cp.async.wait_group 1;")),
    ("misaligned", "misaligned", "add.s64 %d4, %d4, 2; ld.global.u32 %r10, [%d4];"),
    ("null pointer", "out-of-bounds", "ld.global.u32 %r10, [4];"),
    ("one past the end", "out-of-bounds.*byte offset 512 of a", "ld.global.u32 %r10, [%d4+4];"),
    ("shared overrun", "out-of-bounds", "st.shared.u32 [%r7+800], %r1;"),
    ("uninitialised shared", "uninitialised", "ld.shared.u32 %r10, [%r7];"),
    ("uninitialised global", "uninitialised", "ld.global.u32 %r10, [%d5];"),
    ("early exit", "barrier-after-exit", "setp.gt.u32 %p1, %r1, 9; @%p1 ret; bar.sync 0;"),
    ("two barriers", "divergent-barrier", "setp.gt.u32 %p1, %r1, 31; @%p1 bra X; bar.sync 0; bra Y; X: bar.sync 0; Y:"),
    ("deadlock", "deadlock", "setp.gt.u32 %p1, %r1, 31; @%p1 bra X; bar.sync 1; bra Y; X: bar.sync 2; Y:"),
    ("endless loop", "endless loop", "X: bra X;"),
    ("trap", "trap.*thread \\(6,0,0\\)", "setp.eq.u32 %p1, %r4, 70; @%p1 trap;"),
    (
        "shuffle from a dead lane",
        "shuffle-inactive",
        "setp.gt.u32 %p1, %r1, 20; @%p1 bra X; shfl.sync.idx.b32 %r9, %r1, 25, 31, 0x1fffff; X:",
    ),
    ("write and write across blocks", "race", "st.global.u32 [%d2], %r2;"),
    (
        "read and write across blocks",
        "race",
        "ld.global.u32 %r9, [%d1]; add.s32 %r9, %r9, 1; st.global.u32 [%d4], %r9;",
    ),
    ("warp without a barrier", "race", WARP_EXCHANGE.format(between="")),
    ("integer division by zero", "division-by-zero", "mov.u32 %r8, 0; div.u32 %r9, %r1, %r8;"),
]


@pytest.mark.parametrize(("message", "body"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_faults_are_found(message, body):
    with pytest.raises(PtxError, match=message):
        run(body, options=Options(max_steps=10_000))


def test_padding_of_a_structure_may_be_read():
    store = "st.shared.u8 [%r20], %r1; ld.shared.b64 %d20, [%r20]; cvt.u32.u64 %r21, %d20; and.b32 %r22, %r21, 255;"
    output = run(f"shl.b32 %r19, %r1, 3; add.s32 %r20, %r6, %r19; {store} st.global.u32 [%d5], %r22;")
    np.testing.assert_array_equal(output, np.tile(np.arange(64), 2))


def test_ordered_accesses_are_no_races():
    run(WARP_EXCHANGE.format(between="bar.warp.sync -1;"))
    run("st.global.u32 [%d2], %r3;")  # every thread writes the same value


def test_freed_memory_is_out_of_bounds():
    memory = DeviceMemory(1 << 20)
    a, o = memory.array(INPUT, "a"), memory.empty(128, np.uint32, "o")
    memory.free(a.address)
    with pytest.raises(PtxError, match="out-of-bounds"):
        Module(HEAD + "ld.global.u32 %r10, [%d4]; ret; }", memory).launch(2, 64, [a, o])


@pytest.mark.parametrize(
    ("grid", "block", "arguments"), [(0, 64, 2), (2, 2048, 2), ((1, 70000), 64, 2), (2, 64, 1)], ids=str
)
def test_invalid_launches_are_refused(grid, block, arguments):
    memory = DeviceMemory(1 << 20)
    with pytest.raises(PtxError):
        Module(HEAD + "ret; }", memory).launch(grid, block, [memory.array(INPUT)] * arguments)


FUNCTION = """
.func (.param .align 8 .b8 result[16]) divide(.param .b32 divide_param_0, .param .b32 divide_param_1)
{
 .reg .pred %p<3>; .reg .b32 %r<9>;
 ld.param.b32 %r1, [divide_param_0]; ld.param.b32 %r2, [divide_param_1];
 setp.eq.s32 %p1, %r2, 0; @!%p1 bra $L1;
 st.param.b32 [result], 0; st.param.b32 [result+8], %r1; ret;
$L1:
 div.u32 %r3, %r1, %r2; rem.u32 %r4, %r1, %r2; st.param.b32 [result], %r3; st.param.b32 [result+8], %r4; ret;
}
"""
CALL = """
 {{ .param .b32 param0; .param .b32 param1; .param .align 8 .b8 retval0[16];
 st.param.b32 [param0], {0}; st.param.b32 [param1], {1}; call.uni (retval0), divide, (param0, param1);
 ld.param.b32 {2}, [retval0]; ld.param.b32 {3}, [retval0+8]; }}
"""


def test_calls_of_functions():
    """Some threads divide by zero, which the function answers on another path; the second call reads the first's."""
    memory = DeviceMemory(1 << 20)
    a, o = memory.array(INPUT, "a"), memory.empty(128, np.uint32, "o")
    body = "ld.global.u32 %r10, [%d4]; and.b32 %r11, %r1, 3;" + CALL.format("%r10", "%r11", "%r20", "%r21")
    body += CALL.format("%r20", 7, "%r22", "%r23") + "mad.lo.s32 %r24, %r23, 1000, %r21; st.global.u32 [%d5], %r24;"
    text = HEAD.replace(".visible", FUNCTION + ".visible") + body + " ret; }"
    Module(text, memory).launch(2, 64, [a, o]).check()
    divisor = np.arange(128) % 4
    quotient = np.where(divisor == 0, 0, INPUT // np.maximum(divisor, 1))
    remainder = np.where(divisor == 0, INPUT, INPUT % np.maximum(divisor, 1))
    np.testing.assert_array_equal(o.numpy(), quotient % 7 * 1000 + remainder)
