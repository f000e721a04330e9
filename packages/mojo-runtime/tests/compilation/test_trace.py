from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from mojo_runtime.config import config
from mojo_runtime.spec import KernelSpec
from mojo_runtime.trace import Event, Trace

ADD, SUB = (KernelSpec("mojo_kernels.pointwise.binary", "binary", op=op, dtype="float32") for op in ("add", "sub"))
ERROR = "x does not compile:\nbinary.mojo:7:1: error: no\nmore"
EVENTS = [
    Event("requested", (ADD, SUB), left=2),
    Event("started", (ADD, SUB), left=2),
    Event("split", (ADD, SUB), seconds=1.0, message=ERROR, left=2),
    Event("started", (ADD,), left=2),
    Event("finished", (ADD,), seconds=2.5, left=1),
    Event("started", (SUB,), left=1),
    Event("failed", (SUB,), seconds=0.2, message=ERROR),
    Event("warning", message="kernel cache not used"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    trace = Trace()
    for event in EVENTS:
        trace.emit(event)
    return stream.getvalue()


def test_a_line_per_build_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.scope(trace=True):
        lines = show(monkeypatch, io.StringIO()).splitlines()
    assert lines == [
        "mojo: compiled binary[float32,add] in 2.5 s, 1 waiting",
        "mojo: binary[float32,sub] does not compile: binary.mojo:7:1: error: no",
        "mojo: kernel cache not used",
    ]


def test_one_line_is_updated_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.scope(trace=True):
        text = show(monkeypatch, Terminal())
    updates = [part for part in text.split("\r\x1b[2K") if part]
    assert updates[0].startswith("mojo: compiling binary[float32,add] and 1 more")
    assert "1 done" in next(part for part in updates if "compiling binary[float32,sub]" in part)
    kept = next(part for part in updates if part.endswith("\n"))
    assert kept.startswith("mojo: binary[float32,sub] does not compile")
    assert re.search(r"mojo: compiled 1 kernel in \d+\.\d s\n", text)


def test_zero_silences_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with config.scope(trace=False):
        assert show(monkeypatch, Terminal()) == ""
        assert show(monkeypatch, io.StringIO()) == ""


def test_the_trace_file_has_a_json_line_per_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with config.scope(trace=False, trace_file=tmp_path / "trace.jsonl"):
        show(monkeypatch, io.StringIO())
    records = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert [record["event"] for record in records] == [event.kind for event in EVENTS]
    assert records[4]["kernels"] == [ADD.key]
    assert records[4]["seconds"] == 2.5
    assert records[6]["message"] == ERROR
    assert all(record["time"] > 0 and record["process"] > 0 for record in records)


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with config.scope(trace=True):
        Trace().emit(EVENTS[4])
    monkeypatch.setattr(sys, "stderr", None)
    with config.scope(trace=True):
        Trace().emit(EVENTS[4])
