from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mojo_runtime.compiler import CompileError
from mojo_runtime.jobs import MAXIMUM_BATCH, Job, JobQueue
from mojo_runtime.service import CompileService
from mojo_runtime.spec import KernelSpec
from mojo_runtime.store import Entry
from mojo_runtime.target import Target
from mojo_runtime.trace import Event

MakeService = Callable[..., CompileService]


def spec(file: Path, dtype: str = "float32") -> KernelSpec:
    return KernelSpec(file, "saxpy", dtype=dtype)


def numbered(file: Path, count: int) -> list[KernelSpec]:
    return [KernelSpec(file, "saxpy", number=i) for i in range(count)]


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)


class RecordingCore:
    """A core whose slots are the numbers of its requests."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.requests: list[tuple[int, str]] = []
        self.interrupted = False
        self.index: dict[str, Entry] = {}
        self.results: dict[int, Entry | str] = {}
        self.unloadable: set[Path] = set()
        self.resets: list[int] = []

    def ask(self, *keys: str) -> list[int]:
        with self.changed:
            slots = list(range(len(self.results) + 1, len(self.results) + len(keys) + 1))
            self.requests += zip(slots, keys, strict=True)
            self.changed.notify_all()
        return slots

    def wait_for(self, slots: list[int]) -> list[Entry | str]:
        with self.changed:
            assert self.changed.wait_for(lambda: all(slot in self.results for slot in slots), 30)
        return [self.results[slot] for slot in slots]

    def next_requests(self, timeout_milliseconds: int) -> list[tuple[int, str]]:
        with self.changed:
            self.changed.wait_for(lambda: self.requests or self.interrupted, timeout_milliseconds / 1000)
            requests, self.requests, self.interrupted = self.requests, [], False
        return requests

    def interrupt_requests(self) -> None:
        with self.changed:
            self.interrupted = True
            self.changed.notify_all()

    def index_add(self, key: str, entry: Entry) -> None:
        self.index[key] = entry

    def load(self, slot: int, entry: Entry) -> None:
        if entry.library in self.unloadable:
            self.unloadable.remove(entry.library)
            raise RuntimeError(f"{entry.library}: file too short")
        self._settle(slot, entry)

    def fail(self, slot: int, message: str) -> None:
        self._settle(slot, message)

    def reset(self, slot: int) -> None:
        self.resets.append(slot)

    def _settle(self, slot: int, result: Entry | str) -> None:
        with self.changed:
            self.results[slot] = result
            self.changed.notify_all()


def test_a_kernel_is_compiled_once_and_then_loaded(
    make_service: MakeService, kernel_file: Path, fake_compiler: Any
) -> None:
    service = make_service()
    first = service.compile(spec(kernel_file))
    assert service.compile([spec(kernel_file), spec(kernel_file).key]) == first
    assert (service.builds(), service.counters.compiled, service.counters.loaded) == (1, 1, 0)
    later = make_service()
    assert later.compile(spec(kernel_file)) == first
    assert (later.builds(), later.counters.loaded) == (0, 1)


def test_requests_return_at_once_and_waiting_ones_are_built_together(
    make_service: MakeService, kernel_file: Path, fake_compiler: Any
) -> None:
    fake_compiler.configure(seconds=0.5)
    service = make_service(workers=1)
    first, *others = numbered(kernel_file, 12)
    begin = time.monotonic()
    service.request(first)
    while not fake_compiler.runs():
        time.sleep(0.01)
    for other in others:
        service.request(other)
    assert time.monotonic() - begin < 0.5 or len(fake_compiler.runs()) == 1
    assert service.wait(30)
    assert fake_compiler.runs() == [[first.key], [other.key for other in others]]


def test_batches_share_the_free_compilers() -> None:
    queue, host = JobQueue(), Target.host()
    queue.add([Job(host, KernelSpec("mojo_kernels.fill", "fill", n=i)) for i in range(150)])
    assert len(queue.next_batch(free=10)) == 15
    assert len(queue.next_batch(free=2)) == MAXIMUM_BATCH
    assert len(queue.next_batch(free=1)) == MAXIMUM_BATCH
    assert len(queue.next_batch(free=2)) == 20
    assert len(queue.next_batch(free=19)) == 4  # a smaller library would take about as long
    assert len(queue) == 15


def test_targets_and_folders_do_not_share_a_library() -> None:
    queue = JobQueue()
    host, gpu = Target.host(), Target.parse("sm_80")
    jobs = [
        Job(target, KernelSpec(module, "fill", n=i))
        for i in range(2)
        for target in (host, gpu)
        for module in ("mojo_kernels.fill", "/a/x.mojo", "/b/x.mojo")
    ]
    queue.add(jobs)
    batches = [queue.next_batch(1) for _ in range(6)]
    assert len(queue) == 0
    for batch in batches:
        assert len(batch) == 2
        assert len({(job.target, job.spec.module) for job in batch}) == 1


@pytest.mark.parametrize("locate", [True, False])
def test_only_the_faulty_kernel_of_a_batch_fails(
    make_service: MakeService, kernel_file: Path, fake_compiler: Any, locate: bool
) -> None:
    fake_compiler.configure(broken="number=5", locate=locate)
    service = make_service(workers=1)
    wanted = numbered(kernel_file, 9)
    with pytest.raises(CompileError, match="no such operation") as caught:
        service.compile(wanted)
    assert caught.value.specs == (wanted[5],)
    assert service.wait(30)
    del wanted[5]
    assert len(service.compile(wanted)) == 8
    assert (service.counters.compiled, service.counters.failed) == (8, 1)
    if locate:
        assert service.builds() == 3  # all, the others, the faulty one


def test_a_failed_kernel_is_tried_again_with_mended_sources(
    make_service: MakeService, kernel_file: Path, fake_compiler: Any
) -> None:
    fake_compiler.configure(broken="saxpy")
    service = make_service()
    for _ in range(2):
        with pytest.raises(CompileError):
            service.compile(spec(kernel_file))
    fake_compiler.configure()
    kernel_file.write_text(kernel_file.read_text() + "# mended\n")
    assert list(service.compile(spec(kernel_file))) == [spec(kernel_file)]
    assert service.builds() == 3


def test_a_missing_module_fails_without_a_build(make_service: MakeService, tmp_path: Path, fake_compiler: Any) -> None:
    service = make_service()
    with pytest.raises(CompileError, match="there is no file"):
        service.compile(KernelSpec(tmp_path / "none.mojo", "f"))
    assert service.builds() == 0


def test_listeners_hear_what_happens(make_service: MakeService, kernel_file: Path, fake_compiler: Any) -> None:
    good, bad = spec(kernel_file), spec(kernel_file, "int8")
    fake_compiler.configure(seconds=0.1, broken="int8")
    service, events = make_service(workers=1), list[Event]()
    remove = service.add_listener(events.append)
    service.add_listener(lambda event: 1 / 0)  # is reported and disturbs nobody
    service.compile(good)
    with pytest.raises(CompileError):
        service.compile(bad)
    assert [event.kind for event in events] == ["requested", "started", "finished", "requested", "started", "failed"]
    assert [event.specs for event in events] == [(good,)] * 3 + [(bad,)] * 3
    assert [event.left for event in events] == [1, 1, 0, 1, 1, 0]
    assert events[2].seconds >= 0.1
    assert "no such operation" in events[-1].message
    remove()
    make_service().compile(good)
    assert len(events) == 6


def test_the_core_gets_the_cache_then_kernels_and_failures(
    make_service: MakeService, kernel_file: Path, fake_compiler: Any
) -> None:
    cached, good, bad = (spec(kernel_file, dtype) for dtype in ("float64", "float32", "int8"))
    make_service().compile(cached)
    fake_compiler.configure(broken="int8")
    service, core = make_service(), RecordingCore()
    service.attach(core)
    unsorted_key = f"{kernel_file}:saxpy[]"
    results = core.wait_for(core.ask(good.key, bad.key, "nonsense", cached.key, unsorted_key))
    assert list(core.index) == [cached.key, good.key, KernelSpec.parse(unsorted_key).key]
    assert results[0] == core.index[good.key]
    assert "no such operation" in str(results[1])
    assert "not the key of a KernelSpec" in str(results[2])
    assert results[3] == core.index[cached.key]
    assert isinstance(results[4], Entry)
    assert core.wait_for(core.ask(bad.key, good.key)) == [results[1], results[0]]  # other slots of known kernels
    fake_compiler.configure()
    service.compile(bad)
    assert bad.key in core.index
    assert len(core.resets) == 2


def test_waiting_covers_what_the_core_has_queued(
    make_service: MakeService, kernel_file: Path, fake_compiler: Any
) -> None:
    fake_compiler.configure(seconds=0.3)
    service, core = make_service(), RecordingCore()
    service.attach(core)
    assert service.wait(0)
    for number in range(5):
        slots = core.ask(KernelSpec(kernel_file, "saxpy", number=number).key)
        assert not service.wait(0)
        assert service.wait(30)
        assert isinstance(core.results[slots[0]], Entry)


def test_a_library_that_cannot_be_loaded_is_built_again(
    make_service: MakeService, kernel_file: Path, fake_compiler: Any
) -> None:
    entry = make_service().compile(spec(kernel_file))[spec(kernel_file)]
    service, core, events = make_service(), RecordingCore(), list[Event]()
    service.add_listener(events.append)
    core.unloadable.add(entry.library)
    service.attach(core)
    assert isinstance(core.wait_for(core.ask(spec(kernel_file).key))[0], Entry)
    assert service.builds() == 1
    assert "file too short" in next(event.message for event in events if event.kind == "warning")


def test_closing_fails_what_is_wanted(make_service: MakeService, kernel_file: Path, fake_compiler: Any) -> None:
    fake_compiler.configure(seconds=60)
    service, core = make_service(), RecordingCore()
    service.attach(core)
    slots = core.ask(spec(kernel_file).key)
    while not fake_compiler.runs():
        time.sleep(0.01)
    begin = time.monotonic()
    service.close()
    assert time.monotonic() - begin < 5
    assert "the process is exiting" in str(core.wait_for(slots)[0])


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"])
def test_the_interpreter_exits_at_once_and_quietly(
    kernel_file: Path,
    fake_environment: dict[str, str],
    fake_compiler: Any,
    script: Callable[[str], list[str]],
    ending: str,
) -> None:
    fake_compiler.configure(seconds=60)
    program = f"""
        import os, signal, time
        from mojo_runtime.service import service
        # A shell's job in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        service().request({spec(kernel_file).key!r})
        while service().builds() == 0:
            time.sleep(0.01)
        time.sleep(0.2)
        {ending}
    """
    begin = time.monotonic()
    child = subprocess.run(
        script(program), env=fake_environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert time.monotonic() - begin < 30
    if "kill" in ending:
        assert child.stderr.strip().endswith("KeyboardInterrupt")
        assert child.stderr.count("Traceback") == 1
    else:
        assert (child.returncode, child.stderr) == (3 if ending else 0, "")


def test_a_forked_child_leaves_the_compilers_alone(
    kernel_file: Path, fake_environment: dict[str, str], fake_compiler: Any, script: Callable[[str], list[str]]
) -> None:
    fake_compiler.configure(seconds=1)
    program = f"""
        import os, sys, time
        from mojo_runtime.service import service
        parents = service()
        parents.request({spec(kernel_file).key!r})
        while parents.builds() == 0:
            time.sleep(0.01)
        child = os.fork()
        if child == 0:
            assert service() is not parents
            sys.exit(0)
        os.waitpid(child, 0)
        assert parents.wait(30)
        print(parents.counters.compiled, parents.counters.failed)
    """
    child = subprocess.run(
        script(program), env=fake_environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (child.stdout.strip(), child.returncode) == ("1 0", 0), child.stderr


def test_a_real_kernel(make_service: MakeService, kernel_file: Path) -> None:
    service = make_service()
    with pytest.raises(CompileError, match=r"no_such_type.*\n.*error: "):
        service.compile([spec(kernel_file), spec(kernel_file, "no_such_type")])
    assert list(service.compile(spec(kernel_file))) == [spec(kernel_file)]
    assert (service.counters.compiled, service.counters.failed) == (1, 1)
