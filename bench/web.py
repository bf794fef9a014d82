"""The web page: how long it takes to write, to open and to expand, and how it compares with plain SVG and dagre."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import torch_vis as tv
from bench import models
from bench.row import Row, at_least, at_most, for_information, within
from tests.kit.browser import browser, missing
from tests.zoo import ZOO

VIEWER = Path(__file__).parents[1] / "viewer"
FRAMES = 24
CROSSED = ("resnet50", "bert", "unet", "detr")

# Draw so many frames, each moved a little, and give the median time between two of them.
MOVE = """
const [frames, done] = arguments, step = (i) => { %s }, times = [];
let last = performance.now(), i = 0;
const next = () => { const now = performance.now(); if (i > 3) times.push(now - last); last = now;
  if (i++ === frames) return done(times.sort((a, b) => a - b)[times.length >> 1]);
  step(i); requestAnimationFrame(next); };
requestAnimationFrame(next);
"""
# Note how long each piece of work keeps the page from answering.
WATCH = """
window.__long = [];
new PerformanceObserver((list) => window.__long.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({type: 'longtask', buffered: true});
"""
EXPAND = """
const done = arguments[0], P = torchVis;
(async () => { const started = performance.now(); %s; P.camera(P.camera()); done(performance.now() - started); })();
"""


def run(quick: bool) -> list[Row]:
    """Files, and where a browser is there what they do in it."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        return _rows(Path(folder), quick)


def _rows(folder: Path, quick: bool) -> list[Row]:
    rows: list[Row] = []
    bert, ids = models.bert(1, 128)
    trace = tv.trace(bert, ids, backward=True, hold=False)
    rows.append(
        within(
            "page of BERT-base, forward and backward: write", _write(trace, folder / "bert.html"), 0.5, "s"
        )
    )
    rows.append(within("the same: size", (folder / "bert.html").stat().st_size / 1e3, 350, "KB"))
    long = llama(4 if quick else 60, layers=23)
    taken = _write(long, folder / "llama.html", rounds=1)
    what = f"page of {len(long.graph):,} operations, Llama generation"
    rows.append(for_information(within(f"{what}: write", taken, 2, "s")))
    rows.append(within(f"{what}: size", (folder / "llama.html").stat().st_size / 1e6, 12, "MB"))
    group(1, 1000).save(folder / "group.html")
    group(25, 200).save(folder / "many.html")
    steps = 40 if quick else 3300  # of about 307 operations each: more than a million
    huge = tv.trace(models.training_loop(), steps, hold=False)
    rows.append(
        for_information(
            within(
                f"page of {len(huge.graph):,} operations: write",
                _write(huge, folder / "huge.html", rounds=0),
                30,
                "s",
            )
        )
    )
    if missing():
        print(f"  not measured in a browser: {missing()}")
    else:
        rows += _in_browser(
            folder, f"{what}: open until drawn", f"{len(huge.graph):,} operations: open until drawn"
        )
    return rows + _crossings(folder)


def _in_browser(folder: Path, llama_row: str, huge_row: str) -> list[Row]:
    rows = []
    with browser() as driver:

        def opened(name: str) -> float:
            return _open(driver, folder / name)

        rows.append(
            within(
                "BERT-base: open until drawn", median(opened("bert.html") for _ in range(5)) / 1e3, 0.5, "s"
            )
        )
        rows.append(within(llama_row, median(opened("llama.html") for _ in range(3)) / 1e3, 2, "s"))
        rows.append(
            within(
                "expand a group of 1,000 operations", _expand(driver, folder / "group.html", ONE), 50, "ms"
            )
        )
        rows.append(
            within(
                "expand everything in 5,000 operations",
                _expand(driver, folder / "many.html", ALL) / 1e3,
                0.5,
                "s",
            )
        )
        rows.append(_pan(driver, folder))
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
        rows.append(within(huge_row, opened("huge.html") / 1e3, 15, "s"))
        longest = driver.execute_script("return Math.max(0, ...window.__long)")
        rows.append(within("the same: longest time without an answer", longest / 1e3, 1, "s"))
    return rows


ONE = (
    "const outer = P.boxes().find(b => b.operations >= 900);"
    "await P.open((P.boxes().find(b => b.operations >= 900 && b.parent === outer.id) ?? outer).id, 'all')"
)
ALL = "await P.openAll()"


def _open(driver: Any, path: Path) -> float:
    """Milliseconds from the start of the navigation until the graph is on the canvas."""
    driver.get("about:blank")
    driver.set_page_load_timeout(120)
    driver.get(path.as_uri())
    return float(_until(driver, "return window.torchVis?.isReady && torchVis.timings().drawnMs"))


def _until(driver: Any, code: str) -> Any:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = driver.execute_script(code)
        if found:
            return found
        time.sleep(0.02)
    raise RuntimeError(f"not seen: {code}")


def _expand(driver: Any, path: Path, code: str) -> float:
    taken = []
    for _ in range(5):
        _open(driver, path)
        driver.execute_script("return torchVis.closeAll()")
        if code == ONE:
            driver.execute_script(
                "return torchVis.open(torchVis.boxes().find(b => b.operations >= 900).id, 'all')"
            )
        taken.append(float(driver.execute_async_script(EXPAND % code)))
    return median(taken)


def _pan(driver: Any, folder: Path) -> Row:
    """A frame of the canvas, all boxes in view, against one of the SVG of the same."""
    _open(driver, folder / "many.html")
    driver.execute_async_script(EXPAND % (ALL + "; P.fit()"))
    visible = driver.execute_script("return torchVis.timings().paintedBoxes")
    svg = driver.execute_script("return torchVis.svg()")
    ours_step = "const c = torchVis.camera(); torchVis.camera({...c, x: c.x + (i % 2 ? 7 : -7)})"
    ours = float(driver.execute_async_script(MOVE % ours_step, FRAMES))
    plain = folder / "plain.html"
    plain.write_text(
        f"<!doctype html><meta charset=utf-8><body style='margin:0;overflow:hidden'>{svg}", encoding="utf-8"
    )
    driver.get(plain.as_uri())
    driver.execute_script(
        "const s = document.querySelector('svg');"
        "s.setAttribute('width', innerWidth); s.setAttribute('height', innerHeight)"
    )
    their_step = (
        "const s = document.querySelector('svg'), b = s.viewBox.baseVal;"
        "s.setAttribute('viewBox', [b.x + (i % 2 ? 40 : -40), b.y, b.width, b.height].join(' '))"
    )
    theirs = float(driver.execute_async_script(MOVE % their_step, FRAMES))
    ratio = theirs / ours
    return at_least(
        f"move at {visible:,} visible boxes, a frame",
        f"{ours:.1f} ms",
        f"plain SVG {theirs:.1f} ms",
        ratio,
        4,
    )


def _write(trace: tv.Trace, path: Path, rounds: int = 3) -> float:
    """The median of several; the first is not counted, since it works out the costs."""
    taken = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        trace.save(path)
        taken.append(time.perf_counter() - started)
    return median(taken[1:] or taken)


def _crossings(folder: Path) -> list[Row]:
    if shutil.which("node") is None or not (VIEWER / "node_modules" / "@dagrejs").is_dir():
        print("  crossings not measured: node or dagre is not installed; run: make viewer")
        return []
    subprocess.run(["node", "build.mjs", "--bench"], cwd=VIEWER, check=True, capture_output=True)
    rows = []
    for name in CROSSED:
        model, args, kwargs = ZOO[name].make()
        with torch.no_grad():
            tv.trace(model, *args, kwargs=kwargs, hold=False).save(folder / f"{name}.html")
        found = _counted(folder / f"{name}.html")
        for kind, label in (("", "as the page draws it"), ("flat_", "every operation in one frame")):
            ours, theirs = found[f"{kind}ours"], found[f"{kind}dagre"]
            both = [
                f"{found[f'{kind}{who}']} in {found[f'{kind}{who}_ms']:.0f} ms" for who in ("ours", "dagre")
            ]
            row = at_most(
                f"crossings in {name}, {label}", both[0], f"dagre {both[1]}", (ours + 1) / (theirs + 1), 1
            )
            rows.append(for_information(row) if kind else row)
    return rows


def _counted(path: Path) -> dict[str, Any]:
    command = ["node", ".bench/crossings.mjs", str(path)]
    done = subprocess.run(command, cwd=VIEWER, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def llama(tokens: int, *, layers: int) -> tv.Trace:
    """Tokens generated one by one by a narrow Llama."""
    models.declare_torchvision_ops()
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, vocab_size=1000, **sizes)).eval()
    with torch.no_grad(), tv.record(model, hold=False) as trace:
        model.generate(torch.randint(0, 1000, (1, 8)), max_new_tokens=tokens, do_sample=False)
    return trace


class Tangle(torch.nn.Module):
    """So many operations in no order that repeats, each of two earlier results."""

    def __init__(self, operations: int, seed: int) -> None:
        super().__init__()
        choose = random.Random(seed)
        acts: Sequence[Callable[..., torch.Tensor]] = (
            torch.add,
            torch.mul,
            torch.sub,
            torch.maximum,
            torch.minimum,
        )
        self.plan = [
            (choose.choice(acts), *(max(0, place - choose.randint(0, 12)) for _ in "ab"))
            for place in range(operations)
        ]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for act, one, two in self.plan:
            made.append(act(made[one], made[two]))
        return made[-1]


def group(modules: int, operations: int) -> tv.Trace:
    """Modules of so many operations each, one after another."""
    model = torch.nn.Sequential(*(Tangle(operations, seed) for seed in range(modules)))
    with torch.no_grad():
        return tv.trace(model, torch.ones(4), hold=False)
