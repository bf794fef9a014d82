"""What a recording could not see, in sentences."""

from __future__ import annotations

from collections import Counter

from torch_vis.capture.recorder import Recorder
from torch_vis.capture.sites import resolve
from torch_vis.graph.graph import Graph

CALLS = {"_local_scalar_dense": "item()"}


def describe(rec: Recorder, graph: Graph, guessed: int) -> tuple[str, ...]:
    """One sentence for each kind of thing that is not in the graph, with the source lines it happened at."""
    limits: list[str] = []
    left = Counter((name, site) for name, _, site, _ in rec.escapes)
    for (name, site), times in left.items():
        short = name.rpartition("::")[2].partition(".")[0]
        call = CALLS.get(short, f"{short}()")
        where = str(resolve(*rec.sites[site])) if site >= 0 else "an unknown line"
        often = f", {times:,} times" if times > 1 else ""
        limits.append(
            f"{call} took a value to Python at {where}{often}; what was done with it there is not in the graph"
        )
        if short in ("numpy", "__array__", "__dlpack__"):
            limits.append(
                f"the array made by {call} at {where} shares the tensor's memory; writes through it cannot be seen"
            )
    compiled = len(rec.opaque_nodes) - rec.unseen.get("filled", 0)
    if compiled:
        limits.append(
            f"{compiled:,} compiled calls are shown as one node each (torch_vis::compiled); "
            "what ran inside them cannot be seen, and a replay takes their outputs as recorded"
        )
    if rec.unseen.get("compiled"):
        limits.append(f"{rec.unseen['compiled']:,} operations inside compiled code were left out")
    if rec.unseen.get("appeared"):
        limits.append(
            f"{rec.unseen['appeared']:,} tensors appeared during backward from code that cannot be seen; "
            "a replay takes them as recorded"
        )
    if rec.unseen.get("filled"):
        limits.append(
            f"{rec.unseen['filled']:,} tensors were read though no operation had written to them "
            "(torch_vis::unseen_write): C++ code filled them unseen, or they were never initialised; "
            "a replay takes them as recorded"
        )
    if rec.unseen.get("threads"):
        limits.append(f"{rec.unseen['threads']:,} module calls ran on other threads and were not recorded")
    if rec.unseen.get("reassigned"):
        limits.append(
            f"{rec.unseen['reassigned']:,} tensors were given other memory without an operation (.data = …); "
            "the assignment itself is not in the graph"
        )
    if any(rec.type_opaque):
        kinds = sorted(
            {row.layout for row, opaque in zip(rec.type_rows, rec.type_opaque, strict=True) if opaque}
        )
        limits.append(
            f"the memory of {', '.join(kinds)} tensors is not counted, and views into them are not followed"
        )
    if guessed:
        limits.append(
            f"{guessed:,} writes through overlapping or irregular views were taken to touch all they could"
        )
    if any(device.startswith("cuda") for device in graph.devices):
        limits.append(
            "times of CUDA operations are those of the host: they do not include the kernels' own run time"
        )
    return tuple(limits)
