"""Public bug reports about other backends: torch.compile."""

from __future__ import annotations

import torch
from tests.cases.compare import same
from torch import nn


def test_output_that_is_a_view_of_the_input(device, backend):
    # https://github.com/pytorch/xla/issues/5430
    # A compiled function returning `x.view(-1)` must return a real alias that may be mutated.
    g = torch.compile(lambda x: (x.view(-1), x + 1), backend=backend)
    x = torch.ones(2, 2, device=device)
    v, _ = g(x)
    v.mul_(3)
    same(x, torch.full((2, 2), 3.0))
    h = torch.compile(lambda x: x, backend=backend)
    assert h(x) is x or h(x).data_ptr() == x.data_ptr()
    r = torch.ones(2, 2, device=device, requires_grad=True).clone()
    o = torch.compile(lambda t: t.view(-1), backend=backend)(r)
    o.mul_(2)
    o.sum().backward()


def test_mutable_custom_op_on_views(device, backend):
    # https://github.com/pytorch/pytorch/issues/153389
    # https://github.com/pytorch/pytorch/issues/131192
    # A custom op mutating two rows of one tensor, then read through views, gave eager-different results.
    if not hasattr(torch.ops, "h5lib") or not hasattr(torch.ops.h5lib, "inpl"):

        @torch.library.custom_op("h5lib::inpl", mutates_args={"a", "b"})
        def inpl(a: torch.Tensor, b: torch.Tensor) -> None:
            a.add_(1)
            b.add_(2)

    def f(t):
        a, b = t[0], t[1]
        torch.ops.h5lib.inpl(a, b)
        return a[0] + b[0]

    t1 = torch.zeros(2, 3, device=device)
    t2 = torch.zeros(2, 3, device=device)
    same(torch.compile(f, backend=backend)(t1), f(t2).cpu())
    same(t1, torch.tensor([[1.0] * 3, [2.0] * 3]))


def test_mutation_of_buffers_and_module_state_in_a_compiled_train_step(device, backend):
    # https://github.com/pytorch/pytorch/issues/118959
    # https://github.com/pytorch/pytorch/issues/139628
    # In-place buffer updates (BatchNorm running stats, step counters, KV cache slices) must persist after the
    # compiled call.
    class Mod(nn.Module):
        def __init__(s):
            super().__init__()
            s.bn = nn.BatchNorm1d(2)
            s.register_buffer("n", torch.zeros((), dtype=torch.int64))
            s.register_buffer("kv", torch.zeros(4, 2))

        def forward(s, x):
            s.n += 1
            s.kv[1:3] = x[:2]
            return s.bn(x)

    a, x = Mod().to(device), torch.tensor([[1.0, 2], [3, 4], [5, 9]])
    b = Mod()
    c = torch.compile(a, backend=backend)
    for _ in range(3):
        c(x.to(device))
        b(x)
    assert a.n.item() == 3
    same(a.kv, b.kv)
    same(a.bn.running_var, b.bn.running_var, atol=1e-5, rtol=1e-5)
    assert a.bn.num_batches_tracked.item() == 3


def test_manual_seed_inside_a_compiled_function(device, backend):
    # https://github.com/pytorch/pytorch/issues/107187
    # https://github.com/pytorch/pytorch/issues/95161
    # AOT graphs did not see `torch.manual_seed`, so two calls differed.
    @torch.compile(backend=backend)
    def foo():
        torch.manual_seed(3)
        return torch.rand(4, device=device)

    same(foo(), foo().cpu())
