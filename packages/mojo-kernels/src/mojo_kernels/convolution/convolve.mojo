"""The operators: convolution, transposed convolution."""

from std.sys.info import has_accelerator

from mojo_kernels.abi import KernelCall
from mojo_kernels.convolution.direct import gather_directly, is_direct
from mojo_kernels.convolution.geometry import Convolution, Gather
from mojo_kernels.convolution.gpu import gather_on_gpu
from mojo_kernels.convolution.products import gather_on_cpu


def convolve[dtype: DType](call: KernelCall) raises:
    """A convolution or a transposed one, in one to three spatial dimensions; each is the other's gradient of the input.

    Tensors: output [n, c, ...], input [n, d, ...], weight, bias [c] or absent. The weight is [c, d / groups, ...], that of
    a transposed convolution [d, c / groups, ...]; any strides. Scalars: transposed, groups, stride, padding, dilation
    (int[]).

    Parameters:
        dtype: The element type of all.

    Args:
        call: The call.

    Raises:
        ValueError: The sizes do not fit together.
    """
    var output = call.tensor(0)
    var input = call.tensor(1)
    var weight = call.tensor(2)
    var bias = call.tensor(3)
    if call.int_scalar(0) == 0:
        var gather = Gather[dtype](
            Convolution[dtype](call, input, weight, output, 1), bias
        )
        _compute(call, gather)
    else:
        var convolution = Convolution[dtype](call, output, weight, input, 1)
        for phase in range(convolution.phases()):
            var gather = Gather[dtype](convolution, bias, phase)
            _compute(call, gather)


def _compute[dtype: DType](call: KernelCall, mut gather: Gather[dtype]) raises:
    gather.merge_axes()
    comptime if has_accelerator():
        gather_on_gpu(call, gather)
    else:
        if is_direct(gather):
            gather_directly(call, gather)
        else:
            gather_on_cpu(call, gather)
