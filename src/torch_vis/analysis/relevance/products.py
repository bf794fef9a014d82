"""Products with weights and of two activations: shares by the magnitude of each contribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_vis.analysis.relevance.call import Call, Given, Shares, rule
from torch_vis.analysis.relevance.part import Part, lifted, magnitude, ratio, sign, signed

FACTORS = frozenset(
    {"input", "self", "weight", "other", "mat1", "mat2", "batch1", "batch2", "vec", "vec1", "vec2"}
)
FACTORS |= {"tensors", "tensor", "input1", "input2"}


@rule(
    "linear", "matmul", "mm", "bmm", "mv", "dot", "vdot", "inner", "outer", "einsum", "bilinear", "tensordot"
)
@rule("conv1d", "conv2d", "conv3d", "convolution", "_convolution")
@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def product(call: Call, given: Given) -> Shares | None:
    """Of every output, each input's share of ``Σ |x·w|``; the bias is left out, so that its part goes to the inputs."""
    factors = [place for place in call.carriers if call.leaves[place].name in FACTORS]
    return contributions(call, given, {place: 1 / len(factors) for place in factors}, _no_bias(call))


@rule("addmm", "addbmm", "baddbmm", "addmv", "addr")
def product_and_sum(call: Call, given: Given) -> Shares | None:
    """The same with something added, which counts if it comes from the inputs."""
    added = [place for place in call.carriers if call.leaves[place].name == "self"]
    factors = [place for place in call.carriers if place not in added]
    weights = {**dict.fromkeys(added, 1.0), **{place: 1 / len(factors) for place in factors}}
    fixed: dict[int, Any] = {
        place: torch.zeros_like(magnitude(call.leaves[place].value))
        for place in call.places("self")
        if place not in added
    }
    return contributions(call, given, weights, fixed)


def _no_bias(call: Call) -> dict[int, Any]:
    return {place: None for place, leaf in enumerate(call.leaves) if leaf.name == "bias"}


def contributions(
    call: Call, given: Given, weights: Mapping[int, float], fixed: Mapping[int, Any]
) -> Shares | None:
    """Shares of an operator that is linear in each of its tensors, worked out by running it on magnitudes."""
    if not weights:
        return None
    inputs = {place: call.leaves[place].value for place in weights}
    others = {
        place: leaf.value
        for place, leaf in enumerate(call.leaves)
        if isinstance(leaf.value, torch.Tensor) and leaf.value.is_floating_point() and place not in inputs
    }
    sizes = {place: lifted(magnitude(value)) for place, value in inputs.items()}
    held = {**{place: lifted(magnitude(value)) for place, value in others.items()}, **fixed}
    with torch.no_grad():
        whole = call.run({**held, **sizes})
    part = given[0]
    pulled = call.pull(sizes, held, {0: ratio(part.total, whole)})
    totals = {place: pulled[place] * sizes[place] * weights[place] for place in sizes}
    if part.net is None:
        return {place: Part(total) for place, total in totals.items()}
    values = {place: signed(value) for place, value in inputs.items()}
    held = {**{place: signed(value) for place, value in others.items()}, **fixed}
    pulled = call.pull(values, held, {0: ratio(part.net, whole) * sign(call.outs[0])})
    return {
        place: Part(total, pulled[place] * values[place] * weights[place]) for place, total in totals.items()
    }
