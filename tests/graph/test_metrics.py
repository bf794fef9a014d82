"""Columns of measurements: what becomes of them elsewhere."""

from __future__ import annotations

import pickle

import torch

import torch_vis as tv


def test_metrics_go_to_another_process_with_what_is_made_later() -> None:
    trace = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), hold=False)
    there = pickle.loads(pickle.dumps(trace))
    assert there.metrics["flops"].total() == trace.metrics["flops"].total() == 14
    assert there.lifetimes is not None and str(there) == str(trace)
