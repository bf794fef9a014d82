"""Dynamo graph extraction: a ``torch.compile`` backend that keeps the graphs, and what is asked of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.capture.compilers.interpreter import target_name
from torch_vis.capture.compilers.program import describe, is_state
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.metrics import COSTS
from torch_vis.graph.text import many
from torch_vis.graph.text import size as size_text
from torch_vis.views.text.breaks import Breaks

if TYPE_CHECKING:
    import os

    from torch_vis._trace import Trace
    from torch_vis.exporters.recorded_code import RecordedProgram
    from torch_vis.graph.graph import Graph


__all__ = [
    "DynamoGraphExtractor",
    "SubgraphDescriptor",
    "TensorDescriptor",
    "analyze_memory_timeline",
    "get_tensor_size",
    "is_last_use",
    "save_graph_to_file",
    "trace_model_with_dynamo",
]


@dataclass(frozen=True)
class PartitionSummary:
    """One partition: its nodes by kind, its calls by operation, and its memory (None where it was not asked for)."""

    node_kinds: Mapping[str, int]
    operations: Mapping[str, int]
    peak_bytes: int | None
    weight_bytes: int | None


class DynamoGraphExtractor:
    """A ``torch.compile`` backend that keeps every graph that Dynamo hands over, and runs it as it is.

    On the nodes of ``graph_modules``, ``node.meta["tensor_meta"]`` has the shape and element type of each node that
    makes one tensor. ``print`` shows a summary. What comes from ``trace_model_with_dynamo`` has the whole ``trace`` as
    well, and with it the graph breaks and the costs.

    >>> import torch
    >>> from torch_vis import DynamoGraphExtractor
    >>> extractor = DynamoGraphExtractor()
    >>> model = torch.compile(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), backend=extractor)
    >>> y = model(torch.ones(1, 3))
    >>> [tuple(n.meta["tensor_meta"].shape) for n in extractor.graph_modules[0].graph.nodes if n.op == "call_function"]
    [(1, 2), (1, 2)]
    >>> extractor.node_kinds
    {'placeholder': 3, 'call_function': 2, 'output': 1}
    """

    trace: Trace | None
    """The trace of the run, where ``trace_model_with_dynamo`` made it."""

    def __init__(self, *, analyze_memory: bool = True) -> None:
        self.analyze_memory = analyze_memory
        self.graph_modules: list[fx.GraphModule] = []
        self.trace = None

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """What Dynamo calls with each graph: it is kept, and runs without any optimization."""
        describe(module, inputs)
        self.graph_modules.append(module)
        return module.forward

    @property
    def node_kinds(self) -> dict[str, int]:
        """How many nodes there are of each kind: placeholder, call_function, call_method, get_attr, output."""
        return dict(Counter(node.op for module in self.graph_modules for node in module.graph.nodes))

    @property
    def operations(self) -> dict[str, int]:
        """How often each operation is called, most often first."""
        return _operations(self.graph_modules)

    @property
    def breaks(self) -> Breaks:
        """Why the graph was broken, with the user's lines, as ``trace.breaks``; empty without a trace."""
        return Breaks(None) if self.trace is None else self.trace.breaks

    def memory_timeline(self, partition: int = 0) -> list[MemoryPoint]:
        """The memory over the course of a partition, as ``analyze_memory_timeline`` gives it."""
        return analyze_memory_timeline(self._partition(partition).graph)

    def descriptors(self, by: Literal["node", "partition"] = "node") -> list[SubgraphDescriptor]:
        """The graphs as plain records for a characterization pipeline, one for each node or for each partition.

        >>> import torch
        >>> from torch_vis import trace_model_with_dynamo
        >>> extractor = trace_model_with_dynamo(torch.nn.Linear(3, 2), torch.ones(5, 3))
        >>> linear = extractor.descriptors()[0]
        >>> linear.operations, linear.flops, [tensor.shape for tensor in linear.weights]
        (('torch.nn.functional.linear',), 70, [(2, 3), (2,)])
        """
        if by not in ("node", "partition"):
            raise no_match("kind of descriptor", str(by), ("node", "partition"))
        make = describe_nodes if by == "node" else describe_partitions
        return make(self.graph_modules, self.trace)

    def summary(self) -> list[PartitionSummary]:
        """The figures that ``print`` shows, partition by partition."""
        rows = []
        for module in self.graph_modules:
            peak = weights = None
            if self.analyze_memory:
                sizes = [point.size_bytes for point in analyze_memory_timeline(module.graph)]
                peak = None if None in sizes else max((size for size in sizes if size is not None), default=0)
                weights = weight_bytes(module.graph)
            kinds = dict(Counter(node.op for node in module.graph.nodes))
            rows.append(PartitionSummary(kinds, _operations([module]), peak, weights))
        return rows

    def _partition(self, number: int) -> fx.GraphModule:
        if not 0 <= number < len(self.graph_modules):
            raise UsageError(f"no partition {number}; there are {len(self.graph_modules)}, counted from 0")
        return self.graph_modules[number]

    def __str__(self) -> str:
        return "\n".join(_summary_lines(self))

    def __repr__(self) -> str:
        return f"<DynamoGraphExtractor: {len(self.graph_modules)} partitions>"


def trace_model_with_dynamo(
    model: Callable[..., Any],
    example_input: Any,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    analyze_memory: bool = True,
) -> DynamoGraphExtractor:
    """Run a model once through Dynamo and keep the graphs it was cut into, the breaks between them and the trace.

    ``example_input`` is a tensor, a tuple or list of the model's positional arguments, or a dictionary of its keyword
    arguments (as the tokenizers of transformers give them). ``fullgraph=True`` raises ``CaptureFailed`` at the first
    graph break; ``dynamic=True`` leaves sizes open. What Dynamo compiled for this is dropped again.

    >>> import torch
    >>> from torch_vis import trace_model_with_dynamo
    >>> extractor = trace_model_with_dynamo(lambda x: x + 1 if x.sum() > 0 else x, torch.ones(2))
    >>> len(extractor.graph_modules), [row.reason for row in extractor.breaks]
    (2, ['Data-dependent branching'])
    """
    from torch_vis.api import trace

    args, kwargs = split_input(example_input)
    extractor = DynamoGraphExtractor(analyze_memory=analyze_memory)
    extractor.trace = trace(model, *args, kwargs=kwargs, via="dynamo", fullgraph=fullgraph, dynamic=dynamic)
    program = extractor.trace.program
    assert program is not None
    extractor.graph_modules = program.modules
    return extractor


def split_input(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example input as positional and keyword arguments.

    >>> split_input({"input_ids": 1}), split_input([1, 2]), split_input(3)
    (((), {'input_ids': 1}), ((1, 2), {}), ((3,), {}))
    """
    if isinstance(example_input, Mapping):
        if all(isinstance(key, str) for key in example_input):
            return (), dict(example_input)
        raise UsageError("a dictionary of inputs has the model's argument names as keys, which are strings")
    if isinstance(example_input, (tuple, list)) and not hasattr(example_input, "_fields"):
        return tuple(example_input), {}
    return (example_input,), {}


def save_graph_to_file(extractor: DynamoGraphExtractor | Trace, path: str | os.PathLike[str]) -> None:
    """Write a captured program as Python that imports, runs and gives the model's outputs, its weights beside it.

    ``path`` gets the code, and ``path`` with ``.safetensors`` in the place of ``.py`` the parameters, buffers and
    constants as they are now. The file needs torch and safetensors, not torch_vis and not the model's own code. Its
    ``load()`` gives the whole model: the program of torch.export, the one graph of Dynamo, or else (with graph breaks,
    or without a compiler) the recorded operations, in which what was decided by values is as it was. With partitions,
    ``load_parts()`` gives these. An extractor that was a plain backend has its partitions only.

    >>> import os, runpy, tempfile, torch, torch_vis as tv
    >>> model, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    >>> path = os.path.join(tempfile.mkdtemp(), "linear.py")
    >>> tv.save_graph_to_file(tv.trace(model, x, via="export"), path)
    >>> torch.equal(runpy.run_path(path)["load"]()(x), model(x))
    True
    """
    from torch_vis._trace import Trace
    from torch_vis.exporters.python_code import save_program, save_recorded

    if isinstance(extractor, DynamoGraphExtractor):
        if not extractor.graph_modules:
            raise UsageError("nothing was captured yet; call the compiled model once, then save")
        if extractor.trace is None:
            save_program(path, modules=extractor.graph_modules, program=None, output=None)
            return
        extractor = extractor.trace
    if not isinstance(extractor, Trace):
        raise UsageError(
            f"save_graph_to_file() takes an extractor or a trace, not {type(extractor).__name__}"
        )
    program, run = extractor.program, _run_of(extractor)
    # A graph of fx calls modules, whose code is not in it.
    whole_modules = program is not None and program.via == "fx"
    if program is not None and not (whole_modules and run is not None):
        save_program(path, modules=program.modules, program=program, output=extractor.output, run=run)
    elif run is not None:
        save_recorded(path, run())
    else:
        raise UsageError(
            "this trace holds no tensors (loaded from a file, released, or traced with hold=False), or is of a block; "
            "trace() the model again to save it as Python"
        )


def _run_of(trace: Trace) -> Callable[[], RecordedProgram] | None:
    """What writes the recorded run, where the trace still holds what that needs."""
    kept, entry = trace.kept, trace.entry
    if kept is None or entry is None or trace.error is not None:
        return None
    from torch_vis.exporters.recorded_code import recorded
    from torch_vis.replay.stepper import tensors_for_replay

    return lambda: recorded(trace.graph, tensors_for_replay(trace.graph, kept), entry, trace.output)


def _operations(modules: Sequence[fx.GraphModule]) -> dict[str, int]:
    return dict(Counter(target_name(node) for module in modules for node in computing(module)).most_common())


def _summary_lines(extractor: DynamoGraphExtractor) -> list[str]:
    lines = [many(len(extractor.graph_modules), "graph partition")]
    for number, part in enumerate(extractor.summary(), 1):
        title = f"Graph Partition {number}"
        lines += ["", title, "=" * len(title)]
        lines.append("  ".join(f"{kind} {count:,}" for kind, count in part.node_kinds.items()))
        lines += [f"  {name:40} {count:,}" for name, count in part.operations.items()]
        if extractor.analyze_memory:
            peak = "not known" if part.peak_bytes is None else size_text(part.peak_bytes)
            weights = "not known" if part.weight_bytes is None else size_text(part.weight_bytes)
            lines.append(f"  memory at its peak {peak}, weights {weights}")
    if extractor.trace is not None and len(extractor.breaks):
        lines += ["", str(extractor.breaks)]
    return lines


@dataclass(frozen=True)
class TensorDescriptor:
    """One tensor: its node's name, its shape, its element type, and the bytes of its elements.

    A size that the program leaves open is what it was in the captured run, and None if it depends on data.

    >>> import torch
    >>> TensorDescriptor(name="x", shape=(2, 3), dtype=torch.float16).nbytes
    12
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: torch.dtype
    nbytes: int | None = None

    def __post_init__(self) -> None:
        if self.nbytes is None:
            object.__setattr__(self, "nbytes", nbytes(self.shape, self.dtype))


@dataclass(frozen=True)
class SubgraphDescriptor:
    """Operations with their inputs and outputs, the weights they use, and their costs; an unknown cost is None.

    >>> SubgraphDescriptor(operations=["conv2d"], input_tensors=[], output_tensors=[]).flops is None
    True
    """

    operations: Sequence[str]
    input_tensors: Sequence[TensorDescriptor]
    output_tensors: Sequence[TensorDescriptor]
    weights: Sequence[TensorDescriptor] = ()
    name: str = ""
    partition: int = 0
    flops: int | None = None
    macs: int | None = None
    moved_bytes: int | None = None


def describe_nodes(modules: Sequence[fx.GraphModule], trace: Trace | None) -> list[SubgraphDescriptor]:
    """One descriptor for each node that computes something, partition after partition."""
    rows = []
    for number, module in enumerate(modules):
        nodes = computing(module)
        costs = node_costs(trace, number, nodes)
        rows += [_descriptor([node], number, node.name, cost) for node, cost in zip(nodes, costs)]
    return rows


def describe_partitions(modules: Sequence[fx.GraphModule], trace: Trace | None) -> list[SubgraphDescriptor]:
    """One descriptor for each partition."""
    rows = []
    for number, module in enumerate(modules):
        nodes = computing(module)
        costs = node_costs(trace, number, nodes)
        whole = tuple(total(cost[column] for cost in costs) for column in range(len(COSTS)))
        rows.append(_descriptor(nodes, number, f"partition {number}", whole))
    return rows


def computing(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes of a graph that call something."""
    return [node for node in module.graph.nodes if node.op.startswith("call_")]


def _descriptor(nodes: list[fx.Node], number: int, name: str, cost: tuple[Any, ...]) -> SubgraphDescriptor:
    inside = set(nodes)
    sources = dict.fromkeys(
        source for node in nodes for source in node.all_input_nodes if source not in inside
    )
    leaving = [node for node in nodes if any(user not in inside for user in node.users) or not node.users]
    weights = [source for source in sources if is_weight(source)]
    return SubgraphDescriptor(
        operations=tuple(target_name(node) for node in nodes),
        input_tensors=tuple(t for s in sources if not is_weight(s) for t in tensors_of(s)),
        output_tensors=tuple(tensor for node in leaving for tensor in tensors_of(node)),
        weights=tuple(tensor for source in weights for tensor in tensors_of(source)),
        name=name,
        partition=number,
        flops=cost[0],
        macs=cost[1],
        moved_bytes=cost[2],
    )


def tensors_of(node: fx.Node) -> list[TensorDescriptor]:
    """The tensors that a node stands for: none, one, or several (``name.0``, ``name.1``)."""
    known = node.meta.get("example_value", node.meta.get("val", node.meta.get("tensor_meta")))
    if hasattr(known, "dtype"):
        return [_tensor(node.name, known)]
    parts = known if isinstance(known, (tuple, list)) else ()
    return [_tensor(f"{node.name}.{i}", part) for i, part in enumerate(parts) if hasattr(part, "dtype")]


def _tensor(name: str, known: Any) -> TensorDescriptor:
    return TensorDescriptor(name, tuple(hint(size) for size in known.shape), known.dtype)


# ---------------------------------------------------------------- costs, from the trace


def node_costs(trace: Trace | None, number: int, nodes: list[fx.Node]) -> list[tuple[Any, ...]]:
    """FLOPs, MACs and bytes accessed of a partition's nodes: those of the operations that each of them ran."""
    unknown: list[tuple[Any, ...]] = [(None,) * len(COSTS)] * len(nodes)
    if trace is None:
        return unknown
    scopes = function_scopes(trace.graph, f"partition {number}")
    indices = _matched(trace.graph, scopes, nodes)
    if indices is None:
        # it never ran, or not node by node
        return unknown
    owner = _owners(trace.graph, scopes, indices)[trace.graph.node_scope]
    sums = []
    for name in COSTS:
        column = trace.metrics[name]
        chosen = (owner >= 0) & (trace.graph.node_phase == 0)
        known = column.known_rows
        amounts = np.bincount(owner[chosen & known], column.values[chosen & known], minlength=len(nodes))
        missing = np.bincount(owner[chosen & ~known], minlength=len(nodes))
        sums.append([None if lost else int(amount) for amount, lost in zip(amounts, missing)])
    return list(zip(*sums))


def function_scopes(graph: Graph, partition: str) -> list[int]:
    """The scopes of a partition's nodes in the order in which they ran, in the first call of the partition."""
    kinds = [module.kind for module in graph.modules]
    started = -1
    inside: set[int] = set()
    scopes = []
    for scope, (module, parent) in enumerate(zip(graph.scope_module.tolist(), graph.scope_parent.tolist())):
        if started < 0 and kinds[module] == "compiled" and graph.modules[module].path == partition:
            started = scope
            inside.add(scope)
        elif parent in inside:
            if kinds[module] == "function":
                # what a node runs inside itself belongs to the node
                scopes.append(scope)
            else:
                inside.add(scope)
    return scopes


def _matched(graph: Graph, scopes: list[int], nodes: list[fx.Node]) -> list[int] | None:
    """The index of each scope's node; a node that only makes views has no scope. None where they do not fit."""
    if not scopes:
        return None
    indices: list[int] = []
    for index, node in enumerate(nodes):
        if len(indices) < len(scopes):
            scope = graph.scopes[scopes[len(indices)]]
            if scope.type == target_name(node) and node.name.startswith(scope.path):
                indices.append(index)
    return indices if len(indices) == len(scopes) else None


def _owners(graph: Graph, scopes: list[int], indices: list[int]) -> Any:
    """For every scope, the index that belongs to the one of the given scopes that it lies in, -1 for none."""
    owner = np.full(len(graph.scope_parent), -1, dtype=np.int64)
    owner[scopes] = indices
    nearest = graph.tree.nearest(owner >= 0)
    return np.where(nearest >= 0, owner[nearest], -1)


# Methods and functions that never copy, for graphs whose tensors have no storage to tell.
VIEWS = frozenset(
    "detach diagonal expand expand_as movedim narrow permute select squeeze swapaxes t transpose unfold unsqueeze view "
    "view_as".split()
)


class MemoryPoint(NamedTuple):
    """The memory that tensors hold while one node runs; None where a size is not known."""

    index: int  # type: ignore[assignment]  # the documented name, though tuples have a method of it
    name: str
    size_bytes: int | None


class MemoryBlock(NamedTuple):
    """A block of memory that a node's value lies in."""

    key: object
    size_bytes: int | None


def analyze_memory_timeline(graph: fx.Graph) -> list[MemoryPoint]:
    """The bytes that are live while each node of a graph runs: its inputs, its outputs, and what later nodes read.

    Sizes follow the element type; views lie in the memory of what they view and add nothing. A block lives from the
    node that makes it to the last node that reads it or a view of it. Inputs belong to the caller and live throughout,
    outputs to the end. Parameters and buffers are left out: they are there before and after (see ``weight_bytes``).

    >>> import torch
    >>> from torch_vis import analyze_memory_timeline, trace_model_with_dynamo
    >>> extractor = trace_model_with_dynamo(torch.nn.Linear(8, 2), torch.ones(4, 8))
    >>> [tuple(point) for point in analyze_memory_timeline(extractor.graph_modules[0].graph)][-2:]
    [(3, 'linear', 160), (4, 'output', 160)]
    """
    graph = getattr(graph, "graph", graph)
    if not isinstance(graph, fx.Graph):
        raise UsageError(f"analyze_memory_timeline() takes a torch.fx.Graph, not {type(graph).__name__}")
    nodes = list(graph.nodes)
    number_of = {node: number for number, node in enumerate(nodes)}
    blocks = _blocks(nodes)
    weights = {block.key for node in nodes if is_weight(node) for block in blocks[node]}
    first: dict[object, int] = {}
    last: dict[object, int] = {}
    size: dict[object, int | None] = {}
    for number, node in enumerate(nodes):
        end = max([number, *(number_of[user] for user in node.users)])
        if node.op == "placeholder":
            end = len(nodes) - 1
        for block in blocks[node]:
            if block.key not in weights:
                first.setdefault(block.key, number)
                last[block.key] = max(last.get(block.key, 0), end)
                size.setdefault(block.key, block.size_bytes)
    return _timeline(nodes, first, last, size)


def is_last_use(node: fx.Node, graph: fx.Graph, user: fx.Node) -> bool:
    """Whether ``user`` is the last node of the graph that reads what ``node`` makes.

    >>> import torch
    >>> from torch_vis import is_last_use
    >>> graph = torch.fx.symbolic_trace(lambda x: (x + 1) * x).graph
    >>> x, plus, times, out = graph.nodes
    >>> is_last_use(plus, graph, times), is_last_use(x, graph, plus)
    (True, False)
    """
    number_of = {other: number for number, other in enumerate(graph.nodes)}
    return user in node.users and all(number_of[other] <= number_of[user] for other in node.users)


def get_tensor_size(tensor: Any) -> int | None:
    """The bytes of a tensor, or of what ``node.meta["tensor_meta"]`` says of one; None where a size is not known.

    >>> import torch
    >>> from torch_vis import get_tensor_size
    >>> get_tensor_size(torch.ones(2, 3, dtype=torch.float16))
    12
    """
    return nbytes([hint(size) for size in tensor.shape], tensor.dtype)


def weight_bytes(graph: fx.Graph) -> int | None:
    """The bytes of the parameters, buffers and constants that a graph uses; None if one is not known."""
    nodes = list(graph.nodes)
    blocks = _blocks(nodes)
    sizes = dict(block for node in nodes if is_weight(node) for block in blocks[node])
    return total(sizes.values())


def _timeline(nodes: list[fx.Node], first: Any, last: Any, size: Any) -> list[MemoryPoint]:
    change = np.zeros(len(nodes) + 1, dtype=np.int64)
    unknown = np.zeros(len(nodes) + 1, dtype=np.int64)
    for key, start in first.items():
        column, amount = (unknown, 1) if size[key] is None else (change, size[key])
        column[start] += amount
        column[last[key] + 1] -= amount
    live, missing = np.cumsum(change).tolist(), np.cumsum(unknown).tolist()
    return [
        MemoryPoint(number, node.name, None if missing[number] else live[number])
        for number, node in enumerate(nodes)
    ]


def total(amounts: Iterable[int | None]) -> int | None:
    """A sum; None if one of the amounts is not known."""
    known = list(amounts)
    return None if None in known else sum(amount for amount in known if amount is not None)


def is_weight(node: fx.Node) -> bool:
    """Whether a node stands for a parameter, buffer or constant."""
    return node.op == "get_attr" or (node.op == "placeholder" and is_state(node))


def _blocks(nodes: list[fx.Node]) -> dict[fx.Node, list[MemoryBlock]]:
    """For every node, the memory that the tensors it makes lie in."""
    blocks: dict[fx.Node, list[MemoryBlock]] = {}
    is_known = False
    for node in nodes:
        blocks[node] = [] if node.op == "output" else list(_blocks_of(node, blocks))
        computes = node.op != "get_attr"
        is_known = is_known or any(computes and block.size_bytes is not None for block in blocks[node])
    if not is_known and any(node.op.startswith("call_") for node in nodes):
        raise UsageError(
            "the nodes of this graph have no tensor metadata; take it from trace_model_with_dynamo(), or run "
            "torch.fx.passes.shape_prop.ShapeProp over it"
        )
    return blocks


def _blocks_of(node: fx.Node, before: dict[fx.Node, list[MemoryBlock]]) -> Iterator[MemoryBlock]:
    known = node.meta.get("example_value", node.meta.get("val"))
    if known is None and node.op == "get_attr":
        known = _attribute(node)
    if known is not None:
        for tensor in pytree.tree_leaves(known):
            if isinstance(tensor, torch.Tensor):
                yield _block(tensor, node)
        return
    shaped = node.meta.get("tensor_meta")
    if shaped is None and node.op != "get_attr" and not {"example_value", "val"} & node.meta.keys():
        # nothing says what it makes
        yield MemoryBlock(node.name, None)
        return
    if shaped is not None and _is_view(node):
        yield from before.get(next(iter(node.all_input_nodes), node), ())
        return
    metas = [shaped] if hasattr(shaped, "dtype") else shaped or ()
    for number, meta in enumerate(metas):
        sizes = [hint(size) for size in meta.shape]
        yield MemoryBlock((node.name, number), nbytes(sizes, meta.dtype))


def _block(tensor: torch.Tensor, node: fx.Node) -> MemoryBlock:
    try:
        storage = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        # sparse or nested: no plain memory
        return MemoryBlock(node.name, None)
    return MemoryBlock(storage._cdata, hint(storage.nbytes()))


def _attribute(node: fx.Node) -> Any:
    item: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        item = getattr(item, part, None)
    return item if isinstance(item, torch.Tensor) else None


def _is_view(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.is_view
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op != "call_module" and name in VIEWS


def nbytes(sizes: Any, dtype: torch.dtype) -> int | None:
    """Bytes of a tensor of these sizes; None if one is not known."""
    return None if any(size is None for size in sizes) else math.prod(sizes) * dtype.itemsize


def hint(size: Any) -> int | None:
    """A size in the run that was captured, also of a symbolic one; None where it depends on data."""
    if isinstance(size, int):
        return size
    known = getattr(getattr(size, "node", None), "hint", None)
    return None if known is None else int(known)
