"""The command `torch-mojo-backend`."""

from __future__ import annotations

import argparse
import collections
import fnmatch
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mojo_runtime.config import Config, config
from mojo_runtime.store import CacheRefused, Store
from mojo_runtime.target import Target
from mojo_runtime.trace import Event


def doctor(arguments: argparse.Namespace) -> int:
    """Prints a line for everything that is needed; returns 1 where something is to be done."""
    from mojo_runtime.doctor import diagnose

    failed = 0
    for finding in diagnose():
        print(finding, flush=True)
        failed += not finding.ok
    print(f"{failed} to fix" if failed else "all is well")
    return 1 if failed else 0


def cache(arguments: argparse.Namespace) -> int:
    """Prints the cache's folder or what it holds, or empties it."""
    from mojo_runtime.listing import KeepsModels, frontends

    folder = config.cache_dir
    if arguments.action == "dir":
        print(folder)
        return 0
    if not folder.exists():
        print(f"{folder} does not exist yet")
        return 0
    store = Store(folder)
    try:
        store.open()
    except CacheRefused as error:
        print(error, file=sys.stderr)
        return 1
    count, size = store.size()
    native = [path for path in (folder / "native").glob("*") if path.suffix in (".so", ".dylib")]
    graphs = [frontend for frontend in frontends().values() if isinstance(frontend, KeepsModels)]
    if arguments.action == "clean":
        store.clean()
        for frontend in graphs:
            print(f"removed {frontend.clean_cache()} compiled models")
        for path in native:
            path.unlink(missing_ok=True)
        print(f"removed {count + len(native)} libraries from {folder}")
        return 0
    kernels: collections.Counter[tuple[str, str]] = collections.Counter()
    for path in store.libraries.glob("*.json"):
        try:
            manifest = json.loads(path.read_text())
            kernels[manifest["target"], str(manifest["compiler"])] += len(manifest["kernels"])
        except (OSError, ValueError, KeyError, TypeError):
            kernels["unreadable", ""] += 1
    print(f"{folder}\n{count} kernel libraries, {size / 1e6:.1f} MB; {len(native)} native libraries")
    for frontend in graphs:
        print(frontend.cache_summary())
    for (target, compiler), number in sorted(kernels.items()):
        print(f"{number:6} kernels  {target}  {compiler}")
    return 0


def prebuild(arguments: argparse.Namespace) -> int:
    """Compiles what the installed frontends can ask for; returns 1 where something does not compile."""
    from mojo_runtime.listing import kernel_keys
    from mojo_runtime.prebuild import prebuild

    keys = [key for key in kernel_keys(arguments.dtypes) if fnmatch.fnmatch(key, arguments.match)]
    if not keys:
        print("no kernels: install a frontend such as torch-mojo-eager, or change --match", file=sys.stderr)
        return 1
    target = Target.parse(arguments.target) if arguments.target else _device_target()
    print(f"{len(keys)} kernels for {target}", flush=True)
    done = 0

    def show(event: Event) -> None:
        nonlocal done
        if event.kind in ("finished", "loaded", "failed"):
            done += len(event.specs)
        if event.kind in ("finished", "failed"):
            print(f"{done} of {len(keys)}", flush=True)

    counters, failures = prebuild(keys, target, arguments.output, listener=show, jobs=arguments.jobs)
    built = f"{counters.compiled} compiled in {counters.builds} builds"
    print(f"{counters.loaded} were there, {built}, {len(failures)} failed")
    for message in failures.values():
        print(message, file=sys.stderr)
    return 1 if failures else 0


def _device_target() -> Target:
    from mojo_runtime.devices import devices

    found = devices()
    return Target.parse(found[0].architecture) if found and found[0].kind == "gpu" else Target.host()


def ops(arguments: argparse.Namespace) -> int:
    """Prints a line per op: name, native or Python, dtypes, description; or what a program lacks."""
    from mojo_runtime.listing import frontends, operations

    if arguments.missing:
        frontend = frontends().get("eager")
        if frontend is None:
            raise RuntimeError("--missing needs torch-mojo-eager: pip install torch-mojo-eager")
        script, *rest = arguments.missing
        lines = list(frontend.missing(script, rest))
        print(*lines, sep="\n")
        return 0 if lines[-1].startswith("0 ops") and len(lines) == 1 else 1

    if arguments.compile and "compile" not in frontends():
        raise RuntimeError("torch-mojo-compile is not installed: pip install torch-mojo-compile")
    chosen = [row for name, row in operations() if (name == "compile") == arguments.compile]
    rows = [row for row in chosen if fnmatch.fnmatch(row.name, arguments.match)]
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        print(f"{row.name:{width}}  {row.path:6}  {','.join(row.dtypes) or '-'}  {row.doc}".rstrip())
    print(f"{len(rows)} ops", file=sys.stderr)
    return 0 if rows else 1


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    lines = (f"  {variable.variable:32}{variable.doc}" for variable in Config.variables())
    top = argparse.ArgumentParser(
        prog="torch-mojo-backend",
        description="Mojo kernels for PyTorch: what is there, what it can do, and its cache.",
        epilog="Environment variables:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("doctor", help="check versions, compilers, cache and devices")
    command.set_defaults(run=doctor)

    command = commands.add_parser("cache", help="the cache of compiled kernels")
    command.add_argument("action", choices=("dir", "stats", "clean"))
    command.set_defaults(run=cache)

    command = commands.add_parser("prebuild", help="compile the kernels of the installed frontends ahead of time")
    command.add_argument("--target", help="cpu, gpu, sm_80, sm_90a, gfx942, ... (default: this machine's devices)")
    command.add_argument("--output", type=Path, metavar="DIR", help="a folder to write to in place of the cache")
    command.add_argument(
        "--dtypes", type=lambda text: text.split(","), metavar="A,B", help="only kernels of these dtypes"
    )
    command.add_argument("--match", default="*", metavar="PATTERN", help="only kernels whose key matches, e.g. '*:mm*'")
    command.add_argument("--jobs", type=int, metavar="N", help="compilers that run at the same time (default: 2)")
    command.set_defaults(run=prebuild)

    command = commands.add_parser("ops", help="list the ops, or those that a program lacks")
    command.add_argument("match", nargs="?", default="*", metavar="PATTERN", help="e.g. 'add*'")
    command.add_argument("--compile", action="store_true", help="the ops that torch.compile lowers")
    command.add_argument(
        "--missing",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM.py [ARGUMENT ...]",
        help="run a program to its end and list all ops that it needs and the device lacks",
    )
    command.set_defaults(run=ops)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: Without the program's name; by default those of the process.

    Returns:
        The exit status: 0, or 1 where something failed.
    """
    parsed = parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except (ValueError, RuntimeError, OSError) as error:
        print(f"torch-mojo-backend: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
