"""Public bug reports about other backends: views, strides, offsets, in-place."""

from __future__ import annotations

import torch
from tests.cases.compare import same
from torch import nn
from torch.nn import functional as F


def test_column_slice_assignment(device):
    # https://github.com/pytorch/pytorch/issues/78074
    # `t[:, 0] = v` wrote only one row and zeroed a neighbour on MPS.
    t = torch.tensor([[1, 2, 3], [4, 5, 6]], device=device)
    t[:, 0] = 7
    same(t, torch.tensor([[7, 2, 3], [7, 5, 6]]))


def test_out_init_into_a_slice(device):
    # https://github.com/pytorch/pytorch/issues/92098
    # https://github.com/microsoft/DirectML/issues/431
    # `nn.init.eye_(t[0])` / `torch.eye(out=view)` silently left the base unchanged (MPS); `torch.eye` through the
    # CPU fallback returned an empty tensor (DirectML).
    t = torch.zeros(2, 3, 3, device=device)
    nn.init.eye_(t[0])
    torch.eye(3, out=t[1])
    same(t, torch.eye(3).expand(2, 3, 3))
    same(torch.eye(3, device=device), torch.eye(3))


def test_copy_of_a_0_dim_cpu_tensor_into_a_device_slice(device):
    # https://github.com/pytorch/pytorch/issues/86185
    # `x[:] = cpu_scalar_tensor` was a no-op on MPS while a 1-element tensor worked.
    x = torch.ones(10, device=device)
    x[:] = torch.tensor([4])[0]
    same(x, torch.full((10,), 4.0))
    x[2:4] = torch.tensor(7.0, dtype=torch.float64)
    same(x[2:4], torch.tensor([7.0, 7.0]))


def test_clamp_with_transposed_bound_tensors(device):
    # https://github.com/pytorch/pytorch/issues/87348
    # `torch.clamp(x, min_t, max_t)` read the bounds as if contiguous on MPS.
    x = torch.tensor([[0.4, -0.2], [-0.3, -1.2]])
    lo = torch.tensor([[1.0, 0.6], [-0.6, 0.5]]).t()
    hi = torch.tensor([[2.0, 1.3], [-0.1, 0.7]]).t()
    ref = torch.minimum(torch.maximum(x, lo), hi)
    same(torch.clamp(x.to(device), lo.to(device), hi.to(device)), ref)


def test_layer_norm_on_a_row_slice(device):
    # https://github.com/pytorch/pytorch/issues/131750
    # `layer_norm(x[1:3])` used the rows starting at offset 0 on MPS.
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    w = torch.arange(1.0, 5.0)
    b = torch.ones(4)
    full = F.layer_norm(x, (4,), w, b)
    xd = x.to(device)
    same(F.layer_norm(xd[1:3], (4,), w.to(device), b.to(device)), full[1:3], atol=1e-5, rtol=1e-5)
    same(F.layer_norm(xd[:, 1:3], (2,)), F.layer_norm(x[:, 1:3], (2,)), atol=1e-5, rtol=1e-5)


def test_random_in_place_fills_on_a_non_contiguous_tensor(device):
    # https://github.com/pytorch/pytorch/issues/165257
    # https://github.com/pytorch/pytorch/issues/124029
    # https://github.com/pytorch/pytorch/pull/165267
    # `normal_`, `uniform_`, `bernoulli_`, `random_`, `exponential_` silently did nothing on strided tensors (MPS).
    for fill in (
        lambda t: t.normal_(),
        lambda t: t.uniform_(1, 2),
        lambda t: t.bernoulli_(1.0),
        lambda t: t.exponential_(),
        lambda t: t.random_(1, 9),
    ):
        base = torch.zeros(6, 8, device=device)
        view = base.t()[::2]  # stride (2, 8)
        fill(view)
        assert (view.cpu() != 0).float().mean() > 0.9, fill
        assert (base.cpu()[:, 1::2] == 0).all()


def test_masked_fill_on_a_permuted_tensor(device):
    # https://github.com/pytorch/pytorch/issues/131285
    # https://github.com/pytorch/pytorch/pull/131957
    # In-place `masked_fill_` on a permuted destination used the wrong element order (and the existing test compared
    # two equally wrong paths).
    base = torch.arange(24.0).reshape(2, 3, 4)
    ref = base.permute(2, 0, 1).clone()
    m = ref > 10
    ref[m] = -1
    d = base.to(device).permute(2, 0, 1)
    d.masked_fill_(m.to(device), -1)
    same(d, ref)


def test_offset_step_on_a_leading_dim_eager_and_compiled(device, backend):
    # https://github.com/torch-spyre/torch-spyre/issues/2803
    # `x[1::2, :]` as a graph input (or sliced inside the graph) lost its storage offset under torch.compile: rows
    # 0,2,4,6 instead of 1,3,5,7.
    base = torch.arange(9.0).unsqueeze(1).expand(9, 8).contiguous()
    view = base.to(device)[1::2]
    exp = torch.tensor([2.0, 6.0, 10.0, 14.0])
    same((view + view)[:, 0], exp)
    same(torch.compile(lambda x: x + x, backend=backend)(view)[:, 0], exp)
    same(torch.compile(lambda b: b[1::2] * 2, backend=backend)(base.to(device))[:, 0], exp)


def test_host_copy_into_a_view_of_another_rank_a_tail_slice(device):
    # https://github.com/torch-spyre/torch-spyre/issues/465
    # https://github.com/torch-spyre/torch-spyre/pull/4010
    # H2D `copy_` into `out.view(N,H,D)` crashed; H2D into `x[-9:]` landed at the wrong offset.
    out = torch.zeros(8, 64, device=device)
    src = torch.arange(512.0).reshape(8, 4, 16)
    out.view(8, 4, 16).copy_(src)
    same(out, src.reshape(8, 64))
    x = torch.full((64,), -1, dtype=torch.int32, device=device)
    x[:9].copy_(torch.arange(9, dtype=torch.int32))
    x[-9:].copy_(torch.arange(9, dtype=torch.int32) + 100)
    x[20:40:2].copy_(torch.arange(10, dtype=torch.int32))
    ref = torch.full((64,), -1, dtype=torch.int32)
    ref[:9] = torch.arange(9)
    ref[-9:] = torch.arange(9) + 100
    ref[20:40:2] = torch.arange(10)
    same(x, ref)


def test_data_is_a_rebind_data_add_is_a_write(device):
    # https://github.com/pytorch/xla/issues/3392
    # https://github.com/pytorch/xla/issues/3330
    # Assigning `x.data = new` updated old views of x; `x.data = other_shape` failed.
    x = torch.zeros(10, device=device)
    y = x.view(2, 5)
    x.data.add_(1.0)
    same(y, torch.ones(2, 5))
    x.data = x.data + 1.0
    same(y, torch.ones(2, 5))
    same(x, torch.full((10,), 2.0))
    x.data = torch.zeros(3, device=device)
    assert x.shape == (3,)


def test_gradient_after_an_in_place_slice_write(device):
    # https://github.com/pytorch/xla/issues/1718
    # `h[:, :k] = 0` before the loss gave a wrong gradient norm on TPU.
    lin = nn.Linear(3, 4)
    torch.nn.init.ones_(lin.weight)
    lin = lin.to(device)
    h = lin(torch.ones(2, 3, device=device))
    h[:, :3] = 0
    h.sum().backward()
    same(lin.weight.grad, torch.tensor([[0.0, 0, 0], [0, 0, 0], [0, 0, 0], [2, 2, 2]]))
    same(lin.bias.grad, torch.tensor([0.0, 0, 0, 2]))


def test_misaligned_vector_access_on_an_odd_offset_view(device):
    # `add_` on an offset view raised a CUDA misaligned-address fault: the vectorised kernel assumed 16-byte
    # alignment of the base pointer.
    for dt in (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8):
        base = torch.zeros(1027, dtype=dt, device=device)
        for off in (1, 2, 3, 5):
            v = base[off : off + 1000]
            v.add_(1)
            v.mul_(1)
        same(base[0:1], torch.zeros(1, dtype=dt))
        same(base[100:101], torch.full((1,), 4, dtype=dt))
        same(base[1006:], torch.zeros(21, dtype=dt))


def test_matmul_operands_with_an_odd_storage_offset(device):
    # https://github.com/intel/torch-xpu-ops/issues/1656
    # SDPA/matmul operands made with `as_strided(..., offset=997)` gave wrong results in eager XPU (library assumes
    # an aligned base).
    g = torch.Generator().manual_seed(1)
    buf = torch.randn(4096, generator=g)
    q = buf.as_strided((2, 8, 16), (128, 16, 1), 997)
    k = buf.as_strided((2, 8, 16), (128, 16, 1), 1501)
    bd = buf.to(device)
    qd = bd.as_strided((2, 8, 16), (128, 16, 1), 997)
    kd = bd.as_strided((2, 8, 16), (128, 16, 1), 1501)
    same(qd @ kd.transpose(1, 2), q @ k.transpose(1, 2), atol=1e-4, rtol=1e-4)
    same(F.scaled_dot_product_attention(qd, kd, kd), F.scaled_dot_product_attention(q, k, k), atol=1e-4, rtol=1e-4)


def test_linear_with_a_non_contiguous_weight(device):
    # https://github.com/pytorch/pytorch/issues/162730
    # https://github.com/pytorch/pytorch/pull/162779
    # `F.linear(x, W.t())` took a fast path that assumed a contiguous weight.
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, generator=g)
    w = torch.randn(5, 4, generator=g)
    b = torch.randn(8, generator=g)[::2]
    same(F.linear(x.to(device), w.to(device).t(), b.to(device)), x @ w + b, atol=1e-5, rtol=1e-5)


def test_addmm_with_square_operands(device):
    # https://github.com/pytorch/pytorch/issues/116331
    # https://github.com/pytorch/pytorch/pull/116547
    # addmm guessed 'transposed' from equal sizes and returned the transposed product.
    b = torch.arange(4.0).reshape(2, 2)
    same(torch.addmm(torch.zeros(2, 2, device=device), torch.eye(2, device=device), b.to(device)), b)
    same(
        torch.addmm(torch.ones(2, device=device), b.to(device), b.to(device).t(), beta=2, alpha=3), 2 + 3 * (b @ b.t())
    )
