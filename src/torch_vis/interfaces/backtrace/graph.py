"""The exported graph for people: its nodes before anything has run, and what each took and gave in one run."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.fx.node import map_arg

from torch_vis.analysis.relevance.graph_run import Values
from torch_vis.capture.compilers.interpreter import op_name
from torch_vis.errors import TensorsMissing, UsageError, missing_extra, no_match
from torch_vis.ops.schemas import schema_arguments

if TYPE_CHECKING:
    import networkx


# ---------------------------------------------------------------- graph


PATH = re.compile(r"^(?:L\['self'\]|L__self__)\.?")


class NodeFacts(NamedTuple):
    """What is known of a node before anything has run."""

    name: str
    type: str
    """``placeholder``, ``call_function`` or ``output``."""
    op: str
    """``conv2d``, ``linear`` …; for an input its name."""
    target: Any
    """The operator that is called."""
    module: str
    """The path of the module whose call the node is of."""
    module_type: str
    inputs: tuple[str, ...]
    """The nodes whose outputs it takes, in order."""
    hyperparameters: dict[str, Any]
    shape: tuple[Any, ...] | None
    """That of its output; an open size is a text such as ``s0``."""
    dtype: str | None


def facts(program: Any, state: dict[fx.Node, Any]) -> dict[str, NodeFacts]:
    """The nodes by name, in an order in which they can run; weights are hyperparameters of who takes them."""
    nodes = {}
    for node in program.graph.nodes:
        if node in state or node.op == "get_attr":
            continue
        path, kind = module_of(node)
        data = tuple(source.name for source in read_by(node) if source not in state)
        shape, dtype = _tensor(node)
        op = op_name(node)
        given = _hyperparameters(node, state) if node.op == "call_function" else {}
        nodes[node.name] = NodeFacts(
            node.name, node.op, op, node.target, path, kind, data, given, shape, dtype
        )
    return nodes


def read_by(node: fx.Node) -> list[fx.Node]:
    """The nodes among a node's arguments, as often and in the order as they stand there."""
    sources: list[fx.Node] = []
    map_arg((node.args, node.kwargs), sources.append)
    return [source for source in sources if source.op != "get_attr"]


def module_of(node: fx.Node) -> tuple[str, str]:
    """The path and class of the innermost module that a node was made in."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return "", ""
    path, kind = list(stack.values())[-1]
    if "_metadata_hook" in str(path):  # what torch makes up for nodes that no module made
        return "", ""
    name = kind if isinstance(kind, str) else kind.__qualname__
    return PATH.sub("", path), name.rpartition(".")[2]


def _hyperparameters(node: fx.Node, state: dict[fx.Node, Any]) -> dict[str, Any]:
    """What a node is given beside the outputs of others, by the names of the operator's schema.

    An argument that another node computes while the graph runs (an open size) stands as that node's name.
    """
    schema = schema_arguments(node.target)
    names = [argument.name for argument in schema]
    given: dict[str, Any] = {
        argument.name: argument.default_value for argument in schema if argument.has_default_value()
    }
    for position, value in enumerate(node.args):
        given[names[position] if position < len(names) else f"arg{position}"] = value
    given.update(node.kwargs)
    return {
        name: _plain(value, state)
        for name, value in given.items()
        if not (isinstance(value, fx.Node) and value not in state)
        and not (isinstance(value, (list, tuple)) and value and _all_data(value, state))
    }


def _all_data(values: Any, state: dict[fx.Node, Any]) -> bool:
    return all(
        isinstance(value, fx.Node) and value not in state and isinstance(value.meta.get("val"), torch.Tensor)
        for value in values
    )


def _plain(value: Any, state: dict[fx.Node, Any]) -> Any:
    if isinstance(value, fx.Node):
        return state.get(value, value.name)
    if isinstance(value, (list, tuple)):
        return tuple(_plain(part, state) for part in value)
    return value


def _tensor(node: fx.Node) -> tuple[tuple[Any, ...] | None, str | None]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None, None
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return shape, str(value.dtype).removeprefix("torch.")


def to_networkx(nodes: dict[str, NodeFacts]) -> networkx.DiGraph[str]:
    """The nodes as a networkx graph; an edge names the position in which the value is taken."""
    try:
        import networkx as nx
    except ImportError as error:
        raise missing_extra("networkx") from error
    graph = nx.DiGraph()
    for row in nodes.values():
        graph.add_node(row.name, **{key: value for key, value in row._asdict().items() if key != "name"})
    for row in nodes.values():
        for position, source in enumerate(row.inputs):
            if source in graph and not graph.has_edge(source, row.name):
                graph.add_edge(source, row.name, place=position)
    return graph


# ---------------------------------------------------------------- one run


class NodeIO(Mapping[str, dict[str, Any]]):
    """By the name of a node: ``{"input": [...], "output": ...}``, the tensors of the run themselves and not copies.

    ``output`` is what the model returned. A node that was not kept raises ``TensorsMissing``.
    """

    def __init__(
        self, nodes: Mapping[str, NodeFacts], values: Values, output: Any, kept: frozenset[str] | None
    ) -> None:
        self._nodes, self._values, self._kept = nodes, values, kept
        self._by_name = {node.name: node for node in values}
        self.output = output

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self._nodes:
            raise no_match("node", str(name), self._nodes)
        if self._kept is not None and name not in self._kept:
            raise TensorsMissing(f"{name!r} was not kept; name it in predict(..., keep=[...]) or keep='all'")
        node, values = self._by_name[name], self._values
        inputs = [values[source] for source in read_by(node) if source.name in self._nodes]
        return {"input": inputs, "output": self.output if node.op == "output" else values[node]}

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes) if self._kept is None else (n for n in self._nodes if n in self._kept)

    def __len__(self) -> int:
        return len(self._nodes) if self._kept is None else len(self._kept)

    def __repr__(self) -> str:
        return f"<NodeIO: {len(self)} of {len(self._nodes)} nodes>"

    @property
    def is_whole(self) -> bool:
        """Whether every node was kept."""
        return self._kept is None

    def raw(self) -> Values:
        """Every node's value in the graph's own order, weights included."""
        return self._values


def selected(keep: Any, nodes: Mapping[str, NodeFacts]) -> frozenset[str] | None:
    """The nodes that ``keep`` names; None for all of them."""
    if keep == "all":
        return None
    outputs = [name for name, row in nodes.items() if row.type == "output"]
    if keep == "outputs":
        return frozenset(outputs)
    patterns = [keep] if isinstance(keep, str) else keep
    if not isinstance(patterns, Iterable):
        raise UsageError(f"keep is 'all', 'outputs', a name or a list of names, not {keep!r}")
    names: set[str] = set(outputs)
    for pattern in patterns:
        chosen = {
            name
            for name, row in nodes.items()
            if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(row.module, pattern)
        }
        if not chosen:
            raise no_match("node or module", str(pattern), {*nodes, *(row.module for row in nodes.values())})
        names |= chosen
    return frozenset(names)


def needed(graph: fx.Graph, names: frozenset[str]) -> set[fx.Node]:
    """The nodes whose values the named nodes' inputs and outputs are."""
    named = [node for node in graph.nodes if node.name in names]
    return {*named, *(source for node in named for source in node.all_input_nodes)}
