"""Progress bars on the terminal's error stream; nothing is drawn where that is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Advance = Callable[[], None]
# of a bar that shows how much of a time has passed
STEPS = 100


def progress(items: Iterable[Item], title: str) -> Iterator[Item]:
    """Go through items and show how many are done. It is drawn between items only, so that they can be timed.

    >>> list(progress([1, 2], "timing"))
    [1, 2]
    """
    if not sys.stderr.isatty():
        yield from items
        return
    try:
        total = len(items)  # type: ignore[arg-type]
    except TypeError:
        # nobody knows, a loader of a stream among them
        total = None
    with _bar(title, total) as advance:
        for item in items:
            yield item
            advance()


@contextmanager
def time_progress(seconds: float, title: str) -> Iterator[Advance]:
    """Show how much of a time has passed, redrawn only when the function that it gives is called.

    >>> with time_progress(1.0, "timing") as update:
    ...     update()
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    start = time.perf_counter()
    shown = 0

    def update() -> None:
        nonlocal shown
        steps = min(int(STEPS * (time.perf_counter() - start) / seconds), STEPS)
        while shown < steps:
            advance()
            shown += 1

    with _bar(title, STEPS) as advance:
        yield update


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[Advance]:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield from _plain_bar(title, total)
        return
    # no thread that redraws: it would run beside what is being timed
    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task(title, total=total)
        bar.refresh()
        yield lambda: bar.update(task, advance=1, refresh=True)


def _plain_bar(title: str, total: int | None) -> Iterator[Advance]:
    done = -1
    of = "" if total is None else f"/{total}"

    def advance() -> None:
        nonlocal done
        done += 1
        sys.stderr.write(f"\r{title} {done}{of}")
        sys.stderr.flush()

    advance()
    try:
        yield advance
    finally:
        sys.stderr.write("\r" + " " * (len(title) + len(str(done)) + len(of) + 1) + "\r")
        sys.stderr.flush()
