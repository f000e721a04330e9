from __future__ import annotations

import pytest

from mojo_runtime.target import Target, compatible_targets, detect_cpu

AVX2 = "avx avx2 bmi1 bmi2 f16c fma movbe abm"
SKYLAKE = f"{AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"
ICELAKE = f"{SKYLAKE} avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq gfni vaes"
SAPPHIRE_RAPIDS = f"{ICELAKE} avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_bf16 amx_int8"
ZEN4 = f"{ICELAKE} vpclmulqdq avx512_bf16 sse4a"


@pytest.mark.parametrize(
    ("flags", "cpu", "features"),
    [
        ("sse sse2", "x86-64", ()),
        ("sse4_1 sse4_2 ssse3 popcnt cx16", "x86-64-v2", ()),
        (AVX2, "x86-64-v3", ()),
        (f"{AVX2} sse4a vaes vpclmulqdq", "znver3", ()),
        (SKYLAKE, "skylake-avx512", ()),
        (f"{SKYLAKE} avx512_vnni", "cascadelake", ()),
        (f"{SKYLAKE} avx512_vnni avx512_bf16", "cooperlake", ()),
        (ICELAKE, "icelake-server", ()),
        (SAPPHIRE_RAPIDS, "sapphirerapids", ()),
        (f"{SAPPHIRE_RAPIDS} amx_fp16", "graniterapids", ()),
        (ZEN4, "znver4", ()),
        (f"{ZEN4} avx_vnni avx512_vp2intersect", "znver5", ()),
        # A virtual machine that hides AMX, and one that hides AVX-VNNI of an AMX machine.
        (f"{ICELAKE} avx512_bf16 avx512_fp16", "icelake-server", ("avx512bf16", "avx512fp16")),
        (
            f"{ICELAKE} avx512_bf16 amx_tile amx_bf16 amx_int8",
            "icelake-server",
            ("avx512bf16", "amx-tile", "amx-bf16", "amx-int8"),
        ),
    ],
)
def test_x86_cpu_comes_from_the_features(flags: str, cpu: str, features: tuple[str, ...]) -> None:
    assert detect_cpu("x86_64", set(flags.split())) == (cpu, features)


@pytest.mark.parametrize(
    ("flags", "cpu"),
    [
        ("fp asimd", "generic"),
        ("fp asimd atomics asimdhp asimddp", "neoverse-n1"),
        ("fp asimd atomics asimdhp asimddp sve bf16 i8mm", "neoverse-v1"),
        ("fp asimd atomics asimdhp asimddp sve sve2 svebitperm bf16 i8mm", "neoverse-v2"),
    ],
)
def test_arm_cpu_comes_from_the_features(flags: str, cpu: str) -> None:
    assert detect_cpu("aarch64", set(flags.split())) == (cpu, ())


def test_names_of_targets() -> None:
    host = Target.host()
    assert Target.parse("cpu") == host
    assert str(Target("x86_64", "icelake-server", ("amx-tile",))) == "x86_64-icelake-server/amx-tile"
    gpu = Target.parse("sm_90a")
    assert gpu.accelerator == "sm_90a"
    assert str(gpu).endswith("+sm_90a")
    assert gpu.arguments()[-1] == "--target-accelerator=sm_90a"
    assert Target.parse("cpu:skylake").cpu == "skylake"
    with pytest.raises(ValueError, match="unknown target 'h100'"):
        Target.parse("h100")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target("x86_64", "znver4"), ["znver4", "icelake-server", "cooperlake", "cascadelake"]),
        (Target("x86_64", "icelake-server", ("avx512bf16",)), ["icelake-server", "icelake-server", "cooperlake"]),
        (Target("x86_64", "x86-64-v3"), ["x86-64-v3", "x86-64"]),
        (Target("aarch64", "neoverse-n1"), ["neoverse-n1", "generic"]),
        (Target("x86_64", "x86-64-v3", (), "sm_80"), ["x86-64-v3"]),
        (Target("aarch64", "apple-m1"), ["apple-m1"]),
    ],
)
def test_libraries_of_lesser_cpus_run(target: Target, expected: list[str]) -> None:
    found = compatible_targets(target)
    assert found[0] == target
    assert [other.cpu for other in found][: len(expected)] == expected
    assert "sapphirerapids" not in [other.cpu for other in found]
