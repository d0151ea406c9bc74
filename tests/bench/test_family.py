"""The processes of one command, found from outside, and what they leave in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

from fastrl.bench.family import (
    VARIABLE,
    family,
    kill_family,
    left_in_shared_memory,
    members,
    shared_files,
    wait_until_alone,
)


def put(proc, pid, name, parent, command, state="S", started=0):
    """A process as the kernel shows it."""
    folder = proc / str(pid)
    folder.mkdir()
    after = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} {after} {started} 0\n")
    (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())


def test_roles_are_known_from_the_first_moment(tmp_path):
    spawned = "python -c from multiprocessing.spawn import spawn_main --multiprocessing-fork"
    put(tmp_path, 10, "fastrl-train", 1, "fastrl-train --env x")
    put(tmp_path, 11, "python3", 10, "python -c from multiprocessing.resource_tracker import main")
    put(tmp_path, 14, "python3", 10, spawned, started=5)
    put(tmp_path, 13, "python3", 10, spawned, started=6)
    put(tmp_path, 15, "python3", 10, "python -c from multiprocessing.forkserver import main")
    put(tmp_path, 16, "python3", 15, "python -c from multiprocessing.forkserver import main")
    put(tmp_path, 17, "fastrl-rollout", 15, "python -c forkserver", state="Z")
    put(tmp_path, 18, "fastrl-learn", 1, spawned)  # of another run
    expected = {
        **{"main": [10], "learner": [14], "inference": [13]},
        **{"forkserver": [15], "rollout": [16]},
    }
    assert members(10, tmp_path) == expected
    # After the learner's death the one without a name is inference, though it stands first.
    (tmp_path / "14" / "stat").write_text("14 (x) Z 10 " + "0 " * 18)
    (tmp_path / "13" / "stat").write_text("13 (fastrl-infer) S 10 " + "0 " * 18)
    assert members(10, tmp_path) | {"learner": [], "inference": [13]} == members(10, tmp_path)


def test_a_family_is_found_after_its_parent_has_gone():
    mark = uuid.uuid4().hex
    child = (
        "import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL).pid, flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", child],
        env={**os.environ, VARIABLE: mark},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert set(wait_until_alone(mark, 0.1)) == {int(done.stdout)}
    kill_family(mark)
    assert wait_until_alone(mark, 10.0) == {}
    assert family("another") == {}


def test_what_is_left_in_shared_memory_is_what_nobody_uses(tmp_path):
    (tmp_path / "old").write_bytes(b"x" * 5000)
    before = shared_files(tmp_path)
    assert left_in_shared_memory(before, tmp_path) == []
    (tmp_path / "new").write_bytes(b"")
    with (tmp_path / "of another program").open("wb") as file:
        file.write(b"x")
        (tmp_path / "old").write_bytes(b"x" * 50_000)
        assert left_in_shared_memory(before, tmp_path) == ["new", "old"]
