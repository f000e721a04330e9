"""A slice of the operator database: each entry's forward results in one dtype, and that the table is in order."""

from __future__ import annotations

import pytest
from tests.conformance import document, results
from tests.conformance.check import run
from tests.conformance.nodes import FIVE, Node, family_of, nodes_of, operators

SAMPLES = 6


def _first(op: str) -> Node | None:
    return next(iter(nodes_of(op, ("forward",), FIVE)), None)


FAMILIES = sorted({family_of(op) for op in operators()})


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a family's kernels may all have to be compiled
@pytest.mark.parametrize("family", FAMILIES)
def test_forward(device, family):
    declared = results.declared()
    problems = []
    for op in operators():
        node = _first(op) if family_of(op) == family else None
        if node is None:
            continue
        outcome = run(node, SAMPLES)
        # Only a node's whole run can tell whether it passes.
        if problem := "" if outcome.status == "passed" else results.problem(outcome, declared):
            problems.append(f"{op} {node.dtype}: {problem}")
    assert not problems, "\n".join(problems)


def test_table_names_nodes():
    known = {node for op in operators() for node in nodes_of(op)}
    assert not [node for node in results.declared() if node not in known]


def test_a_declared_node_that_passes_is_a_problem(device):
    node = Node("add", "forward", "float32")
    outcome = run(node, 1)
    assert outcome.status == "passed"
    assert results.problem(outcome, {node: "add.out"})
    assert not results.problem(outcome, {})


def test_the_page_of_operators_is_current(device):
    assert document.PAGE.read_text() == document.page(), "run: python -m tests.conformance document"
