"""In a notebook: the tour is executed, and what it shows is there to be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


@pytest.fixture(scope="module")
def shown() -> list[dict[str, Any]]:
    """What each code cell of the tour showed, by kind; a cell that raises fails the test."""
    notebook = nbformat.read(TOUR, as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kinds: dict[str, Any] = {}
            for output in cell.outputs:
                kinds |= output.get("data", {}) or {output.get("name", "?"): output.get("text", "")}
            found.append(kinds)
    return found


def test_a_trace_shows_itself(shown: list[dict[str, Any]]) -> None:
    html = shown[0]["text/html"]
    assert "<iframe sandbox" in html and "srcdoc=" in html
    assert "<svg" in html and "layers.0–5 × 6" in html and "<pre" in html
    assert "<script" not in html


def test_the_check_is_printed(shown: list[dict[str, Any]]) -> None:
    assert "equal bit for bit" in shown[1]["stdout"]


def test_figures_show_inline(shown: list[dict[str, Any]]) -> None:
    figure = shown[2]["application/vnd.plotly.v1+json"]
    assert {"boxes", "edges"} <= {trace.get("name") for trace in figure["data"]}
    assert len(shown[3]["image/png"]) > 10_000
    assert shown[4]["image/svg+xml"].startswith("<svg")
    assert "time_ns" in shown[5]["text/html"]


def test_names_of_the_program_are_text() -> None:
    odd = type("<script>alert(1)</script>", (torch.nn.Tanh,), {})()
    html = tv.trace(odd, torch.ones(2))._repr_html_()
    assert "<script" not in html and "&lt;script&gt;" in html


def test_a_recording_shows_itself_before_and_after() -> None:
    with tv.record() as t:
        torch.ones(2) + 1
    assert "add" in t._repr_html_()
    assert tv.record()._repr_html_()  # nothing has run yet
