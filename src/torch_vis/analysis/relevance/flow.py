"""Relevance from an output back through a run, node by node in reverse order."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.analysis.relevance import elements, moves, products, sums  # noqa: F401  (importing a file registers its rules)
from torch_vis.analysis.relevance.call import RULES, Call, Given, Shares, op_name
from torch_vis.analysis.relevance.composite import expand
from torch_vis.analysis.relevance.fx_steps import Steps
from torch_vis.analysis.relevance.part import Part, magnitude, signed
from torch_vis.analysis.relevance.result import Relevance, Row
from torch_vis.analysis.relevance.start import Start
from torch_vis.errors import no_match
from torch_vis.ops.names import out_of_place

MODES = ("default", "contrastive")
SHAPE_ONLY = frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones new_full new_empty "
    "new_empty_strided sym_size sym_stride sym_numel argmax argmin argsort _assert_tensor_metadata".split()
)
LOST = 1e-6  # of what was put in: less than this is rounding


def relevance_of(
    steps: Steps,
    values: list[Any],
    inputs: Iterable[int],
    start: Start,
    *,
    mode: str = "default",
    tensors: bool | str | list[str] = False,
    rows: Mapping[str, tuple[str, str]],
) -> Relevance:
    """The relevance of every node of a run whose values are all at hand."""
    if mode not in MODES:
        raise no_match("mode", str(mode), MODES)
    wanted = _wanted(tensors, rows)
    with torch.inference_mode(False), torch.no_grad():
        place, part = start.part(steps, values, contrastive=mode == "contrastive")
        flow = Flow(steps, values, inputs)
        flow.run({place[0]: {place[1]: part}}, wanted)
    found = []
    for name, (op, module) in rows.items():
        row = flow.rows.get(name)
        if row is not None:
            found.append(row._replace(op=op, module=module))
        elif op == "output":
            found.append(Row(name, op, module, part.sum(), part.sum(), 0.0, "start", part.net_sum()))
        else:
            found.append(Row(name, op, module, 0.0, 0.0, 0.0, ""))
    users = [steps.nodes[place].name for place in inputs]
    return Relevance(found, flow.tensors, users, part.sum(), mode)


def _wanted(tensors: bool | str | list[str], rows: Mapping[str, Any]) -> set[str]:
    if isinstance(tensors, bool):
        return set(rows) if tensors else set()
    found: set[str] = set()
    for pattern in [tensors] if isinstance(tensors, str) else tensors:
        chosen = fnmatch.filter(rows, pattern)
        if not chosen:
            raise no_match("node", str(pattern), rows)
        found.update(chosen)
    return found


class Flow:
    """Relevance on its way back through one graph."""

    def __init__(self, steps: Steps, values: list[Any], inputs: Iterable[int]) -> None:
        self.steps, self.values = steps, values
        self.carrying = _carriers(steps, values, set(inputs))
        self.parts: dict[int, dict[int, Part]] = {}
        self.rows: dict[str, Row] = {}
        self.tensors: dict[str, Any] = {}
        self.arrived: dict[int, Part] = {}  # at the graph's inputs
        self.scale = 0.0

    def run(self, given: dict[int, dict[int, Part]], wanted: set[str]) -> None:
        """Hand everything on until it has arrived at the inputs."""
        self.parts = given
        self.scale = sum(part.total.abs().sum().item() for row in given.values() for part in row.values())
        for place in range(len(self.steps.nodes) - 1, -1, -1):
            parts = self.parts.pop(place, None)
            if not parts:
                continue
            node = self.steps.nodes[place]
            if node.name in wanted or node.op == "placeholder":
                self.tensors[node.name] = _shown(parts)
            if node.op == "placeholder":
                self.arrived[place] = parts[0]
            shares, how = self._step(node, place, parts)
            self._note(node, parts, shares, how)
            for source, index, part in shares:
                self._give(source, index, part)

    def _give(self, place: int, index: int, part: Part) -> None:
        row = self.parts.setdefault(place, {})
        row[index] = row[index] + part if index in row else part

    def _step(
        self, node: fx.Node, place: int, parts: dict[int, Part]
    ) -> tuple[list[tuple[int, int, Part]], str]:
        """What the node's sources get, and by which rule."""
        if node.op != "call_function" or place not in self.carrying:
            return [], "input" if place in self.carrying and node.op == "placeholder" else "constant"
        places = self.steps.places
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            source = places[node.args[0]]
            return ([(source, int(node.args[1]), parts[0])] if source in self.carrying else []), "getitem"  # type: ignore[arg-type]
        call = Call(node, lambda item: self.values[places[item]], lambda item: places[item] in self.carrying)
        shares, how = shared(call, parts)
        found = [(places[call.leaves[leaf].node], 0, part) for leaf, part in shares.items()]  # type: ignore[index]
        return found, how

    def _note(
        self, node: fx.Node, parts: dict[int, Part], shares: list[tuple[int, int, Part]], how: str
    ) -> None:
        came = sum(part.sum() for part in parts.values())
        went = sum(part.sum() for _, _, part in shares)
        absorbed = 0.0 if how == "input" else came - went
        if abs(absorbed) <= LOST * self.scale:
            absorbed = 0.0
        net = sum(part.net_sum() for part in parts.values())
        self.rows[node.name] = Row(node.name, op_name(node), "", came, went, absorbed, how, net)


def shared(call: Call, given: Given) -> tuple[Shares, str]:
    """The shares of an operation's arguments, by its own rule, by its parts, or by its gradient."""
    if not call.carriers:
        return {}, "constant"
    rule = RULES.get(call.name) or RULES.get(out_of_place(call.name))
    if rule is None and elements.is_pointwise(call.target):
        rule = elements.pointwise
    if rule is not None:
        found = rule(call, given)
        if found is not None:
            return found, rule.__name__
    found = _by_parts(call, given)
    if found is not None:
        return found, "parts"
    return _by_gradient(call, given)


def _by_parts(call: Call, given: Given) -> Shares | None:
    expansion = expand(call)
    if expansion is None:
        return None
    steps, values, leaves = expansion
    inputs = [place for place, leaf in zip(steps.inputs, leaves) if call.leaves[leaf].carries]
    inner = Flow(steps, values, inputs)
    outs = pytree.tree_leaves(steps.output, is_leaf=lambda item: item is None)
    begin: dict[int, dict[int, Part]] = {}
    for index, part in given.items():
        if index < len(outs) and isinstance(outs[index], fx.Node):
            place = steps.places[outs[index]]
            row = begin.setdefault(place, {})
            row[0] = row[0] + part if 0 in row else part
    inner.run(begin, set())
    found: Shares = {}
    for place, leaf in zip(steps.inputs, leaves):
        if place in inner.arrived and call.leaves[leaf].carries:
            found[leaf] = inner.arrived[place]
    return found


def _by_gradient(call: Call, given: Given) -> tuple[Shares, str]:
    """For an operation that nothing is known of: by the magnitude of input times gradient, over the whole tensor."""
    moved = {
        p: signed(call.leaves[p].value) for p in call.carriers if call.leaves[p].value.is_floating_point()
    }
    if not moved or not all(torch.is_tensor(call.outs[index]) for index in given):
        return {}, "no rule"
    try:
        pulled = call.pull(moved, {}, {index: part.total for index, part in given.items()})
    except RuntimeError:
        return {}, "no rule"  # it has no gradient; what it was given is listed as absorbed
    sizes = {place: magnitude(pulled[place] * moved[place]) for place in moved}
    whole = float(sum(size.sum() for size in sizes.values()))
    if whole <= 0:
        return {}, "no rule"
    total = sum(part.sum() for part in given.values())
    net = None if any(p.net is None for p in given.values()) else sum(p.net_sum() for p in given.values())
    shares = {
        place: Part(size * (total / whole), None if net is None else size * (net / whole))
        for place, size in sizes.items()
    }
    return shares, "gradient"


def _carriers(steps: Steps, values: list[Any], inputs: set[int]) -> set[int]:
    """The places whose values depend on the inputs' contents, as numbers."""
    found = {place for place in inputs if _can_carry(values[place])}
    for step in steps.calls:
        if any(source in found for source in step.sources) and _can_carry(values[step.place]):
            if op_name(steps.nodes[step.place]) not in SHAPE_ONLY:
                found.add(step.place)
    return found


def _can_carry(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype is not torch.bool and not value.is_complex()
    return isinstance(value, (tuple, list)) and any(_can_carry(part) for part in value)


def _shown(parts: dict[int, Part]) -> Any:
    """A node's relevance as it is given to the user: one tensor, or one by output."""
    made = [parts[index].total if parts[index].net is None else parts[index].net for index in sorted(parts)]
    return made[0] if len(made) == 1 else made
