"""Calls of functions, replaced by the functions' bodies: the machine has no call stack."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from .errors import Unsupported
from .parser import Address, Instruction, Kernel, Operand, Pair, Register, Symbol, Vector


def inline_calls(kernel: Kernel, functions: dict[str, Kernel]) -> Kernel:
    """Replaces the calls of a module's functions; what they take and return are local variables of the caller.

    Args:
        kernel: The entry.
        functions: The module's functions by name. Calls of others are left.

    Returns:
        The entry without calls of `functions`.

    Raises:
        Unsupported: A function calls itself.
    """
    result = dataclasses.replace(kernel, registers=dict(kernel.registers), variables=list(kernel.variables), code=[])
    result.code.extend(_inlined(kernel.code, functions, result, itertools.count(), ()))
    return result


def _called(instruction: Instruction) -> tuple[list[Operand], str, list[Operand]] | None:
    """Results, name and arguments of a call."""
    if instruction.head != "call":
        return None
    operands = list(instruction.operands)
    results = operands.pop(0) if isinstance(operands[0], Vector) else Vector(())
    name = operands.pop(0)
    arguments = operands.pop(0) if operands else Vector(())
    if not (isinstance(results, Vector) and isinstance(name, Symbol) and isinstance(arguments, Vector)):
        return None  # an indirect call, whose translation fails
    return list(results.items), name.name, list(arguments.items)


def _inlined(
    code: list[Instruction | str],
    functions: dict[str, Kernel],
    caller: Kernel,
    numbers: Iterator[int],
    active: tuple[str, ...],
) -> Iterator[Instruction | str]:
    for item in code:
        call = _called(item) if isinstance(item, Instruction) else None
        if call is None or call[1] not in functions:
            yield item
            continue
        results, name, arguments = call
        assert isinstance(item, Instruction)
        if name in active:
            raise Unsupported(f"PTX line {item.line}: {name} calls itself")
        function = functions[name]
        renaming = _Renaming(function, results, arguments, next(numbers))
        caller.registers.update({renaming.local(register): kind for register, kind in function.registers.items()})
        caller.variables.extend(
            dataclasses.replace(variable, name=renaming.local(variable.name)) for variable in function.variables
        )
        body = [renaming.item(inner) for inner in function.code]
        skip = renaming.local("$skip")
        if item.predicate is not None:
            guard = Register(item.predicate.name, not item.predicate.negated)
            yield Instruction("bra", [Symbol(skip)], guard, item.line, item.text)
        yield from _inlined(body, functions, caller, numbers, (*active, name))
        yield renaming.end
        yield skip


class _Renaming:
    """A function's names in one of its callers.

    Args:
        function: The function.
        results: The caller's variables for the results.
        arguments: The caller's variables for the parameters.
        number: Of the call.
    """

    def __init__(self, function: Kernel, results: list[Operand], arguments: list[Operand], number: int) -> None:
        self._suffix = f"@{number}"
        self.end = self.local("$end")
        """The label that the function returns to."""
        self._names = {
            name: self.local(name)
            for name in [
                *function.registers,
                *(variable.name for variable in function.variables),
                *(item for item in function.code if isinstance(item, str)),
            ]
        }
        for parameter, operand in zip([*function.results, *function.parameters], [*results, *arguments], strict=True):
            assert isinstance(operand, Symbol)
            self._names[parameter.name] = operand.name

    def local(self, name: str) -> str:
        """A name of the function's own in the caller."""
        return name + self._suffix

    def item(self, item: Instruction | str) -> Instruction | str:
        """A label or instruction of the function in the caller."""
        if isinstance(item, str):
            return self._names[item]
        predicate = item.predicate
        if predicate is not None:
            predicate = Register(self._names.get(predicate.name, predicate.name), predicate.negated)
        if item.head == "ret":
            return Instruction("bra", [Symbol(self.end)], predicate, item.line, item.text)
        return Instruction(item.opcode, [self._operand(o) for o in item.operands], predicate, item.line, item.text)

    def _operand(self, operand: Operand) -> Operand:
        if isinstance(operand, Register):
            return Register(self._names.get(operand.name, operand.name), operand.negated)
        if isinstance(operand, Symbol):
            return Symbol(self._names.get(operand.name, operand.name), operand.offset)
        if isinstance(operand, Address):
            return Address(None if operand.base is None else self._operand(operand.base), operand.offset)
        if isinstance(operand, Vector):
            return Vector(tuple(self._operand(item) for item in operand.items))
        if isinstance(operand, Pair):
            return Pair(self._operand(operand.first), self._operand(operand.second))
        return operand
