"""A copy of float32 elements on a GPU, right or with one mistake."""

from std.sys.info import has_accelerator

from max.gpu import block_dim, block_idx, thread_idx
from max.gpu.host import DeviceContext
from mojo_kernels.abi import Data, KernelCall


def _copy[
    mistake: StaticString
](
    output: Data[DType.float32],
    stride: Int64,
    input: Data[DType.float32],
    count: Int64,
):
    """One element per thread."""
    var i = Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)
    comptime if mistake == "bounds":
        if i > Int(count):
            return
    elif mistake == "unwritten":
        if i >= Int(count) - 1:
            return
    else:
        if i >= Int(count):
            return
    var value = input.unsafe_load(i)
    comptime if mistake == "value":
        value += 1
    output.unsafe_store(i * Int(stride), value)
    comptime if mistake == "between":
        output.unsafe_store(i * Int(stride) + 1, value)
    elif mistake == "race":
        output.unsafe_store(0, value)


def copy[mistake: StaticString](call: KernelCall) raises:
    """Copies a vector.

    Parameters:
        mistake: What is wrong; "none" for nothing.

    Args:
        call: Tensors: output, of any stride, and input.

    Raises:
        If the mistake is "raises".
    """
    comptime if mistake == "syntax":
        comptime assert False, "this kernel does not compile"
    elif mistake == "raises":
        raise Error("IndexError: no such element")
    var output = call.tensor(0)
    var input = call.tensor(1)
    comptime if has_accelerator() and mistake != "host":
        DeviceContext(
            Pointer[NoneType, MutUntrackedOrigin](
                unsafe_from_address=Int(call.device_context)
            )
        ).enqueue_function[_copy[mistake]](
            output.pointer[DType.float32](),
            Int64(output.stride(0)),
            input.pointer[DType.float32](),
            input.numel,
            grid_dim=(Int(input.numel) + 127) // 128,
            block_dim=128,
        )
    else:
        for i in range(Int(input.numel)):
            output.pointer[DType.float32]().unsafe_store(
                i, input.pointer[DType.float32]().unsafe_load(i)
            )
