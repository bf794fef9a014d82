"""The graph as GraphML, for yEd, Gephi, Cytoscape, networkx: operations, tensors from outside, results, and links."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax.saxutils import escape

from torch_vis.exporters.operations import links, operations
from torch_vis.graph import Graph
from torch_vis.graph.io.atomic import PathLike, replacing
from torch_vis.graph.run import Run
from torch_vis.graph.schema import Kind
from torch_vis.graph.text import inert

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
KINDS = [kind.name.lower() for kind in Kind]


def save(path: PathLike, run: Run) -> None:
    """Write the graph; an attribute that is not known is left out."""
    graph = run.graph
    nodes = {name: (cells.tolist(), _known(known)) for name, (cells, known) in operations(graph).items()}
    measured = {name: column for name, column in run.metrics.items() if column.along == "node"}
    for name, column in measured.items():
        nodes[name] = (column.values.tolist(), _known(column.known))
    keys = {"kind": "string", "label": "string", **dict.fromkeys(nodes, "string")}
    keys |= dict.fromkeys(("call", "line", "link"), "long")
    keys |= {
        name: "double" if column.values.dtype.kind == "f" else "long" for name, column in measured.items()
    }
    ids = {name: f"n{number}" for number, name in enumerate(keys)}
    with replacing(path) as file:
        file.write(HEAD.encode())
        for name, kind in keys.items():
            file.write(_key(ids[name], "node", name, kind).encode())
        for name, kind in EDGE_KEYS.items():
            file.write(_key(f"e_{name}", "edge", name, kind).encode())
        file.write(b'<graph edgedefault="directed">\n')
        for line in (*_operations(graph, nodes, ids), *_outside(graph, ids), *_edges(graph)):
            file.write(line.encode())
        file.write(b"</graph>\n</graphml>\n")


EDGE_KEYS = {"value": "long", "kind": "string", "shape": "string", "dtype": "string"}


def _known(mask: Any) -> list[bool] | None:
    return None if mask is None else mask.tolist()


def _key(number: str, along: str, name: str, kind: str) -> str:
    return f'<key id="{number}" for="{along}" attr.name="{plain(name)}" attr.type="{kind}"/>\n'


def _operations(graph: Graph, columns: Mapping[str, Any], ids: Mapping[str, str]) -> Iterator[str]:
    names = columns["name"][0]
    for node in range(len(graph)):
        cells = [_data(ids["kind"], "operation"), _data(ids["label"], names[node])]
        for name, (values, known) in columns.items():
            if (known is None or known[node]) and values[node] is not None:
                cells.append(_data(ids[name], values[node]))
        yield f'<node id="{node}">{"".join(cells)}</node>\n'


def _outside(graph: Graph, ids: Mapping[str, str]) -> Iterator[str]:
    """Tensors that came from outside, and results."""
    for value in graph.inputs:
        facts = {
            "kind": value.role,
            "label": value.name or value.role,
            "shape": value.shape,
            "dtype": value.dtype,
        }
        cells = "".join(_data(ids[name], fact) for name, fact in facts.items())
        yield f'<node id="value:{value.index}">{cells}</node>\n'
    for result in graph.outcomes:
        cells = _data(ids["kind"], result.kind) + _data(ids["label"], result.name)
        yield f'<node id="result:{result.index}">{cells}</node>\n'


def _edges(graph: Graph) -> Iterator[str]:
    types = [_data("e_shape", row.shape) + _data("e_dtype", row.dtype) for row in graph.types]
    kinds = [_data("e_kind", kind) for kind in KINDS]
    of_value = graph.value_type.tolist()
    for source, target, value, kind in links(graph):
        data = f"{_data('e_value', value)}{kinds[kind]}{types[of_value[value]]}"
        yield f'<edge source="{source}" target="{target}">{data}</edge>\n'


def _data(key: str, fact: Any) -> str:
    if isinstance(fact, tuple):
        fact = "[" + ", ".join(map(str, fact)) + "]"
    return f'<data key="{key}">{plain(str(fact))}</data>'


def plain(text: str) -> str:
    r"""A text as XML allows it: no markup, and none of the characters that XML cannot hold.

    >>> plain('a<b"\x00')
    'a&lt;b&quot;�'
    """
    return escape(inert(text), {'"': "&quot;"})
