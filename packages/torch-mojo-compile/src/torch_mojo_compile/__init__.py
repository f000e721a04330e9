"""torch-mojo-compile: `torch.compile(model, backend=mojo_backend)` on Modular's MAX."""

from __future__ import annotations

from torch_mojo_compile.backend import mojo_backend
from torch_mojo_compile.errors import CompileFailed, LoweringError, UnsupportedOps
from torch_mojo_compile.mojo_op import mojo_op
from torch_mojo_compile.report import Compilation, compilations, summary

__version__ = "0.1.0"

__all__ = [
    "Compilation",
    "CompileFailed",
    "LoweringError",
    "UnsupportedOps",
    "__version__",
    "compilations",
    "mojo_backend",
    "mojo_op",
    "summary",
]
