"""What the tests of fastrl.shm share: an arena whose layout children can map, and their start."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from fastrl.shm import DOORBELL_BYTES, Arena, Layout, Segment, ring_bytes

HANG = 60.0  # seconds; a wait that long means that the test hangs


class Shared:
    """A layout in an arena of its own; travels to children."""

    def __init__(self, arena: Arena, layout: Layout, segment: Segment) -> None:
        self.arena = arena
        self.layout = layout
        self.segment = segment

    @classmethod
    def create(cls, **sizes: int) -> Shared:
        layout = Layout()
        for name, nbytes in sizes.items():
            layout.add(name, nbytes, np.uint8)
        arena = Arena.create()
        return cls(arena, layout, arena.extend(layout.nbytes))

    @classmethod
    def rings(cls, capacity: int, *names: str) -> Shared:
        """Rings of that name, one doorbell each, named after it with `_bell`."""
        sizes = {name: ring_bytes(capacity) for name in names}
        return cls.create(**sizes, **{f"{name}_bell": DOORBELL_BYTES for name in names})

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self.layout.views(self.arena.map(self.segment))[name]


def start(body: Callable[..., None], *args: Any, method: str = "forkserver") -> BaseProcess:
    """A daemonic child, so that a failing test leaves nothing behind."""
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["fastrl.shm", "pytest"])
    process = context.Process(target=body, args=args, daemon=True)  # type: ignore[attr-defined]
    process.start()
    return process


def join(process: BaseProcess) -> None:
    process.join(HANG)
    assert process.exitcode == 0


def words_for(n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Room for a pop of n words."""
    return np.zeros(n, np.uint64), np.zeros(n, np.uint32)


def aligned(nbytes: int) -> np.ndarray[Any, Any]:
    """Zeroes at a multiple of 64 bytes, for what one process can show."""
    memory = np.zeros(nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + nbytes]
