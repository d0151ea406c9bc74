"""One thread per process, as the engine has it: two would wait for each other beside other work."""

from __future__ import annotations

from multiprocessing import forkserver

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def own_forkserver() -> None:
    """End the forkserver that other tests of this process have started: fastrl refuses it."""
    forkserver._forkserver._stop()
