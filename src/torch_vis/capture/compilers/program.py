"""A program as a compiler's front-end captured it: its graph modules, their subgraphs, and what is known of them."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from torch_vis.capture.compilers.graph_breaks import Break, EagerOp, Recompilation
from torch_vis.capture.compilers.symbolic_sizes import Bounds, range_text
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import Site

NOT_TAKEN = "not taken"
SHOWN = 4  # names of operations in the label of a branch that was not taken


@dataclass
class Program:
    """What was captured: one graph module, or one for each partition between graph breaks."""

    via: str
    modules: list[fx.GraphModule] = field(default_factory=list)
    exported: Any = None
    """The ExportedProgram, where there is one."""
    signature: inspect.Signature | None = None
    """That of the callable that Dynamo took."""
    breaks: tuple[Break, ...] = ()
    guards: tuple[str, ...] = ()
    recompilations: tuple[Recompilation, ...] = ()
    lost: tuple[EagerOp, ...] = ()
    """What ran outside of partitions and belongs to no break."""
    bounds: dict[str, Bounds] = field(default_factory=dict)
    """The smallest and largest value of each symbol."""
    names: dict[str, str] = field(default_factory=dict)
    """The user's names of symbols, by torch's."""
    subgraphs: tuple[Subgraph, ...] = ()
    """Those of higher-order operators: branches, bodies of loops."""
    compile_ns: int = 0

    @property
    def ranges(self) -> dict[str, str]:
        """The range of each symbol as text: ``2 ≤ s0 ≤ 128``."""
        return {name: range_text(name, bounds) for name, bounds in self.bounds.items()}

    def to_plain(self) -> dict[str, Any]:
        """What is kept with the trace when it is saved."""
        return {
            "via": self.via,
            "partitions": [count_nodes(module) for module in self.modules],
            "breaks": [{**row._asdict(), "lost": [op._asdict() for op in row.lost]} for row in self.breaks],
            "lost": [op._asdict() for op in self.lost],
            "guards": list(self.guards),
            "recompilations": [row._asdict() for row in self.recompilations],
            "ranges": self.ranges,
            "subgraphs": [row.to_plain() for row in self.subgraphs],
            "compile_ns": self.compile_ns,
        }


def count_nodes(module: fx.GraphModule) -> int:
    """How many nodes of a graph compute something."""
    return sum(node.op.startswith("call_") for node in module.graph.nodes)


# ---------------------------------------------------------------- subgraphs


@dataclass
class Subgraph:
    """A graph inside a captured program: the branch of a ``cond``, the body of a loop, a function of attention."""

    name: str
    """``cond.true``; that of a second cond in the program is ``cond_1.true``."""
    operator: str
    role: str
    operations: tuple[str, ...]
    """What its nodes call, in order."""
    site: Site | None
    """The line of the operator that it belongs to."""
    module: fx.GraphModule | None = None
    ran: int = 0
    """How often it ran; 0 for a branch that was not taken."""
    inputs: tuple[Any, ...] = field(default=(), repr=False)
    """Inputs without data, to run it on shapes."""

    def to_plain(self) -> dict[str, Any]:
        """What is kept of it when a trace is saved."""
        site = None if self.site is None else list(self.site)
        plain = {"name": self.name, "operator": self.operator, "role": self.role, "ran": self.ran}
        return {**plain, "operations": list(self.operations), "site": site}

    @property
    def label(self) -> str:
        """What stands in the place of a class: ``true branch``, or the operations that did not run."""
        if self.ran or self.operator != "cond":
            return f"{self.role} branch" if self.operator == "cond" else self.role
        names = list(dict.fromkeys(short_target(name) for name in self.operations))
        text = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        return f"{NOT_TAKEN}: {text}" if text else NOT_TAKEN


def with_untaken(graph: Graph) -> Graph:
    """The graph with each ``cond`` labelled by the branch that it did not take, for views that skip empty scopes."""
    modules = list(graph.modules)
    scope_module = graph.scope_module.copy()
    numbers = {module: number for number, module in enumerate(modules)}
    for module, parent in zip(graph.scope_module.tolist(), graph.scope_parent.tolist()):
        label = graph.modules[module].type
        if label.startswith(NOT_TAKEN) and parent >= 0:
            # Every cond of a program is a call of the same row, so each gets a row of its own.
            branch = graph.modules[module].path.rpartition(".")[2]
            cond = modules[int(graph.scope_module[parent])]._replace(type=f"cond, {branch} branch {label}")
            if cond not in numbers:
                numbers[cond] = len(modules)
                modules.append(cond)
            scope_module[parent] = numbers[cond]
    return graph.replaced(scope_module=scope_module, modules=modules)


def short_target(name: str) -> str:
    """What a node calls, in a word.

    >>> short_target("aten.linear.default"), short_target("torch.nn.functional.relu")
    ('linear', 'relu')
    """
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]


# ---------------------------------------------------------------- Dynamo's partitions


def describe(module: fx.GraphModule, inputs: Sequence[Any] = ()) -> None:
    """Write what Dynamo knows of a partition's tensors where readers of its graph look for it.

    Dynamo leaves a fake tensor on every node and nothing else. Each node with one tensor gets the ``tensor_meta`` that
    other front-ends write, each placeholder the expression that it stands for (``source``), and the module the weights
    that are placeholders (``weights`` and ``weight_paths``, by the name of the placeholder).
    """
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                _describe_node(node)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    module.meta["weights"] = weights = {}
    module.meta["weight_paths"] = paths = {}
    for node, given in zip(placeholders, inputs):
        if isinstance(given, torch.Tensor) and is_state(node):
            weights[node.name] = given
            paths[node.name] = state_path(node.meta.get("source") or node.name)


def _describe_node(node: fx.Node) -> None:
    source = getattr(node, "_dynamo_source", None)
    if source is not None:
        name = source.name
        node.meta["source"] = name() if callable(name) else name
    known = node.meta.get("example_value", node.meta.get("val"))
    if isinstance(known, torch.Tensor) and "tensor_meta" not in node.meta:
        # Asking for contiguity of open sizes would make Dynamo guard on the answer.
        fixed = all(isinstance(size, int) for size in (*known.shape, *_strides(known)))
        node.meta["tensor_meta"] = _extract_tensor_metadata(known, include_contiguity=fixed)


def _strides(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else ()


def remember_outputs(module: fx.GraphModule, outputs: Any) -> None:
    """Keep weak references to what a partition returned last, to recognise it in what the model returns."""
    parts = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    module.meta["returned"] = [weakref.ref(p) if isinstance(p, torch.Tensor) else None for p in parts]


def is_state(node: fx.Node) -> bool:
    """Whether a placeholder stands for state of the program (a parameter, a buffer, a global).

    ``source`` is an expression over the locals ``L`` and globals ``G`` of the function that Dynamo took.
    """
    if "_dynamo_static_input_type" in (node.meta.get("tensor_dict") or {}):
        return True
    source = str(node.meta.get("source", ""))
    return source.startswith("G[") or "._parameters[" in source or "._buffers[" in source


def state_path(source: str) -> str:
    """A weight's path as ``state_dict`` has it, from the expression that Dynamo knows it under.

    >>> state_path("L['self']._modules['layer']._modules['0']._parameters['weight']"), state_path("G['table']")
    ('layer.0.weight', 'table')
    """
    path = re.sub(r"^L\['\w+'\]\.?", "", source)
    path = re.sub(r"_(?:modules|parameters|buffers)\['([^']*)'\]", r"\1", path)
    path = re.sub(r"\['?([^'\]]*)'?\]", r".\1", path)
    path = re.sub(r"[^0-9a-zA-Z_.]+", "_", path.removeprefix("G"))
    return re.sub(r"\.+", ".", path).strip(".") or "state"
