"""The rows that say which aten op is served by which kernel.

Registration, the op listing, the tests and the benchmarks all read these rows. Adding an op that fits a family is one
row in `mojo_runtime/aten/tables/<family>.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

FLOATING = ("float32", "float64", "bfloat16", "float16")
INTEGRAL = ("uint8", "int8", "int16", "int32", "int64")
BOOL = ("bool",)
NUMERIC = FLOATING + INTEGRAL
ALL = NUMERIC + BOOL
MOVED = (*ALL, "uint64")  # of kernels that only move elements: they take complex64 as uint64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pointwise:
    """An elementwise op that goes through torch's TensorIterator.

    The kernel receives the output first, then `inputs`, all with the same sizes; scalars as `scalars` lists them,
    each a Number (two words) where the schema says Scalar. The functional and in-place overloads that belong to the
    named one come with it, with a direct path for same-shape contiguous operands.

    Attributes:
        name: The overload that writes to an output, e.g. "add.out", or a functional overload without one.
        kernel: "module:function" below `mojo_kernels`, e.g. "pointwise.binary:binary".
        op: The kernel's `op` parameter.
        dtypes: Computation dtypes the kernel exists for.
        inputs: The schema's tensor arguments, in the kernel's order. An argument of type Scalar may stand here too: it
            is read as a 0-dim operand.
        scalars: The schema's other arguments that the kernel reads.
        promotion: "common": inputs promote to a common dtype, the output has it. "float": as common, but integers
            compute in the default float type. "bool": inputs promote, the output is bool. "first": no promotion, the
            first input's dtype computes and must match the others (backward ops). "condition": the first input is a
            bool condition, the others promote. "output": what torch's meta function gives the output, for ops whose
            numbers take part in promotion.
        parameters: Further compile-time parameters of the kernel.
        complex: How complex64 is computed: a function of `pointwise.complex` with its parameters, e.g.
            "unary[op=exp]"; "bits" where the kernel only moves elements, for uint64; "" where there is no complex form.
        tolerance: (rtol, atol) for float32 against CPU torch; half types use torch's defaults.
        doc: One line for the op listing.
    """

    name: str
    kernel: str
    op: str
    dtypes: tuple[str, ...]
    inputs: tuple[str, ...] = ("self",)
    scalars: tuple[str, ...] = ()
    promotion: Literal["common", "float", "bool", "first", "condition", "output"] = "common"
    parameters: tuple[tuple[str, str | int | bool], ...] = ()
    complex: str = ""
    tolerance: tuple[float, float] = (1.3e-6, 1e-5)
    doc: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Native:
    """An op whose schema arguments map one to one to a kernel call; no Python runs when it is called.

    Attributes:
        name: The overload, normally the `.out` of a structured op, e.g. "mm.out": torch has checked and allocated.
        kernel: "module:function" below `mojo_kernels`.
        tensors: The schema's tensor arguments in the kernel's order, outputs first. An optional tensor that is None
            arrives as ABSENT; a tensor list is spliced in, and `scalars` can tell the number of its tensors.
        scalars: The schema's other arguments in the kernel's order, encoded as docs/architecture.md says; "len(x)" is
            the number of tensors in the list x, "=2" the integer 2.
        parameters: Compile-time parameters: ("dtype", "self") takes the dtype of that tensor argument, ("op", "=amax")
            is a constant.
        dtypes: What the first dtype parameter may be.
        dtype_parameters: Allowed dtypes of further dtype parameters by name, where they are restricted.
        other_dtypes: Input tensors that do not have the first dtype parameter's dtype, as the others must: indices,
            steps, scales. ("target", "int64") says which they have; "" where the kernel reads any.
        promotes: Inputs of other dtypes are converted, as torch's own kernels of the op do; the first dtype parameter
            is the output's.
        complex: "bits" where the kernel only moves elements: it moves complex64 as uint64. What computes is the
            frontend's.
        doc: One line for the op listing.
    """

    name: str
    kernel: str
    tensors: tuple[str, ...]
    scalars: tuple[str, ...] = ()
    parameters: tuple[tuple[str, str], ...] = (("dtype", "self"),)
    dtypes: tuple[str, ...] = ALL
    dtype_parameters: tuple[tuple[str, tuple[str, ...]], ...] = ()
    other_dtypes: tuple[tuple[str, str], ...] = ()
    promotes: bool = False
    complex: str = ""
    doc: str = ""

    def dtype_of(self, tensor: str, first: str) -> str:
        """Returns the dtype that the kernel reads an input tensor as, "" for any.

        Args:
            tensor: The input's name; one that gives a dtype parameter is not asked for here.
            first: The first dtype parameter.
        """
        return dict(self.other_dtypes).get(tensor, first)


Row = Pointwise | Native
