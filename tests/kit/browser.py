"""A real browser for the tests: Chromium without a window, and a small web server for what it shows."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
