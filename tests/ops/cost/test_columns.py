"""The columns: the same for equal calls, unknown where no formula covers, and formulas of one's own."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_vis as tv
from tests.kit.cost_proofs import cost_of, formula, tensor, traced
from tests.kit.graphs import columns as column_names
from tests.kit.graphs import empty_graph, linear_chain, one_node_graph, synthetic, training_graph
from torch_vis.errors import UsageError
from torch_vis.graph import Call, Graph, Metrics, Slot, TensorType
from torch_vis.ops.call_groups import classes
from torch_vis.ops.cost import (
    UNKNOWN_BYTES,
    Cost,
    Operation,
    costs,
    covered,
    register_cost,
    registry,
    uncovered,
)
from torch_vis.ops.cost.compute import why_uncovered

NAMES = ("flops", "macs", "moved_bytes")


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_FORMULAS", dict(registry._FORMULAS))
    yield


def changed(graph: Graph, *, calls: list[Call] | None = None, types: list[TensorType] | None = None) -> Graph:
    tables = {name: getattr(graph, name) for name in ("sites", "modules", "names", "devices", "results")}
    tables["calls"] = graph.calls if calls is None else calls
    tables["types"] = graph.types if types is None else types
    return Graph({name: getattr(graph, name) for name in column_names()}, tables)


# Graphs of every size


def test_the_empty_graph() -> None:
    found = costs(empty_graph())
    assert {
        name: (len(column), column.uncovered, column.total()) for name, column in found.items()
    } == dict.fromkeys(NAMES, (0, 0, 0))
    assert uncovered(empty_graph()) == []


def test_a_graph_of_one_node() -> None:
    assert [costs(one_node_graph())[name][:] for name in NAMES] == [[0], [0], [32]]


def test_types_of_columns() -> None:
    for name, column in costs(training_graph()).items():
        assert (column.name, column.along, column.values.dtype) == (name, "node", np.dtype(np.int64))


def test_what_no_formula_covers_is_not_zero() -> None:
    graph = linear_chain(["aten::relu", "mylib::a", "mylib::b", "mylib::a", "aten::relu"])
    assert costs(graph)["flops"][:] == [0, None, None, None, 0]
    assert [costs(graph)[name].uncovered for name in NAMES] == [3, 3, 3]
    assert uncovered(graph) == [("mylib::a", 2), ("mylib::b", 1)]


def test_opaque_nodes_are_not_covered_whatever_they_are_called() -> None:
    def opaque(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty(3)
        made.numpy()[:] = 1
        return made + x

    graph = tv.trace(opaque, torch.ones(3)).graph
    assert dict(uncovered(graph)) == {"torch_vis::unseen_write": 1}


def test_memory_that_nobody_was_seen_to_fill() -> None:
    """Whether anything ran is not known, and said so; where there is no byte to fill, nothing did."""
    found = tv.trace(lambda: torch.empty(4, 8)).summary()
    assert found.uncovered == {"torch_vis::unseen_write": 1}
    assert "may have filled" in found.why_uncovered["torch_vis::unseen_write"]
    for size in (0, (3, 0)):
        found = tv.trace(lambda size=size: torch.empty(size)).summary()
        assert (found.uncovered, found.flops, found.moved_bytes) == ({}, 0, 0)


@pytest.mark.parametrize("count", [1000, 40_000])
def test_a_long_run_has_the_costs_of_its_parts(count: int) -> None:
    graph, _ = synthetic(count)
    names = ["aten::add.Tensor", "aten::mul.Tensor", "aten::sub.Tensor", "mylib::unknown"]
    calls = [Call(names[i % 4], (Slot(0), Slot(1)), ()) for i in range(len(graph.calls))]
    graph = changed(graph, calls=calls)
    found = costs(graph)
    sizes = np.array([type_.numel for type_ in graph.types])[graph.value_type]
    known = np.array([call.op != "mylib::unknown" for call in calls])[graph.node_call]
    views = (graph.node_flags & 16) != 0
    made = sizes[graph.out_value]
    assert (found["flops"].values == np.where(known & ~views, made, 0)).all()
    first, second = graph.in_value.reshape(-1, 2).T  # what is given twice is read once
    same = graph.value_storage[first] == graph.value_storage[second]
    read = np.where(same, np.maximum(sizes[first], sizes[second]), sizes[first] + sizes[second])
    assert (found["moved_bytes"].values == np.where(known & ~views, 4 * (made + read), 0)).all()
    assert found["flops"].uncovered == int((~known & ~views).sum())


def test_a_file_and_no_torch_are_enough(tmp_path: Any) -> None:
    path = tmp_path / "run.tvz"
    tv.trace(torch.nn.Linear(3, 2), torch.ones(4, 3), backward=True).save(path)
    program = f"""
import sys
sys.modules["torch"] = None  # any import of torch now raises
from torch_vis.graph.io.tvz import load
from torch_vis.ops.cost import costs, uncovered
graph = load({str(path)!r}).graph
print(costs(graph)["macs"].total(), uncovered(graph))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "48 []", done.stderr  # forward and the gradient of the weight


# Equal calls are worked out once


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.lists(st.integers(0, 2), max_size=5),
            st.lists(st.integers(0, 1), max_size=3),
        )
    )
)
def test_classes_are_exact(rows: list[tuple[int, list[int], list[int]]]) -> None:
    head = np.array([row[0] for row in rows], dtype=np.int64)
    parts = []
    for place in (1, 2):
        cells = np.array([cell for row in rows for cell in row[place]], dtype=np.int64)
        start = np.cumsum([0, *(len(row[place]) for row in rows)])
        parts.append((cells, start, None))
    nodes = np.arange(1, len(rows))  # some are left aside
    found = classes(nodes, head, *parts).tolist()
    for i, a in enumerate(nodes):
        for j, b in enumerate(nodes):
            assert (found[i] == found[j]) == (repr(rows[a]) == repr(rows[b]))


def test_a_formula_is_asked_once_for_equal_calls(formulas: None) -> None:
    asked = []

    @register_cost("mylib::op")
    def op(op: Operation) -> Cost:
        asked.append(op.out.shape)
        return op.count(add=op.out.numel)

    graph = linear_chain(["mylib::op"] * 50)
    assert costs(graph)["flops"][:] == [4] * 50
    assert len(asked) == 50  # a chain has fifty calls, each its own row
    asked.clear()
    same = changed(graph, calls=[graph.calls[0]] * 50)
    once = Graph(
        {**{n: getattr(same, n) for n in column_names()}, "node_call": np.zeros(50)},
        {
            name: getattr(same, name)
            for name in ("calls", "types", "sites", "modules", "names", "devices", "results")
        },
    )
    assert costs(once)["flops"].total() == 200 and len(asked) == 1


# Unknown sizes


@pytest.mark.parametrize(
    "type_",
    [
        TensorType("float32", (), (), "nested"),
        TensorType("float32", (4,), (), "sparse_coo"),
        TensorType("float32", ("s0",), (1,)),  # type: ignore[arg-type]
        TensorType("float32", (-1,), (1,)),
    ],
)
def test_sizes_that_are_not_known_are_not_covered(
    type_: TensorType, caplog: pytest.LogCaptureFixture
) -> None:
    graph = changed(linear_chain(["aten::exp", "aten::view"]), types=[type_])
    assert costs(graph)["flops"][:] == [None, 0]
    assert not caplog.records


def test_a_number_too_large_for_the_column_is_not_known(formulas: None) -> None:
    register_cost("mylib::huge")(lambda op: Cost(2**63))
    register_cost("mylib::large")(lambda op: Cost(2**63 - 1))
    assert costs(linear_chain(["mylib::huge", "mylib::large"]))["flops"][:] == [None, 2**63 - 1]


# Formulas of one's own


def test_a_formula_for_an_operator_of_ones_own(formulas: None) -> None:
    @register_cost("mine::scaled_sin")
    def scaled_sin(op: Operation) -> Cost:
        assert (op.arg(0, "x").shape, op.arg(1, "scale", 2.0), op.arg(None, "bias", "none")) == (
            (4,),
            2.0,
            "none",
        )
        return op.count(mul=op.out.numel, call=op.out.numel)

    graph = linear_chain(["mine::scaled_sin", "mine::scaled_sin.out"])
    assert [costs(graph)[name][:] for name in NAMES] == [[8, 8], [0, 0], [32, 32]]
    assert "mine::scaled_sin" in covered()


def test_an_overload_may_have_a_formula_of_its_own(formulas: None) -> None:
    register_cost("mylib::op")(lambda op: Cost(1))
    register_cost("mylib::op.special")(lambda op: Cost(2))
    graph = linear_chain(["mylib::op", "mylib::op.special", "mylib::op.other", "mylib::op_"])
    assert costs(graph)["flops"][:] == [1, 2, 1, None]  # only aten's names say what they write


def test_a_formula_may_leave_a_case_open_or_say_the_bytes(formulas: None) -> None:
    register_cost("mylib::none")(lambda op: None)
    register_cost("mylib::bytes")(lambda op: Cost(1, 0, 7))
    register_cost("mylib::unknown_bytes")(lambda op: Cost(1, 0, UNKNOWN_BYTES))
    graph = linear_chain(["mylib::none", "mylib::bytes", "mylib::unknown_bytes"])
    assert costs(graph)["flops"][:] == [None, 1, 1]
    assert costs(graph)["moved_bytes"][:] == [None, 7, None]


def test_a_formula_that_fails_is_named_and_the_rest_counts(
    formulas: None, caplog: pytest.LogCaptureFixture
) -> None:
    @register_cost("mylib::broken")
    def broken(op: Operation) -> Cost:
        return Cost(op.args[7])

    with caplog.at_level(logging.WARNING):
        assert costs(linear_chain(["aten::exp", "mylib::broken"]))["flops"][:] == [4, None]
    assert "mylib::broken" in caplog.text and "IndexError" in caplog.text


def test_a_formula_that_fails_is_named_once_for_each_operator_and_cause(
    formulas: None, caplog: pytest.LogCaptureFixture
) -> None:
    @register_cost("mylib::one", "mylib::other")
    def broken(op: Operation) -> Cost:
        raise ValueError(f"no formula for {op.out.shape}")

    graph = linear_chain(["mylib::one"] * 3 + ["mylib::other"])
    sizes = [TensorType("float32", (size,), (1,)) for size in (4, 5, 6)]
    with caplog.at_level(logging.WARNING):
        for size in sizes:
            costs(changed(graph, types=[size]))
        uncovered(graph)
    assert [record.args[0] for record in caplog.records] == ["mylib::one", "mylib::other"]


def test_a_plain_number_is_told_what_to_be_instead(formulas: None) -> None:
    register_cost("mylib::number")(lambda op: 5)  # type: ignore[arg-type, return-value]
    told = why_uncovered(linear_chain(["mylib::number"]))["mylib::number"]
    assert told.endswith("the formula returned 5; return op.count(...) or Cost(flops=...)")


def test_why_an_operator_is_not_covered(formulas: None) -> None:
    register_cost("mylib::broken")(lambda op: Cost(op.args[7]))
    register_cost("mylib::partial")(lambda op: None)
    graph = linear_chain(["mylib::broken", "aten::exp", "mylib::partial", "mylib::none"])
    assert why_uncovered(graph) == {
        "mylib::broken": "its formula failed: IndexError: tuple index out of range",
        "mylib::partial": "its formula does not cover these arguments",
        "mylib::none": "no formula",
    }


@pytest.mark.parametrize("wrong", [Cost(1.5), Cost(-1), 7, "7"])  # type: ignore[arg-type]
def test_what_is_no_cost_is_not_taken_for_one(
    formulas: None, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    register_cost("mylib::wrong")(lambda op: wrong)
    assert costs(linear_chain(["mylib::wrong"]))["flops"][:] == [None]
    assert "mylib::wrong" in caplog.text


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (
            lambda: register_cost("aten::mm")(lambda op: None),
            "'aten::mm' already has a cost formula: matrix_product in",
        ),
        (lambda: register_cost("mylib::a", "mylib::a")(lambda op: None), "named twice"),
        (lambda: register_cost("mm")(lambda op: None), "with its namespace, as in 'aten::mm'"),
        (lambda: register_cost("mylib::")(lambda op: None), "'mylib::' names no operator"),
        (lambda: register_cost()(lambda op: None), "takes the names of operators"),
        (
            lambda: register_cost("aten::convolutoin")(lambda op: None),
            r"no operator 'aten::convolutoin'.*'aten::convolution'",
        ),
        (
            lambda: register_cost("aten::add.Tensr")(lambda op: None),
            r"no operator 'aten::add.Tensr'.*'aten::add.Tensor'",
        ),
        (lambda: register_cost("prims::ad")(lambda op: None), r"no operator 'prims::ad'.*'prims::add'"),
        (lambda: register_cost("aten::mm_")(lambda op: None), r"no operator 'aten::mm_'"),
        (lambda: register_cost(lambda op: None), "takes the names of operators"),  # type: ignore[arg-type]
        (lambda: register_cost("mylib::a")(3), "a function of the operation, not 3"),  # type: ignore[type-var]
    ],
)
def test_what_cannot_be_registered(formulas: None, register: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        register()


def test_a_refused_formula_leaves_nothing_behind(formulas: None) -> None:
    with pytest.raises(UsageError):
        register_cost("mylib::new", "aten::mm")(lambda op: None)
    assert "mylib::new" not in covered()


@pytest.mark.parametrize(
    "name", ["aten::special_ndtri", "aten::add.Tensor", "aten::add_", "aten::uniform", "mylib::comes_later"]
)
def test_names_that_exist_or_may_come_to(formulas: None, name: str) -> None:
    registry._FORMULAS.pop(name, None)
    register_cost(name)(lambda op: Cost(1))
    assert name in covered()


def test_where_torch_is_not_loaded_it_stays_so() -> None:
    program = """
import sys
from torch_vis.ops.cost import Cost, register_cost
register_cost("aten::no_such_operator")(lambda op: Cost(0))
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


def test_every_name_is_an_operator_of_torch() -> None:
    import torch._prims
    import torch.distributed._functional_collectives  # registers the collectives

    known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    known |= set(torch._C._dispatch_get_all_op_names()) | {name[:-1] for name in known if name.endswith("_")}
    namespaces = ("aten::", "prims::", "quantized::")
    assert [name for name in covered() if name.startswith(namespaces) and name not in known] == []


def test_in_place_and_out_are_the_plain_operator() -> None:
    x = torch.rand(5)
    plain = cost_of(traced(torch.sigmoid, x)).flops
    assert cost_of(traced(lambda x: x.sigmoid_(), x)).flops == plain
    assert cost_of(traced(lambda x: torch.sigmoid(x, out=torch.empty(5)), x), "sigmoid").flops == plain


def test_arguments_by_name() -> None:
    a, b, out = tensor(2, 3), tensor(3, 4), tensor(2, 4)
    op = Operation("aten::mm", (a,), {"mat2": b}, (out,), ())
    assert op.arg(1, "mat2") is b and op.arg(2, "bias") is None
    assert (
        formula("linear", tensor(5, 3), tensor(4, 3), out=tensor(5, 4), bias=tensor(4)).flops == 2 * 60 + 20
    )


def test_a_formula_that_comes_after_the_run_counts(formulas: None, tmp_path: Any) -> None:
    @torch.library.custom_op("mylib::late", mutates_args=())
    def late(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    trace = tv.trace(lambda: late(torch.ones(4, 8), torch.ones(8, 4)))
    assert trace.summary().why_uncovered == {"mylib::late": "no formula"}
    trace.save(tmp_path / "before.tvz")
    loaded = tv.load(tmp_path / "before.tvz")
    assert loaded.summary().uncovered == {"mylib::late": 1}
    register_cost("mylib::late")(lambda op: op.count(mac=op.out.numel * op.arg(0, "a").shape[1]))
    for found in (trace, loaded, tv.load(tmp_path / "before.tvz")):
        assert (found.summary().macs, found.summary().uncovered) == (128, {})
        assert found.summary().moved_bytes == 4 * (2 * 32 + 2 * 32 + 16)


def test_what_a_file_knows_stays_where_no_formula_is(formulas: None, tmp_path: Any) -> None:
    register_cost("mylib::known")(lambda op: Cost(7))
    graph = linear_chain(["mylib::known", "mylib::new"])
    trace = tv.Trace(graph, tv.Trace(graph, Metrics()).metrics)
    assert trace.metrics["flops"][:] == [7, None]
    trace.save(tmp_path / "run.json")
    del registry._FORMULAS["mylib::known"]
    register_cost("mylib::new")(lambda op: Cost(5))
    loaded = tv.load(tmp_path / "run.json")
    assert loaded.metrics["flops"][:] == [7, 5]
    loaded.save(tmp_path / "again.json")
    assert tv.load(tmp_path / "again.json").metrics["flops"][:] == [7, 5]


def test_bytes_of_an_alias_that_was_written_to_since():
    def f(x):
        y = x.clone()
        v = y.view(-1)
        y.add_(1)
        return v * v

    t = tv.trace(f, torch.ones(2, 3))
    (node,) = t.graph.find(op="mul")
    assert t.metrics["moved_bytes"][node.index] == 2 * 24  # read once, written once


def test_sparse_products_of_tensors_that_were_given(tmp_path):
    a, b = torch.eye(4).to_sparse(), torch.randn(4, 5)
    for run in (
        lambda b: torch.sparse.mm(a, b),
        lambda b: a.to_sparse_csr() @ b,
        lambda b: torch.sparse.addmm(b, a, b),
    ):
        t = tv.trace(run, b)
        assert t.metrics["macs"].total() == 4 * 5 and t.summary().uncovered == {}
        t.save(tmp_path / "t.tvz")
        assert tv.load(tmp_path / "t.tvz").metrics["macs"].total() == 4 * 5
