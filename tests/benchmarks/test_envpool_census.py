import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from envpool_census import Outcome, by_module, by_sentence, ids_and_modules, main, take

from fastrl.errors import ConfigError


def work(env_id):
    """What an environment may do to its process."""
    print("begins", env_id)
    match env_id:
        case "toy:refused":
            raise ConfigError("toy:refused cannot be used.")
        case "toy:raises":
            raise ValueError("no")
        case "toy:exits":
            raise SystemExit("bye")
        case "toy:crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "toy:leaves":
            os._exit(0)
        case "toy:hangs":
            # Signals that end other processes do not end this one, nor what it has started.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen(["sleep", "600"])
            print("started", child.pid, flush=True)
            time.sleep(600)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 4])
def test_whatever_a_child_does_is_an_outcome(jobs):
    names = ("fine", "refused", "raises", "exits", "crashes", "leaves", "hangs", "good")
    modules = {f"toy:{name}": "module" for name in names}
    before = os.getcwd()
    outcomes = {outcome.env_id: outcome for outcome in take(modules, work, jobs, limit=4.0)}
    assert os.getcwd() == before
    assert outcomes.keys() == modules.keys()
    found = {name: outcomes[f"toy:{name}"][2:4] for name in names}
    assert found["fine"] == found["good"] == ("trained", "")
    assert found["refused"] == ("refused", "toy:refused cannot be used.")
    assert found["raises"] == ("failed", "ValueError: no")
    assert found["exits"] == ("failed", "SystemExit: bye")
    kind, text = found["crashes"]
    assert kind == "failed" and text.startswith(f"its process ended with code {-signal.SIGSEGV}")
    assert found["leaves"][0] == "failed"
    kind, text = found["hangs"]
    assert kind == "failed" and text.startswith("it took more than 4 s; its output ended: begins t")
    pid = int(text.split()[-1])
    # Killed with it; what is left is at most its entry in the table of processes.
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state == "Z"


OUTCOMES = [
    Outcome("envpool:A-v1", "envpool.a", "trained", "", 2.0),
    Outcome("envpool:B-v1", "envpool.a", "refused", "envpool:B-v1 is no use, B-v1 is two.", 0.1),
    Outcome("envpool:C-v1", "envpool.c", "refused", "envpool:C-v1 is no use, C-v1 is two.", 0.1),
    Outcome("envpool:D-v1", "envpool.c", "failed", "it took more than 9 s", 9.0),
]


def test_tables():
    assert by_module(OUTCOMES) == [
        "module     ids  trained  refused  failed  median s",
        "envpool.a    2        1        1       0       2.0",
        "envpool.c    2        0        1       1         -",
        "all          4        1        2       1       2.0",
    ]
    assert by_sentence(OUTCOMES, "refused") == [
        "    2  ID is no use, NAME is two. (as envpool:B-v1)"
    ]
    assert by_sentence(OUTCOMES, "failed") == ["    1  it took more than 9 s (as envpool:D-v1)"]
    assert by_sentence(OUTCOMES[:1], "failed") == []


def test_every_id_is_counted_once():
    import envpool

    modules = ids_and_modules()
    assert len(modules) == len(envpool.list_all_envs())
    assert modules["atari:Pong"] == "envpool.atari"
    assert modules["envpool:Taxi-v3"] == "envpool.toy_text"
    assert list(ids_and_modules(["envpool:Taxi-v[3]"])) == ["envpool:Taxi-v3"]


def test_what_cannot_be_asked_is_refused(capsys):
    assert main(["--only", "nothing:*"]) == 2
    assert "0 ids match --only nothing:*" in capsys.readouterr().err
    assert main(["--jobs", "0"]) == 2


@pytest.mark.slow
def test_a_small_census(tmp_path):
    out = tmp_path / "census.json"
    program = os.path.join(os.path.dirname(__file__), "../../benchmarks/envpool_census.py")
    only = ["--only", "envpool:Go9x9-v1", "envpool:Maze-v0"]
    arguments = [*only, "--steps", "40", "--json", str(out)]
    done = subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert report["counts"] == {"trained": 1, "refused": 1, "failed": 0}
    assert report["versions"]["envpool"] and report["machine"]["cores"] >= 1
    assert "ID cannot be used: it has 2 players" in done.stdout
