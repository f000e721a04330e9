"""Finds every op that a program needs and the device lacks, in one run: `torch-mojo-backend ops --missing model.py`."""

from __future__ import annotations

import collections
import dataclasses
import re
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_MESSAGE = re.compile(r"^(?:aten::)?(?P<name>\S+) is not implemented on mojo \(operands: (?P<operands>[^)]*)\)")


@dataclasses.dataclass(frozen=True, order=True)
class Missing:
    """An op that is not implemented.

    Attributes:
        name: The aten overload.
        operands: The dtypes it was called with, or the error where the op exists but not for its operands.
        caller: The line of the program that called it, as "file:line", or "" in a backward pass.
    """

    name: str
    operands: str
    caller: str


class MissingOps(TorchDispatchMode):
    """Runs what the device lacks on the CPU, and keeps a list of it, so that a program goes on to its end.

    A diagnosis, not a way to run programs: it copies operands and results, and results are never views.

    Attributes:
        found: How often each missing op was called.
        calls: How many ops ran on the device or should have.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: collections.Counter[Missing] = collections.Counter()
        self.calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls the op; where that raises NotImplementedError, on copies on the CPU."""
        kwargs = kwargs or {}
        device = _device_of(args, kwargs)
        if device is None:
            return func(*args, **kwargs)
        self.calls += 1
        try:
            return func(*args, **kwargs)
        except NotImplementedError as error:
            self.found[_describe(func, str(error))] += 1
            return _on_the_cpu(func, args, kwargs, device)


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    for value in tree_leaves((args, kwargs)):
        if isinstance(value, torch.Tensor) and value.device.type == "mojo":
            return value.device
    wanted = kwargs.get("device")
    return torch.device(wanted) if wanted is not None and torch.device(wanted).type == "mojo" else None


def _describe(func: Any, message: str) -> Missing:
    match = _MESSAGE.match(message)
    name = func._schema.name.removeprefix("aten::")
    if func._schema.overload_name:
        name += "." + func._schema.overload_name
    here = str(Path(__file__).resolve())
    caller = ""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if "torch" not in path.parts and str(path) != here and path.exists():
            caller = f"{path.name}:{frame.lineno}"
            break
    if match:
        return Missing(match["name"], match["operands"], caller)
    return Missing(name, message.partition("\n")[0], caller)


def _on_the_cpu(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def down(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "mojo":
            return copies.setdefault(id(value), (value, value.detach().cpu().clone()))[1]
        return torch.device("cpu") if isinstance(value, torch.device) else value

    host_args, host_kwargs = tree_map(down, args), tree_map(down, kwargs)
    result = func(*host_args, **host_kwargs)
    written = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
    names = [a.name for a in func._schema.arguments]
    originals: dict[int, torch.Tensor] = {}
    for value, copy in copies.values():
        originals[id(copy)] = value
    for index, (name, is_written) in enumerate(zip(names, written, strict=True)):
        if not is_written:
            continue
        for copy in tree_leaves(host_args[index] if index < len(host_args) else host_kwargs.get(name)):
            if id(copy) in originals:
                value = originals[id(copy)]
                value.resize_(copy.shape).copy_(copy)

    def up(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return originals[id(value)] if id(value) in originals else value.to(device)

    return tree_map(up, result)


def missing_ops(script: str, arguments: Sequence[str] = ()) -> Iterator[str]:
    """Runs a program and yields lines that say which ops it lacks on the mojo device.

    Args:
        script: The program's path. It runs as `__main__`; it chooses its device itself.
        arguments: For the program.
    """
    from torch_mojo_eager import register_mojo_devices

    register_mojo_devices()
    mode = MissingOps()
    old = sys.argv
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    failure = ""
    try:
        with mode:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        failure = f"the program ended with status {error.code}" if error.code else ""
    except Exception:
        failure = traceback.format_exc()
    finally:
        sys.argv = old
        sys.path.pop(0)
    if failure:
        yield f"The program did not run to its end; what it needs after this is not in the list:\n{failure.rstrip()}"
    if not mode.calls:
        yield "no op ran on the mojo device: does the program move its model and data there?"
        return
    by_op: dict[str, list[tuple[Missing, int]]] = collections.defaultdict(list)
    for entry, count in sorted(mode.found.items()):
        by_op[entry.name].append((entry, count))
    for name, entries in by_op.items():
        dtypes = "; ".join(dict.fromkeys(entry.operands for entry, _ in entries))
        places = ", ".join(dict.fromkeys(entry.caller for entry, _ in entries if entry.caller)) or "backward"
        yield f"{name}  {sum(count for _, count in entries)} calls  ({dtypes})  {places}"
    yield f"{len(by_op)} ops are missing, of {mode.calls} calls"


__all__ = ["Missing", "MissingOps", "missing_ops"]
