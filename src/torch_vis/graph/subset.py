"""A part of a run as a run of its own: some calls with all that ran in them, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from torch_vis.graph import Column, Graph, Metrics
from torch_vis.graph.run import Run
from torch_vis.graph.schema import COLUMNS, TABLES, Flag, Phase, Role
from torch_vis.graph.types import Bools


def calls_alone(run: Run, calls: list[int]) -> Run:
    """The run of these calls and of those inside them alone; it is then as long as they and their backward."""
    graph = run.graph
    keep = _kept(graph, calls)
    columns = _columns(graph, keep)
    tables = {name: getattr(graph, name) for name in TABLES if name != "results"}
    results = [row for row, kept in zip(graph.results, keep["result"].tolist()) if kept]
    part = Graph(columns, {**tables, "results": results})
    part.check()
    metrics = {
        name: Column(
            name, column.values[keep[column.along]], along=column.along,
            known=None if column.known is None else column.known[keep[column.along]],
        )
        for name, column in run.metrics.at_hand().items()
    }  # fmt: skip
    wall = _took(part, metrics)
    meta = {**run.meta, "wall_ns": wall, "overhead_ns": 0, "overhead_error_ns": 0, "compile_ns": 0}
    limits = run.limits
    # the values left elsewhere
    if not (part.node_flags & Flag.ESCAPE).any():
        limits = tuple(limit for limit in limits if limit.kind != "python")
    number = np.where(keep["node"], np.cumsum(keep["node"]) - 1, -1)
    limits = tuple(
        limit.on(n for n in number[list(limit.nodes)].tolist() if n >= 0) if limit.nodes else limit
        for limit in limits
    )
    return Run(part, Metrics(metrics), limits, meta)


def _kept(graph: Graph, calls: list[int]) -> dict[str, Bools]:
    """For each table, the rows that stay."""
    inside = np.zeros(len(graph.scope_call), dtype=bool)
    inside[calls] = True
    inside = graph.tree.inside_some(inside)
    node = inside[graph.node_scope]
    value = np.zeros(len(graph.value_type), dtype=bool)
    inputs = node[graph.in_node]
    outputs = np.repeat(node, np.diff(graph.out_start))
    value[graph.in_value[inputs]] = value[graph.out_value[outputs]] = True
    # what a kept value carries along is an earlier index
    for index in range(len(value) - 1, -1, -1):
        if value[index] and graph.value_carries[index] >= 0:
            value[graph.value_carries[index]] = True
    of_result = np.repeat(np.arange(len(graph.results)), np.diff(graph.result_start))
    result = np.ones(len(graph.results), dtype=bool)
    result[of_result[~value[graph.result_value]]] = False
    storage = np.zeros(len(graph.storage_bytes), dtype=bool)
    storage[graph.value_storage[value]] = True
    inside[0] = True
    comm = node[graph.comm_node]
    return {
        "node": node, "input": inputs, "output": outputs, "value": value, "storage": storage, "scope": inside,
        "result": result, "result_input": result[of_result],
        "comm": comm, "wait": node[graph.wait_node] & comm[graph.wait_comm],
        "resize": storage[graph.resize_storage], "placed": value[graph.placed_value],
    }  # fmt: skip


def _columns(graph: Graph, keep: dict[str, Bools]) -> dict[str, Any]:
    """Every column with the rows that stay, and its numbers as they are then."""
    number = {table: np.where(mask, np.cumsum(mask) - 1, -1) for table, mask in keep.items()}
    result: dict[str, Any] = {}
    for name, spec in COLUMNS.items():
        if spec.along.endswith("+1"):
            continue
        column = getattr(graph, name)[keep[spec.along]].astype(np.int64)
        if spec.refers in number:
            column = np.where(column >= 0, number[spec.refers][column], -1)
        result[name] = column
    count = int(keep["node"].sum())
    # operations that stay, up to each
    indices = np.append(np.cumsum(keep["node"]), [count, count + 1])
    result["resize_node"] = indices[np.maximum(graph.resize_node[keep["resize"]].astype(np.int64) - 1, 0)]
    result["resize_node"][graph.resize_node[keep["resize"]] == 0] = 0
    death = graph.storage_death[keep["storage"]].astype(np.int64)
    ends = np.where(death > len(graph), count + 1, indices[np.maximum(death - 1, 0)])
    result["storage_death"] = np.maximum(ends, result["storage_birth"] + 1)
    result["scope_parent"][1:] = np.maximum(result["scope_parent"][1:], 0)
    orphans = (result["value_producer"] < 0) & (graph.value_producer[keep["value"]] >= 0)
    result["value_role"][orphans & (result["value_role"] == Role.ACTIVATION)] = Role.INPUT
    for name, rows, table in (
        ("in_start", graph.in_start, "node"), ("out_start", graph.out_start, "node"),
        ("result_start", graph.result_start, "result"),
    ):  # fmt: skip
        result[name] = np.concatenate([[0], np.cumsum(np.diff(rows)[keep[table]])])
    return {name: column.astype(COLUMNS[name].dtype) for name, column in result.items()}


def _took(graph: Graph, metrics: dict[str, Column]) -> int:
    """How long the calls and their backward took together; the run's own columns say the same."""
    if "scope_time_ns" not in metrics:
        return 0
    backward = graph.node_phase == Phase.BACKWARD
    outer = graph.scope_parent == 0
    spent = int(metrics["time_ns"].values[backward].sum())
    wall = int(metrics["scope_time_ns"].values[outer].sum()) + spent
    for name, figure in (("scope_time_ns", wall), ("scope_self_ns", spent)):
        values = metrics[name].values.copy()
        values[0] = figure
        metrics[name] = Column(name, values, along="scope")
    return wall
