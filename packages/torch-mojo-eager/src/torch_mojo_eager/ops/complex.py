"""Complex64: products and sums through the real parts. Elementwise functions are rows; see `pointwise.complex`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mojo_eager.ops.registry import complex_op, launch, op

KERNELS = (("cat:cat[dtype={0}]", (("uint64",),)),)


def _parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Views of the real and imaginary parts."""
    pairs = torch.view_as_real(tensor.resolve_conj())
    return pairs[..., 0], pairs[..., 1]


def _write(out: Tensor, real: Tensor, imag: Tensor) -> Tensor:
    pairs = torch.view_as_real(out)
    pairs[..., 0].copy_(real)
    pairs[..., 1].copy_(imag)
    return out


@op("aten::complex.out")
def complex_out(real: Tensor, imag: Tensor, *, out: Tensor) -> Tensor:
    """Complex numbers from their parts."""
    if real.dtype != imag.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {real.dtype} but got scalar type {imag.dtype} for second argument"
        )
    if real.dtype not in (torch.float32, torch.float64, torch.float16):
        raise RuntimeError(f"Expected both inputs to be Half, Float or Double tensors but got {real.dtype}")
    wanted = torch.promote_types(real.dtype, torch.complex32)
    if out.dtype != wanted:
        raise RuntimeError(f"Expected scalar type {wanted} but got scalar type {out.dtype} for argument 'out'")
    return _write(out.resize_(torch.broadcast_shapes(real.shape, imag.shape)), real, imag)


@op("aten::polar.out")
def polar_out(abs: Tensor, angle: Tensor, *, out: Tensor) -> Tensor:
    """Complex numbers from magnitude and angle."""
    if abs.dtype != angle.dtype:
        raise RuntimeError(
            f"Expected object of scalar type {abs.dtype} but got scalar type {angle.dtype} for second argument"
        )
    return complex_out(abs * angle.cos(), abs * angle.sin(), out=out)


def _of_parts(name: str) -> None:
    """Registers a linear reduction or copy: what it does to a complex tensor, it does to each part."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload)

    def each(self: Tensor, *args: object, out: Tensor, **kwargs: object) -> Tensor:
        if kwargs.get("dtype") is not None:
            self, kwargs["dtype"] = self.to(kwargs["dtype"]), None  # type: ignore[call-overload]
        for part, result in zip(_parts(self), _parts(out), strict=True):
            function(part, *args, out=result, **kwargs)
        return out

    complex_op(name)(each)


_PADS = [f"{mode}_pad{n}d.out" for mode in ("reflection", "replication") for n in (1, 2, 3)]

for _name in ("sum.IntList_out", "mean.out", "cumsum.out", *_PADS):
    _of_parts(_name)


@complex_op("prod.int_out")
def prod(self: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Tensor) -> Tensor:
    """Product over a dimension: halves are multiplied until one is left."""
    left = self.to(dtype or self.dtype)
    dim = dim % max(1, left.ndim)
    if left.ndim == 0:
        return out.copy_(left)
    if left.shape[dim] == 0:
        return out.fill_(1)
    while left.shape[dim] > 1:
        half, odd = left.shape[dim] // 2, left.shape[dim] % 2
        product = left.narrow(dim, 0, half) * left.narrow(dim, half, half)
        left = torch.cat([product, left.narrow(dim, 2 * half, 1)], dim) if odd else product
    return out.copy_(left if keepdim else left.squeeze(dim))


@complex_op("cumprod.out")
def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None, out: Tensor) -> Tensor:
    """Running product: in each round, what stands a power of two before is multiplied in."""
    result = self.to(dtype or self.dtype)
    if result.ndim == 0:
        return out.copy_(result)
    length, step = result.shape[dim], 1
    while step < length:
        head = result.narrow(dim, 0, step)
        tail = result.narrow(dim, step, length - step) * result.narrow(dim, 0, length - step)
        result, step = torch.cat([head, tail], dim), 2 * step
    return out.copy_(result)


def _product(out: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Writes the product of two complex tensors, matrices or a matrix and a vector, through products of real ones."""
    (a, b), (c, d) = _parts(left), _parts(right)
    return _write(out, torch.matmul(a, c) - torch.matmul(b, d), torch.matmul(a, d) + torch.matmul(b, c))


@complex_op("mm.out")
def mm(self: Tensor, mat2: Tensor, *, out: Tensor) -> Tensor:
    """Product of two matrices."""
    return _product(out, self, mat2)


@complex_op("bmm.out")
def bmm(self: Tensor, mat2: Tensor, *, out: Tensor) -> Tensor:
    """Products of two batches of matrices."""
    return _product(out, self, mat2)


def _add_product(out: Tensor, self: Tensor, left: Tensor, right: Tensor, beta: complex, alpha: complex) -> Tensor:
    product = _product(out.new_empty(out.shape), left, right)
    if alpha != 1:
        product = product * alpha
    return out.copy_(product if beta == 0 else torch.add(product, self if beta == 1 else self * beta))


@complex_op("addmm.out")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: complex = 1, alpha: complex = 1, out: Tensor) -> Tensor:
    """Product of two matrices, added to a matrix."""
    return _add_product(out, self, mat1, mat2, beta, alpha)


@complex_op("baddbmm.out")
def baddbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: complex = 1, alpha: complex = 1, out: Tensor
) -> Tensor:
    """Products of two batches of matrices, added to a batch."""
    return _add_product(out, self, batch1, batch2, beta, alpha)


@complex_op("addmv.out")
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: complex = 1, alpha: complex = 1, out: Tensor) -> Tensor:
    """Product of a matrix and a vector, added to a vector."""
    return _add_product(out, self, mat, vec, beta, alpha)


@complex_op("linalg_vector_norm.out")
def linalg_vector_norm(
    self: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor,
) -> Tensor:
    """Vector norm of the magnitudes."""
    torch.linalg.vector_norm(self.abs(), ord, dim, keepdim, out=out)
    return out


@complex_op("norm.out")
def norm(self: Tensor, p: float | None, dim: Sequence[int], keepdim: bool = False, *, out: Tensor) -> Tensor:
    """Vector norm of the magnitudes."""
    torch.linalg.vector_norm(self.abs(), 2 if p is None else p, list(dim), keepdim, out=out)
    return out


def _truth(name: str) -> None:
    """Registers `any` or `all` of complex numbers: of whether they are 0."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload)

    def of_truth(self: Tensor, *args: object, out: Tensor, **kwargs: object) -> Tensor:
        function(self != 0, *args, out=out, **kwargs)
        return out

    complex_op(name)(of_truth)


for _name in ("any.out", "any.all_out", "all.out", "all.all_out"):
    _truth(_name)


@complex_op("cat.out")
def cat(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor) -> Tensor:
    """Concatenation."""
    converted = [tensor.to(out.dtype).resolve_conj() for tensor in tensors]
    launch("cat:cat", [out, *converted], [dim], dtype=out.dtype)
    return out


@complex_op("constant_pad_nd.out")
def constant_pad_nd(self: Tensor, pad: Sequence[int], value: complex = 0, *, out: Tensor) -> Tensor:
    """Padding of any dimensions with a number."""
    number = complex(value)
    for part, result, filler in zip(_parts(self), _parts(out), (number.real, number.imag), strict=True):
        result.copy_(torch.constant_pad_nd(part, pad, filler))
    return out


@complex_op("index_add.out")
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: complex = 1, out: Tensor) -> Tensor:
    """Adds slices at given positions of a dimension."""
    scaled = source if alpha == 1 else source * alpha
    for start, addend, result in zip(_parts(self), _parts(scaled), _parts(out), strict=True):
        torch.index_add(start, dim, index, addend, out=result)
    return out


@complex_op("index_fill_.int_Scalar")
def index_fill_(self: Tensor, dim: int, index: Tensor, value: complex) -> Tensor:
    """Writes a number at given positions of a dimension."""
    for part, filler in zip(_parts(self), (complex(value).real, complex(value).imag), strict=True):
        part.index_fill_(dim, index, filler)
    return self


@complex_op("scatter.value_out")
def scatter_of_number(self: Tensor, dim: int, index: Tensor, value: complex, *, out: Tensor) -> Tensor:
    """Writes a number along a dimension."""
    number = complex(value)
    for start, result, filler in zip(_parts(self), _parts(out), (number.real, number.imag), strict=True):
        torch.scatter(start, dim, index, filler, out=result)
    return out


@complex_op("scatter_add.out")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor, *, out: Tensor) -> Tensor:
    """Adds elements along a dimension."""
    for start, addend, result in zip(_parts(self), _parts(src), _parts(out), strict=True):
        torch.scatter_add(start, dim, index, addend, out=result)
    return out


@op("aten::conj_physical_")
def conj_physical_(self: Tensor) -> Tensor:
    """Conjugates in place."""
    if self.is_complex():
        torch.view_as_real(self)[..., 1].neg_()
    return self
