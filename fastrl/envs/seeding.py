"""One seed per environment of a run, from the run's seed and the run-wide environment index alone.

Nothing depends on how environments are spread over workers and groups, so equal seeds give equal
episodes whatever the spread.
"""

from __future__ import annotations

import numpy as np

# A prime and a primitive root of it: start * ROOT**index mod PRIME takes every non-zero value once
# before it repeats, so two environments of one run never share a seed. Hashing each index into 31
# bits instead would let some two of 1,000 environments collide in one run of 4,300.
_PRIME = 2**31 - 1
_ROOT = 16807


def env_seed(seed: int, env_index: int) -> int:
    """Seed of one environment, in [1, 2**31 - 2], different for every index below 2**31 - 2.

    0 is never given out: some simulators take it as "use the clock".

    Args:
        seed: of the run, >= 0.
        env_index: run-wide index of the environment, >= 0.
    """
    word = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
    start = word % (_PRIME - 1) + 1
    return start * pow(_ROOT, env_index, _PRIME) % _PRIME


def env_rng(seed: int, env_index: int) -> np.random.Generator:
    """Generator of what the engine itself draws for one environment: the length of its stagger and
    the actions in it."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(env_index,)))


def part_seed(seed: int, first_row: int, generation: int) -> int:
    """Seed of a part of a run, in [0, 2**31): the run's own for its first part.

    Args:
        seed: of the run, >= 0.
        first_row: rows that each environment had played before this part; 0 unless resumed.
        generation: processes that the environments have had before in this part.
    """
    if first_row == generation == 0:
        return seed
    sequence = np.random.SeedSequence(seed, spawn_key=(first_row, generation))
    return int(sequence.generate_state(1)[0]) % 2**31
