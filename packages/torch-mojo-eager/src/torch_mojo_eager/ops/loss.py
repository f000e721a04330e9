"""Losses whose outputs torch does not allocate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mojo_eager.ops.registry import launch, op

KERNELS = tuple(
    (f"loss.ctc:{name}[dtype={{0}},labels={{1}}]", (("float32", "float64"), ("int64", "int32")))
    for name in ("ctc_loss", "ctc_loss_backward")
)

_NONE, _MEAN = 0, 1


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    if reduction == _NONE:
        return loss
    return loss.mean() if reduction == _MEAN else loss.sum()


def _check_nll_loss2d(self: Tensor, target: Tensor, weight: Tensor | None) -> None:
    if target.ndim != 3:
        raise RuntimeError(
            f"only batches of spatial targets supported (3D tensors) but got targets of dimension: {target.ndim}"
        )
    if self.ndim != 4:
        raise RuntimeError(
            f"only batches of spatial inputs supported (4D tensors), but got input of dimension: {self.ndim}"
        )
    if weight is not None and weight.numel() != self.shape[1]:
        raise RuntimeError("weight tensor should be defined either for all or no classes")
    if (self.shape[0], *self.shape[2:]) != tuple(target.shape):
        raise RuntimeError(f"size mismatch (got input: {list(self.shape)} , target: {list(target.shape)})")


def _vector(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.contiguous()


@op("aten::nll_loss2d_forward")
def nll_loss2d_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Negative log likelihood loss of each position of images, and the sum of the targets' weights."""
    _check_nll_loss2d(self, target, weight)
    output = self.new_empty(target.shape if reduction == _NONE else ())
    total_weight = self.new_empty(())
    if target.numel() == 0:
        return output.fill_(math.nan if reduction == _MEAN else 0), total_weight.zero_()
    launch(
        "loss.nll:nll_loss",
        [output.view(-1), total_weight, self.flatten(2), target.flatten(1), _vector(weight)],
        [reduction, ignore_index],
        dtype=self.dtype,
    )
    return output, total_weight


@op("aten::nll_loss2d_backward")
def nll_loss2d_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """The gradient of the log probabilities of images."""
    _check_nll_loss2d(self, target, weight)
    result = torch.zeros_like(self, memory_format=torch.contiguous_format)
    if result.numel():
        launch(
            "loss.nll:nll_loss_backward",
            [
                result.view(*result.shape[:2], -1),
                grad_output.reshape(-1),
                self.flatten(2),
                target.flatten(1),
                _vector(weight),
                total_weight,
            ],
            [reduction, ignore_index],
            dtype=self.dtype,
        )
    return result


# ---- margins -------------------------------------------------------------------------------------------------------


def _check_multi_margin(self: Tensor, target: Tensor, p: float, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The scores as [samples, classes] and the targets as [samples]."""
    valid = (self.ndim == 2 and self.shape[1] != 0) or (self.ndim == 1 and self.shape[0] != 0) or self.ndim == 0
    if not valid:
        raise RuntimeError(
            f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(self.shape)}"
        )
    if p not in (1, 2):
        raise RuntimeError("only p == 1 and p == 2 supported")
    scores = self.reshape(1, -1) if self.ndim < 2 else self
    if target.ndim > 1 or target.numel() != scores.shape[0]:
        raise RuntimeError(f"inconsistent target size, expected {scores.shape[0]} but got {list(target.shape)}")
    if weight is not None and (weight.ndim > 1 or weight.numel() != scores.shape[1]):
        raise RuntimeError(f"inconsistent weight size, expected {scores.shape[1]} but got {list(weight.shape)}")
    return scores, target.reshape(-1)


def _margins(scores: Tensor, target: Tensor, margin: float, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """How far each other class is inside the margin, 0 where it is not, and the targets' weights as a column."""
    column = target.unsqueeze(1)
    inside = (scores - scores.gather(1, column) + margin).clamp_(min=0).scatter_(1, column, 0)
    return inside, None if weight is None else weight.reshape(-1)[target].unsqueeze(1)


@op("aten::multi_margin_loss")
def multi_margin_loss(
    self: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """sum over j != y of weight[y] max(0, margin - x[y] + x[j])**p / classes."""
    scores, classes = _check_multi_margin(self, target, p, weight)
    inside, weights = _margins(scores, classes, margin, weight)
    terms = inside if p == 1 else inside * inside
    if weights is not None:
        terms = terms * weights
    loss = terms.sum(1) / scores.shape[1]
    return _reduced(loss if target.ndim else loss.squeeze(0), reduction)


@op("aten::multi_margin_loss_backward")
def multi_margin_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Tensor:
    """The gradient of the scores."""
    scores, classes = _check_multi_margin(self, target, p, weight)
    inside, weights = _margins(scores, classes, margin, weight)
    slope = (inside > 0).to(scores.dtype) if p == 1 else 2 * inside
    if weights is not None:
        slope = slope * weights
    slope = slope / (scores.shape[1] * (scores.shape[0] if reduction == _MEAN else 1))
    slope.scatter_(1, classes.unsqueeze(1), -slope.sum(1, keepdim=True))
    return (slope * grad_output.reshape(-1, 1)).reshape(self.shape)


def _labels(self: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scores and targets as matrices, and where targets count: up to the first -1."""
    valid = (self.ndim == 2 and self.shape[1] != 0) or (self.ndim == 1 and self.shape[0] != 0) or self.ndim == 0
    if not valid:
        raise RuntimeError(
            f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(self.shape)}"
        )
    if target.shape != self.shape and not (self.ndim < 2 and target.numel() == self.numel()):
        raise RuntimeError(f"inconsistent target size: {list(target.shape)} for input of size: {list(self.shape)}")
    scores = self.reshape(1, -1) if self.ndim < 2 else self
    labels = target.reshape(scores.shape)
    return scores, labels, (labels < 0).cumsum(1) == 0


def _label_margins(scores: Tensor, labels: Tensor, counts: Tensor, is_target: Tensor) -> Tensor:
    """[samples, labels, classes]: how far each class that is no target is inside the margin of each label."""
    of_labels = scores.gather(1, labels.clamp(min=0)).unsqueeze(2)
    inside = (1 - of_labels + scores.unsqueeze(1)).clamp_(min=0)
    return inside * (counts.unsqueeze(2) & (is_target == 0).unsqueeze(1))


@op("aten::multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(self: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """sum over labels y and other classes j of max(0, 1 - x[y] + x[j]) / classes, and which classes are labels."""
    scores, labels, counts = _labels(self, target)
    is_target = torch.zeros_like(scores).scatter_reduce_(
        1, labels.clamp(min=0), counts.to(scores.dtype), "amax", include_self=True
    )
    loss = _label_margins(scores, labels, counts, is_target).sum((1, 2)) / scores.shape[1]
    return _reduced(loss if self.ndim == 2 else loss.squeeze(0), reduction), is_target.reshape(target.shape)


@op("aten::multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """The gradient of the scores."""
    scores, labels, counts = _labels(self, target)
    inside = (_label_margins(scores, labels, counts, is_target.reshape(scores.shape)) > 0).to(scores.dtype)
    slope = inside.sum(1).scatter_add_(1, labels.clamp(min=0), -inside.sum(2))
    slope = slope / (scores.shape[1] * (scores.shape[0] if reduction == _MEAN else 1))
    return (slope * grad_output.reshape(-1, 1)).reshape(self.shape)


# ---- connectionist temporal classification -------------------------------------------------------------------------


class _Alignment:
    """The checked arguments of the CTC loss, as the kernel takes them."""

    def __init__(
        self,
        name: str,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Sequence[int],
        target_lengths: Sequence[int],
        blank: int,
    ) -> None:
        if targets.dtype not in (torch.int64, torch.int32):
            raise RuntimeError(f"{name}: expected targets of int64 or int32, got {targets.dtype}")
        if log_probs.dtype not in (torch.float32, torch.float64):
            raise NotImplementedError(f'"{name}" not implemented for {log_probs.dtype}; convert log_probs to float32')
        self.batched = log_probs.ndim == 3
        self.log_probs = log_probs if self.batched else log_probs.unsqueeze(1)
        steps, batch, classes = self.log_probs.shape
        if not 0 <= blank < classes:
            raise RuntimeError("blank must be in label range")
        if len(input_lengths) != batch:
            raise RuntimeError("input_lengths must be of size batch_size")
        if len(target_lengths) != batch:
            raise RuntimeError("target_lengths must be of size batch_size")
        for lengths, what in ((target_lengths, "target_lengths"), (input_lengths, "input_lengths")):
            for length in lengths:
                if length < 0:
                    raise RuntimeError(
                        f"Expected {what} to have value at least 0, but got value {length} (while checking arguments "
                        f"for {name})"
                    )
                if what == "input_lengths" and length > steps:
                    raise RuntimeError(
                        f"Expected input_lengths to have value at most {steps}, but got value {length} "
                        f"(while checking arguments for {name})"
                    )
        self.longest = max(target_lengths, default=0)
        concatenated = targets.ndim == 1 and not (not self.batched and batch == 1)
        if targets.ndim == 1:
            offsets = [sum(target_lengths[:b]) for b in range(batch)]
            self.target_stride = targets.stride(0)
            if targets.shape[0] != sum(target_lengths) and concatenated:
                raise RuntimeError(
                    f"Expected tensor to have size {sum(target_lengths)} at dimension 0, but got size "
                    f"{targets.shape[0]} for argument #2 'targets' (while checking arguments for {name})"
                )
            offsets = [offset * self.target_stride for offset in offsets]
        else:
            if targets.shape[0] != batch or targets.shape[1] < self.longest:
                raise RuntimeError(
                    f"Expected tensor to have size at least {self.longest} at dimension 1, but got size "
                    f"{targets.shape[1]} for argument #2 'targets' (while checking arguments for {name})"
                )
            self.target_stride = targets.stride(1)
            offsets = [b * targets.stride(0) for b in range(batch)]
        self.targets = targets
        words = [[offsets[b], input_lengths[b], target_lengths[b]] for b in range(batch)]
        self.problems = torch.tensor(words, dtype=torch.int64).reshape(batch, 3).to(log_probs.device)
        self.blank = blank


def _ctc_forward(
    name: str,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int,
) -> tuple[Tensor, Tensor]:
    problem = _Alignment(name, log_probs, targets, input_lengths, target_lengths, blank)
    steps, batch, _ = problem.log_probs.shape
    likelihood = log_probs.new_empty(batch)
    log_alpha = log_probs.new_full((batch, steps, 2 * problem.longest + 1), -math.inf)
    if batch:
        launch(
            "loss.ctc:ctc_loss",
            [likelihood, log_alpha, problem.log_probs, targets, problem.problems],
            [blank, problem.target_stride],
            dtype=log_probs.dtype,
            labels=targets.dtype,
        )
    return (likelihood if problem.batched else likelihood.squeeze(0)), log_alpha


def _ctc_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool,
) -> Tensor:
    problem = _Alignment("ctc_loss_backward", log_probs, targets, input_lengths, target_lengths, blank)
    result = torch.empty_like(problem.log_probs, memory_format=torch.contiguous_format)
    if result.numel():
        batch = problem.log_probs.shape[1]
        scratch = log_probs.new_empty((batch, 2, log_alpha.shape[-1]))
        launch(
            "loss.ctc:ctc_loss_backward",
            [
                result,
                scratch,
                grad.reshape(-1).expand(batch),
                problem.log_probs,
                targets,
                problem.problems,
                neg_log_likelihood.reshape(-1),
                log_alpha.contiguous(),
            ],
            [blank, problem.target_stride, zero_infinity],
            dtype=log_probs.dtype,
            labels=targets.dtype,
        )
    return result if problem.batched else result.squeeze(1)


@op("aten::_ctc_loss")
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Negative log likelihood of labels whose alignment is unknown, and the logarithms of the forward variables."""
    return _ctc_forward("ctc_loss", log_probs, targets, input_lengths, target_lengths, blank)


def _lengths(name: str, lengths: Tensor) -> list[int]:
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise RuntimeError(f"{name} must be integral")
    values: list[int] = lengths.reshape(-1).tolist()
    return values


@op("aten::_ctc_loss.Tensor")
def ctc_loss_of_tensors(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The CTC loss with lengths in tensors, for which the host waits."""
    lengths = _lengths("input_lengths", input_lengths), _lengths("target_lengths", target_lengths)
    return _ctc_forward("ctc_loss", log_probs, targets, *lengths, blank)


@op("aten::_ctc_loss_backward")
def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """The gradient of the scores whose log-softmax the log probabilities are."""
    return _ctc_backward(
        grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity
    )


@op("aten::_ctc_loss_backward.Tensor")
def ctc_loss_backward_of_tensors(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """The gradient of the CTC loss with lengths in tensors, for which the host waits."""
    lengths = _lengths("input_lengths", input_lengths), _lengths("target_lengths", target_lengths)
    return _ctc_backward(grad, log_probs, targets, *lengths, neg_log_likelihood, log_alpha, blank, zero_infinity)
