"""What the contents of a tensor that a trace holds can be told by, without looking at all of it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.graph.graph import Graph

SAMPLES = 512  # elements that are looked at, all over the tensor


def contents_of(graph: Graph, held: KeptTensors | None) -> Callable[[int], bytes | None]:
    """For a value from outside some of its bytes; None where they are not held, or are all the same.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.LayerNorm(3), torch.arange(3.0))
    >>> [contents_of(t.graph, t._held)(value.index) is None for value in t.graph.inputs]
    [False, True, True]
    """
    known: dict[int, bytes | None] = {}

    def told(value: int) -> bytes | None:
        if value not in known:
            known[value] = None if held is None else _sample(graph, held, value)
        return known[value]

    return told


def _sample(graph: Graph, held: KeptTensors, value: int) -> bytes | None:
    number = int(graph.value_storage[value])
    storage = held.originals.get(number) or held.storages.get(number)
    kind = graph.types[int(graph.value_type[value])]
    if storage is None or storage.device.type == "meta" or not kind.nbytes or kind.itemsize is None:
        return None
    begin = int(graph.value_offset[value]) * kind.itemsize
    if begin + kind.nbytes > storage.nbytes():
        return None
    with torch.no_grad():
        memory = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        elements = memory[begin : begin + kind.nbytes].view(-1, kind.itemsize)
        chosen = torch.linspace(0, len(elements) - 1, min(SAMPLES, len(elements))).long()
        some = elements[chosen.to(elements.device)].cpu().numpy()
    return None if (some == some[0]).all() else bytes(some.tobytes())
