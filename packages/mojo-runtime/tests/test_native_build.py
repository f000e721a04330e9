"""Native libraries: compiled once, found again, never loaded from where others can write; the C structs' layout."""

from __future__ import annotations

import ctypes
import re
import threading

import pytest

from mojo_runtime import _native, native_build
from mojo_runtime.config import config
from mojo_runtime.native_build import NativeBuildError, build_library
from mojo_runtime.store import CacheRefused


@pytest.fixture
def cache(tmp_path):
    with config.scope(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache" / "native"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "answer.h").write_text("#define ANSWER 42\n")
    path = folder / "answer.cpp"
    path.write_text(
        '#include "answer.h"\nextern "C" __attribute__((visibility("default"))) int answer() { return ANSWER; }\n'
    )
    return path


def answer(library) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def test_library_is_compiled_once_for_all_threads(cache, source, monkeypatch):
    compile_, runs = native_build.subprocess.run, []

    def counted(*arguments, **keywords):
        runs.append(arguments)
        return compile_(*arguments, **keywords)

    monkeypatch.setattr(native_build.subprocess, "run", counted)
    libraries: list[object] = []
    threads = [threading.Thread(target=lambda: libraries.append(build_library("answer", [source]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(libraries)) == len(runs) == 1
    assert answer(libraries[0]) == 42
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []


def test_included_files_flags_and_extra_key_count(cache, source):
    first = build_library("answer", [source])
    (source.parent / "answer.h").write_text("#define ANSWER 43\n")
    second = build_library("answer", [source])
    assert answer(second) == 43
    third = build_library("answer", [source], flags=["-O1"])
    fourth = build_library("answer", [source], key_extra="torch 9")
    assert len({first, second, third, fourth}) == 4


def test_prebuilt_library_needs_no_compiler(cache, source, tmp_path, monkeypatch):
    built = build_library("answer", [source])
    prebuilt = tmp_path / native_build.prebuilt_name("answer", native_build.content_key([source]))
    prebuilt.write_bytes(built.read_bytes())
    monkeypatch.setattr(native_build, "find_compiler", lambda: None)
    assert build_library("answer", [source], prebuilt_directories=[tmp_path]) == prebuilt
    assert build_library("answer", [source]) == built  # the cache of a compiler that is gone
    (source.parent / "answer.h").write_text("#define ANSWER 1\n")
    with pytest.raises(NativeBuildError, match=r"no C\+\+ compiler: install g\+\+ or clang\+\+"):
        build_library("answer", [source], prebuilt_directories=[tmp_path])


def test_failed_compilation_shows_the_message_and_leaves_nothing(cache, source):
    source.write_text("int answer() { return missing; }\n")
    with pytest.raises(NativeBuildError, match=r"(?s)missing.*Command: .*answer\.cpp"):
        build_library("answer", [source])
    assert [path.name for path in cache.iterdir()] == ["lock"]


def test_library_that_others_can_write_is_refused(cache, source):
    library = build_library("answer", [source])
    library.chmod(0o777)
    with pytest.raises(CacheRefused, match="can be written by others"):
        build_library("answer", [source])
    library.chmod(0o500)
    cache.chmod(0o777)
    with pytest.raises(CacheRefused, match="can be written by others"):
        build_library("answer", [source])


def test_compiler_of_the_environment(source, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert native_build.find_compiler() is None


def test_structs_have_the_layout_of_the_header(stand_ins):
    values = (ctypes.c_int64 * 16)()
    count = ctypes.CDLL(str(stand_ins.library)).abi_layout(values)
    tensor, call = _native.Tensor, _native.KernelCall
    expected = [ctypes.sizeof(tensor), ctypes.sizeof(call)]
    expected += [getattr(tensor, name).offset for name in ("numel", "dtype", "ndim", "flags")]
    expected += [getattr(call, name).offset for name in ("device_context", "threads", "error_capacity")]
    assert values[:count] == expected
    assert expected[:2] == [40, 72]


def test_declarations_agree_with_the_header():
    """Every function of the header has as many arguments here; the driver's functions and the dtypes' codes agree."""
    header = (native_build.include_directory() / "mojo_runtime.h").read_text()
    abi = (native_build.include_directory() / "kernel_abi.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    declared = re.findall(r"MOJO_API\s+[\w *]+?\**(mojo_\w+)\(((?:[^()]|\([^()]*\))*)\)", text)
    assert len(declared) == len(re.findall(r"^MOJO_API", text, re.MULTILINE))
    library = _native.library()
    for name, arguments in declared:
        arguments = re.sub(r"\([^()]*\)", "", arguments)
        count = 0 if arguments.strip() == "void" else arguments.count(",") + 1
        assert len(getattr(library, name).argtypes) == count, name
    fields = re.search(r"typedef struct MojoDriver \{(.*?)\} MojoDriver", text, re.DOTALL)
    assert fields is not None
    assert tuple(re.findall(r"\(\*(\w+)\)", fields[1])) == _native.DRIVER_FUNCTIONS
    dtypes = dict(re.findall(r"MOJO_(\w+) = (\d+)", abi.split("enum MojoDType")[1].split("}")[0]))
    assert {name.lower(): int(code) for name, code in dtypes.items()} == _native.DTYPE_CODES
