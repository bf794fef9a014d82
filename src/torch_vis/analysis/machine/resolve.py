"""Which machine a report is about: hardware by name, a calibration, or this machine; and amounts of memory."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any

from torch_vis.analysis.machine.calibration import Calibration, load
from torch_vis.analysis.machine.hardware import Hardware, find_hardware
from torch_vis.errors import FileError, NoMatch, UsageError, no_match


def machine(
    hardware: Any = None, calibration: Any = None, *, devices: Iterable[str] = ()
) -> Calibration | Hardware:
    """The machine asked for; without a name, this one as it was calibrated before. Nothing is measured here.

    ``devices`` are those that a trace is from: they say which of this machine's devices is meant.
    """
    if hardware is not None and calibration is not None:
        raise UsageError("name hardware or give a calibration, not both")
    if isinstance(calibration, (Calibration, Hardware)):
        return calibration
    if calibration is not None:
        raise UsageError(
            f"calibration is what measure.calibrate() or hardware.load() gave, not {type(calibration).__name__}"
        )
    if hardware is not None:
        return hardware if isinstance(hardware, (Calibration, Hardware)) else find_hardware(hardware)
    return this_machine(devices)


def this_machine(devices: Iterable[str] = ()) -> Calibration:
    """This machine as it was calibrated before; raises with what to do where it was not."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "there is no torch here, and so no calibration: name hardware, e.g. hardware='H100 SXM'"
        ) from None

    names = [str(device) for device in devices or ()]
    device = None
    if names:
        on_gpu = any(name.startswith("cuda") for name in names) and torch.cuda.is_available()
        device = "cuda" if on_gpu else "cpu"
    calibration = cached(device)
    if calibration is None:
        raise UsageError(
            "this machine has not been calibrated: run tv.measure.calibrate() once (under a minute), "
            "or name hardware, e.g. hardware='H100 SXM'"
        )
    return calibration


def profile(machine: Calibration | Hardware) -> Hardware:
    """The roofs of a machine."""
    return machine.hardware if isinstance(machine, Calibration) else machine


# ---------------------------------------------------------------- calibrations that are kept


def cached(device: str | None = None) -> Calibration | None:
    """The calibration that is kept for this machine, or None; nothing is run."""
    key = circumstances(device_to_calibrate(device))
    return kept_calibration(cache_path(key), key)


def cache_path(key: dict[str, Any]) -> Path:
    """Where the calibration for some circumstances is kept: in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(repr(sorted(key.items())).encode()).hexdigest()[:16]
    return Path(base) / "torch_vis" / f"calibration-{name}.json"


def kept_calibration(path: Path, key: dict[str, Any]) -> Calibration | None:
    """The calibration in a file; None where there is none, or it is damaged or of other circumstances."""
    if not path.exists():
        return None
    try:
        calibration = load(path)
    except FileError:
        # damaged or of another version: it is measured anew
        return None
    return calibration if calibration.circumstances == key else None


def circumstances(device: str) -> dict[str, Any]:
    """What a calibration holds for: the device, the host, versions, threads, precision settings."""
    import torch

    key: dict[str, Any] = {
        "device": device_name(device),
        "host": processor_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    if device.startswith("cuda"):
        key["matmul_precision"] = torch.get_float32_matmul_precision()
        key["cudnn_tf32"] = bool(torch.backends.cudnn.allow_tf32)
        key["cudnn_benchmark"] = bool(torch.backends.cudnn.benchmark)
    return key


def device_name(device: str) -> str:
    """The name of a device as its driver gives it."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else processor_name()


def processor_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        # not Linux
        pass
    return platform.processor() or platform.machine()


def device_to_calibrate(device: str | None) -> str:
    """The device asked for: ``cuda`` where there is one, or else ``cpu``; raises where it cannot be calibrated."""
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise no_match("device to calibrate", str(device), ["cpu", "cuda"])
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "there is no CUDA device here; calibrate on a machine that has one and load its file"
        )
    return str(device)


UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
         "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip
NUMBER = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?inf|nan)\s*([kmgt]i?|)b?\s*", re.IGNORECASE
)


def amount_bytes(amount: Any, what: str, *, hardware: bool = True) -> int:
    """A number of bytes from what was passed as the argument ``what``; ``hardware`` lets it be the name of a device.

    >>> amount_bytes("1.5 GiB", "memory"), amount_bytes("80GB", "memory"), amount_bytes(1024, "memory")
    (1610612736, 80000000000, 1024)
    >>> amount_bytes("T4", "memory")
    16000000000
    """
    if isinstance(amount, str):
        match = NUMBER.fullmatch(amount)
        if not match:
            return _of_hardware(amount, what) if hardware else _refuse(amount, what, hardware)
        size_bytes = float(match[1]) * UNITS[match[2].lower()]
    elif isinstance(amount, Real) and not isinstance(amount, bool):
        size_bytes = float(amount) if not isinstance(amount, int) else amount
    else:
        return _refuse(amount, what, hardware)
    if not math.isfinite(size_bytes) or size_bytes < 1:
        raise UsageError(f"{what}={amount!r}: a number of bytes is finite and at least 1")
    return int(size_bytes)


def _of_hardware(name: str, what: str) -> int:
    try:
        return find_hardware(name).memory_bytes
    except NoMatch as error:
        raise UsageError(f"{_wanted(what, True)}, not {name!r} ({error})") from error


def _refuse(amount: Any, what: str, hardware: bool) -> int:
    raise UsageError(f"{_wanted(what, hardware)}, not {amount!r}")


def _wanted(what: str, hardware: bool) -> str:
    if hardware:
        return f"{what} is a number of bytes, a text like '16 GiB' or the name of hardware"
    return f"{what} is a number of bytes or a text like '16 GiB'"
