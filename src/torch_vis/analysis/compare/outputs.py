"""Matches the results of two runs: by name, by where their modules went, and by what they are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from typing import NamedTuple

from torch_vis.analysis.compare.wiring import (
    Wiring,
    module_paths,
    renamed,
    renamed_with_root,
    without_compile_prefix,
)
from torch_vis.analysis.gradients.accumulation import accumulated
from torch_vis.graph import Graph
from torch_vis.graph.lifetimes import ENDING, gradients
from torch_vis.graph.types import Ints


class ComparedResult(NamedTuple):
    """An output, a gradient or a changed state of a run, and the value that it is."""

    kind: str
    name: str
    value: int


ResultKey = Callable[[ComparedResult], Hashable]
ResultPairs = list[tuple[ComparedResult, ComparedResult]]


class MatchedResults(NamedTuple):
    """Pairs of results that both runs have, and what only one of them has."""

    pairs: ResultPairs
    only_a: list[ComparedResult]
    only_b: list[ComparedResult]


def results_of(graph: Graph) -> list[ComparedResult]:
    """The results of a run; gradients as they were when complete, also those that were freed or zeroed since.

    Of a gradient that was added to what was there before the run, the part that the run itself added, where known.
    """
    complete = {f"{name}{ENDING}": value for name, value in gradients(graph).items()}
    for name, row in accumulated(graph).items():
        if row.own is not None:
            complete[f"{name}{ENDING}"] = row.own
    results = []
    for outcome in graph.outcomes:
        value = outcome.value.index
        if outcome.kind == "gradient":
            value = complete.pop(outcome.name, value)
        results.append(ComparedResult(outcome.kind, outcome.name, value))
    return results + [ComparedResult("gradient", name, value) for name, value in complete.items()]


def match_results(a: Graph, b: Graph, scope_to_b: Ints, wiring: Wiring | None = None) -> MatchedResults:
    """Match by where the module around went, else by the same name.

    Outputs that are left are matched by their identities, as far as ``wiring`` knows them, and by position if they
    are returned in another container: ``y`` became ``{"logits": y}``, or ``(y,)``.

    >>> import torch, torch_vis as tv
    >>> from torch_vis.analysis.compare.align import align
    >>> x = torch.ones(2, 3)
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), x, backward=True).graph
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 2))), x, backward=True).graph
    >>> [(a.name, b.name) for a, b in match_results(one, two, align(one, two).scope_to_b).pairs]
    [('output', 'output'), ('0.weight.grad', '0.0.weight.grad'), ('0.bias.grad', '0.0.bias.grad')]
    """
    paths = module_paths(a, b, scope_to_b)
    results_a, left_b = results_of(a), results_of(b)
    counterparts: dict[ComparedResult, ComparedResult] = {}
    # the module's new path first: the old name may be another module's by now
    for name_a, name_b in (
        (lambda name: renamed(name, paths), str),
        (lambda name: renamed_with_root(name, paths), str),
        (str, str),
        (without_compile_prefix, without_compile_prefix),
    ):
        named_b = {(row.kind, name_b(row.name)): row for row in left_b}
        for row in results_a:
            name = name_a(row.name)
            if row not in counterparts and name is not None and (row.kind, name) in named_b:
                counterparts[row] = named_b.pop((row.kind, name))
        taken = set(counterparts.values())
        left_b = [row for row in left_b if row not in taken]
    left_a = [row for row in results_a if row not in counterparts]
    counterparts.update(_outputs_of_other_names(a, b, left_a, left_b, wiring))
    taken = set(counterparts.values())
    return MatchedResults(
        [(row, counterparts[row]) for row in results_a if row in counterparts],
        [row for row in results_a if row not in counterparts],
        [row for row in left_b if row not in taken],
    )


def _outputs_of_other_names(
    a: Graph, b: Graph, left_a: list[ComparedResult], left_b: list[ComparedResult], wiring: Wiring | None
) -> ResultPairs:
    """Pairs of outputs that do not share a name: only those that are certain."""
    outputs_a, outputs_b = ([row for row in left if row.kind == "output"] for left in (left_a, left_b))
    pairs: ResultPairs = []
    if wiring is not None:
        # what an output is, then what it is a view of
        for identities_a, identities_b in zip(wiring.identities_a, wiring.identities_b):
            pairs += _pairs_by_key(
                outputs_a, outputs_b, _identity(a, identities_a), _identity(b, identities_b)
            )
            paired = {row for pair in pairs for row in pair}
            outputs_a, outputs_b = (
                [row for row in outputs if row not in paired] for outputs in (outputs_a, outputs_b)
            )
    alone = all(sum(row.kind == "output" for row in graph.outcomes) == 1 for graph in (a, b))
    if len(outputs_a) == len(outputs_b) == 1:
        if alone or is_another_container(outputs_a[0].name, outputs_b[0].name):
            return [*pairs, (outputs_a[0], outputs_b[0])]
    shape_a, shape_b = _shape(a), _shape(b)
    counts = Counter(map(shape_a, outputs_a)), Counter(map(shape_b, outputs_b))
    for row_a, row_b in _pairs_by_key(outputs_a, outputs_b, shape_a, shape_b):
        is_only = all(count[shape_a(row_a)] == 1 for count in counts)
        if is_only and is_another_container(row_a.name, row_b.name):
            pairs.append((row_a, row_b))
    return pairs


def _shape(graph: Graph) -> ResultKey:
    return lambda row: graph.types[graph.value_type[row.value]].shape


def _identity(graph: Graph, identities: Ints) -> ResultKey:
    """The identity of an output, and its shape; None where it is unknown."""
    shape = _shape(graph)

    def key(row: ComparedResult) -> Hashable:
        identity = int(identities[row.value])
        return (identity, shape(row)) if identity >= 0 else None

    return key


def _pairs_by_key(
    results_a: list[ComparedResult], results_b: list[ComparedResult], key_a: ResultKey, key_b: ResultKey
) -> ResultPairs:
    """Pairs with equal keys, in order; a key of None matches nothing."""
    groups: dict[Hashable, list[ComparedResult]] = defaultdict(list)
    for row in reversed(results_b):
        groups[key_b(row)].append(row)
    keys = ((row, key_a(row)) for row in results_a)
    return [(row, groups[key].pop()) for row, key in keys if key is not None and groups[key]]


def is_another_container(name_a: str, name_b: str) -> bool:
    """Whether two names of outputs are positions in containers of different kinds, or one in none.

    >>> is_another_container("output", "output.logits"), is_another_container("output.0", "output.logits")
    (True, True)
    >>> is_another_container("output.loss", "output.logits"), is_another_container("output.0", "output.1")
    (False, False)
    """
    parts_a, parts_b = name_a.split("."), name_b.split(".")
    while parts_a and parts_b and parts_a[0] == parts_b[0]:
        del parts_a[0], parts_b[0]
    return not parts_a or not parts_b or parts_a[0].isdigit() != parts_b[0].isdigit()
