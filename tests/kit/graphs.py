"""Graphs for tests: a small one to read, one with every oddity, and a synthetic one of any size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torch_vis.graph import Call, Column, Graph, GraphBuilder, Metrics, Site, Slot, Special, TensorType
from torch_vis.graph.schema import Flag, Kind, Module, Phase, ResultRow, Role

LIMITS = ("1 value left for Python at model.py:7",)
META: dict[str, Any] = {"torch": "2.13.0", "model": "Net", "backward": True, "wall_ns": 81_000, "threads": 2}


def empty_graph() -> Graph:
    """No operation at all: only scope 0, the run."""
    return GraphBuilder().build()


def one_node_graph() -> Graph:
    """``relu(x)``, outside of any module."""
    return linear_chain(["aten::relu"])


def linear_chain(ops: list[str]) -> Graph:
    """One tensor sent through one operation after another."""
    builder = GraphBuilder()
    count = len(ops)
    kind = builder.types.intern(TensorType("float32", (4,), (1,)))
    builder.devices.intern("cpu")
    builder.calls = [Call(op, (Slot(0),), ()) for op in ops]
    builder.modules.intern(Module("", "run", "run"))
    builder.results = [ResultRow("output", "output")]
    builder.set(
        node_call=range(count),
        node_scope=[0] * count,
        node_site=[-1] * count,
        node_link=[-1] * count,
        node_phase=[Phase.FORWARD] * count,
        node_flags=[0] * count,
        in_start=range(count + 1),
        in_value=range(count),
        in_slot=[0] * count,
        in_kind=[Kind.WHOLE] * count,
        out_start=range(count + 1),
        out_value=range(1, count + 1),
        out_slot=[0] * count,
        value_producer=range(-1, count),
        value_type=[kind] * (count + 1),
        value_storage=range(count + 1),
        value_offset=[0] * (count + 1),
        value_carries=[-1] * (count + 1),
        value_name=[-1] * (count + 1),
        value_role=[Role.INPUT] + [Role.ACTIVATION] * count,
        storage_bytes=[16] * (count + 1),
        storage_birth=range(-1, count),
        storage_death=[count + 1] * (count + 1),
        storage_device=[0] * (count + 1),
        scope_parent=[-1],
        scope_module=[0],
        scope_call=[0],
        result_start=[0, 1],
        result_value=[count],
        result_kind=[Kind.WHOLE],
    )
    return builder.build()


def training_builder() -> GraphBuilder:
    """``fc(x)``, then a write into one column of the result, its sum, and one backward operation.

    ===== ========================= =========================================
    node  operation                 values
    ===== ========================= =========================================
    0     t(w)                      2 = view of 1 (fc.weight), in scope fc
    1     addmm(x, 2)               3, in scope fc
    2     fill_(3[:, 0], nan)       4, laid over 3: same storage, root scope
    3     sum(4)                    5, whole buffer
    4     expand(5)                 6, backward of node 3, a gradient
    ===== ========================= =========================================
    """
    builder = GraphBuilder()
    for path, type_, kind in (("", "Net", "module"), ("fc", "Linear", "module")):
        builder.modules.intern(Module(path, type_, kind))
    types = [
        TensorType("float32", (2, 3), (3, 1)),
        TensorType("float32", (4, 3), (3, 1)),
        TensorType("float32", (3, 4), (1, 3)),
        TensorType("float32", (2, 4), (4, 1)),
        TensorType("float32", (2,), (4,)),
        TensorType("float32", (), ()),
        TensorType("float32", (2, 4), (0, 0)),
    ]
    for type_ in types:
        builder.types.intern(type_)
    builder.devices.intern("cpu")
    builder.names.intern("x")
    builder.names.intern("fc.weight")
    builder.sites.intern(Site("model.py", 5, "forward"))
    builder.sites.intern(Site("modèle.py", 7, "<lambda>"))
    builder.calls = [
        Call("aten::t", (Slot(0),), ()),
        Call("aten::addmm", (Slot(0), Slot(1)), (("beta", 1), ("alpha", 1.0))),
        Call("aten::fill_.Scalar", (Slot(0), math.nan), ()),
        Call("aten::sum", (Slot(0),), (("dtype", Special("dtype", "float32")),)),
        Call("aten::expand", (Slot(0), (2, 4)), ()),
    ]
    builder.results = [ResultRow("output", "output"), ResultRow("fc.weight", "gradient")]
    builder.set(
        node_call=[0, 1, 2, 3, 4],
        node_scope=[1, 1, 0, 0, 0],
        node_site=[0, 0, 1, 1, -1],
        node_link=[-1, -1, -1, -1, 3],
        node_phase=[0, 0, 0, 0, Phase.BACKWARD],
        node_flags=[Flag.VIEW, 0, Flag.ESCAPE | Flag.RANDOM, 0, Flag.VIEW],
        in_start=[0, 1, 3, 4, 5, 6],
        in_value=[1, 0, 2, 3, 4, 5],
        in_slot=[0, 0, 1, 0, 0, 0],
        in_kind=[Kind.SHAPE, Kind.WHOLE, Kind.WHOLE, Kind.SHAPE, Kind.WHOLE, Kind.DATA],
        out_start=[0, 1, 2, 3, 4, 5],
        out_value=[2, 3, 4, 5, 6],
        out_slot=[0, 0, -1, 0, 0],
        value_producer=[-1, -1, 0, 1, 2, 3, 4],
        value_type=[0, 1, 2, 3, 4, 5, 6],
        value_storage=[0, 1, 1, 2, 2, 3, 3],
        value_offset=[0] * 7,
        value_carries=[-1, -1, -1, -1, 3, -1, -1],
        value_name=[0, 1, -1, -1, -1, -1, -1],
        value_role=[Role.INPUT, Role.PARAMETER, Role.PARAMETER, 0, 0, Role.OUTPUT, Role.GRADIENT],
        storage_bytes=[24, 48, 32, 4],
        storage_birth=[-1, -1, 1, 3],
        storage_death=[6, 6, 4, 6],
        storage_device=[0, 0, 0, 0],
        scope_parent=[-1, 0],
        scope_module=[0, 1],
        scope_call=[0, 0],
        result_start=[0, 1, 2],
        result_value=[5, 6],
        result_kind=[Kind.WHOLE, Kind.DATA],
    )
    return builder


def training_graph() -> Graph:
    """The graph of ``training_builder``."""
    return training_builder().build()


def training_metrics() -> Metrics:
    """Columns along nodes and scopes, one of them with a row that is not known and one with a NaN."""
    columns = [
        Column("start_ns", np.array([0, 10, 30, 45, 60], dtype=np.int64)),
        Column("time_ns", np.array([5, 15, 10, 10, 5], dtype=np.int64)),
        Column("alloc_bytes", np.array([0, 32, 0, 4, 0], dtype=np.int64)),
        Column("free_bytes", np.array([0, 0, 0, 32, 0], dtype=np.int64)),
        Column("live_bytes", np.array([72, 104, 104, 76, 76], dtype=np.int64)),
        Column(
            "flops", np.array([0, 48, 2, 8, 0], dtype=np.int64), known=np.array([1, 1, 0, 1, 1], dtype=bool)
        ),
        Column("grad_norm", np.array([0.5, math.nan, math.inf, -0.0, 1e-300])),
        Column("scope_time_ns", np.array([80, 25], dtype=np.int64), along="scope"),
        Column("scope_self_ns", np.array([55, 25], dtype=np.int64), along="scope"),
    ]
    return Metrics({column.name: column for column in columns})


def odd_calls_graph() -> Graph:
    """A chain whose calls hold every kind of literal that must come back exactly."""
    graph = linear_chain(["aten::a"] * 4)
    literals: tuple[Any, ...] = (
        True, 1, 1.0, 0, -0.0, False, None, "", "é\n\ud800", 2**80, -(2**63), 1e-320, 1.7976931348623157e308, 0.1,
        math.nan, math.inf, -math.inf, 1j, complex(-0.0, 2), complex(0.0, -0.0), complex(math.nan, -math.inf), (),
        ((),), ((1, (2.0, (True, (None,)))),), Special("dtype", "float32"), Special("device", "cuda:0"), "tensor",
    )  # fmt: skip
    calls = [
        Call("aten::a", (Slot(0), *literals), ()),
        Call("aten::a", (), (("self", Slot(0)), ("scale", 1))),
        Call("aten::a", (Slot(0), 1.0), ()),
        Call("aten::a", ((True, Slot(0)),), ()),
    ]
    tables = {
        name: getattr(graph, name) for name in ("types", "sites", "modules", "names", "devices", "results")
    }
    odd = Graph({name: getattr(graph, name) for name in columns()}, {**tables, "calls": calls})
    odd.check()
    return odd


def columns() -> list[str]:
    """The names of a graph's columns."""
    from torch_vis.graph.schema import COLUMNS

    return list(COLUMNS)


def synthetic(count: int, seed: int = 0) -> tuple[Graph, Metrics]:
    """A graph of ``count`` operations like those of a long training run: blocks of modules, forward then backward.

    Each operation reads two values and makes one, in a storage of its own. Durations, lifetimes and the distance to
    what is read are random; operators, shapes and lines repeat every 5,000 operations, as the steps of a loop do.
    """
    rng = np.random.default_rng(seed)
    half, weights = count // 2, 400
    builder = GraphBuilder()
    shapes = [(8, 2**k, 64) for k in range(10)]
    for shape in shapes:
        builder.types.intern(TensorType("float32", shape, (shape[1] * 64, 64, 1)))
    builder.devices.intern("cpu")
    for block in range(200):
        builder.sites.intern(Site(f"model_{block // 40}.py", block, "forward"))
    builder.calls = [Call(f"aten::op_{i}", (Slot(0), Slot(1), float(i)), ()) for i in range(300)]
    for weight in range(weights):
        builder.names.intern(f"layers.{weight}.weight")
    builder.modules.intern(Module("", "run", "run"))
    for layer in range(weights):
        builder.modules.intern(Module(f"layers.{layer}", "Block"))
    scopes = max(1, half // 20)
    node = np.arange(count)
    program = rng.integers(0, 300, 5000)
    recent = node - np.minimum(node, 1 + rng.geometric(0.4, count)) + weights - (node == 0)
    other = np.where(rng.random(count) < 0.4, rng.integers(0, weights, count), recent)
    link = np.where(node >= half, np.maximum(0, count - 1 - node - rng.integers(0, 3, count)), -1)
    link[node < half] = -1
    inside = 1 + np.minimum(node, half - 1) // 20 % scopes if count else node
    inside = np.where(link >= 0, inside[np.maximum(link, 0)], inside)
    types = rng.integers(0, 10, 5000)[node % 5000]
    nbytes = np.array([np.prod(shape) * 4 for shape in shapes])[types]
    values = weights + count
    builder.set(
        node_call=program[node % 5000],
        node_scope=inside,
        node_site=program[node % 5000] % 200,
        node_link=link,
        node_phase=node >= half,
        node_flags=(program[node % 5000] % 7 == 0) * Flag.VIEW,
        in_start=2 * np.arange(count + 1),
        in_value=np.stack([recent, other], axis=1).reshape(-1),
        in_slot=np.tile([0, 1], count),
        in_kind=rng.integers(0, 2, 2 * count),
        out_start=np.arange(count + 1),
        out_value=node + weights,
        out_slot=np.zeros(count),
        value_producer=np.concatenate([np.full(weights, -1), node]),
        value_type=np.concatenate([np.zeros(weights), types]),
        value_storage=np.arange(values),
        value_offset=np.zeros(values),
        value_carries=np.full(values, -1),
        value_name=np.concatenate([np.arange(weights), np.full(count, -1)]),
        value_role=np.concatenate(
            [np.full(weights, Role.PARAMETER), np.where(node >= half, Role.GRADIENT, 0)]
        ),
        storage_bytes=np.concatenate([np.full(weights, 4096), nbytes]),
        storage_birth=np.concatenate([np.full(weights, -1), node]),
        storage_death=np.concatenate(
            [np.full(weights, count + 1), np.minimum(count + 1, node + rng.geometric(0.05, count))]
        ),
        storage_device=np.zeros(values),
        scope_parent=np.concatenate([[-1], np.zeros(scopes)]),
        scope_module=np.concatenate([[0], 1 + np.arange(scopes) % weights]),
        scope_call=np.concatenate([[0], np.arange(scopes) // weights]),
    )
    time_ns = rng.lognormal(8.5, 0.8, count).astype(np.int64)
    start_ns = np.cumsum(time_ns + rng.lognormal(7, 0.5, count).astype(np.int64))
    free = np.bincount(
        np.minimum(node + rng.geometric(0.05, count), count), weights=nbytes, minlength=count + 1
    )[:count]
    scope_time = rng.lognormal(12, 1, scopes + 1).astype(np.int64)
    found = [
        Column("start_ns", start_ns),
        Column("time_ns", time_ns),
        Column("alloc_bytes", nbytes),
        Column("free_bytes", free.astype(np.int64)),
        Column("live_bytes", np.cumsum(nbytes - free.astype(np.int64))),
        Column("scope_time_ns", scope_time, along="scope"),
        Column("scope_self_ns", scope_time // 3, along="scope"),
    ]
    return builder.build(), Metrics({column.name: column for column in found})
