"""Public bug reports about other backends: random numbers."""

from __future__ import annotations

import torch
from tests.cases.compare import same
from torch.nn import functional as F


def test_generator_get_state_set_state(device):
    # https://github.com/pytorch/pytorch/issues/130613
    # A generator restored with set_state restarted from the seed instead of the saved position.
    g = torch.Generator(device=device).manual_seed(42)

    def draw(gen):
        return torch.empty(3, 3, device=device).exponential_(generator=gen)

    draw(g)
    draw(g)
    st = g.get_state()
    c = draw(g)
    g2 = torch.Generator(device=device)
    g2.set_state(st)
    same(draw(g2), c)
    g.set_state(st)
    same(draw(g), c)
    assert not torch.equal(draw(g).cpu(), c.cpu())
    torch.manual_seed(0)
    a = torch.rand(5, device=device)
    torch.manual_seed(0)
    same(torch.rand(5, device=device), a)


def test_sdpa_dropout_p_must_be_applied_or_refused(device):
    # https://github.com/pytorch/pytorch/pull/184126
    # dropout_p was accepted and ignored: same output for 0.0, 0.5, 0.9.
    torch.manual_seed(0)
    q = torch.randn(1, 2, 64, 8).to(device)
    a = F.scaled_dot_product_attention(q, q, q)
    try:
        b = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    except NotImplementedError:
        b = None
    assert b is None or not torch.allclose(a.cpu(), b.cpu())


def test_random_numbers_inside_a_compiled_function(device, backend):
    # https://github.com/pytorch/xla/issues/8636
    # https://github.com/pytorch/xla/pull/1932
    # The RNG value was baked into the compiled graph, so every call of a jitted model used the same dropout mask.
    f = torch.compile(lambda x: F.dropout(x, 0.5), backend=backend)
    x = torch.ones(256, device=device)
    torch.manual_seed(0)
    a = f(x).cpu()
    b = f(x).cpu()
    torch.manual_seed(0)
    c = f(x).cpu()
    assert not torch.equal(a, b) and torch.equal(a, c)
