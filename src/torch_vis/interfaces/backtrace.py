"""Model tracing for explanation: one exported graph, rerun on new inputs, with relevance traced back through it."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from torch_vis.analysis.relevance.flow import Values, run_graph
from torch_vis.api import Trace
from torch_vis.capture.compilers.frontends import export_inputs, export_outputs
from torch_vis.capture.compilers.interpreter import PASSIVE, ProgramRun, op_name
from torch_vis.capture.compilers.program import Program
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.session import Capture
from torch_vis.errors import TensorsMissing, UsageError, no_match, optional
from torch_vis.graph import Column, Graph
from torch_vis.graph.run import Limit
from torch_vis.interfaces.model_export import (
    Contract,
    bind,
    check_model,
    export,
    named_leaves,
    same_device,
)
from torch_vis.ops.schemas import schema_arguments

if TYPE_CHECKING:
    import networkx

    from torch_vis._trace import Trace
    from torch_vis.analysis.relevance.flow import Relevance


# ---------------------------------------------------------------- memory


APART = 1 << 40  # bytes between the heap and the region of large mappings, at the least


def highest(values: Iterable[Any], held: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor at the highest address of the heap, of those in a run and the one that is held.

    A run that keeps every node frees all of it at once, and the C library then returns its heap to the system: the next
    run pays for every page again, half the time of a ResNet-50. The library can return only what lies above the last
    block in use, so one tensor of the run, the highest, is kept. The heap stays mapped, and free for anybody, until the
    ``DLBacktrace`` is gone.
    """
    by_address = {held.data_ptr(): held} if held is not None else {}
    for value in values:
        if type(value) is torch.Tensor and value.device.type == "cpu":
            by_address[value.data_ptr()] = value
    if not by_address:
        return None
    addresses = sorted(by_address)
    gaps = [(after - before, before) for before, after in itertools.pairwise(addresses)]
    gap, below = max(gaps, default=(0, addresses[-1]))
    return by_address[below if gap > APART else addresses[-1]]


# ---------------------------------------------------------------- trace_columns


def trace_of(
    program: Any, model: torch.nn.Module, flat: list[Any], relevance: Mapping[str, float], limits: list[str]
) -> Trace:
    """The program run on its flat inputs, with what each node was given as the metric ``relevance``.

    A node of the program may run several operations: its relevance stands at the last of them, which makes its result.
    """
    capture = Capture(model, keep=False)
    specs = program.graph_signature.input_specs
    capture.inputs = [
        (spec.arg.name, value)
        for spec, value in zip(specs, flat)
        if spec.kind.name == "USER_INPUT" and isinstance(value, torch.Tensor)
    ]
    capture.has_output = True
    with without_gradients(), capture:
        outputs = ProgramRun(capture).interpret(program.graph_module, *flat)
        capture.output = export_outputs(program, model, outputs)
    run = capture.finish().run
    run.meta["program"] = Program("export", [program.graph_module], program).to_plain()
    names = [node.name for node in program.graph_module.graph.nodes if node.op not in PASSIVE]
    run.metrics = run.metrics.with_column(_column(run.graph, names, relevance))
    run.limits += tuple(Limit(text, kind="program") for text in limits)
    return Trace.of(run, output=capture.output)


def _column(graph: Graph, names: list[str], relevance: Mapping[str, float]) -> Column:
    """Nodes of the program are calls of functions in the graph, in the same order; what runs inside is part of them."""
    inside = np.zeros(len(graph.scope_call), dtype=bool)
    calls: list[int] = []
    for scope in graph.scopes:
        around = int(graph.scope_parent[scope.index])
        inside[scope.index] = around >= 0 and (inside[around] or around in calls[-1:])
        if scope.kind == "function" and not inside[scope.index]:
            calls.append(scope.index)
    last = np.full(len(graph.scope_call), -1, dtype=np.int64)
    # the later one counts
    last[graph.node_scope] = np.arange(len(graph))
    values, known = np.zeros(len(graph)), np.zeros(len(graph), dtype=bool)
    at = 0
    for name in names:
        if at == len(calls) or graph.scopes[calls[at]].path != re.sub(r"_\d+$", "", name):
            # it only takes a result apart, and was not called
            continue
        node = int(last[calls[at]])
        at += 1
        if name in relevance and node >= 0:
            values[node] = relevance[name]
            known[node] = True
    return Column("relevance", values, known=known)


class DLBacktrace:
    """A model in eval mode as an exported graph that is traced once and then run on as many inputs as wanted.

    ``input_for_graph`` is a tuple of inputs (or a dictionary, for a model that takes them by name) of the right types;
    sizes that the model leaves open may differ later. ``dynamic_shapes`` is that of ``torch.export`` and says which
    ones those are. Without it, the sizes of batches and sequences are left open where the program allows it (not the
    sides of images, which torch would reason about for minutes), and ``limits`` says if none could be. The weights are
    the model's own: after a change to them, the graph runs with the new ones.

    >>> import torch
    >>> from torch_vis import DLBacktrace
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    >>> dlb = DLBacktrace(model=model, input_for_graph=(torch.ones(1, 3),))
    >>> dlb.topological_order
    ['input', 'linear', 'relu', 'linear_1', 'output']
    >>> dlb.graph.nodes["linear"]["hyperparameters"]["weight"].shape
    torch.Size([4, 3])
    >>> node_io = dlb.predict(torch.ones(5, 3))
    >>> node_io["relu"]["output"].shape
    torch.Size([5, 4])
    >>> dlb.evaluation(node_io, target=1).error < 1e-3
    True
    """

    def __init__(
        self,
        model: torch.nn.Module,
        input_for_graph: Any,
        device: str | torch.device | None = None,
        dynamic_shapes: Any = None,
    ) -> None:
        check_model(model, device)
        args, kwargs = _as_inputs(input_for_graph)
        bind(model, args, kwargs, "the inputs of input_for_graph")
        _check_devices(model, args, kwargs, device)
        self.model = model

        def contract(program: Any) -> Contract:
            return Contract(program, model, args, kwargs, dynamic_shapes is not None)

        def fits(program: Any) -> bool:
            try:
                return bool(contract(program).arrange(args, kwargs))
            except UsageError:
                return False

        self.program, self.limits = export(model, args, kwargs, dynamic_shapes, fits)
        self._contract = contract(self.program)
        graph = self.program.graph_module.graph
        self._inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self._state = self._model_state(args, kwargs)
        self.nodes = facts(self.program, self._state)
        self._graph: Any = None
        self._anchor: torch.Tensor | None = None
        self._evaluated: tuple[list[Any], Relevance] | None = None

    def _model_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[fx.Node, Any]:
        """The model's own tensors by their placeholder."""
        flat = export_inputs(self.program, self.model, args, kwargs)
        specs = self.program.graph_signature.input_specs
        return {
            node: value
            for node, value, spec in zip(self._inputs, flat, specs, strict=True)
            if spec.kind.name != "USER_INPUT"
        }

    @property
    def _output(self) -> fx.Node:
        """The output node of the exported graph."""
        return self.program.graph_module.graph.output_node()

    @property
    def graph(self) -> networkx.DiGraph[str]:
        """The nodes and the data flow between them as a networkx graph.

        A node has ``type`` (placeholder, call_function, output), ``op``, ``target``, ``module``, ``module_type``,
        ``inputs``, ``hyperparameters``, ``shape`` and ``dtype``.

        >>> import torch
        >>> from torch_vis import DLBacktrace
        >>> dlb = DLBacktrace(torch.nn.ReLU().eval(), (torch.ones(2, 3),))
        >>> list(dlb.graph.edges)
        [('input', 'relu'), ('relu', 'output')]
        """
        if self._graph is None:
            self._graph = to_networkx(self.nodes)
        return self._graph

    @property
    def topological_order(self) -> list[str]:
        """The names of the nodes, each after those whose outputs it takes."""
        return list(self.nodes)

    @property
    def module_map(self) -> dict[str, str]:
        """For every node, the path of the module whose call made it; ``""`` is the model itself."""
        return {name: row.module for name, row in self.nodes.items()}

    def predict(self, *inputs: Any, kwargs: Mapping[str, Any] | None = None, keep: Any = "all") -> NodeIO:
        """Run the graph on new inputs: for every node its inputs and its output.

        The operators are torch's own, called as the exported graph says, without gradients. ``keep`` bounds what is
        held: ``"outputs"`` for what the model returns alone, or names of nodes and modules (``"layer1.*"``).

        >>> import torch
        >>> from torch_vis import DLBacktrace
        >>> dlb = DLBacktrace(torch.nn.ReLU().eval(), (torch.ones(2, 3),))
        >>> dlb.predict(-torch.ones(4, 3), keep="outputs").output.sum()
        tensor(0.)
        """
        if len(inputs) == 1 and not kwargs and isinstance(inputs[0], Mapping) and self._contract.keywords:
            kwargs, inputs = inputs[0], ()
        inputs = self._contract.spread(inputs)
        users = iter(self._contract.arrange(inputs, kwargs or {}))
        state, module = self._state, self.program.graph_module
        flat = [state[node] if node in state else next(users) for node in self._inputs]
        names = selected(keep, self.nodes)
        with without_gradients():
            values = run_graph(module, flat, None if names is None else needed(module.graph, names))
            output = export_outputs(self.program, self.model, values[self._output])
        computed = (value for node, value in values.items() if node.op == "call_function")
        self._anchor = highest(computed, self._anchor)
        return NodeIO(self.nodes, values, output, names)

    def evaluation(
        self,
        node_io: NodeIO,
        *,
        mode: str = "default",
        target: Any = None,
        against: Any = None,
        output: int = 0,
        relevance: torch.Tensor | None = None,
        multiplier: float = 1.0,
        tensors: bool | str | list[str] = False,
    ) -> Relevance:
        """Trace relevance from a chosen output back to the inputs: what each node has part in it.

        The start is ``relevance``, a tensor like the model's ``output``-th output, or else ``multiplier`` at the index
        ``target`` of its last dimension (for every sample; by default where the output is greatest). In mode
        ``"contrastive"`` what speaks for the start and what speaks against it are followed apart; ``against`` names an
        index from which counter-evidence starts as well. ``tensors=True`` (or names) keeps the relevance of nodes
        element by element; that of the inputs is always kept.

        >>> import torch
        >>> from torch_vis import DLBacktrace
        >>> dlb = DLBacktrace(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
        >>> relevance = dlb.evaluation(dlb.predict(torch.ones(1, 3)), target=0)
        >>> round(relevance["input"], 6), relevance.tensors["input"].shape
        (1.0, torch.Size([1, 3]))
        """
        from torch_vis.analysis.relevance import relevance_of
        from torch_vis.analysis.relevance.flow import Start

        if not isinstance(node_io, NodeIO):
            raise UsageError("evaluation takes what predict() returned: node_io = dlb.predict(x)")
        if not node_io.is_whole:
            raise TensorsMissing("relevance needs every node; run predict(..., keep='all')")
        users = [node for node in self._inputs if node not in self._state]
        start = Start(self._returned(), output, target, against, relevance, multiplier)
        rows = {name: (row.op, row.module) for name, row in self.nodes.items()}
        values = node_io.raw()
        result = relevance_of(values, users, start, mode=mode, tensors=tensors, rows=rows)
        self._evaluated = [values[node] for node in self._inputs], result
        return result

    @property
    def trace(self) -> Trace:
        """The run that was last evaluated as a trace with the metric ``relevance``: ``save("x.html")`` colours by it.

        >>> import torch
        >>> from torch_vis import DLBacktrace
        >>> dlb = DLBacktrace(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
        >>> relevance = dlb.evaluation(dlb.predict(torch.ones(1, 3)), target=0)
        >>> dlb.trace.metrics["relevance"][-1] == relevance["linear"]
        True
        """
        if self._evaluated is None:
            raise UsageError("there is no relevance to show yet; call dlb.evaluation(dlb.predict(x)) first")
        return trace_of(self.program, self.model, *self._evaluated, list(self.limits))

    def _returned(self) -> list[Any]:
        """The nodes whose values the model returns, in order."""
        specs = self.program.graph_signature.output_specs
        flat = list(pytree.tree_leaves(self._output.args[0]))
        return [node for node, spec in zip(flat, specs) if spec.kind.name == "USER_OUTPUT"]

    def __repr__(self) -> str:
        return f"<DLBacktrace of {type(self.model).__name__}: {len(self.nodes)} nodes>"


def _as_inputs(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, (tuple, list)) and given:
        return tuple(given), {}
    raise UsageError(
        f"input_for_graph is a tuple with the model's inputs, such as (torch.randn(1, 3, 224, 224),), not {given!r}"
    )


def _check_devices(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], device: Any
) -> None:
    """Refuse inputs that lie elsewhere than the model."""
    own = next((t.device for t in [*model.parameters(), *model.buffers()]), None)
    wanted = torch.device(device) if device is not None else own
    for name, leaf in named_leaves(model, args, kwargs):
        if isinstance(leaf, torch.Tensor) and wanted is not None and not same_device(leaf.device, wanted):
            raise UsageError(
                f"input {name!r} is on {leaf.device} and the model on {wanted}; give {name}.to('{wanted}')"
            )


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
    # what torch makes up for nodes that no module made
    if "_metadata_hook" in str(path):
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
    with optional("networkx"):
        import networkx as nx
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
