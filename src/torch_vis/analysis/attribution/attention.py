"""The attention weights of a run: read where the program computed them, recomputed where a kernel fused them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.attribution.methods import token_names
from torch_vis.analysis.report import Charts, MapReport
from torch_vis.capture.modes import without_gradients
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.graph import Graph, Node
from torch_vis.graph.schema import Flag, Phase
from torch_vis.ops.names import common_name, plain_name
from torch_vis.replay.decompositions import FUSED_ATTENTION, FUSED_LAYERS, attention_call
from torch_vis.replay.differentiable import DifferentiableReplay
from torch_vis.replay.held_run import HeldRun
from torch_vis.replay.rerun import planner_of
from torch_vis.views.charts.maps import MapPicture, NumberGrid
from torch_vis.views.text.table_layout import Field, Listing

# what may stand between a softmax and the product with the values
BETWEEN = frozenset(
    "dropout native_dropout clone contiguous to _to_copy mul where masked_fill type_as nan_to_num expand".split()
)
PRODUCTS = frozenset({"bmm", "matmul", "mm", "baddbmm", "einsum"})


class AttentionNode(NamedTuple):
    """Where attention happens in a run: the module, the operation, and whether a kernel fused it."""

    name: str
    node: int
    is_fused: bool


class AttentionRow(NamedTuple):
    """One head: how spread its attention is, and where most of it goes."""

    place: str
    head: int
    entropy: float
    first: float
    diagonal: float
    previous: float


class AttentionReport(MapReport):
    """Attention weights by module: ``report["h.5.attn"]`` is samples × heads × queries × keys."""

    title = "Attention"

    def __init__(
        self,
        run: HeldRun,
        at: Any = None,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        tokens: Sequence[str] | None = None,
    ) -> None:
        places = attention_nodes(run.graph)
        if at is not None:
            places = _chosen(run, places, at)
        if not places:
            raise UsageError(
                "the run has no attention: no fused kernel, and no softmax whose result is multiplied with something"
            )
        graph = run.graph
        watch: dict[AttentionNode, list[int]] = {}
        planner = planner_of(run, run.needs_tensors("run"))
        for attention in places:
            outputs = graph.out_value[slice(*graph.output_span(attention.node))].tolist()
            watch[attention] = planner.plan.arguments(attention.node) if attention.is_fused else outputs[:1]
        forward = DifferentiableReplay(
            run, args, kwargs, watch=sorted({v for row in watch.values() for v in row})
        )
        self._limits = forward.limits
        self.weights: dict[str, torch.Tensor] = {}
        """The weights by module, in the order of the run."""
        with without_gradients():
            values = forward.run().watched
            for attention in places:
                tensors = [values[value] for value in watch[attention]]
                self.weights[attention.name] = self._weights(forward, attention, tensors)
        self.fused = [attention.name for attention in places if attention.is_fused]
        """The modules whose kernel gave no weights, so that they were worked out from queries and keys."""
        self._tokens = list(tokens) if tokens is not None else None

    def _weights(
        self, forward: DifferentiableReplay, attention: AttentionNode, tensors: list[torch.Tensor]
    ) -> torch.Tensor:
        if not attention.is_fused:
            return _as_heads(forward.graph, tensors[0])
        args, kwargs = forward.planner.plan.prepared(attention.node).arguments(tensors)
        name = plain_name(forward.graph.nodes[attention.node].op)
        if name in FUSED_LAYERS:
            return FUSED_LAYERS[name](*args, **kwargs)
        return attention_call(name, args, kwargs).weights()

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.weights:
            raise no_match("attention of module", str(name), self.weights)
        return self.weights[name]

    @property
    def names(self) -> list[str]:
        """The modules, in the order of the run."""
        return list(self.weights)

    def head(self, name: str, head: int, *, sample: int = 0) -> torch.Tensor:
        """The weights of one head, queries × keys."""
        weights = self[name]
        if not -weights.shape[1] <= head < weights.shape[1]:
            raise UsageError(
                f"{name!r} has {weights.shape[1]} heads, counted from 0; there is no head {head}"
            )
        return weights[sample, head]

    @property
    def rows(self) -> list[AttentionRow]:
        """One row for each head: what it looks at, averaged over samples and queries."""
        return [row for name in self.weights for row in self._heads(name)]

    def _heads(self, name: str) -> list[AttentionRow]:
        weights = self.weights[name].double()
        entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1).mean((0, 2))
        first = weights[..., 0].mean((0, 2))
        own = torch.diagonal(weights, 0, -2, -1).mean((0, 2))
        before = torch.diagonal(weights, -1, -2, -1)
        before = before.mean((0, 2)) if before.shape[-1] else torch.zeros_like(own)
        figures = zip(entropy.tolist(), first.tolist(), own.tolist(), before.tolist())
        return [AttentionRow(name, head, *numbers) for head, numbers in enumerate(figures)]

    def facts(self) -> Mapping[str, str]:
        """How much attention there is."""
        sizes = {f"{w.shape[1]} heads, {w.shape[2]} × {w.shape[3]}" for w in self.weights.values()}
        facts = {"modules": f"{len(self.weights)}", "each": "; ".join(sorted(sizes))}
        if self.fused:
            facts["fused"] = f"{len(self.fused)}, worked out again from queries and keys"
        return facts

    def notes(self) -> Sequence[str]:
        """What is as recorded and might be different with other inputs."""
        return self._limits

    def listings(self) -> Sequence[Listing]:
        """Every head, with what it looks at."""
        number = "{:.3f}".format
        fields = (
            Field("place", "module"),
            Field("head", "head", str),
            Field("entropy", "entropy", number),
            Field("first", "to the first", number),
            Field("diagonal", "to itself", number),
            Field("previous", "to the one before", number),
        )
        return [Listing("heads", fields, self.rows, most=24, heading="Heads")]

    def charts(self) -> Mapping[str, Any]:
        """The heads of each module side by side, tokens × tokens; ``mean`` has all modules."""
        charts = {name: partial(self._chart, name) for name in self.weights}
        return Charts(**charts, mean=self._means)

    def _chart(self, name: str) -> MapPicture:
        weights = self.weights[name][0].double().cpu().numpy()
        panels = [self._grid(f"head {head}", grid) for head, grid in enumerate(weights)]
        return MapPicture(f"attention of {name}", panels)

    def _means(self) -> MapPicture:
        panels = [self._grid(name, w[0].double().mean(0).cpu().numpy()) for name, w in self.weights.items()]
        return MapPicture("attention, mean of the heads", panels)

    def _grid(self, title: str, grid: Any) -> NumberGrid:
        queries, keys = grid.shape
        if self._tokens is not None and len(self._tokens) == queries == keys:
            rows = columns = self._tokens
        else:
            rows, columns = token_names(None, queries), token_names(None, keys)
        return NumberGrid(title, grid, rows, columns, "query", "key")


def attention_nodes(graph: Graph) -> list[AttentionNode]:
    """The operations of a run's forward pass that compute attention weights, fused or in parts."""
    candidates = []
    for node in graph.nodes:
        if graph.node_phase[node.index] != Phase.FORWARD or graph.node_flags[node.index] & Flag.RECOMPUTE:
            continue
        name = plain_name(node.op)
        if name in FUSED_ATTENTION or name in FUSED_LAYERS:
            candidates.append((node, True))
        elif common_name(node.op) in ("softmax", "safe_softmax") and _weighs(graph, node):
            candidates.append((node, False))
    counts: dict[str, int] = {}
    rows = []
    for node, is_fused in candidates:
        path = node.path
        name = path if path not in counts else f"{path}:{counts[path]}"
        counts[path] = counts.get(path, 0) + 1
        rows.append(AttentionNode(name, node.index, is_fused))
    return rows


def _weighs(graph: Graph, node: Node) -> bool:
    """Whether a softmax over the last dimension is multiplied with values, perhaps after dropout and views."""
    shape = node.outputs[0].shape
    if len(shape) < 3:
        return False
    dim = node.call.args[1] if len(node.call.args) > 1 else -1
    if dim not in (-1, len(shape) - 1):
        return False
    stack, seen = [node.outputs[0].index], set[int]()
    while stack:
        value = stack.pop()
        for user in graph.value_users(value):
            row = graph.nodes[int(user)]
            if row.index in seen or graph.node_phase[row.index] != Phase.FORWARD:
                continue
            seen.add(row.index)
            name = plain_name(row.op)
            if name in PRODUCTS and row.inputs[-2].index == value:
                return True
            if graph.node_flags[row.index] & Flag.VIEW or name in BETWEEN:
                stack += [output.index for output in row.outputs]
    return False


def _chosen(run: HeldRun, places: list[AttentionNode], at: Any) -> list[AttentionNode]:
    """The places within the calls that a selector selects."""
    graph = run.graph
    inside = np.zeros(len(graph), dtype=bool)
    for match in graph.query().matches(at, operations=True):
        inside[match.rows] = True
    chosen = [attention for attention in places if inside[attention.node]]
    if not chosen:
        raise UsageError(
            f"{str(at)!r} has no attention in this run; it is in "
            f"{', '.join(repr(place.name) for place in places[:6]) or 'no module'}"
        )
    return chosen


def _as_heads(graph: Graph, weights: torch.Tensor) -> torch.Tensor:
    """Weights as samples × heads × queries × keys; samples and heads in one dimension are split."""
    if weights.dim() == 4:
        return weights.detach().clone()
    if weights.dim() != 3:
        return weights.detach().reshape(-1, 1, *weights.shape[-2:]).clone()
    heads = _heads_before(graph, weights.shape[0])
    return weights.detach().reshape(-1, heads, *weights.shape[1:]).clone()


def _heads_before(graph: Graph, rows: int) -> int:
    """The number of heads that were put together with the samples of the inputs in one dimension."""
    samples = {value.shape[0] for value in graph.inputs if value.role == "input" and len(value.shape)}
    for size in sorted(samples, reverse=True):
        if size and rows % size == 0:
            return int(rows // size)
    return 1
