"""What two runs gave back, matched: by name, and by the modules that became one another where names changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_vis.analysis.gradients.accumulated import accumulated
from torch_vis.graph import Graph
from torch_vis.graph.gradients import ENDING, gradients

if TYPE_CHECKING:
    from torch_vis.analysis.compare.wiring import Wiring


class RunResult(NamedTuple):
    """An output, a gradient or a changed state of a run, and the value that it is."""

    kind: str
    name: str
    value: int


Key = Callable[[RunResult], Hashable]


class Matched(NamedTuple):
    """Pairs of what both runs gave back, and what only one of them did."""

    pairs: list[tuple[RunResult, RunResult]]
    only_a: list[RunResult]
    only_b: list[RunResult]


def given_back(graph: Graph) -> list[RunResult]:
    """The results of a run; gradients as they were when complete, also those that were freed or zeroed since.

    Of a gradient that was added to what was there before the run, what the run itself added, where that is known.
    """
    complete = {f"{name}{ENDING}": value for name, value in gradients(graph).items()}
    for name, row in accumulated(graph).items():
        if row.own is not None:
            complete[f"{name}{ENDING}"] = row.own
    found = [
        RunResult(
            row.kind,
            row.name,
            complete.pop(row.name, row.value.index) if row.kind == "gradient" else row.value.index,
        )
        for row in graph.outcomes
    ]
    return found + [RunResult("gradient", name, value) for name, value in complete.items()]


def match_results(a: Graph, b: Graph, scope_to_b: Any, wiring: Wiring | None = None) -> Matched:
    """Match by where the module around went, else by the same name.

    Outputs that are left are matched by what made them, as far as ``wiring`` knows that, and by their places if they
    are given back in another container: ``y`` became ``{"logits": y}``, or ``(y,)``.

    >>> import torch, torch_vis as tv
    >>> from torch_vis.analysis.compare.align import align
    >>> x = torch.ones(2, 3)
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), x, backward=True).graph
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 2))), x, backward=True).graph
    >>> [(here.name, there.name) for here, there in match_results(one, two, align(one, two).scope_to_b).pairs]
    [('output', 'output'), ('0.weight.grad', '0.0.weight.grad'), ('0.bias.grad', '0.0.bias.grad')]
    """
    paths = _paths(a, b, scope_to_b)
    ours, left = given_back(a), given_back(b)
    found: dict[RunResult, RunResult] = {}
    for name_a, name_b in (  # a name that is the same may be another module's by now
        (lambda name: _renamed(name, paths), str),
        (str, str),
        (_before_compiling, _before_compiling),
    ):
        theirs = {(one.kind, name_b(one.name)): one for one in left}
        for one in ours:
            name = name_a(one.name)
            if one not in found and name is not None and (one.kind, name) in theirs:
                found[one] = theirs.pop((one.kind, name))
        taken = set(found.values())
        left = [one for one in left if one not in taken]
    for here, there in _contained_otherwise(a, b, [one for one in ours if one not in found], left, wiring):
        found[here] = there
    taken = set(found.values())
    pairs = [(one, found[one]) for one in ours if one in found]
    return Matched(
        pairs, [one for one in ours if one not in found], [one for one in left if one not in taken]
    )


def _contained_otherwise(
    a: Graph, b: Graph, left_a: list[RunResult], left_b: list[RunResult], wiring: Wiring | None
) -> list[tuple[RunResult, RunResult]]:
    """Pairs of outputs that do not share a name: only those that are certain."""
    ours, theirs = ([one for one in left if one.kind == "output"] for left in (left_a, left_b))
    found: list[tuple[RunResult, RunResult]] = []
    if wiring is not None:
        for codes in zip(wiring.codes_a, wiring.codes_b):  # what it is, then what it is a view of
            found += _together(ours, theirs, _code(a, codes[0]), _code(b, codes[1]))
            ours, theirs = _without(found, ours, theirs)
    alone = all(sum(row.kind == "output" for row in graph.outcomes) == 1 for graph in (a, b))
    if len(ours) == len(theirs) == 1 and (alone or is_another_container(ours[0].name, theirs[0].name)):
        return [*found, (ours[0], theirs[0])]
    shape_a, shape_b = _shape(a), _shape(b)
    counts = Counter(map(shape_a, ours)), Counter(map(shape_b, theirs))
    for here, there in _together(ours, theirs, shape_a, shape_b):
        if all(count[shape_a(here)] == 1 for count in counts) and is_another_container(here.name, there.name):
            found.append((here, there))
    return found


def _without(
    pairs: list[tuple[RunResult, RunResult]], ours: list[RunResult], theirs: list[RunResult]
) -> tuple[list[RunResult], list[RunResult]]:
    here, there = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    return [one for one in ours if one not in here], [one for one in theirs if one not in there]


def _shape(graph: Graph) -> Key:
    return lambda one: graph.types[graph.value_type[one.value]].shape


def _code(graph: Graph, codes: Any) -> Key:
    """What an output is, and its shape; None where that is not known."""

    shape = _shape(graph)

    def told(one: RunResult) -> Hashable:
        code = int(codes[one.value])
        return (code, shape(one)) if code >= 0 else None

    return told


def _together(
    ours: list[RunResult], theirs: list[RunResult], key_a: Key, key_b: Key
) -> list[tuple[RunResult, RunResult]]:
    """Pairs that have one key, in order; those whose key is None have none."""
    groups: dict[Hashable, list[RunResult]] = defaultdict(list)
    for one in reversed(theirs):
        groups[key_b(one)].append(one)
    keys = ((one, key_a(one)) for one in ours)
    return [(one, groups[key].pop()) for one, key in keys if key is not None and groups[key]]


def is_another_container(one: str, two: str) -> bool:
    """Whether two names of outputs are places in containers of different kinds, or one in none.

    >>> is_another_container("output", "output.logits"), is_another_container("output.0", "output.logits")
    (True, True)
    >>> is_another_container("output.loss", "output.logits"), is_another_container("output.0", "output.1")
    (False, False)
    """
    here, there = one.split("."), two.split(".")
    while here and there and here[0] == there[0]:
        del here[0], there[0]
    return not here or not there or here[0].isdigit() != there[0].isdigit()


def _before_compiling(name: str) -> str:
    """A name without the part that ``torch.compile`` puts before those of the model it wraps."""
    return name.replace("_orig_mod.", "")


def _paths(a: Graph, b: Graph, scope_to_b: Any) -> dict[str, str]:
    """For the path of each module of ``a`` that has a counterpart, the path of that."""
    found: dict[str, str] = {}
    for here, there in enumerate(scope_to_b.tolist()):
        module = a.modules[int(a.scope_module[here])]
        if there >= 0 and module.kind == "module":
            found.setdefault(module.path, b.scope_paths[there])
    return found


def _renamed(name: str, paths: dict[str, str]) -> str | None:
    """The name of something in a module once that is called by its other path; None where none is known."""
    for skipped, text in (("", name), (name.partition(".")[0] + ".", name.partition(".")[2])):
        parts = text.split(".")  # of an optimizer's state, the optimizer's name is left out
        for end in range(len(parts) - 1, 0, -1):
            path = paths.get(".".join(parts[:end]))
            if path is not None:
                return skipped + ".".join([*([path] if path else []), *parts[end:]])
    return f"{paths['']}.{name}" if paths.get("") else None
