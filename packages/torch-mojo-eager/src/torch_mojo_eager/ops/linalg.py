"""Factorizations and systems of equations, over the kernels of `linalg`, which take row-major batches.

Outputs of structured ops arrive allocated, in the memory order that torch's meta functions choose.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torch_mojo_eager.ops.registry import launch, op

_REAL = ("float32", "float64")
KERNELS = (
    ("linalg.lu:factor[dtype={0}]", (_REAL,)),
    ("linalg.lu:permutation", ()),
    ("linalg.triangular:solve[dtype={0}]", (_REAL,)),
    ("linalg.triangular:cholesky[dtype={0}]", (_REAL,)),
    ("linalg.qr:factor[dtype={0}]", (_REAL,)),
    ("linalg.qr:multiply[dtype={0}]", (_REAL,)),
    ("linalg.jacobi:eigen[dtype={0}]", (_REAL,)),
    ("linalg.jacobi:singular[dtype={0}]", (_REAL,)),
)


def _require_real(name: str, *tensors: Tensor) -> None:
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float64):
            raise NotImplementedError(
                f"aten::{name} is not implemented on mojo for dtype {str(tensor.dtype).removeprefix('torch.')}; "
                "convert to float32 or run this op on the CPU with .cpu()"
            )


def _batch(tensor: Tensor) -> Tensor:
    """A tensor as [batch, rows, columns]."""
    rows, columns = tensor.shape[-2:]
    return tensor.reshape(math.prod(tensor.shape[:-2]), rows, columns)


def _like(batch: Tensor) -> Tensor:
    """A row-major batch of the same sizes for a kernel to write."""
    return torch.empty_like(batch, memory_format=torch.contiguous_format)


def _per_step(pivots: Tensor, matrix: Tensor) -> Tensor:
    """What a batch has for each step of its factorization, with the batch dimensions of a matrix."""
    return pivots.view(*matrix.shape[:-2], min(matrix.shape[-2:]))


def _raise_singular(name: str, info: Tensor, what: str) -> None:
    """Raises for the first matrix whose info is not 0."""
    codes = info.reshape(-1).cpu()
    bad = codes.nonzero()
    if not bad.numel():
        return
    index = int(bad[0])
    batch = f"(Batch element {index}): " if info.ndim else ""
    raise torch.linalg.LinAlgError(f"{name}: {batch}{what.format(int(codes[index]))}")  # type: ignore[attr-defined]


# ---- LU ------------------------------------------------------------------------------------------------------------


def _lu(matrix: Tensor, pivot: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """LU, pivots and info, as batches."""
    _require_real("linalg_lu_factor_ex", matrix)
    batch = _batch(matrix)
    lu = _like(batch)
    count = min(lu.shape[-2:])
    pivots = lu.new_empty((lu.shape[0], count), dtype=torch.int32)
    info = lu.new_zeros(lu.shape[0], dtype=torch.int32)
    if lu.shape[0]:
        launch("linalg.lu:factor", [lu, pivots, info, batch], [pivot], dtype=lu.dtype)
    return lu, pivots, info


def _permutation(pivots: Tensor, rows: int) -> Tensor:
    """The row that comes to each place, [batch, rows]."""
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1]).to(torch.int32).contiguous()
    order = flat.new_empty((flat.shape[0], rows), dtype=torch.int64)
    if order.numel():
        launch("linalg.lu:permutation", [order, flat])
    return order


@op("aten::linalg_lu_factor_ex.out")
def linalg_lu_factor_ex(
    A: Tensor, *, pivot: bool = True, check_errors: bool = False, LU: Tensor, pivots: Tensor, info: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """LU factorization with partial pivoting."""
    lu, rows, codes = _lu(A, pivot)
    LU.copy_(lu.view(A.shape))
    pivots.copy_(rows.view(pivots.shape))
    info.copy_(codes.view(info.shape))
    if check_errors:
        _raise_singular("torch.linalg.lu_factor_ex", info, "U[{0},{0}] is zero and using it on lu_solve would fail.")
    return LU, pivots, info


@op("aten::lu_unpack.out")
def lu_unpack(
    LU_data: Tensor,
    LU_pivots: Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
    *,
    P: Tensor,
    L: Tensor,
    U: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The permutation and the two triangles of a factorization."""
    rows, columns = LU_data.shape[-2:]
    count = min(rows, columns)
    if unpack_data:
        L.copy_(LU_data[..., :count].tril(-1))
        L.diagonal(dim1=-2, dim2=-1).fill_(1)
        U.copy_(LU_data[..., :count, :].triu())
    if unpack_pivots:
        order = _permutation(LU_pivots, rows).view(*LU_data.shape[:-2], 1, rows)
        P.zero_().scatter_(-2, order, torch.ones_like(order, dtype=P.dtype))
    return P, L, U


@op("aten::linalg_lu.out")
def linalg_lu(A: Tensor, *, pivot: bool = True, P: Tensor, L: Tensor, U: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """LU factorization as permutation and triangles."""
    lu, pivots, _ = _lu(A, pivot)
    lu_unpack(lu.view(A.shape), _per_step(pivots, A), True, pivot, P=P, L=L, U=U)
    return P, L, U


def _triangular(matrix: Tensor, right: Tensor, upper: bool, unit: bool = False) -> Tensor:
    """Solves matrix @ X = right, batches broadcast."""
    _require_real("linalg_solve_triangular", matrix, right)
    shape = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    batch = _batch(right.expand(*shape, *right.shape[-2:]))
    solution = _like(batch)
    if solution.numel():
        triangle = _batch(matrix.expand(*shape, *matrix.shape[-2:])).contiguous()
        launch("linalg.triangular:solve", [solution, batch, triangle], [upper, unit], dtype=solution.dtype)
    return solution.view(*shape, *right.shape[-2:])


def _lu_solve(lu: Tensor, pivots: Tensor, right: Tensor, transposed: bool = False) -> Tensor:
    """Solves A X = B or A^T X = B with the factorization of A."""
    n = lu.shape[-1]
    shape = torch.broadcast_shapes(lu.shape[:-2], right.shape[:-2])
    order = _permutation(pivots, n).view(*pivots.shape[:-1], n).expand(*shape, n)
    right = right.expand(*shape, *right.shape[-2:])
    if transposed:
        solution = _triangular(lu.mT, _triangular(lu.mT, right, upper=False), upper=True, unit=True)
        places = order.argsort(-1)
        return torch.take_along_dim(solution, places[..., None], -2)
    permuted = torch.take_along_dim(right, order[..., None], -2)
    return _triangular(lu, _triangular(lu, permuted, upper=False, unit=True), upper=True)


@op("aten::linalg_lu_solve.out")
def linalg_lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False, out: Tensor
) -> Tensor:
    """Solves equations with a factorization: A X = B, or X A = B."""
    if left:
        return out.copy_(_lu_solve(LU, pivots, B, adjoint))
    return out.copy_(_lu_solve(LU, pivots, B.mT, not adjoint).mT)


@op("aten::_linalg_solve_ex.result")
def _linalg_solve_ex(
    A: Tensor,
    B: Tensor,
    *,
    left: bool = True,
    check_errors: bool = False,
    result: Tensor,
    LU: Tensor,
    pivots: Tensor,
    info: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Solves A X = B, or X A = B."""
    linalg_lu_factor_ex(A, LU=LU, pivots=pivots, info=info)
    if check_errors:
        _raise_singular("torch.linalg.solve", info, "The solver failed because the input matrix is singular.")
    # B is a vector, or a batch of vectors where its sizes are those of A without the last.
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    right = B[..., None] if vector else B
    solution = _lu_solve(LU, pivots, right) if left else _lu_solve(LU, pivots, right.mT, True).mT
    result.copy_(solution[..., 0] if vector else solution)
    return result, LU, pivots, info


@op("aten::linalg_inv_ex.inverse")
def linalg_inv_ex(A: Tensor, *, check_errors: bool = False, inverse: Tensor, info: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse matrices."""
    lu, pivots, codes = _lu(A)
    info.copy_(codes.view(info.shape))
    if check_errors:
        _raise_singular(
            "linalg.inv",
            info,
            "The diagonal element {0} is zero, the inversion could not be completed because the "
            "input matrix is singular.",
        )
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    inverse.copy_(_lu_solve(lu.view(A.shape), _per_step(pivots, A), identity))
    return inverse, info


def _sign_of_permutation(pivots: Tensor) -> Tensor:
    """1 or -1 by the number of exchanges."""
    places = torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype, device=pivots.device)
    return 1 - 2 * ((pivots != places).sum(-1) % 2)


@op("aten::_linalg_det.result")
def _linalg_det(A: Tensor, *, result: Tensor, LU: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Determinants."""
    # torch's backward formulas expect the factors of the transpose where A is contiguous.
    lu, exchanges, _ = _lu(A.mT if A.is_contiguous() else A)
    LU.copy_(lu.view(A.shape))
    pivots.copy_(exchanges.view(pivots.shape))
    result.copy_(LU.diagonal(dim1=-2, dim2=-1).prod(-1) * _sign_of_permutation(pivots))
    return result, LU, pivots


@op("aten::_linalg_slogdet.sign")
def _linalg_slogdet(
    A: Tensor, *, sign: Tensor, logabsdet: Tensor, LU: Tensor, pivots: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Signs and logarithms of determinants."""
    # torch's backward formulas expect the factors of the transpose where A is contiguous.
    lu, exchanges, _ = _lu(A.mT if A.is_contiguous() else A)
    LU.copy_(lu.view(A.shape))
    pivots.copy_(exchanges.view(pivots.shape))
    diagonal = LU.diagonal(dim1=-2, dim2=-1)
    sign.copy_(diagonal.sign().prod(-1) * _sign_of_permutation(pivots))
    logabsdet.copy_(diagonal.abs().log().sum(-1))
    return sign, logabsdet, LU, pivots


# ---- triangles and Cholesky ----------------------------------------------------------------------------------------


@op("aten::linalg_solve_triangular.out")
def linalg_solve_triangular_out(
    self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False, out: Tensor
) -> Tensor:
    """Solves A X = B, or X A = B, where A is a triangle."""
    solution = linalg_solve_triangular(self, B, upper=upper, left=left, unitriangular=unitriangular)
    return out.resize_(solution.shape).copy_(solution)


@op("aten::linalg_solve_triangular")
def linalg_solve_triangular(
    self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Solves A X = B, or X A = B, where A is a triangle."""
    for name, tensor in (("A", self), ("B", B)):
        if tensor.ndim < 2:
            raise RuntimeError(f"linalg.solve_triangular: The input tensor {name} must have at least 2 dimensions.")
    if self.dtype != B.dtype:
        raise RuntimeError(
            f"linalg.solve_triangular: Expected A and B to have the same dtype, but found {self.dtype} and {B.dtype}"
        )
    if self.shape[-1] != self.shape[-2]:
        raise RuntimeError("linalg.solve_triangular: A must be batches of square matrices")
    if self.shape[-1] != B.shape[-2 if left else -1]:
        raise RuntimeError("linalg.solve_triangular: Incompatible shapes of A and B for the equation")
    if left:
        return _triangular(self, B, upper, unitriangular)
    return _triangular(self.mT, B.mT, not upper, unitriangular).mT


@op("aten::triangular_solve.X")
def triangular_solve(
    self: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    *,
    X: Tensor,
    M: Tensor,
) -> tuple[Tensor, Tensor]:
    """Solves A X = B where A is a triangle."""
    X.copy_(_triangular(A.mT if transpose else A, self, upper != transpose, unitriangular))
    M.copy_(A.expand(M.shape))
    return X, M


@op("aten::linalg_cholesky_ex.L")
def linalg_cholesky_ex(
    self: Tensor, *, upper: bool = False, check_errors: bool = False, L: Tensor, info: Tensor
) -> tuple[Tensor, Tensor]:
    """Cholesky factors."""
    _require_real("linalg_cholesky_ex", self)
    batch = _batch(self.mT if upper else self)
    factors = _like(batch)
    codes = factors.new_zeros(factors.shape[0], dtype=torch.int32)
    if factors.shape[0]:
        launch("linalg.triangular:cholesky", [factors, codes, batch], dtype=factors.dtype)
    result = factors.view(self.shape)
    L.copy_(result.mT if upper else result)
    info.copy_(codes.view(info.shape))
    if check_errors:
        _raise_singular(
            "linalg.cholesky",
            info,
            "The factorization could not be completed because the input is not positive-definite (the leading minor of "
            "order {0} is not positive-definite).",
        )
    return L, info


@op("aten::_cholesky_solve_helper")
def _cholesky_solve_helper(self: Tensor, A: Tensor, upper: bool) -> Tensor:
    """Solves equations with a Cholesky factor."""
    lower = A.mT if upper else A
    return _triangular(lower.mT, _triangular(lower, self, upper=False), upper=True)


@op("aten::cholesky_inverse")
def cholesky_inverse(self: Tensor, upper: bool = False) -> Tensor:
    """The inverse of a matrix with a given Cholesky factor."""
    if self.ndim < 2 or self.shape[-1] != self.shape[-2]:
        raise RuntimeError("cholesky_inverse: A must be batches of square matrices")
    identity = torch.eye(self.shape[-1], dtype=self.dtype, device=self.device)
    return _cholesky_solve_helper(identity.expand(self.shape), self, upper)


# ---- QR ------------------------------------------------------------------------------------------------------------


def _reflections(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Reflections below the diagonal of R, and their factors, as batches."""
    _require_real("geqrf", matrix)
    batch = _batch(matrix)
    stored = _like(batch)
    taus = stored.new_zeros(stored.shape[0], min(stored.shape[-2:]))
    if stored.numel():
        launch("linalg.qr:factor", [stored, taus, batch], dtype=stored.dtype)
    return stored, taus


def _times_reflections(matrix: Tensor, stored: Tensor, taus: Tensor, transposed: bool = False) -> Tensor:
    """Multiplies a batch from the left by the orthogonal matrix of reflections."""
    batch = _batch(matrix)
    result = _like(batch)
    if result.numel():
        operands = [result, batch, _batch(stored).contiguous(), taus.contiguous()]
        launch("linalg.qr:multiply", operands, [transposed], dtype=result.dtype)
    return result


@op("aten::geqrf")
def geqrf(self: Tensor) -> tuple[Tensor, Tensor]:
    """QR factorization as reflections."""
    if self.ndim < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    stored, taus = _reflections(self)
    return stored.view(self.shape), _per_step(taus, self)


@op("aten::linalg_householder_product")
def linalg_householder_product(input: Tensor, tau: Tensor) -> Tensor:
    """The first columns of a product of reflections."""
    if input.ndim < 2:
        raise RuntimeError("torch.linalg.householder_product: input must have at least 2 dimensions.")
    rows, columns = input.shape[-2:]
    if rows < columns:
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to input.shape[-1]"
        )
    if columns < tau.shape[-1]:
        raise RuntimeError(
            "torch.linalg.householder_product: input.shape[-1] must be greater than or equal to tau.shape[-1]"
        )
    if input.ndim - tau.ndim != 1 or input.shape[:-2] != tau.shape[:-1]:
        raise RuntimeError("torch.linalg.householder_product: Expected batch dimensions of tau to be those of input")
    if input.dtype != tau.dtype:
        raise RuntimeError("torch.linalg.householder_product: tau dtype does not match input dtype")
    _require_real("linalg_householder_product", input)
    identity = torch.eye(rows, columns, dtype=input.dtype, device=input.device).expand(input.shape)
    flat = tau.reshape(math.prod(input.shape[:-2]), tau.shape[-1])
    return _times_reflections(identity, input, flat).view(input.shape)


@op("aten::ormqr")
def ormqr(self: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """Product of a matrix and an orthogonal one that is given as reflections."""
    if self.ndim < 2 or input3.ndim < 2:
        raise RuntimeError("torch.ormqr: input must have at least 2 dimensions.")
    order = input3.shape[-2] if left else input3.shape[-1]
    if self.shape[-2] != order or input2.shape[-1] > order:
        raise RuntimeError("torch.ormqr: the reflections do not fit the other matrix")
    if self.ndim - input2.ndim != 1 or self.ndim != input3.ndim:
        raise RuntimeError("torch.ormqr: the batch dimensions of the operands must be equal")
    _require_real("ormqr", self)
    if not self.is_floating_point() or self.dtype != input2.dtype or self.dtype != input3.dtype:
        raise RuntimeError("torch.ormqr: the operands must have one floating dtype")
    taus = input2.reshape(math.prod(input2.shape[:-1]), input2.shape[-1])
    matrix = input3 if left else input3.mT
    result = _times_reflections(matrix, self, taus, transpose if left else not transpose).view(matrix.shape)
    return result if left else result.mT


@op("aten::linalg_qr.out")
def linalg_qr(A: Tensor, mode: str = "reduced", *, Q: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """QR factorization."""
    rows = A.shape[-2]
    stored, taus = _reflections(A)
    height = R.shape[-2]
    R.copy_(stored[:, :height].triu().view(R.shape))
    if mode != "r":
        identity = torch.eye(rows, Q.shape[-1], dtype=A.dtype, device=A.device)
        batch = identity.expand(stored.shape[0], *identity.shape)
        Q.copy_(_times_reflections(batch, stored, taus).view(Q.shape))
    return Q, R


# ---- eigenvalues and singular values -------------------------------------------------------------------------------


@op("aten::_linalg_eigh.eigenvalues")
def _linalg_eigh(
    A: Tensor, UPLO: str = "L", compute_v: bool = True, *, eigenvalues: Tensor, eigenvectors: Tensor
) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices of which one triangle is read."""
    _require_real("_linalg_eigh", A)
    lower = A if UPLO.upper() == "L" else A.mT
    batch = _batch(lower.tril() + lower.tril(-1).mT)
    work = _like(batch)
    vectors, values = torch.empty_like(work), work.new_empty(work.shape[:2])
    if work.numel():
        launch("linalg.jacobi:eigen", [work, vectors, values, batch], dtype=work.dtype)
    values, order = values.sort(-1)
    eigenvalues.copy_(values.view(eigenvalues.shape))
    if compute_v:
        eigenvectors.copy_(torch.take_along_dim(vectors, order[..., None], 1).mT.reshape(A.shape))
    return eigenvalues, eigenvectors


def _complete(columns: Tensor, size: int) -> Tensor:
    """Orthonormal columns [batch, rows, k] and as many more as make `size`; columns of zeros are replaced."""
    batch, rows, given = columns.shape
    padded = torch.cat([columns, columns.new_zeros(batch, rows, size - given)], -1)
    # Of an orthonormal set, QR changes signs only; beyond it, its factor goes on with an orthonormal basis.
    stored, taus = _reflections(padded)
    identity = torch.eye(rows, size, dtype=columns.dtype, device=columns.device).expand(batch, rows, size)
    basis = _times_reflections(identity, stored, taus)
    keeps = padded.norm(dim=1, keepdim=True) > 0.5
    return torch.where(keeps, padded, basis)


@op("aten::_linalg_svd.U")
def _linalg_svd(
    A: Tensor,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
    U: Tensor,
    S: Tensor,
    Vh: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values, descending, and singular vectors."""
    _require_real("_linalg_svd", A)
    if driver is not None:
        raise RuntimeError("torch.linalg.svd: keyword argument `driver=` is only supported on CUDA inputs")
    rows, columns = A.shape[-2:]
    wide = rows <= columns
    batch = _batch(A if wide else A.mT)
    work = _like(batch)
    small, large = work.shape[1:]
    rotations = work.new_empty(work.shape[0], small, small)
    if work.numel():
        launch("linalg.jacobi:singular", [work, rotations, batch], dtype=work.dtype)
    values, order = torch.linalg.vector_norm(work, dim=-1).sort(-1, descending=True)
    S.copy_(values.view(S.shape))
    if compute_uv:
        left = torch.take_along_dim(rotations, order[..., None], 1).mT  # [batch, small, small]
        ordered = torch.take_along_dim(work, order[..., None], 1)
        tiny = values[..., :1] * (large * torch.finfo(A.dtype).eps)
        usable = (values > tiny)[..., None]
        right = torch.where(usable, ordered / values[..., None], 0).mT  # [batch, large, small]
        right = _complete(right, large if full_matrices else small) if right.numel() or full_matrices else right
        first, second = (left, right) if wide else (right, left)
        U.copy_(first.reshape(U.shape))
        Vh.copy_(second.mT.reshape(Vh.shape))
    return U, S, Vh


# ---- least squares and functions of matrices -----------------------------------------------------------------------


@op("aten::linalg_lstsq.out")
def linalg_lstsq(
    self: Tensor,
    b: Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
    solution: Tensor,
    residuals: Tensor,
    rank: Tensor,
    singular_values: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Least squares by singular values, whatever the driver; "gels" and "gelsy" return fewer of the results."""
    if self.ndim < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if b.ndim < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")
    if self.ndim - b.ndim not in (0, 1):
        raise RuntimeError("torch.linalg.lstsq: input must have as many dimensions as other, or one more")
    if self.dtype != b.dtype:
        raise RuntimeError("torch.linalg.lstsq: Expected input and other to have the same dtype")
    if driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        raise RuntimeError(
            "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got " + str(driver)
        )
    vector = self.ndim - b.ndim == 1
    right = b[..., None] if vector else b
    rows, columns = self.shape[-2:]
    if right.shape[-2] != rows:
        raise RuntimeError("torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    _require_real("linalg_lstsq", self)
    chosen = driver or "gelsy"
    limit = torch.finfo(self.dtype).eps * max(rows, columns) if rcond is None or rcond < 0 else rcond
    u, s, vh = torch.linalg.svd(self, full_matrices=False)
    keeps = s > limit * s[..., :1] if s.shape[-1] else s > 0
    inverse = torch.where(keeps, 1 / s, 0)
    result = vh.mT @ (inverse[..., None] * (u.mT @ right))
    solution.resize_(result.shape[:-1] if vector else result.shape).copy_(result[..., 0] if vector else result)
    ranks = keeps.sum(-1)
    if chosen == "gels":
        rank.resize_(0)
    else:
        rank.resize_(ranks.shape).copy_(ranks)
    if chosen in ("gelsd", "gelss"):
        singular_values.resize_(s.shape).copy_(s)
    else:
        singular_values.resize_(0)
    if rows > columns and chosen != "gelsy" and bool((ranks == columns).all()):
        distance = (self @ result - right).square().sum(-2)
        residuals.resize_(distance.shape).copy_(distance)
    else:
        residuals.resize_(0)
    return solution, residuals, rank, singular_values


@op("aten::linalg_matrix_exp")
def linalg_matrix_exp(self: Tensor) -> Tensor:
    """The exponential function of matrices."""
    if self.ndim < 2:
        raise RuntimeError("linalg.matrix_exp: The input tensor A must have at least 2 dimensions.")
    if self.shape[-1] != self.shape[-2]:
        raise RuntimeError("linalg.matrix_exp: A must be batches of square matrices")
    if not (self.is_floating_point() or self.is_complex()):
        raise RuntimeError("linalg.matrix_exp: Expected a floating point or complex tensor as input")
    if self.numel() == 0:
        return torch.empty_like(self)
    work = self.float() if self.dtype in (torch.float16, torch.bfloat16) else self
    # Each matrix is halved until Taylor's polynomial of degree 18 is exact to rounding, and squared as often.
    limit = 1.0 if work.dtype in (torch.float64, torch.complex128) else 3.0
    norms = work.abs().sum(-2).amax(-1)
    squarings = (norms / limit).log2().ceil().clamp(0, 1100).nan_to_num()
    scaled = work * torch.exp2(-squarings)[..., None, None]
    identity = torch.eye(work.shape[-1], dtype=work.dtype, device=work.device)
    result = identity + scaled / 18
    for k in range(17, 0, -1):
        result = identity + scaled @ result / k
    for i in range(int(squarings.max())):
        result = torch.where((squarings > i)[..., None, None], result @ result, result)
    return result.to(self.dtype)
