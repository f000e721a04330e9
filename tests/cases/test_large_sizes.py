"""Public bug reports about other backends: large sizes, up to 5 GiB of memory."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.slow
def test_element_offsets_beyond_2_31(device):
    # https://github.com/pytorch/pytorch/issues/182052
    # https://github.com/pytorch/pytorch/issues/153560
    # https://github.com/pytorch/pytorch/issues/197636
    # uint32 index arithmetic wrapped silently in copy/slice/bmm kernels.
    n = 2**31 + 16
    x = torch.zeros(n, dtype=torch.int8, device=device)
    x[-3:] = 7
    x[2**31] = 5
    assert x[-1].item() == 7 and x[2**31].item() == 5 and x[3].item() == 0 and x[n - 2**31].item() == 0
    assert torch.count_nonzero(x).item() == 4
    if device.type != "cpu":
        assert x.sum().item() == 26 and x.argmax().item() == n - 3  # CPU upcasts to int64: 16 GiB
    v = x[1::2]
    v[-1] = 9
    assert x[-1].item() == 9 and v.shape[0] == n // 2 and v[-2].item() == 7
