"""Public bug reports about other backends: indexing, scatter, embedding."""

from __future__ import annotations

import torch
from tests.cases.compare import same
from torch import nn


def test_index_add_scatter_add_with_duplicates_moe_combine(device, backend):
    # https://github.com/torch-spyre/torch-spyre/issues/3638
    # `index_add_` of expert outputs into token rows compiled and ran but returned wrong values.
    def combine(out, tok, seg):
        out = out.clone()
        out.index_add_(0, tok, seg)
        return out

    tok = torch.arange(16).repeat_interleave(4)
    seg = torch.arange(64.0)[:, None].expand(64, 3).contiguous()
    out = torch.zeros(16, 3)
    ref = seg.reshape(16, 4, 3).sum(1)
    args = [t.to(device) for t in (out, tok, seg)]
    same(combine(*args), ref)
    same(torch.compile(combine, backend=backend)(*args), ref)
    same(out.to(device).scatter_add(0, tok[:, None].expand(64, 3).to(device), seg.to(device)), ref)
    same(
        torch.zeros(3, device=device).scatter_reduce(
            0,
            torch.tensor([0, 0, 2], device=device),
            torch.tensor([5.0, 3, 1], device=device),
            "amax",
            include_self=False,
        ),
        torch.tensor([5.0, 0, 1]),
    )


def test_embedding_padding_idx_gradient(device):
    # https://github.com/pytorch/pytorch/issues/103023
    # The padding row accumulated gradient on MPS.
    e = nn.Embedding(5, 3, padding_idx=0).to(device)
    e(torch.tensor([[0, 1, 1, 2]], device=device)).sum().backward()
    same(e.weight.grad, torch.tensor([0.0, 2, 1, 0, 0]).repeat(3, 1).t())
