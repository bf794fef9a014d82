"""A browser, and a page of a trace opened in it, for the tests that look at pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.browser import Page, browser


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def show(driver: Any, tmp_path: Path) -> Iterator[Callable[[Any], Page]]:
    def made(what: Any) -> Page:
        what.save(tmp_path / "run.html")
        return Page(driver, tmp_path / "run.html").open()

    yield made
    assert [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"] == []
