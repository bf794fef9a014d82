"""The reason of every boundary: making the two parts one would break just what is named, and not less."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import torch_vis as tv
from tests.kit import fusing
from tests.kit.traced import traced
from torch_vis.analysis.fusion import groups as merging
from torch_vis.analysis.fusion.dependences import LoopRelation
from torch_vis.analysis.partition import parts as reasons
from torch_vis.analysis.partition.parts import FULL, Parts, touched
from torch_vis.analysis.partition.report import PartitionReport
from torch_vis.graph.schema import Flag
from torch_vis.graph.schema import Kind as Read

SOME = (
    "bert",
    "gpt2",
    "resnet50",
    "lstm",
    "adam_amsgrad_step",
    "custom_operator",
    "swin",
    "mamba",
    "detr",
)
BUDGETS: dict[str, dict[str, Any]] = {
    "operations": {"max_operations": 3},
    "flops": {"max_flops": 700},
    "bytes": {"max_bytes": 2000},
    "all": {"max_operations": 4, "max_flops": 900, "max_bytes": 1500},
    "module": {"by": "module"},
    "depth": {"depth": 1, "max_operations": 2},
}


def program(seed: int) -> Callable[..., Any]:
    """A random program over square matrices."""
    draw = random.Random(seed)
    unary: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.sin, torch.relu, lambda x: torch.softmax(x, 0), lambda x: torch.softmax(x, 1),
        lambda x: x - x.mean(1, keepdim=True), lambda x: x.t().exp(), lambda x: x * x.sum(), lambda x: x[:, :1] + x,
        lambda x: torch.cat([x[:3], x[3:]]), lambda x: x.sort().values, lambda x: x[torch.tensor([1, 0, 3, 2, 5, 4])],
        lambda x: x + torch.rand_like(x), lambda x: x.clone().mul_(2), lambda x: x * float(x.sum()) * 1e-6,
    ]  # fmt: skip
    binary = [torch.add, torch.mul, torch.matmul, torch.maximum, lambda a, b: torch.addmm(a, a, b, beta=0)]
    steps = [
        (draw.randrange(len(unary)), None)
        if draw.random() < 0.6
        else (draw.randrange(len(binary)), draw.random())
        for _ in range(draw.randint(3, 14))
    ]
    picks = [(draw.random(), draw.random()) for _ in steps]

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = [x, y]
        for (number, both), (one, two) in zip(steps, picks, strict=True):
            a, b = made[-1 - int(one**2 * len(made))], made[-1 - int(two * len(made))]
            made.append(unary[number](a) if both is None else binary[number](a, b))  # type: ignore[operator]
        return made[-1] + made[-2]

    return run


def run(seed: int) -> tv.Trace:
    torch.manual_seed(seed)
    return tv.trace(program(seed), torch.rand(6, 6), torch.rand(6, 6))


def crossings(columns: Parts) -> list[tuple[int, int, int, str]]:
    """Every tensor that passes: the part that made it, the part that takes it, its number and the reason."""
    part, value, _, reason = columns.crossings
    maker = columns.part[columns.graph.value_producer[value]]
    return [
        (int(a), int(b), int(v), reasons.REASONS[r])
        for a, b, v, r in zip(maker, part, value, reason, strict=True)
    ]


# Stretches of the run


def homes(found: PartitionReport, part: int) -> dict[str, set[int]]:
    """What the kernels of a part are at home in."""
    columns, graph = found.columns, found.graph
    members = columns.members(part)
    loud = members[columns.cut.fused.is_kernel[members]]
    loud = loud if len(loud) else members
    escapes = (graph.node_flags & Flag.ESCAPE) != 0
    owner = columns.cut.owner
    return {
        "another phase": {*graph.node_phase[loud].tolist()},
        "another device": {*columns.cut.fused.flow.device[loud].tolist()} - {-1},
        "data needed by Python": {*(np.cumsum(escapes) - escapes)[loud].tolist()},
        "module boundary": set() if owner is None else {*owner[loud].tolist()},
    }


def used(found: PartitionReport, parts: tuple[int, ...]) -> dict[str, float]:
    """What parts would have together of what budgets count."""
    columns, graph = found.columns, found.graph
    inside = {int(node) for part in parts for node in columns.members(part)}
    kernels = columns.cut.fused.is_kernel
    rows = touched(columns.cut.fused)
    values = {int(value) for node, value in zip(rows.node, rows.value) if int(node) in inside}
    return {
        "operations": sum(bool(kernels[node]) for node in inside),
        "flops": sum(found.flops[node] or 0 for node in inside),  # type: ignore[attr-defined]
        "bytes": sum(fusing.size_of(graph.values[value]) for value in values),
    }


def check_stretches(trace: tv.Trace, options: dict[str, Any]) -> set[str]:
    found = trace.partition(**options)
    found.flops = trace.metrics["flops"]  # type: ignore[attr-defined]
    limits = {name: options.get(f"max_{name}") for name in FULL}
    named = set()
    for a, b, _, reason in crossings(found.columns):
        one, two = homes(found, a), homes(found, b)
        apart = {name for name in one if one[name].isdisjoint(two[name]) and one[name] and two[name]}
        both = used(found, (a, b))
        over = [FULL[name] for name, limit in limits.items() if limit is not None and both[name] > limit]
        if reason in one:
            assert reason in apart
        elif reason in FULL.values():
            assert not apart and reason in over
            assert b > a + 1 or reason == found.parts[b].reason
        else:
            assert reason == reasons.BETWEEN and not apart and not over and b > a + 1
        named.add(reason)
    return named


@pytest.mark.parametrize("budget", BUDGETS)
def test_of_a_budget_the_one_that_is_named_would_be_broken(budget: str) -> None:
    named = set[str]()
    for seed in range(25):
        named |= check_stretches(run(seed), BUDGETS[budget])
    assert named & {*FULL.values()} if budget != "module" else not named & {*FULL.values()}


@pytest.mark.parametrize("name", ["bert", "resnet50", "adam_amsgrad_step", "func_jvp"])
def test_of_models_too(name: str) -> None:
    trace = traced(name)
    for options in ({"max_operations": 20}, {"by": "module", "depth": 2}, {"max_bytes": 20_000_000}):
        check_stretches(trace, options)


def test_a_row_of_the_same_operation_is_cut_by_the_budget_alone() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = x.sin()
        return x

    found = tv.trace(chain, torch.ones(4)).partition(max_operations=2)
    assert [row.reason for row in found.boundaries] == ["budget of operations"]
    assert [part.reason for part in found.parts][1:] == ["budget of operations"] * 2


# Kernels


def paths(trace: tv.Trace, part: list[int]) -> set[tuple[int, int]]:
    """Pairs of parts with a path from one to the other through a third."""
    users: dict[int, set[int]] = defaultdict(set)
    for a, b in fusing.must_precede(trace.graph):
        if part[a] != part[b]:
            users[part[a]].add(part[b])
    found = set()
    for source in list(users):
        waiting, seen = [*users[source]], {*users[source]}
        while waiting:
            for user in users[waiting.pop()]:
                found.add((source, user))
                if user not in seen:
                    seen.add(user)
                    waiting.append(user)
    return found


def refused(columns: Parts, a: int, b: int) -> bool:
    """Whether the rules of fusing forbid to make kernels of two parts one, whatever else there is."""
    fused, graph = columns.cut.fused, columns.graph
    flow, merged = fused.flow, fused.merged
    walk = object.__new__(merging._Walk)
    edges = flow.edges
    walk.kept, walk.rel = flow.kept, edges.rel.tolist()
    walk.numel, walk.spread = edges.numel.tolist(), edges.pattern.tolist()
    part = columns.part
    for edge in np.flatnonzero((part[edges.source] == a) & (part[edges.target] == b)).tolist():
        source, target = int(edges.source[edge]), int(edges.target[edge])
        if flow.is_view[target]:
            continue
        one, two = fused.traits[merged[source]], fused.traits[merged[target]]
        if flow.is_view[source]:
            values = [
                v for v in graph.nodes[target].inputs if v.producer is not None and v.producer.index == source
            ]
            producer = fusing.base(values[0]).producer
            one = None if producer is None else fused.traits[merged[producer.index]]
        if one is None or two is None or not merging._go_together(one, two, True):
            return True
        if walk._fit(one, two, edge) != merging.YES:
            return True
    return False


def check_kernels(trace: tv.Trace) -> set[str]:
    found = trace.partition()
    columns = found.columns
    through = paths(trace, columns.part.tolist())
    named = set()
    for a, b, value, reason in crossings(columns):
        maker = int(columns.graph.value_producer[value])
        if reason == reasons.CYCLE:
            assert (a, b) in through and not refused(columns, a, b)
        elif reason in (reasons.BETWEEN, reasons.ALONG):
            assert (a, b) not in through and not refused(columns, a, b)
        else:
            assert reason not in FULL.values() and refused(columns, a, b), (reason, maker)
        named.add(reason)
    return named


@pytest.mark.parametrize("name", SOME)
def test_what_is_named_of_kernels_is_what_the_rules_forbid(name: str) -> None:
    trace = traced(name)
    if len(trace.graph) < 3000:
        check_kernels(trace)


def test_and_of_random_programs() -> None:
    named = set[str]()
    for seed in range(60):
        named |= check_kernels(run(seed))
    assert {reasons.REDUCTION, reasons.CYCLE, reasons.LAYOUT, "operand of a matrix product"} <= named


def test_all_rules_at_once_are_the_rules_one_by_one() -> None:
    """The columns that reasons are told by agree with the walk that fuses, read by read."""
    for seed in range(60):
        columns = run(seed).partition().columns
        fused, graph = columns.cut.fused, columns.graph
        flow, told = fused.flow, reasons.Reasons(columns.cut, columns._flops)
        edges = flow.edges
        rows = np.flatnonzero((graph.in_kind != Read.SHAPE) & ~flow.is_view[graph.in_node])
        value = flow.root[graph.in_value[rows]]
        rows = rows[graph.value_producer[value] >= 0]
        maker, reader = graph.value_producer[flow.root[graph.in_value[rows]]], graph.in_node[rows]
        known = [fused.traits[fused.merged[node]] is not None for node in range(len(graph))]
        keep = np.array([known[a] and known[b] for a, b in zip(maker, reader)], dtype=bool)
        rows, maker, reader = rows[keep], maker[keep], reader[keep]
        one, two = told._groups.at(fused.merged[maker]), told._groups.at(fused.merged[reader])
        fits = told._fits(one, two, rows, graph.in_value[rows])
        assert len(edges.source) >= len(rows)
        for row, a, b, fit in zip(rows.tolist(), maker.tolist(), reader.tolist(), fits.tolist(), strict=True):
            walk = object.__new__(merging._Walk)
            walk.kept, walk.rel = flow.kept, [int(flow.row_rel[row])]
            walk.numel = [int(flow.numel_of_type[graph.value_type[flow.root[graph.in_value[row]]]])]
            walk.spread = [int(flow.row_spread[row])]
            first, second = fused.traits[fused.merged[a]], fused.traits[fused.merged[b]]
            assert first is not None and second is not None
            assert fit == (walk._fit(first, second, 0) == merging.YES), LoopRelation(walk.rel[0])
