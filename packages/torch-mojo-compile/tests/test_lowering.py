"""What is lowered, what is refused, and how graphs look; nothing here is compiled by MAX."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from torch_mojo_compile import UnsupportedOps, mojo_backend
from torch_mojo_compile.executable import Executable
from torch_mojo_compile.graph import Lowered, permutation
from torch_mojo_compile.lowerings.table import lowered as lowered_ops


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiles a function with the backend under test."""
    return torch.compile(function, backend=mojo_backend, options=options, fullgraph=True)


def test_table_is_broad() -> None:
    assert len(lowered_ops()) >= 250


def test_all_missing_ops_are_named_at_once(lowered: list[Lowered]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.frexp(x).mantissa + torch.matrix_exp(x @ x) + torch.frexp(x + 1).mantissa

    with pytest.raises(Exception, match="can't lower") as caught:
        compiled(function)(torch.randn(3, 3))
    message = str(caught.value)
    assert "frexp.default (x2)" in message
    assert "linalg_matrix_exp.default (x1)" in message
    assert "torch.frexp(x)" in message, "the user's line"
    assert not lowered


def test_what_lowerings_refuse_is_named_with_the_rest(lowered: list[Lowered]) -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = torch.frexp(x).mantissa.index_put((mask,), x[:2])
        return y.index_put((mask,), x[1:]) + y.index_put((mask,), x[1:] + 1)

    with pytest.raises(Exception, match="can't lower 2 things") as caught:
        compiled(function)(torch.randn(3), torch.tensor([True, False, True]))
    assert "frexp.default (x1)" in str(caught.value)
    assert "index_put with a mask and several values depends on data (x3)" in str(caught.value)
    assert not lowered


def test_complex_is_refused_by_name(lowered: list[Lowered]) -> None:
    with pytest.raises(Exception, match=r"torch\.complex64 tensors"):
        compiled(lambda x: x * 2)(torch.randn(3, dtype=torch.complex64))


def test_meta_tensors_are_refused_by_name(lowered: list[Lowered]) -> None:
    with pytest.raises(Exception, match="of the meta device"):
        compiled(lambda x: x * 2)(torch.empty(3, device="meta"))


def test_compiled_graphs_are_not_pickled(lowered: list[Lowered]) -> None:
    model = nn.Linear(2, 2).requires_grad_(False)
    wrapped = torch.compile(model, backend=mojo_backend)
    x = torch.randn(3, 2)
    wrapped(x)
    with pytest.raises(TypeError, match="can't be pickled; pickle the module"):
        pickle.dumps(Executable(lowered[0], None, torch.fx.symbolic_trace(model)))
    # A module that torch.compile wraps is itself: it travels, and is compiled again where it arrives.
    again = pickle.loads(pickle.dumps(wrapped))
    torch.testing.assert_close(again(x), model(x))


class Wrapped(torch.Tensor):
    """A tensor subclass of another's elements, which says how it is taken apart."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:  # type: ignore[override]
        # Dynamo logs tensors that have no numbers yet.
        return f"Wrapped({list(self.shape)})"

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts: Any, _context: Any, _size: Any, _stride: Any) -> Any:
        return Wrapped(parts["inner"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Wrapped) else a for a in args]
        return Wrapped(function(*plain, **(kwargs or {})))


def test_tensor_subclasses_are_compiled_as_what_they_hold(lowered: list[Lowered]) -> None:
    x = torch.randn(3)
    result = compiled(lambda w: w * 2)(Wrapped(x))
    assert isinstance(result, Wrapped)
    torch.testing.assert_close(result.inner, x * 2)
    assert len(lowered) == 1


def test_unknown_option() -> None:
    with pytest.raises(Exception, match="no options \\['asynch'\\]"):
        compiled(lambda x: x + 1, asynch=True)(torch.randn(3))


def test_fallback_runs_missing_ops_eagerly(lowered: list[Lowered], capfd: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.frexp(x * 2 + 1).mantissa * 3 - x

    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(function, fallback="eager")(x), function(x))
    assert len(lowered) == 2
    assert "frexp.default (x1)" in capfd.readouterr().err


def test_fallback_runs_what_lowerings_refuse_eagerly(lowered: list[Lowered], capfd: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return (x * 2).index_put((mask,), values) * torch.frexp(x).mantissa + 1

    arguments = torch.randn(3), torch.tensor([True, False, True]), torch.randn(2)
    torch.testing.assert_close(compiled(function, fallback="eager")(*arguments), function(*arguments))
    assert len(lowered) == 2
    message = capfd.readouterr().err
    assert "index_put.default (x1)" in message
    assert "frexp.default (x1)" in message


def test_fallback_leaves_meta_tensors_to_torch(lowered: list[Lowered]) -> None:
    assert compiled(lambda x: x * 2 + 1, fallback="eager")(torch.empty(3, device="meta")).shape == (3,)
    assert not lowered


def test_forward_and_backward_are_lowered_together(lowered: list[Lowered]) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    x = torch.randn(3, 4)
    loss = torch.compile(model, backend=mojo_backend)(x).sum()
    assert [graph.name for graph in lowered] == ["forward_0", "backward_1"]
    loss.backward()
    assert len(lowered) == 2


@pytest.mark.parametrize("training", [False, True])
def test_a_new_batch_size_recompiles_once(lowered: list[Lowered], training: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Flatten(0), nn.GELU())
    function = torch.compile(model, backend=mojo_backend)
    for batch in (3, 5, 7, 9):
        with torch.set_grad_enabled(training):
            result = function(torch.randn(batch, 4))
            if training:
                result.sum().backward()
    assert len(lowered) == (4 if training else 2)


def test_transposed_operands_are_not_copied(lowered: list[Lowered]) -> None:
    compiled(functional.linear)(torch.randn(3, 4), torch.randn(5, 4))
    assert "1,0" in lowered[0].text
    (call,) = [line for line in lowered[0].text.splitlines() if ".call_1_2" in line]
    assert "(%arg0, %arg1)" in call


def test_kernels_without_strides_get_no_transposed_operand(lowered: list[Lowered]) -> None:
    # The gradient of layer norm arrives transposed, by way of the product behind it.
    def function(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (4,)).transpose(0, 1) * 2

    torch.compile(function, backend=mojo_backend)(torch.randn(3, 5, 4, requires_grad=True))
    for graph in lowered:
        sites = [line for line in graph.text.splitlines() if "normalization.layer_norm" in line]
        assert sites
        assert all("1,0" not in line for line in sites)


def test_operands_of_kernels_are_converted(lowered: list[Lowered]) -> None:
    # The kernel reads both as float64.
    compiled(functional.mse_loss)(torch.randn(3, 4), torch.randn(3, 4, dtype=torch.float64))
    assert "f32>) -> !mo.tensor<[3, 4], f64>" in lowered[0].text


def test_operands_of_other_dtypes_are_refused(lowered: list[Lowered]) -> None:
    weight = torch.randn(4, dtype=torch.float64)
    with pytest.raises(Exception, match=r"expected weight to have dtype float32, but got float64; convert with \.to"):
        compiled(functional.nll_loss)(torch.randn(3, 4), torch.tensor([0, 1, 3]), weight)


def test_scalars_of_optimizers_do_not_recompile(lowered: list[Lowered]) -> None:
    texts = []
    for rate in (0.1, 0.2):
        torch._dynamo.reset()
        rate_tensor = torch.tensor(rate)
        compiled(lambda p, g, r: p - r * g)(torch.randn(3), torch.randn(3), rate_tensor)
        texts.append(lowered[-1].text)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.empty(2, 3, 4), None),
        (torch.empty(2, 3, 4).permute(2, 0, 1), (1, 2, 0)),
        (torch.empty(2, 1, 4).transpose(0, 1), None),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), (0, 2, 3, 1)),
        (torch.empty(4, 4)[:, ::2], None),
        (torch.empty(0, 3).t(), None),
    ],
    ids=["contiguous", "permuted", "size one", "channels last", "sliced", "empty"],
)
def test_order_of_dimensions_in_memory(tensor: torch.Tensor, order: tuple[int, ...] | None) -> None:
    assert permutation(tensor) == order
    if order is not None:
        assert tensor.permute(order).is_contiguous()


def test_error_has_the_node_and_the_line(lowered: list[Lowered]) -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_put((mask,), values)

    with pytest.raises(Exception, match="depends on data") as caught:
        compiled(function)(torch.randn(3), torch.tensor([True, False, True]), torch.randn(2))
    assert "index_put" in str(caught.value)
    assert "x.index_put((mask,), values)" in str(caught.value)
    assert isinstance(caught.value.inner_exception, UnsupportedOps)  # type: ignore[attr-defined]
