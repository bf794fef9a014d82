"""One HTML file: the viewer's bundle, the data of one run or of two, and a policy that lets in nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from torch_vis.graph import Metrics
from torch_vis.graph.flow import parameters_used
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.lifetimes import peak_memory
from torch_vis.graph.metrics import METRIC_INFO
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Flag, Phase
from torch_vis.graph.text import inert
from torch_vis.graph.union import ADDED, CHANGED, REMOVED, SAME, UnionGraph
from torch_vis.views.page.payload import payload, plain_meta
from torch_vis.views.text.breaks import Breaks

BUNDLE = Path(__file__).parent


def save(path: PathLike, run: Run) -> None:
    """Write the page of a run, whole or not at all.

    >>> import tempfile
    >>> from torch_vis.graph import GraphBuilder, Metrics
    >>> from torch_vis.graph.run import Run
    >>> path = tempfile.mkdtemp() + "/run.html"
    >>> save(path, Run(GraphBuilder().build(), Metrics(), meta={"model": "Net"}))
    >>> "<title>Net" in open(path, encoding="utf-8").read()
    True
    """
    text = html(run)
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def html(run: Run, *, inside: bool = False, shared: bool = False) -> str:
    """The page as text.

    ``inside`` another one, its panel is shut at first; ``shared``, the one around it has the viewer (``giver``).
    """
    breaks = [vars(row) for row in Breaks(run.meta.get("program"))]
    return page(run.name, *payload(run, breaks=breaks), inside=inside, shared=shared)


# Asks the page around for the viewer until it has it; what is not the viewer is refused by the policy.
LOADER = """(() => {
  const ask = () => parent.postMessage({torchVis: "viewer?", key: KEY}, "*");
  const timer = setInterval(ask, 400);
  const note = setTimeout(() => {
    document.getElementById("note").textContent =
      "The viewer is in another cell of this notebook, which is not shown. Run that cell, or use t.show() here.";
  }, 4000);
  addEventListener("message", (event) => {
    if (event.data?.torchVis !== KEY || document.querySelector("style")) return;
    clearInterval(timer);
    clearTimeout(note);
    document.getElementById("note").remove();
    for (const [name, text] of [["style", event.data.style], ["script", event.data.script]]) {
      const element = document.createElement(name);
      element.textContent = text;
      document.body.append(element);
    }
  });
  ask();
})();"""
# Gives the viewer to every page in the cells of a notebook that asks for it.
GIVER = """(() => {
  (window.torchVisViewers ??= {})[KEY] = {script: SCRIPT, style: STYLE};
  if (window.torchVisGives) return;
  window.torchVisGives = true;
  addEventListener("message", (event) => {
    const viewer = window.torchVisViewers[event.data?.key];
    if (event.data?.torchVis === "viewer?" && viewer)
      event.source.postMessage({torchVis: event.data.key, ...viewer}, "*");
  });
})();"""


def giver() -> str:
    """A script for the page around: it holds the one copy of the viewer that pages in a notebook share."""
    parts = {"KEY": _key(), "SCRIPT": _asset("viewer.js"), "STYLE": _asset("viewer.css")}
    text = GIVER
    for name, value in parts.items():
        text = text.replace(name, json_text(value), 1)
    return text


def _key() -> str:
    return _digest(_asset("viewer.js") + _asset("viewer.css"))[:16]


def page(
    title: str, tables: Mapping[str, Any], columns: str, *, inside: bool = False, shared: bool = False
) -> str:
    """A page around data that has been packed already; ``shared``, it asks the page around for the viewer."""
    rest = {name: part for name, part in tables.items() if name != "tables"}
    return document(
        title,
        f'<script type="application/json" id="tables">{json_text(rest)}</script>\n'
        f'<script type="text/plain" id="names">{_packed(tables.get("tables", {}))}</script>\n'
        f'<script type="text/plain" id="columns">{columns}</script>\n',
        inside=inside,
        shared=shared,
    )


def document(
    title: str, elements: str, *, inside: bool = False, shared: bool = False, world: bool = False
) -> str:
    """A page with the viewer's bundle, around elements that hold its data.

    Of a ``world`` of ranks it has the bundle of that, and the viewer as text, which runs in the frames of its ranks.
    """
    script = _asset("viewer.js")
    styles = [_asset(name) for name in (("viewer.css", "world.css") if world else ("viewer.css",))]
    first = _asset("world.js") if world else LOADER.replace("KEY", json_text(_key())) if shared else script
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in dict.fromkeys([first, script]))
    style_hashes = " ".join(f"'sha256-{_digest(style)}'" for style in styles)
    panel = ' data-panel="shut"' if inside else ""
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src {style_hashes}; "
        "worker-src blob:; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f"<title>{escape(inert(title))} · torch_vis</title>\n",
            *(() if shared else (f"<style>{style}</style>\n" for style in styles)),
            f"</head>\n<body{panel}>\n",
            "<noscript>This page draws the model with JavaScript, which is switched off here.</noscript>\n",
            '<p id="note"></p>\n' if shared else "",
            elements,
            f'<script type="text/plain" id="viewer">{script}</script>\n' if world else "",
            f"<script>{first}</script>\n</body>\n</html>\n",
        ]
    )


def json_text(data: Any) -> str:
    """JSON in which nothing can end or begin an element: what a program calls its modules stays text."""
    text = json.dumps(data, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _packed(tables: Any) -> str:
    """JSON as compressed text: names and paths of a large model are many, and much alike."""
    text = json.dumps(tables, separators=(",", ":"), default=str)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "backslashreplace"), 9)).decode()


@cache
def _asset(name: str) -> str:
    return (BUNDLE / name).read_text(encoding="utf-8")


@lru_cache(maxsize=4)
def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# Metrics of which the page has the figures of A as well.
COMPARED = tuple(info.difference_of for info in METRIC_INFO.values() if info.difference_of)


# Where something changed, what, and the operations of both runs that it is about.
ChangeLine = tuple[str, str, Sequence[int], Sequence[int]]


def save_comparison(
    path: PathLike,
    a: Run,
    b: Run,
    alignment: Any,
    *,
    names: tuple[str, str] | None = None,
    words: Mapping[int, Sequence[str]] | None = None,
    lines: Sequence[ChangeLine] = (),
) -> None:
    """Write a page that shows two aligned runs as one graph; ``a`` is the earlier one.

    ``alignment`` has for each operation, scope and value of ``a`` its counterpart in ``b``, and which operations of
    ``b`` differ (``changed``); ``words`` says in what they do, and ``lines`` what changed by module.
    """
    title, tables, columns = comparison(a, b, alignment, names=names, words=words, lines=lines)
    with replacing(path) as file:
        file.write(page(title, tables, columns).encode("utf-8", "backslashreplace"))


def comparison(
    a: Run,
    b: Run,
    alignment: Any,
    *,
    names: tuple[str, str] | None = None,
    words: Mapping[int, Sequence[str]] | None = None,
    lines: Sequence[ChangeLine] = (),
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
    before, after = union.reads_of_one()
    more = {
        "compare": {
            "a": name_a,
            "b": name_b,
            "counts": counts,
            "notes": notes,
            "sides": sides,
            "changes": _changes(union, words or {}),
            "lines": [[path, what, _first_node(union, *nodes)] for path, what, *nodes in lines],
            "was": union.renamed_modules(),
        },
        "breaks": [vars(row) for row in Breaks(b.meta.get("program"))],
        "read_before": before,
        "read_after": after,
    }
    memory = None if b.lifetimes is None else union.memory(b.lifetimes.by_use)
    run = Run(union.graph, metrics, limits, meta)
    return title, *payload(run, recomputed=union.recomputed(), memory=memory, **more)


def _measured(run: Run) -> Metrics:
    return run.metrics.with_column(parameters_used(run.graph))


def _side(name: str, run: Run) -> dict[str, Any]:
    """The totals of one of the two runs."""
    graph, metrics = run.graph, run.metrics
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
        "meta": plain_meta(run),
    }


def _first_node(union: UnionGraph, nodes_a: Sequence[int], nodes_b: Sequence[int]) -> int:
    """The first of some operations of both runs in the graph of both; -1 for none."""
    nodes = [int(union.node_of_b[node]) for node in nodes_b] + [
        int(union.node_of_a[node]) for node in nodes_a
    ]
    return min(nodes, default=-1)


def _changes(union: UnionGraph, words: Mapping[int, Sequence[str]]) -> dict[str, Any]:
    """What differs in which operation: every text once, and each operation with the indices of its texts."""
    texts: dict[str, int] = {}
    rows = [
        [int(union.node_of_b[node]), *(texts.setdefault(text, len(texts)) for text in differences)]
        for node, differences in words.items()
        if differences
    ]
    return {"texts": list(texts), "rows": sorted(rows)}
