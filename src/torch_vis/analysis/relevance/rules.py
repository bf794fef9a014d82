"""The rules by which an operation hands relevance on to its arguments, one for each family of operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from torch_vis.analysis.relevance.call import (
    Call,
    Given,
    Part,
    Shares,
    lifted,
    magnitude,
    op_name,
    ratio,
    rule,
    sign,
    signed,
    wide,
)

# ---------------------------------------------------------------- products


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


# ---------------------------------------------------------------- sums


@rule("add", "sub", "rsub", "__radd__", "__rsub__")
def addition(call: Call, given: Given) -> Shares | None:
    """By the magnitude of the addends that come from the inputs; a constant or a bias that is added gets nothing."""
    places = call.carriers
    part = given[0]
    if len(places) == 1:
        return {places[0]: part.like(call.leaves[places[0]].value.shape)}
    alpha = float(call.value("alpha", 1) or 1)
    name = call.name.strip("_")
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


# ---------------------------------------------------------------- elements


GATES = frozenset({"sigmoid", "hardsigmoid", "rsqrt", "reciprocal"})
TRANSPARENT = frozenset(
    "view reshape unsqueeze squeeze expand to _to_copy clone type_as contiguous getitem split chunk unsafe_chunk "
    "unsafe_split split_with_sizes slice select unbind permute transpose".split()
)


@rule(
    "batch_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "native_layer_norm",
    "native_group_norm",
)
@rule(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm",
)
@rule("_batch_norm_with_update", "_fused_rms_norm", "batch_norm_with_update")
@rule("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax", "softmin")
@rule("dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
@rule(
    "clone",
    "contiguous",
    "to",
    "_to_copy",
    "type_as",
    "alias",
    "detach",
    "detach_",
    "lift_fresh",
    "lift_fresh_copy",
)
@rule("prelu", "rrelu", "rrelu_with_noise", "_prelu_kernel")
def through(call: Call, given: Given) -> Shares | None:
    """Element by element to the input; statistics, weights and biases get nothing."""
    places = [place for place in call.carriers if call.leaves[place].name in ("self", "input")]
    if not places or 0 not in given or call.leaves[places[0]].value.shape != given[0].total.shape:
        return None
    return {places[0]: given[0]}


@rule("mul", "__rmul__", "multiply")
def multiplication(call: Call, given: Given) -> Shares | None:
    """To the signal where the other factor is a gate or a scale, otherwise in even shares."""
    places = call.carriers
    signals = [place for place in places if not _is_gate(call.leaves[place].node)]
    chosen = signals or places
    return _even(call, given[0], chosen)


@rule("div", "divide", "true_divide", "floor_divide", "remainder", "fmod")
def quotient(call: Call, given: Given) -> Shares | None:
    """To the numerator, if it comes from the inputs."""
    chosen = [place for place in call.carriers if call.leaves[place].name == "self"]
    return _even(call, given[0], chosen or call.carriers)


@rule("where")
def choice(call: Call, given: Given) -> Shares | None:
    """To the side that was chosen; a constant that was chosen keeps what it got."""
    condition = call.value("condition")
    found = {}
    for name, mask in (("self", condition), ("other", ~condition)):
        for place in call.places(name):
            if call.leaves[place].carries:
                found[place] = given[0].times(mask).like(call.leaves[place].value.shape)
    return found or None


@rule("masked_fill")
def fill(call: Call, given: Given) -> Shares | None:
    """To the elements that were left as they were."""
    places = [place for place in call.carriers if call.leaves[place].name == "self"]
    kept = ~call.value("mask")
    return {place: given[0].times(kept).like(call.leaves[place].value.shape) for place in places} or None


def pointwise(call: Call, given: Given) -> Shares | None:
    """Any other operation on elements: evenly to all that it takes of the inputs."""
    if len(given) != 1 or 0 not in given:
        return None
    return _even(call, given[0], call.carriers)


def _even(call: Call, part: Part, places: list[int]) -> Shares | None:
    shares = {}
    for place in places:
        shape = call.leaves[place].value.shape
        if len(shape) > part.total.dim():
            return None
        shares[place] = part.times(1 / len(places)).like(shape)
    return shares or None


def _is_gate(node: fx.Node | None) -> bool:
    """Whether a factor was made by a gate, perhaps reshaped since."""
    while node is not None and node.op == "call_function":
        name = op_name(node)
        if name in GATES:
            return True
        if name not in TRANSPARENT or not node.args or not isinstance(node.args[0], fx.Node):
            return False
        node = node.args[0]
    return False


def is_pointwise(target: object) -> bool:
    """Whether torch says that an operator works element by element."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags


# ---------------------------------------------------------------- moves


TAKEN = frozenset({"self", "input", "tensors", "src", "source", "values", "value", "x"})

VIEWS = """view _unsafe_view reshape _reshape_alias flatten unflatten squeeze unsqueeze expand expand_as permute
transpose t numpy_T mT movedim swapaxes swapdims select slice narrow diagonal split split_with_sizes chunk unbind unfold
unsafe_chunk unsafe_split unsafe_split_with_sizes tensor_split hsplit vsplit as_strided view_as diag diag_embed"""
COPIES = """cat concat concatenate stack hstack vstack column_stack dstack pad constant_pad_nd reflection_pad1d
reflection_pad2d replication_pad1d replication_pad2d _pad_circular flip roll rot90 repeat tile repeat_interleave index
index_select gather take take_along_dim masked_select slice_scatter select_scatter index_put scatter masked_scatter tril
triu pixel_shuffle pixel_unshuffle channel_shuffle im2col meshgrid broadcast_tensors broadcast_to atleast_1d atleast_2d
copy unfold_copy view_copy index_copy slice_copy select_copy expand_copy permute_copy combinations"""
PICKS = """max min amax amin aminmax median topk sort msort kthvalue cummax cummin maximum minimum fmax fmin
max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d"""


@rule(*VIEWS.split(), *COPIES.split(), *PICKS.split())
def move(call: Call, given: Given) -> Shares | None:
    """To the element itself; one that was repeated gets the sum, one that was filled in nobody."""
    taken = [place for place in call.carriers if call.leaves[place].name in (*TAKEN, "other")]
    if call.value("accumulate"):
        return None  # this adds, and an element has two sources
    if not taken:
        return _by_index(call, given)
    floats = {
        place: leaf.value.detach().to(wide(leaf.value))
        for place, leaf in enumerate(call.leaves)
        if isinstance(leaf.value, torch.Tensor)
        and (place in taken or (leaf.value.is_floating_point() and leaf.name in (*TAKEN, "other")))
    }
    moved = {place: floats.pop(place) for place in taken}
    totals = call.pull(moved, floats, {place: part.total for place, part in given.items()})
    if any(part.net is None for part in given.values()):
        return {place: Part(total) for place, total in totals.items()}
    nets = call.pull(
        moved, floats, {place: part.net for place, part in given.items() if part.net is not None}
    )
    return {place: Part(total, nets[place]) for place, total in totals.items()}


def _by_index(call: Call, given: Given) -> Shares | None:
    """A constant table that was read by computed indices: what was read belongs to its index, as in an embedding."""
    places = [place for place in call.carriers if call.leaves[place].name in ("indices", "index")]
    if not places or 0 not in given:
        return None
    part = given[0].times(1 / len(places))
    shape = torch.broadcast_shapes(*(call.leaves[place].value.shape for place in places))
    if part.total.shape[: len(shape)] != shape:
        return None
    rest = tuple(range(len(shape), part.total.dim()))
    if rest:
        part = Part(part.total.sum(rest), None if part.net is None else part.net.sum(rest))
    return {place: part.like(call.leaves[place].value.shape) for place in places}
