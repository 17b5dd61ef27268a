"""How many processes EPP_PROCESSES means here."""

import os
from pathlib import Path

from epp.settings import SettingsError

_MOST = 64
_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def processes_of(text: str, cpu_max: Path = _CPU_MAX) -> int:
    """The number in EPP_PROCESSES; `auto` is one for each core that may be used. Raises SettingsError."""
    if text == "auto":
        return max(1, min(_cores(cpu_max), _MOST))
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise SettingsError(f"EPP_PROCESSES={text!r}: expected auto or a number from 1 to {_MOST}")
    return int(text)


def _cores(cpu_max: Path) -> int:
    """Cores by affinity, and by the CPU limit of the container where it has one (cgroup v2)."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text().split()
        return min(cores, int(quota) // int(period)) if quota != "max" else cores
    except (OSError, ValueError, ZeroDivisionError):
        return cores
