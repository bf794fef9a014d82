"""The web page as a file: what is in it, on every graph, and that the committed bundle is what the source builds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.graphs import empty_graph, one_node_graph
from tests.kit.traced import NAMES, traced
from torch_vis.graph import Metrics
from torch_vis.graph.schema import COLUMNS
from torch_vis.ops.api_level import api_graph
from torch_vis.views.page import page
from torch_vis.views.page.payload import DERIVED

VIEWER = Path(__file__).parents[3] / "viewer"
BUNDLE = Path(page.__file__).parent
DTYPES = {"u1": "u1", "i1": "i1", "i2": "<i2", "i4": "<i4", "f8": "<f8"}


def read_page(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables and columns of a page, read back as its script reads them."""
    tables = json.loads(re.search(r'id="tables">([^<]*)<', text)[1])  # type: ignore[index]
    names = re.search(r'id="names">([^<]*)<', text)[1]  # type: ignore[index]
    tables["tables"] = json.loads(zlib.decompress(base64.b64decode(names)))
    raw = zlib.decompress(base64.b64decode(re.search(r'id="columns">([^<]*)<', text)[1]))  # type: ignore[index]
    columns, at = {}, 0
    for name, code, difference, length in tables["directory"]:
        size = np.dtype(DTYPES[code]).itemsize
        planes = np.frombuffer(raw, np.uint8, size * length, at).reshape(size, length)
        column = np.ascontiguousarray(planes.T).view(DTYPES[code]).ravel()
        columns[name] = np.cumsum(column.astype(np.int64)) if difference else column
        at += size * length
    assert at == len(raw)
    return tables, columns


def page_of(t: tv.Trace, folder: Path) -> str:
    t.save(folder / "run.html")
    return (folder / "run.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_column_of_the_zoo_is_in_the_page(name: str, tmp_path: Path) -> None:
    t = traced(name)
    graph = api_graph(t.graph)
    tables, columns = read_page(page_of(t, tmp_path))
    for column in COLUMNS:
        if column not in DERIVED:
            np.testing.assert_array_equal(columns[column], getattr(graph, column), err_msg=column)
    for metric in t.metrics.values():
        # along scopes, calls of functions come after those of the graph
        count = len(metric.values)
        np.testing.assert_array_equal(columns[f"metric:{metric.name}"][:count], metric.values)
        if metric.known is not None:
            np.testing.assert_array_equal(columns[f"known:{metric.name}"][:count].astype(bool), metric.known)
    assert len(tables["tables"]["calls"]) == len(t.graph.calls) and tables["limits"] == list(t.limits)
    memory = t.memory()
    assert tables["uses"] == list(memory.timeline)
    for number, alive in enumerate(memory.timeline.values()):
        np.testing.assert_array_equal(columns[f"use:{number}"], alive, err_msg=tables["uses"][number])
    uses = [
        tables["uses"][use]
        for use, value in zip(columns["storage_use"], columns["storage_value"])
        if value >= 0
    ]
    assert uses == [tensor.use for tensor in memory.lifetimes]


@pytest.mark.parametrize("graph", [empty_graph(), one_node_graph()], ids=["empty", "one node"])
def test_smallest_graphs(graph: tv.Graph, tmp_path: Path) -> None:
    _, columns = read_page(page_of(tv.Trace(graph, Metrics()), tmp_path))
    assert len(columns["node_call"]) == len(graph)


def test_the_page_brings_the_source_lines_that_operations_came_from(tmp_path: Path) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return x * 3  # the line that the page must show

    tables, _ = read_page(page_of(tv.trace(body, torch.ones(2)), tmp_path))
    lines = tables["tables"]["sources"][__file__]
    assert any("the line that the page must show" in text for text in lines.values())
    assert len(lines) < 40


def test_nothing_of_the_program_can_be_markup(tmp_path: Path) -> None:
    odd = type("</script><img src=x onerror=alert(1)>", (nn.Tanh,), {})()
    text = page_of(tv.trace(odd, torch.ones(2)), tmp_path)
    assert "<img" not in text and "</script><" not in text.replace("</script>\n", "")
    tables, _ = read_page(text)
    assert any("onerror" in type_ for _, type_, _ in tables["tables"]["modules"])


def test_the_policy_lets_in_this_script_and_style_only(tmp_path: Path) -> None:
    text = page_of(tv.trace(nn.ReLU(), torch.ones(2)), tmp_path)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]  # type: ignore[index]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy and "http" not in policy
    for tag in ("script", "style"):
        inline = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert len(inline) == 1
        digest = base64.b64encode(hashlib.sha256(inline[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)


def test_the_bundle_is_small() -> None:
    # the page of one run, and what that of several ranks has besides
    assert sum((BUNDLE / name).stat().st_size for name in ("viewer.js", "viewer.css")) < 300_000
    assert sum((BUNDLE / name).stat().st_size for name in ("world.js", "world.css")) < 60_000


needs_source = pytest.mark.skipif(not VIEWER.is_dir(), reason="the viewer's source is not here")


@needs_source
def test_the_bundle_says_which_source_it_was_built_from() -> None:
    digest = hashlib.sha256()
    for path in in_order(VIEWER / "src"):
        digest.update(path.read_bytes())
    for name in ("viewer.js", "world.js"):
        built = (BUNDLE / name).read_text().partition("*/")[0]
        assert digest.hexdigest() in built, (
            "viewer/src has changed since the bundle was built; run: make viewer"
        )


def in_order(folder: Path) -> list[Path]:
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        found.extend(in_order(path) if path.is_dir() else [path])
    return found


can_build = shutil.which("node") is not None and (VIEWER / "node_modules" / "esbuild").is_dir()


@needs_source
@pytest.mark.skipif(not can_build, reason="node or its packages are not installed; run: make viewer")
def test_the_bundle_is_what_the_source_builds(tmp_path: Path) -> None:
    shutil.copytree(
        VIEWER, tmp_path / "viewer", symlinks=True, ignore=shutil.ignore_patterns("node_modules", ".*")
    )
    (tmp_path / "viewer" / "node_modules").symlink_to(VIEWER / "node_modules")
    target = tmp_path / "src" / "torch_vis" / "views" / "page"
    target.mkdir(parents=True)
    subprocess.run(
        ["node", "build.mjs"], cwd=tmp_path / "viewer", check=True, capture_output=True, timeout=120
    )
    for name in ("viewer.js", "viewer.css", "world.js", "world.css"):
        assert (target / name).read_bytes() == (BUNDLE / name).read_bytes(), "run: make viewer"


@needs_source
@pytest.mark.skipif(not can_build, reason="node or its packages are not installed; run: make viewer")
def test_the_viewer_passes_its_own_tests() -> None:
    done = subprocess.run(
        ["npm", "test", "--silent"], cwd=VIEWER, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
