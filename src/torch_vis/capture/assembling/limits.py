"""What a recording could not see, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from torch_vis.capture.recording.recorder import Recorder
from torch_vis.capture.recording.source_lines import resolve
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Phase

CALLS = {"_local_scalar_dense": "item()"}


def describe(rec: Recorder, graph: Graph, guessed: int, packed: PackedWeights) -> tuple[str, ...]:
    """One sentence for each kind of thing that is not in the graph, with the source lines it happened at."""
    limits: list[str] = []
    left = Counter((name, _where(rec, graph, site, node)) for name, _, site, node in rec.python_escapes)
    for (name, where), times in left.items():
        short = name.rpartition("::")[2].partition(".")[0]
        call = CALLS.get(short, f"{short}()")
        often = f", {times:,} times" if times > 1 else ""
        if name.startswith("higher_order::"):
            limits.append(f"{short} at {where} went the way that the data of this run decided{often}")
            continue
        limits.append(
            f"{call} took a value to Python at {where}{often}; what was done with it there is not in the graph"
        )
        if short in ("numpy", "__array__", "__dlpack__"):
            limits.append(
                f"the array made by {call} at {where} shares the tensor's memory; writes through it cannot be seen"
            )
    unseen = rec.uncaptured.get
    compiled = len(rec.opaque_nodes) - unseen("filled", 0)
    counted = {
        "calls of compiled code, shown as one node each (torch_vis::compiled) since what runs inside cannot be seen; "
        "a replay takes their outputs as recorded": compiled,
        "operations inside compiled code that were left out": unseen("compiled", 0),
        "tensors that appeared during backward from code that cannot be seen; a replay takes them as recorded": unseen(
            "appeared", 0
        ),
        "tensors that were read before any operation wrote to them (torch_vis::unseen_write): filled by C++ code, "
        "or never initialised; a replay takes them as recorded": unseen("filled", 0),
        "outputs that no recorded operation made: another thread's, or code's that cannot be seen; a replay takes them "
        "as recorded": unseen("outputs", 0),
        "fast paths of MultiheadAttention that were not taken because a torch function mode was there to name calls; "
        "results may differ in the last bits": unseen("fast paths", 0),
        "functions compiled while calls were being named, with Dynamo loaded by the block itself; they are compiled "
        "again after it": unseen("compiled under names", 0),
        "module calls on other threads that were not recorded": unseen("threads", 0),
        "tensors that were given other memory without an operation (.data = …), which is not in the graph": unseen(
            "reassigned", 0
        ),
        "writes through overlapping or irregular views that were taken to touch all they could": guessed,
    }
    limits.extend(f"{count:,} × {what}" for what, count in counted.items() if count)
    if any(rec.type_opaque):
        kinds = sorted(
            {row.layout for row, opaque in zip(rec.type_rows, rec.type_opaque, strict=True) if opaque}
        )
        limits.append(
            f"the memory of {', '.join(kinds)} tensors is not counted, and views into them are not followed"
        )
    limits.extend(_packed(packed))
    if any(device.startswith("cuda") for device in graph.devices):
        limits.append(
            "times of CUDA operations are those of the host: they do not include the kernels' own run time"
        )
    return tuple(limits)


def _packed(found: PackedWeights) -> list[str]:
    """What packed weights hold, which operations are given as objects."""
    opaque, limits = "× packed weights, which are opaque to torch", []
    if found.objects:
        limits.append(
            f"{found.objects:,} {opaque}: the about {found.size_bytes:,} bytes ({found.elements:,} elements) that they "
            "hold are neither in the figures of memory nor among the parameters"
        )
    if found.unknown:
        limits.append(f"{found.unknown:,} {opaque}: what they hold is not known and not counted")
    return limits


def _where(rec: Recorder, graph: Graph, site: int, node: int) -> str:
    """The user's line that a value left at; of an optimizer's own reading, the line of its step."""
    line = str(resolve(*rec.sites[site])) if site >= 0 else "an unknown line"
    if node >= 0 and graph.node_phase[node] == Phase.OPTIMIZER:
        return f"{line}, by {graph.nodes[node].scope.type} itself"
    return line


class PackedWeights(NamedTuple):
    """How many such objects a run was given, what the tensors inside hold, and how many do not tell."""

    objects: int
    size_bytes: int
    elements: int
    unknown: int


def packed_weights(objects: Iterable[Any]) -> PackedWeights:
    """What objects that operations were given hold; one that is given twice counts once.

    The tensors are those that ``torch.save`` would write, which are copies of what was packed: about as large.

    >>> layer = torch.ao.nn.quantized.dynamic.Linear(8, 4)
    >>> packed_weights([layer._packed_params._packed_params])
    PackedWeights(objects=1, size_bytes=48, elements=36, unknown=0)
    """
    given = {hash(item): item for item in objects if isinstance(item, torch.ScriptObject)}
    count = total = elements = unknown = 0
    for item in given.values():
        tensors = _tensors(item)
        if tensors is None:
            unknown += "Params" in str(item._type())  # others, a process group say, are no weights
        elif tensors:
            count += 1
            total += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            elements += sum(tensor.numel() for tensor in tensors)
    return PackedWeights(count, total, elements, unknown)


def _tensors(item: Any) -> list[torch.Tensor] | None:
    """The tensors inside an object and the objects inside it, each once; None where it cannot tell."""
    found: dict[int, torch.Tensor] = {}
    left = [item]
    try:
        while left:
            part = left.pop()
            if isinstance(part, torch.Tensor):
                if part.is_quantized or part.is_floating_point():  # else it is sizes and strides
                    found[part.data_ptr()] = part
            elif isinstance(part, torch.ScriptObject):
                left.append(part.__getstate__())
            elif isinstance(part, (list, tuple)):
                left += part
    except (RuntimeError, AttributeError):  # a class without a state; NotImplementedError is a RuntimeError
        return None
    return list(found.values())
