"""The arena: growth, children of both kinds, and memory that dies with its last process."""

from __future__ import annotations

import gc
import os
import pickle
import resource
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from regions import HANG, join, start

from fastrl.shm import Arena, Layout


def shmem_bytes() -> int:
    """The machine's shared memory in use."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Shmem line")


def test_segments_are_zero_aligned_and_cached() -> None:
    arena = Arena.create()
    first, second = arena.extend(100), arena.extend(10_000)
    assert first.nbytes == 100
    assert first.offset % 4096 == second.offset % 4096 == 0
    a, b = arena.map(first), arena.map(second)
    assert (a.shape, b.shape) == ((100,), (10_000,))
    assert not a.any()
    assert not b.any()
    a[:] = 1
    assert not b.any()
    assert arena.map(first) is a


def serve(arena: Arena, connection: Connection) -> None:
    """Maps each segment it is sent and writes its last byte."""
    while (segment := connection.recv()) is not None:
        arena.map(segment)[-1] += 1
        connection.send(os.get_inheritable(arena._fd))


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_grows_after_its_children_have_started(method: str) -> None:
    arena = Arena.create()
    ours, theirs = Pipe()
    child = start(serve, arena, theirs, method=method)
    for nbytes in [1, 4096, 1_000_000]:
        segment = arena.extend(nbytes)
        for times in range(1, 3):
            ours.send(segment)
            assert ours.poll(HANG)
            assert ours.recv() is False  # its children do not inherit the file
            assert arena.map(segment)[-1] == times
    ours.send(None)
    join(child)


def extend_in_child(arena: Arena) -> None:
    with pytest.raises(RuntimeError, match="created"):
        arena.extend(1)


def test_only_its_creator_extends_it() -> None:
    join(start(extend_in_child, Arena.create()))


def test_travels_only_to_a_process_being_started() -> None:
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(Arena.create())


def hold_for_ever(arena: Arena, connection: Connection) -> None:
    segment = connection.recv()
    arena.map(segment)[:] = 1
    connection.send(True)
    connection.recv()


def test_the_kernel_frees_it_when_the_last_process_dies() -> None:
    names = set(os.listdir("/dev/shm"))
    nbytes = 128 * 2**20
    arena = Arena.create()
    ours, theirs = Pipe()
    child = start(hold_for_ever, arena, theirs)
    segment = arena.extend(nbytes)
    ours.send(segment)
    assert ours.poll(HANG)
    in_use = shmem_bytes()
    arena.close()
    gc.collect()
    child.kill()
    child.join(HANG)
    # Others on this machine may use a little meanwhile, not as much as half of ours.
    assert in_use - shmem_bytes() > nbytes / 2
    assert set(os.listdir("/dev/shm")) <= names


def test_new_memory_is_taken_at_once() -> None:
    nbytes = 64 * 2**20
    arena = Arena.create()
    before = shmem_bytes()
    arena.extend(nbytes)
    assert shmem_bytes() - before > nbytes / 2
    assert os.fstat(arena._fd).st_blocks * 512 >= nbytes


def extend_beyond_the_limit() -> None:
    arena = Arena.create()
    segment = arena.extend(5000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    with pytest.raises(MemoryError, match=r"refuses 2,000,000 bytes"):
        arena.extend(2_000_000)
    assert arena.extend(5000).offset == segment.offset + 8192  # as if it had not been asked


def test_a_refusal_by_the_kernel_is_a_memory_error() -> None:
    join(start(extend_beyond_the_limit))


def test_wrong_arguments_are_refused() -> None:
    arena = Arena.create()
    with pytest.raises(ValueError, match="at least 1 byte"):
        arena.extend(0)
    other = Arena.create()
    with pytest.raises(ValueError, match="not in this arena"):
        arena.map(other.extend(1))
    arena.close()
    arena.close()
    with pytest.raises(ValueError, match="closed"):
        arena.extend(1)


def test_arrays_outlive_the_arena() -> None:
    arena = Arena.create()
    array = arena.map(arena.extend(100))
    arena.close()
    del arena
    gc.collect()
    array[:] = 3
    assert array.sum() == 300


def test_layout_places_arrays_side_by_side() -> None:
    layout = Layout()
    layout.add("obs", (2, 3, 5), np.uint8)
    layout.add("reward", 7, np.float32)
    layout.add("empty", (0, 4), np.float64)
    layout.add("page", [1], np.int64, align=4096)
    layout = pickle.loads(pickle.dumps(layout))
    arena = Arena.create()
    buffer = arena.map(arena.extend(layout.nbytes))
    views = layout.views(buffer)
    assert {name: (v.shape, v.dtype.name) for name, v in views.items()} == {
        "obs": ((2, 3, 5), "uint8"),
        "reward": ((7,), "float32"),
        "empty": ((0, 4), "float64"),
        "page": ((1,), "int64"),
    }
    assert all(v.ctypes.data % 64 == 0 for v in views.values())
    assert views["page"].ctypes.data % 4096 == 0
    for value, view in enumerate(views.values(), 1):
        view[...] = value
    assert [np.unique(v).tolist() for v in views.values()] == [[1], [2], [], [4]]
    assert all(np.shares_memory(v, buffer) for v in views.values() if v.size)


def test_layout_refuses_what_it_cannot_place() -> None:
    layout = Layout()
    layout.add("obs", 4, np.uint8)
    with pytest.raises(ValueError, match="'obs'"):
        layout.add("obs", 5, np.uint8)
    with pytest.raises(ValueError, match="power of two"):
        layout.add("odd", 1, np.uint8, align=3)
    with pytest.raises(ValueError, match="Python objects"):
        layout.add("any", 1, object)
    with pytest.raises(ValueError, match="negative"):
        layout.add("negative", (2, -1), np.uint8)
    memory = np.zeros(256, np.uint8)
    begin = -memory.ctypes.data % 64
    with pytest.raises(ValueError, match="needs 64 bytes"):
        layout.views(memory[begin : begin + 63])
    with pytest.raises(ValueError, match="multiple of 64"):
        layout.views(memory[begin + 1 : begin + 129])
    with pytest.raises(ValueError, match="uint8"):
        layout.views(np.zeros(64, np.float32))  # type: ignore[arg-type]
