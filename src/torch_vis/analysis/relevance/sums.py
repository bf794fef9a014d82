"""Sums and averages: shares by the magnitude of what was added."""

from __future__ import annotations

from typing import Any

import torch

from torch_vis.analysis.relevance.call import Call, Given, Shares, rule
from torch_vis.analysis.relevance.part import Part, lifted, magnitude, ratio, sign, signed
from torch_vis.analysis.relevance.products import contributions
from torch_vis.ops.names import plain_name


@rule("add", "sub", "rsub", "__radd__", "__rsub__")
def addition(call: Call, given: Given) -> Shares | None:
    """By the magnitude of the addends that come from the inputs; a constant or a bias that is added gets nothing."""
    places = call.carriers
    part = given[0]
    if len(places) == 1:
        return {places[0]: part.like(call.leaves[places[0]].value.shape)}
    alpha = float(call.value("alpha", 1) or 1)
    name = plain_name(call.name).strip("_")  # also of Python's __rsub__
    scales = {
        "self": -alpha if name == "rsub" else 1.0,
        "other": {"sub": -alpha, "rsub": 1.0}.get(name, alpha),
    }
    shape = call.outs[0].shape
    sizes: dict[int, Any] = {}
    for place in places:
        leaf = call.leaves[place]
        size = lifted(magnitude(leaf.value)) * abs(scales.get(leaf.name, 1.0))
        sizes[place] = size.expand(shape)
    whole = sum(sizes.values())
    found = {}
    for place, size in sizes.items():
        leaf = call.leaves[place]
        net = None
        if part.net is not None:
            value = signed(leaf.value) * scales.get(leaf.name, 1.0)
            net = ratio(part.net, whole) * sign(call.outs[0]) * value
        found[place] = Part(ratio(part.total, whole) * size, net).like(leaf.value.shape)
    return found


@rule("sum", "mean", "cumsum", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d")
@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool3d")
@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d")
@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa")
@rule("trace", "col2im")
def reduction(call: Call, given: Given) -> Shares | None:
    """By magnitude within each window or row that was summed."""
    places = [place for place in call.carriers if call.leaves[place].name in ("self", "input")]
    return contributions(call, given, dict.fromkeys(places, 1.0), {})


@rule("embedding")
def lookup(call: Call, given: Given) -> Shares | None:
    """A vector's relevance belongs to the index that it was looked up by."""
    places = [place for place in call.carriers if call.leaves[place].name == "indices"]
    return {place: _summed(given[0], -1) for place in places} or None


@rule("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def bags(call: Call, given: Given) -> Shares | None:
    """A bag's relevance belongs to its indices, in even shares."""
    places = [place for place in call.carriers if call.leaves[place].name == "indices"]
    if not places:
        return None
    indices, offsets = call.leaves[places[0]].value, call.value("offsets")
    part = _summed(given[0], -1)
    if indices.dim() == 2 or offsets is None:
        return None
    starts = torch.arange(len(indices), device=indices.device)
    bag = torch.searchsorted(offsets, starts, right=True) - 1
    count = torch.bincount(bag, minlength=len(part.total)).clamp_min(1)
    share = Part(part.total / count, None if part.net is None else part.net / count)
    return {places[0]: Part(share.total[bag], None if share.net is None else share.net[bag])}


def _summed(part: Part, dim: int) -> Part:
    return Part(part.total.sum(dim), None if part.net is None else part.net.sum(dim))
