"""The page of a comparison: both runs as one graph, with what was added, removed and changed, and the differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis.graph import Metrics
from torch_vis.graph.flow import parameters_used
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.lifetimes import peak_memory
from torch_vis.graph.metrics import METRIC_INFO
from torch_vis.graph.record import Run
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.union import ADDED, CHANGED, REMOVED, SAME, UnionGraph
from torch_vis.views.page.page import page
from torch_vis.views.page.payload import payload, plain_meta
from torch_vis.views.text.breaks import Breaks

# Metrics of which the page has the figures of A as well.
COMPARED = tuple(info.difference_of for info in METRIC_INFO.values() if info.difference_of)


def save_comparison(
    path: PathLike,
    a: Run,
    b: Run,
    alignment: Any,
    *,
    names: tuple[str, str] | None = None,
    words: Mapping[int, Sequence[str]] | None = None,
) -> None:
    """Write a page that shows two aligned runs as one graph; ``a`` is the earlier one.

    ``alignment`` has for each operation, scope and value of ``a`` its counterpart in ``b``, and which operations of
    ``b`` differ (``changed``); ``words`` says in what they do.
    """
    title, tables, columns = comparison(a, b, alignment, names=names, words=words)
    with replacing(path) as file:
        file.write(page(title, tables, columns).encode("utf-8", "backslashreplace"))


def comparison(
    a: Run,
    b: Run,
    alignment: Any,
    *,
    names: tuple[str, str] | None = None,
    words: Mapping[int, Sequence[str]] | None = None,
) -> tuple[str, Mapping[str, Any], str]:
    """Title, tables and columns of the page."""
    name_a, name_b = names or (a.name, b.name)
    title = f"{name_a} → {name_b}" if name_a != name_b else f"{name_a}: A → B"
    union = UnionGraph(
        a.graph,
        b.graph,
        alignment.to_b,
        alignment.scope_to_b,
        alignment.wiring.value_to_b,
        alignment.changed,
    )
    status = union.status()
    metrics = union.metrics(_measured(a), _measured(b), COMPARED)
    counts = {
        "the same": int((status == SAME).sum()),
        "added (only in B)": int((status == ADDED).sum()),
        "removed (only in A)": int((status == REMOVED).sum()),
        "changed": int((status == CHANGED).sum()),
    }
    notes = [
        "Operations belong together by structure: modules by name or by what they do, operations by their order. "
        "Differences are B − A: an operation that is only in one of them counts with all that it takes. "
        "Figures that stand alone, and the memory and time lines, are those of B."
    ]
    limits = [f"A: {text}" for text in a.limits] + [f"B: {text}" for text in b.limits]
    meta = {**b.meta, "model": title}
    sides = [_side(name_a, a), _side(name_b, b)]
    more = {
        "compare": {
            "a": name_a,
            "b": name_b,
            "counts": counts,
            "notes": notes,
            "sides": sides,
            "changes": _changes(union, words or {}),
            "was": union.renamed_modules(),
        },
        "breaks": [vars(row) for row in Breaks(b.meta.get("program"))],
        "read_before": union.reads_of_removed(),
    }
    memory = None if b.lifetimes is None else union.memory(b.lifetimes.by_use)
    run = Run(union.graph, metrics, limits, meta)
    return title, *payload(run, recomputed=union.recomputed(), memory=memory, **more)


def _measured(run: Run) -> Metrics:
    return run.metrics.with_column(parameters_used(run.graph))


def _side(name: str, run: Run) -> dict[str, Any]:
    """What one of the two runs comes to by itself."""
    graph, metrics, meta = run.graph, run.metrics, run.meta
    totals = {}
    for metric in ("time_ns", "alloc_bytes", "flops", "moved_bytes"):
        if metric in metrics:
            totals[metric] = [metrics[metric].total(), metrics[metric].uncovered]
    counts = np.bincount(graph.node_phase, minlength=len(Phase))
    again, peak = graph.tree.recomputed, peak_memory(metrics)
    return {
        "name": name,
        "phases": {phase.name.lower(): int(counts[phase]) for phase in Phase if counts[phase]},
        "operations": len(graph),
        "tensors": len(graph.value_type),
        "calls": sum(scope.kind == "module" and not again[scope.index] for scope in graph.scopes),
        "recomputed": int((graph.node_flags & Flag.RECOMPUTE != 0).sum()),
        "peak_bytes": None if peak is None else peak.size_bytes,
        "totals": totals,
        "meta": plain_meta(meta),
    }


def _changes(union: UnionGraph, words: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    """What differs in which operation: every text once, and each operation with the indices of its texts."""
    texts: dict[str, int] = {}
    rows = [
        [int(union.node_of_b[node]), *(texts.setdefault(text, len(texts)) for text in differences)]
        for node, differences in words.items()
        if differences
    ]
    return {"texts": list(texts), "rows": sorted(rows)}
