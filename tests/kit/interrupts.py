"""Interrupts: every context of ours entered, run and left, an exception raised at a chosen point, and what is left.

``inject`` raises at one line of ours, for every line in turn; ``Interrupter`` sends real signals at random times.
"""

from __future__ import annotations

import ast
import dis
import gc
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.utils import _foreach_utils
from torch.utils import _python_dispatch as dispatch

import torch_vis as tv
from tests.kit.scenes import ATTENDING, INPUT, MODEL, Scene
from tests.kit.side_effects import HOOKS, hook_names, torch_globals
from torch_vis.capture import undo

OURS = os.path.dirname(tv.__file__) + os.sep
FLAGS = [name for name in vars(dispatch) if name.startswith("_is_in_")]
# the files whose every turn counts
CONTEXTS = ("capture/undo.py", "capture/modes.py")


def process_state() -> dict[str, Any]:
    """All that an interrupted context could leave changed in torch, in Python and in the model."""
    state = torch_globals()
    state["running"] = len(sys._current_frames())
    state["recursion limit"] = sys.getrecursionlimit()
    state["flags of modes"] = {name: getattr(dispatch, name) for name in FLAGS}
    state["threads start"] = threading.Thread.start
    state["foreach"] = list(_foreach_utils._foreach_supported_types)
    state["fast path"] = torch.backends.mha.get_fastpath_enabled()
    loggers = [
        (name, logger)
        for name, logger in list(logging.root.manager.loggerDict.items())
        if name.startswith("torch") and isinstance(logger, logging.Logger)
    ]
    # torch loads more loggers as it goes; those without a filter do not count
    state["log filters"] = [
        (name, filters)
        for name, logger in loggers
        if (filters := len(logger.filters) + sum(len(handler.filters) for handler in logger.handlers))
    ]
    state["streams"] = [sys.stdout, sys.stderr]
    state["unraisable"] = sys.unraisablehook
    state["signals"] = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    parts = [*MODEL.modules(), *ATTENDING.modules()]
    state["training"] = [part.training for part in parts]
    state["hooks"] = [[hook_names(part, name) for name in HOOKS] for part in parts]
    state["attributes"] = [sorted(vars(part)) for part in parts]
    weights = [*MODEL.parameters(), *ATTENDING.parameters()]
    state["weights"] = [(weight.requires_grad, weight.detach().tolist()) for weight in weights]
    state["classes"] = [dict(vars(torch.nn.Module)), dict(vars(torch.Tensor))]
    state["profiler"] = torch.autograd._profiler_enabled()
    state["process group"] = torch.distributed.is_initialized()
    state["threads"] = torch.get_num_threads()
    state["environment"] = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    eval_frame: Any = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is not None:
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        converter: Any = sys.modules["torch._dynamo.symbolic_convert"]
        state["stance"] = eval_frame._stance
        state["dynamo"] = [
            eval_frame._maybe_set_eval_frame,
            converter.InstructionTranslatorBase.log_graph_break,
            list(handler.start_callbacks),
            list(handler.end_callbacks),
        ]
    return state


def left_behind(before: dict[str, Any]) -> list[str]:
    """What is not as it was; what only became loaded meanwhile does not count."""
    _wait_for_threads(before["running"])
    after = {**process_state(), "running": before["running"]}
    return [name for name in before if repr(before[name]) != repr(after[name])]


def _wait_for_threads(before: int) -> None:
    """Let the threads end that an interrupted program left running: until then they are recorded.

    Python says of one whose ``join`` was interrupted that it has ended.
    """
    patience = time.monotonic() + 5
    while len(sys._current_frames()) > before and time.monotonic() < patience:
        time.sleep(0.001)


def repair(before: dict[str, Any]) -> None:
    """Put back by force what an interrupt left, so that the next one starts from a whole torch."""
    from torch_vis.capture.modes import DispatchModes, FunctionModes, restack

    torch.nn.Module.__call__ = before["module call"]
    for name, method in before["tensor methods"].items():
        if isinstance(method, str):
            if name in torch.Tensor.__dict__:
                delattr(torch.Tensor, name)
        elif name in torch.Tensor.__dict__ and torch.Tensor.__dict__[name] is not method:
            setattr(torch.Tensor, name, method)
    restack(DispatchModes, before["modes"][0])
    restack(FunctionModes, before["modes"][1])
    DispatchModes.set_flags({name: before["flags of modes"][name] for name in DispatchModes.flags()})
    torch.set_grad_enabled(before["grad"][0])
    gc.set_threshold(*before["gc"][1])
    sys.setrecursionlimit(before["recursion limit"])
    _foreach_utils._foreach_supported_types[:] = before["foreach"]
    sys.stdout, sys.stderr = before["streams"]
    parts = [*MODEL.modules(), *ATTENDING.modules()]
    for part, mode, names in zip(parts, before["training"], before["attributes"], strict=True):
        part.training = mode
        for table in HOOKS:
            getattr(part, table).clear()
        for name in set(vars(part)) - set(names):
            del vars(part)[name]
    torch.backends.mha.set_fastpath_enabled(before["fast path"])
    warnings.filters[:] = before["warning filters"]
    if "stance" in before:
        sys.modules["torch._dynamo.eval_frame"]._stance = before["stance"]
    if torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()
    if torch.distributed.is_initialized() and not before["process group"]:
        torch.distributed.destroy_process_group()


# ---------------------------------------------------------------- which blocks there are


def blocks() -> set[str]:
    """Every function of ours that does something and says in an ``Undo`` how it is undone, by its module and name."""
    names: set[str] = set()

    def walk(node: ast.AST, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = inside
            if isinstance(child, ast.ClassDef):
                name = f"{inside}.{child.name}"
            elif isinstance(child, ast.FunctionDef):
                name = f"{inside}.{child.name}"
                if "undo" in [row.arg for row in child.args.args]:
                    names.add(name)
                name += ".<locals>"
            walk(child, name)

    for path in Path(OURS).rglob("*.py"):
        walk(
            ast.parse(path.read_text(encoding="utf-8")),
            ".".join(path.relative_to(OURS).with_suffix("").parts),
        )
    return names


def opened(scene: Scene) -> set[str]:
    """Those of them that a scene opens, on whichever thread."""
    names: set[str] = set()

    def look(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "undo" in code.co_varnames[: code.co_argcount]:
            names.add(f"{frame.f_globals['__name__'].removeprefix('torch_vis.')}.{code.co_qualname}")

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        scene()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return names


# ---------------------------------------------------------------- injected, at every line


class Point(NamedTuple):
    """One moment at which a line of ours is about to run, or a function of ours begins."""

    file: str
    line: int
    event: str
    turn: int
    """How often it had been about to before."""

    def __str__(self) -> str:
        where = f"{self.file.removeprefix(OURS)}:{self.line}"
        return f"{where} ({self.event}, time {self.turn + 1})"


@cache
def leavings(code: CodeType) -> frozenset[int]:
    """Where code leaves a ``with`` block: no signal handler can run between the block and the call of ``__exit__``."""
    steps = [
        step for step in dis.get_instructions(code) if step.opname not in ("PRECALL", "CACHE", "PUSH_NULL")
    ]
    return frozenset(
        first.offset
        for first, second, third, call in zip(steps, steps[1:], steps[2:], steps[3:])
        if all(step.opname == "LOAD_CONST" and step.argval is None for step in (first, second, third))
        and call.opname.startswith("CALL")
    )


class Injector:
    """Follows the lines of ours that run, and at one of them does what a signal handler might: raises, by default."""

    def __init__(self, at: Point | None = None, handler: Callable[[], Any] | None = None) -> None:
        self.at = at
        self.handler = handler
        self.raised = False
        self.counts: Counter[tuple[str, int, str]] = Counter()

    def _global(self, frame: Any, event: str, _: Any) -> Any:
        code = frame.f_code
        # to follow the other files as well would take most of the time
        if code.co_filename != self.at.file if self.at else not code.co_filename.startswith(OURS):
            return None
        # a generator that goes on is inside its own ``try``, which a trace function would break out of
        if event == "call" and not code.co_flags & 0x20:
            self._reach(frame, "call")
        return self._local

    def _local(self, frame: Any, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lasti not in leavings(frame.f_code):
            self._reach(frame, "line")
        return self._local

    def _reach(self, frame: Any, event: str) -> None:
        key = (frame.f_code.co_filename, frame.f_lineno, event)
        turn = self.counts[key]
        self.counts[key] += 1
        if self.at is not None and self.at == (*key, turn):
            self.raised = True
            if self.handler is None:
                # raised here, or held back as that of a real one would be
                signal.raise_signal(signal.SIGINT)
                return
            sys.settrace(None)
            self.handler()
            sys.settrace(self._global)

    def run(self, scene: Scene) -> bool:
        """Run a scene; whether it was interrupted."""
        was = signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(self._global)
        try:
            scene()
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, was)


class Follower(Injector):
    """Notes the points that are reached while a block of ours is open, or is being entered or left."""

    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self.turns: dict[tuple[str, int, str], list[int]] = {}

    def run(self, scene: Scene) -> bool:
        """Run a scene, and count the blocks that are open."""
        around = undo._around

        def counted(*args: Any) -> Iterator[Any]:
            self.open += 1
            try:
                yield from around(*args)
            finally:
                self.open -= 1

        undo._around = counted
        try:
            return super().run(scene)
        finally:
            undo._around = around

    def _reach(self, frame: Any, event: str) -> None:
        key = (frame.f_code.co_filename, frame.f_lineno, event)
        if self.open or key[0].endswith(CONTEXTS):
            self.turns.setdefault(key, []).append(self.counts[key])
        super()._reach(frame, event)


def points(scene: Scene, *, every: bool) -> list[Point]:
    """Of each line of a scene the first turn and the last, with ``every`` all turns of what enters and leaves."""
    scene()
    follower = Follower()
    follower.run(scene)
    chosen = []
    for key, turns in follower.turns.items():
        often = every and key[0].endswith(CONTEXTS)
        chosen += [Point(*key, turn) for turn in (turns if often else sorted({turns[0], turns[-1]}))]
    return chosen


def injected(name: str, scene: Scene, chosen: list[Point]) -> Iterator[tuple[Point, str]]:
    """Interrupt a scene at each of these points; those after which something was wrong, and what."""
    scene()
    gc.collect()
    before = process_state()
    operations = len(tv.trace(MODEL, INPUT, hold=False).graph)
    for point in chosen:
        injector = Injector(point)
        interrupted = injector.run(scene)
        wrong = left_behind(before)
        if injector.raised and not interrupted:
            yield point, "was swallowed"
        if wrong:
            yield point, f"left {', '.join(wrong)}"
            repair(before)
        elif point.file.endswith(CONTEXTS) and len(tv.trace(MODEL, INPUT, hold=False).graph) != operations:
            yield point, "broke the next trace"


# ---------------------------------------------------------------- real signals

SENDER = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(float(line))
    os.kill(int(sys.argv[1]), signal.SIGINT)
    print("sent", flush=True)
"""


class Interrupter:
    """Another process that sends this one an interrupt after a while."""

    def __init__(self) -> None:
        self._sender = subprocess.Popen(
            [sys.executable, "-S", "-c", SENDER, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # interrupts that Python dropped in a callback of others while no block of ours was open
        self.dropped = 0

    def close(self) -> None:
        """No more of them."""
        assert self._sender.stdin is not None
        self._sender.stdin.close()
        self._sender.wait()

    def __call__(self, scene: Scene, delay: float) -> bool:
        """Run a scene over and over until an interrupt comes; False if it was sent and never came."""
        sender = self._sender
        assert sender.stdin is not None and sender.stdout is not None
        was = signal.signal(signal.SIGINT, signal.default_int_handler)
        came, after, dropped = False, 0, self.dropped
        # Python drops what is raised in one that is in Python, and hypothesis leaves one behind for the whole process
        of_others, gc.callbacks[:] = list(gc.callbacks), []
        # a block of ours puts its own around it
        hook, sys.unraisablehook = sys.unraisablehook, self._drop
        try:
            try:
                sender.stdin.write(f"{delay}\n")
                sender.stdin.flush()
                while after < 3:
                    scene()
                    after += bool(select.select([sender.stdout], [], [], 0)[0])
            except KeyboardInterrupt:
                came = True
            sender.stdout.readline()
        finally:
            sys.unraisablehook = hook
            gc.callbacks[:] = of_others
            signal.signal(signal.SIGINT, was)
        return came or self.dropped > dropped

    def _drop(self, unraisable: Any) -> None:
        self.dropped += isinstance(unraisable.exc_value, KeyboardInterrupt)
