"""Takes the package index out of a uv.lock: git's clean filter for that file, from standard input to standard output.

A lock file that uv writes names the index it was made with: in every package's source, in every artifact's address and,
through the requirements that it repeats, in what it takes for up to date. The neutral form keeps versions, artifacts'
names and hashes. uv accepts it, keeps its versions, and fills the rest in again from whatever index is configured.
"""

from __future__ import annotations

import re
import sys

NEUTRAL_INDEX = "index"


def neutralize(lock: str) -> str:
    """Returns the lock file's text without the index's name.

    Args:
        lock: The text of a uv.lock, filled in or neutral already; neutral text comes back unchanged.
    """
    # Without the requirements that it was made from, uv looks at every package again, and so fills in the addresses.
    lock = re.sub(r"^\[package\.metadata[^\n]*\]\n(?:(?!\[)[^\n]+\n)+\n?", "", lock, flags=re.MULTILINE)
    lock = re.sub(r'(?<=registry = ")[^"]*(?=")', NEUTRAL_INDEX, lock)
    lock = re.sub(r', upload-time = "[^"]*"', "", lock)
    return re.sub(r'\burl = "[^"]*/([^/"#?]+)"', r'filename = "\1"', lock)


def main() -> None:
    """Filters standard input to standard output, in bytes as git gives them."""
    sys.stdout.buffer.write(neutralize(sys.stdin.buffer.read().decode()).encode())


if __name__ == "__main__":
    main()
