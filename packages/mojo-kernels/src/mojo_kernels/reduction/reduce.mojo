"""The entry of all reductions."""

from std.sys.info import has_accelerator

from mojo_kernels.abi import KernelCall, Tensor
from mojo_kernels.reduction.cpu import CpuReduction
from mojo_kernels.reduction.gpu import reduce_on_gpu
from mojo_kernels.reduction.plan import (
    ReductionPlan,
    reduced_dimensions,
    wrap_dimension,
)
from mojo_kernels.reduction.reducer import (
    Reducer,
    Storage,
    has_moments,
    has_positions,
    output_count,
    parameter_type,
)


def reduce[
    op: StaticString,
    dtype: DType,
    out: DType,
    second: DType = out,
    dimensions: StaticString = "list",
](call: KernelCall) raises:
    """Reduces a tensor over some or all dimensions.

    Tensors: the output, the second output where the op has two (max, min: values and positions; aminmax: minimum and
    maximum; var_mean, std_mean), the input. Any strides; outputs hold the reduced dimensions with size 1 or not at all.

    Scalars: the dimensions: a length and as many dimensions, where 0 or no scalar at all means every dimension (int[]? and
    int?), or with `single` one int. Then the op's own: norm: the order, a Number; var and std: the correction, an optional
    Number.

    Parameters:
        op: The reduction, see reducer.mojo.
        dtype: The input's element type.
        out: The first output's element type.
        second: The second output's element type.
        dimensions: "list", or "one" where the dimension is one int.

    Args:
        call: The call.

    Raises:
        IndexError: A dimension is out of range.
    """
    comptime outputs = output_count[op]()
    var input = call.tensor(outputs)
    var reduced: UInt64
    var cursor = 1
    comptime if dimensions == "one":
        reduced = UInt64(1) << UInt64(
            wrap_dimension(call.int_scalar(0), Int(input.ndim))
        )
    else:
        reduced = reduced_dimensions(call, 0, Int(input.ndim))
        if call.n_scalars > 0:
            cursor += call.int_scalar(0)
    var argument = Float64(1)
    comptime if op == "norm":
        # A Number is two words, an optional one three, or one where it is not given.
        argument = (
            call.float_scalar(Int(call.n_scalars) - 1) if Int(call.n_scalars)
            > cursor + 1 else 2
        )
    elif has_moments[op]():
        if call.int_scalar(cursor) != 0:
            argument = call.float_scalar(cursor + 2)
    reduce_tensor[op, dtype, out, second](
        call,
        input,
        call.tensor(0),
        call.tensor(outputs - 1),
        reduced,
        argument,
    )


def reduce_tensor[
    op: StaticString, dtype: DType, out: DType, second: DType = out
](
    call: KernelCall,
    input: Tensor,
    output: Tensor,
    second_output: Tensor,
    dimensions: UInt64,
    argument: Float64,
) raises:
    """Reduces one tensor, as a step of another kernel.

    Parameters:
        op: The reduction, see reducer.mojo.
        dtype: The input's element type.
        out: The first output's element type.
        second: The second output's element type.

    Args:
        call: The call, for its threads or device.
        input: What is reduced.
        output: The result.
        second_output: The second result, or the first again.
        dimensions: Bit d is set where dimension d is reduced.
        argument: The order of a norm, or the correction of a variance.
    """
    var plan = ReductionPlan(
        input, output, second_output, dimensions, has_positions[op]()
    )
    comptime if has_accelerator():
        reduce_on_gpu[op, dtype, out, second](
            call,
            Reducer[op, dtype, out](argument.cast[parameter_type[out]()]()),
            plan,
            input.pointer[Storage[dtype]](),
            output.pointer[Storage[out]](),
            second_output.pointer[Storage[second]](),
        )
    else:
        CpuReduction[op, dtype, out, second](
            Reducer[op, dtype, out](argument.cast[parameter_type[out]()]()),
            plan^,
            input.pointer[Storage[dtype]](),
            output.pointer[Storage[out]](),
            second_output.pointer[Storage[second]](),
        ).execute(call)
