"""Forked children, data loaders' workers, tasks and threads: what runs there is recorded where it belongs, or not."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torch_vis as tv
from tests.kit.interrupts import left_behind, process_state
from tests.kit.processes import forking, in_child
from tests.kit.scenes import SCENES
from torch_vis.capture.modes import DispatchModes
from torch_vis.capture.recording import module_calls, source_lines
from torch_vis.graph.graph import Graph
from torch_vis.graph.tree import ScopeTree, Tree


def net(width: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU())


# ---------------------------------------------------------------- processes


@forking
def test_a_child_forked_inside_a_recording_does_not_record() -> None:
    model, x = net(), torch.ones(2, 3)
    before = process_state()
    with tv.record(model) as recording:
        model(x)
        count = recording.capture.recorder.count

        def work() -> bool:
            model(x)
            again = len(tv.trace(model, x, hold=False).graph)
            return left_behind(before) == [] and recording.capture.recorder.count == count and again == count

        assert in_child(work)
        model(x)
    assert len(recording.graph) == 2 * count


@forking
def test_a_child_forked_while_another_thread_records_is_whole() -> None:
    model, x = net(), torch.ones(2, 3)
    before = process_state()
    entered, over = threading.Event(), threading.Event()

    def record() -> None:
        with tv.record(model):
            entered.set()
            over.wait()

    thread = threading.Thread(target=record)
    thread.start()
    entered.wait()
    try:
        assert in_child(lambda: left_behind(before) == [] and len(tv.trace(model, x).graph) == 3)
    finally:
        over.set()
        thread.join()
    assert left_behind(before) == []


@forking
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cached properties have no lock")
def test_a_child_forked_while_another_thread_works_out_a_property_does_not_wait_for_it() -> None:
    model, x = net(), torch.ones(2, 3)
    tv.trace(model, x)
    locks = [
        attribute.lock  # type: ignore[attr-defined]
        for kind in (Graph, Tree, ScopeTree)
        for attribute in vars(kind).values()
        if isinstance(attribute, cached_property)
    ]
    assert locks
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait()

    def work() -> bool:
        # ends it where it waits for ever
        signal.alarm(20)
        return len(tv.trace(model, x).graph) == 3

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_child(work)
    finally:
        over.set()
        thread.join()


class Rows(Dataset[Any]):
    """Rows that say what the process they are made in looks like."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Whether a mode is on, and whether modules are watched."""
        torch.ones(2) + 1
        return len(DispatchModes.read()), int(bool(module_calls._active))


@forking
def test_a_data_loaders_worker_does_not_record() -> None:
    with tv.record() as recording, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = DataLoader(Rows(), num_workers=1, multiprocessing_context="fork", batch_size=2)
        rows = [torch.stack(batch) for batch in loader]
    assert not torch.stack(rows).any()
    assert not any(node.name == "add" for node in recording.graph.nodes)


def _operations(queue: Any) -> None:
    queue.put(len(tv.trace(net(), torch.ones(2, 3), hold=False).graph))


def test_a_spawned_process_traces_for_itself() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tv.record() as recording:
        process = context.Process(target=_operations, args=(queue,))
        process.start()
        assert queue.get() == 3
        process.join()
    assert len(recording.graph) == 0


# ---------------------------------------------------------------- runs by shapes


class Waits(torch.nn.Module):
    """Does something in the middle of its forward."""

    def __init__(self, meanwhile: Callable[[], Any]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.meanwhile = meanwhile

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.meanwhile()
        return self.layer(x)


def test_runs_by_shapes_on_two_threads_come_one_after_the_other() -> None:
    x = torch.ones(2, 3)
    tv.trace(net(), x, fake=True)
    before = process_state()
    first, second = threading.Event(), threading.Event()
    sizes: list[int] = []

    def other() -> None:
        first.wait()
        sizes.append(len(tv.trace(Waits(second.set), x, fake=True).graph))

    def meanwhile() -> None:
        first.set()
        # which comes only when this run is over
        assert not second.wait(1.5)

    thread = threading.Thread(target=other)
    thread.start()
    sizes.append(len(tv.trace(Waits(meanwhile), x, fake=True).graph))
    thread.join()
    assert sizes[0] == sizes[1]
    assert left_behind(before) == []


def test_ranks_are_simulated_on_two_threads() -> None:
    SCENES["simulate replicas"]()
    before = process_state()
    built = torch.optim.Optimizer.__init__
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(SCENES["simulate replicas"]) for _ in range(2)]:
            future.result()
    assert left_behind(before) == []
    assert torch.optim.Optimizer.__init__ is built


def test_a_run_by_shapes_says_nothing_to_other_threads() -> None:
    rows: list[Any] = []

    def read() -> None:
        counts = torch.tensor([1, 2])
        rows.append(counts.tolist())
        counts.add_(1)
        rows.append(counts.tolist())
        rows.append(counts.numpy().tolist())

    def meanwhile() -> None:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()

    tv.trace(Waits(meanwhile), torch.ones(2, 3), fake=True)
    assert rows == [[1, 2], [2, 3], [2, 3]]


@forking
def test_a_child_forked_inside_a_run_by_shapes_computes_numbers() -> None:
    before = process_state()
    whole: list[bool] = []

    def work() -> bool:
        counts = torch.tensor([1, 2])
        counts.tolist(), counts.add_(1)
        left = left_behind(before)
        operations = len(tv.trace(net(), torch.ones(2, 3), fake=True).graph)
        return left == [] and counts.tolist() == [2, 3] and operations == 3

    tv.trace(Waits(lambda: whole.append(in_child(work))), torch.ones(2, 3), fake=True)
    assert whole == [True]


# ---------------------------------------------------------------- tasks


def test_each_task_records_its_own_operations() -> None:
    async def work(model: torch.nn.Module, turns: int, functions: bool) -> tv.Trace:
        x = torch.ones(2, 3)
        with tv.record(model, functions=functions) as recording:
            for _ in range(turns):
                model(x)
                await asyncio.sleep(0)
        return recording

    async def both(functions: bool) -> list[tv.Trace]:
        return await asyncio.gather(work(net(), 3, functions), work(net(), 5, functions), asyncio.sleep(0))

    before = process_state()
    for functions in (False, True):
        first, second, _ = asyncio.run(both(functions))
        assert [len(first.graph), len(second.graph)] == [9, 15]
        assert left_behind(before) == []
        first.check()
        second.check()


def test_what_a_recorded_task_starts_is_its_own() -> None:
    async def part() -> torch.Tensor:
        await asyncio.sleep(0)
        return torch.ones(2) + 1

    async def outside() -> None:
        for _ in range(5):
            torch.ones(2) * 2
            await asyncio.sleep(0)

    async def whole() -> tv.Trace:
        other = asyncio.create_task(outside())
        with tv.record() as recording:
            await asyncio.gather(part(), part())
        await other
        return recording

    assert [node.name for node in asyncio.run(whole()).graph.nodes] == ["ones", "ones", "add", "add"] or [
        node.name for node in asyncio.run(whole()).graph.nodes
    ] == ["ones", "add", "ones", "add"]


def test_a_loop_inside_a_trace_is_of_the_trace() -> None:
    async def part(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x + 1

    assert len(tv.trace(lambda x: asyncio.run(part(x)), torch.ones(2)).graph) == 1


# ---------------------------------------------------------------- threads


def on_thread(work: Callable[[], Any]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert errors == []


def test_a_record_left_on_another_thread() -> None:
    before = process_state()
    model, x = net(), torch.ones(2, 3)
    recording = tv.record(model)
    recording.__enter__()
    model(x)
    on_thread(lambda: recording.__exit__(None, None, None))
    assert not recording.is_open
    # its mode is still on this thread and does nothing, until the thread has another taken off
    model(x)
    assert len(recording.graph) == 3
    assert len(tv.trace(model, x).graph) == 3
    assert left_behind(before) == []


def test_a_record_entered_on_a_thread_that_has_ended() -> None:
    model, x = net(), torch.ones(2, 3)
    tv.trace(model, x)
    before = process_state()
    recording = tv.record(model)
    on_thread(recording.__enter__)
    recording.__exit__(None, None, None)
    # its modes went with the thread, and torch is to remember none of them
    assert left_behind(before) == []
    abandoned = tv.record(model)
    on_thread(abandoned.__enter__)
    assert len(tv.trace(model, x).graph) == 3
    abandoned.__exit__(None, None, None)
    assert left_behind(before) == []


def test_a_thread_that_others_start_is_not_of_the_run() -> None:
    model, x = net(), torch.ones(2, 3)
    begin, ready = threading.Event(), threading.Event()

    def unrelated() -> None:
        begin.wait()
        on_thread(lambda: model(x))
        ready.set()

    thread = threading.Thread(target=unrelated)
    thread.start()

    def run() -> torch.Tensor:
        begin.set()
        ready.wait()
        on_thread(lambda: model(x))
        return model(x)

    trace = tv.record(model)
    with trace:
        run()
    thread.join()
    assert len(trace.graph) == 6


def test_threads_that_trace_at_once_leave_torch_whole() -> None:
    before = process_state()
    counts: list[int] = []

    def work() -> None:
        model = net()
        counts.extend(len(tv.trace(model, torch.ones(2, 3), hold=False).graph) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(counts) == {3}
    assert left_behind(before) == []


# ---------------------------------------------------------------- nothing is held


def test_code_that_was_traced_is_let_go() -> None:
    for number in range(3):
        names: dict[str, Any] = {"torch": torch}
        text = f"class K(torch.nn.Module):\n  def forward(self, x): return x + {number}\nmodel = K()"
        exec(compile(text, f"/tmp/made_{number}.py", "exec"), names)
        tv.trace(names["model"], torch.ones(2))
        code = weakref.ref(names["K"].forward.__code__)
        names.clear()
        gc.collect()
        assert code() is None
    assert len(source_lines._kinds) < 100_000


@pytest.mark.skipif(sys.platform == "win32", reason="no compiler")
@pytest.mark.parametrize("via", ["eager", "fx", "export", "dynamo", "aot"])
def test_a_model_is_let_go_after_a_trace(via: str, fresh_compiler: None) -> None:
    model: Any = net()
    alive = weakref.ref(model)
    trace: Any = tv.trace(model, torch.ones(2, 3), via=via)
    trace.release()
    del trace, model
    torch._dynamo.reset()
    gc.collect()
    assert alive() is None
