"""What reports say of gradients that were there before the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from torch_vis.analysis.gradients.accumulated import Accumulated, accumulated
from torch_vis.analysis.gradients.tensor_stats import outside_tensors

if TYPE_CHECKING:
    from torch_vis.capture.kept_tensors import KeptTensors
    from torch_vis.graph.graph import Graph


def filled_before(graph: Graph, held: KeptTensors | None) -> dict[str, Accumulated]:
    """The gradients that the run added to others; those that were zero before are the run's own."""
    found = accumulated(graph)
    if not found:
        return {}
    before = np.array(sorted({row.before for row in found.values()}), dtype=np.int64)
    empty = {value for value, tensor in outside_tensors(graph, held, before) if _is_zero(tensor)}
    return {name: row for name, row in found.items() if row.before not in empty}


def _is_zero(tensor: torch.Tensor) -> bool:
    if tensor.is_nested or tensor.is_meta:
        return False
    return not bool((tensor if tensor.layout == torch.strided else tensor.to_dense()).any())


def accumulation_note(found: Mapping[str, Accumulated], where: str = "") -> str:
    """That ``.grad`` was not empty, which of the two is shown, and what to do."""
    mixed = sum(row.own is None for row in found.values())
    shown = "what this run added is shown" if mixed < len(found) else "both together are shown"
    if 0 < mixed < len(found):
        shown += f", and of {mixed:,} both together"
    return (
        f"`.grad` was not empty before the run{where}: {len(found):,} gradients were accumulated into what was "
        f"there; {shown}. Call zero_grad() first"
    )
