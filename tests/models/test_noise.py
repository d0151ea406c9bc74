import subprocess
import sys

import numpy as np
import pytest

from fastrl.models.noise import _mix_int, uniform


def draw(seed=3, envs=256, steps=256, leaf=0, dims=1, first_env=0, first_step=0):
    """All of envs x steps, f32 [envs, steps, dims]."""
    env, step = np.meshgrid(
        np.arange(first_env, first_env + envs),
        np.arange(first_step, first_step + steps),
        indexing="ij",
    )
    return uniform(seed, env.ravel(), step.ravel(), leaf, dims).reshape(envs, steps, dims)


def ks_statistic(u):
    """Largest distance of the empirical distribution from the uniform one, times sqrt(n)."""
    u = np.sort(u.ravel().astype(np.float64))
    grid = np.arange(u.size + 1) / u.size
    return max(np.abs(u - grid[1:]).max(), np.abs(u - grid[:-1]).max()) * np.sqrt(u.size)


def test_the_mixer_is_splitmix64():
    # First outputs of the reference generator for the state 0 (Vigna's splitmix64.c).
    golden = 0x9E3779B97F4A7C15
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [_mix_int(k * golden % 2**64) for k in (1, 2, 3)] == expected


def test_values_are_odd_multiples_strictly_inside():
    u = draw(dims=4)
    assert u.dtype == np.float32
    k = u.astype(np.float64) * 2**24
    assert np.array_equal(k, np.round(k)) and np.all(k % 2 == 1)
    assert k.min() >= 1 and k.max() <= 2**24 - 1
    # What the Gaussian needs: 2u - 1 is exact, and never ±1.
    assert np.abs(np.float32(2) * u - np.float32(1)).max() < 1


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 12345])
def test_uniform_by_kolmogorov_smirnov_and_moments(seed):
    u = draw(seed=seed, envs=512, steps=512)
    assert ks_statistic(u) < 1.95  # exceeded by chance once in 1000 draws; the seeds are fixed
    centred = u.astype(np.float64) - 0.5
    n = centred.size
    assert abs(centred.mean()) < 4 * np.sqrt(1 / 12 / n)
    assert abs((centred**2).mean() - 1 / 12) < 4 * np.sqrt(1 / 180 / n)
    assert abs((centred**3).mean()) < 4 * np.sqrt(1 / 448 / n)


def test_one_environment_over_time_and_one_step_over_environments_are_uniform():
    assert ks_statistic(draw(envs=1, steps=100_000)) < 1.95
    assert ks_statistic(draw(envs=100_000, steps=1)) < 1.95


def correlation(a, b):
    """Pearson's coefficient, times sqrt(n): about standard normal for independent a, b."""
    return np.corrcoef(a.ravel(), b.ravel())[0, 1] * np.sqrt(a.size)


def test_neighbouring_keys_are_uncorrelated():
    u = draw(dims=2)
    assert abs(correlation(u[1:, :, 0], u[:-1, :, 0])) < 4
    assert abs(correlation(u[:, 1:, 0], u[:, :-1, 0])) < 4
    assert abs(correlation(u[1:, :-1, 0], u[:-1, 1:, 0])) < 4
    assert abs(correlation(u[..., 0], u[..., 1])) < 4
    assert abs(correlation(u, draw(seed=4, dims=2))) < 4
    assert abs(correlation(u, draw(leaf=1, dims=2))) < 4


@pytest.mark.parametrize("part", ["env", "step", "seed", "leaf", "dim"])
def test_flipping_one_bit_of_the_key_changes_half_of_the_output_bits(part):
    rng = np.random.default_rng(0)
    key = {"env": rng.integers(0, 2**40, 4096), "step": rng.integers(0, 2**40, 4096)}
    base = uniform(9, key["env"], key["step"], 2, 2)[:, 0]
    changed = []
    for bit in range(20):
        env, step = key["env"], key["step"]
        if part == "env":
            changed.append(uniform(9, env ^ (1 << bit), step, 2, 2)[:, 0])
        elif part == "step":
            changed.append(uniform(9, env, step ^ (1 << bit), 2, 2)[:, 0])
        elif part == "seed":
            changed.append(uniform(9 ^ (1 << bit), env, step, 2, 2)[:, 0])
        elif part == "leaf":
            changed.append(uniform(9, env, step, 2 ^ (1 << bit), 2)[:, 0])
        else:
            changed.append(uniform(9, env, step, 2, 2)[:, 1])
    for other in changed:
        bits = (base * 2**24).astype(np.int64) ^ (other * 2**24).astype(np.int64)
        flips = sum(((bits >> k) & 1).mean() for k in range(1, 24)) / 23
        assert abs(flips - 0.5) < 0.01


def test_swapping_seed_environment_step_and_leaf_gives_different_numbers():
    one, two = np.array([1]), np.array([2])
    values = {
        float(uniform(seed, env, step, leaf, 1)[0, 0])
        for seed in (1, 2)
        for env in (one, two)
        for step in (one, two)
        for leaf in (1, 2)
    }
    assert len(values) == 16


def test_a_row_does_not_depend_on_its_batch_or_on_the_number_of_dimensions():
    env, step = np.arange(50), np.arange(50) * 7
    whole = uniform(5, env, step, 0, 3)
    order = np.random.default_rng(0).permutation(50)
    assert np.array_equal(uniform(5, env[order], step[order], 0, 3), whole[order])
    assert np.array_equal(uniform(5, env[7:8], step[7:8], 0, 3), whole[7:8])
    assert np.array_equal(uniform(5, env, step, 0, 1), whole[:, :1])


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="same length"):
        uniform(0, np.arange(3), np.arange(4), 0, 1)
    assert uniform(0, np.arange(0), np.arange(0), 0, 2).shape == (0, 2)


def test_noise_and_config_do_not_import_torch():
    code = "import sys, fastrl.models.noise, fastrl.models.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
