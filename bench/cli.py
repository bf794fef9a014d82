"""``torch-vis``: its help beyond the interpreter's start, and what ``run`` adds to steps that are not traced."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from statistics import median, quantiles
from typing import Any

from bench.child import ROOT
from bench.row import Row, at_most, for_information, within
from bench.timing import Side, interleave

LIMIT_S = 0.15
LIMIT = 1.02
SCRIPT = """
import json, sys, time
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
steps, blocks = map(int, sys.argv[1:3])
layer = nn.TransformerEncoderLayer({width}, 4, {wider}, batch_first=True)
model = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn({batch})
took = []
for step in range(steps):
    start = time.process_time()
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
    took.append(time.process_time() - start)
print("took", json.dumps(took))
"""
NAMED = "transformer, 4 blocks"
SIZES: dict[str, dict[str, object]] = {
    NAMED: {"width": 256, "wider": 1024, "batch": "4, 64, 256"},
    "tiny operations only": {"width": 16, "wider": 32, "batch": "1, 4, 16"},
}


def run(quick: bool) -> list[Row]:
    """The help beside an interpreter that does nothing; then a step that ``run`` waits through, and a plain one.

    In one process, so that the difference is not drowned by that of two; for information, whole scripts after the
    traced step is over, when nothing of ours is left in them.
    """
    rows = [_help(5 if quick else 15)]
    for name, size in SIZES.items():
        row = _waiting(name, size, 10 if quick else 40)
        rows.append(row if name == NAMED else for_information(row))
    whole = [_steps(name, size, 2 if quick else 4, quick) for name, size in SIZES.items()]
    return [*rows, *map(for_information, whole)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.path.join(ROOT, "src"), "OMP_NUM_THREADS": "1"}


def _wall(*words: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, env=_environment(), stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def _help(rounds: int) -> Row:
    pairs = [(_wall("-m", "torch_vis", "--help"), _wall("-c", "pass")) for _ in range(rounds + 1)][1:]
    beyond = median(ours - plain for ours, plain in pairs)
    plain = median(pair[1] for pair in pairs)
    return within(
        "torch-vis --help beyond the interpreter", beyond, LIMIT_S, "s", f"python -c pass {plain:.3f} s"
    )


def _waiting(name: str, size: dict[str, object], rounds: int) -> Row:
    """A step with the optimizer's hook and the wrapper of module calls in place, beside one without."""
    import torch

    from torch_vis.cli.script.steps import Span, Wanted, Watch

    torch.set_num_threads(1)
    namespace: dict[str, Any] = {}
    exec(SCRIPT.partition("took = []")[0].format(**size).replace("sys.argv[1:3]", "(1, 4)"), namespace)
    model, optimizer, data = (namespace[key] for key in ("model", "optimizer", "data"))
    never = Span(1 << 60, 1 << 60)
    watches: list[Watch] = []

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    def install() -> None:
        watches.append(Watch(Wanted(never, never), print, print))
        watches[-1].install()

    sides = {
        "plain": Side(step, repeats=5),
        "waiting": Side(step, before=install, after=lambda: watches.pop().remove(), repeats=5),
    }
    samples = interleave(sides, rounds=rounds, warmups=2)
    ours, plain = (f"{samples.median(side) * 1e3:.2f} ms" for side in ("waiting", "plain"))
    figures = samples.ratio("waiting", "plain"), LIMIT, samples.best_ratio("waiting", "plain")
    return at_most(f"torch-vis run, an untraced step: {name}", ours, f"plain {plain}", *figures)


def _steps(name: str, size: dict[str, object], rounds: int, quick: bool) -> Row:
    """Steps from the fourth on, when the traced one is over, and the same steps of the plain script."""
    steps = 15 if quick else 30
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "train.py")
        with open(script, "w") as file:
            file.write(SCRIPT.format(**size))
        traced = ["-m", "torch_vis", "run", "-q", "-o", os.path.join(folder, "t.tvz"), script]
        for turn in range(rounds):
            sides = [(traced, ours), ([script], plain)]
            for words, samples in sides if turn % 2 else sides[::-1]:
                samples.append(_took([*words, str(steps), "4"]))
    ratio = median(a / b for a, b in zip(ours, plain))
    said = f"{median(ours) * 1e3:.2f} ms", f"plain {median(plain) * 1e3:.2f} ms"
    return at_most(f"  and after the traced one: {name}", *said, ratio, LIMIT, min(ours) / min(plain))


def _took(words: list[str]) -> float:
    """The processor time of a step in one run of the script: its lower quartile, which others disturb the least."""
    import json

    command = [sys.executable, *words]
    done = subprocess.run(command, check=True, env=_environment(), capture_output=True, text=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("took "))
    return float(quantiles(json.loads(line[5:])[3:], n=4)[0])
