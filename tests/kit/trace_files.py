"""What every file of a graph must do, whatever its format: be written, and give the same back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit.graphs import (
    LIMITS,
    META,
    empty_graph,
    odd_calls_graph,
    one_node_graph,
    training_graph,
    training_metrics,
)
from tests.kit.same import assert_same_graph
from torch_vis.graph import Graph, Metrics
from torch_vis.graph.run import Run

MAKERS = (empty_graph, one_node_graph, training_graph, odd_calls_graph)


def saved_run(format_: Any, path: Path) -> Path:
    """A good file of a training step, with metrics; ``format_`` is the module that saves and loads it."""
    format_.save(path, Run(training_graph(), training_metrics(), LIMITS, META))
    return path


def assert_comes_back(format_: Any, path: Path, make: Callable[[], Graph]) -> None:
    """A graph without metrics is the same after it was saved and loaded, limits and circumstances too."""
    format_.save(path, Run(make(), Metrics(), LIMITS, META))
    run = format_.load(path)
    assert_same_graph(run.graph, make())
    assert (len(run.metrics), run.limits, run.meta) == (0, LIMITS, META)
