"""Chains of operations that were expected to be one kernel, beside what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch_vis.analysis.fusion.report import BARS, ends, shared_path
from torch_vis.analysis.report import most
from torch_vis.views.charts.chart import COLORS, PALE, Axis, Chart, Series
from torch_vis.views.charts.labels import family

WORDS = {"yes": "fused", "no": "not fused", "partly": "partly fused", "unknown": "not compiled"}


class ExpectedChain(NamedTuple):
    """A chain that could be one kernel, whether it is (``"yes"``, ``"partly"``, ``"no"``, ``"unknown"``), and bytes.

    ``could_save`` is what it would save as one kernel, ``saved_bytes`` what the kernels made save of that.
    """

    operations: tuple[int, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]
    kind: str
    fused: str
    could_save: int
    saved_bytes: int

    @property
    def missing_bytes(self) -> int:
        """What could be saved and is not."""
        return self.could_save - self.saved_bytes


def chains_chart(chains: Sequence[ExpectedChain], beyond: int) -> dict[str, Chart]:
    """Of the chains that could save most, what the kernels made save and what not; alike ones are one bar.

    ``beyond`` are bytes that kernels save and that no chain expected: a bar of its own.
    """
    alike: dict[str, list[ExpectedChain]] = {}
    for chain in chains:
        place = family(shared_path(chain.modules))
        name = f"{ends(chain.names)}{f' in {place}' if place else ''}: {WORDS[chain.fused]}"
        alike.setdefault(name, []).append(chain)
    sums = {
        f"{len(some):,} × {name}" if len(some) > 1 else name: (
            sum(chain.saved_bytes for chain in some),
            sum(chain.missing_bytes for chain in some),
        )
        for name, some in alike.items()
    }
    shown = dict(sorted(sums.items(), key=lambda item: -sum(item[1]))[:BARS])
    if beyond:
        shown["not expected, and fused"] = (beyond, 0)
    series = [
        Series(name, [*shown], [row[place] for row in shown.values()], color=color)
        for place, (name, color) in enumerate((("saved", COLORS[2]), ("could be saved, and is not", PALE)))
        if any(row[place] for row in shown.values())
    ]
    if not series:
        return {}
    title = f"Bytes that expected chains save as compiled{most(min(BARS, len(sums)), len(sums))}"
    axes = Axis("chain"), Axis("bytes that need not move", "bytes")
    return {"chains": Chart("bars", title, *axes, series)}
