"""A host wait that holds the GIL gives it back: what it waits for may need it, such as a kernel being compiled."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Functions of a PyDLL keep the GIL, as torch's bindings do when a 0-dim tensor is an index.
PROGRAM = """
import ctypes, sys, time
import mojo_runtime
from mojo_runtime import _native

mojo_runtime.initialize()
device = mojo_runtime.devices()[0]
stream = mojo_runtime.Stream(device)
native = _native.library()
keeps_gil = ctypes.PyDLL(str(_native.library_path()))
keeps_gil.mojo_stream_synchronize.argtypes = (ctypes.c_int32, ctypes.c_int64)
keeps_gil.mojo_event_synchronize.argtypes = (ctypes.c_void_p,)
ran = []

@_native.HOST_FUNCTION
def work(_):
    time.sleep(0.2)
    ran.append(True)

native.mojo_stream_call(device.index, stream.id, ctypes.cast(work, ctypes.c_void_p), None)
if sys.argv[1] == "stream":
    status = keeps_gil.mojo_stream_synchronize(device.index, stream.id)
else:
    event = ctypes.c_void_p()
    native.mojo_event_create(device.index, 0, ctypes.byref(event))
    native.mojo_event_record(event, device.index, stream.id)
    status = keeps_gil.mojo_event_synchronize(event)
assert status == 0 and ran == [True]
"""


@pytest.mark.parametrize("what", ["stream", "event"])
def test_wait_gives_the_interpreter_lock_back(what):
    subprocess.run([sys.executable, "-c", PROGRAM, what], check=True, timeout=60)
