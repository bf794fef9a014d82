"""A real browser for the tests: Chromium without a window, and a small web server for what it shows."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=1400,900",
)


def missing() -> str:
    """What a browser test lacks here, in words; empty if nothing."""
    programs = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    try:
        import selenium  # noqa: F401
    except ImportError:
        programs.append("selenium")
    return f"{' and '.join(programs)} not installed" if programs else ""


needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "a browser is there")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A driver of a fresh Chromium, closed at the end."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for option in OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or ""))
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder on a local port; gives the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


WAIT_S = 20.0


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, size), nn.Linear(size, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(x)))


class Net(nn.Module):
    """A stem, six blocks of which the third is wider, and a head."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block(24 if place == 2 else 16) for place in range(blocks))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Page:
    """A page in the browser, driven as a person drives it."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver, self.path = driver, path

    def open(self, hash: str = "") -> Page:
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(self.path.as_uri() + hash)
        self.until("return window.torchVis?.isReady")
        return self

    def js(self, code: str, *args: Any) -> Any:
        """Run a script in the page; ``P`` is the page's port, and a promise that is returned is waited for."""
        return self.driver.execute_script("const P = window.torchVis;" + code, *args)

    def until(self, code: str) -> Any:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            found = self.js(code)
            if found:
                return found
            time.sleep(0.03)
        raise AssertionError(
            f"not seen within {WAIT_S} s: {code}; {self.js('return document.body.innerText')[:500]}"
        )

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def labels(self) -> list[str]:
        """What is to be seen: the labels of all boxes and frames."""
        return [box["label"] for box in self.boxes()]

    def boxes(self, **wanted: Any) -> list[dict[str, Any]]:
        """The boxes and frames that are drawn, or those with these facts: ``boxes(column=0, kind="op")``."""
        boxes = self.js("return P.boxes()")
        return [box for box in boxes if all(box[name] == value for name, value in wanted.items())]

    def box(self, label: str, **wanted: Any) -> dict[str, Any]:
        """The first box of a label."""
        return self.boxes(label=label, **wanted)[0]

    def operation(self, name: str, *, last: bool = False, **wanted: Any) -> int:
        """The number of the first or last operation of a name."""
        nodes = [
            row["node"]
            for row in self.js("return P.operations()")
            if row["name"] == name and all(row[key] == value for key, value in wanted.items())
        ]
        return int(nodes[-1 if last else 0])

    def click(self, label: str, *, twice: bool = False) -> None:
        """Click the middle of a box's first line."""
        from selenium.webdriver.common.action_chains import ActionChains

        x, y = self.js(
            "const {x, y} = P.boxes().find(b => b.label === arguments[0]).sheet;"
            "P.camera({scale: 1, x: 300 - x, y: 200 - y});"
            "const b = document.querySelector('.graph').getBoundingClientRect();"
            "return [b.left + 330, b.top + 214];",
            label,
        )
        chain = ActionChains(self.driver).w3c_actions
        chain.pointer_action.move_to_location(int(x), int(y))
        chain.pointer_action.double_click() if twice else chain.pointer_action.click()
        chain.perform()

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


def facts(page: Page, panel: str) -> dict[str, str]:
    """The rows of a panel's tables of facts."""
    rows = page.js(
        "return [...document.querySelectorAll(`${arguments[0]} .facts tr`)].map(r => [r.cells[0].innerText, "
        "[...r.cells].slice(1).map(c => c.innerText).join(' | ')])",
        panel,
    )
    return dict(rows)


def modules(page: Page) -> dict[str, list[str]]:
    """The rows of the module table by their name, and what is in their cells."""
    page.js("P.tab('modules')")
    rows = page.js(
        "return [...document.querySelectorAll('.grid tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    return {cells[0].strip(): cells[1:] for cells in rows}


def column(page: Page, name: str) -> int:
    return page.js("return [...document.querySelectorAll('.grid th')].map(t => t.innerText)").index(name) - 1
