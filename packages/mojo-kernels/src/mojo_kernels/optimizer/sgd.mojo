"""Stochastic gradient descent with momentum over lists of tensors.

Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), in the form that torch documents.
"""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.math import compute_type, narrow
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
struct _Sgd[type: DType](ListUpdate):
    """Lists: parameters, gradients, momentum buffers (absent without momentum).
    """

    comptime dtype = Self.type
    comptime lists = 3

    var learning_rate: Number[Self.type]
    var learning_rate_tensor: OptionalNumber
    var weight_decay: Number[Self.type]
    var momentum: Number[Self.type]
    var dampening: Number[Self.type]
    var nesterov: Int32
    var maximize: Int32
    var is_first_step: Int32
    var gradient_scale: OptionalNumber

    @inline(.always)
    def prepare(
        self, value: Number[Self.dtype], number: OptionalNumber
    ) -> Prepared[Self.dtype]:
        """The learning rate."""
        var rate = self.learning_rate
        if self.learning_rate_tensor.is_given():
            rate = self.learning_rate_tensor.load().cast[
                compute_type[Self.dtype]()
            ]()
        return Prepared[Self.dtype](rate, 0)

    @inline(.always)
    def apply[
        w: Int
    ](
        self,
        at: StaticTuple[Data[Self.dtype], 3],
        prepared: Prepared[Self.dtype],
    ):
        comptime compute = compute_type[Self.dtype]()
        var parameter = at[0].unsafe_load[width=w](0).cast[compute]()
        var gradient = at[1].unsafe_load[width=w](0).cast[compute]()
        if self.gradient_scale.is_given():
            gradient /= self.gradient_scale.load().cast[compute]()
            at[1].unsafe_store(0, narrow[Self.dtype](gradient))
        if self.maximize != 0:
            gradient = -gradient
        if self.weight_decay != 0:
            gradient += parameter * self.weight_decay
        if self.momentum != 0:
            var momentum = self.momentum
            var buffer = gradient
            if self.is_first_step == 0:
                buffer = at[2].unsafe_load[width=w](0).cast[
                    compute
                ]() * momentum + gradient * (1 - self.dampening)
            at[2].unsafe_store(0, narrow[Self.dtype](buffer))
            gradient = (
                gradient + buffer * momentum if self.nesterov != 0 else buffer
            )
        parameter -= gradient * prepared[0]
        at[0].unsafe_store(0, narrow[Self.dtype](parameter))


def sgd[
    dtype: DType, learning_rate: StaticString = "number"
](call: KernelCall) raises:
    """One step of stochastic gradient descent.

    Tensors: n parameters, n gradients, n momentum buffers or none; the learning rate (float32, one element) if it is a
    tensor; then, each optional, the scale that gradients are divided by and the flag that skips the step (float32, one
    element). Corresponding tensors have the same sizes and one dtype.

    Scalars: n, the number of momentum buffers; the learning rate if it is a number; the weight decay, the momentum, the
    dampening, whether Nesterov's form is used, whether to maximize, whether the buffers hold nothing yet.

    Parameters:
        dtype: The element type, floating.
        learning_rate: "number" or "tensor".

    Args:
        call: The call.

    Raises:
        NotImplementedError: Dtypes differ, or on GPUs corresponding tensors differ in strides.
    """
    var n = call.int_scalar(0)
    var buffers = call.int_scalar(1)
    var companions = 2 * n + buffers
    var cursor = 2
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
        _Sgd[dtype](
            rate.cast[compute](),
            rate_tensor,
            call.float_scalar(cursor).cast[compute](),
            call.float_scalar(cursor + 1).cast[compute]() if buffers > 0 else 0,
            call.float_scalar(cursor + 2).cast[compute](),
            Int32(call.int_scalar(cursor + 3)),
            Int32(call.int_scalar(cursor + 4)),
            Int32(call.int_scalar(cursor + 5)),
            OptionalNumber(call.tensor(companions)),
        ),
        TensorLists[3](
            n,
            StaticTuple[Int, 3](0, n, 2 * n if buffers > 0 else -1),
            -1,
            -1,
            0,
        ),
        OptionalNumber(call.tensor(companions + 1)),
    )
