"""Operations that move elements, and those that pick one: relevance goes back to where an element came from."""

from __future__ import annotations

import torch

from torch_vis.analysis.relevance.call import Call, Given, Shares, rule
from torch_vis.analysis.relevance.part import Part, wide

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
