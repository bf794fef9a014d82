"""What a corpus case is made of, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Subject(NamedTuple):
    """Something to call, and the arguments to call it with."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


class NothingToRun(LookupError):
    """The case turns out to be no model at all."""


Maker = Callable[[], Subject]  # builds the same subject each time it is called after seeding


class Group(Protocol):
    """A module that knows one collection of models."""

    def prepare(self) -> None:
        """Import what is heavy; runs once, before the cases are forked off."""

    def names(self) -> list[str]:
        """The cases, without building any."""

    def makers(self, name: str) -> Sequence[Maker]:
        """The subjects of one case; runs in the case's own process."""


class Result(NamedTuple):
    """What became of one case.

    `status` is `passed`, `failed`, `not eager` (it cannot be built or run without tracing either) or `nothing` (it
    is no model at all); `phase` is where it ended: build, eager, trace or check. `operators` has what was traced, by
    operator: calls, those of unknown FLOPs, and the time of each of the two (`operators.Tally`).
    """

    group: str
    name: str
    status: str
    phase: str
    cause: str
    detail: str
    seconds: float
    subjects: int
    backward: int
    operators: Mapping[str, Sequence[int]] = {}
