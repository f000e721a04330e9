"""The operators: mm, addmm, bmm, baddbmm, addmv, dot.

Scalars beta and alpha are Numbers; beta 0 ignores the addend, NaN included.
Half types are summed in float32 and rounded once.
"""

from std.sys.info import has_accelerator

from mojo_kernels.abi import KernelCall, Tensor
from mojo_kernels.matmul.matrix import Batch, Matrix, Update
from mojo_kernels.matmul.multiply import multiply_batch
from mojo_kernels.matmul.tile import TileFormat


@inline(.always)
def _stride(tensor: Tensor, dimension: Int) -> Int:
    """The stride of a dimension counted from the end; 0 where the tensor is broadcast along it.
    """
    if dimension > Int(tensor.ndim) or tensor.size(-dimension) == 1:
        return 0
    return tensor.stride(-dimension)


@inline(.always)
def _matrix[dtype: DType](tensor: Tensor) -> Matrix[dtype]:
    """The last two dimensions."""
    return Matrix[dtype](
        tensor.pointer[dtype](), tensor.stride(-2), tensor.stride(-1)
    )


@inline(.always)
def _batch_stride(tensor: Tensor) -> Int:
    return tensor.stride(0) if tensor.ndim == 3 else 0


@inline(.always)
def _host_value[
    dtype: DType
](addend: Tensor, beta: Scalar[TileFormat[dtype].ACCUMULATE]) -> Scalar[
    TileFormat[dtype].ACCUMULATE
]:
    """The scaled value of an addend that is one element in host memory."""
    return (
        beta
        * addend.pointer[dtype]()
        .unsafe_load()
        .cast[TileFormat[dtype].ACCUMULATE]()
    )


def _product[
    dtype: DType
](
    call: KernelCall,
    a: Tensor,
    b: Tensor,
    alpha: Scalar[TileFormat[dtype].ACCUMULATE],
    beta: Scalar[TileFormat[dtype].ACCUMULATE],
    has_addend: Bool,
) raises:
    """Products of the last two dimensions of a and b into tensor 0, with tensor 1 as the addend if there is one.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    var out = call.tensor(0)
    var addend = call.tensor(1) if has_addend else out
    var constant = Scalar[accumulate](0)
    var reads_addend = has_addend
    comptime if has_accelerator():
        if has_addend and addend.is_host_scalar():
            constant = _host_value[dtype](addend, beta)
            reads_addend = False
    multiply_batch[dtype](
        call,
        Batch[dtype, accumulate](
            out.size(0) if out.ndim == 3 else 1,
            out.size(-2),
            out.size(-1),
            a.size(-1),
            _matrix[dtype](a),
            _matrix[dtype](b),
            Update[dtype, accumulate](
                _matrix[dtype](out),
                alpha,
                beta,
                Matrix[dtype](
                    addend.pointer[dtype](),
                    _stride(addend, 2),
                    _stride(addend, 1),
                ),
                reads_addend,
                constant,
            ),
            _batch_stride(a),
            _batch_stride(b),
            _batch_stride(out),
            _stride(addend, 3),
        ),
    )


def mm[dtype: DType](call: KernelCall) raises:
    """Computes `out = self @ mat2`, also for batches of matrices.

    Tensors: out [(b,) m, n], self [(b,) m, k], mat2 [(b,) k, n], any strides.

    Parameters:
        dtype: The element type of all.

    Args:
        call: The call.

    Raises:
        If there is no memory for the workspace.
    """
    _product[dtype](call, call.tensor(1), call.tensor(2), 1, 0, False)


def addmm[dtype: DType](call: KernelCall) raises:
    """Computes `out = beta * self + alpha * (mat1 @ mat2)`, also for batches of matrices.

    Tensors: out [(b,) m, n], self broadcastable to it, mat1 [(b,) m, k], mat2
    [(b,) k, n], any strides; self may be out. Scalars: beta, alpha (Numbers).

    Parameters:
        dtype: The element type of all.

    Args:
        call: The call.

    Raises:
        If there is no memory for the workspace.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    var beta = call.number[accumulate](0)
    _product[dtype](
        call,
        call.tensor(2),
        call.tensor(3),
        call.number[accumulate](2),
        beta,
        beta != 0,
    )


def addmv[dtype: DType](call: KernelCall) raises:
    """Computes `out = beta * self + alpha * (mat @ vec)`.

    Tensors: out [m], self broadcastable to it, mat [m, k], vec [k], any
    strides; self may be out. Scalars: beta, alpha (Numbers).

    Parameters:
        dtype: The element type of all.

    Args:
        call: The call.

    Raises:
        If there is no memory for the workspace.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    var out = call.tensor(0)
    var addend = call.tensor(1)
    var mat = call.tensor(2)
    var vec = call.tensor(3)
    var beta = call.number[accumulate](0)
    var constant = Scalar[accumulate](0)
    var reads_addend = beta != 0
    comptime if has_accelerator():
        if reads_addend and addend.is_host_scalar():
            constant = _host_value[dtype](addend, beta)
            reads_addend = False
    multiply_batch[dtype](
        call,
        Batch[dtype, accumulate](
            1,
            out.size(0),
            1,
            vec.size(0),
            _matrix[dtype](mat),
            Matrix[dtype](vec.pointer[dtype](), vec.stride(0), 1),
            Update[dtype, accumulate](
                Matrix[dtype](out.pointer[dtype](), out.stride(0), 1),
                call.number[accumulate](2),
                beta,
                Matrix[dtype](addend.pointer[dtype](), _stride(addend, 1), 0),
                reads_addend,
                constant,
            ),
            0,
            0,
            0,
            0,
        ),
    )


def dot[dtype: DType](call: KernelCall) raises:
    """Computes the scalar product of two vectors, `out = sum(self * tensor)`.

    Tensors: out [] , self [k], tensor [k], any strides.

    Parameters:
        dtype: The element type of all.

    Args:
        call: The call.

    Raises:
        If there is no memory for the workspace.
    """
    comptime accumulate = TileFormat[dtype].ACCUMULATE
    var out = call.tensor(0)
    var a = call.tensor(1)
    var b = call.tensor(2)
    var k = a.size(0)
    var one = Matrix[dtype](out.pointer[dtype](), 1, 1)
    multiply_batch[dtype](
        call,
        Batch[dtype, accumulate](
            1,
            1,
            1,
            k,
            Matrix[dtype](a.pointer[dtype](), 0, a.stride(0)),
            Matrix[dtype](b.pointer[dtype](), b.stride(0), 0),
            Update[dtype, accumulate](one, 1, 0, one, False, 0),
            0,
            0,
            0,
            0,
        ),
    )
