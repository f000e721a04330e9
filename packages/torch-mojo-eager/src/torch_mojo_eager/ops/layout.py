"""Which memory format torch gives to the results of an op."""

from __future__ import annotations

import torch
from torch import Tensor

_CHANNELS_LAST = {4: ((1, 3, 2, 0), torch.channels_last), 5: ((1, 4, 3, 2, 0), torch.channels_last_3d)}


def suggested_memory_format(tensor: Tensor) -> torch.memory_format:
    """Returns channels last where the strides say so, as torch's C++ `suggest_memory_format` does."""
    strides = tensor.stride()
    if tensor.ndim not in _CHANNELS_LAST or strides[1] == 0:
        return torch.contiguous_format
    order, layout = _CHANNELS_LAST[tensor.ndim]
    least = 0
    for d in order:
        # A tensor of one channel or one point has both formats; it counts as contiguous.
        if tensor.shape[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return torch.contiguous_format
        least = strides[d] * max(tensor.shape[d], 1)
    return layout
