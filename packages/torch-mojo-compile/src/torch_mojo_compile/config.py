"""Every environment variable of the compiler, read in one place; the runtime's own are in `mojo_runtime.config`."""

from __future__ import annotations

from pathlib import Path

from mojo_runtime.config import Config, Variable, path, positive
from mojo_runtime.config import config as runtime_config


class CompileConfig(Config):
    """The compiler's settings; `config` is the one instance."""

    dump = Variable[Path | None](
        "TORCH_MOJO_COMPILE_DUMP",
        path,
        lambda: None,
        "A folder that receives, for each compilation, the FX graphs, the MAX graphs and the timings.",
    )
    graph_cache_dir = Variable[Path | None](
        "TORCH_MOJO_COMPILE_CACHE_DIR",
        path,
        lambda: None,
        "Folder of compiled models. Default: graphs in the runtime's cache folder.",
    )
    threads = Variable[int | None](
        "TORCH_MOJO_COMPILE_THREADS",
        positive,
        lambda: None,
        "How many threads the loops use that MAX generates for a CPU; kernels have the runtime's. Default: 1 on a "
        "machine of up to four cores, where waking another thread costs more than it saves, else all cores.",
    )
    workers = Variable[int | None](
        "TORCH_MOJO_COMPILE_JOBS",
        positive,
        lambda: None,
        "How many models may be compiled at the same time. Default: 1 for each 8 GiB of memory, at most the cores.",
    )

    @property
    def store_folder(self) -> Path:
        """The folder of compiled models."""
        return self.graph_cache_dir or runtime_config.cache_dir / "graphs"


config = CompileConfig()
