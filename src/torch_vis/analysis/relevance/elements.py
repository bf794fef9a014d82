"""Operations that work element by element, and those that only rescale: activations, products, normalisations."""

from __future__ import annotations

import torch
from torch import fx

from torch_vis.analysis.relevance.call import Call, Given, Shares, op_name, rule
from torch_vis.analysis.relevance.part import Part

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
