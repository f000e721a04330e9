"""`python -m mojo_kernels` prints the include path for `mojo build -I`."""

from __future__ import annotations

from mojo_kernels import include_path

if __name__ == "__main__":
    print(include_path())
