"""Kernels of mojo-kernels as ops of a MAX graph.

MAX compiles the Mojo code of a custom op into the model, which for a GEMM or a convolution costs it many seconds for
each model. Here the op in the graph is a few lines that hand the addresses of its operands to the runtime, which calls
the compiled kernel that eager mode uses too; kernel and graph compile side by side, and the kernel only once ever.

A compiled model is stored on disk and holds no address: the op names its kernel by a text, the runtime's *call site*
(`mojo_call_site` in mojo_runtime.h), and finds the runtime's entry as a named global of Mojo's own runtime library.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from max.graph import DeviceRef, TensorType, TensorValue, ops

import mojo_runtime
from mojo_runtime import _native
from mojo_runtime.launch import Scalar, encode_scalars, slot
from mojo_runtime.toolchain import find_toolchain, package_root
from torch_mojo_compile.config import config
from torch_mojo_compile.values import View, barrier, view_of

_MAXIMUM_OUTPUTS = 5
_MAXIMUM_INPUTS = 12
_GLOBAL = b"torch_mojo_compile.call_site"


def _codes() -> str:
    """The branches of `code` below, one for each dtype that MAX has too."""
    dtypes = {name: number for name, number in _native.DTYPE_CODES.items() if not name.startswith("complex")}
    branches = [f"if dtype == DType.{name}:\n        return {number}\n" for name, number in dtypes.items()]
    last = 'else:\n        comptime assert False, "a dtype that kernels do not know"\n        return 0'
    return "comptime " + "    el".join(branches) + "    " + last


_HEADER = '''"""Ops that call compiled kernels; written by torch_mojo_compile.bridge."""

import extensibility
from extensibility import InputTensor, OutputTensor
from max.gpu.host import DeviceContext
from std.ffi import external_call
from std.benchmark import keep

comptime WORDS = 16
comptime MESSAGE = 512
comptime Text = Pointer[UInt8, MutUntrackedOrigin]
comptime CallSite = def(Int, Int, Int64, Int, Int, Int64) abi("C") thin -> Int32


def code[dtype: DType]() -> Int64:
    """The runtime's number of a dtype, MojoDType in C."""
    CODES

def call[target: StaticString, site: StaticString](operands: Int, count: Int, context: Int) raises:
    """Hands the operands to the runtime."""
    comptime name: StaticString = "GLOBAL"
    var entry = external_call["KGEN_CompilerRT_GetGlobalOrNull", Int](name.unsafe_ptr(), name.byte_length())
    if entry == 0:
        raise Error("torch_mojo_compile is not loaded in this process")
    var message = Array[UInt8, MESSAGE](fill=0)
    var function = Pointer(to=entry).unsafe_bitcast[CallSite]()[]
    comptime text = site + "\\0"
    var place = Int(Pointer(to=message))
    var status = function(Int(text.unsafe_ptr()), operands, Int64(count), context, place, Int64(MESSAGE))
    var failure = String("")
    if status != 0:
        failure = String(unsafe_from_utf8_ptr=Text(unsafe_from_address=place))
    # Reads, so that the buffer lives until here: its address alone does not keep it.
    if status != 0 or message[MESSAGE - 1] != 0:
        raise Error(failure)
'''.replace("CODES", _codes())

_OPERAND = """        words[WORDS * {i}] = Int64(Int({name}.unsafe_ptr()))
        words[WORDS * {i} + 1] = code[{name}.dtype]()
        words[WORDS * {i} + 2] = Int64({name}.rank)
        comptime for d in range({name}.rank):
            words[WORDS * {i} + 3 + d] = Int64({name}.dim_size(d))
"""

# MAX keeps compiled ops by their names and not by their content, so the name tells the content.
_VERSION = "torch_mojo_" + hashlib.sha256((_HEADER + _OPERAND).encode()).hexdigest()[:12]


def _op_source(outputs: int, inputs: int) -> str:
    names = [f"output{i}" for i in range(outputs)] + [f"input{i}" for i in range(inputs)]
    arguments = [f"{name}: {'OutputTensor' if i < outputs else 'InputTensor'}[...]" for i, name in enumerate(names)]
    body = "".join(_OPERAND.format(i=i, name=name) for i, name in enumerate(names))
    return f'''

@extensibility.register("{_VERSION}.call_{outputs}_{inputs}")
struct Call{outputs}x{inputs}:
    @staticmethod
    def execute[target: StaticString, site: StaticString](
        {", ".join(arguments)}, context: DeviceContext
    ) raises:
        var words = Array[Int64, WORDS * {len(names)}](fill=0)
{body}        call[target, site](Int(Pointer(to=words)), {len(names)}, 0)
        # The address alone does not keep the words.
        keep(words[0])
'''


@functools.cache
def _source() -> str:
    text = _HEADER.replace("GLOBAL", _GLOBAL.decode())
    for outputs in range(1, _MAXIMUM_OUTPUTS + 1):
        for inputs in range(_MAXIMUM_INPUTS + 1):
            text += _op_source(outputs, inputs)
    return text


def _op_name(outputs: int, inputs: int) -> str:
    return f"{_VERSION}.call_{outputs}_{inputs}"


@functools.cache
def precompile(name: str, source: str) -> Path:
    """Returns a precompiled Mojo package with one module; made once per content and compiler.

    Args:
        name: The package's name.
        source: Its text.

    Raises:
        RuntimeError: It does not compile; the message is the compiler's.
    """
    toolchain = find_toolchain()
    digest = hashlib.sha256("\0".join((name, source, toolchain.version)).encode()).hexdigest()[:24]
    result = config.store_folder / "packages" / digest / f"{name}.mojoc"
    if result.is_file():
        return result
    result.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=result.parent) as folder:
        package = Path(folder) / name
        package.mkdir()
        (package / "__init__.mojo").write_text(source)
        staged = Path(folder) / result.name
        run = subprocess.run(
            [str(toolchain.mojo), "precompile", str(package), "-o", str(staged)], capture_output=True, text=True
        )
        if run.returncode != 0:
            raise RuntimeError(f"the Mojo package {name} does not compile:\n{run.stderr}")
        os.replace(staged, result)
    return result


def package() -> Path:
    """Returns the precompiled package of the ops that call kernels."""
    return precompile("torch_mojo_bridge", _source())


@functools.cache
def connect() -> None:
    """Lets compiled models of this process find the runtime, and the runtime find torch's threads."""
    mojo_runtime.devices()
    entry = ctypes.cast(_native.library().mojo_call_site, ctypes.c_void_p).value
    library = ctypes.CDLL(str(Path(str(package_root())) / "lib" / "libKGENCompilerRTShared.so"))
    insert = library.KGEN_CompilerRT_InsertGlobal
    insert.restype, insert.argtypes = None, [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
    insert(_GLOBAL, len(_GLOBAL), entry)
    _native.library().mojo_use_openmp_of(b"libtorch_cpu.so")


def _token(view: View, broadcast: bool) -> str:
    if view.base.rank == 0 and view.order is None:
        order = ""
    else:
        order = "." if view.order is None else ",".join("x" if d is None else str(d) for d in view.order)
    # MAX hands a custom op a tensor without dimensions as one with one.
    return ("*" if broadcast else "") + (order or "_")


def call_kernel(
    kernel: str,
    outputs: Sequence[TensorType | None],
    inputs: Sequence[TensorValue | None],
    scalars: Sequence[Scalar | TensorValue] = (),
    *,
    broadcast: bool = False,
    contiguous: bool = False,
    device: DeviceRef | None = None,
) -> list[TensorValue | None]:
    """Adds the call of a kernel to the current graph and asks the runtime for the kernel.

    Args:
        kernel: The key of a KernelSpec.
        outputs: Types of the results, which the kernel takes first; None is one that is not wanted.
        inputs: The kernel's other tensors; None is an optional one that is not given. Transposed ones are not copied,
            unless `contiguous` says so.
        scalars: The kernel's scalars; a value of the graph, a single int64, is read when the kernel is called.
        broadcast: Whether the kernel wants all inputs in the sizes of the first output.
        contiguous: Whether the kernel reads no strides; MAX then writes transposed inputs out.
        device: Where to run; by default the first output's device.

    Returns:
        The results, None where one is not wanted.

    Raises:
        ValueError: The kernel has more tensors than a call can have.
    """
    views = [None if v is None else View(v, None) if contiguous else view_of(v) for v in inputs]
    operands = [view.base for view in views if view is not None]
    types = [output for output in outputs if output is not None]
    tokens = ["-" if output is None else "." if output.rank else "_" for output in outputs]
    tokens += ["-" if view is None else _token(view, broadcast) for view in views]
    words: list[str] = []
    given: list[TensorValue] = []
    for scalar in scalars:
        if isinstance(scalar, TensorValue):
            words.append(f"@{len(given)}")
            given.append(ops.reshape(scalar, [1]))
        else:
            words += map(str, encode_scalars([scalar]))
    held_back = barrier()
    if held_back is not None:
        # One more scalar than the kernel reads.
        words.append(f"@{len(given)}")
        given.append(held_back)
    if given:
        operands.append(given[0] if len(given) == 1 else ops.concat(given))
    if len(types) > _MAXIMUM_OUTPUTS or len(operands) > _MAXIMUM_INPUTS:
        raise ValueError(f"{kernel}: {len(types)} outputs and {len(operands)} inputs are too many for a graph's call")
    site = "\n".join((kernel, " ".join(words), " ".join(tokens)))
    slot(kernel).request()
    results = ops.custom(
        _op_name(len(types), len(operands)),
        device or types[0].device,
        operands,
        types,
        {"site": site},
    )
    made = iter(results)
    return [None if output is None else next(made).tensor for output in outputs]
