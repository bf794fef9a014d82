"""Counting results, grouping failures by cause, and writing them down."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from tools.corpus.reasons import reason_for
from tools.corpus.subject import Result

_VARIABLE = (
    (re.compile(r"0x[0-9a-f]+"), "0x…"),
    (re.compile(r"(['\"`])[^'\"`]*\1"), r"\1…\1"),
    (re.compile(r"\[[-0-9, ]+\]|\([-0-9, ]+\)"), "[…]"),
    (re.compile(r"[0-9]+(\.[0-9]+)?(e-?[0-9]+)?"), "N"),
)


def normalise(cause: str) -> str:
    """The cause without the names, shapes and numbers in which two failures of one kind differ."""
    for pattern, replacement in _VARIABLE:
        cause = pattern.sub(replacement, cause)
    return cause[:160]


def grouped(results: list[Result]) -> list[tuple[str, list[Result]]]:
    """Results by normalised cause, the commonest first."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[f"{result.phase}: {normalise(result.cause)}"].append(result)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def print_report(console: Console, results: list[Result], *, eager_only: bool) -> None:
    """Print failures by cause, then what does not run without us either, then the count."""
    by_status: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        listed = result.status == "failed" and reason_for(result.group, result.name)
        by_status["listed" if listed else result.status].append(result)
    if by_status["nothing"]:
        console.print(f"\n[bold]no model at all (not counted)[/bold]: {len(by_status['nothing'])}")
    _print_groups(console, "does not run eagerly (not counted)", by_status["not eager"])
    if by_status["listed"]:
        console.print(f"\n[bold]cannot pass, with the reason[/bold]: {len(by_status['listed'])}")
        for result in by_status["listed"]:
            console.print(f"  {result.group}/{result.name}: {reason_for(result.group, result.name)}")
    _print_groups(console, "trace or check failed", by_status["failed"])
    console.print()
    for group in sorted({result.group for result in results}):
        mine = [result for result in results if result.group == group]
        console.print(f"{group:>8}: {_count(mine, eager_only=eager_only)}")
    console.print(f"[bold]{_count(results, eager_only=eager_only)}[/bold]")


def write_json(path: Path, results: list[Result]) -> None:
    """Write every result to a file, whole or not at all."""
    document: dict[str, Any] = {"results": [result._asdict() for result in results]}
    document["causes"] = {
        f"{status}: {cause}": [f"{one.group}/{one.name}" for one in members]
        for status in ("failed", "not eager")
        for cause, members in grouped([one for one in results if one.status == status])
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(document, indent=1))
    os.replace(partial, path)


def _count(results: list[Result], *, eager_only: bool) -> str:
    results = [result for result in results if result.status != "nothing"]
    passed = sum(result.status == "passed" for result in results)
    eager = sum(result.status != "not eager" for result in results)
    if eager_only:
        return f"{passed} of {len(results)} run eagerly ({passed / max(1, len(results)):.0%})"
    listed = sum(r.status == "failed" and reason_for(r.group, r.name) is not None for r in results)
    beside = f", {listed} listed with a reason" if listed else ""
    return f"passed {passed} of {eager}{beside}; {len(results) - eager} more do not run eagerly"


def _print_groups(console: Console, title: str, results: list[Result]) -> None:
    if not results:
        return
    console.print(f"\n[bold]{title}[/bold]: {len(results)}")
    for cause, members in grouped(results):
        shown = ", ".join(f"{one.group}/{one.name}" for one in members[:6])
        more = f" and {len(members) - 6} more" if len(members) > 6 else ""
        console.print(f"  {len(members):4d}  {escape(cause)}", soft_wrap=True, highlight=False)
        console.print(f"        {escape(shown)}{more}", soft_wrap=True, highlight=False)
