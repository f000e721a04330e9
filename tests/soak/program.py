"""One random program over streams, events, copies, views, frees and threads, each of its values beside CPU torch's.

All values are small integers, so that results are exact in every order of summation. The program is a function of its
seed; how streams and threads interleave is not.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

BOUND = 40  # values stay below it in magnitude
MAXIMUM_VALUES = 24
UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "square": lambda x: x * x,
    "sum": lambda x: x.sum(-1, keepdim=True),
    "amax": lambda x: x.amax(0, keepdim=True),
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(-1).values,
    "flip": lambda x: x.flip(0),
    "transposed": lambda x: x.t().clone(memory_format=torch.contiguous_format),
    "double": lambda x: x.double().float() if x.is_floating_point() else x.int().long(),
    "where": lambda x: torch.where(x > 0, x, x + 1),
    "masked": lambda x: x.masked_fill(x < 0, 3),
    "index": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1, device=x.device)],
    "cat": lambda x: torch.cat([x, x[:1]]),
    "roll": lambda x: x.roll(1, 0),
    "gram": lambda x: x.float()[:, :16] @ x.float()[:, :16].t() if x.shape[0] <= 32 else x + 0,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b),
}
IN_PLACE: dict[str, Callable[[torch.Tensor], object]] = {
    "add_": lambda x: x.add_(1).remainder_(BOUND),
    "mul_": lambda x: x.mul_(3).remainder_(BOUND),
    "zero_": torch.Tensor.zero_,
    "fill_": lambda x: x.fill_(7),
    "setitem": lambda x: x.__setitem__(slice(None, None, 2), 5),
    "clamp_": lambda x: x.clamp_(-3, 9),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda x: x.t(),
    "rows": lambda x: x[1:] if x.shape[0] > 2 else x[:],
    "columns": lambda x: x[:, ::2],
    "narrow": lambda x: x.narrow(0, 0, max(1, x.shape[0] // 2)),
    "unfold": lambda x: x[: x.shape[0] // 2 * 2] if x.shape[0] > 1 else x[:],
}


@dataclass
class Memory:
    """What a storage's users must wait for: the event after its last write, and after each read since."""

    stream: torch.Stream
    written: torch.Event
    read: list[torch.Event] = field(default_factory=list)


@dataclass
class Value:
    """A tensor of a device, what it must be equal to, and its memory, which views share."""

    tensor: torch.Tensor
    reference: torch.Tensor
    memory: Memory


class Mismatch(AssertionError):
    """A value is not what CPU torch says."""


class Program:
    """A random program.

    Args:
        seed: Which.
        streams: The streams it may use: those of its thread, by device, the default streams first.
        forgets_waits: Whether it leaves out the waits between streams, which must make it fail.
        faults: Whether it makes allocations, kernels and compilations fail now and then.
    """

    numbers = itertools.count()

    def __init__(self, seed: int, streams: list[list[torch.Stream]], *, forgets_waits: bool, faults: bool) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.streams = streams
        self.forgets_waits = forgets_waits
        self.faults = faults
        self.values: list[Value] = []
        self.counts: dict[str, int] = {}
        self.log: list[str] = []

    def run(self, steps: int) -> None:
        """Runs some steps and compares all values at the end."""
        actions = {
            self.create: 4,
            self.unary: 10,
            self.binary: 8,
            self.in_place: 6,
            self.view: 5,
            self.copy: 4,
            self.move: 3,
            self.free: 6,
            self.check: 4,
            self.gradient: 2,
            self.synchronize: 1,
            self.fan_out: 1 if len(self.streams[0]) > 2 else 0,
            self.fail: 2 if self.faults else 0,
        }
        for _ in range(steps):
            action = self.random.choices(list(actions), list(actions.values()))[0]
            if not self.values:
                action = self.create
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
            action()
            while len(self.values) > MAXIMUM_VALUES:
                self.free()
        for value in list(self.values):
            self.compare(value)

    # ---- streams and waits

    def stream(self, device: int | None = None) -> torch.Stream:
        """Chooses a stream, of a device if one is given."""
        return self.random.choice(self.random.choice(self.streams) if device is None else self.streams[device])

    def pick(self) -> Value:
        """Chooses a value."""
        return self.random.choice(self.values)

    def wait(self, stream: torch.Stream, event: torch.Event) -> None:
        """Makes a stream wait for an event, in one of the ways."""
        if self.forgets_waits:
            return
        if self.random.random() < 0.5:
            stream.wait_event(event)
        else:
            event.wait(stream)

    def before_read(self, stream: torch.Stream, *values: Value) -> None:
        """Orders a stream behind what was written."""
        for value in values:
            self.wait(stream, value.memory.written)
            value.tensor.record_stream(stream)

    def after_read(self, stream: torch.Stream, *values: Value) -> None:
        """Notes that the stream has read."""
        event = stream.record_event()
        for value in values:
            value.memory.read.append(event)

    def before_write(self, stream: torch.Stream, value: Value) -> None:
        """Orders a stream behind all that uses the memory."""
        self.before_read(stream, value)
        for event in value.memory.read:
            self.wait(stream, event)

    def after_write(self, stream: torch.Stream, value: Value) -> None:
        """Notes that the stream has written."""
        value.memory.written = stream.record_event()
        value.memory.read.clear()

    def keep(self, stream: torch.Stream, tensor: torch.Tensor, reference: torch.Tensor) -> None:
        """Keeps a result that the stream computes."""
        if reference.abs().max() >= BOUND if reference.numel() else False:
            with stream:
                tensor = tensor.remainder(BOUND)
            reference = reference.remainder(BOUND)
        if reference.dim() == 2 and 0 < reference.numel() <= 300_000:
            self.values.append(Value(tensor, reference, Memory(stream, stream.record_event())))

    # ---- actions

    def create(self) -> None:
        """Uploads, from pinned or pageable memory, or fills."""
        rows, columns = self.random.choice([(3, 5), (17, 33), (64, 20), (1, 7), (200, 400), (500, 600)])
        dtype = self.random.choice([torch.float32, torch.float32, torch.int64])
        host = torch.randint(-BOUND + 1, BOUND, (rows, columns), generator=self.generator).to(dtype)
        stream = self.stream()
        kind = self.random.randrange(4)
        with stream:
            if kind == 0:
                tensor = torch.full((rows, columns), 4, dtype=dtype, device=stream.device)
                host = torch.full((rows, columns), 4, dtype=dtype)
            elif kind == 1:
                source = host.pin_memory()
                tensor = source.to(stream.device, non_blocking=True)
                del source
            else:
                source = host.clone()
                tensor = source.to(stream.device, non_blocking=kind == 2)
                source.fill_(-1)  # pageable memory may be used again at once
        self.keep(stream, tensor, host)

    def unary(self) -> None:
        """Computes from one value."""
        value, name = self.pick(), self.random.choice(list(UNARY))
        stream = self.stream(value.tensor.device.index)
        self.before_read(stream, value)
        with stream:
            tensor = UNARY[name](value.tensor)
        self.after_read(stream, value)
        self.keep(stream, tensor, UNARY[name](value.reference))

    def binary(self) -> None:
        """Computes from two values of one device."""
        first, second = self.pick(), self.pick()
        if first.tensor.device != second.tensor.device:
            return
        name = self.random.choice(list(BINARY))
        stream = self.stream(first.tensor.device.index)
        rows, columns = (min(a, b) for a, b in zip(first.reference.shape, second.reference.shape, strict=True))
        self.before_read(stream, first, second)
        with stream:
            tensor = BINARY[name](first.tensor[:rows, :columns], second.tensor[:rows, :columns])
        self.after_read(stream, first, second)
        self.keep(stream, tensor, BINARY[name](first.reference[:rows, :columns], second.reference[:rows, :columns]))

    def in_place(self) -> None:
        """Changes a value, and the views that share its memory."""
        value, name = self.pick(), self.random.choice(list(IN_PLACE))
        stream = self.stream(value.tensor.device.index)
        self.before_write(stream, value)
        with stream:
            IN_PLACE[name](value.tensor)
        IN_PLACE[name](value.reference)
        self.after_write(stream, value)

    def view(self) -> None:
        """Makes a view."""
        value, name = self.pick(), self.random.choice(list(VIEWS))
        reference = VIEWS[name](value.reference)
        if reference.numel():
            self.values.append(Value(VIEWS[name](value.tensor), reference, value.memory))

    def copy(self) -> None:
        """Copies one value into another, of either device."""
        source, target = self.pick(), self.pick()
        if source.memory is target.memory:
            return
        rows, columns = (min(a, b) for a, b in zip(source.reference.shape, target.reference.shape, strict=True))
        there, here = self.stream(source.tensor.device.index), self.stream(target.tensor.device.index)
        if there.device == here.device:
            there = here
        self.before_read(there, source)
        self.before_write(here, target)
        non_blocking = self.random.random() < 0.5
        with there, here:
            target.tensor[:rows, :columns].copy_(source.tensor[:rows, :columns], non_blocking=non_blocking)
        target.reference[:rows, :columns].copy_(source.reference[:rows, :columns])
        self.after_read(there, source)
        self.after_write(here, target)

    def move(self) -> None:
        """Moves a value to another device, or down and up again."""
        value = self.pick()
        stream = self.stream(value.tensor.device.index)
        there = self.stream()
        self.before_read(stream, value)
        with stream:
            host = value.tensor.cpu()
        self.after_read(stream, value)
        with there:
            tensor = host.to(there.device, non_blocking=True)
        self.keep(there, tensor, host.clone())
        self.equal(host, value.reference, "move")

    def free(self) -> None:
        """Drops a value."""
        if self.values:
            self.values.pop(self.random.randrange(len(self.values)))

    def check(self) -> None:
        """Compares one value."""
        self.compare(self.pick())

    def gradient(self) -> None:
        """A backward on one stream."""
        value = self.pick()
        stream = self.stream(value.tensor.device.index)
        self.before_read(stream, value)
        with stream:
            x = value.tensor.detach().float().requires_grad_()
            (x * x + x).sum().backward()
            gradient = x.grad
        self.after_read(stream, value)
        assert gradient is not None
        self.keep(stream, gradient, 2 * value.reference.float() + 1)

    def synchronize(self) -> None:
        """Waits on the host, or gives memory back."""
        kind = self.random.randrange(4)
        stream = self.stream()
        if kind == 0:
            stream.synchronize()
            if stream.stream_id != 0 and not stream.query():
                raise Mismatch("a stream that only this program uses has work after synchronize()")
        elif kind == 1:
            torch.accelerator.synchronize(stream.device)
        elif kind == 2:
            with torch.accelerator.device_index(stream.device.index):
                torch.accelerator.empty_cache()
        else:
            event = stream.record_event()
            event.synchronize()
            if not event.query():
                raise Mismatch("an event is not complete after synchronize()")

    def fan_out(self) -> None:
        """Threads go on with parts of the values, each with a stream of its own; then their values come together."""
        count = 2
        groups: list[list[Value]] = [[] for _ in range(count)]
        owners: dict[int, int] = {}
        for value in self.values:  # values that share memory stay together
            owner = owners.setdefault(id(value.memory), self.random.randrange(count))
            groups[owner].append(value)
        parts = []
        for i, group in enumerate(groups):
            streams = [[device[0], device[1 + i]] for device in self.streams]
            seed = self.random.getrandbits(32)
            part = Program(seed, streams, forgets_waits=self.forgets_waits, faults=self.faults)
            part.values = group
            parts.append(part)
        errors: list[BaseException] = []

        def run(part: Program) -> None:
            try:
                part.run(10)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        self.values = [value for part in parts for value in part.values]
        for part in parts:
            for name, number in part.counts.items():
                self.counts[name] = self.counts.get(name, 0) + number

    def fail(self) -> None:
        """An allocation, a kernel or, rarely, a compilation fails; what is queued around it is not hurt."""
        value = self.pick()
        device = value.tensor.device
        stream = self.random.choice(self.streams[device.index][1:])  # a failure is reported by its stream, once
        self.before_read(stream, value)
        kind = self.random.choices(["allocation", "kernel", "compilation"], [6, 6, 0.05])[0]
        self.counts[f"failing {kind}"] = self.counts.get(f"failing {kind}", 0) + 1
        with stream:
            before = value.tensor + 1
            try:
                if kind == "allocation":
                    value.tensor[:1, :1].expand(1 << 40, 8).contiguous()
                elif kind == "kernel":
                    torch.nn.functional.embedding(
                        torch.tensor([9999], device=device), value.tensor[:, :1].float(), padding_idx=None
                    )
                else:
                    key = f"mojo_kernels.soak:missing[number={next(self.numbers)}]"
                    torch.ops.mojo.launch(key, [value.tensor], [])
                after = value.tensor + 2
                stream.synchronize()
            except (RuntimeError, IndexError, NotImplementedError) as error:
                expected = {"allocation": torch.OutOfMemoryError, "kernel": IndexError, "compilation": Exception}[kind]
                if not isinstance(error, expected):
                    raise
                after = value.tensor + 2
            else:
                raise Mismatch(f"a failing {kind} was not reported")
        self.after_read(stream, value)
        self.keep(stream, before, value.reference + 1)
        self.keep(stream, after, value.reference + 2)

    # ---- comparison

    def compare(self, value: Value) -> None:
        """Downloads a value in one of the ways and compares it."""
        stream = self.stream(value.tensor.device.index)
        self.before_read(stream, value)
        with stream:
            kind = self.random.randrange(3)
            if kind == 0:
                host = value.tensor.cpu()
            elif kind == 1:
                host = value.tensor.to("cpu", non_blocking=True)
                stream.record_event().synchronize()
            else:
                host = torch.empty(value.tensor.shape, dtype=value.tensor.dtype)
                host.copy_(value.tensor, non_blocking=True)
        self.after_read(stream, value)
        self.equal(host, value.reference, "comparison")

    def equal(self, ours: torch.Tensor, theirs: torch.Tensor, where: str) -> None:
        """Raises Mismatch where two host tensors differ."""
        if not torch.equal(ours, theirs):
            different = int((ours != theirs).sum())
            raise Mismatch(f"{different} of {ours.numel()} elements differ, {tuple(ours.shape)} {ours.dtype} ({where})")
