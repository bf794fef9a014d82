"""The page where the user is: their browser, their notebook, or neither."""

from __future__ import annotations

import html as entities
import sys
import types
import webbrowser
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv
from tests.kit.browser import browser, needs_browser
from torch_vis.views.page import show as page_show


@pytest.fixture(autouse=True)
def display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)


@pytest.fixture
def trace() -> tv.Trace:
    return tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))


def test_show_opens_the_browser(trace: tv.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    path = Path(trace.show())
    assert opened == [path.as_uri()] and path.name == "Linear.html"
    assert path.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("failure", [False, webbrowser.Error("none")])
def test_show_without_a_browser_says_where_the_page_is(
    trace: tv.Trace, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    def open_(address: str) -> bool:
        if isinstance(failure, Exception):
            raise failure
        return False

    monkeypatch.setattr(webbrowser, "open", open_)
    for show in (trace.show, tv.compare(trace, trace).show):
        with pytest.warns(UserWarning, match="no browser could be started here; the page is in") as told:
            path = show()
        assert Path(path).is_file() and path in str(told[0].message)
        assert told[0].filename == __file__


def test_without_a_display_no_browser_takes_the_terminal(
    trace: tv.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``webbrowser`` would start w3m or lynx in the terminal, in which the page is empty."""
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail("a browser was started"))
    with pytest.warns(UserWarning, match="no browser could be started here"):
        trace.show()
    monkeypatch.setenv("BROWSER", "mine")  # an editor on another machine says so how it opens pages
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    assert [Path(trace.show()).as_uri()] == opened


def test_show_in_a_notebook_displays_the_page(trace: tv.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    display = types.ModuleType("IPython.display")
    display.HTML, display.display = str, shown.append  # type: ignore[attr-defined]
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail("a browser was started"))
    trace.show()
    assert len(shown) == 1 and shown[0].startswith("<iframe sandbox")


def test_a_page_too_large_for_a_notebook_is_left_out(
    trace: tv.Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_show, "LARGEST", 1000)
    shown = trace._repr_html_()
    assert "<iframe" not in shown and "<svg" in shown


@needs_browser
def test_the_frame_of_a_notebook_draws_the_page(trace: tv.Trace, tmp_path: Path) -> None:
    (tmp_path / "cell.html").write_text(f"<!doctype html><meta charset=utf-8>{trace._repr_html_()}")
    assert "Linear" in entities.unescape(trace._repr_html_())
    with browser() as driver:
        driver.get((tmp_path / "cell.html").as_uri())
        driver.switch_to.frame(0)
        for _ in range(400):
            if driver.execute_script("return window.torchVis?.isReady"):
                break
        labels = "return torchVis.boxes().map(b => b.label)"
        assert "addmm" in driver.execute_script(labels)
        assert [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"] == []
