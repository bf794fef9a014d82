"""``t.report``: everything that can be found out, in one file."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.calibrations import made_up
from tests.kit.traced import NAMES, traced
from torch_vis.analysis.full_report import gathered
from torch_vis.errors import NoMatch, UsageError


@pytest.fixture(autouse=True)
def not_calibrated(tmp_path_factory, monkeypatch):
    """Whoever runs the tests may have calibrated the machine; reports here have what a test gives them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def small() -> tv.Trace:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return tv.trace(model, torch.randn(4, 8), backward=True)


def test_markdown_has_every_part(tmp_path):
    t = small()
    t.report(tmp_path / "run.md")
    text = (tmp_path / "run.md").read_text()
    for title in ("Modules", "Memory", "Time", "Fusion", "Gradient flow", "Not in this report"):
        assert f"## {title}" in text, title
    assert "tv.measure.calibrate()" in text or "## Roofline" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(
        line.count("|") == before.count("|") for before, line in pairwise(rows) if line.startswith("|--")
    )


def test_markdown_reads_well(tmp_path):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return x + self.down(self.up(self.norm(x)).relu())

    model = nn.Sequential(*(Block() for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters())

    def training_step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    tv.trace(training_step, torch.randn(4, 8)).report(tmp_path / "run.md")
    text = (tmp_path / "run.md").read_text()
    assert "\n\n\n" not in text
    lines = text.splitlines()
    headings = [line.lstrip("# ") for line in lines if line.startswith("##")]
    assert all(heading[0].isupper() for heading in headings) and len(set(headings)) == len(headings)
    assert headings.index("Not captured") > headings.index("Memory")
    for title in (
        "Memory",
        "Time",
        "Fusion",
        "Partition",
        "Gradient flow",
    ):  # what it is about, in a sentence
        assert lines[lines.index(f"## {title}") + 2].endswith(".")
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert tables
    for rows in tables:
        cells = [row.removeprefix("| ").removesuffix(" |").split(" | ") for row in [rows[0], *rows[2:]]]
        for title, *column in zip(*cells, strict=True):
            assert title and set(column) - {"–", ""}, f"nothing is said under {title!r} of {rows[0]}"
    notes = [line for line in lines if line.startswith(">")]
    assert notes and all(note.startswith("> - ") for note in notes)  # else they run together


def test_names_that_have_no_room_still_tell_one_from_another():
    blocks = nn.Sequential()
    for number in range(12):
        blocks.add_module(str(number), nn.Sequential())
        blocks[number].add_module("projection", nn.Linear(4, 4))
    model = nn.Sequential()
    model.add_module("transformer_for_sequence_classification", blocks)
    text = tv.trace(model, torch.ones(2, 4), backward=True).memory().table(width=110)
    for number in range(12):
        assert re.search(rf"\W{number}\.projection\.weight ", text), number
    assert max(map(len, text.splitlines())) <= 110


def test_what_times_are_of_is_no_sum_that_is_too_low(tmp_path):
    t = tv.trace(nn.Linear(3, 2), torch.ones(1, 3), repeat=2)
    t.report(tmp_path / "run.md")
    sections = re.split(r"^## ", (tmp_path / "run.md").read_text(), flags=re.M)
    assert not any(section.startswith("Sums that are too low") for section in sections)
    (modules,) = (section for section in sections if section.startswith("Modules"))
    assert "are medians of 2 more runs" in modules


def test_what_is_computed_again_is_said_to_be(tmp_path):
    layer = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    model = nn.ModuleDict({"layer": layer})

    def step(x):
        checkpoint(model["layer"], x, use_reentrant=False).sum().backward()

    tv.trace(step, torch.rand(64, 64)).report(tmp_path / "run.md")
    sections = re.split(r"^## ", (tmp_path / "run.md").read_text(), flags=re.M)
    (modules,) = (section for section in sections if section.startswith("Modules"))
    (costliest,) = (section for section in sections if section.startswith("Costliest"))
    assert re.search(r"^\| .*Sequential ↻ \|", modules, re.M)
    rows = [line.split(" | ") for line in costliest.splitlines() if line.startswith(("| addmm", "| gelu |"))]
    assert {cells[1] for cells in rows} == {"forward", "backward, computed again ↻"}


def test_json_is_data(tmp_path):
    t = small()
    t.report(tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["summary"]["flops"] == t.metrics["flops"].total()
    assert found["memory"]["facts"] and found["time"]["facts"] and found["gradients"]["Gradients by layer"]


def test_latency_is_in_it_where_this_machine_was_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    t = small()
    t.report(tmp_path / "run.md")
    left_out = (tmp_path / "run.md").read_text().partition("## Not in this report")[2]
    assert "- **latency**: this machine has not been calibrated: run tv.measure.calibrate()" in left_out
    monkeypatch.setattr("torch_vis.analysis.machine.calibration.cached", lambda device=None: made_up("cpu"))
    t.report(tmp_path / "run.md")
    text = (tmp_path / "run.md").read_text()
    assert "## Predicted latency" in text and "**latency**" not in text
    t.report(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["latency"]["facts"]


def test_charts_and_numbers_are_named_where_a_report_is_read():
    report = small().time()
    charts, numbers = str(report).splitlines()[-2:]
    assert charts.startswith("charts: modules, operators, lines;") and "figure(chart='operators')" in charts
    assert numbers.startswith("numbers: .total_ns, ") and "to_dict()" in numbers
    named = re.findall(r"\.(\w+)(?=[,; ])", numbers)
    assert {*named} <= {*report.figures()}, "what is named is there"
    with pytest.raises(NoMatch, match="'lines', 'modules', 'operators'"):
        report.figure(chart="operator")
    alone = small().fusion()
    assert len(alone.charts()) == 1 and "charts:" not in str(alone)


def test_a_loaded_trace_has_what_needs_no_tensors(tmp_path):
    t = small()
    t.save(tmp_path / "run.tvz")
    found, missing = gathered(tv.load(tmp_path / "run.tvz"))
    assert {"memory", "time", "fusion", "partition"} <= set(found)
    assert "holds no tensors" in missing["gradients"]


def test_names_are_text(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<img src=x>|a", nn.Linear(2, 2))

        def forward(self, x):
            return next(self.children())(x)

    tv.trace(Odd(), torch.ones(1, 2), backward=True).report(tmp_path / "odd.md")
    assert "<img" not in (tmp_path / "odd.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_case_of_the_zoo(name, tmp_path):
    t = traced(name)
    t.report(tmp_path / "case.md")
    t.report(tmp_path / "case.json")
    assert json.loads((tmp_path / "case.json").read_text())["summary"]["operations"] == t.summary().operations


def test_bad_names(tmp_path):
    with pytest.raises(UsageError, match=r"\.md or \.json"):
        small().report(tmp_path / "run.docx")
    with pytest.raises(UsageError, match="name one that ends in"):
        small().report(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"t\.save\(\) writes the run as a page"):
        small().report(tmp_path / "run.html")
    assert not list(tmp_path.iterdir())
