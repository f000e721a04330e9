"""The documentation's Python snippets run as they stand, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])


def snippets(page: Path) -> str:
    """Returns a page's Python blocks as one program, on the lines where they stand on the page."""
    lines, inside = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            line = ""
        lines.append(line if inside else "")
    return "\n".join(lines) + "\n"


def files(page: Path) -> dict[str, str]:
    """Returns the blocks that are files for the snippets: those with a name, as in ```mojo saxpy.mojo."""
    return dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))


def named(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=[page.relative_to(ROOT).as_posix() for page in pages])


@named([page for page in PAGES if snippets(page).strip()])
def test_snippets_run(page, tmp_path):
    for name, content in files(page).items():
        (tmp_path / name).write_text(content)
    program = tmp_path / f"{page.stem}.py"
    program.write_text(snippets(page))
    # Everyone can follow them: on the CPU, in an empty folder.
    environment = {**os.environ, "MOJO_RUNTIME_DEVICES": "cpu"}
    run = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@named(PAGES)
def test_relative_links_lead_to_files(page):
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose)]
    relative = [target for target in targets if target and "://" not in target]
    assert [target for target in relative if not (page.parent / target).exists()] == []


def test_readme_has_snippets_and_the_test_command():
    assert "register_mojo_devices()" in snippets(ROOT / "README.md")
    assert re.search(r"^uv run pytest\b", (ROOT / "README.md").read_text(), re.MULTILINE)
