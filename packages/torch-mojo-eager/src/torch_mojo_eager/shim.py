"""Builds and loads the C++ shim, and gives its C entry points Python types."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch

from mojo_runtime import native_build

_SOURCES = Path(__file__).parent / "csrc"

# -Wno-*: warnings of torch's own headers.
_FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fvisibility-inlines-hidden", "-Wno-attributes", "-Wno-interference-size")


class Shim:
    """The loaded shim. Its methods raise RuntimeError with the C++ side's message."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        self._library.torch_mojo_error.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: object) -> None:
        if getattr(self._library, name)(*arguments) != 0:
            raise RuntimeError(self._library.torch_mojo_error().decode())

    def initialize(self, name: str, max_blocks: Sequence[int]) -> None:
        """Registers the device under a name, with everything that needs no rows.

        Args:
            name: The device's name.
            max_blocks: For each device, how many blocks the grid of random draws has at most.
        """
        self._call("torch_mojo_initialize", name.encode(), (ctypes.c_int64 * len(max_blocks))(*max_blocks))

    def register_pointwise(
        self, name: str, key: str, complex_key: str, mask: int, promotion: int, inputs: str, scalars: str, forms: str
    ) -> None:
        """Registers a Pointwise row; see csrc/pointwise.cpp."""
        self._call(
            "torch_mojo_register_pointwise",
            name.encode(),
            key.encode(),
            complex_key.encode(),
            ctypes.c_uint64(mask),
            ctypes.c_int32(promotion),
            inputs.encode(),
            scalars.encode(),
            forms.encode(),
        )

    def register_native(
        self,
        name: str,
        key: str,
        masks: Sequence[int],
        tensors: str,
        scalars: str,
        dtype_arguments: str,
        functional: str,
        in_place: str,
        other_dtypes: str,
        promotes: bool,
    ) -> None:
        """Registers a Native row; see csrc/native.cpp."""
        self._call(
            "torch_mojo_register_native",
            name.encode(),
            key.encode(),
            (ctypes.c_uint64 * max(1, len(masks)))(*masks),
            tensors.encode(),
            scalars.encode(),
            dtype_arguments.encode(),
            functional.encode(),
            in_place.encode(),
            other_dtypes.encode(),
            ctypes.c_int32(promotes),
        )

    def register_structured_form(self, overload: str) -> None:
        """Registers the functional or in-place form of a structured op; see csrc/structured.cpp."""
        self._call("torch_mojo_register_structured_form", overload.encode())

    def take_trust(self) -> int:
        """Returns whether such a form calls the out form that asks: torch has checked and allocated the outputs."""
        return int(self._library.torch_mojo_take_trust())

    def register_autocast(self, name: str, policy: int) -> None:
        """Registers an autocast policy for an overload; see csrc/autocast.cpp."""
        self._call("torch_mojo_register_autocast", name.encode(), ctypes.c_int32(policy))


def library_path() -> Path:
    """Returns the shim's library: prebuilt or cached for exactly the installed torch, else built now."""
    root = Path(torch.__file__).parent
    return native_build.build_library(
        "torch_mojo_shim",
        [_SOURCES / "shim.cpp"],
        include_directories=[root / "include", native_build.include_directory()],
        library_directories=[root / "lib"],
        libraries=["torch_cpu", "c10"],
        flags=_FLAGS,
        # A build against another torch would load and then misbehave: only the exact version will do.
        key_extra=f"torch {torch.__version__} {torch.version.git_version}",
        prebuilt_directories=[Path(__file__).parent / "prebuilt"],
    )


@functools.lru_cache(maxsize=1)
def load() -> Shim:
    """Returns the shim, built against the installed torch if no fitting build exists."""
    return Shim(library_path())
