"""How far a longer piece of work has come, on the terminal's error stream; nothing at all where that is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")


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
