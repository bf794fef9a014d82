"""``trace(repeat=)``: medians and spread of real runs, and no more left behind than one run leaves."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.observed import observe, plain_run, torch_globals
from tests.zoo import ZOO, Case, close_process_group, first_difference, floating_sum
from torch_vis.capture import progress as progress_file


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


# ---------------------------------------------------------------- what is left behind


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ZOO.items()])
def test_a_repeated_run_leaves_what_one_run_leaves(case: Case) -> None:
    plain = plain_run(case)
    before = torch_globals()
    traces: list[tv.Trace] = []

    def call(model: Any, args: Any, kwargs: Any) -> Any:
        loss = floating_sum if case.backward else None
        traces.append(tv.trace(model, *args, kwargs=kwargs, loss=loss, repeat=2))
        return traces[0].output

    repeated = observe(case, call)
    assert torch_globals() == before
    assert first_difference(plain, repeated) is None
    t = traces[0]
    if t.meta["repeat"] == 0:  # then it says why
        assert any("not repeated" in limit or "repeated run" in limit for limit in t.limits), t.limits
    else:
        assert (t.metrics["time_low_ns"].values <= t.metrics["time_ns"].values).all()
