"""The kernel that `torch-mojo-backend doctor` runs on every device."""

from mojo_kernels.abi import Data, KernelCall
from std.sys.info import has_accelerator

from max.gpu import global_idx
from max.gpu.host import DeviceContext


def multiply_add(y: Data[DType.int32], n: Int64):
    """Writes `3 * i + 1` to each element on a GPU.

    Args:
        y: The output, `n` elements.
        n: The number of elements.
    """
    var i = Int(global_idx.x)
    if i < Int(n):
        y.unsafe_store(i, Int32(3 * i + 1))


def smoke(call: KernelCall) raises:
    """Writes `3 * i + 1` to element `i` of a contiguous int32 tensor.

    Args:
        call: Tensors: the output. Scalars: none.
    """
    var y = call.tensor(0).pointer[DType.int32]()
    var n = call.tensor(0).numel
    comptime if has_accelerator():
        var context = DeviceContext(
            Pointer[NoneType, MutUntrackedOrigin](
                unsafe_from_address=Int(call.device_context)
            )
        )
        context.enqueue_function[multiply_add](
            y, n, grid_dim=Int((n + 127) // 128), block_dim=128
        )
    else:

        def body(i: Int) {imm}:
            y.unsafe_store(i, Int32(3 * i + 1))

        call.parallel(body, Int(n))
