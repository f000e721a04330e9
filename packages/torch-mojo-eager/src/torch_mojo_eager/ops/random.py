"""Random fills and dropout. The values are those of a CUDA device for the same seed: see mojo_kernels/random."""

from __future__ import annotations

import functools

import torch
from torch import Generator, Tensor

import mojo_runtime
from mojo_runtime.aten.table import FLOATING, INTEGRAL, NUMERIC
from torch_mojo_eager.ops.registry import launch, op

KERNELS = (
    ("random.distributions:uniform[dtype={0}]", (FLOATING,)),
    ("random.distributions:normal[dtype={0},logarithmic=false]", (FLOATING,)),
    ("random.distributions:normal[dtype={0},logarithmic=true]", (FLOATING,)),
    ("random.distributions:integer[dtype={0},wide=false]", (NUMERIC,)),
    ("random.distributions:integer[dtype={0},wide=true]", (NUMERIC,)),
    ("random.distributions:bernoulli[dtype={0}]", (NUMERIC,)),
    ("random.distributions:inverse[dtype={0},kind=exponential]", (FLOATING,)),
    ("random.distributions:inverse[dtype={0},kind=cauchy]", (FLOATING,)),
    ("random.distributions:inverse[dtype={0},kind=geometric]", (FLOATING + INTEGRAL,)),
    ("random.dropout:dropout[dtype={0}]", (FLOATING,)),
    ("random.dropout:backward[dtype={0}]", (FLOATING,)),
    ("random.dropout:bernoulli[dtype={0},probability={1}]", (NUMERIC, FLOATING)),
)

_BLOCK = 256
_BLOCKS_PER_MULTIPROCESSOR = 2048 // _BLOCK
# Where the device has no multiprocessors, draws are laid out as on an H100.
_REFERENCE_MULTIPROCESSORS = 132

# Largest integer that a type holds, or up to which a floating type holds every integer.
_INTEGER_LIMIT = {
    torch.bool: 1,
    torch.uint8: 2**8 - 1,
    torch.int8: 2**7 - 1,
    torch.int16: 2**15 - 1,
    torch.int32: 2**31 - 1,
    torch.int64: 2**63 - 1,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.float32: 2**24,
    torch.float64: 2**53,
}


@functools.cache
def _max_blocks(index: int) -> int:
    device = mojo_runtime.device(index)
    multiprocessors = device.cores if device.kind == "gpu" else _REFERENCE_MULTIPROCESSORS
    return multiprocessors * _BLOCKS_PER_MULTIPROCESSOR


def _check_dtype(name: str, self: Tensor, allowed: tuple[str, ...]) -> None:
    if str(self.dtype).removeprefix("torch.") not in allowed:
        raise NotImplementedError(
            f"aten::{name} is not implemented on mojo for dtype {self.dtype}; draw as float32 and convert with .to()"
        )


def _reserve(generator: Generator | None, numel: int, index: int | None, unroll: int) -> list[int]:
    """Advances the generator by one call's draws; returns a random kernel's first scalars: seed, offset, max_blocks."""
    if index is None:
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two, cpu and mojo!")
    blocks = _max_blocks(index)
    threads = _BLOCK * min(-(-numel // _BLOCK), blocks)
    increment = 4 * -(-numel // (threads * unroll))
    return [*torch.ops.mojo.philox_state(generator, index, increment), blocks]


def _flat(dense: Tensor) -> Tensor:
    """Returns the elements of a non-overlapping and dense tensor in the order of memory; bools as bytes."""
    flat = dense.as_strided((dense.numel(),), (1,))
    return flat.view(torch.uint8) if flat.dtype == torch.bool else flat


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a range of memory, each once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _fill(
    self: Tensor,
    kernel: str,
    scalars: list[int | float],
    generator: Generator | None,
    unroll: int | None = None,
    **parameters: str | bool,
) -> Tensor:
    numel = self.numel()
    if numel == 0:
        return self
    if unroll is None:
        unroll = 2 if self.dtype == torch.float64 else 4
    target = self if _is_dense(self) else torch.empty_like(self)
    flat = _flat(target)
    draws = _reserve(generator, numel, self.device.index, unroll)
    launch(f"random.distributions:{kernel}", [flat], [*draws, *scalars], dtype=flat.dtype, **parameters)
    if target is not self:
        self.copy_(target)
    return self


@op("aten::uniform_")
def uniform_(
    self: Tensor, from_: float = 0, to: float = 1, generator: Generator | None = None, **named: float
) -> Tensor:
    """Fills with uniform draws from [from, to)."""
    from_ = named.get("from", from_)
    _check_dtype("uniform_", self, FLOATING)
    if from_ > to:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={from_} > to={to}")
    return _fill(self, "uniform", [float(from_), float(to)], generator)


@op("aten::normal_")
def normal_(self: Tensor, mean: float = 0, std: float = 1, generator: Generator | None = None) -> Tensor:
    """Fills with normal draws."""
    _check_dtype("normal_", self, FLOATING)
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return _fill(self, "normal", [float(mean), float(std)], generator, logarithmic=False)


@op("aten::log_normal_")
def log_normal_(self: Tensor, mean: float = 1, std: float = 2, generator: Generator | None = None) -> Tensor:
    """Fills with exponentials of normal draws."""
    _check_dtype("log_normal_", self, FLOATING)
    if std <= 0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")
    return _fill(self, "normal", [float(mean), float(std)], generator, logarithmic=True)


@op("aten::normal.Tensor_float")
def normal_tensor_float(mean: Tensor, std: float = 1, generator: Generator | None = None) -> Tensor:
    """Normal draws around the elements of a tensor."""
    return normal_(torch.empty_like(mean), 0, std, generator).add_(mean)


@op("aten::normal.float_Tensor")
def normal_float_tensor(mean: float, std: Tensor, generator: Generator | None = None) -> Tensor:
    """Normal draws with the elements of a tensor as deviations."""
    return normal_(torch.empty_like(std), 0, 1, generator).mul_(std).add_(mean)


@op("aten::normal.Tensor_Tensor")
def normal_tensor_tensor(mean: Tensor, std: Tensor, generator: Generator | None = None) -> Tensor:
    """Normal draws with means and deviations from tensors."""
    shape = torch.broadcast_shapes(mean.shape, std.shape)
    return normal_(mean.new_empty(shape), 0, 1, generator).mul_(std).add_(mean)


def _integers(self: Tensor, base: int, count: int, generator: Generator | None, wide: bool) -> Tensor:
    """Fills with integers from `base` to `base + count - 1`; a count of 2**64 is passed as 0."""
    word = count % 2**64
    word -= 2**64 if word >= 2**63 else 0
    return _fill(self, "integer", [base, word], generator, unroll=2 if wide else 4, wide=wide)


@op("aten::random_")
def random_(self: Tensor, generator: Generator | None = None) -> Tensor:
    """Fills with integers over the whole non-negative range of the dtype."""
    _check_dtype("random_", self, (*NUMERIC, "bool"))
    wide = self.dtype in (torch.int64, torch.float64)
    return _integers(self, 0, _INTEGER_LIMIT[self.dtype] + 1, generator, wide)


@op("aten::random_.from")
def random_from(
    self: Tensor, from_: int | None = None, to: int | None = None, generator: Generator | None = None, **named: int
) -> Tensor:
    """Fills with integers from [from, to)."""
    start = named["from"] if from_ is None else from_
    _check_dtype("random_", self, (*NUMERIC, "bool"))
    limit = _INTEGER_LIMIT[self.dtype]
    least = -limit - (0 if self.dtype.is_floating_point else 1) if self.dtype.is_signed else 0
    if to is None:
        end = limit + 1
    else:
        end = to
        if start >= end:
            raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={start} >= to={end}")
        if end - 1 > limit and not self.dtype.is_floating_point:
            raise RuntimeError(f"to - 1 is out of bounds for {str(self.dtype).removeprefix('torch.')}")
    if start < least and not self.dtype.is_floating_point:
        raise RuntimeError(f"from is out of bounds for {str(self.dtype).removeprefix('torch.')}")
    count = end - start
    # The whole range is the drawn word itself.
    return _integers(self, 0 if count == 2**64 else start, count, generator, wide=count >= 2**28)


@op("aten::random_.to")
def random_to(self: Tensor, to: int, generator: Generator | None = None) -> Tensor:
    """Fills with integers from [0, to)."""
    return random_from(self, 0, to, generator)


@op("aten::bernoulli_.float")
def bernoulli_float(self: Tensor, p: float = 0.5, generator: Generator | None = None) -> Tensor:
    """Fills with 1 with probability p, else 0."""
    _check_dtype("bernoulli_", self, (*NUMERIC, "bool"))
    if not 0 <= p <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    return _fill(self, "bernoulli", [float(p)], generator)


@op("aten::bernoulli_.Tensor")
def bernoulli_tensor(self: Tensor, p: Tensor, generator: Generator | None = None) -> Tensor:
    """Fills with 1 with the probability that `p` has for each element, else 0."""
    _check_dtype("bernoulli_", self, (*NUMERIC, "bool"))
    _check_dtype("bernoulli_", p, FLOATING)
    if self.numel() == 0:
        return self
    probabilities = p.expand(self.shape).contiguous()
    result = torch.empty(self.shape, dtype=self.dtype, device=self.device)
    flat = _flat(result)
    draws = _reserve(generator, self.numel(), self.device.index, 4)
    launch("random.dropout:bernoulli", [flat, probabilities], draws, dtype=flat.dtype, probability=p.dtype)
    return self.copy_(result)


@op("aten::exponential_")
def exponential_(self: Tensor, lambd: float = 1, generator: Generator | None = None) -> Tensor:
    """Fills with exponential draws of a rate."""
    _check_dtype("exponential_", self, FLOATING)
    if lambd <= 0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    return _fill(self, "inverse", [float(lambd), 0.0], generator, kind="exponential")


@op("aten::cauchy_")
def cauchy_(self: Tensor, median: float = 0, sigma: float = 1, generator: Generator | None = None) -> Tensor:
    """Fills with Cauchy draws."""
    _check_dtype("cauchy_", self, FLOATING)
    if sigma <= 0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    return _fill(self, "inverse", [float(median), float(sigma)], generator, kind="cauchy")


@op("aten::geometric_")
def geometric_(self: Tensor, p: float, generator: Generator | None = None) -> Tensor:
    """Fills with the number of trials up to the first success."""
    _check_dtype("geometric_", self, NUMERIC)
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    return _fill(self, "inverse", [float(p), 0.0], generator, kind="geometric")


@op("aten::native_dropout")
def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Dropout and its mask."""
    _check_dtype("native_dropout", input, FLOATING)
    if train is False or input.numel() == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(input), torch.zeros_like(input, dtype=torch.bool)
    if not _is_dense(input):
        input = input.contiguous()
    output, mask = torch.empty_like(input), torch.empty_like(input, dtype=torch.bool)
    scalars = [*_reserve(None, input.numel(), input.device.index, 4), 1.0 - p]
    launch("random.dropout:dropout", [_flat(output), _flat(mask), _flat(input)], scalars, dtype=input.dtype)
    return output, mask


@op("aten::native_dropout_backward")
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The gradient where the mask kept, scaled."""
    if grad_output.stride() != mask.stride() or not _is_dense(mask):
        grad_output, mask = grad_output.contiguous(), mask.contiguous()
    result = torch.empty_like(grad_output)
    if result.numel() != 0:
        tensors = [_flat(result), _flat(grad_output), _flat(mask)]
        launch("random.dropout:backward", tensors, [float(scale)], dtype=grad_output.dtype)
    return result
