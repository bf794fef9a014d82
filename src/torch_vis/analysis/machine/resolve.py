"""Which machine a report is about: one that is named, one that was calibrated, or the one that this runs on."""

from __future__ import annotations

from typing import Any

from torch_vis.analysis.machine.calibration import Calibration
from torch_vis.analysis.machine.hardware import Hardware, find_hardware
from torch_vis.errors import UsageError


def machine(hardware: Any = None, calibration: Any = None, *, devices: Any = ()) -> Calibration | Hardware:
    """The machine asked for; without a name, this one as it was calibrated before. Nothing is measured here.

    ``devices`` are those that a trace is from: it says which of this machine's devices is meant.
    """
    if hardware is not None and calibration is not None:
        raise UsageError("name hardware or give a calibration, not both")
    if isinstance(calibration, (Calibration, Hardware)):
        return calibration
    if calibration is not None:
        raise UsageError(
            f"calibration is what calibrate() or load_calibration() gave, not {type(calibration).__name__}"
        )
    if hardware is not None:
        return hardware if isinstance(hardware, (Calibration, Hardware)) else find_hardware(hardware)
    return this_machine(devices)


def this_machine(devices: Any = ()) -> Calibration:
    """This machine as it was calibrated before; raises with what to do where it was not."""
    import torch

    from torch_vis.analysis.machine.calibrate import cached

    on_gpu = any(str(device).startswith("cuda") for device in devices or ())
    device = ("cuda" if on_gpu and torch.cuda.is_available() else "cpu") if devices else None
    found = cached(device)
    if found is None:
        raise UsageError(
            "this machine has not been calibrated: run tv.calibrate() once (under a minute), "
            "or name hardware, e.g. hardware='H100 SXM'"
        )
    return found


def profile(found: Calibration | Hardware) -> Hardware:
    """The roofs of a machine."""
    return found.hardware if isinstance(found, Calibration) else found
