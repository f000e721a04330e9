from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mojo_runtime.config import Config

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path, fresh_environment: dict[str, str]) -> None:
    (kernel,), (program, compiling) = blocks("mojo saxpy.mojo"), blocks("python")
    assert len([line for line in program.splitlines() if line]) <= 15
    (tmp_path / "saxpy.mojo").write_text(kernel)
    # What the second one prebuilds for has its own test.
    compiling = re.sub(r"^mojo\.prebuild.*$", "", compiling, flags=re.MULTILINE)
    for text, expected in ((program, "[ 1. 13. 25. 37. 49.]\n1 build\n"), (compiling, "")):
        command = [sys.executable, "-c", text]
        result = subprocess.run(
            command, cwd=tmp_path, env=fresh_environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert (result.returncode, result.stdout) == (0, expected), result.stderr


def test_the_table_lists_every_environment_variable() -> None:
    assert re.findall(r"^\| `([A-Z_]+)` \|", README.read_text(), re.MULTILINE) == [
        variable.variable for variable in Config.variables()
    ]
