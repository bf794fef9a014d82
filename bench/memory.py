"""Peak process memory of a traced run, against the plain one and the record itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench import child, models, process
from bench.process import MIB
from bench.row import Row

LIMIT = 1.10


def run(quick: bool) -> list[Row]:
    """Per case: peak beyond the record against the plain peak, both of the whole process and above its start."""
    rows = []
    cases = ["inference"] if quick else ["inference", "backward", "step"]
    for case in cases:
        plain, traced = [], []
        for _ in range(1 if quick else 3):
            plain.append(child.call("bench.memory:measure", case=case, traced=False, quick=quick))
            traced.append(child.call("bench.memory:measure", case=case, traced=True, quick=quick))
        rows.extend(_rows(CASES[case][0], plain, traced))
    return rows


def _rows(what: str, plain: list[Any], traced: list[Any]) -> list[Row]:
    rows = []
    for measure, key in (("peak memory", "peak"), ("peak above start", "above")):
        peer, ours = sorted(p[key] for p in plain), sorted(t[key] - t["record"] for t in traced)
        middle = len(peer) // 2
        record = sorted(t["record"] for t in traced)[middle]
        ratio = ours[middle] / peer[middle]
        rows.append(
            Row(
                f"{measure}, {what}",
                f"{ours[middle] / MIB:,.0f} MiB + {record / MIB:.1f} MiB record",
                f"plain {peer[middle] / MIB:,.0f} MiB",
                ratio,
                f"≤ {LIMIT:g}×",
                ratio <= LIMIT,
                ours[0] / peer[0],
            )
        )
    return rows


def measure(case: str, traced: bool, quick: bool) -> dict[str, int]:
    """In a process of its own: the peak, the peak above what was held before the run, and the record's size."""
    torch.set_num_threads(1)  # every thread more has buffers of its own, which come and go
    work = CASES[case][1](quick)
    import torch_vis as tv
    from torch_vis.capture import session as eager

    del eager
    tv.trace(torch.nn.ReLU(), torch.ones(1))
    start = process.held()
    process.forget_peak()
    trace = None
    if traced:
        trace = tv.trace(work)
    else:
        work()
    top = process.peak()
    return {"peak": top, "above": top - start, "record": record_bytes(trace) if trace else 0}


def record_bytes(trace: Any) -> int:
    """What the trace holds of its own: columns, and the copies of memory that the run has overwritten."""
    held = trace.kept
    copies = sum(storage.nbytes() for storage in held.originals.values())
    given = sum(tensor.nbytes for tensors in held.opaque_outputs.values() for tensor in tensors)
    return trace.graph.nbytes + trace.metrics.nbytes + copies + given


def _inference(quick: bool) -> Callable[[], Any]:
    model, data = models.Tower(12, 512), torch.randn(8192 if quick else 16384, 512)

    def work() -> Any:
        with torch.no_grad():
            return model(data).sum()

    return work


def _backward(quick: bool) -> Callable[[], Any]:
    model, ids = models.bert(4, 128)

    def work() -> Any:
        loss = model(ids).last_hidden_state.square().mean()
        loss.backward()
        return loss.detach()

    return work


def _step(quick: bool) -> Callable[[], Any]:
    model, data = models.Tower(12, 1024), torch.randn(2048 if quick else 4096, 1024)
    optimizer = torch.optim.AdamW(model.parameters())

    def work() -> Any:
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return work


CASES = {
    "inference": ("MLP under no_grad", _inference),
    "backward": ("BERT-base fwd+bwd", _backward),
    "step": ("MLP fwd+bwd+AdamW", _step),
}
