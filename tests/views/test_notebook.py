"""In a notebook: the tour is executed, and what it shows is there to be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv
from torch_vis.views.page import show

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


def test_cells_share_one_viewer_and_the_panel_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    t = tv.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
    monkeypatch.setattr(show, "_giving", {})
    texts = []
    for cell in ("one", "two", "one"):
        monkeypatch.setattr(show, "_cell", lambda cell=cell: cell)
        texts.append(t._repr_html_())
    first, second, again = texts
    assert "torchVisViewers" in first and "torchVisViewers" in again and "torchVisViewers" not in second
    assert len(second) < len(first) / 5
    assert all("data-panel=&quot;shut&quot;" in text for text in texts)


def test_reports_are_tables() -> None:
    odd = type("<b>", (torch.nn.Tanh,), {})()
    html = tv.trace(torch.nn.Sequential(odd), torch.ones(2)).time()._repr_html_()
    assert html.count("<table>") > 2 and "<b>" not in html


def test_a_file_that_is_sent_has_no_source(tmp_path: Path) -> None:
    t = tv.trace(lambda x: x.sum().item() * x, torch.ones(2))
    for name in ("run.html", "run.tvz", "run.json", "run.md"):
        t.save(tmp_path / name, source=False)
    sent = tv.load(tmp_path / "run.tvz")
    assert {site.file for site in sent.graph.sites} == {f"…/{Path(__file__).name}"}
    assert "machine" not in sent.meta and sent.check is not None
    for name in ("run.html", "run.json", "run.md"):
        text = (tmp_path / name).read_text()
        assert str(Path(__file__).parent) not in text and "x.sum().item() * x" not in text, name
