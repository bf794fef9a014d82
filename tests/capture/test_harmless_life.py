"""Tracing leaves no mark on memory, compiled code, other threads and other traces."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.kit.side_effects import torch_globals
from tests.zoo import ZOO
from torch_vis.capture.modes import DispatchModes


def make_model(seed: int = 0, width: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def names(t: tv.Trace) -> list[tuple[str, str]]:
    return [(node.path, node.name) for node in t.graph.nodes]


# ---------------------------------------------------------------- lives of tensors


@pytest.mark.parametrize("keep", [True, False])
def test_tensors_die_when_they_would_have_died(keep: bool) -> None:
    alive: list[list[bool]] = []

    def f(x: Tensor) -> Tensor:
        first = x * 2
        tensor, storage = weakref.ref(first), weakref.ref(first.untyped_storage())
        view = first[1:]
        second = view + 1
        alive.append([tensor() is None, storage() is None])
        del first
        alive.append([tensor() is None, storage() is None])
        del view
        alive.append([tensor() is None, storage() is None])
        return second.sum()

    gc.disable()
    try:
        f(torch.ones(4))
        plain, alive = alive, []
        tv.trace(f, torch.ones(4), hold=keep)
    finally:
        gc.enable()
    assert alive == plain
    assert plain[0] == [False, False] and plain[-1] == [True, True]


def test_activations_of_backward_die_during_backward() -> None:
    def alive_after(traced: bool) -> int:
        refs: list[Any] = []
        model = make_model()
        for layer in model:
            layer.register_forward_hook(lambda _, __, out: refs.append(weakref.ref(out.untyped_storage())))
        x = torch.ones(3, 4)

        def step() -> None:
            model(x).sum().backward()

        if traced:
            trace = tv.trace(step)
            assert len(trace.graph)
        else:
            step()
        return sum(ref() is not None for ref in refs)

    assert alive_after(traced=False) == 0
    assert alive_after(traced=True) == 0


def test_the_trace_lets_go_of_everything() -> None:
    x = torch.ones(3, 4)
    model = make_model()
    t = tv.trace(model, x, backward=True)
    watched = [weakref.ref(x), weakref.ref(model), weakref.ref(t.output), weakref.ref(t)]
    t.release()
    assert watched[2]() is None, "release() lets the output go"
    del x, model, t
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4


def test_without_keep_the_model_is_not_held() -> None:
    model, x = make_model(), torch.ones(3, 4)
    with torch.no_grad():  # or the output's own autograd graph holds them
        t = tv.trace(model, x, hold=False)
    watched = [weakref.ref(x), weakref.ref(model), weakref.ref(model[0].weight)]
    del x, model
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3
    assert len(t.graph) == 5


def test_the_collector_runs_less_often_while_recording_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    seen: list[tuple[int, int, int]] = []

    def f(x: Tensor) -> Tensor:
        seen.append(gc.get_threshold())
        tv.trace(lambda: seen.append(gc.get_threshold()))
        seen.append(gc.get_threshold())
        return x * 2

    tv.trace(f, torch.ones(2))
    assert gc.get_threshold() == before
    assert len(set(seen)) == 1, "a trace inside a trace changes it no further"
    assert seen[0][0] > before[0] and seen[0][1:] == before[1:]


def test_a_threshold_that_the_program_sets_itself_stays() -> None:
    before, own = gc.get_threshold(), (512, 7, 9)
    try:
        tv.trace(lambda: gc.set_threshold(*own))
        assert gc.get_threshold() == own
    finally:
        gc.set_threshold(*before)


# ---------------------------------------------------------------- nested and repeated


class Nested(nn.Module):
    """A module inside a module, as deep as asked for; without a number, inside itself for ever."""

    def __init__(self, depth: int | None) -> None:
        super().__init__()
        self.child = None if depth in (None, 0) else Nested(depth - 1)
        self.endless = depth is None

    def forward(self, x: Tensor) -> Tensor:
        if self.endless:
            return self(x * 2)
        return x * 2 if self.child is None else self.child(x)


def on_a_new_stack(call: Callable[[], Any]) -> Any:
    """The result of a call that has all of Python's limit of recursion for itself."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.parametrize("options", [{}, {"backward": True}, {"functions": True}, {"fake": True}], ids=str)
def test_modules_nest_as_deep_as_without_us(options: dict[str, Any]) -> None:
    x = torch.ones(2, requires_grad=True)

    def fits(depth: int) -> bool:
        try:
            Nested(depth)(x)
        except RecursionError:
            return False
        return True

    # some frames of the thread's own
    deepest = on_a_new_stack(lambda: max(depth for depth in range(230, 260) if fits(depth)))
    model = Nested(deepest - 3)
    t = on_a_new_stack(lambda: tv.trace(model, x, **options))
    assert int(t.graph.tree.depth.max()) >= deepest - 3


def test_endless_recursion_ends_as_without_us() -> None:
    before = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        on_a_new_stack(lambda: tv.trace(Nested(None), torch.ones(2)))
    assert sys.getrecursionlimit() == before


def test_a_limit_of_recursion_that_the_program_sets_itself_stays() -> None:
    before = sys.getrecursionlimit()
    try:
        with tv.record():
            assert sys.getrecursionlimit() > before
        assert sys.getrecursionlimit() == before
        with tv.record():
            sys.setrecursionlimit(before + 5_000)
        assert sys.getrecursionlimit() == before + 5_000
    finally:
        sys.setrecursionlimit(before)


def test_repeated_traces_agree() -> None:
    model, x = make_model(), torch.ones(3, 4)
    traces = [tv.trace(model, x) for _ in range(3)]
    assert names(traces[0]) == names(traces[1]) == names(traces[2])
    for t in traces:
        t.check()


def test_a_trace_inside_a_traced_callable() -> None:
    model = make_model()
    inner: list[tv.Trace] = []

    def outer(x: Tensor) -> Tensor:
        y = x * 2
        inner.append(tv.trace(model, y))
        return inner[0].output + 1

    before = torch_globals()
    t = tv.trace(outer, torch.ones(3, 4))
    assert torch_globals() == before
    assert [name for _, name in names(inner[0])] == ["t", "addmm", "relu", "t", "addmm"]
    seen = [name for _, name in names(t) if name != "detach"]  # see the next test
    assert seen == ["mul", "t", "addmm", "relu", "t", "addmm", "add"]
    t.check(inputs=True)
    inner[0].check(inputs=True)


@pytest.mark.xfail(strict=True, reason="the outer trace sees the detach that torch makes for the inner mode")
def test_a_trace_inside_a_traced_callable_adds_no_operation() -> None:
    x = torch.ones(3, requires_grad=True)
    t = tv.trace(lambda: tv.trace(torch.relu, x).output)
    assert [name for _, name in names(t)] == ["relu"]


def test_nested_traces_survive_an_error_in_the_inner_one() -> None:
    model = make_model()

    def outer(x: Tensor) -> Tensor:
        with pytest.raises(RuntimeError):
            tv.trace(model, x[:, :1])
        return model(x)

    before = torch_globals()
    t = tv.trace(outer, torch.ones(3, 4))
    assert torch_globals() == before
    assert [name for _, name in names(t)][-5:] == ["t", "addmm", "relu", "t", "addmm"]
    t.check()


# ---------------------------------------------------------------- threads


def test_two_threads_trace_two_models_at_once() -> None:
    models = [make_model(0), make_model(1, width=6)]
    inputs = [torch.rand(3, 4), torch.rand(2, 6)]
    alone = [tv.trace(model, x, backward=True) for model, x in zip(models, inputs, strict=True)]
    for model in models:
        model.zero_grad()
    before = torch_globals()
    barrier = threading.Barrier(2)
    traces: list[list[tv.Trace]] = [[], []]
    errors: list[BaseException] = []

    def work(place: int) -> None:
        try:
            for _ in range(60):
                barrier.wait()
                models[place].zero_grad()
                traces[place].append(tv.trace(models[place], inputs[place], backward=True))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for error in errors:
        raise error
    assert torch_globals() == before
    for place in range(2):
        for t in traces[place]:
            # and no gradient was copied because the other thread had hold of a frame
            assert names(t) == names(alone[place])
            assert [str(v.type) for v in t.graph.values] == [str(v.type) for v in alone[place].graph.values]
            assert t.limits == alone[place].limits
        traces[place][-1].check(inputs=True)


def test_a_run_that_begins_while_another_ends_leaves_torch_unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags of modes are of the process: the second run took the first one's for what was there before."""
    model, x = make_model(0), torch.rand(3, 4)
    ending, begun, ended = threading.Event(), threading.Event(), threading.Event()
    set_flags = DispatchModes.set_flags

    def at_the_end(values: dict[str, bool]) -> None:
        if threading.current_thread() is first:
            ending.set()
            begun.wait(20)
        set_flags(values)

    def one() -> None:
        with tv.record():
            model(x)
        ended.set()

    def another() -> None:
        ending.wait(20)
        with tv.record():
            begun.set()
            ended.wait(20)
            model(x)

    monkeypatch.setattr(DispatchModes, "set_flags", staticmethod(at_the_end))
    before = DispatchModes.flags()
    first, second = threading.Thread(target=one), threading.Thread(target=another)
    for thread in (first, second):
        thread.start()
    for thread in (first, second):
        thread.join()
    assert ending.is_set() and DispatchModes.flags() == before


def test_another_thread_is_not_recorded_and_not_disturbed() -> None:
    model, other = make_model(0), make_model(1)
    x = torch.rand(3, 4)
    expected = other(x)
    results: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        thread = threading.Thread(target=lambda: results.append(other(x)))
        thread.start()
        thread.join()
        return model(x)

    t = tv.trace(f, x)
    assert torch.equal(results[0], expected)
    assert [name for _, name in names(t)] == ["t", "addmm", "relu", "t", "addmm"]
    assert any("other threads" in limit for limit in t.limits)


# ---------------------------------------------------------------- compiled code


@pytest.mark.parametrize("order", ["compiled before", "compiled inside"])
def test_a_trace_costs_no_compilation(order: str) -> None:
    """A trace neither throws compiled code away nor adds a compilation to the next plain call."""
    from torch._dynamo.testing import CompileCounter

    def compilations(traced: bool) -> tuple[list[int], Tensor, list[str]]:
        torch._dynamo.reset()
        counter = CompileCounter()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), torch.compile(make_model(), backend=counter))
        x = torch.ones(3, 4)
        counts = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if order == "compiled before":
                model(x)
            counts.append(counter.frame_count)
            y = tv.trace(model, x).output if traced else model(x)
            counts.append(counter.frame_count)
            for _ in range(2):
                model(x)
                counts.append(counter.frame_count)
        return counts, y.detach(), [str(w.message) for w in caught]

    plain, traced = compilations(False), compilations(True)
    torch._dynamo.reset()
    assert traced[0] == plain[0]
    assert torch.equal(traced[1], plain[1])
    assert traced[2] == plain[2], "a trace adds warnings"


def test_a_trace_inside_compiled_training_costs_no_compilation() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    def compilations(traced: bool) -> list[int]:
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        model = torch.compile(make_model(), backend=counter)
        x = torch.ones(3, 4)
        counts = []
        for step in range(3):
            if traced and step == 1:
                tv.trace(model, x, backward=True)
            else:
                model(x).sum().backward()
            counts.append(counter.frame_count)
        return counts

    plain, traced = compilations(False), compilations(True)
    torch._dynamo.reset()
    assert traced == plain


@pytest.mark.skipif("compile_inductor_backend" not in ZOO, reason="no C++ compiler here for inductor")
def test_nothing_of_ours_stays_in_the_compilers() -> None:
    """Also when the compiled code raises, and when Inductor is loaded only while recording."""
    compiled = torch.compile(lambda x: x * 2 + 1)
    before = torch_globals()
    tv.trace(compiled, torch.ones(3))
    assert torch_globals() == before
    with pytest.raises(TypeError):
        tv.trace(lambda: compiled(torch.ones(3)) + compiled(None))
    assert torch_globals() == before
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    torch._dynamo.reset()


def test_a_thread_that_was_there_before_is_left_alone() -> None:
    """A server that uses the traced model on a thread of its own is not part of the run."""
    model, x, stop = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.rand(2, 4), threading.Event()

    def serve() -> None:
        while not stop.is_set():
            model(x)

    server = threading.Thread(target=serve)
    server.start()
    try:
        for _ in range(10):
            t = tv.trace(model, x)
            assert (len(t.graph), t.limits) == (3, ())
            t.check()
    finally:
        stop.set()
        server.join()


def test_an_output_from_another_thread_is_listed() -> None:
    def elsewhere(x: torch.Tensor) -> torch.Tensor:
        made: list[torch.Tensor] = []
        worker = threading.Thread(target=lambda: made.append(x * 2))
        worker.start()
        worker.join()
        return made[0]

    assert any("no recorded operation made" in limit for limit in tv.trace(elsewhere, torch.ones(2)).limits)


class Within(torch.nn.Module):
    """A module within a module within a module …"""

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.inner = Within(levels - 1) if levels > 1 else torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def _kept(model: torch.nn.Module, x: torch.Tensor) -> None:
    with tv.live(model, keep="**.inner"):
        model(x)


def _recorded_while_kept(model: torch.nn.Module, x: torch.Tensor) -> None:
    live, recorded = tv.live(model, keep="**.inner"), tv.record(model)
    live.__enter__()
    recorded.__enter__()
    # the first that was entered ends first
    live.__exit__(None, None, None)
    model(x)
    recorded.__exit__(None, None, None)


@pytest.mark.parametrize(
    "run",
    [
        _kept,
        _recorded_while_kept,
        tv.trace,
    ],
    ids=["live", "record in live", "trace"],
)
def test_modules_nest_as_deep_with_hooks_on_all_of_them(run: Callable[..., Any]) -> None:
    """With a hook, torch itself has one call more on the stack for each module."""
    limit, x = sys.getrecursionlimit(), torch.ones(1, 2)

    def nests(levels: int) -> bool:
        try:
            models[levels](x)
        except RecursionError:
            return False
        return True

    models = {levels: Within(levels) for levels in range(20, 320, 10)}
    deepest = max(levels for levels in models if nests(levels))
    run(models[deepest - 10], x)
    assert sys.getrecursionlimit() == limit
