"""The time line: every operation once, modules nested around them, memory as it was, arrows to the gradients."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.traced import NAMES, traced
from torch_vis.errors import UsageError
from torch_vis.graph import Metrics


def events(t: tv.Trace, tmp_path: Path) -> list[dict[str, Any]]:
    t.save(tmp_path / "run.perfetto.json")
    found: list[dict[str, Any]] = json.loads((tmp_path / "run.perfetto.json").read_text())["traceEvents"]
    return found


def nesting_faults(slices: list[dict[str, Any]]) -> list[str]:
    """Slices of one track that overlap without the one lying inside the other."""
    faults = []
    open_: list[dict[str, Any]] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        while open_ and open_[-1]["ts"] + open_[-1]["dur"] <= event["ts"] + 1e-6:
            open_.pop()
        if open_ and event["ts"] + event["dur"] > open_[-1]["ts"] + open_[-1]["dur"] + 1e-6:
            faults.append(f"{event['name']} reaches out of {open_[-1]['name']}")
        open_.append(event)
    return faults


@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_on_a_time_line(name: str, tmp_path: Path) -> None:
    t = traced(name)
    found = events(t, tmp_path)
    operations = [event for event in found if event.get("cat") == "operation"]
    assert sorted(event["args"]["node"] for event in operations) == list(range(len(t.graph)))
    tracks = defaultdict(list)
    for event in found:
        assert event["ph"] in "XMCsf" and (event["ph"] == "M" or event["ts"] >= 0)
        if event["ph"] == "X":
            tracks[event["tid"]].append(event)
    named = {event["tid"] for event in found if event["name"] == "thread_name"}
    assert set(tracks) == named
    for slices in tracks.values():
        assert nesting_faults(slices) == []
    starts = {event["id"] for event in found if event["ph"] == "s"}
    assert starts == {event["id"] for event in found if event["ph"] == "f"}


def test_an_operation_lies_in_its_modules(tmp_path: Path) -> None:
    t = tv.trace(nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Tanh())), torch.ones(1, 3), backward=True)
    found = events(t, tmp_path)
    tanh = next(event for event in found if event["name"] == "tanh")
    around = [
        event["name"]
        for event in found
        if event.get("cat") == "module"
        and event["tid"] == tanh["tid"]
        and event["ts"] <= tanh["ts"]
        and event["ts"] + event["dur"] >= tanh["ts"] + tanh["dur"] - 1e-3
    ]
    assert sorted(around) == ["0 · Tanh", "1 · Sequential", "Sequential"]
    assert tanh["dur"] * 1000 == pytest.approx(t.metrics["time_ns"][tanh["args"]["node"]])
    assert tanh["args"]["source"].partition(":")[0].endswith("test_perfetto.py")


def test_memory_is_a_counter(tmp_path: Path) -> None:
    t = tv.trace(lambda x: (x + 1).sum(), torch.ones(1000))
    counted = [event["args"]["bytes"] for event in events(t, tmp_path) if event["ph"] == "C"]
    assert counted == t.metrics["live_bytes"].values.tolist() == [8000, 4004]


def test_arrows_lead_from_forward_to_backward(tmp_path: Path) -> None:
    t = tv.trace(nn.Tanh(), torch.ones(2, requires_grad=True), backward=True)
    found = events(t, tmp_path)
    ends = {(event["ph"], event["id"]): event for event in found if event["ph"] in "sf"}
    gradient = next(node for node in t.graph.nodes if node.name == "tanh_backward")
    start, end = ends["s", gradient.index], ends["f", gradient.index]
    forward = next(event for event in found if event["name"] == "tanh")
    assert forward["ts"] <= start["ts"] <= forward["ts"] + forward["dur"] and end["tid"] != start["tid"]


def test_a_trace_without_times(tmp_path: Path) -> None:
    t = tv.trace(nn.Tanh(), torch.ones(2))
    t.metrics = Metrics()
    with pytest.raises(UsageError, match="needs the times"):
        t.save(tmp_path / "run.perfetto.json")
    assert list(tmp_path.iterdir()) == []
