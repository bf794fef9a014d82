"""Graph breaks, guards and recompilations, as Dynamo meets them: heard of while it works, kept as plain data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from torch_vis.capture.sites import OURS

RESUMED = re.compile(r"^(torch_dynamo_resume_in_)(.*)_at_\d+$")


class Break(NamedTuple):
    """One graph break: why, what torch advises, and the user's line."""

    reason: str
    explanation: str
    hints: tuple[str, ...]
    context: str
    id: str
    file: str
    line: int
    function: str
    code: str
    partition: int  # the partition that it ended
    nodes: int  # how many nodes that one holds


class Recompilation(NamedTuple):
    """A function that was compiled again, and the guard that failed."""

    function: str
    file: str
    line: int
    guard: str


class Log:
    """What Dynamo said while a program was captured."""

    def __init__(self) -> None:
        self.raw: list[tuple[str, Any, int]] = []  # what was said, the user's stack, partitions so far
        self.guards: dict[str, None] = {}
        self.recompilations: list[Recompilation] = []

    def export_guards(self, guards: Any) -> None:
        """Dynamo's hook for the guards of one frame."""
        for guard in guards:
            for code in guard.code_list or ():
                self.guards[code] = None

    def guard_failed(self, failure: Any) -> None:
        """Dynamo's hook for a guard that does not hold any more."""
        code = failure.orig_code
        name = resumed(getattr(code, "co_qualname", code.co_name))
        found = Recompilation(name, code.co_filename, code.co_firstlineno, failure.reason.strip())
        self.recompilations.append(found)

    def breaks(self, sizes: list[int]) -> list[Break]:
        """The breaks in the order in which they were met; ``sizes`` are the partitions' numbers of nodes."""
        found = []
        for text, stack, partition in self.raw:
            theirs = [frame for frame in stack or () if not frame.filename.startswith(OURS)]
            if stack and not theirs:
                continue  # the same one again, met while Dynamo looked at the recorder's way of calling modules
            frame = theirs[-1] if theirs else None
            nodes = sizes[partition] if partition < len(sizes) else 0
            found.append(parsed(text, frame, partition, nodes))
        return found


def parsed(text: str, frame: Any, partition: int, nodes: int) -> Break:
    """A break from what torch says of it: a title, then explanation, hints, context and the page that explains it."""
    told = text.strip().split("\n")
    # Where the break was met on the way, a sentence on that comes before the title.
    title = next((line.strip() for line in told if line.strip() and not line.strip().endswith(":")), told[0])
    explanation = re.search(
        r"Explanation:\s*(.*?)(?=\n\s*Hint:|\n\s*Developer debug context:|\Z)", text, re.DOTALL
    )
    hints = re.findall(r"Hint:\s*(.*?)(?=\n\s*Hint:|\n\s*Developer debug context:|\Z)", text, re.DOTALL)
    context = re.search(r"Developer debug context:\s*(.*?)(?=\n\s*For more details|\Z)", text, re.DOTALL)
    page = re.search(r"/gb/(gb\d+)\.html", text)
    return Break(
        title,
        _one_line(explanation[1]) if explanation else "",
        tuple(_one_line(hint) for hint in hints),
        _one_line(context[1]) if context else "",
        page[1].upper() if page else "",
        frame.filename if frame is not None else "",
        int(frame.lineno or 0) if frame is not None else 0,
        resumed(frame.name) if frame is not None else "",
        (frame.line or "").strip() if frame is not None else "",
        partition,
        nodes,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def resumed(name: str) -> str:
    """The user's name of a function that Dynamo resumed in the middle.

    >>> resumed("torch_dynamo_resume_in_forward_at_8"), resumed("forward")
    ('forward', 'forward')
    """
    found = RESUMED.match(name)
    return found[2] if found else name


@contextmanager
def listening(log: Log, partitions: list[Any]) -> Iterator[None]:
    """Hear of every graph break that Dynamo meets inside; there is no hook for it, so its method is wrapped."""
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase

    before = InstructionTranslatorBase.log_graph_break

    def heard(self: Any, code_options: Any, reason: str, exc: Any, *rest: Any, **named: Any) -> Any:
        if not getattr(exc, "logged", False):
            stack = getattr(exc, "real_stack", None)
            if stack is None:
                stack = torch._guards.TracingContext.extract_stack()
            log.raw.append((reason or str(exc), stack, len(partitions)))
        return before(self, code_options, reason, exc, *rest, **named)

    InstructionTranslatorBase.log_graph_break = heard  # type: ignore[method-assign]
    try:
        yield
    finally:
        InstructionTranslatorBase.log_graph_break = before  # type: ignore[method-assign]
