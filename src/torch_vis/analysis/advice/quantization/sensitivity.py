"""Parameters rounded one by one and all together, and what that does to them, to activations and to the output."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from torch_vis._trace import Trace
from torch_vis.analysis.advice.quantization.channels import channels_of
from torch_vis.analysis.advice.quantization.rounding import (
    FORMATS,
    Format,
    Narrow,
    Product,
    Stirred,
    Trial,
    products,
    sqnr,
)
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.ops.families import kind_of
from torch_vis.replay.replay import quiet
from torch_vis.replay.stepper import Watched

MULTIPLY = frozenset({"matmul", "convolution", "recurrent", "attention"})
STILL = 80.0  # dB that the output keeps with other numbers in a weight: it does not depend on it
ZERO = "all zeros, which every format holds: nothing follows for other numbers"
BLANK = "the output is all zeros"
UNSEEN = (
    "with other numbers in it the output hardly moves, as where a layer or a branch after it begins at zero"
)


class Rounding(NamedTuple):
    """One parameter in one format. Errors are signal to noise in decibels, 6 for each bit that is right.

    ``output_db`` is that of the model's output with this parameter alone rounded, and what it is multiplied with.
    What is NaN or infinite without any rounding is left out; an error is None where nothing else is there. ``hidden``
    is why the output tells nothing of this parameter, so that no advice comes of it: ``output_db`` is None then.
    """

    weight: str
    format: str
    weight_db: float | None
    activation_db: float | None
    output_db: float | None
    bytes_before: int
    bytes_after: int
    time_saved_ns: int | None
    hidden: str = ""

    @property
    def reached_db(self) -> float:
        """What is left of the output or, where that was not tried, of the parameter; nothing where it is not known."""
        found = self.weight_db if self.output_db is None else self.output_db
        return -math.inf if found is None or self.hidden else found


class Whole(NamedTuple):
    """The whole model in one format, or each parameter in the one advised for it, with what it is multiplied with."""

    format: str
    output_db: float | None
    agreement: float | None
    """The share of rows of the first output whose largest element stays in its place; None where it has no rows."""
    bytes_before: int
    bytes_after: int
    time_saved_ns: int | None


def multiplied_in(graph: Graph, nodes: Collection[int]) -> list[Product]:
    """Where these operations multiply by a parameter, or look rows of it up."""
    found = [one for one in products(graph, nodes) if _multiplies(graph, one.node)]
    if not found:
        raise UsageError(
            "no operation of this run multiplies by a parameter, so there is nothing to quantize"
        )
    if not any(value.type.numel for one in found for value in graph.nodes[one.node].outputs):
        raise UsageError(
            "the batch is empty: nothing that this run multiplies by a parameter has any elements"
        )
    return found


def narrowed(
    graph: Graph, multiplied: Sequence[Product], formats: Sequence[str]
) -> dict[tuple[int, str], Narrow]:
    """By weight and format, how the weight would be held."""
    nodes: dict[int, list[int]] = {}
    for one in multiplied:
        nodes.setdefault(one.weight, []).append(one.node)
    channels = {weight: channels_of(graph, weight, readers) for weight, readers in nodes.items()}
    return {(weight, form): Narrow(FORMATS[form], channels[weight]) for weight in nodes for form in formats}


def uses(multiplied: Iterable[Product], formats: Mapping[str, str]) -> dict[tuple[int, int], Format]:
    """What is rounded where products read it, by operation and value; ``formats`` are those of the weights."""
    return {(one.node, value): FORMATS[formats[one.name]] for one in multiplied for value in one.activations}


def _multiplies(graph: Graph, node: int) -> bool:
    return kind_of(graph.nodes[node].call.op) in MULTIPLY or "embedding" in graph.nodes[node].name


def hidden_weights(
    trial: Trial, reached: Mapping[tuple[int, str], float | None], exact: Sequence[torch.Tensor]
) -> dict[int, str]:
    """The weights of which the output tells nothing, and why.

    ``reached`` is the output's signal to noise by weight and format. A weight that no rounding of it showed gets other
    numbers altogether: where the output does not move by more than its own rounding then either, a layer or a branch
    after it is at zero, as many begin. One that the output does depend on and that a format holds exactly is none.
    """
    blank = bool(exact) and not any(bool(tensor.any()) for tensor in exact)
    wide = [-20 * math.log10(torch.finfo(tensor.dtype).eps) for tensor in exact]
    still = min([STILL, *wide])
    best: dict[int, float] = {}
    for (weight, _), found in reached.items():
        best[weight] = min(best.get(weight, math.inf), -math.inf if found is None else found)
    found_out = {}
    for weight, least in best.items():
        if not bool(trial.exact(weight).any()):
            found_out[weight] = ZERO
        elif blank:
            found_out[weight] = BLANK
        elif exact and least >= still:
            moved = decibel(exact, trial.outputs({weight: Stirred()}))
            if moved is None or moved >= still:
                found_out[weight] = UNSEEN
    return found_out


def rounding_of(
    trial: Trial,
    one: Product,
    narrow: Narrow,
    noise: float | None,
    reached: float | None,
    saved: int | None,
    hidden: str,
) -> Rounding:
    """One parameter in one format."""
    exact = trial.exact(one.weight)
    before, after = exact.numel() * exact.element_size(), narrow.size_bytes(exact.shape)
    own = sqnr(exact, narrow.rounded(exact))
    seen = None if hidden else reached
    return Rounding(one.name, narrow.form.name, own, noise, seen, before, after, saved, hidden)


def whole_in(
    trial: Trial,
    multiplied: Sequence[Product],
    formats: Mapping[str, str],
    narrow: Mapping[tuple[int, str], Narrow],
    rows: Sequence[Rounding],
    exact: Sequence[torch.Tensor],
    name: str,
) -> Whole:
    """Parameters in these formats, all at once; those that are not named stay as they are."""
    sizes = {row.weight: row.bytes_before for row in rows}
    mine = [row for row in rows if formats.get(row.weight) == row.format]
    times = [row.time_saved_ns for row in mine if row.time_saved_ns is not None]
    reached, agreement = None, None
    if exact and not all(row.hidden for row in mine):
        chosen = [one for one in multiplied if one.name in formats]
        weights = {one.weight: narrow[one.weight, formats[one.name]] for one in chosen}
        made = trial.outputs(weights, uses(chosen, formats))
        reached, agreement = decibel(exact, made), _agreement(exact[0], made[0])
    spared = sum(row.bytes_before - row.bytes_after for row in mine)
    return Whole(
        name,
        reached,
        agreement,
        sum(sizes.values()),
        sum(sizes.values()) - spared,
        sum(times) if times and len(times) == len(mine) else None,
    )


def decibel(exact: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> float | None:
    """The signal to noise of all outputs together."""
    if not exact:
        return None
    return sqnr(
        torch.cat([tensor.reshape(-1).float() for tensor in exact]),
        torch.cat([tensor.reshape(-1).float() for tensor in made]),
    )


def _agreement(exact: torch.Tensor, made: torch.Tensor) -> float | None:
    if exact.dim() < 2 or exact.shape[-1] < 2:
        return None
    known = ~exact.isnan().any(-1)
    if not bool(known.any()):
        return None
    return float((exact.argmax(-1) == made.argmax(-1))[known].float().mean())


def activation_noise(
    found: Trace, multiplied: Sequence[Product], formats: Sequence[str]
) -> dict[tuple[int, str], float | None]:
    """By weight and format, the worst signal to noise of what the weight is multiplied with; None of nothing finite."""
    by_node = {one.node: one for one in multiplied if one.activations}  # one of a node's weights has them
    noise: dict[tuple[int, str], float | None] = {}
    run = Watched(found.graph, found.kept)
    with quiet(run.plan.generators):
        for node in run.steps():
            one = by_node.get(node)
            if one is None:
                continue
            exact = run.replay.tensor(one.activations[0]).float()
            for form in formats:
                rounding = FORMATS[form].activation
                if rounding is not None and exact.numel():
                    reached, worst = sqnr(exact, rounding(exact)), noise.get((one.weight, form))
                    known = [known for known in (reached, worst) if known is not None]
                    noise[one.weight, form] = min(known, default=None)
    return noise
