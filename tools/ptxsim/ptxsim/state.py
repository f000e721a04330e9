"""The threads of a launch: their numbers, special registers, memory spaces and findings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from .errors import Hazard, PtxError
from .memory import ALLOCATED, UNWRITTEN_BYTE, Array, DeviceMemory, Space
from .races import RaceTracker

if TYPE_CHECKING:
    from .program import Program

U32, U64, I64 = np.uint32, np.uint64, np.int64
Dim3 = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        races: Track data races in shared and global memory.
        approximate_error: Give .approx instructions an error up to their documented bound.
        fatal: Kinds of hazards that stop the launch.
        max_threads: Threads that are interpreted together; later blocks start when these have ended.
        max_steps: Basic blocks to execute per batch before the launch counts as endless.
    """

    races: bool = True
    approximate_error: bool = False
    fatal: frozenset[str] = frozenset()
    max_threads: int = 1 << 18
    max_steps: int = 5_000_000


@dataclasses.dataclass
class LaunchReport:
    """What a launch did and what was found.

    Attributes:
        kernel: The entry's name.
        steps: Basic blocks executed.
        thread_instructions: Instructions times threads.
        seconds: Wall time.
        hazards: The findings by kind and PTX line.
    """

    kernel: str
    steps: int = 0
    thread_instructions: int = 0
    seconds: float = 0.0
    hazards: dict[tuple[str, int], Hazard] = dataclasses.field(default_factory=dict)

    def check(self, ignore: tuple[str, ...] = ()) -> None:
        """Raises if there was a hazard.

        Args:
            ignore: Kinds that may occur.

        Raises:
            PtxError: Names all others.
        """
        left = [str(hazard) for hazard in self.hazards.values() if hazard.kind not in ignore]
        if left:
            raise PtxError(f"{self.kernel}: " + "; ".join(left))


class ThreadState:
    """The threads of some blocks of a launch. Arrays have one element per thread.

    Args:
        program: The translated entry.
        memory: Global memory.
        blocks: Linear numbers of the blocks to run.
        grid: Blocks of the whole launch.
        block: Threads of a block.
        parameters: The parameter block, bytes.
        dynamic_shared: Bytes of dynamic shared memory.
        options: How to run.
        report: Where findings go.
        global_races: The tracker of global memory, shared by all batches of the launch.
    """

    def __init__(
        self,
        program: Program,
        memory: DeviceMemory,
        blocks: Array,
        grid: Dim3,
        block: Dim3,
        parameters: Array,
        dynamic_shared: int,
        options: Options,
        report: LaunchReport,
        global_races: RaceTracker | None,
    ) -> None:
        self.program, self.memory, self.options, self.report = program, memory, options, report
        self.grid, self.block, self.parameters = grid, block, parameters
        self.threads_per_block = block[0] * block[1] * block[2]
        self.blocks = len(blocks)
        self.n = self.threads_per_block * self.blocks
        self.all = np.arange(self.n)
        self.thread = np.tile(np.arange(self.threads_per_block), self.blocks)
        self.batch_block = np.repeat(np.arange(self.blocks), self.threads_per_block)
        self.grid_block = np.repeat(np.asarray(blocks), self.threads_per_block)
        warps_per_block = -(-self.threads_per_block // 32)
        self.lane = (self.thread & 31).astype(U32)
        self.warp = self.batch_block * warps_per_block + (self.thread >> 5)
        self.warps = self.blocks * warps_per_block
        self.whole_warps = self.threads_per_block % 32 == 0
        self.global_thread = self.grid_block * (warps_per_block * 32) + self.thread
        self.stamp = np.zeros(self.n, I64)
        self.exited = np.zeros(self.n, bool)
        self.special = self._special_registers(warps_per_block, dynamic_shared)
        self.registers = [np.zeros(self.n, dtype) for dtype in program.register_dtypes]

        self.shared_size = program.shared_size(dynamic_shared)
        self.shared_stride = -(-max(self.shared_size, 1) // 16) * 16
        self.shared = Space(self.shared_stride * self.blocks)
        shadow = self.shared.shadow.reshape(self.blocks, self.shared_stride)
        for offset, size in program.shared_extents(dynamic_shared):
            shadow[:, offset : offset + size] = ALLOCATED
        self.shared.bytes[:] = UNWRITTEN_BYTE
        self.local_size = -(-program.local_size // 16) * 16
        self.local = Space(self.local_size * self.n)
        self.local.shadow[:] = ALLOCATED
        self.global_races = global_races
        self.shared_races = (
            RaceTracker(self.shared.nbytes, program.granule["shared"], warps_per_block * 32) if options.races else None
        )

    def _special_registers(self, warps_per_block: int, dynamic_shared: int) -> dict[str, Any]:
        (bx, by, _), (gx, gy, _) = self.block, self.grid
        thread, block, lane, one = self.thread, self.grid_block, self.lane, U32(1)
        below = (one << lane) - one
        values = {
            "tid": (thread % bx, thread // bx % by, thread // (bx * by)),
            "ctaid": (block % gx, block // gx % gy, block // (gx * gy)),
            "ntid": self.block,
            "nctaid": self.grid,
            "nclusterid": self.grid,
            "cluster_ctaid": (0, 0, 0),
            "cluster_nctaid": (1, 1, 1),
        }
        values["clusterid"] = values["ctaid"]
        special: dict[str, Any] = {
            f"%{name}.{axis}": np.asarray(value).astype(U32)[()]
            for name, triple in values.items()
            for axis, value in zip("xyz", triple, strict=True)
        }
        special |= {
            "%laneid": lane,
            "%warpid": (thread >> 5).astype(U32),
            "%lanemask_eq": one << lane,
            "%lanemask_lt": below,
            "%lanemask_le": below | (one << lane),
            "%lanemask_ge": ~below,
            "%lanemask_gt": ~(below | (one << lane)),
            "%nwarpid": U32(warps_per_block),
            "%smid": U32(0),
            "%nsmid": U32(1),
            "%gridid": U64(0),
            "%clock": U32(0),
            "%clock64": U64(0),
            "%globaltimer": U64(0),
            "%dynamic_smem_size": U32(dynamic_shared),
            "%total_smem_size": U32(self.program.shared_size(dynamic_shared)),
            "%cluster_ctarank": U32(0),
            "%cluster_nctarank": U32(1),
        }
        return special

    def special_register(self, name: str, active: Array | None) -> Any:
        """A special register's value for some threads."""
        value = self.special[name]
        return value if active is None or np.ndim(value) == 0 else value[active]

    # ---- findings ----

    def where(self, i: int) -> str:
        """Block and thread of thread number `i`, for messages."""
        block, thread = int(self.grid_block[i]), int(self.thread[i])
        (gx, gy, _), (bx, by, _) = self.grid, self.block
        return (
            f"block ({block % gx},{block // gx % gy},{block // (gx * gy)}) "
            f"thread ({thread % bx},{thread // bx % by},{thread // (bx * by)})"
        )

    def _first(self, active: Array | None, bad: Array) -> int:
        i = int(np.flatnonzero(bad)[0])
        return i if active is None else int(active[i])

    def hazard(self, kind: str, line: int, active: Array | None, bad: Array, detail: str) -> None:
        """Records a finding.

        Args:
            kind: See `Hazard`.
            line: Of the PTX.
            active: The threads that execute the instruction.
            bad: Which of them are concerned.
            detail: What they did.

        Raises:
            PtxError: The options make this kind fatal.
        """
        count = int(np.count_nonzero(bad))
        known = self.report.hazards.get((kind, line))
        if known:
            known.count += count
            return
        example = f"{self.where(self._first(active, bad))} {detail}"
        found = Hazard(kind, line, self.program.text_of(line), example, count)
        self.report.hazards[kind, line] = found
        if kind in self.options.fatal:
            raise PtxError(str(found))

    def fail(self, kind: str, line: int, active: Array | None, bad: Array, detail: str) -> NoReturn:
        """Raises what stops a launch; arguments as for `hazard`."""
        raise PtxError(
            f"{kind}: {self.report.kernel} PTX line {line} `{self.program.text_of(line)}`: "
            f"{self.where(self._first(active, bad))} {detail} ({int(np.count_nonzero(bad))} threads)"
        )

    def check_divisor(self, divisor: Array, active: Array | None, n: int, line: int) -> None:
        """Records integer divisions by zero."""
        zero = np.broadcast_to(divisor == 0, (n,))
        if zero.any():
            self.hazard("division-by-zero", line, active, zero, "divides an integer by zero")

    def trap(self, active: Array | None, n: int, line: int) -> None:
        """A trap was reached."""
        self.fail("trap", line, active, np.ones(n, bool), "executes trap (a failed assertion?)")
