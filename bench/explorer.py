"""The explorer: 100,000 modules on the screen, the answer to a key, and what recording statistics adds to a forward."""

from __future__ import annotations

import asyncio
import gc
from statistics import median
from typing import Any

import torch

from bench import models
from bench.row import Row, at_most, within
from bench.timing import Side, cpu, interleave
from torch_vis.frontends.explorer import explorer, record_torch_module_forward_stats

MODULES = 100_000
SIZE = (170, 50)
KEYS = ("j", "pagedown", "k", "end", "home", "l", "enter")
FILTER = "block.*4.*linear"


def run(quick: bool) -> list[Row]:
    """The first screen, a key, a letter of the filter, and BERT-base under the recording of statistics."""
    torch.set_num_threads(1)
    rows = asyncio.run(_big_model(3 if quick else 9))
    return [*rows, _recording(3 if quick else 9, *((1, 16) if quick else (2, 128)))]


def big_model(modules: int = MODULES) -> torch.nn.Module:
    """Blocks of small layers, some hundred in each: about as many modules as asked for, with weights."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(_block() for _ in range(modules // 100)),
    )


def _block() -> torch.nn.Module:
    block = torch.nn.Module()
    for number in range(33):
        part = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        block.add_module(f"block{number}", part)
    return block


async def _big_model(rounds: int) -> list[Row]:
    model = big_model()
    count = sum(1 for _ in model.modules())
    opening, keys, typing, searching = [], [], [], []
    for _ in range(rounds):
        gc.collect()
        start = cpu()
        app = explorer(model)
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause()
            opening.append(cpu() - start)
            app.action_everything(True)
            await pilot.pause()
            for key in KEYS:
                keys.append(await _redraw(app, pilot, key))
            app.action_filter()
            await pilot.pause()
            for letter in FILTER:
                typing.append(await _redraw(app, pilot, letter))
                start = cpu()
                while any(one.group == "filter" and not one.is_finished for one in app.workers):
                    await asyncio.sleep(0)
                app.screen._compositor.render_strips()
                searching.append(typing[-1] + cpu() - start)
    note = f"{count:,} modules, all open, {SIZE[0]}×{SIZE[1]}"
    return [
        within("first screen, from the call on", median(opening), 1.0, "s", note),
        within("key to redraw, median", median(keys) * 1e3, 50, "ms", note),
        within("key to redraw, slowest", max(keys) * 1e3, 50, "ms", note),
        within("a letter in the live filter, to its rows, median", median(searching) * 1e3, 100, "ms", note),
        within("a letter in the live filter, slowest", max(searching) * 1e3, 100, "ms", note),
    ]


async def _redraw(app: Any, pilot: Any, key: str) -> float:
    """The seconds from a key until the screen has answered it."""
    name = {"*": "asterisk", ".": "full_stop"}.get(key, key)
    start = cpu()
    app.simulate_key(name)
    await pilot._wait_for_screen()
    app.screen._compositor.render_strips()
    return cpu() - start


def _recording(rounds: int, batch: int, tokens: int) -> Row:
    """BERT-base forward under the recording of statistics, against the plain forward, in turns."""
    model, ids = models.bert(batch, tokens)
    model.eval()

    def plain() -> Any:
        with torch.no_grad():
            return model(ids)

    def recorded() -> Any:
        with torch.no_grad(), record_torch_module_forward_stats(model):
            return model(ids)

    samples = interleave({"plain": Side(plain), "recorded": Side(recorded)}, rounds=rounds)
    texts = f"{samples.median('recorded') * 1e3:.0f} ms", f"plain {samples.median('plain') * 1e3:.0f} ms"
    ratio, best = samples.ratio("recorded", "plain"), samples.best_ratio("recorded", "plain")
    return at_most(f"recording statistics, BERT-base forward, {batch}×{tokens}", *texts, ratio, 1.2, best)
