"""Runs a node: the samples of an entry on the device and on the CPU, and what they give compared."""

from __future__ import annotations

import dataclasses
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from tests.conformance.compare import Difference, compare, same_distribution
from tests.conformance.nodes import Node, operators
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import UnaryUfuncInfo
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

# Values of these are random: their distributions are compared.
RANDOM = {
    "bernoulli",
    "cauchy",
    "exponential",
    "geometric",
    "log_normal",
    "multinomial",
    "normal",
    "normal.in_place",
    "normal.number_mean",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "uniform",
    "nn.functional.dropout",
    "nn.functional.dropout2d",
    "nn.functional.dropout3d",
    "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout.with_train",
    "nn.functional.rrelu",
    "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d",
}
# Of these, how many last dimensions are drawn together; 0: all but two.
CHANNELS = {
    "nn.functional.dropout2d": 2,
    "nn.functional.dropout3d": 3,
    "nn.functional.feature_alpha_dropout.with_train": 0,
}
# Values of these are what memory held.
UNINITIALIZED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
}
# Factors that are not unique, of random projections: only shapes can be compared.
PROJECTIONS = {"svd_lowrank", "pca_lowrank"}

# Which of equal elements is found is not specified, but for stable sorts.
TIES = {"argsort", "kthvalue", "median", "mode", "msort", "nanmedian", "sort", "topk"}
# The device keeps statistics of half types in float32, as CUDA does; CPU torch rounds them.
STATISTICS = {
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
}
# Tensor arguments that torch wants on the CPU for every device.
HOST_ARGUMENTS = {"tensor_split"}

_ABSENT = re.compile(r"^(?:aten::)?(?P<name>\S+) is not implemented on mojo \(operands: (?P<operands>[^)]*)\)")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a node gave.

    Attributes:
        node: The check.
        status: "passed"; "absent": something raised NotImplementedError; "failed"; "empty": no sample applies.
        reason: Of absence, the aten op that is missing; of failure, the message.
        seconds: How long it took.
    """

    node: Node
    status: str
    reason: str = ""
    seconds: float = 0.0


class _Skipped(Exception):
    """A sample that does not apply: CPU torch has no result for it either."""


def _mapped(value: Any, tensor: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return tensor(leaf)
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return torch.device("mojo")
        return "mojo" if isinstance(leaf, str) and leaf == "cpu" else leaf

    return tree_map(convert, value)


def _copy(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the same strides in a copy of the same storage."""
    source = tensor.detach()
    if source.layout != torch.strided:
        return source.clone().to(device)
    memory = torch.empty(0, dtype=source.dtype).set_(source.untyped_storage())
    moved = memory.clone() if device == "cpu" else memory.to(device)
    copied = moved.as_strided(source.shape, source.stride(), source.storage_offset())
    copied = copied.conj() if source.is_conj() else copied
    return torch._neg_view(copied) if source.is_neg() else copied


def on_device(value: Any) -> Any:
    """Returns samples with their tensors, and the devices they name, on the device; leaves of autograd stay leaves."""
    seen: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in seen:
            seen[id(tensor)] = _copy(tensor, "mojo").requires_grad_(tensor.requires_grad)
        return seen[id(tensor)]

    return _mapped(value, move)


def _device_parts(entry: Any, host: Any) -> Any:
    device = on_device(host)
    return (device[0], *host[1:]) if entry.full_name in HOST_ARGUMENTS else device


def _parts(sample: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return sample.input, tuple(sample.args), dict(sample.kwargs)


def _clone(value: Any) -> Any:
    def cloned(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return _copy(x, "cpu") if x.device.type == "cpu" else x.detach().clone()

    return tree_map(cloned, value)


HALF = (torch.bfloat16, torch.float16)
_WIDER = {torch.float32: torch.float64, torch.bfloat16: torch.float64, torch.float16: torch.float64}


def _widened(value: Any, *, rounded: bool = False) -> Any:
    """The same numbers in float64, or numbers that differ from them by what rounding them may."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return _WIDER.get(leaf, torch.complex128 if leaf == torch.complex64 else leaf)
        if isinstance(leaf, LinearCrossEntropyOptions):
            return dataclasses.replace(leaf, acc_policy="auto", acc_dtype=None)
        if not isinstance(leaf, torch.Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        wide = leaf.detach().to(torch.complex128 if leaf.is_complex() else torch.float64)
        if rounded:
            signs = torch.arange(leaf.numel()).remainder(2).mul(2).sub(1).reshape(leaf.shape)
            # Half types too are computed in float32.
            exact = leaf.dtype in (torch.float64, torch.complex128)
            wide = wide * (1 + signs * torch.finfo(torch.float64 if exact else torch.float32).eps)
        return wide.requires_grad_(leaf.requires_grad)

    return tree_map(widen, value)


def _call(function: Callable[..., Any], parts: tuple[Any, tuple[Any, ...], dict[str, Any]], **more: Any) -> Any:
    value, args, kwargs = parts
    return function(value, *args, **{**kwargs, **more})


def _reference(function: Callable[..., Any], parts: tuple[Any, tuple[Any, ...], dict[str, Any]] | None) -> Any:
    try:
        return _call(function, parts) if parts is not None else function()
    except Exception as error:
        raise _Skipped(str(error)) from error


def _samples(entry: Any, node: Node, **options: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    dtype = getattr(torch, node.dtype)
    for sample in entry.sample_inputs("cpu", dtype, **options):
        choice = sample.kwargs.get("options")
        if isinstance(choice, LinearCrossEntropyOptions) and choice.acc_dtype is None and dtype in HALF:
            # Torch knows CPUs and CUDA as devices whose half types are summed in float32.
            sample.kwargs["options"] = dataclasses.replace(choice, acc_policy="accurate", acc_dtype=torch.float32)
        yield sample


def _repeated(entry: Any, host: Any, device: Any, theirs: Any, ours: Any) -> None:
    """Draws often enough to compare distributions."""
    first = tree_leaves(theirs)[0]
    repeats = min(30, 1 + 600 // max(1, first.numel())) if isinstance(first, torch.Tensor) else 0
    if not repeats or first.is_complex():
        return
    left, right = [tree_leaves(ours)[0]], [first]
    spatial = CHANNELS.get(entry.full_name, 0) or (first.ndim - 2 if entry.full_name in CHANNELS else 0)
    together = math.prod(first.shape[first.ndim - spatial :]) if spatial > 0 else 1
    # The database's own wrapper gives every call the same seed.
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", lambda op, *a, **k: op(*a, **k)):
        for _ in range(repeats - 1):
            left.append(tree_leaves(_call(entry, _clone(device)))[0])
            right.append(tree_leaves(_call(entry, _clone(host)))[0])
    same_distribution(left, right, together)


def _same_shapes(ours: Any, theirs: Any) -> None:
    for a, b in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        if isinstance(b, torch.Tensor) and (a.shape != b.shape or a.dtype != b.dtype):
            raise Difference(f"{a.dtype} {tuple(a.shape)} where CPU torch has {b.dtype} {tuple(b.shape)}")


def _mentions_device(parts: Any) -> bool:
    return any(
        (isinstance(leaf, torch.Tensor) and leaf.device.type == "mojo")
        or (isinstance(leaf, torch.device | str) and str(leaf) == "mojo")
        for leaf in tree_leaves(parts)
    )


def _without_ties(tensor: torch.Tensor, ours: Any, theirs: Any) -> tuple[list[Any], list[Any]]:
    """Replaces positions along some dimension by the elements that they choose."""

    def chosen(index: torch.Tensor, dim: int) -> torch.Tensor:
        host, position = tensor, index.cpu()
        if position.ndim < host.ndim:
            position = position.unsqueeze(dim)
        return torch.take_along_dim(host, position, dim if host.ndim else None)

    left, right = tree_leaves(ours), tree_leaves(theirs)
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if a.dtype != torch.int64 or a.shape != b.shape or (i == 0 and len(left) > 1):
            continue
        for dim in range(max(1, tensor.ndim)):
            try:
                found = chosen(a, dim), chosen(b, dim)
            except (RuntimeError, IndexError):
                continue
            if torch.equal(torch.nan_to_num(found[0]), torch.nan_to_num(found[1])):
                left[i], right[i] = b.to("mojo"), b
    return left, right


def _drops(name: str, parts: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> bool:
    """Whether a sample asks for random dropout."""
    position = 9 if name == "nn.functional.multi_head_attention_forward" else None
    return bool(parts[2].get("dropout_p") or (position is not None and parts[1][position]))


def _judge(
    entry: Any, sample: Any, host: Any, device: Any, theirs: Any, ours: Any, exact: Callable[[], tuple[Any, Any]]
) -> None:
    name = entry.full_name
    for leaf in tree_leaves(ours):
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "mojo" and _mentions_device(device):
            raise Difference(f"a result on {leaf.device}")
    if name in UNINITIALIZED or name in PROJECTIONS or _drops(name, host):
        _same_shapes(ours, theirs)
    elif name in TIES and not host[2].get("stable"):
        compare(*_without_ties(host[0], ours, theirs), entry)
    elif name in STATISTICS:
        rounded = [a.to(b.dtype) for a, b in zip(tree_leaves(ours), tree_leaves(theirs), strict=True)]
        compare(rounded, tree_leaves(theirs), entry, exact)
    elif name in RANDOM:
        _same_shapes(ours, theirs)
        _repeated(entry, _clone(host), _clone(device), theirs, ours)
    else:
        process = sample.output_process_fn_grad
        compare(process(ours), process(theirs), entry, lambda: tuple(map(process, exact())))


def _exact(entry: Any, host: Any, sample: Any) -> Callable[[], tuple[Any, Any]]:
    """The result in float64, and that for numbers as near to the operands as rounding is.

    In float64 it is that of the database's own reference, SciPy's for special functions.
    """

    def compute() -> tuple[Any, Any]:
        if isinstance(entry, UnaryUfuncInfo) and entry.ref is not None and sample.input.dtype == torch.float64:
            exact = torch.as_tensor(entry.ref(sample.input.detach().numpy()))
            return exact, exact
        return _call(entry, _widened(_clone(host))), _call(entry, _widened(_clone(host), rounded=True))

    return compute


def _forward(entry: Any, sample: Any) -> None:
    host = _parts(sample)
    device = _device_parts(entry, host)
    exact = _exact(entry, host, sample)
    theirs = _reference(entry, _clone(host))
    ours = _call(entry, device)
    _judge(entry, sample, host, device, theirs, ours, exact)


def _out(entry: Any, sample: Any) -> None:
    host = _parts(sample)
    device = _device_parts(entry, host)
    theirs = _reference(entry, host)
    leaves = tree_leaves(theirs)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise _Skipped("not tensors")

    def strided(tensor: torch.Tensor) -> torch.Tensor:
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="mojo")
        return torch.stack([empty, empty], -1)[..., 0] if tensor.ndim else empty

    # Some out forms of CPU torch raise, or write elsewhere.
    written = tree_map(torch.empty_like, theirs)
    _reference(lambda *a, **k: entry(*a, **k, out=written), host)
    if entry.full_name not in UNINITIALIZED | RANDOM | PROJECTIONS:
        _reference(lambda: torch.testing.assert_close(written, theirs, equal_nan=True), None)

    def call(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        outputs = tree_map(make, theirs)
        where = [leaf.data_ptr() for leaf in tree_leaves(outputs)]
        result = _call(entry, device, out=outputs)
        if entry.full_name in UNINITIALIZED | RANDOM | PROJECTIONS:
            _same_shapes(outputs, theirs)
        elif entry.full_name in TIES and not host[2].get("stable"):
            compare(*_without_ties(host[0], outputs, theirs), entry)
        else:
            process = sample.output_process_fn_grad
            exact = _exact(entry, host, sample)
            compare(process(outputs), process(theirs), entry, lambda: tuple(map(process, exact())))
        for given, got in zip(tree_leaves(outputs), tree_leaves(result) if result is not None else (), strict=False):
            if given.data_ptr() != got.data_ptr():
                raise Difference("returns another tensor than out")
        if make is strided and [leaf.data_ptr() for leaf in tree_leaves(outputs)] != where:
            raise Difference("writes to new memory although out has the right shape")

    call(strided)
    call(lambda tensor: torch.empty(0, dtype=tensor.dtype, device="mojo"))


def _inplace(entry: Any, sample: Any) -> None:
    if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
        raise _Skipped("in-place does not apply")
    host, function = _parts(sample), entry.get_inplace()
    device, exact = on_device(_clone(host)), _exact(entry, host, sample)
    theirs = _reference(function, _clone(host))
    given = device[0]
    ours = _call(function, device)
    if ours is not given:
        raise Difference("returns another tensor than self")
    if entry.full_name in RANDOM | UNINITIALIZED:
        _same_shapes(ours, theirs)
    else:
        compare(ours, theirs, entry, exact)


def _gradient(entry: Any, sample: Any) -> None:
    host = _parts(sample)
    device = _device_parts(entry, host)
    process = sample.output_process_fn_grad

    def differentiate(parts: Any, cotangents: list[torch.Tensor] | None, function: Callable[..., Any]) -> Any:
        results = process(_call(function, parts))
        outputs = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
        inputs = [x for x in tree_leaves(parts) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not outputs or not inputs:
            raise _Skipped("nothing to differentiate")
        if cotangents is None:
            cotangents = [torch.randn(x.shape, dtype=x.dtype) for x in outputs]
        moved = [c.to(device=x.device, dtype=x.dtype) for c, x in zip(cotangents, outputs, strict=True)]
        grads = torch.autograd.grad(outputs, inputs, moved, allow_unused=True)
        return cotangents, [g for g in grads if g is not None]

    try:
        cotangents, theirs = differentiate(host, None, entry)
    except _Skipped:
        raise
    except Exception as error:
        raise _Skipped(str(error)) from error
    _, ours = differentiate(device, cotangents, entry)
    if entry.full_name in RANDOM | PROJECTIONS or _drops(entry.full_name, host):
        _same_shapes(ours, theirs)
    else:
        exact = (_widened(host), _widened(host, rounded=True))
        compare(ours, theirs, entry, lambda: tuple(differentiate(x, cotangents, entry)[1] for x in exact), slack=10)


def _gradcheck(entry: Any, sample: Any) -> None:
    if entry.full_name in RANDOM | PROJECTIONS or _drops(entry.full_name, _parts(sample)):
        raise _Skipped("random")
    host = _parts(sample)

    def check(parts: Any) -> None:
        leaves, structure = tree_flatten(parts)
        places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.requires_grad]
        if not places or any(leaves[i].layout != torch.strided for i in places):
            raise _Skipped("nothing to differentiate")

        def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            for place, x in zip(places, inputs, strict=True):
                leaves[place] = x
            value, args, kwargs = tree_unflatten(leaves, structure)
            results = sample.output_process_fn_grad(entry.gradcheck_wrapper(entry, value, *args, **kwargs))
            return tuple(x for x in tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad)

        inputs = [leaves[i] for i in places]
        torch.autograd.gradcheck(function, inputs, fast_mode=True, nondet_tol=entry.gradcheck_nondet_tol)

    try:
        check(host)
    except Exception as error:
        raise _Skipped(str(error)) from error
    check(_device_parts(entry, host))


def _raised(entry: Any, sample: Any) -> BaseException | None:
    try:
        _call(entry, _parts(sample))
    except Exception as error:
        return error
    return None


def _errors(entry: Any) -> Iterator[str]:
    """Yields what is wrong with the errors of an entry's error inputs."""
    torch.manual_seed(0)
    host_inputs = list(entry.error_inputs("cpu"))
    torch.manual_seed(0)
    device_inputs = list(entry.error_inputs("mojo"))
    for host, device in zip(host_inputs, device_inputs, strict=False):
        theirs = _raised(entry, host.sample_input)
        if not isinstance(theirs, host.error_type):
            continue
        ours = _raised(entry, device.sample_input)
        wanted = device.error_type  # the database has other ones for some devices than for CPUs
        if ours is None:
            yield f"no error where CPU torch raises {wanted.__name__}: {str(theirs).splitlines()[0]}"
        elif not isinstance(ours, wanted) or (
            isinstance(ours, NotImplementedError) and not isinstance(theirs, NotImplementedError)
        ):
            if isinstance(ours, NotImplementedError):
                raise ours
            yield f"{type(ours).__name__} ({str(ours).splitlines()[0]}) where CPU torch raises {type(theirs).__name__}"


def _spread(sample: Any) -> Any:
    """A sample whose tensors are not contiguous; sparse ones can't be."""
    if any(isinstance(x, torch.Tensor) and x.layout != torch.strided for x in tree_leaves(_parts(sample))):
        raise _Skipped("sparse")
    return sample.noncontiguous()


def _small(samples: list[Any]) -> list[Any]:
    """The smallest samples that have elements, for a check that takes long."""

    def elements(sample: Any) -> int:
        return sum(x.numel() for x in tree_leaves(_parts(sample)) if isinstance(x, torch.Tensor) and x.requires_grad)

    return sorted((sample for sample in samples if elements(sample)), key=elements)[:2]


_CHECKS = {
    "forward": _forward,
    "noncontiguous": _forward,
    "out": _out,
    "inplace": _inplace,
    "gradient": _gradient,
    "gradcheck": _gradcheck,
}


def absent_op(error: BaseException) -> str:
    """Returns the aten op that a NotImplementedError names, with its dtypes, or its message."""
    match = _ABSENT.match(str(error))
    return f"{match['name']} ({match['operands']})" if match else str(error).partition("\n")[0][:150]


def run(node: Node, limit: int = 0) -> Outcome:
    """Runs a node.

    Args:
        node: The check.
        limit: At most so many samples, evenly spread; 0 for all.

    Returns:
        What it gave.
    """
    entry = operators()[node.op]
    start = time.perf_counter()

    def outcome(status: str, reason: str = "") -> Outcome:
        return Outcome(node, status, reason, round(time.perf_counter() - start, 2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if node.kind == "errors":
                problems = list(_errors(entry))
                return outcome("failed", problems[0]) if problems else outcome("passed")
            check = _CHECKS[node.kind]
            samples = list(_samples(entry, node, requires_grad=node.kind in ("gradient", "gradcheck")))
            if node.kind == "gradcheck":
                samples = _small(samples)
            if limit and len(samples) > limit:
                samples = [samples[i * len(samples) // limit] for i in range(limit)]
            checked = 0
            absent = ""
            for sample in samples:
                try:
                    check(entry, _spread(sample) if node.kind == "noncontiguous" else sample)
                    checked += 1
                except _Skipped:
                    continue
                except NotImplementedError as error:  # goes on: a wrong result of another sample is worse
                    absent = absent or absent_op(error)
            return outcome("absent", absent) if absent else outcome("passed" if checked else "empty")
        except NotImplementedError as error:
            return outcome("absent", absent_op(error))
        except Exception as error:
            reason = " ".join(str(error).split())[:400]
            return outcome("failed", reason if isinstance(error, Difference) else f"{type(error).__name__}: {reason}")
