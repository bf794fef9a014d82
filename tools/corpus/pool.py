"""Running each case in a process forked from a warmed parent, so that a crash or a hang costs that case alone."""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from tools.corpus.child import load_group, run_case
from tools.corpus.subject import Result


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many cases run at once, and what one may use."""

    jobs: int = 2
    timeout_s: float = 60.0
    memory_bytes: int = 8 << 30
    eager_only: bool = False
    check: bool = True


@dataclass(kw_only=True)
class Running:
    """A case under way: its process, the pipe it reports through and what it has said so far."""

    group: str
    name: str
    pid: int
    pipe: int
    started: float
    heard: bytes = b""
    phase: str = "build"
    result: Result | None = field(default=None)


def run_all(cases: list[tuple[str, str]], limits: Limits) -> Iterator[Running | Result]:
    """Yield each case as it starts and its result as it ends; closing the iterator kills what still runs."""
    threads = torch.get_num_threads()
    _warm_up({group for group, _ in cases})
    waiting, under_way = list(reversed(cases)), {}
    try:
        while waiting or under_way:
            while waiting and len(under_way) < limits.jobs:
                running = _start(*waiting.pop(), limits)
                under_way[running.pipe] = running
                yield running
            ready, _, _ = select.select(list(under_way), [], [], 0.2)
            for pipe in ready:
                if not _listen(under_way[pipe]):
                    yield _finish(under_way.pop(pipe), limits)
            for running in list(under_way.values()):
                if time.monotonic() - running.started > limits.timeout_s:
                    _kill(running)
                    yield _finish(under_way.pop(running.pipe), limits, timed_out=True)
    finally:
        for running in under_way.values():
            _kill(running)
            _finish(running, limits)
        torch.set_num_threads(threads)
        gc.unfreeze()


def _warm_up(groups: set[str]) -> None:
    torch.set_num_threads(1)  # a pool of OpenMP threads does not survive a fork
    for group in sorted(groups):
        load_group(group).prepare()
    gc.collect()
    gc.freeze()


def _start(group: str, name: str, limits: Limits) -> Running:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child(group, name, writer, limits)
    os.close(writer)
    return Running(group=group, name=name, pid=pid, pipe=reader, started=time.monotonic())


def _child(group: str, name: str, writer: int, limits: Limits) -> None:
    """Run one case and leave; never returns."""
    try:
        os.setpgid(0, 0)  # so that its own children die with it, and Ctrl-C reaches the parent only
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)

        def announce(phase: str) -> None:
            os.write(writer, json.dumps({"phase": phase}).encode() + b"\n")

        result = run_case(group, name, eager_only=limits.eager_only, check=limits.check, announce=announce)
        _write_all(writer, json.dumps({"result": result._asdict()}).encode() + b"\n")
    finally:
        os._exit(0)


def _write_all(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]


def _listen(running: Running) -> bool:
    """Take in what the case said; False when it has hung up."""
    data = os.read(running.pipe, 1 << 16)
    *lines, running.heard = (running.heard + data).split(b"\n")
    for line in lines:
        message = json.loads(line)
        running.phase = message.get("phase", running.phase)
        if "result" in message:
            running.result = Result(**message["result"])
    return bool(data)


def _kill(running: Running) -> None:
    for end in (os.killpg, os.kill):  # the group may not exist yet
        try:
            end(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _finish(running: Running, limits: Limits, *, timed_out: bool = False) -> Result:
    """Collect the ended process; one that left no result crashed in the phase it had reached."""
    os.close(running.pipe)
    if running.result is not None:
        _kill(running)
    _, status = os.waitpid(running.pid, 0)
    if running.result is not None:
        return running.result
    if timed_out:
        cause = f"TimeLimit: more than {limits.timeout_s:g} s in {running.phase}"
    elif os.WIFSIGNALED(status):
        cause = f"Crash: {signal.Signals(os.WTERMSIG(status)).name} in {running.phase}"
    else:
        cause = f"Crash: the process left without a result in {running.phase}"
    kind = "failed" if running.phase in ("trace", "check") else "not eager"
    seconds = round(time.monotonic() - running.started, 3)
    return Result(running.group, running.name, kind, running.phase, cause, "", seconds, 0, 0)
