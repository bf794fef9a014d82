"""What this process holds, as the operating system sees it (Linux)."""

from __future__ import annotations

import ctypes
import gc
import os

MIB = 1 << 20


def held() -> int:
    """Resident bytes, after garbage is collected and the allocator has given back what it can."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def peak() -> int:
    """The most resident bytes since the start or the last ``forget_peak``."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Let the peak start again from what is held now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _status(field: str) -> int:
    with open(f"/proc/{os.getpid()}/status") as file:
        for line in file:
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")
