"""The documentation's Python snippets run as they stand and print what it says; its links lead somewhere.

A page's Python blocks are one program. A block of text that directly follows one is what the program prints since the
last such block; "..." in it stands for what varies. What a page exports in a shell is the program's environment.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MARK = "-- end of a shown output --"
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


def outputs(page: Path) -> list[str]:
    """Returns what the page promises after its Python blocks."""
    return re.findall(r"^```\n+```text\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def marked(page: Path) -> str:
    """Returns the page's program, which prints a mark where the page shows an output."""
    lines = snippets(page).split("\n")
    text = page.read_text().split("\n")
    for i, line in enumerate(text):
        following = [other for other in text[i + 1 :] if other][:1]
        if line == "```" and following == ["```text"]:
            lines[i] = f"print({MARK!r})"
    return "\n".join(lines)


def exported(page: Path) -> dict[str, str]:
    """Returns the environment that the page's shell blocks set."""
    return dict(re.findall(r"^export (\w+)=(\S+)$", page.read_text(), re.MULTILINE))


def files(page: Path) -> dict[str, str]:
    """Returns the blocks that are files for the snippets: those with a name, as in ```mojo saxpy.mojo."""
    return dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))


def named(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=[page.relative_to(ROOT).as_posix() for page in pages])


@named([page for page in PAGES if snippets(page).strip()])
def test_snippets_print_what_the_page_says(page, tmp_path):
    for name, content in files(page).items():
        (tmp_path / name).write_text(content)
    program = tmp_path / f"{page.stem}.py"
    program.write_text(marked(page))
    # Everyone can follow them: on the CPU, in an empty folder.
    environment = {**os.environ, "MOJO_RUNTIME_DEVICES": "cpu", **exported(page)}
    run = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    promised, printed = outputs(page), run.stdout.split(MARK + "\n")
    assert len(printed) == len(promised) + 1
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for want, got in zip(promised, printed, strict=False):
        assert checker.check_output(want, got, flags), f"the page promises\n{want}\nbut the program prints\n{got}"


@named(PAGES)
def test_relative_links_lead_to_files(page):
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", prose)]
    relative = [target for target in targets if target and "://" not in target]
    assert [target for target in relative if not (page.parent / target).exists()] == []


def test_readme_has_snippets_and_the_test_command():
    assert "register_mojo_devices()" in snippets(ROOT / "README.md")
    assert re.search(r"^uv run pytest\b", (ROOT / "README.md").read_text(), re.MULTILINE)
