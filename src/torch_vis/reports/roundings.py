"""Parameters rounded one by one and all together, and what that does to them, to activations and to the output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from torch_vis.analysis.kinds import kind_of
from torch_vis.errors import UsageError
from torch_vis.graph.graph import Graph
from torch_vis.run.channels import channels_of
from torch_vis.run.contents import outside_faults
from torch_vis.run.observe import Watched
from torch_vis.run.replay import quiet
from torch_vis.run.rounding import FORMATS, Format, Narrow, Product, Trial, products, sqnr
from torch_vis.tracing import Trace

MULTIPLY = frozenset({"matmul", "convolution", "recurrent", "attention"})


class Rounding(NamedTuple):
    """One parameter in one format. Errors are signal to noise in decibels, 6 for each bit that is right.

    ``output_db`` is that of the model's output with this parameter alone rounded, and what it is multiplied with.
    What is NaN or infinite without any rounding is left out; an error is None where nothing else is there.
    """

    weight: str
    format: str
    weight_db: float | None
    activation_db: float | None
    output_db: float | None
    bytes_before: int
    bytes_after: int
    time_saved_ns: int | None


class Whole(NamedTuple):
    """The whole model in one format: every parameter that is multiplied by, and what it is multiplied with."""

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


def uses(multiplied: Iterable[Product], form: str) -> dict[tuple[int, int], Format]:
    """What is rounded where products read it, by operation and value."""
    return {(one.node, value): FORMATS[form] for one in multiplied for value in one.activations}


def left_out_of(found: Trace, exact: Sequence[torch.Tensor]) -> dict[str, int]:
    """What is NaN or infinite without any rounding; an infinite input or buffer that does no harm is a mask."""
    spoilt = sum(int((~torch.isfinite(tensor)).sum()) for tensor in exact)
    roles = {value.name: value.role for value in found.graph.values if value.producer is None}
    left_out = {
        name: nans + infs if roles.get(name) == "parameter" else nans
        for name, (nans, infs) in outside_faults(found.graph, found._held).items()
    }
    left_out = {name: number for name, number in left_out.items() if number}
    if spoilt and spoilt == sum(tensor.numel() for tensor in exact):
        why = f" (it came in with {', '.join(left_out)})" if left_out else ""
        raise UsageError(
            f"all of the output is NaN or infinite{why}, so no effect of rounding can be seen; t.gradients() finds "
            "where NaN was born, and effect=False looks at weights and activations alone"
        )
    return {**left_out, "the output": spoilt} if spoilt else left_out


def _multiplies(graph: Graph, node: int) -> bool:
    return kind_of(graph.nodes[node].call.op) in MULTIPLY or "embedding" in graph.nodes[node].name


def rounding_of(
    trial: Trial, one: Product, narrow: Narrow, noise: float | None, reached: float | None, saved: int | None
) -> Rounding:
    """One parameter in one format."""
    exact = trial.exact(one.weight)
    before, after = exact.numel() * exact.element_size(), narrow.size_bytes(exact.shape)
    own = sqnr(exact, narrow.rounded(exact))
    return Rounding(one.name, narrow.form.name, own, noise, reached, before, after, saved)


def whole_in(
    trial: Trial,
    multiplied: list[Product],
    form: str,
    narrow: Mapping[tuple[int, str], Narrow],
    rows: list[Rounding],
    exact: list[torch.Tensor],
) -> Whole:
    """All parameters in one format."""
    mine = [row for row in rows if row.format == form]
    times = [row.time_saved_ns for row in mine if row.time_saved_ns is not None]
    reached, agreement = None, None
    if exact:
        weights = {one.weight: narrow[one.weight, form] for one in multiplied}
        made = trial.outputs(weights, uses(multiplied, form))
        reached, agreement = decibel(exact, made), _agreement(exact[0], made[0])
    return Whole(
        form,
        reached,
        agreement,
        sum(row.bytes_before for row in mine),
        sum(row.bytes_after for row in mine),
        sum(times) if len(times) == len(mine) else None,
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
    run = Watched(found.graph, found._held)
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
