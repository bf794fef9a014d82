"""What two runs gave back, in words: how far apart it is, and of which of it that says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_vis.analysis.compare.numeric.headline import at_most
from torch_vis.analysis.compare.numeric.tensor_distance import Gap
from torch_vis.graph.text import and_more
from torch_vis.views.text.table import Field, Listing

if TYPE_CHECKING:
    from torch_vis.analysis.compare.numeric.report import Differences

MIXED = "accumulated into what was there before"
ZERO = "zero but for rounding"
EXPLAINED = "rounding explains it"
LED = f"led by a gradient that is {ZERO}"


def told_of_kind(found: Differences, kind: str) -> str:
    """The results of a kind in words: the one that differs most of those of which that can be said."""
    all_of = {name: gap for name, (what, gap) in found.results.items() if what == kind}
    of_run = {name: gap for name, gap in all_of.items() if kind != "gradient" or name not in found.mixed}
    led = [name for name in of_run if name in found.led_by_rounding]
    of_kind = {name: gap for name, gap in of_run.items() if gap.zero_in != "AB" and name not in led}
    if not all_of:
        return ""
    if not of_run:
        return f"{MIXED}, in {and_more(list(all_of))}"
    parts = []
    if of_kind:
        worst = max(of_kind, key=lambda name: (not of_kind[name].rounding, of_kind[name].relative))
        remark = f": {EXPLAINED}" if of_kind[worst].rounding else ""
        parts.append(
            f"{at_most(of_kind[worst])}, in {worst}{remark}" if of_kind[worst].relative else "the same"
        )
    for where, run in (("A", "A alone"), ("B", "B alone"), ("AB", "both")):
        zero = [name for name, gap in of_run.items() if gap.zero_in == where]
        parts += [f"{ZERO} in {run}: {and_more(zero, 2)}"] if zero else []
    return "; ".join([*parts, *([f"{LED}: {and_more(led, 2)}"] if led else [])])


def result_listing(found: Differences, title: str, gap: Sequence[Field]) -> Listing:
    """All results that both runs have, those that differ most first, those of which that says nothing last."""
    other = {one.name: two.name for one, two in found.matched.pairs if one.name != two.name}
    renamed = (Field("in_b", "in B"),) if other else ()
    fields = (Field("name", "result"), *renamed, Field("kind", "kind"), *gap, Field("remark", "remark"))
    quiet = found.mixed | found.led_by_rounding
    worst = sorted(
        found.results.items(), key=lambda row: (row[0] in quiet or row[1][1].rounding, -row[1][1].relative)
    )
    rows = [
        (name, *((other.get(name),) if other else ()), kind, *one[:2], _remark(found, name, kind, one))
        for name, (kind, one) in worst
    ]
    return Listing(title, fields, rows, most=15)


def _remark(found: Differences, name: str, kind: str, gap: Gap) -> str | None:
    if kind == "gradient" and name in found.mixed:
        return MIXED
    if name in found.led_by_rounding:
        return LED
    if gap.rounding:
        return ZERO if gap.zero_in else EXPLAINED
    return f"{ZERO} in {gap.zero_in}" if gap.zero_in else None
