"""Cores, memory and number formats, read from trees of files as kernels lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastrl.workers.machine import available_cores, available_memory, has_bf16

GIB = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write a machine with 16 GiB of available memory and these files below `root`."""
    meminfo = f"MemTotal: {32 * GIB // 1024} kB\nMemAvailable: {16 * GIB // 1024} kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def v2(folder: str, limit: object, used: int, inactive_file: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/{folder}".rstrip("/")
    return {
        f"{folder}/memory.max": str(limit),
        f"{folder}/memory.current": str(used),
        f"{folder}/memory.stat": f"anon 1\nfile {used}\ninactive_file {inactive_file}",
    }


def v1(folder: str, limit: int, used: int, inactive_file: int = 0) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory/{folder}".rstrip("/")
    return {
        f"{folder}/memory.limit_in_bytes": str(limit),
        f"{folder}/memory.usage_in_bytes": str(used),
        # The group's own pages, and those of all groups below it.
        f"{folder}/memory.stat": f"inactive_file 7\ntotal_inactive_file {inactive_file}",
    }


def test_without_cgroups_all_available_memory_is_ours(tmp_path):
    assert available_memory(tree(tmp_path, {})) == 16 * GIB


@pytest.mark.parametrize(
    "files, gib",
    [
        (v2("", "max", 30 * GIB), 16),
        (v2("a/b", 8 * GIB, 3 * GIB), 5),
        (v2("a/b", 8 * GIB, 7 * GIB, inactive_file=4 * GIB), 5),
        (v2("a/b", 8 * GIB, 9 * GIB), 0),
        (v2("a/b", "max", 1 * GIB) | v2("a", 4 * GIB, 1 * GIB), 3),
        (v2("a/b", 8 * GIB, 1 * GIB) | v2("a", 9 * GIB, 3 * GIB), 6),
        # A folder without a limit file does not shift the pairs of the others.
        (v2("a", 4 * GIB, 1 * GIB) | {"sys/fs/cgroup/a/b/memory.current": str(3 * GIB)}, 3),
        (v2("c", 1 * GIB, 0), 16),
    ],
)
def test_the_nearest_limit_of_a_v2_group_and_those_above_it_counts(tmp_path, files, gib):
    root = tree(tmp_path, {"proc/self/cgroup": "0::/a/b", **files})
    assert available_memory(root) == gib * GIB


def test_a_container_that_sees_only_its_own_group(tmp_path):
    """The path is the host's; the container's group is mounted as the root."""
    root = tree(tmp_path, {"proc/self/cgroup": "0::/system/box", **v2("", 8 * GIB, 2 * GIB)})
    assert available_memory(root) == 6 * GIB


@pytest.mark.parametrize(
    "files, gib",
    [
        (v1("", 9223372036854771712, 3 * GIB), 16),
        (v1("a/b", 8 * GIB, 3 * GIB), 5),
        (v1("a/b", 8 * GIB, 7 * GIB, inactive_file=4 * GIB), 5),
        (v1("a/b", 9223372036854771712, 0) | v1("", 6 * GIB, 2 * GIB), 4),
    ],
)
def test_the_limits_of_v1_groups_count(tmp_path, files, gib):
    lines = "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/"
    assert available_memory(tree(tmp_path, {"proc/self/cgroup": lines, **files})) == gib * GIB


@pytest.mark.parametrize(
    "files, cores",
    [
        ({}, 8),
        ({"a/cpu.max": "max 100000"}, 8),
        ({"a/cpu.max": "250000 100000"}, 2),
        ({"a/cpu.max": "50000 100000"}, 1),
        ({"a/cpu.max": "max 100000", "cpu.max": "300000 100000"}, 3),
        ({"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/c/cpu.cfs_quota_us": "400000", "cpu/c/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_cores_are_those_of_the_affinity_mask_and_the_quota(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = tree(tmp_path, {"proc/self/cgroup": "2:cpu,cpuacct:/c\n0::/a", **files})
    assert available_cores(root) == cores


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("flags : fpu avx512f avx512_bf16 sse", True),
        ("flags : fpu amx_bf16 amx_tile", True),
        ("Features : fp asimd bf16 i8mm", True),
        ("flags : fpu avx2 sse", False),
    ],
)
def test_bf16_is_a_flag_of_the_processor(tmp_path, flags, expected):
    cpuinfo = f"processor : 0\n{flags}\n\nprocessor : 1\n"
    assert has_bf16(tree(tmp_path, {"proc/cpuinfo": cpuinfo})) is expected


def test_no_cpuinfo_is_no_bf16(tmp_path):
    assert not has_bf16(tmp_path)


def test_this_machine_has_something():
    assert available_cores() >= 1
    assert available_memory() > 0
