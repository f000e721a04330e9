"""Streams and events.

Work on a stream runs in the order it was queued; streams run beside each other. Each thread has a current stream per
device, first the device's default stream, that arrays are allocated on and kernels launched on.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from mojo_runtime import _native
from mojo_runtime.devices import Device, device


class Stream:
    """A queue of work of one device. It lives as long as the process: create streams once and reuse them.

    `with stream:` makes it the current stream of its device and this thread.

    Args:
        index: The device.
        priority: For GPU drivers: lower numbers come first.
        id: A stream that exists already, e.g. 0, the default stream; None makes a new one.
    """

    def __init__(self, index: int | Device = 0, priority: int = 0, *, id: int | None = None) -> None:
        self.device = device(index)
        if id is None:
            created = ctypes.c_int64()
            _native.library().mojo_stream_create(self.device.index, priority, created)
            id = created.value
        self.id = id
        self._entered: list[Stream] = []

    def synchronize(self) -> None:
        """Waits for the work queued so far.

        Raises:
            Exception: What failed first in the queue since the last synchronization, with its own type: a kernel's
                error, or the RuntimeError of a failed compilation.
        """
        _native.library().mojo_stream_synchronize(self.device.index, self.id)

    def query(self) -> bool:
        """Whether all work queued so far is done."""
        done = ctypes.c_int32()
        _native.library().mojo_stream_query(self.device.index, self.id, done)
        return bool(done.value)

    def record_event(self, event: Event | None = None) -> Event:
        """Records an event, a new one by default, behind the work queued so far."""
        event = Event(self.device) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Makes work queued from now on wait for the event. Does not block."""
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        """Makes work queued from now on wait for what is queued on the other stream so far. Does not block."""
        self.wait_event(other.record_event())

    @property
    def native_handle(self) -> int:
        """The driver's handle of a GPU stream; 0 on CPU devices."""
        return _native.library().mojo_stream_native_handle(self.device.index, self.id) or 0

    @property
    def pending(self) -> int:
        """How many launches, copies and events wait in the host's queue."""
        return int(_native.library().mojo_stream_pending(self.device.index, self.id))

    def __enter__(self) -> Stream:
        self._entered.append(current_stream(self.device))
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._entered.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device.index, self.id) == (other.device.index, other.id)

    def __hash__(self) -> int:
        return hash((self.device.index, self.id))

    def __repr__(self) -> str:
        return f"Stream(device={self.device.index}, id={self.id})"


class Event:
    """A point in a stream's work. Recording it again moves it; who waits already waits for the earlier point.

    Args:
        index: The device, on whose streams the event is recorded.
        timing: Whether `elapsed_time` can be asked.
    """

    def __init__(self, index: int | Device = 0, *, timing: bool = False) -> None:
        self.device = device(index)
        self.timing = timing
        self._native = _native.library()
        self._handle = ctypes.c_void_p()
        self._native.mojo_event_create(self.device.index, int(timing), self._handle)

    def record(self, stream: Stream | None = None) -> None:
        """Records the event behind the work queued so far on a stream, by default the current one."""
        stream = current_stream(self.device) if stream is None else stream
        self._native.mojo_event_record(self._handle, stream.device.index, stream.id)

    def wait(self, stream: Stream | None = None) -> None:
        """Makes a stream's work from now on wait for the event. Does not block."""
        stream = current_stream(self.device) if stream is None else stream
        self._native.mojo_event_wait(self._handle, stream.device.index, stream.id)

    def query(self) -> bool:
        """Whether the work before the event is done; True for an event that was never recorded."""
        done = ctypes.c_int32()
        self._native.mojo_event_query(self._handle, done)
        return bool(done.value)

    def synchronize(self) -> None:
        """Waits for the work before the event."""
        self._native.mojo_event_synchronize(self._handle)

    def elapsed_time(self, end: Event) -> float:
        """Returns the milliseconds from this event to a later one.

        Raises:
            ValueError: One of the events was made without timing or never recorded.
            RuntimeError: One of them is not complete.
        """
        milliseconds = ctypes.c_double()
        self._native.mojo_event_elapsed(self._handle, end._handle, milliseconds)
        return milliseconds.value

    def __del__(self) -> None:
        handle: Any = self.__dict__.get("_handle")
        if handle:
            self._native.mojo_event_destroy(handle)


class _Current(threading.local):
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _Current()


def default_stream(index: int | Device = 0) -> Stream:
    """Returns the stream that a device starts with."""
    return Stream(index, id=0)


def current_stream(index: int | Device = 0) -> Stream:
    """Returns this thread's current stream of a device."""
    target = device(index)
    stream = _current.streams.get(target.index)
    if stream is None:
        stream = _current.streams[target.index] = default_stream(target)
    return stream


def set_stream(stream: Stream) -> None:
    """Makes a stream this thread's current one of its device."""
    _current.streams[stream.device.index] = stream
