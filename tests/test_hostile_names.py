"""Names of models and files are data: whatever they hold, nothing that is printed or written acts on a terminal,
forges a line, runs in a spreadsheet or breaks a format."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.kit.calibrations import made_up
from tests.kit.forking import Server
from torch_vis._reports import REPORTS
from torch_vis.cli.output import Output
from torch_vis.errors import TorchVisError, no_match
from torch_vis.exporters.csv import FORMULA, harmless
from torch_vis.formats import FORMATS
from torch_vis.graph.run import Limit
from torch_vis.graph.schema import Module, ResultRow, Site

NAMES = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "screen": "\x1b[2J\x1b[31m",
    "return": "fine\rEVIL",
    "line": "fine\nEVIL: a line of its own",
    "nul": "a\0b",
    "tab": "a\tb\x7f",
    "c1": "a\x9b2Jb\x9d0;x\x9c\x85c",
    "bidi": "a\u202egnp.exe\u2066b\u200f",
    "zero width": "a\u200b\u200d\ufeffb\u00ad",
    "separators": "a\u2028EVIL\u2029c",
    "surrogate": "a\ud800b\udcffc",
    "formula": "=cmd|' /C calc'!A0",
    "markup": "<script>alert(1)</script>&\"'`|[]()*_{}\\",
    "rich": "[red]x[/red] [link=http://e]y[/link] [/]",
    "mathtext": "$\\frac{1}$ $x_",
    "format": "{0} %s %(a)s {name}",
}
TEXTS = ("svg", "dot", "markdown", "csv", "graphml", "json", "perfetto", "model-explorer", "html")


class Odd(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x)) * 2


def renamed(name: str) -> tv.Trace:
    """A trace in which everything that has a name has this one."""
    trace = tv.trace(Odd(), torch.ones(2, 3), backward=True)
    graph = trace.graph
    trace.graph = graph.replaced(
        modules=[row if row.kind == "run" else Module(name, name, row.kind) for row in graph.modules],
        names=[f"{name}{number}" for number in range(len(graph.names))],
        sites=[Site(f"/srv/{name}.py", row.line, name) for row in graph.sites],
        devices=[name for _ in graph.devices],
        results=[ResultRow(name, row.kind) for row in graph.results],
        calls=[
            call._replace(op=f"mine::{name}") if number == 1 else call
            for number, call in enumerate(graph.calls)
        ],
    )
    trace.limits = [Limit(f"a limit of {name}", kind="other", site=name)]
    trace.meta.update(
        model=name, error=f"ValueError: {name}", script=name, traced=name, torch=name, devices=[name]
    )
    return tv.Trace(trace.graph, trace.metrics, trace.limits, trace.meta)


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("hostile"))
    yield server
    server.close()


@pytest.fixture(params=NAMES, scope="module")
def hostile(request: pytest.FixtureRequest) -> tv.Trace:
    return renamed(NAMES[request.param])


def assert_inert(text: str) -> None:
    """Nothing but letters that can be seen and line ends, and no line that a name made."""
    seen = [letter for letter in text if not letter.isprintable() and letter != "\n"]
    assert not seen, repr(seen[:5])
    assert not re.search("^EVIL", text, re.MULTILINE)


def views(trace: tv.Trace) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Everything that can be printed of a trace."""
    yield from (
        ("str", lambda: str(trace)),
        ("repr", lambda: repr(trace)),
        ("narrow", lambda: trace.table(width=60)),
    )
    yield "breaks", lambda: str(trace.breaks)
    yield "metrics", lambda: repr(trace.metrics)
    yield "limits", lambda: "\n".join(trace.limits)
    for rows in ("nodes", "values", "scopes", "outcomes"):
        yield rows, lambda rows=rows: "\n".join(map(repr, getattr(trace.graph, rows)))
    yield "comparison", lambda: str(tv.compare(trace, tv.trace(torch.nn.ReLU(), torch.ones(2))))
    yield "find", lambda: trace.graph.find("nothing")
    yield "part", lambda: trace.part("nothing")
    for name in REPORTS:
        options = {"hardware": "a100"} if name in ("roofline", "latency") else {}
        yield name, lambda name=name, options=options: str(getattr(trace, name)(**options))
        yield f"{name}'s repr", lambda name=name, options=options: repr(getattr(trace, name)(**options))


def test_nothing_that_is_printed_acts_on_a_terminal(hostile: tv.Trace) -> None:
    for name, view in views(hostile):
        try:
            text = view()
        except TorchVisError as error:
            text = f"{error}\n{error!r}"
        try:
            assert_inert(str(text))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def test_no_file_is_broken_or_acts_on_a_terminal(hostile: tv.Trace, tmp_path: Path) -> None:
    for name in FORMATS:
        if name in ("png", "pdf"):
            continue
        path = tmp_path / f"run{FORMATS[name].endings[0]}"
        hostile.save(path, format=name)
        if name in TEXTS:
            text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), name
    for kind in ("tvz", "json"):
        loaded = tv.load(tmp_path / f"run.{kind}")
        assert loaded.graph.modules == hostile.graph.modules and loaded.graph.names == hostile.graph.names


def test_a_name_of_digits_is_a_name() -> None:
    """More of them than Python takes for a number, and not at the end."""
    for name in ("9" * 5000, "9" * 5000 + "x"):
        digits = renamed(name)
        assert "9" * 10 in str(digits)
        assert str(tv.compare(digits, digits))
        for renderer in ("svg", "graphviz"):
            assert digits.figure(renderer=renderer)


def test_arguments_of_any_names_are_written(tmp_path: Path) -> None:
    """As a file may have them."""
    trace = tv.trace(torch.nn.Softmax(-1), torch.ones(2, 2))
    graph = trace.graph
    hostile = graph.calls[0]._replace(kwargs=tuple((name, 1) for name in NAMES.values()))
    object.__setattr__(graph, "calls", (hostile, *graph.calls[1:]))
    for name in FORMATS:
        if name not in ("png", "pdf"):
            trace.save(tmp_path / f"run{FORMATS[name].endings[0]}", format=name)


def test_charts_are_drawn_of_any_names(hostile: tv.Trace) -> None:
    figure = hostile.time().figure("matplotlib")
    figure.canvas.draw()
    import matplotlib.pyplot as plt

    plt.close(figure)
    drawn = hostile.memory().figure("plotly").to_json()
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", drawn)


def test_the_program_prints_nothing_that_acts_on_a_terminal(
    cli: Server, hostile: tv.Trace, tmp_path: Path
) -> None:
    path = tmp_path / "run.tvz"
    hostile.save(path)
    for words in (("summary", path), ("summary", path, "--json"), ("report", "memory", path), ("check", path),
                  ("compare", path, path), ("report", "time", path, "--json")):  # fmt: skip
        done = cli(*map(str, words))
        assert "Traceback" not in done.err
        assert_inert(done.out)
        assert_inert(done.err)
        if "--json" in words:
            json.loads(done.out)


@pytest.mark.parametrize(
    "name", [name for name in NAMES.values() if "\0" not in name and "\ud800" not in name]
)
def test_weights_of_any_names_are_listed(cli: Server, tmp_path: Path, name: str) -> None:
    torch.save({name: torch.ones(2), "meta": {name: name}}, tmp_path / "a.pt")
    done = cli("summary", str(tmp_path / "a.pt"))
    assert done.code == 0
    assert_inert(done.out + done.err)
    missing = cli("summary", str(tmp_path / f"{name.replace('/', '')}.tvz"))
    assert missing.code == 2
    assert_inert(missing.out + missing.err)


@pytest.mark.parametrize("name", NAMES.values())
def test_an_error_is_one_line_that_says_nothing_to_a_terminal(name: str) -> None:
    for error in (no_match("module", name, [name, "a"]), tv.errors.FileError(f"cannot read {name}"),
                  tv.errors.CorruptFile(f"{name} is damaged"), tv.errors.GraphError(f"node 3 ({name})")):  # fmt: skip
        assert str(error).isprintable() and "\n" not in str(error)


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@a", "'=1", "''=1", "a;=1", "a|-1", "\uff1dx", "fc.weight", "a'=b"]
)
def test_a_cell_is_no_formula_and_comes_back(text: str) -> None:
    cell = harmless(text)
    assert not re.match("[=+@\uff1d-]", cell) and not re.search("[;|][=+@-]", cell)
    assert re.sub(r"(^|[;|])'(?='*[=+@\uff1d\uff0b\uff0d\uff20-])", r"\1", cell) == text
    assert FORMULA.search(text) is not None or cell == text


def test_a_spreadsheet_runs_no_name(tmp_path: Path) -> None:
    renamed(NAMES["formula"]).save(tmp_path / "run.csv")
    with open(tmp_path / "run.csv", newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert any(cell.startswith("'=cmd") for cell in cells)
    assert not any(re.match("[=+@\t\r]", cell) for cell in cells)


def test_long_names_are_cut(tmp_path: Path) -> None:
    trace = renamed("x" * 1_000_000)
    texts = [str(trace), repr(trace), repr(trace.graph.nodes[0]), str(trace.memory()), str(trace.limits[0])]
    with pytest.raises(TorchVisError) as caught:
        trace.graph.find("nothing")
    assert len(str(caught.value)) < 1000 and max(map(len, texts)) < 100_000


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1"])
def test_output_in_another_encoding_works(
    cli: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    import io
    import sys

    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    Output().give({}, str(renamed("größe → 名前")))
    stream.flush()
    assert b"?" in stream.buffer.getvalue()  # type: ignore[attr-defined]


def hostile_model(name: str) -> torch.nn.Module:
    """A model that runs, in which a module and its class have this name as far as Python lets them."""
    name = name.replace(".", "").encode("utf-8", "ignore").decode()
    kind = type(name.replace("\0", ""), (torch.nn.Linear,), {})
    model = torch.nn.Sequential()
    model.add_module(name, kind(3, 3))
    model.add_module("last", torch.nn.Linear(3, 3))
    return model


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_what_is_asked_of_a_run_prints_nothing_that_acts_on_a_terminal(name: str, tmp_path: Path) -> None:
    model, x = hostile_model(name), torch.ones(1, 3)
    place = next(iter(dict(model.named_children())))
    trace = tv.trace(model, x)

    def live(keep: str) -> str:
        with tv.live(model, keep=keep) as run:
            model(x)
        return repr(run.kept)

    questions: list[Callable[[], Any]] = [
        *(lambda keep=keep: live(keep) for keep in (place, f"{place}x", f"{place}[head=1]", f"{place}.grad")),
        lambda: trace.select(place),
        lambda: trace.sweep("**", tv.edit.zero(), measure=lambda y: y.sum()),
        lambda: trace.attribute("integrated_gradients", measure=lambda y: y.sum(), steps=2, at="**"),
        lambda: trace.attribute(name),
        lambda: trace.attribute_edges(lambda y: y.sum(), x * 2, top=1),
        lambda: trace.run(replace={f"{place}/": tv.edit.zero()}),
        lambda: trace.figure("plotly"),
        lambda: tv.extract(model, [x], keep="**", to=tmp_path / "acts"),
        lambda: tv.extract(model, [x], stats={name: tv.stats.Mean()}),
        lambda: trace.help(name),
    ]
    for question in questions:
        try:
            answer = question()
            text = f"{answer}\n{answer!r}"
        except TorchVisError as error:
            text = f"{error}\n{error!r}"
        assert_inert(text.replace(str(tmp_path), ""))


def test_a_calibration_of_any_name_is_printed(tmp_path: Path) -> None:
    machine = replace(made_up(), device="".join(NAMES.values()))
    assert_inert(str(machine))
