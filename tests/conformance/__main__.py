"""Runs the operator database on the device.

python -m tests.conformance run [--dtypes five] [--kinds forward,out] [--ops 'linalg.*'] [--unless passed]
python -m tests.conformance declare     # writes absent.txt from the results of `run`
python -m tests.conformance coverage    # prints the results by family
python -m tests.conformance missing     # prints which aten ops block how many nodes
python -m tests.conformance document    # writes docs/operators.md
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import sys
import time

from tests.conformance import document, results, runner
from tests.conformance.nodes import FIVE, KINDS, NINE, Node, family_of, nodes_of, operators


def _wanted(arguments: argparse.Namespace) -> list[Node]:
    dtypes = {"five": FIVE, "nine": NINE}.get(arguments.dtypes) or tuple(arguments.dtypes.split(","))
    kinds = KINDS if arguments.kinds == "all" else tuple(arguments.kinds.split(","))
    patterns = arguments.ops.split(",")
    nodes = [
        node
        for op in operators()
        if any(fnmatch.fnmatch(op, pattern) for pattern in patterns)
        if not arguments.family or family_of(op) == arguments.family
        for node in nodes_of(op, kinds, dtypes)
    ]
    if arguments.unless:
        known, done = results.read(), arguments.unless.split(",")
        nodes = [node for node in nodes if node not in known or known[node].status not in done]
    return nodes


def _run(arguments: argparse.Namespace) -> int:
    nodes = _wanted(arguments)
    start, counts = time.perf_counter(), collections.Counter[str]()
    declared = results.declared()
    wrong = 0
    for outcome in runner.outcomes(nodes, arguments.samples, jobs=arguments.jobs):
        results.add(outcome)
        counts[outcome.status] += 1
        problem = results.problem(outcome, declared)
        wrong += bool(problem)
        if problem and not arguments.quiet:
            print(f"{outcome.node.op} {outcome.node.kind} {outcome.node.dtype}: {problem[:300]}", flush=True)
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    print(f"{len(nodes)} nodes in {time.perf_counter() - start:.0f} s: {summary or 'none'}; {wrong} not as declared")
    return 1 if wrong else 0


def main() -> int:
    """Runs the command."""
    if sys.argv[1:] == ["worker"]:
        runner.worker()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run nodes and keep their results")
    run.add_argument("--dtypes", default="five", help="five, nine, or names separated by commas")
    run.add_argument("--kinds", default="all", help=f"of {', '.join(KINDS)}")
    run.add_argument("--ops", default="*", help="patterns of entries' names")
    run.add_argument("--family", default="", help="only entries of this family")
    run.add_argument("--unless", default="", help="leave out nodes whose last result is among these, e.g. passed,empty")
    run.add_argument("--samples", type=int, default=0, help="at most so many samples of a node; 0 for all")
    run.add_argument("--jobs", type=int, default=1, help="how many processes run nodes at the same time")
    run.add_argument("--quiet", action="store_true", help="print the summary only")
    for name, text in (
        ("declare", "write the table of what is absent"),
        ("coverage", "print the results by family"),
        ("missing", "print which aten ops block how many nodes"),
        ("document", "write docs/operators.md"),
    ):
        commands.add_parser(name, help=text)
    arguments = parser.parse_args()
    if arguments.command == "run":
        return _run(arguments)
    actions = {
        "declare": results.declare,
        "coverage": results.coverage,
        "missing": results.missing,
        "document": document.write,
    }
    print(actions[arguments.command]())
    return 0


if __name__ == "__main__":
    sys.exit(main())
