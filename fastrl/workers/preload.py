"""What the forkserver does once for all its children: it imports numpy, envpool and the rollout
body, and looks at the spaces of the run's environment where that is slow.

Importing this module also ties the forkserver to the process that started it (the forkserver alone
would survive a killed main for as long as one of its children holds its pipe).
"""

from __future__ import annotations

import base64
import contextlib
import gc
import os
import pickle

from fastrl.envs.registry import preload
from fastrl.workers.process import (
    ENV_VARIABLE,
    MAIN_PID_VARIABLE,
    SAFE_PATH_VARIABLE,
    die_with_parent,
    ignore_stop_signals,
)

if MAIN_PID_VARIABLE in os.environ:
    # Meant for this interpreter alone, not for what an environment may start.
    os.environ.pop(SAFE_PATH_VARIABLE, None)
    die_with_parent(int(os.environ.pop(MAIN_PID_VARIABLE)))
    ignore_stop_signals()

import fastrl.workers.rollout  # noqa: F401

# The largest import of a rollout process. Where it fails, the adapter that needs it will say why.
with contextlib.suppress(ImportError):
    import envpool  # noqa: F401

if ENV_VARIABLE in os.environ:
    preload(*pickle.loads(base64.b64decode(os.environ.pop(ENV_VARIABLE))))

# What is imported stays; a collection in a child would write to each of these objects' pages, and
# so copy them.
gc.collect()
gc.freeze()

FORKSERVER_PID = os.getpid()
