"""What this process may use of the machine: its cores, its memory, its number formats.

Read from the kernel's own files, which lie below `root` (another folder in tests)::

    proc/self/cgroup ─▶ sys/fs/cgroup/<path>, and every folder above it (version 2)
                        sys/fs/cgroup/<controller>/<path>, likewise      (version 1)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def available_cores(root: Path = ROOT) -> int:
    """Cores that this process may really use: its affinity mask, and the cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    for folder in _cgroup_folders(root, "cpu"):
        quota = _read(folder / "cpu.max")
        if not quota:
            quota = _read(folder / "cpu.cfs_quota_us") + " " + _read(folder / "cpu.cfs_period_us")
        limit, _, period = quota.partition(" ")
        if limit not in ("", "max", "-1"):
            cores = min(cores, max(1, int(limit) // int(period)))
    return cores


def available_memory(root: Path = ROOT) -> int:
    """Bytes that may still be allocated: MemAvailable, or less where a cgroup's limit is nearer."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    available = next(
        int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")
    )
    for folder in _cgroup_folders(root, "memory"):
        for limit_name, used_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            if limit not in ("", "max") and used:
                # The kernel drops unused file pages before it refuses anyone memory.
                in_use = int(used) - _statistic(folder / "memory.stat", cache_name)
                available = min(available, int(limit) - in_use)
    return max(0, available)


def total_memory(root: Path = ROOT) -> int:
    """Bytes that this process's group may use in all: the machine's, or the nearest limit."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal"))
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read(folder / name)
            if limit not in ("", "max"):
                total = min(total, int(limit))
    return total


def oom_kills(root: Path = ROOT) -> int:
    """Processes of this control group that the kernel has killed for lack of memory; 0 where it
    does not count them."""
    for folder in _cgroup_folders(root, "memory"):  # its own comes first
        return max(
            _statistic(folder / "memory.events.local", "oom_kill"),
            _statistic(folder / "memory.oom_control", "oom_kill"),
        )
    return 0


def has_bf16(root: Path = ROOT) -> bool:
    """Whether the processor has bf16 dot-product or matrix instructions."""
    flags = _read(root / "proc/cpuinfo").split("\n\n", 1)[0]
    return "avx512_bf16" in flags or "amx_bf16" in flags or " bf16" in flags


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups and of every group above them.

    In a container the path may be the host's, and not all of its folders are there.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup"
        if controllers:
            if controller not in controllers.split(","):
                continue
            top = top / controller
        group = top / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _statistic(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _read(path: Path) -> str:
    """Return the file's text, nothing where it is not there or cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
