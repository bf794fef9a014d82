"""Machines by name: those that are known, one of your own, one that was calibrated.

>>> import torch_vis as tv
>>> "H100 SXM" in tv.hardware.known()
True
"""

from torch_vis.analysis.machine.calibration import Calibration, load
from torch_vis.analysis.machine.hardware import Hardware, known, register

__all__ = ["Calibration", "Hardware", "known", "load", "register"]
