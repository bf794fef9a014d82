"""Live runs that end in any order, on any thread, in tasks, children and signal handlers leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.interrupts import left_behind, process_state
from tests.kit.processes import forking, in_child
from tests.kit.scenes import ATTENDING, INPUT, MODEL, SEQUENCE
from torch_vis.errors import UsageError

OPERATION = "norm/native_batch_norm"


@pytest.mark.parametrize("until", [None, "first"])
def test_two_that_end_in_the_order_in_which_they_began(until: Any) -> None:
    """Each had saved what was there before it, and the second put the first one's back."""
    import torch._dynamo  # noqa: F401  # the compiler's stance is changed only where there may be compiled code

    before = process_state()
    keep = "first" if until else ["first", OPERATION]
    first, second = tv.live(MODEL, keep=keep, until=until), tv.live(MODEL, keep=keep, until=until)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (MODEL(INPUT) is None) is bool(until)
    second.__exit__(None, None, None)
    assert len(second.kept["first"]) == 1 and not first.kept
    assert left_behind(before) == []
    assert MODEL(INPUT) is not None


def test_heads_of_two_that_overlap_put_the_fast_path_back() -> None:
    before = process_state()
    first, second = (tv.live(ATTENDING, keep=f"attention[head={head}]") for head in (0, 1))
    first.__enter__()
    second.__enter__()
    ATTENDING(SEQUENCE)
    first.__exit__(None, None, None)
    ATTENDING(SEQUENCE)
    second.__exit__(None, None, None)
    assert len(first.kept["attention[head=0]"]) == 1 and len(second.kept["attention[head=1]"]) == 2
    assert left_behind(before) == []


def test_what_stops_one_is_not_the_end_of_another_around_it() -> None:
    with tv.live(MODEL, keep="norm", until="norm") as outer:
        reached = []
        with tv.live(MODEL, keep="first"):
            MODEL.norm(MODEL.first(INPUT))
            reached.append("inner")
        reached.append("outer")
    assert reached == [] and len(outer.kept["norm"]) == 1


def test_a_place_that_only_stops_is_not_called_replaced() -> None:
    with pytest.raises(UsageError, match=r"nothing was kept at 'last\.grad'"):
        with tv.live(MODEL, keep="last.grad", until=True):
            MODEL(INPUT)
    with pytest.raises(UsageError, match=r"nothing was kept at 'last\.grad'"):
        with tv.live(MODEL, keep="last.grad", until="last.grad"):
            MODEL(INPUT)


def test_a_gradient_that_comes_after_the_block_is_left_alone() -> None:
    x = INPUT.clone().requires_grad_()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with tv.live(model, keep="0", replace={"0.grad": tv.edit.zero()}) as run:
        output = model(x)
        model(x).sum().backward()
    assert not x.grad.any() and run.kept["0"]
    output.sum().backward()
    assert x.grad.any()


@forking
def test_a_child_forked_inside_a_live_run_has_the_plain_model() -> None:
    before = process_state()
    with tv.live(MODEL, keep=["first", OPERATION], replace={"last": tv.edit.zero()}) as run:
        MODEL(INPUT)

        def work() -> bool:
            return bool(MODEL(INPUT).any()) and left_behind(before) == [] and len(run.kept["first"]) == 1

        assert in_child(work)
        assert not MODEL(INPUT).any()
    assert len(run.kept["first"]) == 2


@forking
def test_a_child_that_leaves_the_block_itself_raises_nothing() -> None:
    read, write = os.pipe()
    child = -1
    try:
        with tv.live(MODEL, keep="first"):
            child = os.fork()
            if child:
                MODEL(INPUT)
        if child == 0:
            os.write(write, b"left")
    finally:
        if child == 0:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 10) == b"left"
    os.close(read)


def test_calls_on_other_threads_are_met_at_modules_and_told_at_operations() -> None:
    with tv.live(MODEL, keep=["first", OPERATION]) as run:
        MODEL(INPUT)
        thread = threading.Thread(target=MODEL, args=(INPUT,))
        thread.start()
        thread.join()
    assert len(run.kept["first"]) == 2
    operations = [name for name in run.kept if "native_batch_norm" in name]
    assert [len(run.kept[name]) for name in operations] == [1]
    assert any("other threads" in text for text in run.limits)


def test_tasks_that_take_turns_leave_nothing() -> None:
    before = process_state()

    async def work(turns: int) -> int:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        with tv.live(model, keep="1/relu", replace={"0": tv.edit.zero()}) as run:
            for _ in range(turns):
                assert not model(INPUT).any()
                await asyncio.sleep(0)
        return sum(map(len, run.kept.values()))

    async def both() -> list[int]:
        return await asyncio.gather(work(3), work(5))

    assert asyncio.run(both()) == [3, 5]
    assert left_behind(before) == []


def test_a_block_that_is_left_on_another_thread() -> None:
    before = process_state()
    run = tv.live(MODEL, keep=["first", OPERATION])
    run.__enter__()
    MODEL(INPUT)
    thread = threading.Thread(target=run.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    tv.trace(MODEL, INPUT)
    assert left_behind(before) == []


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no such signals")
def test_a_signal_handler_may_use_live_while_it_is_under_way() -> None:
    kept: list[int] = []

    def handler(*_: Any) -> None:
        # modules only: with an operation here this fails on a quiet machine ("nothing was kept"), and why is not known
        with tv.live(MODEL, keep="first", until="last") as run:
            MODEL(INPUT)
        kept.append(len(run.kept["first"]))

    # loaded by now
    handler()
    with tv.live(MODEL, keep=OPERATION):
        MODEL(INPUT)
    kept.clear()
    before = process_state()
    was = signal.signal(signal.SIGALRM, handler)
    try:
        for turn in range(40):
            signal.setitimer(signal.ITIMER_REAL, 0.0005 * (turn + 1))
            while len(kept) <= turn:
                with tv.live(MODEL, keep=["first", OPERATION]):
                    MODEL(INPUT)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)
    assert kept == [1] * 40
    assert left_behind(before) == []


def test_where_modes_are_off_for_a_moment_a_block_is_met_all_the_same() -> None:
    """A signal handler may come while ``_keep`` copies, with dispatch disabled."""
    with torch._C._DisableTorchDispatch():
        with tv.live(MODEL, keep=OPERATION) as run:
            MODEL(INPUT)
        assert len(tv.trace(MODEL, INPUT).graph) > 3
        assert torch._C._dispatch_tls_is_dispatch_key_excluded("Python")
    assert run.kept and not torch._C._dispatch_tls_is_dispatch_key_excluded("Python")


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="``with`` asks for the end of a block before its beginning there"
)
def test_a_block_can_be_left_twice_and_entered_again() -> None:
    """The second end began a block that nobody left."""
    model, x = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(1, 2)
    live = tv.live(model, keep="0")
    live.__exit__(None, None, None)
    assert not model[0]._forward_hooks
    live.__enter__()
    live.__exit__(None, None, None)
    live.__exit__(None, None, None)
    assert not model[0]._forward_hooks
    with live:
        model(x)
    assert not model[0]._forward_hooks and live.calls == 1
