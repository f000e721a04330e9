"""Calling a kernel on torch tensors, eagerly."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

import mojo_runtime
from mojo_runtime import _native
from mojo_runtime.launch import encode_scalars
from torch_mojo_compile.dtypes import kernel_dtype

_WORDS = 16
_ERROR_BYTES = 2048


def call_on_tensors(
    kernel: str,
    outputs: Sequence[torch.Tensor | None],
    inputs: Sequence[torch.Tensor | None],
    scalars: Sequence[Any] = (),
    *,
    broadcast: bool = False,
) -> None:
    """Runs a kernel on contiguous torch tensors.

    Args:
        kernel: The key of a KernelSpec.
        outputs: What it writes; None is an output that is not wanted.
        inputs: Its other tensors; None is an optional one that is not given.
        scalars: Its scalars.
        broadcast: Whether the kernel wants all inputs in the sizes of the first output.

    Raises:
        RuntimeError: It does not compile or failed.
        NotImplementedError: The tensors are on a device that the runtime does not have.
    """
    present = [tensor for tensor in (*outputs, *inputs) if tensor is not None]
    words = encode_scalars(scalars)
    device = present[0].device
    if device.type == "mojo":
        if broadcast:
            inputs = [None if t is None or outputs[0] is None else t.expand(outputs[0].shape) for t in inputs]
        torch.ops.mojo.launch(kernel, [*outputs, *inputs], words)
        return
    mojo_runtime.devices()
    native = _native.library()
    if device.type != "cpu" or not native.mojo_is_cpu():
        raise NotImplementedError(f"{kernel} has no tensors on {device} in this process; move them to the mojo device")
    operands = (ctypes.c_int64 * (_WORDS * len(present)))()
    for i, tensor in enumerate(present):
        if not tensor.is_contiguous():
            raise RuntimeError(f"{kernel}: tensor {i} of sizes {list(tensor.shape)} must be contiguous")
        header = [tensor.data_ptr(), _native.DTYPE_CODES[kernel_dtype(tensor.dtype)], tensor.dim(), *tensor.shape]
        operands[_WORDS * i : _WORDS * i + len(header)] = header
    given = "*." if broadcast else "."
    tokens = ["-" if tensor is None else "." for tensor in outputs]
    tokens += ["-" if tensor is None else given for tensor in inputs]
    site = "\n".join((kernel, " ".join(map(str, words)), " ".join(tokens))).encode()
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    status = native.mojo_call_site(site, operands, len(present), None, error, _ERROR_BYTES)
    if status != _native.OK:
        raise _native.EXCEPTIONS.get(status, RuntimeError)(error.value.decode(errors="replace"))
