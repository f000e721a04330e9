"""benchmarks/run.py: the quick mode runs every case, and the report stands alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def report(tmp_path_factory, device) -> tuple[dict, str]:
    """JSON and HTML of a quick run."""
    out = tmp_path_factory.mktemp("benchmarks") / "quick"
    command = [sys.executable, ROOT / "benchmarks" / "run.py", "--quick", "--device", str(device), "--out", out]
    run = subprocess.run([*command, "host_cost", "kernels", "training"], capture_output=True, text=True, check=False)
    assert out.with_suffix(".json").exists(), run.stdout[-2000:] + run.stderr[-2000:]
    return json.loads(out.with_suffix(".json").read_text()), out.with_suffix(".html").read_text()


def test_every_case_runs(report):
    results, _ = report
    assert {result["group"] for result in results["results"]} == {"host_cost", "kernels", "training"}
    assert {
        f"{result['family']}: {result['name']}": result["error"] for result in results["results"] if result["error"]
    } == {}
    assert all(result["ours"] > 0 and result["reference"] > 0 for result in results["results"])
    assert all(result["low"] <= result["ratio"] <= result["high"] for result in results["results"])


def test_report_is_one_page(report):
    results, page = report
    assert all(f"<td>{result['name']}</td>" in page for result in results["results"] if "<" not in result["name"])
    assert page.count("<svg") == len({result["family"] for result in results["results"]})
    assert "prefers-color-scheme: dark" in page
    assert re.findall(r"""(?:src|href)=|url\(|@import|://""", page) == []
