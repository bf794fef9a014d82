"""What two runs gave back, matched: by name, and by the modules that became one another where names changed."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch_vis.analysis.accumulated import accumulated
from torch_vis.graph import Graph
from torch_vis.graph.gradients import ENDING, gradients


class Given(NamedTuple):
    """An output, a gradient or a changed state of a run, and the value that it is."""

    kind: str
    name: str
    value: int


class Matched(NamedTuple):
    """Pairs of what both runs gave back, and what only one of them did."""

    pairs: list[tuple[Given, Given]]
    only_a: list[Given]
    only_b: list[Given]


def given_back(graph: Graph) -> list[Given]:
    """The results of a run; gradients as they were when complete, also those that were freed or zeroed since.

    Of a gradient that was added to what was there before the run, what the run itself added, where that is known.
    """
    complete = {f"{name}{ENDING}": value for name, value in gradients(graph).items()}
    for name, row in accumulated(graph).items():
        if row.own is not None:
            complete[f"{name}{ENDING}"] = row.own
    found = [
        Given(
            row.kind,
            row.name,
            complete.pop(row.name, row.value.index) if row.kind == "gradient" else row.value.index,
        )
        for row in graph.outcomes
    ]
    return found + [Given("gradient", name, value) for name, value in complete.items()]


def match_results(a: Graph, b: Graph, scope_to_b: Any) -> Matched:
    """Match by where the module around went, else by the same name.

    >>> import torch, torch_vis as tv
    >>> from torch_vis.analysis.compare import align
    >>> x = torch.ones(2, 3)
    >>> one = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), x, backward=True).graph
    >>> two = tv.trace(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(3, 2))), x, backward=True).graph
    >>> [(here.name, there.name) for here, there in match_results(one, two, align(one, two).scope_to_b).pairs]
    [('output', 'output'), ('0.weight.grad', '0.0.weight.grad'), ('0.bias.grad', '0.0.bias.grad')]
    """
    paths = _paths(a, b, scope_to_b)
    ours, left = given_back(a), given_back(b)
    found: dict[Given, Given] = {}
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
    pairs = [(one, found[one]) for one in ours if one in found]
    return Matched(pairs, [one for one in ours if one not in found], left)


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
