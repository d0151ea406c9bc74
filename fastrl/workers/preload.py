"""What the forkserver imports once, so that its children share it: numpy, envpool, the rollout body.

Importing this module also ties the forkserver to the process that started it (the forkserver alone would
survive a killed main for as long as one of its children holds its pipe).
"""

from __future__ import annotations

import os

from fastrl.workers.process import MAIN_PID_VARIABLE, die_with_parent

if MAIN_PID_VARIABLE in os.environ:
    die_with_parent(int(os.environ.pop(MAIN_PID_VARIABLE)))

import fastrl.workers.rollout

try:  # the largest import of a rollout process; adapters import it themselves where this failed
    import envpool  # noqa: F401
except ImportError:
    pass

FORKSERVER_PID = os.getpid()
