"""Ends the build if a page leads nowhere, would fetch something when it is read, or names a folder of this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kernels import folders
from sphinx.errors import ExtensionError

# What is fetched when a page is opened; a link that a reader may follow is another thing.
FETCHED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Addresses(HTMLParser):
    """The addresses in a page, and the anchors that others can point to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str]] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.found.append((tag, name, value))


def problems(site: Path) -> Iterator[str]:
    """A line for each address that leads nowhere or outside."""
    pages = {}
    for path in site.rglob("*.html"):
        if "gallery" not in path.relative_to(site).parts[:-1]:
            pages[path] = Addresses()
            pages[path].feed(path.read_text(encoding="utf-8"))
    for path, page in pages.items():
        for tag, name, address in page.found:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https") or address.startswith("//"):
                if (tag, name) in FETCHED and not (tag == "link" and "canonical" in address):
                    yield f"{path.relative_to(site)} fetches {address}"
            elif not parts.scheme:
                target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                if not target.exists():
                    yield f"{path.relative_to(site)} leads to {address}, which is not there"
                elif (
                    parts.fragment
                    and target in pages
                    and unquote(parts.fragment) not in pages[target].anchors
                ):
                    yield f"{path.relative_to(site)} leads to {address}, and there is no such anchor"


def foreign(site: Path, folder: re.Pattern[str]) -> Iterator[str]:
    """A line for each page that names a folder of the machine that built it."""
    for path in site.rglob("*.html"):
        for named in folder.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)} names {named}, a folder of this machine"


def check(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        site = Path(app.outdir).resolve()
        lines = sorted({*problems(site), *foreign(site, folders(app))})
        if lines:
            raise ExtensionError(
                "\n".join(["the site has links that are broken, or names of folders:", *lines[:40]])
            )


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", check)
    return {"parallel_read_safe": True}
