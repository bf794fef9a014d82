"""Data flow through views: whose bytes a value shows, and which values operations read and write, by slot."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from torch_vis.graph.call import Call, short_name
from torch_vis.graph.columns import Columns
from torch_vis.graph.metrics import Column
from torch_vis.graph.schema import Flag, Kind, Phase, Role
from torch_vis.graph.types import Bools, Ints


def follow(target: Ints) -> Ints:
    """For each row the end of the chain that ``target`` leads it along; a row that points to itself ends a chain.

    >>> follow(np.array([0, 0, 1, 3, 2])).tolist()
    [0, 0, 0, 3, 0]
    """
    # each round doubles how far it looks
    while True:
        further = target[target]
        if np.array_equal(further, target):
            return further
        target = further


def plain_views(graph: Columns) -> Bools:
    """Which operations only look at memory that is there, and let no value out to Python."""
    views: Bools = (graph.node_flags & (Flag.VIEW | Flag.ESCAPE)) == Flag.VIEW
    return views


def passing_views(graph: Columns) -> Bools:
    """The plain views that are looked through: all but those that are all that a module does, such as a ``Flatten``'s.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    >>> graph = tv.trace(model, torch.ones(1, 2, 2)).graph
    >>> [node.name for node, passes in zip(graph.nodes, passing_views(graph)) if passes]
    ['t']
    """
    views, tree = plain_views(graph), graph.tree
    works = np.zeros(len(tree), dtype=bool)
    works[graph.node_scope[~views]] = True
    kinds = np.array([module.kind for module in graph.modules])[graph.scope_module]
    has_path = np.array([bool(path) for path in graph.scope_paths], dtype=bool)
    looks_only = (kinds == "module") & has_path & ~tree.around_some(works)
    around = tree.nearest(kinds != "function")
    passing: Bools = views & ~((around > 0) & looks_only[around])[graph.node_scope]
    return passing


def bases(graph: Columns, views: Bools, *, by_argument: bool = False) -> Ints:
    """For each value that one of the operations ``views`` makes, the value that it is a view of; for others, itself.

    That is the value whose bytes the view reads, which may have been written through another view since. With
    ``by_argument`` it is the view's first argument, whatever was written since.
    """
    is_viewed = graph.in_slot == 0 if by_argument else graph.in_kind != Kind.SHAPE
    rows = np.flatnonzero(views[graph.in_node] & is_viewed)[::-1]
    # by node
    viewed = np.full(len(graph), -1, dtype=np.int64)
    # the rows are reversed, so of several the first one stays
    viewed[graph.in_node[rows]] = graph.in_value[rows]
    base = np.arange(len(graph.value_type), dtype=np.int64)
    of_views = viewed[graph.out_node] >= 0
    base[graph.out_value[of_views]] = viewed[graph.out_node[of_views]]
    return base


def roots(graph: Columns, views: Bools, *, by_argument: bool = False) -> Ints:
    """For each value the one that a chain of views was taken of; see ``bases``.

    >>> import torch, torch_vis as tv
    >>> graph = tv.trace(lambda x: x.t()[0] + 1, torch.ones(2, 2)).graph
    >>> [graph.values[root].role for root in roots(graph, plain_views(graph))[graph.in_value]]
    ['input', 'input', 'input']
    """
    return follow(bases(graph, views, by_argument=by_argument))


def inputs_by_slot(graph: Columns, node: int) -> dict[int, int]:
    """The values that an operation is given, by slot, in the order of slots."""
    start, stop = graph.input_span(node)
    pairs = zip(graph.in_slot[start:stop].tolist(), graph.in_value[start:stop].tolist())
    return {slot: value for slot, value in sorted(pairs) if slot >= 0}


def outputs_by_slot(graph: Columns, node: int) -> dict[int, int]:
    """The values that an operation makes, by slot: from 0 on returned ones, below 0 written ones."""
    start, stop = graph.output_span(node)
    return dict(zip(graph.out_slot[start:stop].tolist(), graph.out_value[start:stop].tolist()))


def ancestors(graph: Columns, nodes: Iterable[int]) -> Bools:
    """Which operations some others depend on, these included; what is taken of a shape counts as well.

    >>> import torch, torch_vis as tv
    >>> graph = tv.trace(lambda x: (x.exp().sin(), x.cos()), torch.ones(2)).graph
    >>> ancestors(graph, [1]).tolist()
    [True, True, False]
    """
    reached = np.zeros(len(graph), dtype=bool)
    stack = [node for node in nodes if node >= 0]
    reached[stack] = True
    start, producer = graph.in_start.tolist(), graph.value_producer[graph.in_value].tolist()
    while stack:
        node = stack.pop()
        for row in range(start[node], start[node + 1]):
            before = producer[row]
            if before >= 0 and not reached[before]:
                reached[before] = True
                stack.append(before)
    return reached


def declared_slots(graph: Columns) -> Ints:
    """For each output which of the results that its operator declares it is; below 0 what is written to.

    A backward leaves out what its mask says, so that the first result that it returns may be the second that it has.

    >>> import torch, torch_vis as tv
    >>> conv = torch.nn.Conv2d(1, 1, 1)
    >>> graph = tv.trace(conv, torch.ones(1, 1, 2, 2), backward=True).graph
    >>> node = [node.name for node in graph.nodes].index("convolution_backward")
    >>> declared_slots(graph)[slice(*graph.output_span(node))].tolist()
    [1, 2]
    """
    slots: Ints = graph.out_slot.astype(np.int64)
    masks = {number: mask for number, call in enumerate(graph.calls) if (mask := _output_mask(call))}
    if not masks:
        return slots
    calls = graph.node_call.tolist()
    for node in np.flatnonzero(np.isin(graph.node_call, list(masks))).tolist():
        span = slice(*graph.output_span(node))
        wanted = [slot for slot, is_wanted in enumerate(masks[calls[node]]) if is_wanted]
        # some kernels return all the same
        if (slots[span] >= 0).sum() == len(wanted):
            slots[span] = [wanted[slot] if slot >= 0 else slot for slot in slots[span].tolist()]
    return slots


def _output_mask(call: Call) -> tuple[bool, ...] | None:
    """Which gradients a backward is asked for, in the order of its results; None where it does not say."""
    if "backward" not in short_name(call.op):
        return None
    arguments = (*call.args, *(argument for _, argument in call.kwargs))
    masks = (
        arg for arg in arguments if type(arg) is tuple and arg and all(type(part) is bool for part in arg)
    )
    return next(masks, None)


def parameters_used(graph: Columns) -> Column:
    """For each operation how many elements of parameters it is the first of the forward pass to use.

    A view hands its parameter on: the weight of a ``Linear`` counts at the product, not at the transposition before it.
    A parameter that nothing but views ever touches counts at the first of them.
    """
    counts = np.zeros(len(graph), dtype=np.int64)
    views = plain_views(graph)
    reader, value = graph.in_node, roots(graph, views)[graph.in_value]
    is_parameter = (graph.value_role[value] == Role.PARAMETER) & (graph.value_producer[value] < 0)
    rows = np.flatnonzero(is_parameter & (graph.node_phase[reader] == Phase.FORWARD))
    # real use before views, then in order
    rows = rows[np.lexsort((rows, views[reader[rows]]))]
    value = value[rows]
    tensors = np.stack([graph.value_storage[value], graph.value_offset[value], graph.value_type[value]])
    _, first = np.unique(tensors, axis=1, return_index=True)
    sizes = np.array([type_.numel for type_ in graph.types], dtype=np.int64)
    np.add.at(counts, reader[rows[first]], sizes[graph.value_type[value[first]]])
    return Column("parameters", counts)
