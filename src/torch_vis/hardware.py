"""Machines by name: known ones, your own, and calibrated ones.

>>> import torch_vis as tv
>>> "H100 SXM" in tv.hardware.known()
True
"""

from torch_vis.analysis.machine.calibration import Calibration, load
from torch_vis.analysis.machine.hardware import Hardware, known, register

__all__ = ["Calibration", "Hardware", "known", "load", "register"]
