"""The page's copy of the schema: generated from Python's, and never edited."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import torch_vis as tv
from torch_vis.graph.metrics import METRIC_INFO

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "viewer_schema.py"


@pytest.mark.skipif(not (ROOT / "viewer").is_dir(), reason="the viewer's source is not here")
def test_the_schema_of_the_viewer_is_the_one_of_python() -> None:
    script = runpy.run_path(str(SCRIPT))
    written = script["TARGET"].read_text(encoding="utf-8")
    assert written == script["schema"](), "run: .venv/bin/python tools/viewer_schema.py, then make viewer"


def test_what_is_told_of_a_metric_fits_its_name() -> None:
    for name, info in METRIC_INFO.items():
        assert (info.unit == "ns") == name.endswith("_ns") and (info.unit == "B") == name.endswith(
            "_bytes"
        ), name
        assert not info.difference_of or info.difference_of in METRIC_INFO, name
        assert info.is_summed or not info.is_heat, f"{name}: a box is coloured by a sum"


def test_every_metric_of_a_trace_has_a_label() -> None:
    t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    along = {name for name, column in t.metrics.items() if column.along in ("node", "scope")}
    assert along <= set(METRIC_INFO)
