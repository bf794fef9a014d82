"""A recorded run as Python code: every operation that led to its outputs, one line each, in the order of the run.

For programs that no compiler has whole: with graph breaks, or with calls that Dynamo leaves alone. What the program
decided by values (branches, loops, sizes) is as it was recorded; the code raises where it would be decided otherwise.
"""

from __future__ import annotations

import ast
import math
import os
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.errors import UsageError
from torch_vis.graph.call import Slot, Special
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import RECORDED, Flag, Phase, Role
from torch_vis.ops.schemas import resolve
from torch_vis.replay.held_run import CallSignature
from torch_vis.replay.replay import Replay, ReplayPlan, node_text
from torch_vis.replay.slicing import needed_nodes


class RecordedProgram(NamedTuple):
    """What a file needs of a run: its code, its tables, the tensors from outside by name, and containers renamed."""

    code: str
    tables: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    renamed: set[str]


def recorded(graph: Graph, kept: KeptTensors, entry: CallSignature, output: Any) -> RecordedProgram:
    """The code of a recorded run; raises where an operation has no form in Python."""
    writer = _RunWriter(graph, kept, entry)
    renamed: set[str] = set()
    numbers = [r for r, row in enumerate(graph.results) if row.kind == "output"]
    # All of them: one that the outputs do not rest on may still make the tensor that a later one writes into.
    # The same for what the program looked at last, to choose among them.
    looked = [node for node in kept.python_values if graph.node_phase[node] == Phase.FORWARD]
    nodes = range(max([*needed_nodes(graph, numbers, [], []), *looked], default=-1) + 1)
    lines = writer.lines(nodes, [graph.outcomes[number].value.index for number in numbers])
    tables = {
        "INPUTS": plan_of(entry.spec),
        "LEAVES": entry.leaves,
        **_results(output, renamed),
    }
    return RecordedProgram("\n".join(lines), tables, writer.tensors, renamed)


def _results(output: Any, renamed: set[str]) -> dict[str, Any]:
    leaves, spec = pytree.tree_flatten(output)
    rows: list[tuple[str, Any]] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            rows.append(("graph", sum(kind == "graph" for kind, _ in rows)))
        elif isinstance(leaf, LITERALS):
            rows.append(("literal", leaf))
        else:
            raise UsageError(f"the output holds a {type(leaf).__name__}, which cannot be written as Python")
    return {"RESULTS": rows, "OUTPUTS": plan_of(spec, renamed)}


class _RunWriter:
    """Writes the operations of a run, one line each."""

    def __init__(self, graph: Graph, kept: KeptTensors, entry: CallSignature) -> None:
        self.graph, self.entry = graph, entry
        self.plan = ReplayPlan(graph, kept)
        self.replay = Replay(graph, kept, self.plan)
        self.kept = kept
        self.tensors: dict[str, torch.Tensor] = {}

    def lines(self, nodes: Sequence[int], results: Sequence[int]) -> list[str]:
        """The function that runs the operations and returns the results."""
        last = self._last_uses(nodes, results)
        lines = ["def recorded(state, given):", '    """The operations as they ran."""']
        for value in self._outside(nodes, results):
            lines.append(f"    v{value} = {self._source(value)}")
        mode = False
        for node in nodes:
            recording = bool(self.graph.node_flags[node] & Flag.GRAD_MODE)
            # a few kernels look at it
            if recording != mode:
                mode = recording
                lines.append(f"    torch.set_grad_enabled({mode})")
            lines += [f"    {line}" for line in self._operation(node)]
            if last.get(node):
                lines.append("    del " + ", ".join(f"v{value}" for value in sorted(last[node])))
        returned = "".join(f"v{value}, " for value in results)
        return [*lines, f"    return ({returned.rstrip()})" if results else "    return ()"]

    def _outside(self, nodes: Sequence[int], results: Sequence[int]) -> list[int]:
        read = {value for node in nodes for value in self.plan.arguments(node)} | set(results)
        return sorted(value for value in read if self.graph.value_producer[value] < 0)

    def _source(self, value: int) -> str:
        """Where a tensor from outside comes from: an input, or the file of weights."""
        graph = self.graph
        row = graph.values[value]
        if graph.value_role[value] == Role.INPUT and row.name in self.entry.given:
            return f"given[{row.name!r}]"
        name = row.name or f"constant.{value}"
        if name in self.tensors:
            name = f"{name}.{value}"
        if row.type.layout != "strided":
            raise UsageError(f"{name} is {row.type.layout} and cannot be saved beside the program")
        block = self.kept.storages[int(graph.value_storage[value])]
        offset, dtype = int(graph.value_offset[value]), getattr(torch, row.type.dtype)
        tensor = torch.empty(0, dtype=dtype, device=block.device)
        self.tensors[name] = tensor.set_(block, offset, row.type.shape, row.type.stride)
        return f"state[{name!r}]"

    def _last_uses(self, nodes: Sequence[int], results: Sequence[int]) -> dict[int, set[int]]:
        last: dict[int, int] = {}
        for node in nodes:
            for value in (*self.plan.arguments(node), *self._outputs(node)):
                last[value] = node
        by_node: dict[int, set[int]] = {}
        for value, node in last.items():
            if value not in results:
                by_node.setdefault(node, set()).add(value)
        return by_node

    def _outputs(self, node: int) -> list[int]:
        values: list[int] = self.graph.out_value[slice(*self.graph.output_span(node))].tolist()
        return values

    def _operation(self, node: int) -> list[str]:
        graph = self.graph
        if graph.node_flags[node] & RECORDED:
            raise UsageError(
                f"{node_text(graph, node)} could not be looked into, so it cannot be written as Python"
            )
        call = graph.calls[int(graph.node_call[node])]
        names = [f"v{value}" for value in self.plan.arguments(node)]
        parts = [self._text(arg, names, node) for arg in call.args]
        parts += [f"{key}={self._text(arg, names, node)}" for key, arg in call.kwargs]
        text = f"{_operator(call.op)}({', '.join(parts)})"
        rows = range(*graph.output_span(node))
        if node in self.kept.python_values and not rows:
            return [
                f"decided({text}, {self._text(self.kept.python_values[node], names, node)}, {self._place(node)!r})"
            ]
        written = {row: names[-1 - int(graph.out_slot[row])] for row in rows if graph.out_slot[row] < 0}
        fresh = [row for row in rows if row not in written]
        copies = [f"v{graph.out_value[row]} = {name}" for row, name in written.items()]
        # detach_ would refuse a view, and there is no history to cut
        if not fresh:
            return copies if call.op.startswith("aten::detach_") else [text, *copies]
        if len(fresh) == 1 and not written and len(rows) == 1 and not _returns_many(call.op):
            return [f"v{graph.out_value[fresh[0]]} = {text}"]
        kept = "".join(f"{name}, " for name in dict.fromkeys(written.values()))
        lines = [f"made = fresh({text}, ({kept.rstrip()}))"]
        lines += [f"v{graph.out_value[row]} = made[{int(graph.out_slot[row])}]" for row in fresh]
        return [*lines, "del made", *copies]

    def _place(self, node: int) -> str:
        """The line of a decision, to be read on another machine."""
        site = self.graph.nodes[node].site
        return (
            node_text(self.graph, node)
            if site is None
            else str(site._replace(file=os.path.basename(site.file)))
        )

    def _text(self, item: Any, names: Sequence[str], node: int) -> str:
        if isinstance(item, Slot):
            return names[item.number]
        if isinstance(item, Special):
            if item.kind == "device":
                return f"torch.device({item.text!r})"
            if item.kind in ("dtype", "layout", "memory_format"):
                return f"torch.{item.text}"
            raise UsageError(
                f"{node_text(self.graph, node)} takes {item.text}, which cannot be written as Python"
            )
        if type(item) is tuple:
            if len(item) == 2 and isinstance(item[0], Special) and item[0].kind == "dict":
                keys = ast.literal_eval(item[0].text)
                pairs = (f"{key!r}: {self._text(part, names, node)}" for key, part in zip(keys, item[1]))
                return "{" + ", ".join(pairs) + "}"
            return "[" + ", ".join(self._text(part, names, node) for part in item) + "]"
        if isinstance(item, float) and not math.isfinite(item):
            return f"float({str(item)!r})"
        return repr(item)


def _operator(name: str) -> str:
    namespace, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    if namespace == "higher_order":
        raise UsageError(f"{name} takes functions, which cannot be written as Python")
    return f"torch.ops.{namespace}.{base}.{overload or 'default'}"


def _returns_many(name: str) -> bool:
    """Whether an operator gives a tuple or list, even of one."""
    operator: Any = resolve(name)
    returns = operator._schema.returns
    return len(returns) != 1 or str(returns[0].type) != "Tensor"


LITERALS = (type(None), bool, int, float, str)
Plan = tuple[Any, ...]


def plan_of(spec: Any, renamed: set[str] | None = None) -> Plan:
    """A treespec as nested literals: ``("leaf",)``, ``("tuple", plans)``, ``("dict", keys, plans)``…

    A container that plain Python does not have becomes a dictionary, and its class is added to ``renamed``.

    >>> from torch.utils import _pytree as pytree
    >>> plan_of(pytree.tree_structure({"a": [1, 2]}))
    ('dict', ('a',), (('list', (('leaf',), ('leaf',))),))
    """
    if spec.is_leaf():
        return ("leaf",)
    parts = tuple(plan_of(child, renamed) for child in spec.children())
    if spec.type is tuple or spec.type in (list, deque):
        return ("tuple" if spec.type is tuple else "list", parts)
    if spec.type in (dict, OrderedDict, defaultdict):
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        return ("dict", _literal_keys(keys), parts)
    if _is_tuple(spec.type):
        return ("tuple", parts)
    if renamed is not None:
        renamed.add(spec.type.__name__)
    return ("dict", _names(spec.context, len(parts)), parts)


def _is_tuple(kind: Any) -> bool:
    """Named tuples (which pytree has under one name) and torch's own return types."""
    return getattr(kind, "__name__", "") == "namedtuple" or (
        isinstance(kind, type) and issubclass(kind, tuple)
    )


def _literal_keys(keys: Any) -> tuple[Any, ...]:
    for key in keys:
        if not isinstance(key, LITERALS):
            raise UsageError(
                f"a dictionary with the key {key!r} cannot be written as Python; use text or numbers"
            )
    return tuple(keys)


def _names(context: Any, number: int) -> tuple[Any, ...]:
    """The names of a custom container's parts, as far as what it remembers of itself tells them."""
    for names in (context, *(context if isinstance(context, (tuple, list)) else ())):
        if (
            isinstance(names, (tuple, list))
            and len(names) == number
            and all(isinstance(n, str) for n in names)
        ):
            return tuple(names)
    return tuple(str(index) for index in range(number))
