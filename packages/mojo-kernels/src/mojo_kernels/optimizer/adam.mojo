"""Adam and AdamW over lists of tensors.

Kingma and Ba, "Adam: a method for stochastic optimization" (2015); Loshchilov and Hutter, "Decoupled weight decay
regularization" (2019); amsgrad: Reddi et al., "On the convergence of Adam and beyond" (2018).
"""

from mojo_kernels.abi import Data, KernelCall
from mojo_kernels.math import compute_type, expm1, log, narrow, sqrt
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
struct _Adam[decoupled: Bool, type: DType](ListUpdate):
    """Lists: parameters, gradients, averages, averages of squares, their maxima (amsgrad only).
    """

    comptime dtype = Self.type
    comptime lists = 5
    comptime compute = compute_type[Self.type]()

    var learning_rate: Number[Self.type]
    var learning_rate_tensor: OptionalNumber
    var log_beta1: Number[Self.type]
    """log(beta1): 1 - beta1^step cancels in float32, -expm1(step log(beta1)) does not."""
    var log_beta2: Number[Self.type]
    """log(beta2)."""
    var beta2: Number[Self.type]
    var rest1: Number[Self.type]
    """1 - beta1."""
    var rest2: Number[Self.type]
    """1 - beta2."""
    var weight_decay: Number[Self.type]
    var eps: Number[Self.type]
    var gradient_scale: OptionalNumber
    var amsgrad: Int32
    var maximize: Int32

    @inline(.always)
    def prepare(
        self, value: Number[Self.dtype], number: OptionalNumber
    ) -> Prepared[Self.dtype]:
        """The step size and the root of the second bias correction."""
        var step = number.load().cast[Self.compute]()
        return Prepared[Self.dtype](
            -self._rate() / expm1(step * self.log_beta1),
            sqrt(-expm1(step * self.log_beta2)),
        )

    @inline(.always)
    def _rate(self) -> Number[Self.dtype]:
        if self.learning_rate_tensor.is_given():
            return self.learning_rate_tensor.load().cast[Self.compute]()
        return self.learning_rate

    @inline(.always)
    def apply[
        w: Int
    ](
        self,
        at: StaticTuple[Data[Self.dtype], 5],
        prepared: Prepared[Self.dtype],
    ):
        comptime compute = Self.compute
        var parameter = at[0].unsafe_load[width=w](0).cast[compute]()
        var gradient = at[1].unsafe_load[width=w](0).cast[compute]()
        var average = at[2].unsafe_load[width=w](0).cast[compute]()
        var square = at[3].unsafe_load[width=w](0).cast[compute]()
        if self.gradient_scale.is_given():
            gradient /= self.gradient_scale.load().cast[compute]()
            at[1].unsafe_store(0, narrow[Self.dtype](gradient))
        if self.maximize != 0:
            gradient = -gradient
        if self.weight_decay != 0:
            comptime if Self.decoupled:
                parameter *= 1 - self._rate() * self.weight_decay
            else:
                gradient += parameter * self.weight_decay
        average += (gradient - average) * self.rest1
        square = square * self.beta2 + gradient * gradient * self.rest2
        at[2].unsafe_store(0, narrow[Self.dtype](average))
        at[3].unsafe_store(0, narrow[Self.dtype](square))
        if self.amsgrad != 0:
            square = max(square, at[4].unsafe_load[width=w](0).cast[compute]())
            at[4].unsafe_store(0, narrow[Self.dtype](square))
        var denominator = sqrt(square) / prepared[1] + self.eps
        parameter -= average * prepared[0] / denominator
        at[0].unsafe_store(0, narrow[Self.dtype](parameter))


def adam[
    op: StaticString, dtype: DType, learning_rate: StaticString = "number"
](call: KernelCall) raises:
    """One step of Adam or AdamW.

    Tensors: n parameters, n gradients, n averages of gradients, n averages of their squares, n maxima of those or none,
    n steps (float32, one element, counted from 1); the learning rate (float32, one element) if it is a tensor; then, each
    optional, the scale that gradients are divided by and the flag that skips the step (float32, one element).
    Corresponding tensors have the same sizes, and one dtype but for the steps.

    Scalars: n, the number of maxima; the learning rate if it is a number; beta1, beta2, the weight decay, epsilon, whether
    the maxima are used, whether to maximize.

    Parameters:
        op: "adam" or "adamw".
        dtype: The element type, floating.
        learning_rate: "number" or "tensor".

    Args:
        call: The call.

    Raises:
        NotImplementedError: Dtypes differ, or on GPUs corresponding tensors differ in strides.
    """
    var n = call.int_scalar(0)
    var maxima = call.int_scalar(1)
    var steps = 4 * n + maxima
    var companions = steps + n
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
    var beta1 = call.float_scalar(cursor)
    var beta2 = call.float_scalar(cursor + 1)
    update_lists(
        call,
        _Adam[op == "adamw", dtype](
            rate.cast[compute](),
            rate_tensor,
            log(beta1).cast[compute](),
            log(beta2).cast[compute](),
            beta2.cast[compute](),
            (1 - beta1).cast[compute](),
            (1 - beta2).cast[compute](),
            call.float_scalar(cursor + 2).cast[compute](),
            call.float_scalar(cursor + 3).cast[compute](),
            OptionalNumber(call.tensor(companions)),
            Int32(call.int_scalar(cursor + 4)),
            Int32(call.int_scalar(cursor + 5)),
        ),
        TensorLists[5](
            n,
            StaticTuple[Int, 5](
                0, n, 2 * n, 3 * n, 4 * n if maxima > 0 else -1
            ),
            steps,
            -1,
            0,
        ),
        OptionalNumber(call.tensor(companions + 1)),
    )
