"""The Philox generator: CUDA's numbers, state and offsets."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import mojo_runtime
from mojo_runtime import PhiloxGenerator


@pytest.fixture
def generator():
    return PhiloxGenerator(mojo_runtime.devices()[-1], seed=0)


def test_numbers_are_those_of_cuda(generator):
    uniform = generator.uniform(mojo_runtime.empty(4, target=generator.device)).numpy()
    assert uniform == pytest.approx([0.3990, 0.5167, 0.0249, 0.9401], abs=5e-5)


def test_state_is_seed_and_offset(generator):
    out = mojo_runtime.empty(3000, target=generator.device)
    state = generator.state
    assert state == struct.pack("<QQ", 0, 0)
    first = generator.normal(out, 1, 2).numpy().copy()
    assert generator.state == struct.pack("<QQ", 0, 4)
    second = generator.normal(out, 1, 2).numpy().copy()
    assert not np.array_equal(first, second)
    generator.state = state
    assert np.array_equal(generator.normal(out, 1, 2).numpy(), first)
    assert abs(first.mean() - 1) < 0.15
    assert abs(first.std() - 2) < 0.15


def test_offsets_follow_the_grid(generator):
    threads = 256 * generator.max_blocks
    assert generator.reserve(threads * 4, 4)[1] == 0
    assert generator.reserve(threads * 4 + 1, 4)[1] == 4
    assert generator.reserve(1, 4)[1] == 12
    assert generator.advance(1) == (0, 16)
    assert generator.advance(0) == (0, 20)


def test_seeds_of_64_bits(generator):
    generator.manual_seed(-1)
    assert generator.initial_seed == 2**64 - 1
    assert generator.reserve(1, 4)[0] == -1
    assert generator.seed() == generator.initial_seed


@pytest.mark.parametrize("state", [b"", bytes(15), struct.pack("<QQ", 0, 3)])
def test_states_that_are_refused(generator, state):
    with pytest.raises(ValueError, match="Philox"):
        generator.state = state


def test_arrays_that_are_refused(generator):
    column = mojo_runtime.empty((4, 4), target=generator.device).strided((4,), (4,))
    with pytest.raises(ValueError, match="contiguous"):
        generator.uniform(column)
    generator.uniform(mojo_runtime.empty(0, target=generator.device))
    assert generator.state == bytes(16)
