"""Sizes that change from call to call: torch's symbolic integers as MAX dimensions, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from max.graph import Dim, DimLike

Size = int | torch.SymInt


def expression(size: Size) -> sympy.Expr:
    """Returns the expression of a size; of a fixed one a sympy Integer."""
    if isinstance(size, torch.SymInt):
        return sympy.sympify(size.node.expr)
    return sympy.Integer(int(size))


def hint(size: Size) -> int:
    """Returns the value that a size had when the graph was traced, without making the graph depend on it."""
    if isinstance(size, torch.SymInt):
        value = size.node.hint
        if value is None:
            raise NotImplementedError(f"the size {size} depends on the data of a tensor")
        return int(value)
    return int(size)


class Symbols:
    """The symbols of one graph. Their names in MAX depend on the order of first use alone."""

    def __init__(self) -> None:
        self._names: dict[sympy.Symbol, str] = {}

    def name(self, symbol: sympy.Symbol) -> str:
        """Returns a symbol's name in the MAX graph."""
        return self._names.setdefault(symbol, f"d{len(self._names)}")

    def fresh(self) -> Dim:
        """Returns a dimension that no expression stands for."""
        return Dim(self.name(sympy.Dummy()))

    def dim(self, size: DimLike | Size | sympy.Expr) -> Dim:
        """Returns a size as a dimension.

        Raises:
            NotImplementedError: MAX has no such expression.
        """
        if isinstance(size, Dim):
            return size
        if isinstance(size, int | torch.SymInt):
            size = expression(size)
        if isinstance(size, sympy.Integer):
            return Dim(int(size))
        if isinstance(size, sympy.Symbol):
            return Dim(self.name(size))
        if isinstance(size, sympy.Add):
            return self._fold(size.args, lambda a, b: a + b)
        if isinstance(size, sympy.Mul):
            return self._fold(size.args, lambda a, b: a * b)
        if isinstance(size, sympy.Pow) and size.exp.is_Integer and int(size.exp) > 0:
            return self._fold([size.base] * int(size.exp), lambda a, b: a * b)
        if type(size).__name__ in ("FloorDiv", "CleanDiv"):
            return self.dim(size.args[0]) // self.dim(size.args[1])
        raise NotImplementedError(f"the size {size} ({type(size).__name__}) can't be a MAX dimension")

    def dims(self, shape: Sequence[Any]) -> list[Dim]:
        """Returns a shape's sizes as dimensions."""
        return [self.dim(size) for size in shape]

    def _fold(self, parts: Sequence[sympy.Expr], combine: Callable[[Dim, Dim], Dim]) -> Dim:
        result = self.dim(parts[0])
        for part in parts[1:]:
            result = combine(result, self.dim(part))
        return result


Place = tuple[int, int | None]
"""Where a size is found at a call: an argument's index, and the dimension, or None where the argument is the size."""


def evaluator(size: Size, places: dict[sympy.Symbol, Place]) -> Callable[[Sequence[Any]], int]:
    """Returns a function that computes a size from a call's arguments.

    Args:
        size: The size.
        places: Where its symbols are found.
    """
    expr = expression(size)
    symbols = sorted(expr.free_symbols, key=str)
    locations = [places[symbol] for symbol in symbols]
    if len(symbols) == 1 and expr == symbols[0]:
        (index, dim) = locations[0]
        return (lambda args: int(args[index])) if dim is None else (lambda args: args[index].shape[dim])
    # torch's own functions of integers, such as FloorDiv, evaluate themselves when integers are put in.
    return lambda args: int(
        expr.xreplace(
            {
                symbol: sympy.Integer(args[index] if dim is None else args[index].shape[dim])
                for symbol, (index, dim) in zip(symbols, locations, strict=True)
            }
        )
    )
