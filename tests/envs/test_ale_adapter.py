"""`ale:NAME`: the promises of a group, and the facts about ale-py that its adapter rests on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ale_py import ALEInterface, roms
from ale_py.vector_env import AtariVectorEnv
from group import FLAGS, Group

from fastrl.envs import EnvOptions, ale_adapter, describe, evaluation_options
from fastrl.envs.seeding import env_rng, env_seed
from fastrl.envs.spec import sample_actions
from fastrl.errors import ConfigError

LIMIT, STEPS = 40, 100
# Lost lives and two games of LIMIT steps, in STEPS; the games draw numbers as well.
LIVES = EnvOptions(max_episode_steps=LIMIT, sticky_actions=0.25)
FIRE = 1  # Breakout's: NOOP, FIRE, RIGHT, LEFT


def raw(game, num_envs, **keywords):
    return AtariVectorEnv(game, num_envs, num_threads=1, reward_clipping=False, **keywords)


def seeds_of(group):
    return np.array([env_seed(group.seed, group.first + i) for i in range(group.num_envs)])


def assert_same(whole, part, columns=slice(None)):
    others = part.columns()
    for name, array in whole.columns().items():
        np.testing.assert_array_equal(array[:, columns], others[name], err_msg=name)


def new_game(rows):
    """bool [N, E]: rows that show the first frame of a game; those before it are black."""
    return ~rows.obs[1:, :, :-1].any(axis=(2, 3, 4))


def lengths_of(rows):
    """Per environment (length in steps, truncated) of the episodes that ended, as statistics
    count them."""
    result = []
    for e in range(rows.reward.shape[1]):
        length, ended = 0, []
        for reset, over, cut in zip(
            rows.resets[:, e], rows.episode_over[:, e], rows.truncated[:, e], strict=True
        ):
            length += not reset
            if over:
                ended.append((length, cut))
                length = 0
        result.append(ended)
    return result


@pytest.fixture(scope="module")
def breakout():
    """STEPS random steps of four Breakouts."""
    return Group("ale:breakout", LIVES).play(STEPS)


def test_breakout_has_lives_limits_and_new_games(breakout):
    lost = breakout.terminated & ~breakout.episode_over
    assert lost.sum() >= 4 and breakout.truncated.sum() >= 4
    assert not (breakout.terminated & breakout.truncated).any()
    assert not breakout.reward[breakout.resets].any()
    assert not breakout.done[breakout.resets].any()
    # A lost life ends no game, and every other end begins one.
    over_before = np.concatenate([np.zeros((1, 4), bool), breakout.episode_over[:-1]])
    np.testing.assert_array_equal(new_game(breakout), over_before)


def test_the_limit_counts_steps_over_lost_lives(breakout):
    for ended in lengths_of(breakout):
        assert len(ended) >= 2 and {length for length, _ in ended} == {LIMIT}


@pytest.mark.parametrize(("first", "size"), [(0, 2), (2, 1), (3, 1)])
def test_rows_do_not_depend_on_how_environments_are_spread_over_groups(breakout, first, size):
    part = Group("ale:breakout", LIVES, num_envs=size, first=first).play(STEPS)
    assert_same(breakout, part, slice(first, first + size))


def test_the_action_of_a_reset_row_has_no_effect(breakout):
    plan = breakout.action[:, :2].copy()
    resets = breakout.resets[:, :2]
    plan[resets] = (plan[resets] + 1) % 4
    other = Group("ale:breakout", LIVES, num_envs=2).play(STEPS, lambda t, obs: plan[t])
    assert_same(breakout, other, slice(0, 2))


def test_stagger_and_a_second_reset_depend_on_no_neighbour():
    counts = np.array([25, 9])

    def played(num_envs, first):
        group = Group("ale:breakout", LIVES, num_envs=num_envs, first=first)
        seen = []
        for _ in range(2):
            rngs = [env_rng(3, first + i) for i in range(num_envs)]
            result = group.reset(counts[first : first + num_envs], rngs)
            seen.append([group.obs, *result])
            for action in group.actions(8):
                out = group.step(action)
                seen.append([out.obs["obs"], out.reward, *(getattr(out, f) for f in FLAGS)])
        return seen

    whole = played(2, 0)
    for i in range(2):
        for row, alone in zip(whole, played(1, i), strict=True):
            for a, b in zip(row, alone, strict=True):
                np.testing.assert_array_equal(a[[i]], b)
    # The second reset begins other games.
    assert (whole[0][0] != whole[9][0]).any()


def test_stagger_equals_the_same_actions_played_by_hand():
    count, group = 40, Group("ale:breakout", LIVES, num_envs=1)
    returns, lengths = group.reset(np.array([count]), [env_rng(3, 0)])
    assert returns.dtype == np.float64 and lengths.dtype == np.int64

    hand = Group("ale:breakout", LIVES, num_envs=1)
    hand.reset()
    total, length, done, lost = 0.0, 0, False, 0
    for action in sample_actions(hand.action_spec, count, env_rng(3, 0)):
        out = hand.step(action[None])
        if not done:
            total, length = total + float(out.reward[0]), length + 1
        done = bool(out.terminated[0] | out.truncated[0])
        lost += done
    assert lost and not done and not out.episode_over.any()
    assert (returns[0], lengths[0]) == (total, length)
    np.testing.assert_array_equal(group.obs, hand.obs)
    # What is left of the episode is left in both: the time limit comes at the same step.
    for action in group.actions(LIMIT):
        a, b = group.step(action), hand.step(action)
        np.testing.assert_array_equal(a.truncated, b.truncated)
        np.testing.assert_array_equal(a.obs["obs"], b.obs["obs"])


def test_stagger_leaves_no_environment_done():
    # Limits of 9 steps: 9 random ones end in a done row, which the next one would only reset.
    group = Group("ale:pong", EnvOptions(max_episode_steps=9), num_envs=2)
    _, lengths = group.reset(np.array([9, 8]), [env_rng(0, i) for i in range(2)])
    assert lengths.tolist() == [0, 8]
    assert not group.obs[0, :3].any() and group.obs[1, :3].any()  # a new game, and an old one
    truncated = np.array([group.step(np.zeros(2)).truncated for _ in range(10)])
    assert np.argwhere(truncated).tolist() == [[0, 1], [8, 0]]
    with pytest.raises(ValueError, match="needs a number >= 0"):
        group.reset(np.array([1, -1]), [env_rng(0, i) for i in range(2)])
    with pytest.raises(ValueError, match="2 stagger_steps and 0 rngs"):
        group.reset(np.array([1, 2]))


def test_games_are_those_of_ale_py_and_their_return_is_the_sum_over_lives():
    options = EnvOptions(log_info=("lives", "frame_number", "env_id", "nothing"))
    group = Group("ale:breakout", options, num_envs=2, seed=3)
    rows = group.play(250)
    games = rows.episode_over.sum(axis=0)
    assert (games >= 1).all()
    assert not rows.truncated.any()

    # The environment itself, given FIRE in the rows after a lost life.
    vector = raw("breakout", 2)
    obs, info = vector.reset(seed=seeds_of(group))
    np.testing.assert_array_equal(obs, rows.obs[0])
    lives = info["lives"]
    lost = np.zeros(2, dtype=bool)
    for t in range(250):
        action = np.where(lost, FIRE, rows.action[t]).astype(np.int32)
        obs, reward, over, _, info = vector.step(action)
        np.testing.assert_array_equal(obs, rows.obs[t + 1])
        np.testing.assert_array_equal(reward * ~rows.resets[t], rows.reward[t])
        np.testing.assert_array_equal(over, rows.episode_over[t])
        for e in np.flatnonzero(over):
            shown = rows.info[t, e]
            assert shown[:3].tolist() == [0, info["frame_number"][e], e]
            assert np.isnan(shown[3])
        lost = ~over & (info["lives"] < lives)
        np.testing.assert_array_equal(lost | over, rows.terminated[t])
        lives = info["lives"]
    assert np.isnan(rows.info[~rows.episode_over]).all()
    # Five lives a game.
    for e in range(2):
        ends = rows.episode_over[rows.terminated[:, e], e]
        whole = ends[: games[e] * 5]
        assert whole.tolist() == ([False] * 4 + [True]) * games[e]
    assert rows.reward.sum() > 0


def test_the_final_observation_at_the_limit_is_the_true_one():
    short = Group("ale:pong", EnvOptions(max_episode_steps=12), num_envs=1).play(14)
    long = Group("ale:pong", num_envs=1).play(12)
    assert short.truncated[:, 0].tolist() == [False] * 11 + [True] + [False] * 2
    np.testing.assert_array_equal(short.obs[:13], long.obs)
    assert new_game(short)[12].all()

    # Why the limit is not left to ale-py: it counts frames, and its last one is stale.
    own = raw("pong", 1, max_num_frames_per_episode=12 * 4)
    own.reset(seed=np.array([env_seed(1, 0)]))
    for t in range(12):
        obs, _, _, truncated, _ = own.step(short.action[t])
    assert truncated[0]
    np.testing.assert_array_equal(obs[0, :3], long.obs[12, 0, :3])
    assert (obs[0, 3] != long.obs[12, 0, 3]).any()


def test_a_life_lost_in_the_step_of_the_limit_terminates_and_ends_the_episode():
    free = Group("ale:breakout", num_envs=1).play(60)
    at = int(np.flatnonzero(free.terminated[:, 0])[0])
    rows = Group("ale:breakout", EnvOptions(max_episode_steps=at + 1), num_envs=1).play(at + 2)
    assert rows.terminated[at, 0] and rows.episode_over[at, 0] and not rows.truncated.any()
    assert not free.episode_over[at, 0]
    assert new_game(rows)[at + 1, 0] and not new_game(free)[at + 1, 0]


def test_a_game_that_ends_in_the_step_after_a_lost_life_is_counted():
    # A second a step: RoadRunner is often caught twice in it.
    options = EnvOptions(frame_skip=60, noop_max=1, log_info=("lives",), max_episode_steps=7)
    rows = Group("ale:road_runner", options, num_envs=2, seed=5).play(40)
    hidden = rows.episode_over & rows.resets
    assert hidden.sum() >= 2
    assert (rows.info[hidden] == 0).all()
    over_before = np.concatenate([np.zeros((1, 2), bool), rows.episode_over[:-1]])
    np.testing.assert_array_equal(new_game(rows), hidden | (over_before & rows.resets))
    # The limit begins anew as well.
    ended = [episode for episodes in lengths_of(rows) for episode in episodes]
    assert {length for length, cut in ended if cut} == {7}
    assert max(length for length, _ in ended) == 7
    # The game that began there goes on: the next row is one of it.
    later = np.concatenate([np.zeros((1, 2), bool), hidden[:-1]])
    assert not rows.resets[later].any()


def test_what_the_step_after_a_lost_life_pays_and_costs_is_not_told():
    group = Group("ale:atlantis", EnvOptions(frame_skip=200), num_envs=1, seed=5)
    rows = group.play(24)
    assert not rows.reward[rows.resets].any() and not rows.done[rows.resets].any()
    vector = raw("atlantis", 1, frameskip=200)
    lives = vector.reset(seed=seeds_of(group))[1]["lives"][0]
    lost, paid, costly = False, 0, 0
    for action in rows.action:
        action = np.where(lost, FIRE, action).astype(np.int32)
        _, reward, over, _, info = vector.step(action)
        fewer = not over[0] and 0 < info["lives"][0] < lives
        paid += lost and reward[0] != 0
        costly += lost and fewer
        lost, lives = fewer and not lost, info["lives"][0]
    assert paid and costly


def test_without_episodic_life_only_the_game_ends_an_episode():
    options = evaluation_options("ale:breakout", EnvOptions())
    assert not options.episodic_life
    rows = Group("ale:breakout", options, num_envs=1, seed=2).play(220)
    assert rows.terminated.any()
    np.testing.assert_array_equal(rows.terminated, rows.episode_over)


def test_what_the_adapter_rests_on_in_ale_py():
    vector = raw("breakout", 2, episodic_life=True)
    obs, info = vector.reset(seed=np.array([1, 2]))
    rows = [vector.step(np.full(2, FIRE, dtype=np.int32)) for _ in range(60)]
    # No buffer is used again.
    arrays = [array for row in rows[:2] for array in (*row[:4], *row[4].values())]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[i + 1 :])
    # Why lives are not left to it: after a lost one it begins a new game, with all five.
    lost = next(t for t, row in enumerate(rows) if row[2][0])
    assert rows[lost][4]["lives"][0] == 4 and rows[lost + 1][4]["lives"][0] == 5
    # A reset of one environment leaves the other where it was.
    obs, info = vector.reset(options={"reset_mask": np.array([False, True])})
    np.testing.assert_array_equal(obs[0], rows[-1][0][0])
    assert info["lives"].tolist() == [rows[-1][4]["lives"][0], 5]


@pytest.mark.parametrize(("game", "frames"), [("breakout", {1, 2}), ("ms_pacman", {0, 1, 2})])
def test_a_game_begins_after_fewer_frames_than_noop_max(game, frames):
    vector = raw(game, 1, noop_max=3)
    vector.reset(seed=np.array([1]))
    seen = [int(vector.reset()[1]["episode_frame_number"][0]) for _ in range(60)]
    assert set(seen) == frames


def test_it_is_the_game_of_the_atari_family_bit_for_bit():
    options = EnvOptions(noop_max=1, episodic_life=False)
    ours, theirs = (Group(env_id, options, num_envs=1) for env_id in ("ale:pong", "atari:Pong"))
    assert ours.obs_spec == theirs.obs_spec
    assert ours.action_spec == theirs.action_spec
    a, b = ours.play(80), theirs.play(80)
    np.testing.assert_array_equal(a.obs[:, :, -1], b.obs[:, :, -1])
    np.testing.assert_array_equal(a.reward, b.reward)
    assert a.reward.any()
    # Before the first frame: black here, copies there.
    assert not a.obs[0, 0, :3].any() and (b.obs[0, 0, :3] == b.obs[0, 0, 3]).all()


def test_colours_are_stored_channels_first():
    options = EnvOptions(
        frame_stack=2, env_args=("grayscale=false", "img_height=60", "img_width=40"), noop_max=1
    )
    group = Group("ale:pong", options, num_envs=1)
    assert group.obs_spec.shape == (6, 60, 40) and group.obs_spec.kind == "image"
    rows = group.play(3)
    vector = raw("pong", 1, noop_max=1, stack_num=2, grayscale=False, img_height=60, img_width=40)
    vector.reset(seed=seeds_of(group))
    for t in range(3):
        obs = vector.step(rows.action[t].astype(np.int32))[0]
    for frame in range(2):
        for colour in range(3):
            np.testing.assert_array_equal(
                rows.obs[3, :, 3 * frame + colour], obs[:, frame, :, :, colour]
            )


def test_continuous_actions_are_those_of_ale_py():
    options = EnvOptions(env_args=("continuous=true", "continuous_action_threshold=0.25"))
    group = Group("ale:breakout", options, num_envs=1)
    assert group.action_spec.shape == (3,)
    assert group.action_spec.high == pytest.approx((1.0, np.pi, 1.0))
    rows = group.play(60)
    assert rows.terminated.any()  # and FIRE, radius 0, follows
    assert rows.reward.any()


def test_options_reach_ale_py():
    options = EnvOptions(frame_stack=2, full_action_space=True, frame_skip=3, fire_reset=False)
    spec = describe("ale:breakout", options)
    assert spec.observation["obs"].shape == (2, 84, 84)
    assert (spec.action["action"].n, spec.frame_skip, spec.one_generator) == (18, 3, False)
    task = ale_adapter._understand("ale:breakout", options)
    assert task.keywords == {
        "noop_max": 30,
        "use_fire_reset": False,
        "repeat_action_probability": 0.0,
        "frameskip": 3,
        "full_action_space": True,
        "stack_num": 2,
    }
    assert task.resume == 0
    assert ale_adapter._understand("ale:breakout", EnvOptions()).resume == FIRE
    assert ale_adapter._understand("ale:ms_pacman", EnvOptions()).step_limit == 27_000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"action_repeat": 2}, "ale:pong does not use --action-repeat, which was set to 2"),
        ({"wrap": ("py:a:b",)}, "does not use --wrap"),
        ({"vector_entry_point": True}, "does not use --vector-entry-point"),
        ({"env_args": ("frameskip=2",)}, "has frameskip, but ale:pong takes continuous, "),
        ({"env_args": ("frameskip=2",)}, "there; use --frame-skip for it."),
        ({"env_args": ("episodic_life=false",)}, "there; use --episodic-life for it."),
        ({"env_args": ("num_threads=2",)}, "maxpool there."),
        ({"env_args": ("img_width=0",)}, "has img_width=0; it must be 1 to 1,000."),
        ({"env_args": ("img_width=1.5",)}, "has img_width=1.5; it must be of type int."),
        ({"env_args": ("grayscale=no",)}, "has grayscale=no; it must be of type bool."),
    ],
)
def test_what_it_does_not_take_is_refused_in_a_sentence(options, words):
    with pytest.raises(ConfigError) as caught:
        describe("ale:pong", EnvOptions(**options))
    assert words in str(caught.value)


def test_the_names_are_the_games_that_ale_py_can_play():
    folder = Path(roms.__file__).parent
    # It ends this process where it is asked to play another.
    playable = [
        game
        for game in roms.get_all_rom_ids()
        if ALEInterface.isSupportedROM(folder / f"{game}.bin") is not None
    ]
    assert ale_adapter.names("ale") == sorted(playable)


@pytest.mark.parametrize("name", ["Pong", "pongg", "ALE/Pong-v5"])
def test_another_spelling_is_told_the_name(name):
    with pytest.raises(ConfigError, match="ale:pong"):
        describe(f"ale:{name}", EnvOptions())


def test_without_ale_py_one_is_told_to_install_it(monkeypatch):
    for module in ("ale_py", "ale_py.vector_env"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match="install it with `pip install ale-py`"):
        describe("ale:tennis", EnvOptions())
    # Others are still found.
    with pytest.raises(ConfigError, match="did you mean atari:Pong"):
        describe("atari:pong", EnvOptions())


def test_a_wrong_action_shape_and_a_closed_group_are_refused():
    group = Group("ale:pong", num_envs=1)
    group.reset()
    with pytest.raises(ValueError, match=r"shape \(3,\), but 1 environments"):
        group.step(np.zeros(3))
    threads = len(list(Path("/proc/self/task").iterdir()))
    group.env.close()
    group.env.close()
    assert len(list(Path("/proc/self/task").iterdir())) == threads - 1
    with pytest.raises(RuntimeError, match="is closed; make a new one"):
        group.step(np.zeros(1))


def test_the_module_imports_neither_ale_py_nor_torch():
    code = (
        "import sys, fastrl.envs.ale_adapter as ale\n"
        "assert len(ale.names('ale')) > 100\n"
        "assert not {'ale_py', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
