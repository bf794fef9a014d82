"""How far a longer piece of work has come, on the terminal's error stream; nothing at all where that is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
STEPS = 100  # of a time that passes


def progress(items: Sequence[Item], title: str) -> Iterator[Item]:
    """Go through items and show how many are done. It is drawn between items only, so that they can be timed.

    >>> list(progress([1, 2], "timing"))
    [1, 2]
    """
    if not sys.stderr.isatty():
        yield from items
        return
    with _bar(title, len(items)) as advance:
        for item in items:
            yield item
            advance()


@contextmanager
def passing(seconds: float, title: str) -> Iterator[Callable[[], None]]:
    """Show how much of a time has passed, whenever what is given is called; what is timed is not called in between.

    >>> with passing(1.0, "timing") as look:
    ...     look()
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    begun = time.perf_counter()
    shown = 0

    def look() -> None:
        nonlocal shown
        now = min(int(STEPS * (time.perf_counter() - begun) / seconds), STEPS)
        while shown < now:
            advance()
            shown += 1

    with _bar(title, STEPS) as advance:
        yield look


@contextmanager
def _bar(title: str, total: int) -> Iterator[Any]:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield from _plain(title, total)
        return
    # no thread that redraws: it would run beside what is being timed
    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task(title, total=total)
        bar.refresh()
        yield lambda: bar.update(task, advance=1, refresh=True)


def _plain(title: str, total: int) -> Iterator[Any]:
    done = 0

    def show() -> None:
        sys.stderr.write(f"\r{title} {done}/{total}")
        sys.stderr.flush()

    def advance() -> None:
        nonlocal done
        done += 1
        show()

    show()
    try:
        yield advance
    finally:
        sys.stderr.write("\r" + " " * (len(title) + 2 * len(str(total)) + 2) + "\r")
        sys.stderr.flush()
