"""The explorer: 100,000 modules on the screen, the answer to a key, and what recording statistics adds to a forward."""

from __future__ import annotations

import asyncio
import gc
from statistics import median
from typing import Any

import torch
from textual.events import Key

from bench import models
from bench.child import ROOT
from bench.row import Row, at_most, for_information, within
from bench.timing import Side, cpu, interleave
from torch_vis.interfaces.explorer.explorer import explorer, record_torch_module_forward_stats

MODULES = 100_000
SIZE = (170, 50)
KEYS = ("j", "pagedown", "k", "end", "home", "l", "enter")
FILTER = "block.*4.*linear"


def run(quick: bool) -> list[Row]:
    """The first screen, a key, a letter of the filter, and BERT-base under the recording of statistics."""
    torch.set_num_threads(1)
    rows = asyncio.run(_big_model(3 if quick else 9))
    rows.insert(1, _in_a_terminal(2 if quick else 5))
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
            for number, letter in enumerate(FILTER, 1):
                typing.append(await _redraw(app, pilot, letter))
                start = cpu()
                while app.filtered != FILTER[:number]:  # or one letter's work would be counted with the next
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


CHILD = """
import time
import torch
from bench.explorer import big_model
model = big_model()
import torch_vis as tv
print(f"<{time.monotonic()}>", flush=True)
tv.explore_model(model)
"""


def _in_a_terminal(rounds: int) -> Row:
    """The same by the clock on the wall, in a process of its own on a terminal, with Textual imported on the way."""
    took = [_until_shown() for _ in range(rounds)]
    note = f"best of {rounds} {min(took):.2f} s; by the clock, so others on this machine count"
    return for_information(within("  in a terminal, from the call on", median(took), 1.0, "s", note))


def _until_shown() -> float:
    import fcntl
    import os
    import pty
    import re
    import struct
    import subprocess
    import sys
    import termios
    import time

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    paths = os.pathsep.join([os.path.join(ROOT, "src"), ROOT])
    environment = {**os.environ, "PYTHONPATH": paths, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen = b""
    while b"quit" not in seen:
        seen += os.read(ours, 1 << 16)
    shown = time.monotonic()
    os.write(ours, b"q")
    try:
        while os.read(ours, 1 << 16):
            pass
    except OSError:
        pass  # the other end is closed: it has quit
    process.wait(timeout=60)
    os.close(ours)
    began = re.search(rb"<([\d.]+)>", seen)
    assert began is not None, seen[:2000]
    return shown - float(began[1])


async def _redraw(app: Any, pilot: Any, key: str) -> float:
    """The seconds from a key until the screen has answered it."""
    name = {"*": "asterisk", ".": "full_stop"}.get(key, key)
    start, handled = cpu(), asyncio.Event()
    app.post_message(Key(name, key if len(key) == 1 else None))  # with the letter, which an Input takes it by
    app.call_later(
        lambda: (app.focused or app.screen).call_later(handled.set)
    )  # behind the key, in both queues
    await handled.wait()
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
