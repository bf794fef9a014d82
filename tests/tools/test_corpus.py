"""The corpus runner: a bad case costs itself alone, and the report says what happened."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from tools.corpus import child
from tools.corpus.operators import added
from tools.corpus.pool import Limits, Running, run_all
from tools.corpus.report import grouped, normalise, write_json
from tools.corpus.subject import Maker, NothingToRun, Result, Subject


# This file is also the group of cases that the tests run.
def prepare() -> None:
    """There is nothing to import."""


def names() -> list[str]:
    """One case for each way to end."""
    return ["fine", "raises", "crashes", "hangs", "nothing"]


def makers(name: str) -> list[Maker]:
    """A case that ends as its name says."""
    if name == "nothing":
        raise NothingToRun("not a model")
    if name == "product of sparse matrices":
        return [lambda: Subject(torch.mm, (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()))]
    return [
        lambda: Subject({"fine": torch.sin, "raises": _raise, "crashes": _crash, "hangs": _hang}[name], _X)
    ]


_X = (torch.ones(2, requires_grad=True),)


def _raise(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("shape [2, 3] at 0x7f00 is wrong\nand more")


def _crash(x: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(x: torch.Tensor) -> None:
    time.sleep(600)


@pytest.fixture(autouse=True)
def _group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(child.GROUPS, "fake", __name__)


def run(*chosen: str, timeout_s: float = 2.0) -> dict[str, Result]:
    """The results of these cases by name."""
    limits = Limits(jobs=2, timeout_s=timeout_s, memory_bytes=1 << 40, eager_only=True)
    events = run_all([("fake", name) for name in chosen], limits)
    return {event.name: event for event in events if isinstance(event, Result)}


def test_each_case_ends_as_it_should() -> None:
    results = run(*names())
    assert {name: result.status for name, result in results.items()} == {
        "fine": "passed",
        "raises": "not eager",
        "crashes": "not eager",
        "hangs": "not eager",
        "nothing": "nothing",
    }
    assert results["fine"].backward == 1
    assert results["raises"].cause == "ValueError: shape [2, 3] at 0x7f00 is wrong"
    assert "SIGKILL in eager" in results["crashes"].cause
    assert "more than 2 s in eager" in results["hangs"].cause


def test_a_case_says_which_operators_it_ran_and_which_have_a_figure() -> None:
    limits = Limits(jobs=1, timeout_s=60, memory_bytes=1 << 40, check=False)
    cases = [("fake", "fine"), ("fake", "product of sparse matrices")]
    found = {event.name: event for event in run_all(cases, limits) if isinstance(event, Result)}
    assert {result.status for result in found.values()} == {"passed"}
    operators = added(result.operators for result in found.values())
    assert operators["aten::sin"][:2] == (1, 0) and operators["aten::sin"].time_ns > 0
    product = operators["aten::mm"]
    assert product.unknown == product.calls > 0 and product.unknown_ns == product.time_ns


def test_leaving_early_kills_what_runs() -> None:
    limits = Limits(jobs=1, timeout_s=60, memory_bytes=1 << 40, eager_only=True)
    with closing(run_all([("fake", "hangs")], limits)) as events:
        first = next(events)
        assert isinstance(first, Running)
    with pytest.raises(ProcessLookupError):
        os.kill(first.pid, 0)


def test_causes_are_grouped_without_their_numbers() -> None:
    assert normalise("Bad: shape [2, 3] of 'x' at 0x7f") == normalise("Bad: shape [4] of 'yy' at 0x81")
    failed = [Result("ops", f"op{n}", "failed", "check", f"Bad: {n} of 9", "", 0.1, 1, 0) for n in range(3)]
    assert [(cause, len(members)) for cause, members in grouped(failed)] == [("check: Bad: N of N", 3)]


def test_json_report_lists_causes(tmp_path: Path) -> None:
    result = Result("ops", "add", "failed", "trace", "Bad: 1", "", 0.1, 1, 1)
    write_json(tmp_path / "report.json", [result])
    document = json.loads((tmp_path / "report.json").read_text())
    assert document["results"] == [result._asdict()]
    assert document["causes"] == {"failed: trace: Bad: N": ["ops/add"]}
    assert os.listdir(tmp_path) == ["report.json"]
