from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from mojo_runtime.generate import generate
from mojo_runtime.spec import KernelSpec, as_specs

MODULE = "mojo_kernels.pointwise.binary"


def test_key_sorts_parameters_and_parses_back() -> None:
    spec = KernelSpec(MODULE, "binary", op="add", dtype="float32", fast=True, width=-8)
    assert spec.key == f"{MODULE}:binary[dtype=float32,fast=true,op=add,width=-8]"
    assert KernelSpec.parse(spec.key) == spec
    assert KernelSpec.parse(f"{MODULE}:binary[op=add,width=-8,fast=true,dtype=float32]").key == spec.key


@pytest.mark.parametrize("key", [f"{MODULE}:fill", f"{MODULE}:fill[]"])
def test_key_without_parameters(key: str) -> None:
    assert KernelSpec.parse(key) == KernelSpec(MODULE, "fill")


def test_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = KernelSpec("kernels/saxpy.mojo", "saxpy", dtype="float32")
    assert spec.module == str(tmp_path / "kernels" / "saxpy.mojo")
    assert spec == KernelSpec(tmp_path / "kernels" / "saxpy.mojo", "saxpy", dtype="float32")
    assert KernelSpec.parse(spec.key) == spec


def test_is_immutable_and_hashable() -> None:
    spec = KernelSpec(MODULE, "binary", op="add")
    with pytest.raises(AttributeError, match="immutable"):
        spec.module = "other"
    assert {spec: 1}[KernelSpec(MODULE, "binary", op="add")] == 1
    assert spec != KernelSpec(MODULE, "binary", op="sub")
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    "key", ["", "binary", f"{MODULE}:", f"{MODULE}:f[op]", f"{MODULE}:f[op=a,op=b]", f"{MODULE}:f[op=a", "a-b:f", ":f"]
)
def test_malformed_keys_are_refused(key: str) -> None:
    with pytest.raises(ValueError, match="KernelSpec"):
        KernelSpec.parse(key)


@pytest.mark.parametrize("value", ["a,b", "a]", 'quote"', "line\nbreak", "back\\slash", ""])
def test_values_that_a_key_cannot_hold_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="op="):
        KernelSpec(MODULE, "binary", op=value)


def test_as_specs_removes_duplicates() -> None:
    spec = KernelSpec(MODULE, "binary", op="add")
    assert as_specs([spec, spec.key, f"{MODULE}:fill"]) == [spec, KernelSpec(MODULE, "fill")]
    assert as_specs(spec.key) == [spec]


def test_generated_source_has_a_function_per_kernel() -> None:
    specs = [KernelSpec(MODULE, "binary", op=op, dtype=dtype) for op, dtype in (("add", "float32"), ("sub", "bool"))]
    specs.append(KernelSpec("/somewhere/saxpy.mojo", "saxpy", n=3, exact=False))
    source = generate(specs, {MODULE: MODULE, "/somewhere/saxpy.mojo": "saxpy"})
    lines = source.text.splitlines()
    assert lines[:3] == [
        "from mojo_kernels.abi import Call",
        f"from {MODULE} import binary as function_0",
        "from saxpy import saxpy as function_1",
    ]
    assert 'function_0[dtype=DType.float32, op="add"](call[])' in source.text
    assert 'function_0[dtype=DType.bool, op="sub"](call[])' in source.text
    assert "function_1[exact=False, n=3](call[])" in source.text
    for spec, symbol in source.symbols.items():
        first = source.lines[spec]
        assert lines[first - 1 : first + 1] == [f"# {spec.key}", f'@export("{symbol}")']
