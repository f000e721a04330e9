"""Adagrad over lists of tensors.

Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization" (2011).
"""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.math import compute_type, narrow, sqrt
from mojo_kernels.optimizer.lists import (
    ListUpdate,
    Number,
    OptionalNumber,
    Prepared,
    TensorLists,
    update_lists,
)
from std.utils.static_tuple import StaticTuple


@fieldwise_init
struct _Adagrad[type: DType](ListUpdate):
    """Lists: parameters, gradients, sums of squared gradients."""

    comptime dtype = Self.type
    comptime lists = 3
    comptime compute = compute_type[Self.type]()

    var learning_rate: Number[Self.type]
    var learning_rate_tensor: OptionalNumber
    var decay: Number[Self.type]
    var weight_decay: Number[Self.type]
    var eps: Number[Self.type]
    var gradient_scale: OptionalNumber
    var maximize: Int32

    @inline(.always)
    def prepare(
        self, value: Number[Self.dtype], number: OptionalNumber
    ) -> Prepared[Self.dtype]:
        """The learning rate of this step."""
        var rate = self.learning_rate
        if self.learning_rate_tensor.is_given():
            rate = self.learning_rate_tensor.load().cast[Self.compute]()
        var step = number.load().cast[Self.compute]()
        return Prepared[Self.dtype](rate / (1 + (step - 1) * self.decay), 0)

    @inline(.always)
    def apply[
        w: Int
    ](
        self,
        at: StaticTuple[Data[Self.dtype], 3],
        prepared: Prepared[Self.dtype],
    ):
        comptime compute = Self.compute
        var parameter = at[0].unsafe_load[width=w](0).cast[compute]()
        var gradient = at[1].unsafe_load[width=w](0).cast[compute]()
        if self.gradient_scale.is_given():
            gradient /= self.gradient_scale.load().cast[compute]()
            at[1].unsafe_store(0, narrow[Self.dtype](gradient))
        if self.maximize != 0:
            gradient = -gradient
        if self.weight_decay != 0:
            gradient += parameter * self.weight_decay
        var total = (
            at[2].unsafe_load[width=w](0).cast[compute]() + gradient * gradient
        )
        at[2].unsafe_store(0, narrow[Self.dtype](total))
        parameter -= gradient * prepared[0] / (sqrt(total) + self.eps)
        at[0].unsafe_store(0, narrow[Self.dtype](parameter))


def adagrad[
    dtype: DType, learning_rate: StaticString = "number"
](call: KernelCall) raises:
    """One step of Adagrad.

    Tensors: n parameters, n gradients, n sums of squared gradients, n steps (float32, one element, counted from 1); the
    learning rate (float32, one element) if it is a tensor; then, each optional, the scale that gradients are divided by
    and the flag that skips the step (float32, one element). Corresponding tensors have the same sizes, and one dtype but
    for the steps.

    Scalars: n; the learning rate if it is a number; its decay, the weight decay, epsilon, whether to maximize.

    Parameters:
        dtype: The element type, floating.
        learning_rate: "number" or "tensor".

    Args:
        call: The call.

    Raises:
        NotImplementedError: Dtypes differ, or on GPUs corresponding tensors differ in strides.
    """
    var n = call.int_scalar(0)
    var companions = 4 * n
    var cursor = 1
    var rate = Float64(0)
    var rate_tensor = OptionalNumber(UInt64(0))
    comptime if learning_rate == "tensor":
        rate_tensor = OptionalNumber(call.tensor(companions))
        companions += 1
    else:
        rate = call.float_scalar(cursor)
        cursor += 1
    comptime compute = compute_type[dtype]()
    update_lists(
        call,
        _Adagrad[dtype](
            rate.cast[compute](),
            rate_tensor,
            call.float_scalar(cursor).cast[compute](),
            call.float_scalar(cursor + 1).cast[compute](),
            call.float_scalar(cursor + 2).cast[compute](),
            OptionalNumber(call.tensor(companions)),
            Int32(call.int_scalar(cursor + 3)),
        ),
        TensorLists[3](n, StaticTuple[Int, 3](0, n, 2 * n), 3 * n, -1, 0),
        OptionalNumber(call.tensor(companions + 1)),
    )
