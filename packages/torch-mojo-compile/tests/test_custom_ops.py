"""Kernels as typed functions of tensors, and the user's own as torch ops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from torch_mojo_compile import custom_mojo_ops, mojo_op
from torch_mojo_compile.graph import Lowered

KERNELS = '''"""Kernels of a user."""

from mojo_kernels.abi import KernelCall


def scale[dtype: DType](call: KernelCall) raises:
    """Multiplies by a number."""
    var output = call.tensor(0).pointer[dtype]()
    var input = call.tensor(1).pointer[dtype]()
    var factor = call.float_scalar(0).cast[dtype]()
    for i in range(Int(call.tensor(0).numel)):
        output.unsafe_store(i, input.unsafe_load(i) * factor)


def refuse[dtype: DType](call: KernelCall) raises:
    """Does not like its input."""
    raise Error("ValueError: this kernel refuses everything")
'''


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with kernels."""
    path = tmp_path_factory.mktemp("kernels") / "my_kernels.mojo"
    path.write_text(KERNELS)
    return path


@pytest.fixture(scope="module")
def scale(kernels: Path) -> torch._ops.OpOverload:
    """x * factor, with its gradient."""

    def setup_context(ctx: object, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]  # type: ignore[attr-defined]

    op = mojo_op(
        kernels,
        "scale",
        "(Tensor x, float factor) -> Tensor",
        lambda x, factor: torch.empty_like(x, memory_format=torch.contiguous_format),
        setup_context=setup_context,
        backward=lambda context, grad: (op(grad, context.factor), None),
    )
    return op


def test_op_runs_eagerly_with_a_gradient(scale: torch._ops.OpOverload) -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(scale(x.t(), 2.5), x.t() * 2.5)
    assert torch.autograd.gradcheck(lambda x: scale(x, 2.5), x)
    torch.library.opcheck(scale, (torch.randn(3, 4), 2.0))


def test_op_is_part_of_a_graph(scale: torch._ops.OpOverload, lowered: list[Lowered]) -> None:
    from torch_mojo_compile import mojo_backend

    x = torch.randn(5, requires_grad=True)
    found = torch.compile(lambda x: scale(x + 1, 3.0) * 2, backend=mojo_backend, fullgraph=True)(x)
    torch.testing.assert_close(found, (x + 1) * 6)
    found.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5,), 6.0))
    assert all("my_kernels.mojo:scale[dtype=float32]" in graph.text for graph in lowered)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_op_is_part_of_other_backends_graphs(scale: torch._ops.OpOverload, backend: str) -> None:
    x = torch.randn(5)
    found = torch.compile(lambda x: scale(x + 1, 3.0) * 2, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(found, (x + 1) * 6)


def test_errors_keep_their_type(kernels: Path, tmp_path: Path) -> None:
    refuse = mojo_op(kernels, "refuse", "(Tensor x) -> Tensor", torch.empty_like)
    with pytest.raises(ValueError, match="refuses everything"):
        refuse(torch.randn(3))
    with pytest.raises(FileNotFoundError, match="no file"):
        mojo_op(tmp_path / "none.mojo", "missing", "(Tensor x) -> Tensor", torch.empty_like)
    broken = tmp_path / "broken.mojo"
    broken.write_text("def broken(")
    with pytest.raises(RuntimeError, match=r"broken\.mojo"):
        mojo_op(broken, "broken", "(Tensor x) -> Tensor", torch.empty_like)(torch.randn(3))


def test_kernels_run_on_tensors() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    torch.testing.assert_close(custom_mojo_ops.matrix_product(a, b), a @ b)
    image, weight, bias = torch.randn(2, 3, 6, 6), torch.randn(4, 3, 3, 3), torch.randn(4)
    window = ([2, 2], [1, 1], [1, 1], 1)
    found = custom_mojo_ops.convolution(image, weight, bias, (2, 4, 3, 3), *window)
    torch.testing.assert_close(found, functional.conv2d(image, weight, bias, 2, 1), rtol=1e-4, atol=1e-5)
    x = torch.randn(6, 8)
    normal, mean, _ = custom_mojo_ops.layer_norm(x, None, None, (6, 1), 6, 8, 1e-5)
    torch.testing.assert_close(normal, functional.layer_norm(x, (8,)))
    torch.testing.assert_close(mean, x.mean(1, keepdim=True))
    query = torch.randn(1, 2, 5, 8)
    attended, logsumexp = custom_mojo_ops.attention(query, query, query, is_causal=True, scale=8**-0.5)
    torch.testing.assert_close(
        attended, functional.scaled_dot_product_attention(query, query, query, is_causal=True), rtol=1e-4, atol=1e-5
    )
    assert logsumexp.shape == (1, 2, 5)
    torch.testing.assert_close(custom_mojo_ops.reduce("amax", x, [1], (6, 1)), x.amax(1, keepdim=True))
    values, positions = custom_mojo_ops.sort(x, 1, descending=True)
    torch.testing.assert_close((values, positions), tuple(x.sort(dim=1, descending=True, stable=True)))
    rows = custom_mojo_ops.scatter_rows(x, torch.tensor([1, 1]), x[:2].contiguous(), accumulate=True)
    torch.testing.assert_close(rows, x.index_add(0, torch.tensor([1, 1]), x[:2]))
