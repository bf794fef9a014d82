"""The run on a time line, as trace events: for Perfetto, chrome://tracing and anything else that reads them.

Each phase is a track. Modules are nested slices around the operations that ran in them, arrows lead from forward
operations to their backward ones, and the bytes of live tensors are a counter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torch_vis.errors import UsageError
from torch_vis.exporters.facts import circumstances
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import inert
from torch_vis.graph.tree import inner_path
from torch_vis.ops.display_names import op_label

LINES_AT_ONCE = 5_000


def save(path: PathLike, run: Run) -> None:
    """Write the events; times are microseconds from the first operation on."""
    _check_times(run)
    _write(path, run.meta, _events(run.graph, run.metrics, str(run.meta.get("model") or "run"), 1, 0))


def save_ranks(
    path: PathLike, ranks: Sequence[tuple[int, Run, int]], meetings: Iterable[Sequence[tuple[int, int]]]
) -> None:
    """Write the events of several ranks, each a process, which began so many nanoseconds after the first.

    Arrows go through the operations that meet, given as ranks and nodes, in the order in which they began.
    """
    for _, run, _ in ranks:
        _check_times(run)
    _write(path, ranks[0][1].meta if ranks else {}, _events_of_ranks(ranks, meetings))


def _check_times(run: Run) -> None:
    if len(run.graph) and not {"start_ns", "time_ns"} <= set(run.metrics):
        raise UsageError("a time line needs the times of the operations, and this trace has none")


def _events_of_ranks(
    ranks: Sequence[tuple[int, Run, int]], meetings: Iterable[Sequence[tuple[int, int]]]
) -> Iterator[str]:
    when: dict[int, Any] = {}
    tracks: dict[int, Any] = {}
    for number, (rank, run, began) in enumerate(ranks):
        graph, metrics = run.graph, run.metrics
        host = f" on {run.meta['host']}" if run.meta.get("host") else ""
        yield from _events(graph, metrics, f"rank {rank}{host}", rank + 1, began)
        yield f'{{"ph":"M","pid":{rank + 1},"name":"process_sort_index","args":{{"sort_index":{number}}}}}'
        if len(graph):
            start = metrics["start_ns"].values.astype(np.int64)
            time = metrics["time_ns"].values.astype(np.int64)
            when[rank] = start + time // 2 + began
            tracks[rank] = _track_of(graph, _tracks(graph, start, time))
    for number, meeting in enumerate(meetings):
        stops = sorted((int(when[rank][node]), rank, node) for rank, node in meeting if rank in when)
        if len(stops) < 2:
            continue
        kinds = ['"ph":"s"', *['"ph":"t"'] * (len(stops) - 2), '"ph":"f","bp":"e"']
        for kind, (moment, rank, node) in zip(kinds, stops):
            at = f'"pid":{rank + 1},"tid":{int(tracks[rank][node])},"ts":{moment // 1000}.{moment % 1000:03}'
            yield f'{{{kind},"id":"meeting {number}",{at},"name":"ranks meet","cat":"ranks"}}'


def _track_of(graph: Graph, tracks: Sequence[Any]) -> Any:
    """The track of each operation."""
    of_node = np.zeros(len(graph), dtype=np.int64)
    for track, nodes in enumerate(tracks, 1):
        of_node[nodes] = track
    return of_node


def _write(path: PathLike, meta: Mapping[str, Any], events: Iterable[str]) -> None:
    with replacing(path) as file:
        file.write(b'{"displayTimeUnit":"ns","otherData":')
        file.write(json.dumps({key: str(value) for key, value in circumstances(meta).items()}).encode())
        file.write(b',"traceEvents":[\n')
        batch: list[str] = []
        separator = ""
        for event in events:
            batch.append(event)
            if len(batch) == LINES_AT_ONCE:
                file.write((separator + ",\n".join(batch)).encode("utf-8", "replace"))
                batch, separator = [], ",\n"
        file.write((separator + ",\n".join(batch)).encode("utf-8", "replace") if batch else b"")
        file.write(b"\n]}\n")


def _events(graph: Graph, metrics: Metrics, name: str, process: int, began: int) -> Iterator[str]:
    """The events of one run as a process that began so many nanoseconds after the first."""
    yield _named("process_name", process, 0, name)
    if not len(graph):
        return
    start = metrics["start_ns"].values.astype(np.int64) + began
    duration = metrics["time_ns"].values.astype(np.int64)
    tracks = _tracks(graph, start, duration)
    for track, nodes in enumerate(tracks):
        phase = Phase(graph.node_phase[nodes[0]]).name.lower()
        again = sum(graph.node_phase[other[0]] == graph.node_phase[nodes[0]] for other in tracks[:track])
        yield _named("thread_name", process, track + 1, f"{phase} {again + 1}" if again else phase)
    words = _Words(graph, metrics)
    for track, nodes in enumerate(tracks, 1):
        yield from _modules(graph, nodes, start, start + duration, process, track)
        begins, lasts = _us(start[nodes]), _us(duration[nodes])
        for node, begin, last in zip(nodes.tolist(), begins, lasts):
            yield f'{{"ph":"X","pid":{process},"tid":{track},"ts":{begin},"dur":{last},{words.of(node)}}}'
    yield from _arrows(graph, start, duration, process, _track_of(graph, tracks))
    yield from _counter(metrics, start + duration, process)


def _us(times: Any) -> list[str]:
    """Nanoseconds as the text of microseconds, exactly."""
    return [f"{time // 1000}.{time % 1000:03}" for time in times.tolist()]


def _named(what: str, process: int, track: int, name: str) -> str:
    return f'{{"ph":"M","pid":{process},"tid":{track},"name":"{what}","args":{{"name":{_json(name)}}}}}'


def _tracks(graph: Graph, start: Any, duration: Any) -> list[Any]:
    """The operations of each phase in order of time; those of parallel threads on tracks of their own."""
    tracks = []
    for phase in Phase:
        rest = np.flatnonzero(graph.node_phase == phase)
        rest = rest[np.argsort(start[rest], kind="stable")]
        while len(rest):
            ends = np.maximum.accumulate((start + duration)[rest])
            beside = np.concatenate([[False], start[rest][1:] < ends[:-1]])
            if not beside.any():
                tracks.append(rest)
                break
            kept, left, until = [], [], -1
            for node, begin, end in zip(
                rest.tolist(), start[rest].tolist(), (start + duration)[rest].tolist()
            ):
                if begin >= until:
                    kept.append(node)
                    until = end
                else:
                    left.append(node)
            tracks.append(np.array(kept))
            rest = np.array(left, dtype=np.int64)
    return tracks


def _modules(graph: Graph, nodes: Any, start: Any, end: Any, process: int, track: int) -> Iterator[str]:
    """A slice for every stretch of operations in one call of a module, outer ones before inner ones."""
    parents = graph.scope_parent.tolist()
    kinds = [_json(module.kind) for module in graph.modules]
    scopes = graph.node_scope[nodes]
    breaks = np.concatenate([[0], np.flatnonzero(np.diff(scopes)) + 1, [len(nodes)]])
    # scope, and the time it was opened
    open_: list[tuple[int, int]] = []
    last = 0
    for first, stop in zip(breaks[:-1].tolist(), breaks[1:].tolist()):
        path = []
        scope = int(scopes[first])
        while scope > 0:
            path.append(scope)
            scope = parents[scope]
        path.reverse()
        shared = 0
        while shared < min(len(path), len(open_)) and open_[shared][0] == path[shared]:
            shared += 1
        while len(open_) > shared:
            yield _slice(graph, *open_.pop(), last, process, track, kinds)
        begin = int(start[nodes[first]])
        open_ += [(scope, begin) for scope in path[shared:]]
        last = int(end[nodes[stop - 1]])
    while open_:
        yield _slice(graph, *open_.pop(), last, process, track, kinds)


def _slice(graph: Graph, scope: int, begin: int, end: int, process: int, track: int, kinds: list[str]) -> str:
    module = int(graph.scope_module[scope])
    when = f'"ts":{begin // 1000}.{begin % 1000:03},"dur":{(end - begin) // 1000}.{(end - begin) % 1000:03}'
    args = f'"args":{{"call":{int(graph.scope_call[scope])},"kind":{kinds[module]}}}'
    at = f'"pid":{process},"tid":{track},{when}'
    return f'{{"ph":"X",{at},"name":{_label(graph, scope)},"cat":"module",{args}}}'


def _label(graph: Graph, scope: int) -> str:
    """A module's name inside the one that called it, and its class."""
    path, type_, _ = graph.modules[int(graph.scope_module[scope])]
    above = graph.scope_paths[int(graph.scope_parent[scope])]
    name = inner_path(path, above)
    return _json(f"{name} · {type_}" if name and name != type_ else type_)


def _json(item: Any) -> str:
    # Perfetto shows escapes as they are written
    return inert(json.dumps(item, ensure_ascii=False))


class _Words:
    """The name and the facts of each operation as JSON, put together from pieces made once."""

    def __init__(self, graph: Graph, metrics: Metrics) -> None:
        self.names = [_json(op_label(call.op)) for call in graph.calls]
        self.calls = [_json(call.format()) for call in graph.calls]
        self.sites = [_json(site.short) for site in graph.sites]
        self.paths = [_json(module.path) for module in graph.modules]
        self.types = [_json(str(row)) for row in graph.types]
        self.call = graph.node_call.tolist()
        self.site = graph.node_site.tolist()
        self.module = graph.scope_module[graph.node_scope].tolist()
        first = graph.first_output
        self.output_types = np.where(first >= 0, graph.value_type[first], -1).tolist()
        self.figures = [
            (_json(name), column.values.tolist(), column.known_rows.tolist())
            for name in ("alloc_bytes", "flops", "moved_bytes")
            if name in metrics
            for column in [metrics[name]]
        ]

    def of(self, node: int) -> str:
        call, site, output_type = self.call[node], self.site[node], self.output_types[node]
        facts = [f'"call":{self.calls[call]},"module":{self.paths[self.module[node]]},"node":{node}']
        if site >= 0:
            facts.append(f'"source":{self.sites[site]}')
        if output_type >= 0:
            facts.append(f'"output":{self.types[output_type]}')
        for name, values, known in self.figures:
            if known[node]:
                facts.append(f"{name}:{values[node]}")
        return f'"name":{self.names[call]},"cat":"operation","args":{{{",".join(facts)}}}'


def _arrows(graph: Graph, start: Any, duration: Any, process: int, track: Any) -> Iterator[str]:
    """From the middle of each forward operation to the first of its backward operations."""
    linked = np.flatnonzero(graph.node_link >= 0)
    _, first = np.unique(graph.node_link[linked], return_index=True)
    middle = start + duration // 2
    for node in linked[first].tolist():
        forward = int(graph.node_link[node])
        if middle[forward] > middle[node]:
            continue
        for kind, end in (('"ph":"s"', forward), ('"ph":"f","bp":"e"', node)):
            when = int(middle[end])
            at = f'"pid":{process},"tid":{int(track[end])},"ts":{when // 1000}.{when % 1000:03}'
            # arrows of one process alone are told apart by a number, of several by its name as well
            number = node if process == 1 else f'"{process}.{node}"'
            yield f'{{{kind},"id":{number},{at},"name":"gradient","cat":"gradient"}}'


def _counter(metrics: Metrics, end: Any, process: int) -> Iterator[str]:
    if "live_bytes" not in metrics:
        return
    column = metrics["live_bytes"]
    values = column.values
    changed = np.concatenate([[True], np.diff(values) != 0])
    rows = np.flatnonzero(changed & column.known_rows)
    rows = rows[np.argsort(end[rows], kind="stable")]
    for when, amount in zip(_us(end[rows]), values[rows].tolist()):
        yield f'{{"ph":"C","pid":{process},"ts":{when},"name":"live tensors","args":{{"bytes":{amount}}}}}'
