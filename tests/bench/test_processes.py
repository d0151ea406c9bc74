"""Who takes what of the machine, from a made-up /proc and from this one."""

from __future__ import annotations

import mmap
import os
import time

import pytest

from fastrl.bench.processes import Sample, Use, between, private_bytes, sample

TICKS = os.sysconf("SC_CLK_TCK")


def put(proc, pid, name, parent, seconds, switches=(0,)):
    """A process as the kernel shows it; one thread per entry of `switches`."""
    folder = proc / str(pid)
    half = int(seconds * TICKS / 2)
    before = f"{pid} ({name}) S {parent} " + "0 " * 9
    for thread, count in enumerate(switches):
        status = folder / "task" / str(pid + thread) / "status"
        status.parent.mkdir(parents=True)
        status.write_text(f"voluntary_ctxt_switches:\t{count}\nnonvoluntary_ctxt_switches:\t1\n")
    (folder / "stat").write_text(before + f"{half} {half} 77 77 20 0\n")


def test_roles_are_told_by_name_and_handed_down(tmp_path):
    put(tmp_path, 90, "python3", 1, 2.0)
    put(tmp_path, 30, "forkserver) S (1", 90, 1.0)  # a name may be anything
    put(tmp_path, 20, "fastrl-rollout", 30, 4.0, switches=(5, 7))
    put(tmp_path, 10, "simulator", 20, 8.0)
    put(tmp_path, 40, "fastrl-infer", 90, 16.0)
    put(tmp_path, 50, "fastrl-learn", 90, 32.0)
    put(tmp_path, 60, "fastrl-learn", 1, 64.0)  # of another run
    (tmp_path / "self").mkdir()
    found = sample(90, tmp_path).processes
    assert {pid: use.role for pid, use in found.items()} == {
        90: "main",
        30: "main",
        20: "rollout",
        10: "rollout",
        40: "inference",
        50: "learner",
    }
    assert found[20] == Use("rollout", 4.0, 5 + 7 + 2)


def test_what_a_role_took_is_a_difference_per_second():
    first = Sample(100.0, {1: Use("main", 5.0, 10), 2: Use("rollout", 50.0, 100)})
    last = Sample(
        104.0,
        {
            1: Use("main", 5.5, 30),
            2: Use("rollout", 53.0, 100),
            3: Use("rollout", 1.0, 8),  # replaced one that has ended
        },
    )
    used = between(first, last)
    assert set(used) == {"rollout", "inference", "learner", "main"}
    assert used["main"].cores == pytest.approx(0.125)
    assert used["main"].switches_per_second == pytest.approx(5.0)
    assert used["rollout"].cores == pytest.approx(1.0)
    assert used["rollout"].switches_per_second == pytest.approx(2.0)
    assert used["learner"].cores == 0.0


def test_this_process_is_main_and_its_time_is_counted():
    first = sample(os.getpid())
    began = time.process_time()
    while time.process_time() - began < 0.2:
        pass
    spent = time.process_time() - began
    last = sample(os.getpid())
    seconds = between(first, last)["main"].cores * (last.at - first.at)
    assert seconds >= spent - 2 / TICKS


def test_pages_that_one_process_alone_has_are_counted_but_for_the_arena():
    size = 64 << 20
    private_bytes(os.getpid())  # what looking takes by itself
    before = private_bytes(os.getpid(), without="memfd:here")
    own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own.write(b"x" * size)
    memfd = os.memfd_create("here")
    os.truncate(memfd, size)
    shared = mmap.mmap(memfd, size)
    shared.write(b"x" * size)
    after = private_bytes(os.getpid(), without="memfd:here")
    everything = private_bytes(os.getpid())
    assert size <= after - before < 1.5 * size
    # Nobody else has touched the shared one; reading takes a page or two as well.
    assert size <= everything - after < 1.5 * size
    own.close()
    shared.close()
    os.close(memfd)
