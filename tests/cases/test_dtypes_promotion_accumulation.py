"""Public bug reports about other backends: dtypes, promotion, accumulation."""

from __future__ import annotations

import torch
from tests.cases.compare import same


def test_cumsum_sum_of_bool_and_small_ints(device):
    # https://github.com/pytorch/pytorch/pull/125318
    # https://github.com/pytorch/pytorch/issues/96614
    # https://github.com/pytorch/pytorch/issues/106112
    # https://github.com/pytorch/pytorch/issues/109166
    # https://github.com/pytorch/pytorch/issues/90635
    # `ones(128, bool).cumsum(0)[-1]` was -128: the scan ran in int8.
    c = torch.ones(300, dtype=torch.bool, device=device).cumsum(0)
    assert c.dtype == torch.int64
    same(c[-1], torch.tensor(300))
    u = torch.full((300,), 200, dtype=torch.uint8, device=device)
    assert u.sum().dtype == torch.int64 and u.sum().item() == 60000 and u.cumsum(0)[-1].item() == 60000
    assert torch.full((4,), 100, dtype=torch.int8, device=device).prod().item() == 10**8


def test_integer_abs_arithmetic_above_2_24(device):
    # https://github.com/pytorch/pytorch/issues/190052
    # Integer `abs` went through float32 and corrupted ids above 16 777 216.
    big = torch.tensor([-(2**24 + 1), -(2**33 + 7), -(2**62 + 1)], device=device)
    assert big.abs().tolist() == [2**24 + 1, 2**33 + 7, 2**62 + 1]
    assert (big * 2 - big).tolist() == big.tolist()
    assert torch.tensor([2**24 + 1], dtype=torch.int32, device=device).abs().item() == 2**24 + 1
    assert (torch.tensor([2**53 + 1], device=device) // 1).item() == 2**53 + 1 and torch.tensor(
        [2**53 + 1], device=device
    ).max().item() == 2**53 + 1


def test_floor_division_and_remainder_signs(device):
    # https://github.com/pytorch/pytorch/issues/44858
    # https://github.com/kulinseth/pytorch/pull/243
    # https://github.com/ml-explore/mlx/pull/4346
    # Integer `//` truncated toward zero; int32 -616 // 28 gave -23 because it was done in fast-math float.
    a = torch.tensor([-7, 7, -7, 7, -616], dtype=torch.int32, device=device)
    b = torch.tensor([2, 2, -2, -2, 28], dtype=torch.int32, device=device)
    same(a // b, torch.tensor([-4, 3, 3, -4, -22], dtype=torch.int32))
    same(a % b, torch.tensor([1, 1, -1, -1, 0], dtype=torch.int32))
    same(torch.fmod(a, b), torch.tensor([-1, 1, -1, 1, 0], dtype=torch.int32))
    same(torch.div(a, b, rounding_mode="trunc"), torch.tensor([-3, 3, 3, -3, -22], dtype=torch.int32))
    f = torch.tensor([-7.0, 7.0, float("inf"), 1.0], device=device)
    d = torch.tensor([2.0, -2.0, 2.0, 0.0], device=device)
    same(f // d, torch.tensor([-4.0, -4.0, float("nan"), float("inf")]))


def test_half_precision_sums_accumulate_in_float32(device):
    # https://github.com/ml-explore/mlx/pull/3909
    # https://github.com/pytorch/executorch/pull/20090
    # A bf16 sum stuck at 256 and a fp16 sum at 16384/2048 when the accumulator is in the input dtype;
    # mean/var/softmax/norms inherit it.
    o = torch.ones(70000, dtype=torch.bfloat16, device=device)
    assert abs(o.sum().item() - 70144) < 600 and o.mean().item() == 1.0
    assert torch.ones(20000, dtype=torch.float16, device=device).sum().item() == 20000
    s = torch.zeros(1, 512, dtype=torch.bfloat16, device=device).softmax(-1)
    assert abs(s[0, 0].item() - 1 / 512) < 1e-5
    assert (
        torch.full((4, 40000), 2.0, dtype=torch.float16, device=device).mean(1).tolist() == [2.0] * 4
    )  # total is above fp16 max


def test_0_dim_tensors_do_not_promote_within_a_category(device):
    # https://github.com/torch-spyre/torch-spyre/pull/3912
    # https://github.com/pytorch/pytorch/issues/9515
    # https://github.com/pytorch/pytorch/issues/153127
    # fp16 tensor + 0-dim fp32 tensor came back tagged fp32 on the device.
    h = torch.ones(4, dtype=torch.float16, device=device)
    i = torch.ones(4, dtype=torch.int32, device=device)
    z64 = torch.tensor(2.0, dtype=torch.float64)
    for r, dt in (
        (h + torch.tensor(2.0, device=device), torch.float16),
        (h * 2.0, torch.float16),
        (h + z64, torch.float16),
        (i + torch.tensor(2.5, device=device), torch.float32),
        (i * 2.5, torch.float32),
        (i + torch.tensor(3, dtype=torch.int64, device=device), torch.int32),
        (i / 2, torch.float32),
        (torch.ones(4, dtype=torch.bool, device=device) + 1, torch.int64),
        (torch.maximum(h, torch.tensor(0.0, device=device)), torch.float16),
    ):
        assert r.dtype == dt, (r.dtype, dt)


def test_native_layer_norm_output_dtypes(device):
    # Which dtype mean and rstd have for a bf16 input: CPU returns bf16, CUDA
    # float32.
    x = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    ref = torch.native_layer_norm(x, (8,), None, None, 1e-5)
    got = torch.native_layer_norm(x.to(device), (8,), None, None, 1e-5)
    assert [t.shape for t in got] == [t.shape for t in ref]
    print([t.dtype for t in got], "cpu:", [t.dtype for t in ref])
    same(got[0], ref[0], atol=2e-2, rtol=2e-2)
