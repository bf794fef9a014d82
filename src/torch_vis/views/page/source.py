"""The user's source lines that a page shows: those that operations came from, and a few around each."""

from __future__ import annotations

import linecache
from collections.abc import Iterable

from torch_vis.graph.schema import Site

AROUND = 4
LONGEST = 240  # characters of a line
MOST_LINES = 20_000


def source_lines(sites: Iterable[Site]) -> dict[str, dict[int, str]]:
    """By file and line number, the text of every line that a site names and of its neighbours.

    A file that is not there (a trace from another machine, a notebook that has gone) is left out.
    """
    wanted: dict[str, set[int]] = {}
    for site in sites:
        wanted.setdefault(site.file, set()).update(range(max(1, site.line - AROUND), site.line + AROUND + 1))
    found: dict[str, dict[int, str]] = {}
    room = MOST_LINES
    for file, numbers in wanted.items():
        lines = linecache.getlines(file)
        here = {n: lines[n - 1].rstrip()[:LONGEST] for n in sorted(numbers)[:room] if n <= len(lines)}
        if here:
            found[file] = here
            room -= len(here)
    return found
