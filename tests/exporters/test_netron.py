"""Netron opens every exported graph: its own reader in Node for all of the zoo, and the real page in a browser."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.browser import browser, missing
from tests.kit.graphs import LIMITS, META, empty_graph, one_node_graph, training_graph
from tests.kit.onnx_reader import graphs
from tests.kit.traced import NAMES, traced
from torch_vis.exporters.onnx import save, to_onnx
from torch_vis.graph import Metrics
from torch_vis.graph.run import Run

pytest.importorskip("onnx", reason="onnx is not installed")
netron = pytest.importorskip("netron", reason="netron is not installed")

READER = Path(__file__).with_name("netron_reader.mjs")
HAND_MADE = {"empty": empty_graph, "one node": one_node_graph, "training": training_graph}


# ---------------------------------------------------------------- its reader


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Netron's reader finds in the file of each graph."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node on the path to run Netron's JavaScript with")
    scripts, folder = tmp_path_factory.mktemp("netron"), tmp_path_factory.mktemp("files")
    for path in Path(netron.__file__).parent.glob("*.js*"):
        shutil.copy(path, scripts)
    (scripts / "package.json").write_text('{"type": "module"}')
    for name in NAMES:
        t = traced(name)
        save(folder / f"{name}.onnx", t)
    for name, make in HAND_MADE.items():
        save(folder / f"{name}.onnx", Run(make(), Metrics()))
    done = subprocess.run(
        [node, str(READER), str(scripts), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {record["file"].removesuffix(".onnx"): record for record in found}


@pytest.mark.parametrize("name", NAMES)
def test_netron_reads_the_zoo(opened: dict[str, Any], name: str) -> None:
    t, record = traced(name), opened[name]
    assert record["error"] is None
    written = [graph for _, graph in graphs(to_onnx(t))]
    shown = [node for graph in record["graphs"] for node in graph["nodes"]]
    assert sorted(len(graph["nodes"]) for graph in record["graphs"]) == sorted(len(g.node) for g in written)
    operations = {node["name"]: node for node in shown if "phase" in node["metadata"]}
    assert len(operations) == len(t.graph)
    for row in t.graph.nodes:
        node = operations[f"{row.name}_{row.index}"]
        assert node["type"] == row.name
        for value, argument in zip(row.inputs, node["inputs"]):
            (seen,) = argument["values"]
            assert seen["type"].endswith(
                "[" + ",".join("?" if not d else str(d) for d in value.shape) + "]"
            ) or (not value.shape)
            assert seen["weight"] == (value.producer is None and value.role != "input" and bool(value.shape))


@pytest.mark.parametrize("name", HAND_MADE)
def test_netron_reads_small_graphs(opened: dict[str, Any], name: str) -> None:
    assert opened[name]["error"] is None
    operations = [node for graph in opened[name]["graphs"] for node in graph["nodes"] if node["description"]]
    assert len(operations) == len(HAND_MADE[name]())


def test_netron_names_the_inputs_of_an_operation(opened: dict[str, Any]) -> None:
    nodes = [node for graph in opened["bert"]["graphs"] for node in graph["nodes"]]
    norm = next(node for node in nodes if node["type"] == "native_layer_norm")
    assert [argument["name"] for argument in norm["inputs"]] == ["input", "weight", "bias"]
    assert "1e-12" in norm["attributes"] and norm["metadata"]["source"].startswith("transformers/")
    linear = next(node for node in nodes if node["type"] == "Linear")
    assert [argument["name"] for argument in linear["inputs"]][1:] == ["weight", "bias"]


# ---------------------------------------------------------------- the page


@pytest.fixture
def page() -> Iterator[Any]:
    if missing():
        pytest.skip(missing())
    with browser() as driver:
        yield driver


@contextlib.contextmanager
def served(path: Path) -> Iterator[str]:
    """Netron's own server for one file, without its words on the terminal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.redirect_stdout(io.StringIO()):
        address = netron.start(str(path), ("127.0.0.1", port), browse=False)
    try:
        yield f"http://{address[0]}:{address[1]}"
    finally:
        with contextlib.redirect_stdout(io.StringIO()):
            netron.stop(address)


def open_page(page: Any, url: str) -> None:
    """The page with its graph drawn; no questions about cookies, or about the age of this Netron."""
    forget_age = (
        "addEventListener('readystatechange', () => document.querySelector('meta[name=date]')?.remove())"
    )
    page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": f"document.{forget_age}"})
    page.get(f"{url}/favicon.ico")
    page.add_cookie({"name": "consent", "value": "1"})
    page.get(url)
    wait_for(page, "document.body.classList.contains('default') && document.getElementById('canvas')")


def wait_for(page: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 60).until(lambda shown: shown.execute_script(f"return Boolean({condition})"))


def settle(page: Any) -> None:
    """Wait until nothing on the page has moved for half a second."""
    where = "[...document.querySelectorAll('#canvas g, #sidebar')].map((item) => {" + (
        " const box = item.getBoundingClientRect(); return [box.x, box.y, box.width] }).join()"
    )
    before = None
    for _ in range(40):
        time.sleep(0.5)
        now = page.execute_script(f"return {where}")
        if now == before:
            return
        before = now
    raise AssertionError("the page is still moving after 20 seconds")


TITLES = "[...document.querySelectorAll('.node-item-type text')].map((item) => item.textContent)"
# the button that unfolds the box whose body has this name, and the title of the first node of this type
EXPANDER = """[...document.querySelectorAll('.node-item')].find((item) =>
    item.querySelector('title')?.textContent === 'Expand Graph'
    && [...item.parentElement.querySelectorAll('text')].some((text) => text.textContent === {}))"""
TITLE = "[...document.querySelectorAll('.node-item-type')].find((item) => item.textContent.includes({}))"
CLICK = "{}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))"


def test_a_person_can_open_bert_in_a_browser(page: Any, tmp_path: Path) -> None:
    t = traced("bert")
    save(tmp_path / "bert.onnx", t)
    with served(tmp_path / "bert.onnx") as url:
        open_page(page, url)
        titles = page.execute_script(f"return {TITLES}")
        assert {"BertEmbeddings", "BertEncoder", "BertPooler", "BertEncoder backward"} <= set(titles)
        assert "addmm" not in titles
        for body in ("encoder", "layer/0", "intermediate", "dense"):
            wait_for(page, EXPANDER.format(json.dumps(body)))
            page.execute_script(CLICK.format(EXPANDER.format(json.dumps(body))))
            settle(page)
        wait_for(page, f"{TITLES}.includes('addmm')")
        page.execute_script(CLICK.format(TITLE.format("'addmm'")))
        wait_for(page, "document.getElementById('sidebar-content').textContent.includes('Metadata')")
        side = page.execute_script(
            "return [...document.querySelectorAll('#sidebar-content .sidebar-item')].map((item) =>"
            " item.querySelector('input').value + ': ' + item.textContent)"
        )
        text = "\n".join(side)
        assert "phase: forward" in text and "modeling_bert.py" in text and "mat2" in text
        settle(page)
        assert page.save_screenshot(str(tmp_path / "bert.png"))
    assert (tmp_path / "bert.png").stat().st_size > 20_000


@pytest.mark.parametrize("name", HAND_MADE)
def test_small_graphs_open_in_a_browser(page: Any, tmp_path: Path, name: str) -> None:
    save(tmp_path / "run.onnx", Run(HAND_MADE[name](), Metrics(), LIMITS, META))
    with served(tmp_path / "run.onnx") as url:
        open_page(page, url)
        titles = page.execute_script(f"return {TITLES}")
    assert {"empty": not titles, "one node": "relu" in titles, "training": "Linear" in titles}[name]
