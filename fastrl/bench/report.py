"""Where a result was found: the machine and the versions, as they stand in its JSON file."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from fastrl.workers.machine import available_cores

PACKAGES = ("fastrl", "torch", "numpy", "gymnasium")


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and the load at this moment."""
    return {"cpu": _cpu_model(), "cores": available_cores(), "load": os.getloadavg()[0]}


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {
        **{name: metadata.version(name) for name in PACKAGES},
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    """Name of the processor as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
