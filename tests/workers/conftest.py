"""One thread per process, as the engine has it: two would wait for each other beside other work."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
