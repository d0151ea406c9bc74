import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
# The programs import each other as scripts do, from their own folder.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
