"""The oracle can fail: every kind of damage to a graph is found, and every case of the zoo passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.zoo import ZOO, Case, close_process_group
from torch_vis import errors
from torch_vis.graph.graph import Graph, GraphBuilder
from torch_vis.graph.schema import COLUMNS, Kind
from torch_vis.replay.check import check as check_graph


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    yield
    close_process_group()


# ---------------------------------------------------------------- the zoo

NO_DATA = {"fake"}
UNSEEN = {"unseen"}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in ZOO.items()])
def test_the_zoo_passes(case: Case) -> None:
    model, args, kwargs = case.make()
    t = tv.trace(model, *args, kwargs=kwargs, backward=case.backward)
    if case.tags & NO_DATA:
        with pytest.raises(errors.TensorsMissing):
            t.check()
    elif case.tags & UNSEEN:
        assert any("cannot be seen" in limit for limit in t.limits)
        with pytest.raises(errors.CheckFailed):
            t.check()
    else:
        report = t.check()
        assert report.operations == len(t.graph) and report.results == len(t.graph.results)
        assert report.pruned <= report.operations and report.shuffles == 2
        leaves = [row for row in t.graph.outcomes if row.kind == "output"]
        assert leaves or case.name == "empty_model"
        assert not case.backward or any(row.kind == "gradient" for row in t.graph.outcomes)


# ---------------------------------------------------------------- damage


def columns(graph: Graph) -> dict[str, Any]:
    return {name: getattr(graph, name).copy() for name in COLUMNS}


def rebuilt(graph: Graph, changed: dict[str, Any], calls: list[Any] | None = None) -> Graph:
    """A graph with some columns changed, made as every graph is made."""
    builder = GraphBuilder()
    builder.calls = list(graph.calls) if calls is None else calls
    for name in ("types", "sites", "modules", "names", "devices"):
        getattr(builder, name).rows.extend(getattr(graph, name))
    builder.results = list(graph.results)
    builder.set(**changed)
    return builder.build()


def aliased(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """One buffer, two disjoint writes, and two readers."""
    y = x.clone()
    y[:, 0].add_(a)
    y[:, 1].mul_(b)
    return y + 1, y[:, 0] - a


def make() -> tv.Trace:
    torch.manual_seed(0)
    return tv.trace(aliased, torch.rand(3, 2), torch.rand(3), torch.rand(3))


def node_of(graph: Graph, name: str) -> int:
    return next(node.index for node in graph.nodes if node.name == name)


def drop_rows(graph: Graph, keep: Any) -> dict[str, Any]:
    """The input rows that a mask keeps, with the offsets to match."""
    changed = columns(graph)
    counts = np.bincount(graph.in_node[keep], minlength=len(graph))
    for name in ("in_value", "in_slot", "in_kind"):
        changed[name] = changed[name][keep]
    changed["in_start"] = np.concatenate([[0], np.cumsum(counts)])
    return changed


def without_hidden_reads(graph: Graph) -> Graph:
    assert (graph.in_slot == -1).any(), "the example needs a read through an alias"
    return rebuilt(graph, drop_rows(graph, graph.in_slot >= 0))


def another_literal(graph: Graph) -> Graph:
    calls = list(graph.calls)
    place = int(graph.node_call[node_of(graph, "add")])
    calls[place] = calls[place]._replace(args=(calls[place].args[0], 2))
    return rebuilt(graph, columns(graph), calls)


def another_operator(graph: Graph) -> Graph:
    calls = list(graph.calls)
    place = int(graph.node_call[node_of(graph, "mul_")])
    calls[place] = calls[place]._replace(op="aten::div_.Tensor")
    return rebuilt(graph, columns(graph), calls)


def swapped_inputs(graph: Graph) -> Graph:
    changed = columns(graph)
    first, last = graph.input_span(node_of(graph, "sub"))
    rows = [row for row in range(first, last) if graph.in_slot[row] >= 0]
    changed["in_slot"][rows] = changed["in_slot"][rows[::-1]]
    return rebuilt(graph, changed)


def data_called_shape(graph: Graph) -> Graph:
    changed = columns(graph)
    first, last = graph.input_span(node_of(graph, "clone"))
    changed["in_kind"][first:last] = Kind.SHAPE
    return rebuilt(graph, changed)


def an_earlier_version(graph: Graph) -> Graph:
    """The reader of the whole buffer is told of the clone only, as a tracer that follows objects would tell."""
    changed = columns(graph)
    first, last = graph.input_span(node_of(graph, "add"))
    keep = np.ones(len(graph.in_value), dtype=bool)
    clone = int(graph.out_value[graph.output_span(node_of(graph, "clone"))[0]])
    for row in range(first, last):
        if graph.in_slot[row] < 0:
            keep[row] = False
    changed = drop_rows(graph, keep)
    kept_first = int(changed["in_start"][node_of(graph, "add")])
    changed["in_value"][kept_first] = clone
    changed["in_kind"][kept_first] = Kind.DATA
    return rebuilt(graph, changed)


def another_geometry(graph: Graph) -> Graph:
    changed = columns(graph)
    view = int(graph.out_value[graph.output_span(node_of(graph, "select"))[0]])
    changed["value_offset"][view] = 1
    return rebuilt(graph, changed)


def a_result_without_its_edges(graph: Graph) -> Graph:
    changed = columns(graph)
    changed["result_kind"][int(graph.result_start[0])] = Kind.SHAPE
    return rebuilt(graph, changed)


DAMAGE: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "no hidden reads": (without_hidden_reads, "differ"),
    "another literal": (another_literal, "add("),
    "another operator": (another_operator, "differ"),
    "swapped inputs": (swapped_inputs, "sub("),
    "an earlier version": (an_earlier_version, "differ"),
    "another geometry": (another_geometry, "select("),
    "a result without its edges": (a_result_without_its_edges, "output.0"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_the_operation_named(what: str) -> None:
    damage, said = DAMAGE[what]
    t = make()
    t.check(inputs=True)
    with pytest.raises(errors.CheckFailed) as error:
        check_graph(damage(t.graph), t.kept, shuffles=8)
    text = str(error.value)
    assert said in text, text
    if what != "a result without its edges":
        assert f"{__file__}:" in text and "node " in text, f"no operation and line in: {text}"


def test_an_input_called_shape_is_found() -> None:
    """A replay pruned by the edges does not have the inputs that no edge leads from."""
    t = make()
    with pytest.raises(errors.CheckFailed, match=r"first operation that differs is node 0, .* = clone\("):
        check_graph(data_called_shape(t.graph), t.kept)


def test_in_order_replay_alone_would_not_see_a_missing_edge() -> None:
    """The reason for pruning and shuffling: memory itself repairs what the graph forgot."""
    from torch_vis.replay.replay import Replay, ReplayPlan, same_bits

    t = make()
    graph = an_earlier_version(t.graph)
    replay = Replay(graph, t.kept, ReplayPlan(graph, t.kept))
    replay.run(range(len(graph)))
    assert same_bits(replay.tensor(graph.outcomes[0].value.index), t.kept.results[0])


def test_the_message_names_the_module() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh()))
    t = tv.trace(model, torch.rand(2, 3))
    calls = list(t.graph.calls)
    place = int(t.graph.node_call[node_of(t.graph, "tanh")])
    calls[place] = calls[place]._replace(op="aten::sigmoid")
    with pytest.raises(errors.CheckFailed, match=r"in '1\.0'"):
        check_graph(rebuilt(t.graph, columns(t.graph), calls), t.kept)


def test_a_wrong_state_result_is_found() -> None:
    """Statistics that forward wrote are compared as outputs are."""
    model = nn.BatchNorm1d(3).train()
    t = tv.trace(model, torch.rand(4, 3))
    assert {row.name for row in t.graph.outcomes} >= {"running_mean", "running_var", "num_batches_tracked"}
    calls = list(t.graph.calls)
    place = int(t.graph.node_call[node_of(t.graph, "native_batch_norm")])
    arguments = list(calls[place].args)
    arguments[6] = 0.5  # momentum: the output is the same, the statistics are not
    calls[place] = calls[place]._replace(args=tuple(arguments))
    with pytest.raises(errors.CheckFailed, match="running_mean"):
        check_graph(rebuilt(t.graph, columns(t.graph), calls), t.kept)


def test_a_wrong_gradient_is_found() -> None:
    t = tv.trace(lambda x: x.tanh(), torch.rand(4, requires_grad=True), backward=True)
    calls = list(t.graph.calls)
    place = int(t.graph.node_call[node_of(t.graph, "tanh_backward")])
    calls[place] = calls[place]._replace(op="aten::sigmoid_backward.grad_input".partition(".")[0])
    with pytest.raises(errors.CheckFailed, match=r"x\.grad"):
        check_graph(rebuilt(t.graph, columns(t.graph), calls), t.kept)


# ---------------------------------------------------------------- inputs=True


def test_inputs_that_are_connected_can_change_the_output_and_the_others_cannot() -> None:
    t = make()
    assert t.check(inputs=True).inputs == 6  # three inputs, two outputs


def test_a_missing_connection_is_found_by_perturbation() -> None:
    """Of many outputs, not each is replayed alone; an input that the others need is then there for all."""

    def f(x: Tensor) -> list[Tensor]:
        return [x + place for place in range(8)]

    t = tv.trace(f, torch.rand(2))
    changed = columns(t.graph)
    changed["in_kind"][7] = Kind.SHAPE
    damaged = rebuilt(t.graph, changed)
    check_graph(damaged, t.kept)
    with pytest.raises(errors.CheckFailed, match=r"'x' and 'output\.7' are not connected"):
        check_graph(damaged, t.kept, inputs=True)


def two_sums(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, a + 1


def test_a_read_that_does_not_happen_is_found_by_perturbation() -> None:
    t = tv.trace(two_sums, torch.rand(2), torch.rand(2))
    changed = columns(t.graph)
    a = next(value.index for value in t.graph.inputs if value.name == "a")
    changed["in_value"] = np.insert(t.graph.in_value, 1, a)
    changed["in_slot"] = np.insert(t.graph.in_slot, 1, -1)
    changed["in_kind"] = np.insert(t.graph.in_kind, 1, Kind.DATA)
    changed["in_start"] = np.array([0, 2, 3])
    with pytest.raises(errors.CheckFailed, match=r"'a' and 'output\.0' are connected .* no operation"):
        check_graph(rebuilt(t.graph, changed), t.kept, inputs=True)


def test_a_result_that_rests_on_too_much_is_found_by_perturbation() -> None:
    t = tv.trace(two_sums, torch.rand(2), torch.rand(2))
    changed = columns(t.graph)
    changed["result_value"] = np.array(
        [*t.graph.result_value[:1], t.graph.result_value[1], *t.graph.result_value[1:]]
    )
    changed["result_kind"] = np.zeros(3)
    changed["result_start"] = np.array([0, 2, 3])
    with pytest.raises(errors.CheckFailed, match=r"'a' and 'output\.0' are connected"):
        check_graph(rebuilt(t.graph, changed), t.kept, inputs=True)


@pytest.mark.parametrize("select", [lambda y: y[0], lambda y: y.unbind()[0]])
def test_a_part_of_what_one_operation_made_is_no_failure(select: Callable[[Tensor], Tensor]) -> None:
    """An operation is one node: a reader of one row of a stack is connected to all that was stacked."""
    t = tv.trace(lambda a, b: select(torch.stack([a, b])), torch.rand(3), torch.rand(3))
    assert t.check(inputs=True).inputs == 2


HIDING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "taken away again": lambda x, a: (x + a) - a,
    "masked by what was compared": lambda x, a: torch.where(x > 9, a, x),
    "times zero": lambda x, a: x + a * 0,
    "rounded": lambda x, a: x + (a * 1e-30).round(),
    "an index that all agree on": lambda x, a: torch.zeros_like(x)[(a > 0.5).long()] + x,
    "clamped": lambda x, a: x * a.clamp(5, 5.5),
    "taken from itself": lambda x, a: x + (a - a),
    "far from a threshold": lambda x, a: x + (a > 1e4),
}


@pytest.mark.parametrize("how", HIDING)
def test_a_connection_that_the_whole_run_hides_is_proved_step_by_step(how: str) -> None:
    t = tv.trace(HIDING[how], torch.rand(3), torch.rand(3))
    assert t.check(inputs=True).inputs == 2


def test_inputs_that_share_memory() -> None:
    """Two arguments may lie in one block; changing the one then changes the other, and that is no missing edge."""
    x = torch.rand(4, 3)
    t = tv.trace(lambda x, row: (x[0] * 2, row * 3), x, x[1])
    t.check(inputs=True)


# ---------------------------------------------------------------- tensors


def test_after_the_weights_changed() -> None:
    model = nn.Linear(3, 2)
    t = tv.trace(model, torch.rand(1, 3))
    t.check()
    with torch.no_grad():
        model.weight.add_(1)
    with pytest.raises(errors.TensorsMissing, match="weight"):
        t.check()


def test_after_an_input_or_the_output_changed() -> None:
    x = torch.rand(3)
    t = tv.trace(lambda x: x * 2, x)
    x.add_(1)
    with pytest.raises(errors.TensorsMissing, match="trace: x"):
        t.check()
    t = tv.trace(lambda x: x * 2, torch.rand(3))
    t.output.zero_()
    with pytest.raises(errors.TensorsMissing, match="output"):
        t.check()


def test_after_a_training_step_that_is_itself_in_the_trace() -> None:
    """What the run itself wrote is no reason to refuse."""
    case = ZOO["adamw_foreach_step"]
    model, args, kwargs = case.make()
    t = tv.trace(model, *args, kwargs=kwargs)
    t.check()
    t.check(shuffles=0)


def test_tensors_that_are_not_held(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 2), torch.rand(1, 3)
    with pytest.raises(errors.TensorsMissing):
        tv.trace(model, x, keep=False).check()
    t = tv.trace(model, x)
    t.save(tmp_path / "run.tvz")
    with pytest.raises(errors.TensorsMissing):
        tv.load(tmp_path / "run.tvz").check()
    with tv.record(model, keep=False) as block:
        model(x)
    with pytest.raises(errors.TensorsMissing):
        block.check()


def test_the_same_seed_gives_the_same_orders() -> None:
    t = make()
    assert t.check(shuffles=5, seed=3) == t.check(shuffles=5, seed=3)
    assert "5 random orders" in str(t.check(shuffles=5))
