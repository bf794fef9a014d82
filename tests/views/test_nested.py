"""Two thousand modules in each other: printed, drawn and explored like any other model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torch_vis as tv
from tests.kit.nested import nested_trace
from tests.kit.screen import drive, press, screen

LEVELS = 2_000


@pytest.fixture(scope="module")
def trace() -> tv.Trace:
    return nested_trace(LEVELS)


def test_print_and_summary(trace: tv.Trace) -> None:
    assert "2,000" in str(trace) and len(str(trace)) < 100_000
    rows = trace.summary().modules
    assert len(rows) == LEVELS
    # each module holds its own parameter and all those inside it
    assert [row.parameters for row in rows] == list(range(LEVELS, 0, -1))


def test_figures(trace: tv.Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "run.svg")
    assert ">mul<" in (tmp_path / "run.svg").read_text()
    whole = trace.figure(renderer="svg", depth=LEVELS + 1)
    # the innermost module, which calls no other, stays closed
    assert str(whole).count(">mul<") == LEVELS - 1


def test_the_explorer(trace: tv.Trace) -> None:
    async def steps(app: Any, pilot: Any) -> None:
        await press(app, pilot, "E", "end")
        assert "child" in screen(app)
        await press(app, pilot, "home", "right")

    drive(trace, steps)
