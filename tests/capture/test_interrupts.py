"""Ctrl-C at any point leaves torch as it was, is delivered, and the next trace works."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import torch_vis as tv
from tests.kit.interrupts import (
    CONTEXTS,
    Injector,
    Interrupter,
    Point,
    blocks,
    injected,
    left_behind,
    opened,
    points,
    process_state,
)
from tests.kit.scenes import ELSEWHERE, INPUT, MODEL, SCENES, SLOW
from torch_vis.capture.fake import FakeTwins, ShapesOnly, TwinMode
from torch_vis.capture.recording.dispatch_mode import RecordMode
from torch_vis.capture.undo import Context, HeldSignals, Patch, Shared, Turn, Undo, context
from torch_vis.graph.schema import Flag, Kind, Phase, Role

# what has no compiler in it; the others are in tools/interrupts.py
QUICK = (
    "trace",
    "record",
    "record functions",
    "track from start to stop",
    "module stats",
    "check",
    "run again",
    "fake",
    "live",
    "live operations",
    "live until",
    "live heads",
    "extract statistics",
    "sweep",
    "attribute edges",
)


def of_contexts(scene: Callable[[], Any], step: int) -> list[Point]:
    """Every so many of the points at which something is entered or left, each line at its first and last turn."""
    return [point for point in points(scene, every=False) if point.file.endswith(CONTEXTS)][::step]


@pytest.mark.parametrize("name", QUICK)
def test_an_interrupt_at_any_line_of_entering_and_leaving(name: str) -> None:
    chosen = of_contexts(SCENES[name], 1 if name == "record" else 4)
    assert len(chosen) > 10
    assert [f"{point} {what}" for point, what in injected(name, SCENES[name], chosen)] == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no qualified name")
def test_every_block_of_ours_has_a_scene_that_is_interrupted() -> None:
    """The figures of tools/interrupts.py are of the whole library, and of what is added to it."""
    there = blocks()
    for name, scene in SCENES.items():
        if name not in SLOW and not there <= set(ELSEWHERE):
            there -= opened(scene)
    assert there <= set(ELSEWHERE), "a block without a scene in tests/kit/scenes.py"
    assert set(ELSEWHERE) <= blocks(), "no such block any more"


def test_an_interrupt_at_any_line_of_recording() -> None:
    chosen = [point for point in points(SCENES["record"], every=False) if point.turn == 0][::15]
    assert [f"{point} {what}" for point, what in injected("record", SCENES["record"], chosen)] == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["trace", "record", "check"])
def test_real_interrupts(name: str) -> None:
    scene = SCENES[name]
    scene()
    before = process_state()
    interrupt = Interrupter()
    try:
        for turn in range(8):
            assert interrupt(scene, 0.002 * turn)
            assert left_behind(before) == []
    finally:
        interrupt.close()
    assert tv.trace(MODEL, INPUT).check().results


def test_what_a_signal_handler_raises_need_not_be_ctrl_c() -> None:
    class TooLate(Exception):
        pass

    def late() -> None:
        raise TooLate

    before = process_state()
    for point in of_contexts(SCENES["record"], 4):
        with pytest.raises(TooLate):
            try:
                Injector(point, late).run(SCENES["record"])
            finally:
                sys.settrace(None)
        assert left_behind(before) == [], str(point)


@pytest.mark.parametrize("name", ["record", "trace"])
def test_a_signal_handler_may_trace_itself(name: str) -> None:
    scene = SCENES[name]
    chosen = of_contexts(scene, 3)
    before = process_state()
    operations = len(tv.trace(MODEL, INPUT).graph)
    inner: list[int] = []
    for point in chosen:
        Injector(point, lambda: inner.append(len(tv.trace(MODEL, INPUT, hold=False).graph))).run(scene)
        assert left_behind(before) == [], str(point)
    assert len(inner) == len(chosen)
    assert set(inner) == {operations}


def test_a_callback_of_ours_at_the_death_of_a_tensor_is_not_in_python() -> None:
    """Python swallows what is raised in one that is."""
    called: list[str] = []

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "torch_vis" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    with tv.record():
        tensors = [torch.ones(2) + 1 for _ in range(4)]
        sys.setprofile(look)
        try:
            tensors.clear()
        finally:
            sys.setprofile(None)
    assert called == []


def test_a_callback_of_ours_at_the_death_of_a_twin_is_not_in_python() -> None:
    twins = FakeTwins(ShapesOnly())
    tensors = [torch.ones(2) for _ in range(4)]
    for tensor in tensors:
        twins.of(tensor)
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        tensors.clear()
        tensor = torch.ones(1)
    finally:
        sys.setprofile(None)
    assert called == []


def test_the_garbage_collector_of_others_takes_no_interrupt_from_these_tests() -> None:
    """Python drops what is raised in a callback of the collector, and hypothesis leaves one behind."""
    called: list[str] = []

    def callback(phase: str, _: Any) -> None:
        called.append(phase)

    gc.callbacks.append(callback)
    interrupt = Interrupter()
    try:
        assert interrupt(gc.collect, 0.0)
        assert called == []
        assert callback in gc.callbacks
    finally:
        gc.callbacks.remove(callback)
        interrupt.close()


def test_what_is_recorded_of_an_interrupted_block_is_readable() -> None:
    recordings: list[Any] = []

    def scene() -> None:
        with tv.record(MODEL) as recording:
            recordings.append(recording)
            MODEL(INPUT).sum().backward()

    # what stands before is asked for while the block is entered, and of one that was not there is nothing to read
    first = RecordMode.__torch_dispatch__.__code__.co_firstlineno
    # what is remembered from run to run is there from now on, so that every run goes over the same lines
    for _ in range(3):
        scene()
    chosen = [point for point in points(scene, every=False) if point.file.endswith("dispatch_mode.py")]
    chosen = [point for point in chosen if point.line >= first]
    reached = 0
    for point in chosen[::9]:
        recordings.clear()
        injector = Injector(point)
        # the last turn of a line is not met in every run: whether a tensor looks known hangs on used addresses
        assert injector.run(scene) == injector.raised
        if injector.raised:
            reached += 1
            assert isinstance(recordings[0].error, KeyboardInterrupt)
            assert str(recordings[0])
    assert reached > len(chosen[::9]) // 2


def test_numpy_asks_our_codes_for_nothing_that_is_in_python() -> None:
    """It drops what is raised there."""
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        for code in (Kind.SHAPE, Role.INPUT, Phase.FORWARD, Flag.VIEW):
            assert True in (np.arange(200) == code).tolist()
            assert np.int8(100) != code
    finally:
        sys.setprofile(None)
    assert called == []


# ---------------------------------------------------------------- what Python or torch would drop


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_an_interrupt_in_a_callback_of_others_comes_again() -> None:
    """Python prints what is raised in a callback of a weak reference, and goes on."""

    class Dies:
        pass

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        before = process_state()
        with pytest.raises(KeyboardInterrupt), tv.record(MODEL):
            dies: Any = Dies()
            reference = weakref.ref(dies, lambda _: signal.raise_signal(signal.SIGINT))
            del dies
            assert reference() is None
            time.sleep(5)
        assert left_behind(before) == []
    finally:
        signal.signal(signal.SIGINT, handler)


def test_gradients_are_on_after_an_interrupt_in_torch_s_own_switch() -> None:
    with pytest.raises(KeyboardInterrupt), tv.record(MODEL):
        # what is left of no_grad, interrupted at its end
        torch.no_grad().__enter__()
        raise KeyboardInterrupt
    assert torch.is_grad_enabled()


def test_an_interrupt_where_torch_asks_for_a_device_does_not_end_the_process() -> None:
    """A fake tensor is asked from C++ that cannot pass an exception on."""
    scene = SCENES["fake"]
    scene()
    before = process_state()
    code = TwinMode.__torch_dispatch__.__code__
    lines = sorted({line for _, _, line in code.co_lines() if line and line > code.co_firstlineno})
    for turn in range(3):
        assert Injector(Point(code.co_filename, lines[0], "line", turn)).run(scene)
        assert left_behind(before) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_dynamo_is_not_interrupted_while_it_compiles() -> None:
    """It counts the compilations under way, and would never call those that listen again."""
    callbacks = pytest.importorskip("torch._dynamo.callback").callback_handler.start_callbacks
    heard: list[bool] = []

    def interrupts(_: Any) -> None:
        heard.append(True)
        signal.raise_signal(signal.SIGINT)

    # torch loads its loggers
    SCENES["dynamo"]()
    before = process_state()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    callbacks.append(interrupts)
    try:
        for turn in range(2):
            with pytest.raises(KeyboardInterrupt):
                tv.trace(MODEL, INPUT, via="dynamo")
            assert len(heard) == turn + 1
    finally:
        callbacks.remove(interrupts)
        signal.signal(signal.SIGINT, handler)
    assert left_behind(before) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_an_export_for_dlbacktrace_is_not_interrupted_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch drops what a signal handler raises in some places of it."""
    export, ended = torch.export.export, []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            ended.append("swallowed")
        program = export(*args, **kwargs)
        ended.append("exported")
        return program

    monkeypatch.setattr(torch.export, "export", interrupted)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            tv.DLBacktrace(torch.nn.Linear(4, 2).eval(), (torch.ones(1, 4),))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert ended == ["exported"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_held_signals_wait_once_and_no_longer_than_the_block() -> None:
    reached: list[str] = []
    before = process_state()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), HeldSignals():
            signal.raise_signal(signal.SIGINT)
            reached.append("first")
            signal.raise_signal(signal.SIGINT)
            reached.append("second")
        with pytest.raises(KeyboardInterrupt):
            with HeldSignals():
                signal.raise_signal(signal.SIGINT)
                reached.append("third")
            reached.append("behind")
        assert reached == ["first", "third"]
    finally:
        signal.signal(signal.SIGINT, handler)
    assert left_behind(before) == []


# ---------------------------------------------------------------- patches


def test_others_may_patch_and_unpatch_around_us() -> None:
    plain = torch.nn.Module.__call__
    recording = tv.record(MODEL)
    recording.__enter__()
    saved = torch.nn.Module.__call__

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return saved(self, *args, **kwargs)

    torch.nn.Module.__call__ = theirs  # type: ignore[method-assign]
    recording.__exit__(None, None, None)
    # a recording while theirs is there is whole, and each call is in it once
    inside = tv.trace(MODEL, INPUT)
    torch.nn.Module.__call__ = saved
    MODEL(INPUT)
    outside = tv.trace(MODEL, INPUT)
    assert [scope.path for scope in inside.graph.scopes] == [scope.path for scope in outside.graph.scopes]
    assert torch.nn.Module.__call__ is plain
    MODEL(INPUT)


def test_a_patch_keeps_the_original_once() -> None:
    class Owner:
        def method(self) -> int:
            return 1

    original = Owner.__dict__["method"]
    patch = Patch(lambda: Owner, "method", lambda wrapped: lambda self: wrapped(self) + 1)
    for _ in range(3):
        patch.install()
    assert Owner().method() == 2
    for _ in range(3):
        patch.remove()
    assert Owner.__dict__["method"] is original


def test_an_inherited_attribute_is_inherited_again() -> None:
    class Base:
        def method(self) -> int:
            return 1

    class Owner(Base):
        pass

    patch = Patch(lambda: Owner, "method", lambda wrapped: lambda self: wrapped(self) + 1)
    patch.install()
    assert Owner().method() == 2
    patch.remove()
    patch.remove()
    assert "method" not in vars(Owner)


# ---------------------------------------------------------------- the home itself


def test_a_step_that_fails_keeps_no_other_from_its_turn() -> None:
    taken: list[str] = []

    def fails() -> None:
        taken.append("fails")
        raise ValueError("no")

    @context
    def several(undo: Undo) -> None:
        undo.add(taken.append, "last")
        undo.add(fails)
        undo.add(taken.append, "first")

    with pytest.raises(ValueError, match="no"), several():
        pass
    # one that fails is tried again
    assert taken == ["first", "fails", "fails", "last"]


def test_a_block_hears_of_its_own_exception_alone() -> None:
    class Block(Context[None]):
        error: BaseException | None = None

        def _begin(self, undo: Undo) -> None:
            pass

        def _ended(self, error: BaseException | None) -> None:
            self.error = error

    quiet, loud = Block(), Block()
    try:
        raise KeyError("outside")
    except KeyError:
        with quiet:
            pass
        with pytest.raises(ValueError, match="inside"), loud:
            int("inside")
    assert quiet.error is None
    assert isinstance(loud.error, ValueError)


def test_entering_twice_is_refused_and_changes_nothing() -> None:
    recording = tv.record(MODEL)
    with recording:
        MODEL(INPUT)
        with pytest.raises(tv.errors.UsageError, match="entered already"):
            recording.__enter__()
        MODEL(INPUT)
    assert len(recording.graph) == 2 * len(tv.trace(MODEL, INPUT).graph)


def test_a_recording_that_is_dropped_lets_go() -> None:
    before = process_state()
    recording: Any = tv.record(MODEL)
    recording.__enter__()
    assert left_behind(before)
    del recording
    gc.collect()
    assert left_behind(before) == []


def test_what_several_share_is_there_until_the_last_lets_go() -> None:
    class Count:
        there = 0

        def install(self) -> None:
            self.there = 1

        def remove(self) -> None:
            self.there = 0

    part = Count()
    shared = Shared(part)
    first, second = Undo(), Undo()
    shared.take(first, "first")
    shared.take(second, "second")
    first.run()
    assert part.there
    second.run()
    assert not part.there


def test_one_thread_has_its_turn_at_a_time() -> None:
    turn = Turn()
    entered, trying = threading.Event(), threading.Event()

    def other() -> None:
        trying.set()
        with context(turn.take)():
            entered.set()

    thread = threading.Thread(target=other)
    # of one thread, blocks may lie inside each other
    with context(turn.take)(), context(turn.take)():
        thread.start()
        assert trying.wait(10) and not entered.wait(0.1)
    assert entered.wait(10)
    thread.join()


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_an_interrupt_while_waiting_for_a_turn_is_delivered() -> None:
    turn = Turn()
    holding, over = threading.Event(), threading.Event()

    def hold() -> None:
        with context(turn.take)():
            holding.set()
            over.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    was = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt), context(turn.take)():
            pass
    finally:
        signal.signal(signal.SIGALRM, was)
        over.set()
        thread.join()
    with context(turn.take)():
        pass
