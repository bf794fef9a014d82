"""``python -m bench.after_profiling``: how fast steps on a GPU are after a profile of the same process, and what helps.

Each way of profiling has a process of its own, which times the same training step before and after it. The columns:
the step before and after, their ratio; one small operation's launch and one large kernel before and after; how long the
way took; and how many kernels three profiles in the usual way saw afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch.autograd import profiler

import torch_vis as tv
from bench.child import LAST_LINE, ROOT

BLOCKS = 3
TEARDOWN, LAZY = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
LIMIT_S = 60


def main() -> int:
    """Print a row for each way."""
    if not torch.cuda.is_available():
        sys.exit("bench.after_profiling needs a GPU")
    print(
        f"{'way':24}{'before ms':>10}{'after':>8}{'ratio':>7}{'later':>8}{'add µs':>8}{'after':>7}"
        f"{'matmul µs':>11}{'after':>8}{'took ms':>9}  kernels"
    )
    for way in WAYS:
        print(_row(way), flush=True)
    return 0


def _row(way: str) -> str:
    paths = os.pathsep.join([ROOT, os.path.join(ROOT, "src")])
    command = [sys.executable, "-W", "ignore", "-c", LAST_LINE, "bench.after_profiling", "measure"]
    try:
        done = subprocess.run(
            [*command, json.dumps({"way": way})],
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"{way:24}did not end within {LIMIT_S} s"
    if done.returncode:
        return (
            f"{way:24}ended with {done.returncode}: {' / '.join(done.stderr.strip().splitlines()[-3:])[:300]}"
        )
    row = json.loads(done.stdout.splitlines()[-1])
    before, after = row["step"]
    text = f"{way:24}{before:10.2f}{after:8.2f}{after / before:7.2f}{row['later']:8.2f}"
    text += "{:8.2f}{:7.2f}".format(*row["add"]) + "{:11.1f}{:8.1f}".format(*row["matmul"])
    text += f"{row['end']:9.1f}  {row['kernels']}"
    return text + (f"  {row['note']}" if row["note"] else "")


def measure(way: str) -> dict[str, Any]:
    """Time the step, profile in that way, and time it again."""
    step = _step()
    x, m = torch.zeros(4, device="cuda"), torch.randn(4096, 4096, device="cuda")
    for _ in range(8):
        step()
    graph, held = _graph()
    figures: dict[str, Any] = {
        "step": [_times(step)],
        "add": [_launch(x)],
        "matmul": [_kernel(m)],
        "note": "",
    }
    start = time.perf_counter()
    figures["note"] = WAYS[way](step) or ""
    figures["end"] = (time.perf_counter() - start) * 1e3
    torch.cuda.synchronize()
    figures["step"].append(_times(step))
    figures["add"].append(_launch(x))
    figures["matmul"].append(_kernel(m))
    time.sleep(0.5)
    figures["later"] = _times(step)
    # whether the usual profilers and captured graphs still work afterwards
    held.zero_()
    graph.replay()
    torch.cuda.synchronize()
    figures["kernels"] = [_count(step), _count_public(step), _count(step)]
    graph.replay()
    torch.cuda.synchronize()
    if held[0].item() != 2:
        figures["note"] += " the captured graph is wrong afterwards"
    return figures


def _step() -> Callable[[], None]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    x = torch.randn(8, 128, 768, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return step


def _graph() -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    held, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held.add_(1)
    return graph, held


def _times(step: Callable[[], None]) -> float:
    spent = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    return median(spent) * 1e3


def _launch(x: torch.Tensor) -> float:
    spent = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            x.add_(1)
        spent.append((time.perf_counter() - start) / 200)
    return median(spent) * 1e6


def _kernel(m: torch.Tensor) -> float:
    spent = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        m @ m
        end.record()
        torch.cuda.synchronize()
        spent.append(begin.elapsed_time(end))
    return median(spent) * 1e3


def _count(step: Callable[[], None]) -> int:
    """How many kernels a profile sees."""
    with profiler.profile(use_kineto=True, use_device="cuda") as run:
        step()
        torch.cuda.synchronize()
    return _kernels(run)


def _kernels(run: Any) -> int:
    cpu = torch._C._autograd.DeviceType.CPU
    return sum(event.device_type() != cpu for event in run.kineto_results.events())


def _count_public(step: Callable[[], None]) -> int:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as run:
        step()
        torch.cuda.synchronize()
    return _kernels(run.profiler)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wake() -> None:
    """Calls of the runtime, in one of which the library detaches."""
    for _ in range(20):
        torch.ones(8, device="cuda").add_(1)
        torch.cuda.synchronize()
        time.sleep(0.001)


# ---------------------------------------------------------------- ways


def nothing(step: Callable[[], None]) -> str:
    """The control: no profile."""
    return ""


def on_host(step: Callable[[], None]) -> str:
    """Operations alone."""
    for _ in range(BLOCKS):
        with profiler.profile(use_kineto=True):
            step()
            torch.cuda.synchronize()
    return ""


def on_device(step: Callable[[], None]) -> str:
    """Kernels too."""
    return f"saw {[_count(step) for _ in range(BLOCKS)]}"


def torn_down_always(step: Callable[[], None]) -> str:
    """The library detaches after each block."""
    seen = []
    with _environment(**{TEARDOWN: "1"}):
        for _ in range(BLOCKS):
            seen.append(_count(step))
            _wake()
    return f"saw {seen}"


def torn_down_stays(step: Callable[[], None]) -> str:
    """The same, with the variable left in the environment."""
    os.environ[TEARDOWN] = "1"
    seen = []
    for _ in range(BLOCKS):
        seen.append(_count(step))
        _wake()
    return f"saw {seen}"


def torn_down_last(step: Callable[[], None]) -> str:
    """It detaches after the last block only, and twice over."""
    seen = []
    for _ in range(2):
        for block in range(BLOCKS):
            with _environment(**{TEARDOWN: "1"}):
                run = profiler.profile(use_kineto=True, use_device="cuda")
                run.__enter__()
            step()
            torch.cuda.synchronize()
            with _environment(**{TEARDOWN: "1"}) if block == BLOCKS - 1 else contextlib.nullcontext():
                run.__exit__(None, None, None)
                if block == BLOCKS - 1:
                    _wake()
            seen.append(_kernels(run))
    return f"saw {seen}"


def torn_down_eagerly(step: Callable[[], None]) -> str:
    """It detaches and attaches again at once."""
    seen = []
    with _environment(**{TEARDOWN: "1", LAZY: "1"}):
        for _ in range(BLOCKS):
            seen.append(_count(step))
            _wake()
    return f"saw {seen}"


def torn_down_by_empty_block(step: Callable[[], None]) -> str:
    """The usual blocks, and then an empty one that detaches."""
    seen = [_count(step) for _ in range(BLOCKS)]
    with _environment(**{TEARDOWN: "1"}):
        with profiler.profile(use_kineto=True, use_device="cuda"):
            pass
        _wake()
    return f"saw {seen}"


def finalized(step: Callable[[], None]) -> str:
    """cuptiFinalize by hand."""
    seen = [_count(step) for _ in range(BLOCKS)]
    torch.cuda.synchronize()
    with open("/proc/self/maps") as maps:
        paths = sorted({line.split()[-1] for line in maps if "libcupti" in line})
    if not paths:
        return "libcupti is not loaded as a library of its own"
    code = ctypes.CDLL(paths[0]).cuptiFinalize()
    return f"saw {seen}, cuptiFinalize answered {code}"


def emptied(step: Callable[[], None]) -> str:
    """The cache of the allocator emptied, no profile."""
    torch.cuda.empty_cache()
    return ""


def traced(step: Callable[[], None]) -> str:
    """tv.trace without repeat."""
    tv.trace(step)
    return ""


def repeated(step: Callable[[], None]) -> str:
    """tv.trace with repeat: the time that it says, too."""
    t = tv.trace(step, repeat=3)
    return f"time() says {t.meta['plain_wall_ns'] / 1e6:.2f} ms"


def repeated_torn_down(step: Callable[[], None]) -> str:
    """The same in an environment that asks the library to detach."""
    with _environment(**{TEARDOWN: "1"}):
        text = repeated(step)
        _wake()
    return text


def measured(step: Callable[[], None]) -> str:
    """tv.measure_memory, which records the allocator's history."""
    tv.measure_memory(step)
    return ""


WAYS: dict[str, Callable[[Callable[[], None]], str]] = {
    function.__name__: function
    for function in (
        nothing,
        on_host,
        on_device,
        torn_down_always,
        torn_down_stays,
        torn_down_last,
        torn_down_eagerly,
        torn_down_by_empty_block,
        finalized,
        emptied,
        traced,
        repeated,
        repeated_torn_down,
        measured,
    )
}

if __name__ == "__main__":
    sys.exit(main())
