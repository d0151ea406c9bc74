"""What the rows of `envpool:` and `atari:` ids hold, against envpool's own documented API."""

import dataclasses
import signal
import subprocess
import sys

import numpy as np
import pytest
from group import Group, assert_same
from gymnasium import spaces

from fastrl.envs import EnvOptions, describe, envpool_exchange, make
from fastrl.envs.envpool_exchange import DirectExchange, PublicExchange
from fastrl.envs.envpool_rows import StateLeaf, StateMask
from fastrl.envs.seeding import env_rng, env_seed
from fastrl.envs.spec import ActionSpec, ObservationSpec, sample_actions
from fastrl.errors import ConfigError, UnsupportedEnvironment

PLAIN = EnvOptions()
SHORT = EnvOptions(max_episode_steps=17)
# Under these options 40 steps of 3 environments contain done rows, or as many as are named here.
STEPS = {"envpool:Play2048-v1": 300, "envpool:MultiCVRP-v0": 80}
CASES = {
    "atari:Breakout": EnvOptions(max_episode_steps=20),
    "envpool:CartPole-v1": PLAIN,
    "envpool:Pendulum-v1": SHORT,
    "envpool:Taxi-v3": SHORT,
    "envpool:FrozenLake-v1": PLAIN,
    "envpool:HalfCheetah-v4": SHORT,
    "envpool:LunarLander-v2": SHORT,
    "envpool:ReacherEasy-v1": SHORT,  # float64 in a Dict
    "envpool:MiniGrid-DoorKey-5x5-v0": SHORT,  # image, direction and bytes of text in a Dict
    "envpool:TSP-v1": PLAIN,  # counts from -1, has a mask
    "envpool:Sokoban-v0": SHORT,  # the only jumanji that looks at the limit
    "envpool:Connector-v2": PLAIN,  # ten choices in one action, all masked
    "envpool:MultiCVRP-v0": PLAIN,  # Dicts in a Dict, int16 actions
    "envpool:Minesweeper-v0": PLAIN,  # its mask is over pairs of choices
    "envpool:Play2048-v1": PLAIN,  # its mask is in info
    "envpool:D1Basic-v1": SHORT,  # unbounded actions
}
MASKED = {
    "TSP-v1": (20,),
    "Connector-v2": (5,) * 10,
    "MultiCVRP-v0": (21, 21),
    "Play2048-v1": (4,),
}
cases = pytest.mark.parametrize("env_id", CASES)
# Gymnasium's remarks on bounds, which the adapter mutes.
pytestmark = pytest.mark.filterwarnings("ignore:.*precision lowered by casting")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # VizDoom writes a file into the current one


@pytest.fixture(scope="module")
def played():
    """Rows of every case, played once."""
    rows = {}

    def get(env_id):
        if env_id not in rows:
            steps = STEPS.get(env_id, 40)
            rows[env_id] = Group(env_id, CASES[env_id], num_envs=3).play(steps)
        return rows[env_id]

    return get


def public(env_id, num_envs=3, seed=1, **keywords):
    """The environments of a Group as envpool documents them."""
    import envpool

    family, name = env_id.split(":")
    if family == "atari":
        keywords = {"episodic_life": True, "noop_max": 30} | keywords
    task = name + "-v5" if family == "atari" else name
    seeds = [env_seed(seed, i) for i in range(num_envs)]
    return envpool.make_gymnasium(
        task, num_envs=num_envs, num_threads=1, env_seed=seeds, **keywords
    )


def limit_of(options):
    limit = options.max_episode_steps
    return {} if limit is None else {"max_episode_steps": limit}


def flat(value, space, path=()):
    """Leaves of a batch of observations in stored form, by name, from the space's own rules."""
    if isinstance(space, spaces.Dict):
        leaves = {}
        for key, part in space.spaces.items():
            leaves |= flat(value[key], part, (*path, key))
        return leaves
    if isinstance(space, spaces.Discrete):
        value = value.reshape(len(value)) - space.start
    if value.dtype == np.uint8 and value.ndim == 4 and value.shape[-1] == 3:
        value = np.moveaxis(value, -1, 1)
    if value.dtype == np.float64:
        value = value.astype(np.float32)
    return {"/".join(path) or "obs": value}


def taken(stored, space):
    """Stored actions as envpool takes them."""
    if isinstance(space, spaces.Discrete):
        return stored + space.start
    if np.issubdtype(space.dtype, np.integer):
        return (stored + space.low.ravel()).reshape(-1, *space.shape).astype(space.dtype)
    if (space.high > 1e30).all():
        return stored.astype(space.dtype)
    unit = np.clip(stored.astype(space.dtype), -1, 1)
    middle, half = (space.low + space.high) / 2, (space.high - space.low) / 2
    return np.clip(unit * half + middle, space.low, space.high).astype(space.dtype)


def repeated(limit, repeat):
    """Options for `repeat`, without masks, which do not go together with it."""
    mask = "action_mask" if repeat == 1 else "off"
    return EnvOptions(max_episode_steps=limit, action_repeat=repeat, action_mask=mask)


@cases
def test_rows_are_those_of_the_public_api(env_id, played):
    rows = played(env_id)
    pool = public(env_id, **limit_of(CASES[env_id]))
    obs, info = pool.reset()
    done = np.zeros(3, bool)
    name = env_id.split(":")[1]
    steps = len(rows.reward)
    for t in range(steps + 1):
        leaves = flat(obs, pool.observation_space)
        if name in MASKED:
            mask = leaves.pop("action_mask", info.get("legal_action_mask"))
            mask = np.where(done[:, None], True, mask.reshape(3, -1))
            np.testing.assert_array_equal(rows.masks["action"][t], mask)
        assert leaves.keys() == rows.observations.keys()
        for key, array in leaves.items():
            np.testing.assert_array_equal(rows.observations[key][t], array, err_msg=key)
        if t == steps:
            break
        action = taken(rows.action[t], pool.action_space)
        obs, reward, terminated, truncated, info = pool.step(action)
        np.testing.assert_array_equal(rows.reward[t], np.where(done, 0, reward))
        if env_id.startswith("atari:"):
            # At the limit `trunc` is set even if the game is over.
            truncated &= info["terminated"] == 0
        np.testing.assert_array_equal(rows.done[t], (terminated | truncated) & ~done)
        np.testing.assert_array_equal(rows.truncated[t], truncated & ~done)
        done = rows.done[t]
    assert rows.resets.any()


@cases
def test_both_ways_into_envpool_give_the_same_rows(env_id, played, monkeypatch):
    rows = played(env_id)
    monkeypatch.setattr(DirectExchange, "fits", lambda pool: False)
    group = Group(env_id, CASES[env_id], num_envs=3, fill=33)
    assert isinstance(group.env._exchange, PublicExchange)
    actions = rows.actions["action"]
    assert_same(rows, group.play(len(actions), lambda t, obs: actions[t]))


def test_the_direct_way_is_the_one_that_is_taken():
    assert isinstance(make("envpool:CartPole-v1", PLAIN, 1, 0, 0)._exchange, DirectExchange)
    assert envpool_exchange.path_of("obs:goal:top burner") == ("obs", "goal", "top burner")
    assert envpool_exchange.path_of("obs:arm.x") == ("obs", "arm", "x")


@pytest.mark.parametrize(
    ("env_id", "limit"),
    [("envpool:Sokoban-v0", 17), ("envpool:Connector-v2", None), ("envpool:TSP-v1", None)],
)
@pytest.mark.parametrize("repeat", [1, 3])
def test_stagger_equals_the_same_actions_played_by_hand(env_id, limit, repeat):
    options = repeated(limit, repeat)
    steps = np.array([0, 1, 9, 25])
    group = Group(env_id, options, seed=5)
    returns, lengths = group.reset(steps, [env_rng(3, i) for i in range(4)])
    now = {**group.out.obs, **group.out.action_mask}
    action = group.draw(group.rngs())
    then = group.step(action)
    for i, count in enumerate(steps):
        alone = Group(env_id, options, num_envs=1, first=i, seed=5)
        alone.reset()
        rng = env_rng(3, i)
        plan = None if alone.spec.masks else sample_actions(alone.action_spec, int(count), rng)
        total, length, played, done = 0.0, 0, 0, False
        while played < count or done:
            if done:
                out = alone.step(np.zeros((1, *alone.action_spec.shape)))
            else:
                out = alone.step(alone.draw([rng]) if plan is None else plan[[played]])
                played += 1
                length += 1
                total += float(out.reward[0])
            done = bool(out.terminated[0] | out.truncated[0])
            if done:
                total, length = 0.0, 0
        assert (returns[i], lengths[i]) == (pytest.approx(total, abs=1e-4), length)
        for key, array in {**alone.out.obs, **alone.out.action_mask}.items():
            np.testing.assert_array_equal(now[key][i], array[0])
        out = alone.step({key: value[[i]] for key, value in action.items()})
        for key, array in {**out.obs, **out.action_mask}.items():
            np.testing.assert_array_equal({**then.obs, **then.action_mask}[key][i], array[0])
        assert then.reward[i] == out.reward[0]


@cases
def test_rows_do_not_depend_on_how_environments_are_spread_over_groups(env_id, played):
    rows = played(env_id)
    part = Group(env_id, CASES[env_id], num_envs=2, first=1)
    assert_same(rows, part.play(len(rows.reward)), slice(1, 3))


@pytest.mark.parametrize(
    ("env_id", "limit", "repeat"),
    [
        ("envpool:HalfCheetah-v4", 17, 3),
        ("envpool:CartPole-v1", None, 2),
        ("envpool:CartPole-v1", None, 3),
        ("envpool:TSP-v1", None, 3),
        ("envpool:MultiCVRP-v0", None, 2),
        ("atari:Breakout", 60, 2),
    ],
)
def test_a_repeated_action_is_that_action_again_until_the_end(env_id, limit, repeat):
    """By hand each environment is stepped alone; in the group their ends do not come together."""
    steps = 30
    group = Group(env_id, repeated(limit, repeat), num_envs=3)
    assert group.spec.frame_skip == repeat * describe(env_id, PLAIN).frame_skip
    rows = group.play(steps)
    assert rows.resets.any()
    for e in range(3):
        options = dataclasses.replace(repeated(limit, repeat), action_repeat=1)
        once = Group(env_id, options, num_envs=1, first=e)
        once.reset()
        done = False
        for t in range(steps):
            reset, done, total = done, False, 0.0
            for _ in range(1 if reset else repeat):
                out = once.step(rows.action[t, [e]])
                total += float(out.reward[0])
                done = bool(out.terminated[0] | out.truncated[0])
                if done:
                    break
            assert rows.reward[t, e] == pytest.approx(total, abs=1e-5)
            for key, array in out.obs.items():
                np.testing.assert_array_equal(rows.observations[key][t + 1, e], array[0])
            for flag in ("terminated", "truncated", "episode_over"):
                assert getattr(rows, flag)[t, e] == getattr(out, flag)[0]


@pytest.mark.parametrize(
    ("env_id", "keys"),
    [
        ("envpool:D1Basic-v1", ("HEALTH", "elapsed_step")),
        ("envpool:HalfCheetah-v4", ("x_position", "reward_ctrl")),
        ("atari:Breakout", ("reward", "lives")),
    ],
)
def test_what_is_to_be_logged_is_infos_at_the_end(env_id, keys):
    limit = 12
    options = EnvOptions(max_episode_steps=limit, log_info=keys, episodic_life=True)
    rows = Group(env_id, options, num_envs=3).play(30)
    pool = public(env_id, max_episode_steps=limit)
    pool.reset()
    for t in range(30):
        *_, info = pool.step(taken(rows.action[t], pool.action_space))
        for column, key in enumerate(keys):
            expected = np.where(rows.episode_over[t], info[key], np.nan)
            np.testing.assert_array_equal(rows.info[t, :, column], expected)
    assert rows.episode_over.any()


@pytest.mark.parametrize(("name", "sizes"), MASKED.items())
def test_masks_are_the_environments_own(name, sizes, played):
    action = describe(f"envpool:{name}", PLAIN).action["action"]
    assert action.masked and (action.nvec or (action.n,)) == sizes
    rows = played(f"envpool:{name}")
    masks = rows.masks["action"]
    assert not masks.all()
    chosen = rows.action.reshape(*rows.reward.shape, -1) + np.cumsum((0, *sizes[:-1]))
    assert np.take_along_axis(masks[:-1], chosen, axis=2).all()


@pytest.mark.parametrize(
    ("name", "mask", "seen"),
    [
        ("Minesweeper-v0", "action_mask", True),  # (10, 10) for a row and a column
        ("Tetris-v0", "action_mask", True),  # (4, 10) for a turn and a column
        ("Maze-v0", "off", True),
        ("Maze-v0", "walls", True),  # no mask of four choices
        ("Play2048-v1", "off", False),
        ("Play2048-v1", "board", False),
    ],
)
def test_what_is_no_mask_stays_what_it_is(name, mask, seen):
    spec = describe(f"envpool:{name}", EnvOptions(action_mask=mask))
    assert not spec.masks
    assert ("action_mask" in spec.observation) == seen


def test_a_mask_by_its_own_name():
    named = describe("envpool:Play2048-v1", EnvOptions(action_mask="legal_action_mask"))
    assert named.masks == {"action": 4}
    assert named == describe("envpool:Play2048-v1", PLAIN)


@pytest.mark.parametrize(
    ("env_id", "options", "leaves", "action"),
    [
        (
            "envpool:MiniGrid-Empty-5x5-v0",
            PLAIN,
            {
                "direction": ((), "int32", "discrete"),
                "image": ((3, 7, 7), "uint8", "image"),
                "mission": ((96,), "uint8", "vector"),
            },
            ("discrete", (), None),
        ),
        (
            "envpool:Parking-v0",
            PLAIN,
            {
                key: ((6,), "float32", "vector")
                for key in ("observation", "achieved_goal", "desired_goal")
            },
            ("continuous", (2,), None),
        ),
        (
            "envpool:Cleaner-v0",
            PLAIN,
            {
                "grid": ((10, 10), "int8", "vector"),
                "agents_locations": ((3, 2), "int32", "vector"),
                "step_count": ((), "int32", "discrete"),
            },
            ("multi_discrete", (3,), (4, 4, 4)),
        ),
        (
            "envpool:Play2048-v1",
            PLAIN,
            {"obs": ((4, 4, 31), "int8", "vector")},
            ("discrete", (), None),
        ),
        (
            "envpool:D1Basic-v1",
            EnvOptions(env_args=("use_combined_action=true", "stack_num=1")),
            {"obs": ((1, 84, 84), "uint8", "image")},
            ("discrete", (), None),
        ),
        (
            "atari:Pong",
            EnvOptions(env_args=("gray_scale=false", "img_height=60")),
            {"obs": ((12, 60, 84), "uint8", "image")},
            ("discrete", (), None),
        ),
        (
            "envpool:HalfCheetah-v4",
            EnvOptions(env_args=("from_pixels=true", "render_width=64")),
            {"obs": ((3, 84, 64), "uint8", "image")},
            ("continuous", (6,), None),
        ),
    ],
)
def test_spaces_of_all_kinds_are_described(env_id, options, leaves, action):
    spec = describe(env_id, options)
    found = {key: (leaf.shape, leaf.dtype, leaf.kind) for key, leaf in spec.observation.items()}
    assert found == leaves
    (leaf,) = spec.action.values()
    assert (leaf.kind, leaf.shape, leaf.nvec) == action


def test_bounds_that_envpool_mixes_up_are_none():
    (action,) = describe("envpool:D1Basic-v1", PLAIN).action.values()
    assert action.low == (-np.inf,) * 3 and action.high == (np.inf,) * 3
    (action,) = describe("envpool:ReacherEasy-v1", PLAIN).action.values()
    assert action.low == (-1,) * 2 and action.high == (1,) * 2


def test_arguments_reach_the_environment():
    group = Group("envpool:FrozenLake-v1", EnvOptions(env_args=("size=8",)))
    assert group.obs_spec.n == 64
    heavy = Group("envpool:HalfCheetah-v4", EnvOptions(env_args=("ctrl_cost_weight=10",)))
    light = Group("envpool:HalfCheetah-v4", EnvOptions(env_args=("ctrl_cost_weight=0.0",)))
    action = np.full((20, 4, 6), 0.5)
    a, b = (group.play(20, lambda t, obs: action[t]) for group in (heavy, light))
    np.testing.assert_allclose(b.reward - a.reward, 10 * 6 * 0.25, rtol=1e-5)


def test_a_scenario_of_ones_own():
    import envpool

    files = envpool.make_spec("DefendTheLine-v1").config
    arguments = (f"cfg_path={files.cfg_path}", f"wad_path={files.wad_path}")
    group = Group("envpool:VizdoomCustom-v1", EnvOptions(env_args=arguments), num_envs=1)
    rows = group.play(3)
    assert rows.obs.shape[2:] == (4 * 3, 84, 84)  # four frames in colour
    assert rows.obs[-1].std() > 5


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        (
            "envpool:HalfCheetah-v4",
            {"env_args": ("ctrl_cost=1",)},
            "envpool:HalfCheetah-v4 has no argument ctrl_cost (--env-args), did you mean "
            "ctrl_cost_weight",
        ),
        (
            "envpool:CartPole-v1",
            {"env_args": ("zzz=1",)},
            "has no argument zzz (--env-args), only base_path, reward_threshold.",
        ),
        (
            "envpool:CartPole-v1",
            {"env_args": ("from_pixels=true",)},
            "envpool:CartPole-v1 has no argument from_pixels",
        ),
        (
            "envpool:CartPole-v1",
            {"env_args": ("num_envs=3",)},
            "--env-args cannot set num_envs of envpool:CartPole-v1; --envs-per-worker decides it.",
        ),
        ("envpool:CartPole-v1", {"env_args": ("env_seed=3",)}, "--seed decides it."),
        ("envpool:CartPole-v1", {"env_args": ("max_num_players=2",)}, "cannot set max_num_players"),
        (
            "envpool:CartPole-v1",
            {"env_args": ("max_episode_steps=9",)},
            "--max-episode-steps decides it.",
        ),
        ("envpool:HalfCheetah-v4", {"env_args": ("frame_stack=2",)}, "--frame-stack decides it."),
        ("atari:Pong", {"env_args": ("stack_num=2",)}, "--frame-stack decides it."),
        ("atari:Pong", {"env_args": ("use_fire_reset=false",)}, "--fire-reset decides it."),
        ("atari:Pong", {"env_args": ("reward_clip=true",)}, "--reward-clip decides it."),
        (
            "envpool:MiniGrid-Empty-5x5-v0",
            {"env_args": ("size=big",)},
            "gives envpool:MiniGrid-Empty-5x5-v0 size='big', where it takes a whole number (by "
            "default 5).",
        ),
        (
            "envpool:HalfCheetah-v4",
            {"env_args": ("exclude_current_positions_from_observation=0",)},
            "where it takes true or false (by default True).",
        ),
        (
            "envpool:Maze-v0",
            {"log_info": ("score",)},
            "envpool:Maze-v0 has no number score in info (--log-info), only elapsed_step.",
        ),
        # An array.
        ("envpool:Play2048-v1", {"log_info": ("board",)}, "has no number board in info"),
        ("envpool:Maze-v0", {"wrap": ("py:a:b",)}, "envpool:Maze-v0 does not use --wrap"),
        ("envpool:Maze-v0", {"vector_entry_point": True}, "does not use --vector-entry-point"),
        # It would be without effect.
        ("envpool:Maze-v0", {"max_episode_steps": 9}, "does not use --max-episode-steps"),
        ("envpool:Go9x9-v1", {}, "envpool:Go9x9-v1 cannot be used: it has 2 players"),
        ("envpool:Cig-v1", {}, "envpool:Cig-v1 cannot be used: it is a match of several players"),
        (
            "envpool:VizdoomCustom-v1",
            {},
            "envpool:VizdoomCustom-v1 has no scenario of its own; name one with --env-args",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(env_id, options, words):
    with pytest.raises(ConfigError) as caught:
        describe(env_id, EnvOptions(**options))
    assert words in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Cig-v1", "MultiDuel-v1"])
def test_envpool_still_crashes_on_what_is_refused_for_it(name):
    program = f"import envpool; envpool.make_gymnasium({name!r}, num_envs=1, num_threads=1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert describe(f"envpool:{name}", EnvOptions(env_args=("map_id=map02",)))


def test_an_argument_that_envpool_cannot_take_is_named(tmp_path):
    options = EnvOptions(env_args=(f"cfg_path={tmp_path}/none.cfg",))
    with pytest.raises(ConfigError) as caught:
        make("envpool:D1Basic-v1", options, 1, 0, 0)
    assert f"with --env-args cfg_path={tmp_path}/none.cfg:" in str(caught.value)


def test_what_envpool_says_when_it_constructs_is_a_sentence(monkeypatch):
    import envpool

    def fails(task, **keywords):
        raise RuntimeError("failed to open\n the database")

    monkeypatch.setattr(envpool, "make_gymnasium", fails)
    with pytest.raises(ConfigError) as caught:
        make("envpool:Maze-v0", PLAIN, 1, 0, 0)
    assert str(caught.value) == (
        "envpool knows envpool:Maze-v0 but cannot load it here: failed to open the database"
    )


def test_a_number_outside_of_its_space_is_refused():
    leaf = StateLeaf("toy", ObservationSpec((), "int32", "discrete", 4, start=(-1,)), ())
    np.testing.assert_array_equal(leaf.stored(np.array([[-1], [2]])), [0, 3])
    for outside in (-2, 3):
        with pytest.raises(UnsupportedEnvironment, match=rf"is {outside}, but its space says -1 t"):
            leaf.stored(np.array([0, outside], np.int32))


def test_a_mask_that_allows_nothing_is_refused_unless_nothing_is_chosen():
    action = ActionSpec("multi_discrete", (2,), "int32", "int32", nvec=(3, 2), masked=True)
    mask = StateMask("toy", action)
    given = np.array([[1, 0, 0, 0, 1], [0, 0, 0, 0, 1]], bool)
    np.testing.assert_array_equal(mask.stored([given[:1]], np.zeros(1, bool)), given[:1])
    over = mask.stored([given], np.array([False, True]))
    np.testing.assert_array_equal(over, [given[0], [True] * 5])
    assert not given[1].all()
    with pytest.raises(UnsupportedEnvironment, match="allows none of them"):
        mask.stored([given], np.zeros(2, bool))
