"""A process's last words: a small memory file of its own that outlives it.

    main: CrashReport.create() ──▶ child: faulthandler.enable(report.fileno()), report.write(...)
                                                             │ dies
    main: report.read() ◀────────────────────────────────────┘

A pipe could fill and block the dying, a log file would have to be cleaned up; this one vanishes
with the last process that holds it.
"""

from __future__ import annotations

import os
from typing import Any

from fastrl.shm.arena import duplicate_for_child, fd_from_handle


class CrashReport:
    """What one process wrote about its end. Travels to it as an argument of its Process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def create(cls) -> CrashReport:
        """An empty report."""
        return cls(os.memfd_create("fastrl-crash", os.MFD_CLOEXEC))

    def fileno(self) -> int:
        """The file descriptor, also for `faulthandler.enable(file=report)`."""
        if self._fd < 0:
            raise ValueError("This crash report is closed.")
        return self._fd

    def write(self, text: str) -> None:
        """Appends text."""
        rest = text.encode(errors="backslashreplace")
        while rest:
            rest = rest[os.write(self.fileno(), rest) :]

    def read(self) -> str:
        """All that was written, by whichever process; bytes that are not UTF-8 become U+FFFD."""
        size = os.fstat(self.fileno()).st_size
        return os.pread(self._fd, size, 0).decode(errors="replace")

    def clear(self) -> None:
        """Empties it for the process's replacement, once the process has ended."""
        # All who hold it share one position, so the next writer starts at 0 as well.
        os.lseek(self.fileno(), 0, os.SEEK_SET)
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        """Gives up the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return _report_from_handle, (duplicate_for_child(self, self.fileno()),)


def _report_from_handle(handle: Any) -> CrashReport:
    return CrashReport(fd_from_handle(handle))
