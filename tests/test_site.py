"""The documentation site: built whole, every guide run, a warning an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# made when the site is built
WRITTEN = ("reference", "gallery_pages")


def test_the_site_builds_with_every_guide_run(tmp_path: Path) -> None:
    """As `make docs` does it, in a folder of its own; what it leaves can be read without a network."""
    for name in ("sphinx", "furo", "myst_nb", "ipykernel"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns(*WRITTEN))
    for page in ROOT.glob("*.md"):
        shutil.copy(page, tmp_path)
    # guides call `torch-vis` by its name
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "docs", "site"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    site = tmp_path / "site"
    assert (site / "reference" / "reports.html").stat().st_size > 100_000
    assert (site / "searchindex.js").stat().st_size > 100_000
    pages = [page.read_text(encoding="utf-8") for page in (site / "guides").glob("*.html")]
    assert sum("cell_output" in page for page in pages) >= 12, "guides show what their cells gave"
    # what a page loads (not what it links to) lies beside it
    for page in site.rglob("*.html"):
        if "gallery_pages" not in page.parts:
            loaded = re.findall(
                r"<(?:script|img|link)[^>]+(?:src|href)=.(https?:)", page.read_text(encoding="utf-8")
            )
            assert not loaded, page
