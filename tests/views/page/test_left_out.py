"""Figures of the page, in a real Chromium, that leave out operations of which they are not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.browser import Page, column, facts, modules, needs_browser

pytestmark = needs_browser
Show = Callable[[Any], Page]


class Own(nn.Module):
    """Two layers with something between them that may have no formula."""

    def __init__(self, own: bool, out: int) -> None:
        super().__init__()
        self.first, self.last, self.own = nn.Linear(8, 8), nn.Linear(8, out), own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(torch.ops.marked.own(x) if self.own else torch.tanh(x))


@pytest.fixture(scope="module")
def compared() -> Iterator[tv.Comparison]:
    with torch.library._scoped_library("marked", "FRAGMENT") as library:
        library.define("own(Tensor x) -> Tensor")
        library.impl("own", lambda x: x.clone(), "CompositeExplicitAutograd")
        one, two = (tv.trace(Own(own, out), torch.ones(2, 8)) for own, out in ((False, 4), (True, 6)))
        assert two.metrics["flops"].uncovered == 1
        yield tv.compare(one, two)


def scope_of(trace: tv.Trace, path: str, type_: str) -> int:
    return next(s.index for s in trace.graph.scopes if (s.path, s.type) == (path, type_))


def test_the_difference_of_a_box_that_leaves_something_out_is_not_told(
    show: Show, compared: tv.Comparison
) -> None:
    page = show(compared)
    a, b = (int(t.metrics["flops"].total() or 0) for t in (compared.a, compared.b))
    page.js("return P.goToCall(arguments[0])", scope_of(compared.b, "", "Own"))
    page.until("return document.querySelector('.details h2')?.innerText === 'Own'")
    assert facts(page, ".details")["FLOPs"] == f"{a} | ≥ {b} | ", "as in the sums"
    assert facts(page, ".details")["parameters"].endswith(" | +18"), "what is known of all is compared"
    assert "operations of which it is not known are left out" in page.text(".details")
    page.js("return P.goToCall(arguments[0])", scope_of(compared.b, "last", "Linear"))
    page.until("return document.querySelector('.details h2')?.innerText === 'last'")
    one, two, delta = facts(page, ".details")["FLOPs"].split(" | ")
    assert (int(one), int(two), delta) == (2 * 2 * 8 * 4 + 8, 2 * 2 * 8 * 6 + 12, "+68")
    assert "left out" not in page.text(".details")


def test_an_operation_without_a_formula_has_no_difference(show: Show, compared: tv.Comparison) -> None:
    page = show(compared)
    node = page.operation("own")
    page.js("return P.goToNode(arguments[0])", node)
    page.until(f"return P.node() === {node}")
    assert facts(page, ".details")["FLOPs"] == "– | not known | "


def test_a_side_of_which_nothing_is_known_is_not_zero(show: Show, compared: tv.Comparison) -> None:
    """What only the other run has is no operation of this one, known or not."""

    class Only(nn.Module):
        def __init__(self, own: bool) -> None:
            super().__init__()
            self.own = own

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.marked.own(x) if self.own else torch.tanh(x)

    one, two = (tv.trace(Only(own), torch.ones(2, 8)) for own in (True, False))
    page = show(tv.compare(one, two))
    page.js("return P.goToCall(arguments[0])", scope_of(two, "", "Only"))
    page.until("return document.querySelector('.details h2')?.innerText === 'Only'")
    assert facts(page, ".details")["FLOPs"] == "not known | 16 | "
    assert modules(page)["≠ Only"][column(page, "FLOPs A")] == "–"


def test_the_module_table_marks_what_the_printed_one_marks(show: Show, compared: tv.Comparison) -> None:
    page = show(compared)
    found = modules(page)
    flops = {name: column(page, name) for name in ("Δ FLOPs", "FLOPs A", "FLOPs B")}
    row = found["≠ Own"]
    a, b = (int(t.metrics["flops"].total() or 0) for t in (compared.a, compared.b))
    assert [row[place] for place in flops.values()] == ["–", str(a), f"≥ {b}"]
    assert (
        found["≠ last Linear"][flops["Δ FLOPs"]] == "+68" and found["first Linear"][flops["Δ FLOPs"]] == "0"
    )
    assert "≥: operations not known are left out; – under Δ: not to be compared." in page.text(".foot")
    page.js("[...document.querySelectorAll('.grid th button')].find(b => b.innerText === 'Δ FLOPs').click()")
    first = page.js("return document.querySelector('.grid tbody tr').cells[0].innerText")
    assert first.startswith("≠ last"), "what cannot be compared is not sorted as if it could"


def test_a_run_alone_marks_sums_as_the_printed_table_does(show: Show, compared: tv.Comparison) -> None:
    page = show(compared.b)
    found = modules(page)
    flops = int(compared.b.metrics["flops"].total() or 0)
    assert found["Own"][column(page, "FLOPs")] == f"≥ {flops}"
    assert f"≥ {flops}" in compared.b.table(width=140)
    assert "≥" not in found["last Linear"][column(page, "FLOPs")]


def test_the_heat_map_of_a_difference_shows_it_as_not_known(show: Show, compared: tv.Comparison) -> None:
    page = show(compared)
    amounts = {}
    for heat in ("difference_flops", "difference_parameters", "flops"):
        page.js("P.heat(arguments[0])", heat)
        amounts[heat] = page.box("Own")
    assert amounts["difference_flops"]["heat"] is None
    assert amounts["difference_parameters"]["heat"] == 18
    assert amounts["flops"]["heat"] == compared.b.metrics["flops"].total() and amounts["flops"]["isLow"]


class Sums(nn.Module):
    def __init__(self, *, is_residual: bool) -> None:
        super().__init__()
        self.inner, self.is_residual = nn.Linear(4, 4), is_residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).relu()
        return y + x if self.is_residual else y + y


def test_what_changed_is_said_in_words(show: Show) -> None:
    one, two = (tv.trace(Sums(is_residual=kind), torch.ones(2, 4)) for kind in (True, False))
    compared = tv.compare(one, two)
    (change,) = compared.changed
    assert change.what == ("reads relu in the run instead of x (input)",)
    page = show(compared)
    assert "Changed, A → B (1)" in page.text(".summary") and change.what[0] in page.text(".summary")
    for name, is_told in (("add", True), ("relu", False)):
        page.js("return P.goToNode(arguments[0])", page.operation(name))
        assert page.text(".details h2") == name
        assert (change.what[0] in page.text(".details")) == is_told
    assert page.complaints() == []
