"""The table of higher-order operators: torch has each of them, and every part of the package takes it from there."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
import torch._higher_order_ops  # registers the operators

from torch_vis.capture.recording.op_plan import KERNELS, eager_kernel
from torch_vis.capture.recording.source_lines import TRANSPARENT
from torch_vis.ops.higher_order import AUTOGRAD_MODULES, INTERPRETED, TABLE

ROWS = list(TABLE.values())


def operator(name: str) -> Any:
    return torch._ops._higher_order_ops[name]


@pytest.mark.parametrize("name", TABLE)
def test_torch_has_every_operator_of_the_table(name: str) -> None:
    assert isinstance(operator(name), torch._ops.HigherOrderOperator)


# map_impl takes *args, so that its signature says nothing.
SIGNED = [row for row in ROWS if row.bodies and row.name != "map_impl"]


@pytest.mark.parametrize("row", SIGNED, ids=lambda row: row.name)
def test_bodies_stand_where_the_operator_takes_graphs(row: Any) -> None:
    parameters = list(inspect.signature(type(operator(row.name)).__call__).parameters)[1:]
    for position in row.bodies:
        assert parameters[position].endswith(("_fn", "_func", "_mod")), parameters


def test_the_recorder_has_a_kernel_for_those_that_refuse_to_run_under_a_mode() -> None:
    assert set(KERNELS) == {row.name for row in ROWS if row.refuses_modes}
    for row in ROWS:
        if row.inlined:
            assert (eager_kernel(operator(row.name)) in KERNELS.values()) == row.refuses_modes


def test_their_autograd_functions_are_looked_through() -> None:
    for name in AUTOGRAD_MODULES:
        module = importlib.import_module(name)
        found = [item for item in vars(module).values() if inspect.isclass(item)]
        assert any(issubclass(item, torch.autograd.Function) for item in found), name
    assert AUTOGRAD_MODULES <= TRANSPARENT


def test_what_a_run_without_numbers_shows_is_said_of_interpreted_operators_only() -> None:
    assert {row.name for row in ROWS if row.without_numbers} <= INTERPRETED
    assert all(row.branches for row in ROWS if row.without_numbers)
