"""One memory file that all processes of a run share, and a plan of what lies where in it.

    main: Arena.create() ──▶ children get the Arena at their start
    main: extend(nbytes) ──▶ Segment ──(any message)──▶ children: map(segment) ──▶ uint8 array
    Layout.views(array)  ──▶ the named numpy arrays, the same in every process

The file is anonymous (`memfd_create`): it has no name to leak, the size of /dev/shm does not bound
it, and the kernel frees it when the last process that holds it ends, however it ends. It can grow
after the children have started. New memory is zero.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import context, reduction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True)
class Segment:
    """A range of an arena's file: `nbytes` bytes from `offset`, which is page-aligned."""

    offset: int
    nbytes: int


class Arena:
    """A growing memory file. Travels to a child process as an argument of its Process."""

    def __init__(self, fd: int, creator: int | None) -> None:
        self._fd = fd
        self._creator = creator  # the process that may extend it; a forked child may not
        self._mapped: dict[Segment, NDArray[np.uint8]] = {}

    @classmethod
    def create(cls) -> Arena:
        """An empty arena, which this process alone may extend."""
        return cls(os.memfd_create("fastrl-arena", os.MFD_CLOEXEC), os.getpid())

    def extend(self, nbytes: int) -> Segment:
        """Adds `nbytes` zero bytes, mapped and backed by memory on return.

        Raises MemoryError if the kernel refuses, and the arena is as it was.
        """
        if self._creator != os.getpid():
            raise RuntimeError(
                "Only the process that created an arena can extend it; "
                "have it send you the segment, and map that."
            )
        if nbytes < 1:
            raise ValueError(f"A segment has at least 1 byte, but {nbytes} were asked for.")
        offset = os.fstat(self._open_fd()).st_size
        grown = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        segment = Segment(offset, nbytes)
        try:
            os.ftruncate(self._fd, offset + grown)
            # Takes the memory now. Populating alone would not tell us that there is not enough.
            os.posix_fallocate(self._fd, offset, grown)
            self._mapped[segment] = self._map(segment, mmap.MAP_POPULATE)
        except (OSError, OverflowError) as error:
            os.ftruncate(self._fd, offset)
            raise MemoryError(
                f"The kernel refuses {nbytes:,} bytes of shared memory ({error}); "
                "ask for less or allow this machine or container more."
            ) from error
        return segment

    def map(self, segment: Segment) -> NDArray[np.uint8]:
        """The segment's bytes, shared by all who map it; uint8 [segment.nbytes], page-aligned.

        The same array each time. Other processes than the creator take their page faults when they
        first touch a page. The array keeps the memory alive, also after close().
        """
        if segment not in self._mapped:
            size = os.fstat(self._open_fd()).st_size
            if segment.offset + segment.nbytes > size:
                raise ValueError(
                    f"{segment} is not in this arena, which has {size} bytes; "
                    "pass a segment that its own extend() returned."
                )
            self._mapped[segment] = self._map(segment, 0)
        return self._mapped[segment]

    def close(self) -> None:
        """Gives up the file; arrays already mapped stay valid. May be called twice."""
        self._mapped.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _map(self, segment: Segment, flags: int) -> NDArray[np.uint8]:
        mapping = mmap.mmap(
            self._fd, segment.nbytes, flags=mmap.MAP_SHARED | flags, offset=segment.offset
        )
        return np.frombuffer(mapping, np.uint8)

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise ValueError("This arena is closed.")
        return self._fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _arena_from_handle, (duplicate_for_child(self, self._open_fd()),)


def duplicate_for_child(owner: object, fd: int) -> Any:
    """A handle by which the process being started gets `fd`; RuntimeError if none is."""
    context.assert_spawning(owner)
    return reduction.DupFd(fd)


def fd_from_handle(handle: Any) -> int:
    """The file descriptor, now this process's own and not its children's."""
    fd: int = handle.detach()
    os.set_inheritable(fd, False)
    return fd


def _arena_from_handle(handle: Any) -> Arena:
    return Arena(fd_from_handle(handle), None)


class Layout:
    """Where named arrays lie in a buffer. Built once and sent to all who need the arrays."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]] = {}
        self._end = 0

    def add(self, name: str, shape: int | Sequence[int], dtype: DTypeLike, align: int = 64) -> None:
        """Appends an array that starts at a multiple of `align` bytes of a page-aligned buffer.

        Raises ValueError for a name that is taken, a dtype that holds Python objects, or an
        alignment that is not a power of two up to the size of a page.
        """
        if name in self._places:
            raise ValueError(f"The layout already has an array named {name!r}; choose another.")
        kind = np.dtype(dtype)
        if kind.hasobject:
            raise ValueError(f"{name!r} has dtype {kind}: Python objects cannot be shared.")
        if align < 1 or align & (align - 1) or align > mmap.PAGESIZE:
            raise ValueError(
                f"{name!r} asks for an alignment of {align}, which must be a power of two "
                f"from 1 to {mmap.PAGESIZE}."
            )
        dims = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        if any(n < 0 for n in dims):
            raise ValueError(f"{name!r} has shape {dims}; no dimension may be negative.")
        start = -(-self._end // align) * align
        count = 1
        for n in dims:
            count *= n
        self._places[name] = (start, dims, kind)
        self._end = start + count * kind.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes a buffer for all of it needs, a multiple of 64."""
        return -(-self._end // 64) * 64

    def views(self, buffer: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The arrays by name, in the order they were added; they share the buffer's memory.

        `buffer` is uint8 [>= nbytes], C-contiguous and 64-byte aligned; else ValueError.
        """
        if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous:
            raise ValueError(
                "A layout's buffer must be a C-contiguous, one-dimensional array of uint8, "
                f"but has dtype {buffer.dtype} and shape {buffer.shape}."
            )
        if buffer.nbytes < self.nbytes:
            raise ValueError(
                f"The layout needs {self.nbytes} bytes, but the buffer has {buffer.nbytes}."
            )
        if buffer.ctypes.data % 64:
            raise ValueError(
                "A layout's buffer must start at a multiple of 64 bytes, but starts "
                f"{buffer.ctypes.data % 64} bytes after one; pass what Arena.map returns."
            )
        views = {}
        for name, (start, shape, dtype) in self._places.items():
            view: NDArray[Any] = np.ndarray(shape, dtype, buffer=buffer, offset=start)
            views[name] = view
        return views
