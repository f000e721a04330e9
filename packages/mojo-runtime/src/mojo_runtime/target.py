"""What to compile for: the CPU by the features that the machine reports, and GPUs by their architecture's name."""

from __future__ import annotations

import dataclasses
import functools
import platform
import re
import subprocess
from pathlib import Path

# Newest first; the first CPU whose features the machine has all of is taken. The names on the left are LLVM's, those on
# the right Linux's in /proc/cpuinfo. The model is not consulted: virtual machines hide features of known models, and
# compilers take some AMX machines for older ones, which costs bfloat16 its hardware conversions. Features that
# compilers only use on request (adx, sha, pku...) are left out.
_AVX2 = "avx avx2 bmi1 bmi2 f16c fma movbe abm"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"
_ICELAKE = f"{_AVX512} avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq gfni"
_SAPPHIRE_RAPIDS = f"{_ICELAKE} avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_bf16 amx_int8"
_ZEN3 = f"{_AVX2} sse4a vaes vpclmulqdq"
_ZEN4 = f"{_ZEN3} {_ICELAKE} avx512_bf16"
_X86: list[tuple[str, str]] = [
    ("graniterapids", f"{_SAPPHIRE_RAPIDS} amx_fp16"),
    ("sapphirerapids", _SAPPHIRE_RAPIDS),
    ("znver5", f"{_ZEN4} avx_vnni avx512_vp2intersect"),
    ("znver4", _ZEN4),
    ("icelake-server", _ICELAKE),
    ("cooperlake", f"{_AVX512} avx512_vnni avx512_bf16"),
    ("cascadelake", f"{_AVX512} avx512_vnni"),
    ("skylake-avx512", _AVX512),
    ("znver3", _ZEN3),
    ("x86-64-v3", _AVX2),
    ("x86-64-v2", "sse4_1 sse4_2 ssse3 popcnt cx16"),
    ("x86-64", ""),
]
# AMX and bf16 that no CPU of the list accounts for, as on virtual machines that hide some other feature.
_X86_EXTRA = [
    ("avx512_bf16", "avx512bf16"),
    ("avx512_vnni", "avx512vnni"),
    ("avx512_fp16", "avx512fp16"),
    ("amx_tile", "amx-tile"),
    ("amx_bf16", "amx-bf16"),
    ("amx_int8", "amx-int8"),
    ("amx_fp16", "amx-fp16"),
]
_ARM64: list[tuple[str, str]] = [
    ("neoverse-v2", "sve2 svebitperm bf16 i8mm"),
    ("neoverse-v1", "sve bf16 i8mm asimddp"),
    ("neoverse-n1", "asimdhp asimddp atomics"),
    ("generic", ""),
]

# The host side of a GPU library only launches: one for all hosts of an architecture keeps it portable.
_LAUNCH_CPU = {"x86_64": "x86-64-v3", "aarch64": "generic"}


@dataclasses.dataclass(frozen=True)
class Target:
    """A CPU, and a GPU where kernels are to run on one.

    Attributes:
        architecture: The CPU's architecture as `uname -m` says, with Apple's arm64 as aarch64.
        cpu: LLVM's name of the CPU.
        features: LLVM's names of features that the CPU has on top.
        accelerator: Mojo's name of a GPU architecture, e.g. sm_80, sm_90a, gfx942, apple-m1; empty for the CPU.
    """

    architecture: str
    cpu: str
    features: tuple[str, ...] = ()
    accelerator: str = ""

    def __str__(self) -> str:
        """Returns the canonical text, e.g. `x86_64-znver4` or `x86_64-x86-64-v3+sm_90a`; part of every cache key."""
        text = "/".join([f"{self.architecture}-{self.cpu}", *self.features])
        return f"{text}+{self.accelerator}" if self.accelerator else text

    def arguments(self) -> list[str]:
        """Returns the options for `mojo build`. An empty accelerator is passed too, so that a CPU build stays one."""
        arguments = ["--target-cpu", self.cpu]
        if self.features:
            arguments += ["--target-features", ",".join(f"+{feature}" for feature in self.features)]
        return [*arguments, f"--target-accelerator={self.accelerator}"]

    @classmethod
    def host(cls) -> Target:
        """Returns the CPU that this process runs on."""
        return _host()

    @classmethod
    def parse(cls, name: str) -> Target:
        """Makes the target of a name on this machine's architecture.

        Args:
            name: "cpu" or "host" for this machine's CPU, "gpu" for its GPU, the name of a GPU architecture (sm_90a,
                gfx942, apple-m1) or a CPU that LLVM knows, as "cpu:znver4".

        Raises:
            ValueError: Not a name of this form.
            RuntimeError: "gpu" on a machine where no supported GPU is found.
        """
        architecture = _host().architecture
        if name in ("cpu", "host"):
            return _host()
        if name == "gpu":
            return cls(architecture, _LAUNCH_CPU.get(architecture, "generic"), (), detect_accelerator())
        if name.startswith("cpu:"):
            return cls(architecture, name[4:])
        if re.fullmatch(r"(sm_\d+a?|gfx[0-9a-f]+|apple-m\d+[\w-]*)", name):
            return cls(architecture, _LAUNCH_CPU.get(architecture, "generic"), (), name)
        raise ValueError(
            f"unknown target {name!r}: use cpu, gpu, cpu:NAME, or a GPU such as sm_80, sm_90a, gfx942, apple-m1"
        )


def detect_cpu(architecture: str, flags: set[str]) -> tuple[str, tuple[str, ...]]:
    """Chooses LLVM's CPU name from the features that Linux lists.

    Args:
        architecture: "x86_64" or "aarch64".
        flags: The words of the `flags` or `Features` line of /proc/cpuinfo.

    Returns:
        The CPU and the features to add to it.
    """
    table = _X86 if architecture == "x86_64" else _ARM64
    cpu, needed = next((cpu, set(names.split())) for cpu, names in table if set(names.split()) <= flags)
    if architecture != "x86_64":
        return cpu, ()
    extra = [llvm for linux, llvm in _X86_EXTRA if linux in flags - needed and "avx512f" in flags]
    return cpu, tuple(extra)


def compatible_targets(target: Target) -> list[Target]:
    """Returns the targets whose libraries run where those of a target run, the best first: itself, then lesser CPUs.

    Args:
        target: GPUs have no lesser ones.
    """
    table = {"x86_64": _X86, "aarch64": _ARM64}.get(target.architecture, [])
    features = dict(table)
    if target.accelerator or target.cpu not in features:
        return [target]
    linux_names = {llvm: linux for linux, llvm in _X86_EXTRA}
    has = {*features[target.cpu].split(), *(linux_names.get(name, name) for name in target.features)}
    lesser = [Target(target.architecture, cpu) for cpu, needed in table if set(needed.split()) <= has]
    return [target, *(other for other in lesser if other != target)]


@functools.cache
def _host() -> Target:
    machine = platform.machine().lower()
    architecture = {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)
    if platform.system() == "Darwin":
        brand = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        generation = re.search(r"Apple M(\d)", brand.stdout)
        return Target(architecture, f"apple-m{generation[1] if generation else 1}")
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cpu, features = detect_cpu(architecture, set(match[1].split()) if match else set())
    return Target(architecture, cpu, features)


@functools.cache
def detect_accelerator() -> str:
    """Returns Mojo's name of this machine's GPU, as Mojo's own `gpu-query` reports it.

    Raises:
        RuntimeError: No supported GPU, or no gpu-query; the message says why.
    """
    from mojo_runtime.toolchain import package_root

    root = package_root()
    query = root / "bin" / "gpu-query" if root else None
    if query is None or not query.is_file():
        raise RuntimeError("no GPU target: gpu-query of the max package is not installed; name the GPU, e.g. sm_90a")
    result = subprocess.run([query, "--target-accelerator"], capture_output=True, text=True, check=False)
    name = result.stdout.strip().splitlines()[-1].strip() if result.stdout.strip() else ""
    if result.returncode or not re.fullmatch(r"[\w:-]+", name):
        detail = (result.stderr.strip() or result.stdout.strip()).splitlines()
        raise RuntimeError(f"no supported GPU found: {detail[0] if detail else 'gpu-query says nothing'}")
    vendor, _, architecture = name.rpartition(":")
    if vendor == "nvidia" and architecture[0].isdigit():
        return f"sm_{architecture}"
    return architecture if vendor in ("nvidia", "amdgpu") else name
