"""Advice that takes several runs of a model: the batch size, quantization, pruning, checkpointing.

>>> import torch, torch_vis as tv
>>> advice = tv.advise.quantization(torch.nn.Linear(8, 8), torch.ones(2, 8))
>>> type(advice).__name__
'QuantizationReport'
"""

from torch_vis.analysis.advice.batch_size import batch_size
from torch_vis.analysis.advice.checkpointing import checkpointing
from torch_vis.analysis.advice.pruning.report import pruning
from torch_vis.analysis.advice.quantization import quantization

__all__ = ["batch_size", "checkpointing", "pruning", "quantization"]
