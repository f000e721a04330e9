"""The connectionist temporal classification loss of Graves et al. (2006), computed with logarithms.

The labels of a sample, with a blank before, between and behind them, are its states. Forward variables: alpha[t][s] is the
logarithm of the probability of all ways to reach state s at step t; beta likewise from step t to the end.
"""

from max.gpu import block_idx, thread_idx
from max.gpu.sync import barrier
from mojo_kernels.abi import Data, KernelCall, Tensor
from mojo_kernels.layout import parallel_ranges
from mojo_kernels.math import exp, log
from mojo_kernels.reduction.rows import gpu_context
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.sys.info import has_accelerator, is_gpu
from std.utils.numerics import inf, isinf

comptime BLOCK = 128
"""Threads of a block, which share a sample."""
comptime GRAIN = 2048
"""Forward variables that are worth a thread."""


@inline(.always)
def _add[
    dtype: DType
](a: Scalar[dtype], b: Scalar[dtype], c: Scalar[dtype]) -> Scalar[dtype]:
    """The logarithm of the sum of three exponentials."""
    var largest = max(max(a, b), c)
    if largest == -inf[dtype]():
        return largest
    return log(exp(a - largest) + exp(b - largest) + exp(c - largest)) + largest


struct _Samples[dtype: DType, labels: DType](
    DevicePassable, TrivialRegisterPassable
):
    """Log probabilities [steps, batch, classes] and the labels of each sample.
    """

    comptime device_type: AnyType = Self

    var scores: Data[Self.dtype]
    var step_stride: Int64
    var sample_stride: Int64
    var class_stride: Int64
    var targets: Data[Self.labels]
    var target_stride: Int64
    var problems: Data[DType.int64]
    var steps: Int64
    var batch: Int64
    var classes: Int64
    var width: Int64
    var blank: Int64

    def __init__(
        out self,
        scores: Tensor,
        targets: Tensor,
        problems: Tensor,
        width: Int,
        blank: Int,
        target_stride: Int,
    ):
        """Takes a call's tensors; `width` is the number of states of the longest sample.
        """
        self.scores = scores.pointer[Self.dtype]()
        self.step_stride = Int64(scores.stride(0))
        self.sample_stride = Int64(scores.stride(1))
        self.class_stride = Int64(scores.stride(2))
        self.targets = targets.pointer[Self.labels]()
        self.target_stride = Int64(target_stride)
        self.problems = problems.pointer[DType.int64]()
        self.steps = Int64(scores.size(0))
        self.batch = Int64(scores.size(1))
        self.classes = Int64(scores.size(2))
        self.width = Int64(width)
        self.blank = Int64(blank)

    @staticmethod
    def get_type_name() -> String:
        return "_Samples"

    def _to_device_type(
        self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]
    ):
        encoder.encode(self, target)

    @inline(.always)
    def length(self, sample: Int) -> Int:
        """How many steps a sample has."""
        return Int(self.problems.unsafe_load(3 * sample + 1))

    @inline(.always)
    def states(self, sample: Int) -> Int:
        """How many states a sample has."""
        return 2 * Int(self.problems.unsafe_load(3 * sample + 2)) + 1

    @inline(.always)
    def label(self, sample: Int, state: Int) -> Int:
        """The class of a state; labels that are no class count as blank."""
        if state % 2 == 0:
            return Int(self.blank)
        var label = Int(
            self.targets.unsafe_load(
                Int(self.problems.unsafe_load(3 * sample))
                + state // 2 * Int(self.target_stride)
            )
        )
        return label if 0 <= label and label < Int(self.classes) else Int(
            self.blank
        )

    @inline(.always)
    def skips(self, sample: Int, state: Int) -> Bool:
        """Whether a state can follow the one two before: labels that differ."""
        return (
            state % 2 == 1
            and state >= 2
            and self.label(sample, state) != self.label(sample, state - 2)
        )

    @inline(.always)
    def score(self, step: Int, sample: Int, label: Int) -> Scalar[Self.dtype]:
        """A log probability."""
        return self.scores.unsafe_load(
            step * Int(self.step_stride)
            + sample * Int(self.sample_stride)
            + label * Int(self.class_stride)
        )


@inline(.always)
def _lane() -> Int:
    """The first state that this thread handles."""
    comptime if is_gpu():
        return Int(thread_idx.x)
    else:
        return 0


@inline(.always)
def _wait():
    """Lets the threads of a sample see each other's stores."""
    comptime if is_gpu():
        barrier()


@inline(.always)
def _forward[
    dtype: DType, labels: DType, lanes: Int
](
    samples: _Samples[dtype, labels],
    sample: Int,
    alpha: Data[dtype],
    likelihood: Data[dtype],
):
    """The forward variables of a sample [steps, width], -inf beforehand, and its negative log likelihood.
    """
    comptime lowest = -inf[dtype]()
    var steps = samples.length(sample)
    var states = samples.states(sample)
    var width = Int(samples.width)
    if steps == 0:
        if _lane() == 0:
            likelihood.unsafe_store(
                sample, Scalar[dtype](0) if states == 1 else inf[dtype]()
            )
        return
    for s in range(_lane(), min(states, 2), lanes):
        alpha.unsafe_store(
            s, samples.score(0, sample, samples.label(sample, s))
        )
    _wait()
    for t in range(1, steps):
        var before = alpha.unsafe_offset((t - 1) * width)
        for s in range(_lane(), states, lanes):
            var stays = before.unsafe_load(s)
            var moves = before.unsafe_load(s - 1) if s > 0 else lowest
            var skips = lowest
            if samples.skips(sample, s):
                skips = before.unsafe_load(s - 2)
            alpha.unsafe_store(
                t * width + s,
                _add(stays, moves, skips)
                + samples.score(t, sample, samples.label(sample, s)),
            )
        _wait()
    if _lane() == 0:
        var last = alpha.unsafe_offset((steps - 1) * width)
        likelihood.unsafe_store(
            sample,
            -_add(
                last.unsafe_load(states - 1),
                last.unsafe_load(states - 2) if states > 1 else lowest,
                lowest,
            ),
        )


def _forward_block[
    dtype: DType, labels: DType
](
    samples: _Samples[dtype, labels],
    alpha: Data[dtype],
    likelihood: Data[dtype],
):
    """One sample per block."""
    var sample = Int(block_idx.x)
    _forward[lanes=BLOCK](
        samples,
        sample,
        alpha.unsafe_offset(sample * Int(samples.steps * samples.width)),
        likelihood,
    )


def ctc_loss[dtype: DType, labels: DType](call: KernelCall) raises:
    """The negative log likelihood of labels, summed over all their alignments.

    Tensors: the negative log likelihoods [batch]; the forward variables [batch, steps, states of the longest sample], -inf
    beforehand; log probabilities [steps, batch, classes] of any strides; labels of any strides; int64 [batch, 3]: for each
    sample where its labels start in elements, its steps, its number of labels. All but log probabilities and labels
    contiguous. Scalars: the blank's class, the distance between labels in elements.

    Parameters:
        dtype: float32 or float64.
        labels: The labels' type, int64 or int32.

    Args:
        call: The call.
    """
    var likelihood = call.tensor(0).pointer[dtype]()
    var alpha = call.tensor(1).pointer[dtype]()
    var samples = _Samples[dtype, labels](
        call.tensor(2),
        call.tensor(3),
        call.tensor(4),
        call.tensor(1).size(2),
        call.int_scalar(0),
        call.int_scalar(1),
    )
    var batch = Int(samples.batch)
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_forward_block[dtype, labels]](
            samples, alpha, likelihood, grid_dim=batch, block_dim=BLOCK
        )
    else:
        var size = Int(samples.steps * samples.width)

        def some_samples(start: Int, end: Int) {imm}:
            for sample in range(start, end):
                _forward[lanes=1](
                    samples,
                    sample,
                    alpha.unsafe_offset(sample * size),
                    likelihood,
                )

        parallel_ranges(call, batch, GRAIN // max(size, 1), some_samples)


@inline(.always)
def _backward[
    dtype: DType, labels: DType, lanes: Int
](
    samples: _Samples[dtype, labels],
    sample: Int,
    gradient: Data[dtype],
    beta: Data[dtype],
    alpha: Data[dtype],
    likelihood: Scalar[dtype],
    dy: Scalar[dtype],
    is_zero: Bool,
):
    """The gradient of a sample; `beta` holds the variables of two steps."""
    comptime lowest = -inf[dtype]()
    var steps = samples.length(sample)
    var states = samples.states(sample)
    var width = Int(samples.width)
    var classes = Int(samples.classes)
    for t in range(Int(samples.steps) - 1, -1, -1):
        var row = gradient.unsafe_offset(
            (t * Int(samples.batch) + sample) * classes
        )
        if t >= steps or is_zero:
            for c in range(_lane(), classes, lanes):
                row.unsafe_store(c, Scalar[dtype](0))
            continue
        var now = beta.unsafe_offset(t % 2 * width)
        var after = beta.unsafe_offset((t + 1) % 2 * width)
        for s in range(_lane(), states, lanes):
            var ways = lowest
            if t == steps - 1:
                if s >= states - 2:
                    ways = 0
            else:
                var skips = lowest
                if s + 2 < states and samples.skips(sample, s + 2):
                    skips = after.unsafe_load(s + 2)
                ways = _add(
                    after.unsafe_load(s),
                    after.unsafe_load(s + 1) if s + 1 < states else lowest,
                    skips,
                )
            now.unsafe_store(
                s, ways + samples.score(t, sample, samples.label(sample, s))
            )
        _wait()
        var reached = alpha.unsafe_offset(t * width)
        comptime if is_gpu():
            for c in range(_lane(), classes, lanes):
                var ways = lowest
                for s in range(states):
                    if samples.label(sample, s) == c:
                        ways = _add(
                            ways,
                            reached.unsafe_load(s) + now.unsafe_load(s),
                            lowest,
                        )
                row.unsafe_store(c, ways)
        else:
            for c in range(classes):
                row.unsafe_store(c, lowest)
            for s in range(states):
                var c = samples.label(sample, s)
                row.unsafe_store(
                    c,
                    _add(
                        row.unsafe_load(c),
                        reached.unsafe_load(s) + now.unsafe_load(s),
                        lowest,
                    ),
                )
        for c in range(_lane(), classes, lanes):
            var score = samples.score(t, sample, c)
            row.unsafe_store(
                c,
                dy
                * (exp(score) - exp(row.unsafe_load(c) + likelihood - score)),
            )
        _wait()


def _backward_block[
    dtype: DType, labels: DType
](
    samples: _Samples[dtype, labels],
    gradient: Data[dtype],
    beta: Data[dtype],
    alpha: Data[dtype],
    likelihood: Data[dtype],
    dy: Data[dtype],
    dy_stride: Int64,
    zeroes_infinite: Int32,
):
    """One sample per block."""
    var sample = Int(block_idx.x)
    var width = Int(samples.width)
    var loss = likelihood.unsafe_load(sample)
    _backward[lanes=BLOCK](
        samples,
        sample,
        gradient,
        beta.unsafe_offset(sample * 2 * width),
        alpha.unsafe_offset(sample * Int(samples.steps) * width),
        loss,
        dy.unsafe_load(sample * Int(dy_stride)),
        zeroes_infinite != 0 and Bool(isinf(loss)),
    )


def ctc_loss_backward[dtype: DType, labels: DType](call: KernelCall) raises:
    """The gradient of the scores whose log-softmax the log probabilities are.

    Tensors: the gradient [steps, batch, classes]; scratch [batch, 2, states]; the loss's gradient [batch] of any stride; then
    as in `ctc_loss` log probabilities, labels, the description of samples, negative log likelihoods and forward variables.
    Scalars: the blank's class, the distance between labels in elements, whether samples of infinite loss have no gradient.

    Parameters:
        dtype: float32 or float64.
        labels: The labels' type, int64 or int32.

    Args:
        call: The call.
    """
    var gradient = call.tensor(0).pointer[dtype]()
    var beta = call.tensor(1).pointer[dtype]()
    var dy = call.tensor(2).pointer[dtype]()
    var dy_stride = call.tensor(2).stride(0)
    var likelihood = call.tensor(6).pointer[dtype]()
    var alpha = call.tensor(7).pointer[dtype]()
    var samples = _Samples[dtype, labels](
        call.tensor(3),
        call.tensor(4),
        call.tensor(5),
        call.tensor(7).size(2),
        call.int_scalar(0),
        call.int_scalar(1),
    )
    var zeroes_infinite = call.int_scalar(2) != 0
    var batch = Int(samples.batch)
    comptime if has_accelerator():
        gpu_context(call).enqueue_function[_backward_block[dtype, labels]](
            samples,
            gradient,
            beta,
            alpha,
            likelihood,
            dy,
            Int64(dy_stride),
            Int32(zeroes_infinite),
            grid_dim=batch,
            block_dim=BLOCK,
        )
    else:
        var width = Int(samples.width)
        var size = Int(samples.steps) * width

        def some_samples(start: Int, end: Int) {imm}:
            for sample in range(start, end):
                var loss = likelihood.unsafe_load(sample)
                _backward[lanes=1](
                    samples,
                    sample,
                    gradient,
                    beta.unsafe_offset(sample * 2 * width),
                    alpha.unsafe_offset(sample * size),
                    loss,
                    dy.unsafe_load(sample * dy_stride),
                    zeroes_infinite and Bool(isinf(loss)),
                )

        parallel_ranges(call, batch, GRAIN // max(size, 1), some_samples)
