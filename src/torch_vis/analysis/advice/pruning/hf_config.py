"""The configuration that a model is built from, after parts of the model were cut: corrected, or said to be wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_vis.analysis.advice.pruning.surgery import Change, change_all

HELD = "config"


class Settings(NamedTuple):
    """What was made of a module's configuration: ``changes`` that make it right, or ``wrong``, numbers that are not."""

    path: str
    changes: tuple[Change, ...]
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        if self.changes:
            told = ", ".join(map(str, self.changes))
            return f"the configuration was corrected, so that a model built from it is this one: {told}"
        held = ".".join(filter(None, (self.path, HELD)))
        return (
            f"{held} no longer describes the model (see {', '.join(self.wrong)}), and no numbers that would were "
            "found: from_pretrained() cannot load it; save it whole by torch.save(found.model, path), or its "
            "state_dict() for a model that is cut in the same way"
        )


def correct_settings(
    model: torch.nn.Module,
    sizes: Mapping[int, Collection[int]],
    gives: Callable[[torch.nn.Module], bool],
) -> list[Settings]:
    """Correct the configurations of a cut model where a module built from one is the one that was cut.

    ``sizes`` has what became of each size, here and there in the model, and ``gives`` says whether a model gives what
    the cut one gives. Only such numbers are changed as have to be, and none where no set of them is found.
    """
    found = []
    for path, module in _holders(model):
        if _shapes(module) == _shapes(_built(module, (), "meta")):  # nothing of it was cut
            continue
        possible = [
            [Change(path, name, value, after, HELD) for after in sorted(sizes[value])]
            for name, value in vars(getattr(module, HELD)).items()
            if type(value) is int and not name.startswith("_") and value in sizes
        ]
        changes = _fewest(model, path, _fitting(module, possible), gives)
        change_all(model, changes)
        if possible:
            wrong = () if changes else tuple(f"{one.name} {one.before}" for one, *_ in possible)
            found.append(Settings(path, changes, wrong))
    return found


def _fitting(module: torch.nn.Module, possible: Sequence[Sequence[Change]]) -> tuple[Change, ...]:
    """Of what each number may become, or that it stays, what makes most shapes right; none where some stay wrong.

    A size that is cut by different amounts (the width, and all heads together) leaves open which one a number means.
    """
    wanted = _shapes(module)
    chosen: list[Change | None] = [changes[0] for changes in possible]

    def wrong(changes: Sequence[Change | None]) -> float:
        built = _built(module, [change for change in changes if change is not None], "meta")
        return float("inf") if built is None else len(wanted.items() ^ _shapes(built).items())

    least, before = wrong(chosen), float("inf")
    while 0 < least < before:
        before = least
        for place, changes in enumerate(possible):
            for other in (*changes, None):
                tried = [*chosen[:place], other, *chosen[place + 1 :]]
                left = wrong(tried) if other is not chosen[place] else least
                if left < least:
                    chosen, least = tried, left
    return tuple(change for change in chosen if change is not None) if least == 0 else ()


def _fewest(
    model: torch.nn.Module,
    path: str,
    changes: tuple[Change, ...],
    gives: Callable[[torch.nn.Module], bool],
) -> tuple[Change, ...]:
    """The changes without those that nothing depends on; none where the module built gives something else."""
    if not changes or not _is_same(model, path, changes, gives):
        return ()
    for change in changes:
        fewer = tuple(one for one in changes if one is not change)
        if _is_same(model, path, fewer, gives):
            changes = fewer
    return changes


def _is_same(
    model: torch.nn.Module,
    path: str,
    changes: tuple[Change, ...],
    gives: Callable[[torch.nn.Module], bool],
) -> bool:
    """Whether a module built from a changed configuration, with the weights of the cut one, gives the same."""
    module = model.get_submodule(path)
    if _shapes(_built(module, changes, "meta")) != _shapes(module):
        return False
    one = next(module.parameters())
    built = _built(module, changes, one.device)
    assert built is not None
    built.to(one.dtype).load_state_dict(module.state_dict())
    built.eval()
    above, _, name = path.rpartition(".")
    if not path:
        return gives(built)
    parent = model.get_submodule(above)
    try:
        setattr(parent, name, built)
        return gives(model)
    finally:
        setattr(parent, name, module)


def _holders(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The outermost modules that keep a configuration."""
    seen: list[str] = []
    for path, module in model.named_modules():
        inside = any(not above or path.startswith(f"{above}.") for above in seen)
        if not inside and hasattr(vars(module).get(HELD), "__dict__"):
            seen.append(path)
            yield path, module


def _shapes(module: torch.nn.Module | None) -> dict[str, tuple[int, ...]]:
    return (
        {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        if module is not None
        else {}
    )


def _built(
    module: torch.nn.Module, changes: Sequence[Change], device: torch.device | str
) -> torch.nn.Module | None:
    """A module of the same class made from its configuration, changed; None where it cannot be made."""
    config: Any = copy.deepcopy(getattr(module, HELD))
    for change in changes:
        setattr(config, change.attribute, change.after)
    try:
        if hasattr(config, "to_dict") and hasattr(type(config), "from_dict"):
            type(config).from_dict(
                config.to_dict()
            )  # as it is read from a file: some look at their numbers then
        with torch.device(device):
            made = type(module)(config)
    except Exception:  # a class that is made in another way, or numbers that it refuses
        return None
    return made
