"""Relevance from an output back through a run, node by node in reverse order."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.analysis.relevance.call import (
    RULES,
    Call,
    Given,
    Part,
    Shares,
    magnitude,
    op_name,
    signed,
    wide,
)
from torch_vis.analysis.relevance.fx_steps import Steps
from torch_vis.analysis.relevance.result import Relevance, Row
from torch_vis.analysis.relevance.rules import is_pointwise, pointwise
from torch_vis.errors import UsageError, no_match
from torch_vis.ops.higher_order import TRANSPARENT

# ---------------------------------------------------------------- start


class Start(NamedTuple):
    """What is to be explained."""

    returned: list[Any]  # the nodes that the model returns
    output: int
    target: Any
    against: Any
    relevance: torch.Tensor | None
    multiplier: float

    def part(self, steps: Steps, values: list[Any], *, contrastive: bool) -> tuple[tuple[int, int], Part]:
        """The place, the position among its outputs, and the relevance to start with."""
        node = self._node()
        value = values[steps.places[node]]
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"output {self.output} is no tensor ({type(value).__name__}); choose another with output="
            )
        if self.against is not None and not contrastive:
            raise UsageError("against= is for mode='contrastive'")
        put = self._given(value) if self.relevance is not None else self._at(value, self.target)
        net = None
        if contrastive:
            net = put
            if self.against is not None:
                other = self._at(value, self.against)
                put, net = put + other, put - other
        elif bool((put < 0).any()):
            raise UsageError(
                "relevance below zero needs mode='contrastive', where evidence against is followed apart"
            )
        else:
            put = put.clone()
        return (steps.places[node], 0), Part(put.abs() if net is not None else put, net)

    def _node(self) -> fx.Node:
        if not -len(self.returned) <= self.output < len(self.returned):
            raise UsageError(
                f"the model returns {len(self.returned)} tensors; there is no output {self.output}"
            )
        node = self.returned[self.output]
        if not isinstance(node, fx.Node):
            raise UsageError(f"output {self.output} is the constant {node!r}; choose another with output=")
        return node

    def _given(self, value: torch.Tensor) -> torch.Tensor:
        given = self.relevance
        if not isinstance(given, torch.Tensor) or given.shape != value.shape:
            shown = tuple(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
            raise UsageError(
                f"relevance must be a tensor of the output's shape {tuple(value.shape)}, not {shown}"
            )
        return given.detach().to(value.device, wide(value)) * self.multiplier

    def _at(self, value: torch.Tensor, target: Any) -> torch.Tensor:
        """The multiplier at one index of the last dimension of every row, zero elsewhere."""
        put = torch.zeros(value.shape, dtype=wide(value), device=value.device)
        if not value.dim():
            return put + self.multiplier
        if target is None:
            chosen = value.argmax(-1, keepdim=True)
        else:
            chosen = torch.as_tensor(target, device=value.device)
            if chosen.is_floating_point():
                raise UsageError(f"target is an index of the last dimension, not {target!r}")
            last = value.shape[-1]
            if bool(((chosen >= last) | (chosen < -last)).any()):
                raise UsageError(f"target {target!r} is outside the output's last dimension of {last}")
            try:
                chosen = (chosen % last).expand(value.shape[:-1]).unsqueeze(-1)
            except RuntimeError as error:
                raise UsageError(
                    f"target has shape {tuple(chosen.shape)}, and the output has rows {tuple(value.shape[:-1])}: "
                    "give one index, or one for each"
                ) from error
        return put.scatter_(-1, chosen, self.multiplier)


# ---------------------------------------------------------------- composite


class Expansion(NamedTuple):
    """An operation as a graph of its own, with the values of its run and the leaves that its inputs stand for."""

    steps: Steps
    values: list[Any]
    leaves: list[int]  # for each placeholder, the position among the call's leaves


def expand(call: Call) -> Expansion | None:
    """The operation's parts, where torch can take it apart."""
    wrapped = _wrapped(call)
    if wrapped is not None:
        return wrapped
    function = _decomposition(call)
    if function is None:
        return None
    places = [place for place, leaf in enumerate(call.leaves) if isinstance(leaf.value, torch.Tensor)]
    inputs = [call.leaves[place].value for place in places]

    def parts(*tensors: torch.Tensor) -> Any:
        values = [leaf.value for leaf in call.leaves]
        for place, tensor in zip(places, tensors):
            values[place] = tensor
        args, kwargs = pytree.tree_unflatten(values, call.spec)
        return function(*args, **kwargs)

    module = _traced(parts, inputs)
    if module is None or all(node.target is call.target for node in _calls(module)):
        return None
    steps = Steps(module)
    return Expansion(steps, steps.run(inputs), places)


def _calls(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def _traced(function: Callable[..., Any], inputs: list[torch.Tensor]) -> fx.GraphModule | None:
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            module: fx.GraphModule = make_fx(function, tracing_mode="real")(*inputs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # no decomposition for these arguments: the caller has another rule
    return module


def _decomposition(call: Call) -> Callable[..., Any] | None:
    if call.name == "scaled_dot_product_attention":
        return _attention
    if not isinstance(call.target, torch._ops.OpOverload):
        return None
    found = torch._decomp.decomposition_table.get(call.target)
    if found is not None:
        return found
    if call.target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return call.target
    return None


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention in its plain form: two products with a softmax between."""
    made = torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, 0.0, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )
    return made[0]


def _wrapped(call: Call) -> Expansion | None:
    """The graph inside a higher-order operator that runs one graph on its operands."""
    if call.name not in TRANSPARENT:
        return None
    modules = [leaf.value for leaf in call.leaves if isinstance(leaf.value, fx.GraphModule)]
    if call.name == "cond":
        predicate = call.leaves[0].value
        chosen = modules[0] if bool(predicate) else modules[1]
    else:
        chosen = modules[0]
    last = max(place for place, leaf in enumerate(call.leaves) if isinstance(leaf.value, fx.GraphModule))
    places = list(range(last + 1, len(call.leaves)))
    steps = Steps(chosen)
    if len(steps.inputs) != len(places):
        return None
    with torch.no_grad():
        return Expansion(steps, steps.run([call.leaves[place].value for place in places]), places)


# ---------------------------------------------------------------- flow


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
    rule = RULES.get(call.name)
    if rule is None and call.name.endswith("_"):
        rule = RULES.get(call.name[:-1])
    if rule is None and is_pointwise(call.target):
        rule = pointwise
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
