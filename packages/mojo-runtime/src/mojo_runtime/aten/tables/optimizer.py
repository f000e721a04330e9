"""Fused optimizer steps, in-place `_foreach` ops and loss scaling. One launch updates all tensors of the lists."""

from __future__ import annotations

import dataclasses

from mojo_runtime.aten.table import FLOATING, Native, Row

FOREACH = "optimizer.foreach:foreach"


@dataclasses.dataclass(frozen=True)
class Foreach:
    """One overload of a `_foreach` op, in place and functional.

    Attributes:
        name: The functional overload without the prefix, e.g. "add.Scalar".
        op: The kernel's `op`.
        lists: The schema's tensor lists.
        number: How the number comes: "none", "one", "list" or "tensor".
        argument: The number's name in the schema; "" where it is always 1.
    """

    name: str
    op: str
    lists: tuple[str, ...] = ("self",)
    number: str = "none"
    argument: str = ""


def _with_number(name: str, op: str) -> tuple[Foreach, ...]:
    """A binary op with a number, a list of numbers and a list of tensors."""
    return (
        Foreach(f"{name}.Scalar", f"{op}_number", number="one", argument="scalar"),
        Foreach(f"{name}.ScalarList", f"{op}_number", number="list", argument="scalars"),
        Foreach(
            f"{name}.List",
            op,
            ("self", "other"),
            number="one" if op in ("add", "sub") else "none",
            argument="alpha" if op in ("add", "sub") else "",
        ),
    )


FOREACH_OPS: tuple[Foreach, ...] = (
    *_with_number("add", "add"),
    *_with_number("sub", "sub"),
    *_with_number("mul", "mul"),
    *_with_number("div", "div"),
    *_with_number("maximum", "maximum"),
    *_with_number("minimum", "minimum"),
    *_with_number("clamp_min", "maximum"),
    *_with_number("clamp_max", "minimum"),
    Foreach("mul.Tensor", "mul_number", number="tensor", argument="other"),
    Foreach("div.Tensor", "div_number", number="tensor", argument="other"),
    Foreach("pow.Scalar", "pow_number", number="one", argument="exponent"),
    Foreach("lerp.Scalar", "lerp", ("self", "tensors1"), number="one", argument="weight"),
    Foreach("lerp.List", "lerp_tensors", ("self", "tensors1", "weights")),
    *(
        Foreach(f"{op}.{overload}", op, ("self", "tensor1", "tensor2"), number=number, argument=argument)
        for op in ("addcmul", "addcdiv")
        for overload, number, argument in (("Scalar", "one", "value"), ("ScalarList", "list", "scalars"))
    ),
    *(Foreach(op, op) for op in ("neg", "abs", "zero", "reciprocal", "sqrt", "exp")),
)


def _in_place(spec: Foreach) -> Native:
    base, _, overload = spec.name.partition(".")
    parameters = [
        ("dtype", "self"),
        ("op", f"={spec.op}"),
        ("inputs", f"={len(spec.lists)}"),
        ("number", f"={spec.number}"),
    ]
    tensors = ("self", *spec.lists)
    scalars: tuple[str, ...] = ("len(self)",)
    if spec.number == "tensor":
        tensors += (spec.argument,)
        parameters.append(("number_type", spec.argument))
    elif spec.argument:
        scalars += (spec.argument,)
    return Native(
        name=f"_foreach_{base}_" + (f".{overload}" if overload else ""),
        kernel=FOREACH,
        tensors=tensors,
        scalars=scalars,
        parameters=tuple(parameters),
        dtypes=FLOATING,
        dtype_parameters=(("number_type", FLOATING),),
        doc=f"{base} on each tensor of a list, in place.",
    )


ADAM_LISTS = ("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "state_steps")
ADAM_SCALARS = ("beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize")
ADAGRAD_LISTS = ("self", "grads", "state_sums", "state_steps")
ADAGRAD_SCALARS = ("lr_decay", "weight_decay", "eps", "maximize")
SGD_LISTS = ("self", "grads", "momentum_buffer_list")
SGD_SCALARS = ("weight_decay", "momentum", "dampening", "nesterov", "maximize", "is_first_step")
COMPANIONS = ("grad_scale", "found_inf")


def _fused(
    name: str,
    kernel: str,
    lists: tuple[str, ...],
    optional: str,
    scalars: tuple[str, ...],
    parameters: tuple[tuple[str, str], ...],
) -> tuple[Native, Native]:
    """The two overloads of a fused step: the learning rate as a number and as a tensor; `optional` is a list or ""."""
    lengths = ("len(self)", f"len({optional})") if optional else ("len(self)",)
    numbers = tuple((name, "float32") for name in ("state_steps", *COMPANIONS) if name in (*lists, *COMPANIONS))
    return (
        Native(
            name=name,
            kernel=kernel,
            tensors=(*lists, *COMPANIONS),
            scalars=(*lengths, "lr", *scalars),
            parameters=(*parameters, ("learning_rate", "=number")),
            dtypes=FLOATING,
            other_dtypes=numbers,
            doc="One optimizer step on all parameters.",
        ),
        Native(
            name=f"{name}.tensor_lr",
            kernel=kernel,
            tensors=(*lists, "lr", *COMPANIONS),
            scalars=(*lengths, *scalars),
            parameters=(*parameters, ("learning_rate", "=tensor")),
            dtypes=FLOATING,
            other_dtypes=(*numbers, ("lr", "float32")),
            doc="One optimizer step on all parameters, the learning rate being a tensor.",
        ),
    )


ROWS: tuple[Row, ...] = (
    *(
        row
        for op in ("adam", "adamw")
        for row in _fused(
            f"_fused_{op}_",
            "optimizer.adam:adam",
            ADAM_LISTS,
            "max_exp_avg_sqs",
            ADAM_SCALARS,
            (("dtype", "self"), ("op", f"={op}")),
        )
    ),
    *_fused("_fused_adagrad_", "optimizer.adagrad:adagrad", ADAGRAD_LISTS, "", ADAGRAD_SCALARS, (("dtype", "self"),)),
    *_fused("_fused_sgd_", "optimizer.sgd:sgd", SGD_LISTS, "momentum_buffer_list", SGD_SCALARS, (("dtype", "self"),)),
    *(_in_place(spec) for spec in FOREACH_OPS),
    Native(
        name="_amp_foreach_non_finite_check_and_unscale_",
        kernel="optimizer.foreach:unscale",
        tensors=("self", "found_inf", "inv_scale"),
        scalars=("len(self)",),
        dtypes=FLOATING,
        other_dtypes=(("found_inf", "float32"), ("inv_scale", "float32")),
        doc="Undoes loss scaling and notes gradients that are not finite.",
    ),
    Native(
        name="_amp_update_scale_",
        kernel="optimizer.loss_scale:update_loss_scale",
        tensors=("self", "growth_tracker", "found_inf"),
        scalars=("scale_growth_factor", "scale_backoff_factor", "growth_interval"),
        parameters=(),
        dtypes=("float32",),
        doc="Updates the loss scale.",
    ),
)
