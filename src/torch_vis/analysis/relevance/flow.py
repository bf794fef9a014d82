"""Relevance from an output back through a run, node by node in reverse order, and the result."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from torch_vis.analysis.relevance.rules import (
    RULES,
    Amount,
    Given,
    OpCall,
    Shares,
    call_of,
    is_pointwise,
    magnitude,
    pointwise,
    sign,
    signed,
    wide,
)
from torch_vis.capture.compilers.interpreter import op_name
from torch_vis.capture.modes import without_gradients
from torch_vis.capture.state import RngStates
from torch_vis.errors import UsageError, no_match, optional
from torch_vis.ops.higher_order import TRANSPARENT
from torch_vis.ops.names import out_of_place

if TYPE_CHECKING:
    import pandas


SHOWN = 0.05  # of what was put in: beyond, what stays at a node is explained
WHY = "the part of what is no input, such as a bias, a learned token or a constant; it does not reach the inputs"


class NodeRelevance(NamedTuple):
    """The account of one node."""

    name: str
    op: str
    module: str
    relevance: float
    """What it was given."""
    passed: float
    """What it handed on."""
    absorbed: float
    """What stayed: the part of constants, or all where there is no rule."""
    rule: str
    net: float | None = None


class Relevance(Mapping[str, float]):
    """The relevance of every node by name, in the order of the graph; ``print`` shows it as a table.

    ``tensors`` has it element by element for the inputs and for the nodes asked for (in mode ``contrastive`` the net of
    evidence for and against), ``rows`` what each node was given, handed on and kept, ``absorbed`` those that kept any.
    """

    def __init__(
        self,
        rows: list[NodeRelevance],
        tensors: dict[str, Any],
        inputs: list[str],
        put_in: float,
        mode: str,
        by_node: Mapping[int, float] | None = None,
    ) -> None:
        self.rows = rows
        self.tensors = tensors
        self.inputs = inputs
        self.put_in = put_in
        self.mode = mode
        # of a recorded run: by the number of the operation
        self.by_node = dict(by_node or {})
        self._by_name = {row.name: row for row in rows}

    def __getitem__(self, name: str) -> float:
        if name not in self._by_name:
            raise no_match("node", str(name), self._by_name)
        return self._by_name[name].relevance

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def at_inputs(self) -> float:
        """How much arrived at the model's inputs."""
        return sum(self[name] for name in self.inputs)

    @property
    def absorbed(self) -> dict[str, float]:
        """What stayed on the way, by node: in constants that are joined or filled in, or where there is no rule."""
        return {row.name: row.absorbed for row in self.rows if row.absorbed}

    @property
    def error(self) -> float:
        """How much is unaccounted for, as a share of what was put in."""
        return abs(self.put_in - self.at_inputs - sum(self.absorbed.values())) / (abs(self.put_in) or 1.0)

    def positive(self, name: str) -> float:
        """What of a node's relevance speaks for the chosen output."""
        row = self._by_name.get(name)
        if row is None:
            raise no_match("node", name, self._by_name)
        return row.relevance if row.net is None else (row.relevance + row.net) / 2

    def negative(self, name: str) -> float:
        """What of it speaks against."""
        return self[name] - self.positive(name)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per node."""
        with optional("pandas"):
            import pandas as pd
        return pd.DataFrame([row._asdict() for row in self.rows]).set_index("name")

    def __str__(self) -> str:
        contrast = self.mode == "contrastive"
        head = ["node", "module", "relevance", *(["for", "against"] if contrast else []), "absorbed", "rule"]
        lines = [head]
        for row in self.rows:
            numbers = [row.relevance]
            if contrast:
                numbers += [self.positive(row.name), self.negative(row.name)]
            shown = [f"{number:.4g}" for number in numbers]
            lines.append(
                [row.name, row.module, *shown, f"{row.absorbed:.4g}" if row.absorbed else "", row.rule]
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        kept = sum(self.absorbed.values())
        if contrast:
            text.append(
                "for and against: what raises the chosen output and what lowers it; relevance is their sum"
            )
        text += [
            f"{size:.4g} stays at {name} ({rule}): {WHY}" for name, size, rule in self._largest_absorbed()
        ]
        text.append(
            f"put in {self.put_in:.4g}: {self.at_inputs:.4g} at the inputs, {kept:.4g} absorbed, "
            f"{self.error:.1e} of it unaccounted for"
        )
        return "\n".join(text)

    def _largest_absorbed(self) -> list[tuple[str, float, str]]:
        """The nodes at which more than a twentieth of what was put in stays."""
        rows = [row for row in self.rows if abs(row.absorbed) > SHOWN * abs(self.put_in)]
        return [(row.name, row.absorbed, row.rule) for row in rows]

    def __repr__(self) -> str:
        return f"<Relevance of {len(self)} nodes, {self.mode}: {self.at_inputs:.4g} of {self.put_in:.4g} at the inputs>"


MODES = ("default", "contrastive")
SHAPE_ONLY = frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like new_zeros new_ones new_full new_empty "
    "new_empty_strided sym_size sym_stride sym_numel argmax argmin argsort _assert_tensor_metadata".split()
)
ROUNDING = 1e-6  # of the relevance put in: less than this is rounding


def relevance_of(
    values: Values,
    inputs: list[fx.Node],
    start: Start,
    *,
    mode: str = "default",
    tensors: bool | str | list[str] = False,
    rows: Mapping[str, tuple[str, str]],
) -> Relevance:
    """The relevance of every node of a run whose values are all known; ``rows`` has operator and module of each."""
    if mode not in MODES:
        raise no_match("mode", str(mode), MODES)
    wanted = _wanted(tensors, rows)
    with torch.inference_mode(False), without_gradients():
        node, amount = start.amount(values, contrastive=mode == "contrastive")
        flow = RelevanceFlow(values, inputs)
        flow.run({node: {0: amount}}, wanted)
        for source in inputs:
            if source in flow.carrying and isinstance(values[source], torch.Tensor):
                flow.tensors.setdefault(
                    source.name, torch.zeros_like(values[source], dtype=amount.total.dtype)
                )
    accounts = []
    for name, (op, module) in rows.items():
        account = flow.accounts.get(name)
        if account is not None:
            accounts.append(account._replace(op=op, module=module))
        elif op == "output":
            total = amount.sum()
            accounts.append(NodeRelevance(name, op, module, total, total, 0.0, "start", amount.net_sum()))
        else:
            accounts.append(NodeRelevance(name, op, module, 0.0, 0.0, 0.0, ""))
    return Relevance(accounts, flow.tensors, [node.name for node in inputs], amount.sum(), mode)


def _wanted(tensors: bool | str | list[str], rows: Mapping[str, Any]) -> set[str]:
    """The names of the nodes whose relevance is kept element by element."""
    if isinstance(tensors, bool):
        return set(rows) if tensors else set()
    names: set[str] = set()
    for pattern in [tensors] if isinstance(tensors, str) else tensors:
        chosen = fnmatch.filter(rows, pattern)
        if not chosen:
            raise no_match("node", str(pattern), rows)
        names.update(chosen)
    return names


# ---------------------------------------------------------------- where it starts


class Start(NamedTuple):
    """What is to be explained: an index in one of the model's outputs."""

    returned: list[Any]
    """What the model returns: the nodes of a program, or the tensors."""
    output: int
    target: Any
    against: Any
    relevance: torch.Tensor | None
    multiplier: float

    def amount(self, values: Values, *, contrastive: bool) -> tuple[fx.Node, Amount]:
        """The node of the output, and the relevance to start with."""
        node = self._node()
        return node, self.amount_at(values[node], contrastive=contrastive)

    def amount_at(self, value: Any, *, contrastive: bool) -> Amount:
        """The relevance to start with at an output."""
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"output {self.output} is no tensor ({type(value).__name__}); choose another with output="
            )
        if self.against is not None and not contrastive:
            raise UsageError("against= is for mode='contrastive'")
        total = self._given(value) if self.relevance is not None else self._at(value, self.target)
        if not contrastive:
            if bool((total < 0).any()):
                raise UsageError(
                    "relevance below zero needs mode='contrastive', where evidence against is followed apart"
                )
            return Amount(total.clone())
        net = total
        if self.against is not None:
            other = self._at(value, self.against)
            total, net = total + other, total - other
        # an output below zero is itself what lowers it
        return Amount(total.abs(), net * sign(value))

    def chosen(self) -> Any:
        """What is to be explained, of all that the model returns."""
        if not -len(self.returned) <= self.output < len(self.returned):
            raise UsageError(
                f"the model returns {len(self.returned)} tensors; there is no output {self.output}"
            )
        return self.returned[self.output]

    def _node(self) -> fx.Node:
        node = self.chosen()
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
        relevance = torch.zeros(value.shape, dtype=wide(value), device=value.device)
        if not value.dim():
            return relevance + self.multiplier
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
        return relevance.scatter_(-1, chosen, self.multiplier)


# ---------------------------------------------------------------- back through one graph


class RelevanceFlow:
    """Relevance on its way back through one graph."""

    def __init__(self, values: Values, inputs: Iterable[fx.Node]) -> None:
        self.values = values
        self.carrying = _carriers(values, inputs)
        self.amounts: dict[fx.Node, dict[int, Amount]] = {}
        self.accounts: dict[str, NodeRelevance] = {}
        self.tensors: dict[str, Any] = {}
        self.arrived: dict[fx.Node, Amount] = {}
        """What reached the graph's inputs."""
        self.scale = 0.0

    def run(self, given: dict[fx.Node, dict[int, Amount]], wanted: Collection[str]) -> None:
        """Hand everything on until it has arrived at the inputs."""
        self.amounts = given
        self.scale = sum(part.total.abs().sum().item() for row in given.values() for part in row.values())
        for node in reversed(list(self.values)):
            amounts = self.amounts.pop(node, None)
            if not amounts:
                continue
            if node.name in wanted or node.op == "placeholder":
                self.tensors[node.name] = _shown(amounts)
            if node.op == "placeholder":
                self.arrived[node] = amounts[0]
            shares, rule = self._step(node, amounts)
            self._note(node, amounts, shares, rule)
            for source, index, amount in shares:
                _add(self.amounts, source, index, amount)

    def _step(
        self, node: fx.Node, amounts: dict[int, Amount]
    ) -> tuple[list[tuple[fx.Node, int, Amount]], str]:
        """What the node's sources get, and by which rule."""
        if node.op != "call_function" or node not in self.carrying:
            return [], "input" if node in self.carrying and node.op == "placeholder" else "constant"
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            source = node.args[0]
            index: Any = node.args[1]
            return ([(source, int(index), amounts[0])] if source in self.carrying else []), "getitem"
        call = call_of(node, self.values.__getitem__, self.carrying.__contains__)
        shares, rule = shared(call, amounts)
        return [(call.leaves[leaf].source, 0, amount) for leaf, amount in shares.items()], rule

    def _note(
        self, node: fx.Node, amounts: dict[int, Amount], shares: list[tuple[fx.Node, int, Amount]], rule: str
    ) -> None:
        received = sum(amount.sum() for amount in amounts.values())
        passed = sum(amount.sum() for _, _, amount in shares)
        absorbed = 0.0 if rule == "input" else received - passed
        if abs(absorbed) <= ROUNDING * self.scale:
            absorbed = 0.0
        net = sum(amount.net_sum() for amount in amounts.values())
        name = node.name
        self.accounts[name] = NodeRelevance(name, op_name(node), "", received, passed, absorbed, rule, net)


def _add(amounts: dict[fx.Node, dict[int, Amount]], node: fx.Node, index: int, amount: Amount) -> None:
    row = amounts.setdefault(node, {})
    row[index] = row[index] + amount if index in row else amount


def _carriers(values: Values, inputs: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes whose values depend on the inputs' contents, as numbers."""
    carriers = {node for node in inputs if _can_carry(values[node])}
    for node, value in values.items():
        if node.op == "call_function" and _can_carry(value) and op_name(node) not in SHAPE_ONLY:
            if any(source in carriers for source in node.all_input_nodes):
                carriers.add(node)
    return carriers


def _can_carry(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype is not torch.bool and not value.is_complex()
    return isinstance(value, (tuple, list)) and any(_can_carry(part) for part in value)


def _shown(amounts: dict[int, Amount]) -> Any:
    """A node's relevance for the user: one tensor, or one by output."""
    tensors = [
        amounts[index].total if amounts[index].net is None else amounts[index].net
        for index in sorted(amounts)
    ]
    return tensors[0] if len(tensors) == 1 else tensors


# ---------------------------------------------------------------- through one operation


def shared(call: OpCall, given: Given) -> tuple[Shares, str]:
    """The shares of an operation's arguments, by its own rule, by its parts, or by its gradient."""
    if not call.carriers:
        return {}, "constant"
    answer = ruled(call, given)
    if answer is not None:
        return answer
    shares = _by_parts(call, given)
    if shares is not None:
        return shares, "parts"
    return by_gradient(call, given)


def ruled(call: OpCall, given: Given) -> tuple[Shares, str] | None:
    """The shares by the operation's own rule; None where it has none for this call."""
    rule = RULES.get(call.name) or RULES.get(out_of_place(call.name))
    if rule is None and is_pointwise(call.target):
        rule = pointwise
    if rule is not None:
        shares = rule(call, given)
        if shares is not None:
            return shares, rule.__name__
    return None


def _by_parts(call: OpCall, given: Given) -> Shares | None:
    """Through the operations that an operation is made of."""
    expansion = expand(call)
    if expansion is None:
        return None
    placeholders = [node for node in expansion.values if node.op == "placeholder"]
    pairs = [pair for pair in zip(placeholders, expansion.leaves) if call.leaves[pair[1]].carries]
    inner = RelevanceFlow(expansion.values, [node for node, _ in pairs])
    returned = next(node for node in expansion.values if node.op == "output").args[0]
    outputs = pytree.tree_leaves(returned, is_leaf=lambda item: item is None)
    amounts: dict[fx.Node, dict[int, Amount]] = {}
    for index, amount in given.items():
        if index < len(outputs) and isinstance(outputs[index], fx.Node):
            _add(amounts, outputs[index], 0, amount)
    inner.run(amounts, ())
    return {leaf: inner.arrived[node] for node, leaf in pairs if node in inner.arrived}


def by_gradient(call: OpCall, given: Given) -> tuple[Shares, str]:
    """For an operation that nothing is known of: by the magnitude of input times gradient, over the whole tensor."""
    moved = {
        p: signed(call.leaves[p].value) for p in call.carriers if call.leaves[p].value.is_floating_point()
    }
    if not moved or not all(torch.is_tensor(call.outs[index]) for index in given):
        return {}, "no rule"
    try:
        pulled = call.pull(moved, {}, {index: amount.total for index, amount in given.items()})
    except RuntimeError:
        # it has no gradient; what it was given is listed as absorbed
        return {}, "no rule"
    sizes = {position: magnitude(pulled[position] * moved[position]) for position in moved}
    whole = float(sum(size.sum() for size in sizes.values()))
    if whole <= 0:
        return {}, "no rule"
    total = sum(amount.sum() for amount in given.values())
    net = None if any(a.net is None for a in given.values()) else sum(a.net_sum() for a in given.values())
    shares = {
        position: Amount(size * (total / whole), None if net is None else size * (net / whole))
        for position, size in sizes.items()
    }
    return shares, "gradient"


# ---------------------------------------------------------------- operations that are made of others


class Expansion(NamedTuple):
    """An operation as a graph of its own, with the values of its run."""

    values: Values
    leaves: list[int]
    """For each placeholder, the position among the call's leaves."""


def expand(call: OpCall) -> Expansion | None:
    """The operation's parts by torch's own decompositions, run again on the same values; None where it has none."""
    body = _body(call)
    if body is not None:
        return body
    function = _decomposition(call)
    if function is None:
        return None
    positions = [
        position for position, leaf in enumerate(call.leaves) if isinstance(leaf.value, torch.Tensor)
    ]
    inputs = [call.leaves[position].value for position in positions]

    def parts(*tensors: torch.Tensor) -> Any:
        values = [leaf.value for leaf in call.leaves]
        for position, tensor in zip(positions, tensors):
            values[position] = tensor
        args, kwargs = pytree.tree_unflatten(values, call.spec)
        return function(*args, **kwargs)

    module = _traced(parts, inputs)
    if module is None:
        return None
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    if all(node.target is call.target for node in calls):
        return None
    return Expansion(run_graph(module, inputs), positions)


def _traced(function: Callable[..., Any], inputs: list[torch.Tensor]) -> fx.GraphModule | None:
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with without_gradients(), RngStates():
            # without writes in place, so that each value stays what it was
            writeless = torch.func.functionalize(function)
            module: fx.GraphModule = make_fx(writeless, tracing_mode="real")(*inputs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        # no decomposition for these arguments: the caller has another rule
        return None
    return module


def _decomposition(call: OpCall) -> Callable[..., Any] | None:
    if call.name == "scaled_dot_product_attention":
        return _attention
    if not isinstance(call.target, torch._ops.OpOverload):
        return None
    function = torch._decomp.decomposition_table.get(call.target)
    if function is not None:
        return function
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
    return torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, 0.0, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _body(call: OpCall) -> Expansion | None:
    """The graph inside a higher-order operator that runs one graph on its operands."""
    if call.name not in TRANSPARENT:
        return None
    graphs = [position for position, leaf in enumerate(call.leaves) if isinstance(leaf.value, fx.GraphModule)]
    is_second = call.name == "cond" and not bool(call.leaves[0].value)
    module = call.leaves[graphs[1 if is_second else 0]].value
    positions = list(range(graphs[-1] + 1, len(call.leaves)))
    if sum(node.op == "placeholder" for node in module.graph.nodes) != len(positions):
        return None
    with without_gradients():
        return Expansion(
            run_graph(module, [call.leaves[position].value for position in positions]), positions
        )


Values = dict[fx.Node, Any]


def run_graph(
    module: fx.GraphModule, inputs: Sequence[Any], keep: Collection[fx.Node] | None = None
) -> Values:
    """The value of every node, or of those in ``keep``, on flat inputs; that of the output node is what it returns.

    >>> from operator import mul
    >>> module = fx.symbolic_trace(lambda x: mul(x, 3) + 1)
    >>> list(run_graph(module, [2]).values())
    [2, 6, 7, 7]
    """
    interpreter = _ValueInterpreter(module, keep)
    interpreter.run(*inputs, enable_io_processing=False)
    return interpreter.env


class _ValueInterpreter(fx.Interpreter):
    """Calls the operators as they are in the graph, without bookkeeping for tracebacks, which costs more."""

    def __init__(self, module: fx.GraphModule, keep: Collection[fx.Node] | None) -> None:
        super().__init__(module, garbage_collect_values=keep is not None)
        self.extra_traceback = False
        if keep is not None:
            self.user_to_last_uses = {
                user: [node for node in nodes if node not in keep]
                for user, nodes in self.user_to_last_uses.items()
            }

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; an error names it."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        try:
            return getattr(self, n.op)(n.target, args, kwargs)
        except Exception as error:
            # Python 3.11
            if hasattr(error, "add_note"):
                error.add_note(f"in node {n.name!r}: {n.target}")
            raise
