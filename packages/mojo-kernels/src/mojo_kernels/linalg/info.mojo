"""What factorizations say of their matrices, as errors."""

from mojo_kernels.abi import KernelCall
from std.sys.info import has_accelerator


def check(call: KernelCall) raises:
    """Raises for the first matrix whose factorization failed.

    Tensors: an output without elements; info (int32, 0 where all is well), contiguous. No scalars.

    Args:
        call: The call.

    Raises:
        RuntimeError: A matrix is singular or not positive definite, on CPUs.
    """
    comptime if not has_accelerator():
        var info = call.tensor(1)
        var codes = info.pointer[DType.int32]()
        for i in range(Int(info.numel)):
            var code = codes.unsafe_load(i)
            if code != 0:
                raise Error(
                    "linalg: the factorization of matrix ",
                    i,
                    " of the batch failed at row ",
                    code,
                    (
                        ", counted from 1: the matrix is singular, or not"
                        " positive-definite"
                    ),
                )
