"""PTX basic blocks to Python functions over NumPy arrays."""

from . import arithmetic, control, data, integer, memory, warp
from .blocks import Block, RawBlock, split_blocks
from .generator import NUMPY, BlockGenerator, write_back
from .table import translate

__all__ = [
    "NUMPY",
    "Block",
    "BlockGenerator",
    "RawBlock",
    "arithmetic",
    "control",
    "data",
    "integer",
    "memory",
    "split_blocks",
    "translate",
    "warp",
    "write_back",
]
