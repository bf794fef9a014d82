"""In a notebook: the tours are executed, and what they show is there to be seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.kit.page import page_data
from torch_vis.views.page import show

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
TOURS = Path(__file__).parents[2] / "docs" / "tours"
# What a tour does not show: a site that opens without a network has no Plotly.
MORE = ('t.figure(color="time")', "%matplotlib inline\nfigure = t.figure('matplotlib', depth=1)")


def executed(path: Path, folder: Path, more: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What each code cell of a notebook showed, by kind, from top to bottom; a cell that raises fails the test."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in more]
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=place).execute()
    shown = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kinds: dict[str, Any] = {}
            for output in cell.outputs:
                kinds |= output.get("data", {}) or {output.get("name", "?"): output.get("text", "")}
            shown.append(kinds)
    return shown


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return executed(TOURS / "see.ipynb", tmp_path_factory.mktemp("see"), MORE)


def test_a_trace_shows_itself(shown: list[dict[str, Any]]) -> None:
    html = shown[0]["text/html"]
    assert "<iframe sandbox" in html and "srcdoc=" in html
    assert "<svg" in html and "layers.0–5 × 6" in html and "<pre" in html
    assert "<script" not in html


def test_the_check_is_printed(shown: list[dict[str, Any]]) -> None:
    assert any("equal bit for bit" in kinds.get("stdout", "") for kinds in shown)


def test_figures_show_inline(shown: list[dict[str, Any]]) -> None:
    figure = shown[-2]["application/vnd.plotly.v1+json"]
    assert {"boxes", "edges"} <= {trace.get("name") for trace in figure["data"]}
    assert len(shown[-1]["image/png"]) > 10_000
    assert any(kinds.get("image/svg+xml", "").startswith("<svg") for kinds in shown)


def test_a_figure_of_matplotlib_is_shown_once(tmp_path: Path) -> None:
    """As the value of a cell, with a semicolon, as a variable, and again later."""
    cells = (
        "import torch, torch_vis as tv\nt = tv.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))",
        't.memory().figure("matplotlib")',
        't.attribute("saliency").figure("matplotlib");',
        't.attribute("saliency").figure("matplotlib")',
        'figure = t.figure("matplotlib", depth=1)',
        "figure",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3", resources=place).execute()
    pictures = [
        sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in notebook.cells
    ]
    assert pictures == [0, 1, 1, 1, 1, 1]


def test_a_line_of_a_cell_is_called_by_the_number_of_the_cell(shown: list[dict[str, Any]]) -> None:
    printed = "".join(kinds.get("stdout", "") for kinds in shown)
    assert "In[2]:1 in <module>" in printed and "ipykernel" not in printed


@pytest.mark.parametrize("name", ["measure", "change"])
def test_the_other_tours_run_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their cells, in this process: another kernel would take longer to start than they do to run."""
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in nbformat.read(TOURS / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
    assert plt.get_fignums() and capsys.readouterr().out
    plt.close("all")


@pytest.mark.parametrize("path", sorted(TOURS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_tour_is_kept_as_it_ran(path: Path) -> None:
    """Its numbers of cells are in order, no cell raised, and no line of it names a folder of the machine."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and not [output for output in outputs if output.output_type == "error"]
    assert not [
        output for output in outputs if "/ipykernel" in str(output) or "/site-packages" in str(output)
    ]


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
    other = tv.trace(lambda x: x.sum().item() * x + 1, torch.ones(2))
    for source in (True, False):
        tv.compare(t, other).save(tmp_path / "both.html", source=source)
        data = json.dumps(page_data((tmp_path / "both.html").read_text()))
        told = [words in data for words in (str(Path(__file__).parent), "x.sum().item() * x", "threads")]
        assert told == [source] * 3, "the page of a comparison"
