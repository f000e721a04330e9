"""Element types of torch and MAX."""

from __future__ import annotations

import torch
from max.dtype import DType

_TO_MAX = {
    torch.bool: DType.bool,
    torch.uint8: DType.uint8,
    torch.uint16: DType.uint16,
    torch.uint32: DType.uint32,
    torch.uint64: DType.uint64,
    torch.int8: DType.int8,
    torch.int16: DType.int16,
    torch.int32: DType.int32,
    torch.int64: DType.int64,
    torch.float16: DType.float16,
    torch.bfloat16: DType.bfloat16,
    torch.float32: DType.float32,
    torch.float64: DType.float64,
}


def is_supported(dtype: torch.dtype) -> bool:
    """Whether tensors of a dtype can be in a graph."""
    return dtype in _TO_MAX


def to_max(dtype: torch.dtype) -> DType:
    """Returns MAX's name of a dtype.

    Raises:
        NotImplementedError: MAX has no such tensors, e.g. complex ones.
    """
    try:
        return _TO_MAX[dtype]
    except KeyError:
        raise NotImplementedError(f"{dtype} tensors can't be in a MAX graph") from None


def kernel_dtype(dtype: torch.dtype) -> str:
    """Returns a dtype's name in the keys of kernels."""
    return str(dtype).removeprefix("torch.")
