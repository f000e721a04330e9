"""Applies a function of up to three operands to every element, for any layout, on CPUs and GPUs.

A pointwise kernel is an `ElementFunction`, a struct whose fields are the scalars of the op, and one call of
`elementwise`.
"""

from mojo_kernels.abi import KernelCall
from mojo_kernels.layout import IndexSpace
from mojo_kernels.pointwise.cpu import run_on_cpu
from mojo_kernels.pointwise.function import ElementFunction
from mojo_kernels.pointwise.gpu import run_on_gpu
from std.sys.info import has_accelerator


def elementwise[F: ElementFunction](call: KernelCall, f: F) raises:
    """Computes `output[i] = f(inputs[i]...)` for every element.

    Parameters:
        F: The function.

    Args:
        call: Its tensors are the output and `F.arity` inputs, all with the same sizes.
        f: The function with its scalars.
    """
    var space = IndexSpace[F.arity + 1](call)
    if space.numel == 0:
        return
    comptime if has_accelerator():
        run_on_gpu(call, space, f)
    else:
        run_on_cpu(call, space, f)
