"""`py:` ids: names given to register_env, and functions in files of the current folder."""

import os
import subprocess
import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
from group import Group
from toys import Ledger, Toy

from fastrl.envs import (
    EnvOptions,
    describe,
    make,
    register_all,
    register_env,
    registered,
    registry,
    user_env,
)
from fastrl.envs.registry import Registered
from fastrl.errors import ConfigError, UnsupportedEnvironment

MAZE = """
import gymnasium
import numpy as np

LEVELS = 3

class Maze(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(4)

    @classmethod
    def easy(cls):
        return cls()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(size=2).astype(np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, action == 3, False, {}

def make_maze():
    return Maze()
"""


@pytest.mark.parametrize("path", ["make_maze", "Maze", "Maze.easy"])
def test_a_file_of_the_current_folder_is_found(folder, path):
    (folder / "maze.py").write_text(MAZE)
    env_id = f"py:maze:{path}"
    assert describe(env_id, EnvOptions()).observation["obs"].shape == (2,)
    rows = Group(env_id, EnvOptions(max_episode_steps=9)).play(30)
    assert rows.terminated.any()
    assert sys.path[-1] == str(folder)


def test_a_package_of_the_current_folder_is_found(folder):
    (folder / "games").mkdir()
    (folder / "games" / "maze.py").write_text(MAZE)
    assert describe("py:games.maze:Maze", EnvOptions()).action["action"].n == 4


def test_a_process_with_a_safe_path_finds_it_and_no_standard_module_is_shadowed(folder):
    (folder / "maze.py").write_text("import colorsys\nassert colorsys.rgb_to_hsv\n" + MAZE)
    (folder / "colorsys.py").write_text("raise SystemExit('shadowed')")
    program = """
import sys
from fastrl.envs import EnvOptions, describe
describe("py:maze:Maze", EnvOptions())
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("py:mazes:Maze", "There is no module mazes (of 'py:mazes:Maze') among those installed or"),
        ("py:mazes:Maze", "did you mean maze?"),
        ("py:qqqqqqq:Maze", "install it, or run from the folder that holds it."),
        ("py:maze.deep:Maze", "There is no module maze.deep"),
        ("py:maze:Mace", "There is no 'Mace' in maze ("),
        ("py:maze:Mace", "did you mean Maze"),
        ("py:maze:qqqqqqq", "; it has Maze, make_maze."),
        ("py:maze:Maze.hard", "There is no 'Maze.hard' in maze"),
        ("py:maze:LEVELS.x", "There is no 'LEVELS.x' in maze"),
        ("py:maze:LEVELS", "is a int; it must be a function that takes nothing"),
        ("py:maze:", "is not py:module:function"),
        ("py:maze:a:b", "is not py:module:function"),
        ("py::Maze", "is not py:module:function"),
        ("py:maze.py:Maze", "There is no module maze.py"),
        ("py:a/maze.py:Maze", "is not a module's name: write it as in an import statement"),
        ("py:broken:make", "The module broken (of 'py:broken:make') raised an error as it was imp"),
        ("py:broken:make", "ZeroDivisionError: division by zero ("),
        ("py:broken:make", "broken.py, line 3)."),
        ("py:wrong:make", "raised an error as it was imported: SyntaxError: "),
        ("py:wrong:make", "(wrong.py, line 2)"),
        ("py:needs:make", "imported: ModuleNotFoundError: No module named 'nowhere_to_be_found' ("),
        ("py:script:make", "imported: SystemExit: 3 ("),
        ("py:maze:np.zeros", "could not be constructed: TypeError: "),
        ("py:results:tall", "it returned a dict, and not a gymnasium.Env; derive"),
        ("py:results:needy", "could not be constructed: TypeError: needy() missing 1 required"),
        ("py:results:fails", "could not be constructed: KeyError: 'level' ("),
        ("py:results:fails", "results.py, line 8)."),
    ],
)
def test_what_cannot_be_used_is_told(folder, env_id, words):
    (folder / "maze.py").write_text(MAZE)
    (folder / "broken.py").write_text("\n\n1 / 0")
    (folder / "wrong.py").write_text("\ndef make(:\n")
    (folder / "needs.py").write_text("import nowhere_to_be_found\n")
    (folder / "script.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "results.py").write_text(
        "def tall():\n    return {}\n\n"
        "def needy(size):\n    pass\n\n"
        "def fails():\n    return {}['level']\n"
    )
    for call in (describe, lambda *args: make(*args, 2, 0, 0)):
        with pytest.raises(ConfigError) as caught:
            call(env_id, EnvOptions())
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_named_like_an_installed_module_is_refused_not_passed_over(folder):
    """Either could be meant."""
    (folder / "colorsys.py").write_text(MAZE)
    with pytest.raises(ConfigError) as caught:
        describe("py:colorsys:Maze", EnvOptions())
    text = str(caught.value)
    assert (
        f"could mean {folder / 'colorsys.py'} or the module colorsys that is found before" in text
    )
    assert "rename your own" in text
    # A folder of that name without __init__.py is no module beside an installed one.
    (folder / "json").mkdir()
    with pytest.raises(ConfigError, match="There is no 'Maze' in json "):
        describe("py:json:Maze", EnvOptions())


def test_names_of_ones_own(no_names):
    register_env("ledger-2.x_y", Ledger)
    rows = Group("py:ledger-2.x_y").play(20)
    assert rows.done.any()
    register_env("ledger-2.x_y", Toy)  # a cell of a notebook, run again
    assert not Group("py:ledger-2.x_y").play(20).done.any()


@pytest.mark.parametrize("name", ["", "two words", "a:b", "a/b", "é"])
def test_a_name_is_a_word(no_names, name):
    with pytest.raises(ConfigError, match="must be a word of letters"):
        register_env(name, Toy)


def test_a_factory_can_be_called(no_names):
    with pytest.raises(ConfigError, match=r"factory of py:toy is a Ledger; it must be a function"):
        register_env("toy", Ledger())


def test_an_unregistered_name_is_told_what_is_registered(no_names):
    with pytest.raises(ConfigError) as caught:
        describe("py:lander", EnvOptions())
    assert "There is no environment 'py:lander': here register_env was given nothing." in str(
        caught.value
    )
    assert "py:module:function, a function in a file of the current folder, works every" in str(
        caught.value
    )
    register_env("landers", Toy)
    register_env("rover", Toy)
    with pytest.raises(ConfigError, match=r"here register_env was given landers\. A name given"):
        describe("py:lander", EnvOptions())
    with pytest.raises(ConfigError, match=r"here register_env was given landers and rover\."):
        describe("py:zzz", EnvOptions())
    with pytest.raises(ConfigError, match=r"did you mean py:rover\?"):
        describe("rover", EnvOptions())


def test_what_is_registered_travels(no_names, monkeypatch):
    class Local(Toy):
        def step(self, action):
            return self.look(), 3.0, False, False, {}

    register_env("local", Local)
    sent = cloudpickle.dumps(registered("py:local"))
    assert registered("py:other") == registered("gym:local") == Registered({}, {})
    monkeypatch.setattr(user_env, "_factories", {})
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    monkeypatch.setattr(registry, "_registered", {})
    register_all(cloudpickle.loads(sent))
    assert (Group("py:local").play(3).reward == 3).all()


def test_a_factory_defined_in_a_script_travels_to_another_process(folder):
    (folder / "script.py").write_text(
        "import cloudpickle, fastrl.envs\n"
        + MAZE
        + "fastrl.envs.register_env('maze', lambda: Maze())\n"
        "open('sent', 'wb').write(cloudpickle.dumps(fastrl.envs.registered('py:maze')))\n"
    )
    receive = """
import pickle
from fastrl.envs import EnvOptions, describe, register_all
register_all(pickle.load(open("sent", "rb")))
print(describe("py:maze", EnvOptions()).action["action"].n)
"""
    for program in (["script.py"], ["-P", "-c", receive]):
        done = subprocess.run(
            [sys.executable, *program], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "4\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noop_max": 1}, "does not use --noop-max, which was set to 1"),
        ({"vector_entry_point": True}, "does not use --vector-entry-point, which was set to True"),
    ],
)
def test_other_options_are_refused_by_name(no_names, options, words):
    register_env("toy", Toy)
    with pytest.raises(ConfigError) as caught:
        describe("py:toy", EnvOptions(**options))
    assert f"py:toy {words}" in str(caught.value)
    assert "--log-info, --max-episode-steps, --wrap)." in str(caught.value)


def test_the_threshold_is_the_environments_own(no_names):
    register_env("cart", lambda: gymnasium.make("CartPole-v1"))
    assert describe("py:cart", EnvOptions()).reward_threshold == 475
    register_env("toy", Toy)
    assert describe("py:toy", EnvOptions()).reward_threshold is None


def test_the_environment_that_was_described_is_closed(no_names):
    open_now = []

    class Opened(Toy):
        def __init__(self):
            open_now.append(self)

        def close(self):
            open_now.remove(self)

    register_env("toy", Opened)
    describe("py:toy", EnvOptions())
    assert open_now == []


def test_an_environment_of_another_library_is_refused_by_its_type(no_names):
    register_env("toy", lambda: np.zeros(3))
    with pytest.raises(UnsupportedEnvironment, match=r"it returned a numpy\.ndarray, and not"):
        describe("py:toy", EnvOptions())


def test_an_id_that_the_script_registers_with_gymnasium_travels(monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.registry["Own-v0"] = gymnasium.envs.registration.EnvSpec("Own-v0", entry_point=Toy)
    sent = cloudpickle.dumps(registered("gym:Own-v0"))
    del gymnasium.registry["Own-v0"]
    register_all(cloudpickle.loads(sent))
    assert gymnasium.registry.pop("Own-v0").id == "Own-v0"
