"""Device memory, its statistics and reuse; pinned memory; copies; NumPy and DLPack."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import mojo_runtime
from mojo_runtime import _native, memory


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 65536, 65537, 1 << 20, 3_000_001, 9 << 20])
def test_blocks_are_aligned_disjoint_and_found(device, size):
    blocks = [mojo_runtime.Memory(size, device) for _ in range(3)]
    ranges = sorted((block.address, block.address + size) for block in blocks)
    assert all(start % 64 == 0 for start, _ in ranges)
    assert all(ranges[i][1] <= ranges[i + 1][0] for i in range(2))
    for start, end in ranges:
        assert memory.pointer_device(start) == memory.pointer_device(end - 1) == device
    host = np.zeros(4)
    assert memory.pointer_device(host.ctypes.data) is None


def test_every_size_class_holds_what_was_asked_for(device):
    for size in [*range(1, 1200, 7), *(1 << n for n in range(11, 24)), *((1 << n) + 1 for n in range(11, 24))]:
        block = mojo_runtime.empty(size, "uint8", device)
        block.numpy()[:] = 255
        assert block.numpy().min() == 255
    gc.collect()


def test_statistics_count_the_bytes_asked_for(device):
    gc.collect()
    mojo_runtime.reset_peak_memory_statistics(device)
    before = mojo_runtime.memory_statistics(device)
    blocks = [mojo_runtime.Memory(1000 + i, device) for i in range(4)]
    total = 4006
    during = mojo_runtime.memory_statistics(device)
    assert during.allocated_current - before.allocated_current == total
    assert during.allocations_current - before.allocations_current == 4
    del blocks
    after = mojo_runtime.memory_statistics(device)
    assert after.allocated_current == before.allocated_current
    assert after.allocated_peak == before.allocated_current + total
    assert after.freed_total - before.freed_total == after.allocated_total - before.allocated_total == total
    assert (after.reserved_current, after.reserved_peak) == (after.allocated_current, after.allocated_peak)
    mojo_runtime.reset_peak_memory_statistics(device)
    mojo_runtime.reset_accumulated_memory_statistics(device)
    reset = mojo_runtime.memory_statistics(device)
    assert reset.allocated_peak == reset.allocated_current == before.allocated_current
    assert reset.allocated_total == reset.frees_total == 0


@pytest.mark.parametrize("size", [100, 100_000, 10 << 20])
def test_freed_memory_is_used_again(device, size):
    block = mojo_runtime.Memory(size, device)
    address = block.address
    del block
    assert mojo_runtime.Memory(size, device).address == address


def test_unused_large_memory_is_bounded(device):
    mojo_runtime.empty_cache(device)
    resident = _resident_bytes()
    for size in range(64 << 20, 72 << 20, 1 << 20):  # a class each
        mojo_runtime.empty(size, "uint8", device).numpy()[:] = 1
    assert _resident_bytes() - resident < 200 << 20
    mojo_runtime.empty_cache(device)
    assert _resident_bytes() - resident < 32 << 20


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_impossible_allocation_fails_and_changes_nothing(device):
    before = mojo_runtime.memory_statistics(device)
    with pytest.raises(mojo_runtime.OutOfMemoryError, match=r"out of memory: tried to allocate 1\.00 TiB"):
        mojo_runtime.Memory(1 << 40, device)
    with pytest.raises(RuntimeError, match="out of memory"):
        mojo_runtime.Memory(1 << 62, device)
    after = mojo_runtime.memory_statistics(device)
    assert after.out_of_memory_count - before.out_of_memory_count == 2
    assert after.allocated_current == before.allocated_current
    mojo_runtime.Memory(100, device)


def test_allocation_that_needs_the_cache_empties_it(device):
    """Most of the memory cached in one size class makes room for another."""
    free, total = mojo_runtime.memory_info(device)
    assert 0 < free <= total
    block = mojo_runtime.Memory(total * 2 // 3, device)  # never touched
    del block
    mojo_runtime.Memory(total * 5 // 6, device)


def test_memory_freed_while_queued_work_uses_it_is_not_given_to_another_stream(stand_ins, device, side):
    size = 10_000
    slot = stand_ins.unfilled()
    with side:
        array = mojo_runtime.empty(size, "float32", device)
        mojo_runtime.launch(slot, [array, array], [0])
        address = array.address
        del array
        again = mojo_runtime.Memory(size * 4, device)
        assert again.address == address  # later work of the same stream may have it at once
        del again
    other = mojo_runtime.Memory(size * 4, device, mojo_runtime.default_stream(device))
    assert other.address != address
    stand_ins.fill(slot, "add_one")
    side.synchronize()
    assert mojo_runtime.Memory(size * 4, device, mojo_runtime.default_stream(device)).address == address


def test_recorded_streams_delay_the_reuse(stand_ins, device, side):
    size, slot = 20_000, stand_ins.unfilled()
    array = mojo_runtime.empty(size, "float32", device)
    address = array.address
    mojo_runtime.launch(slot, [array, array], [0], side)  # names the stream to the allocator
    del array
    block = mojo_runtime.Memory(size * 4, device)
    assert block.address != address
    stand_ins.fill(slot, "add_one")
    side.synchronize()
    assert mojo_runtime.Memory(size * 4, device).address == address


def test_record_stream_refuses_what_it_does_not_own(device, side):
    host = np.zeros(4)
    with pytest.raises(ValueError, match="not a mojo device's"):
        _native.library().mojo_record_stream(host.ctypes.data, side.id)
    block = mojo_runtime.Memory(1000, device)
    with pytest.raises(ValueError, match="not the start"):
        _native.library().mojo_record_stream(block.address + 64, side.id)


def test_pinned_memory(device):
    block = mojo_runtime.PinnedMemory(5000, device)
    assert block.address % 4096 == 0
    assert memory.is_pinned(block.address)
    assert memory.is_pinned(block.address + 4999)
    address = block.address
    del block
    assert not memory.is_pinned(address)
    assert not memory.is_pinned(np.zeros(4).ctypes.data)


@pytest.mark.parametrize("size", [5, 3 << 20])
def test_copies_round_trip(device, side, size):
    source = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    for other in mojo_runtime.devices():
        for stream in (mojo_runtime.default_stream(device), side):
            there = mojo_runtime.array(source, target=other)
            here = mojo_runtime.empty(size, "uint8", device)
            here.copy_from(there, stream=stream)
            back = mojo_runtime.empty(size, "uint8", device, pinned=True)
            back.copy_from(here, stream=stream)
            stream.synchronize()
            assert np.array_equal(back.numpy(), source)


def test_upload_from_pageable_memory_takes_the_values_at_the_call(stand_ins, device, side):
    slot, source = stand_ins.unfilled(), np.arange(1000, dtype=np.float32)
    out = mojo_runtime.array(np.zeros(1000, np.float32), target=device)
    expected = source.copy()
    mojo_runtime.launch(slot, [out, out], [0], side)
    memory.copy(out.address, source.ctypes.data, out.nbytes, destination_device=device, stream=side, blocking=False)
    source[:] = -1
    stand_ins.fill(slot, "add_one")
    side.synchronize()
    assert np.array_equal(out.numpy(), expected)


def test_upload_from_pinned_memory_reads_it_when_the_stream_gets_there(stand_ins, device, side):
    slot = stand_ins.unfilled()
    source = mojo_runtime.array(np.zeros(1000, np.float32), target=device, pinned=True)
    out = mojo_runtime.array(np.zeros(1000, np.float32), target=device)
    values = source.numpy()
    mojo_runtime.launch(slot, [out, out], [0], side)
    out.copy_from(source, stream=side)
    values[:] = 5
    stand_ins.fill(slot, "add_one")
    side.synchronize()
    assert out.numpy().tolist() == [5] * 1000


def test_pinned_memory_may_be_freed_while_a_copy_uses_it(stand_ins, device, side):
    slot = stand_ins.unfilled()
    source = mojo_runtime.array(np.full(1000, 3, np.float32), target=device, pinned=True)
    out = mojo_runtime.array(np.zeros(1000, np.float32), target=device)
    mojo_runtime.launch(slot, [out, out], [0], side)
    out.copy_from(source, stream=side)
    address = source.address
    del source
    other = mojo_runtime.array(np.full(1000, 9, np.float32), target=device, pinned=True)
    assert other.address != address
    stand_ins.fill(slot, "add_one")
    side.synchronize()
    assert out.numpy().tolist() == [3] * 1000


def test_download_to_pageable_memory_blocks(stand_ins, device, side):
    out = mojo_runtime.array(np.zeros(10, np.float32), target=device)
    mojo_runtime.launch(stand_ins.ready("add_one"), [out, out], [20], side)
    host = np.zeros(10, np.float32)
    memory.copy(host.ctypes.data, out.address, out.nbytes, source_device=device, stream=side, blocking=False)
    assert host.tolist() == [1] * 10


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "complex64"])
def test_numpy_sees_the_same_memory(device, dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    array = mojo_runtime.array(values, target=device)
    view = np.asarray(array)
    assert np.array_equal(view, values)
    assert view.dtype == values.dtype
    view[0, 0] = 1
    assert array.numpy()[0, 0] == 1
    column = array.strided((2,), (3,), 1)
    assert np.array_equal(np.asarray(column), values[:, 1])
    del array, column
    gc.collect()
    assert view[1, 2] == values[1, 2]  # the view keeps the memory


def test_dlpack_exports_without_a_copy(device):
    array = mojo_runtime.array(np.arange(6, dtype=np.float32).reshape(2, 3), target=device)
    imported = np.from_dlpack(array)
    assert imported.ctypes.data == array.address
    assert np.array_equal(imported, array.numpy())
    before = mojo_runtime.memory_statistics(device).allocations_current
    del array
    gc.collect()
    assert mojo_runtime.memory_statistics(device).allocations_current == before
    del imported
    gc.collect()
    assert mojo_runtime.memory_statistics(device).allocations_current == before - 1


def test_dlpack_capsule_that_nobody_uses_releases_its_memory(device):
    array = mojo_runtime.array(np.zeros(3), target=device)
    before = mojo_runtime.memory_statistics(device).allocations_current
    capsule = array.__dlpack__()
    del array
    assert mojo_runtime.memory_statistics(device).allocations_current == before
    del capsule
    gc.collect()
    assert mojo_runtime.memory_statistics(device).allocations_current == before - 1


def test_dlpack_imports_without_a_copy(stand_ins, device):
    values = np.arange(4, dtype=np.float32)
    array = mojo_runtime.from_dlpack(values, device)
    assert array.address == values.ctypes.data
    mojo_runtime.launch(stand_ins.ready("add_one"), [array, array], [0])
    device.synchronize()
    assert values.tolist() == [1, 2, 3, 4]


def test_arguments_that_make_no_array(device):
    with pytest.raises(TypeError, match="no element type"):
        mojo_runtime.empty(3, "float33", device)
    array = mojo_runtime.empty((2, 3), "bfloat16", device)
    with pytest.raises(TypeError, match="bfloat16"):
        array.numpy()
    with pytest.raises(ValueError, match="cannot reshape"):
        array.reshape(4, 2)
    with pytest.raises(ValueError, match="reach out"):
        array.strided((3, 3), (3, 1))
    assert array.reshape(3, -1).shape == (3, 2)
