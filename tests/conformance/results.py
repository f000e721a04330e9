"""The results of the last run of each node, and the table of what is declared absent."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from pathlib import Path

from tests.conformance.check import Outcome
from tests.conformance.nodes import FIVE, KINDS, NINE, Node, family_of

RESULTS = Path(__file__).resolve().parents[2] / "build" / "conformance" / "results.jsonl"
TABLE = Path(__file__).with_name("absent.txt")
_HEADER = """\
# What the mojo device lacks of PyTorch's operator database, with the aten op or the reason.
# Written by `python -m tests.conformance declare` from the results of `python -m tests.conformance run --dtypes nine`.
# An entry that passes is an error, and so is a NotImplementedError that is not listed.
"""


def add(outcome: Outcome) -> None:
    """Keeps an outcome."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file:
        line = [*dataclasses.astuple(outcome.node), outcome.status, outcome.reason, outcome.seconds]
        file.write(json.dumps(line) + "\n")


def read() -> dict[Node, Outcome]:
    """Returns the last outcome of every node that was run."""
    found: dict[Node, Outcome] = {}
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines():
            op, kind, dtype, *rest = json.loads(line)
            node = Node(op, kind, dtype)
            found[node] = Outcome(node, *rest)
    return found


def declared() -> dict[Node, str]:
    """Returns the declared absences with their reasons."""
    found: dict[Node, str] = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else ():
        if line.startswith("#") or not line.strip():
            continue
        op, kind, dtypes, reason = (part.strip() for part in line.split(None, 3))
        for dtype in dtypes.split(","):
            found[Node(op, kind, dtype)] = reason
    return found


def problem(outcome: Outcome, table: dict[Node, str]) -> str:
    """Returns what is wrong with an outcome, "" if it is as declared."""
    if outcome.status == "failed":
        return outcome.reason
    if outcome.status == "absent" and outcome.node not in table:
        return f"absent and not declared: {outcome.reason}"
    if outcome.status == "passed" and outcome.node in table:
        return f"declared absent ({table[outcome.node]}), but passes"
    return ""


def _short(reason: str) -> str:
    """A reason without operands and advice."""
    short = re.split(r" \(|\. |; | is not implemented|' with arguments", reason)[0]
    return short.removeprefix("Could not run '").removeprefix("aten::")


def declare() -> str:
    """Writes the table and returns a summary. Nodes without a result keep their declaration."""
    known = read()
    lines: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
    entries = {node: outcome.reason for node, outcome in known.items() if outcome.status == "absent"}
    entries.update({node: reason for node, reason in declared().items() if node not in known})
    order = (*NINE, "any")
    for node in sorted(entries, key=lambda node: (node.op, node.kind, order.index(node.dtype))):
        lines[node.op, node.kind, _short(entries[node])].append(node.dtype)
    text = [f"{op:<44} {kind:<14} {','.join(dtypes)}  {reason}" for (op, kind, reason), dtypes in lines.items()]
    TABLE.write_text(_HEADER + "\n".join(text) + "\n")
    return f"{len(entries)} nodes in {len(text)} lines of {TABLE.name}"


def missing() -> str:
    """Returns the aten ops that block nodes, the worst first."""
    counts = collections.Counter[str]()
    examples: dict[str, set[str]] = collections.defaultdict(set)
    for node, outcome in read().items():
        if outcome.status == "absent":
            counts[outcome.reason] += 1
            examples[outcome.reason].add(node.op)
    return "\n".join(
        f"{count:5d}  {reason[:100]}  [{', '.join(sorted(examples[reason])[:4])}]"
        for reason, count in counts.most_common()
    )


def coverage() -> str:
    """Returns the results by family: of the five dtypes most training uses, of all nine, and the other kinds."""
    known = read()

    def share(nodes: list[Outcome]) -> str:
        counts = collections.Counter(outcome.status for outcome in nodes)
        total = sum(counts.values()) - counts["empty"]
        if not total:
            return f"{'':>22}"
        return f"{counts['passed']:5d} {counts['absent']:4d} {counts['failed']:4d} {counts['passed'] / total:6.1%}"

    columns = {
        "forward, 5 dtypes": [o for n, o in known.items() if n.kind == "forward" and n.dtype in FIVE],
        **{kind: [o for n, o in known.items() if n.kind == kind] for kind in KINDS},
    }
    families = sorted({family_of(node.op) for node in known})
    lines = [f"{'passed, absent, failed, share':<30}" + "".join(f"{name:>25}" for name in columns)]
    for family in families:
        cells = [share([o for o in outcomes if family_of(o.node.op) == family]) for outcomes in columns.values()]
        lines.append(f"{family:<30}" + "".join(f"{cell:>25}" for cell in cells))
    lines.append(f"{'all':<30}" + "".join(f"{share(outcomes):>25}" for outcomes in columns.values()))
    return "\n".join(lines)
