"""Advice that takes several runs of a model: the batch size, quantization, pruning, checkpointing.

>>> import torch, torch_vis as tv
>>> advice = tv.advise.quantization(torch.nn.Linear(8, 8), torch.ones(2, 8))
>>> type(advice).__name__
'Quantization'
"""

from torch_vis.analysis.advice.batch_size.report import analyze_batch_size as batch_size
from torch_vis.analysis.advice.checkpointing import checkpointing
from torch_vis.analysis.advice.pruning.report import analyze_pruning as pruning
from torch_vis.analysis.advice.quantization.report import analyze_quantization as quantization

__all__ = ["batch_size", "checkpointing", "pruning", "quantization"]
