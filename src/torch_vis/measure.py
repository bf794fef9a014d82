"""What is measured by running something: an allocator's memory, compiled kernels, this machine.

>>> import torch, torch_vis as tv
>>> tv.measure.memory(torch.nn.Linear(64, 64), torch.ones(8, 64)).peak_bytes > 0
True
"""

from torch_vis.analysis.fusion.compiled_kernels import compiled_kernels as kernels
from torch_vis.analysis.machine.calibrate import calibrate
from torch_vis.analysis.memory.measured import measure_memory as memory

__all__ = ["calibrate", "kernels", "memory"]
