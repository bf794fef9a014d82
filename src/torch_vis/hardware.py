"""Machines by name: those that are known, one of your own, one that was calibrated.

>>> import torch_vis as tv
>>> "H100 SXM" in tv.hardware.known()
True
"""

from torch_vis.analysis.machine.calibration import Calibration
from torch_vis.analysis.machine.calibration import load_calibration as load
from torch_vis.analysis.machine.hardware import Hardware
from torch_vis.analysis.machine.hardware import known_hardware as known
from torch_vis.analysis.machine.hardware import register_hardware as register

__all__ = ["Calibration", "Hardware", "known", "load", "register"]
