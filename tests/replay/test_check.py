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
    "no hidden reads": (without_hidden_reads, "no edge names"),
    "another literal": (another_literal, "add("),
    "another operator": (another_operator, "differ"),
    "swapped inputs": (swapped_inputs, "sub("),
    "an earlier version": (an_earlier_version, "no edge names"),
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
    """An operator that reads its argument needs an edge from it, whatever its contents are."""
    t = make()
    with pytest.raises(errors.CheckFailed, match=r"node 0, .* = clone\(.* reads %0 \(x\), but no edge"):
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


def test_a_missing_connection_is_found() -> None:
    """Of many outputs, each is looked at, though an input that the others need is there for all."""

    def f(x: Tensor) -> list[Tensor]:
        return [x + place for place in range(8)]

    t = tv.trace(f, torch.rand(2))
    changed = columns(t.graph)
    changed["in_kind"][7] = Kind.SHAPE
    with pytest.raises(errors.CheckFailed, match=r"node 7, .* reads %0 \(x\), but no edge"):
        check_graph(rebuilt(t.graph, changed), t.kept)


def two_sums(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, a + 1


def test_a_read_that_does_not_happen_is_found() -> None:
    t = tv.trace(two_sums, torch.rand(2), torch.rand(2))
    changed = columns(t.graph)
    a = next(value.index for value in t.graph.inputs if value.name == "a")
    changed["in_value"] = np.insert(t.graph.in_value, 1, a)
    changed["in_slot"] = np.insert(t.graph.in_slot, 1, -1)
    changed["in_kind"] = np.insert(t.graph.in_kind, 1, Kind.DATA)
    changed["in_start"] = np.array([0, 2, 3])
    with pytest.raises(errors.CheckFailed, match=r"node 0, .* has an edge from %\d \(a\), but reads none"):
        check_graph(rebuilt(t.graph, changed), t.kept)


def test_a_result_that_rests_on_too_much_is_found() -> None:
    t = tv.trace(two_sums, torch.rand(2), torch.rand(2))
    changed = columns(t.graph)
    changed["result_value"] = np.array(
        [*t.graph.result_value[:1], t.graph.result_value[1], *t.graph.result_value[1:]]
    )
    changed["result_kind"] = np.zeros(3)
    changed["result_start"] = np.array([0, 2, 3])
    with pytest.raises(errors.CheckFailed, match=r"output 'output\.0' has an edge from %\d, but reads none"):
        check_graph(rebuilt(t.graph, changed), t.kept)


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
        tv.trace(model, x, hold=False).check()
    t = tv.trace(model, x)
    t.save(tmp_path / "run.tvz")
    with pytest.raises(errors.TensorsMissing):
        tv.load(tmp_path / "run.tvz").check()
    with tv.record(model, hold=False) as block:
        model(x)
    with pytest.raises(errors.TensorsMissing):
        block.check()


def test_the_same_seed_gives_the_same_orders() -> None:
    t = make()
    assert t.check(shuffles=5, seed=3) == t.check(shuffles=5, seed=3)
    assert "5 random orders" in str(t.check(shuffles=5))


# ---------------------------------------------------------------- arguments that are one tensor


class AttentionTwice(nn.Module):
    """Attention as a teacher, without gradients and on torch's fast path, beside attention that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            teacher, _ = self.attention(x, x, x, need_weights=False)
        return teacher + self.attention(x, x, x)[0]


def test_the_fast_path_of_attention_inside_a_run_with_gradients() -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 5, 8)
    t = tv.trace(AttentionTwice().eval(), x, backward=True)
    assert t.graph.find(op="_native_multi_head_attention")
    t.check(inputs=True)
    assert torch.equal(t.run(x).output, t.output)


def test_arguments_that_were_one_tensor_are_one_again() -> None:
    """Some kernels ask whether two of their arguments are one tensor, and go another way."""
    with torch.library._scoped_library("torch_vis_identity", "DEF") as library:
        library.define("ask(Tensor a, Tensor b, Tensor[] rest) -> Tensor")

        def ask(a: Tensor, b: Tensor, rest: list[Tensor]) -> Tensor:
            return torch.full((3,), float((a is b) + 2 * (a is rest[0]) + 4 * (rest[0] is rest[1])))

        library.impl("ask", ask, "CPU")
        op = torch.ops.torch_vis_identity.ask
        y, z = torch.rand(2), torch.rand(2)
        t = tv.trace(lambda y, z: (op(y, y, [z, z]), op(y, z, [y, z]), op(y, y.view(2), [z, y])), y, z)
        assert [out.tolist()[0] for out in t.output] == [5.0, 2.0, 0.0]
        t.check()
        assert [out.tolist()[0] for out in t.run(z, y).output] == [5.0, 2.0, 0.0]


# ---------------------------------------------------------------- poison


def test_an_argument_that_is_read_though_the_table_denies_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What recorder and proof both believe of an operator is put to the test on poison."""
    from torch_vis.capture.recording import op_plan, recorder

    monkeypatch.setattr(recorder, "_plans", {})
    monkeypatch.setitem(op_plan.SHAPE_ONLY, "sigmoid", (0,))
    monkeypatch.setattr(op_plan, "OVERWRITES", op_plan.OVERWRITES | {"mul_"})
    t = tv.trace(torch.sigmoid, torch.rand(3))
    assert t.graph.in_kind.tolist() == [Kind.SHAPE]
    with pytest.raises(
        errors.CheckFailed, match=r"sigmoid\(%0\).* reads %0, of which no edge names the contents"
    ):
        t.check()
    t = tv.trace(lambda x: (x + 1).mul_(0.0), torch.rand(3))
    with pytest.raises(errors.CheckFailed, match=r"mul_\(%1, 0\.0\).* reads %1, of which no edge"):
        t.check()


BLIND: dict[str, Callable[[Tensor], Any]] = {
    "shape alone": lambda x: (
        torch.zeros_like(x),
        x.new_ones(2),
        torch.rand_like(x),
        torch.bernoulli(x, 0.3),
    ),
    "overwritten": lambda x: x.clone().fill_(2) + x.clone().zero_() + x.clone().copy_(x.flip(0)).normal_(),
    "part of it": lambda x: x.clone()[1:].copy_(x[:-1]),
    "itself": lambda x: [y := x.clone(), y.copy_(y), y[::2].copy_(y[::2])],
    "flags and integers": lambda x: [(x > 0.5).fill_(True), x.long().zero_(), (x > 0.5).copy_(x < 0.5)],
    "out=": lambda x: torch.mul(x, 2, out=torch.empty_like(x)),
    "expanded": lambda x: torch.zeros_like(x[0].expand(4)),
    "complex": lambda x: torch.complex(x, x).conj().clone().copy_(torch.complex(x, -x).conj()),
    "lists": lambda x: torch._foreach_copy_([x.clone(), x.clone()], [x, x + 1]),
}


@pytest.mark.parametrize("how", BLIND)
def test_arguments_that_are_not_read_may_hold_anything(how: str) -> None:
    torch.manual_seed(0)
    t = tv.trace(BLIND[how], torch.rand(5))
    assert (t.graph.in_kind == Kind.SHAPE).any()
    t.check()


def test_code_of_others_that_writes_in_secret_or_reads_around_its_arguments() -> None:
    with torch.library._scoped_library("torch_vis_foreign", "DEF") as library:
        library.define("secret(Tensor a) -> Tensor")
        library.define("around(Tensor a) -> Tensor")
        library.define("honest(Tensor a, Tensor(b!) b) -> Tensor")
        library.impl("secret", lambda a: a.add_(1) * 2, "CPU")
        library.impl("around", lambda a: a.as_strided((4,), (1,), 0).clone(), "CPU")
        library.impl("honest", lambda a, b: a + b.add_(1), "CPU")
        ops = torch.ops.torch_vis_foreign
        with pytest.raises(
            errors.CheckFailed, match=r"secret\(%1\).* writes to %1, and the graph does not say so"
        ):
            tv.trace(lambda x: ops.secret(x + 1), torch.rand(4)).check()
        with pytest.raises(errors.CheckFailed, match="memory around its arguments"):
            tv.trace(lambda x: ops.around((x + 1)[2:]), torch.rand(4)).check()
        tv.trace(lambda x: ops.honest(x[1:3], (x + 1)[2:]), torch.rand(4)).check()
        tv.trace(lambda x: ops.around(x + 1), torch.rand(4)).check()


# ---------------------------------------------------------------- damage that could do harm


def test_a_write_that_the_graph_forgot_does_not_reach_the_users_memory() -> None:
    x = torch.rand(3)
    t = tv.trace(lambda x: x.mul_(2), x)
    before = x.clone()
    graph = t.graph.replaced(
        out_slot=np.array([0]), value_storage=np.array([0, 0]), value_carries=np.array([-1, -1])
    )
    with pytest.raises(errors.CheckFailed, match="writes tensor 0, and the graph says none"):
        check_graph(graph, t.kept)
    assert torch.equal(x, before)


def test_a_corrupt_graph_raises_errors_of_ours() -> None:
    """Offsets and shapes that reach beyond a block, and slots that are not there."""
    t = make()
    offsets, slots = t.graph.value_offset.copy(), t.graph.out_slot.copy()
    for row, offset in ((0, 100), (1, -1), (2, 1 << 60)):
        changed = offsets.copy()
        changed[row] = offset
        with pytest.raises(errors.GraphError, match="its storage"):
            check_graph(t.graph.replaced(value_offset=changed), t.kept)
    slots[0] = 7
    with pytest.raises(errors.GraphError, match="returns a tensor twice or leaves one out"):
        check_graph(t.graph.replaced(out_slot=slots), t.kept)
    small = t.graph.storage_bytes.copy()
    small[0] = 0
    wrong = t.graph.value_type.copy()
    wrong[0] = wrong[2]
    with pytest.raises(errors.CheckFailed):
        check_graph(t.graph.replaced(storage_bytes=small, value_type=wrong), t.kept)


def _gradients(layer: nn.Module, x: Tensor, *, of_input: bool = True, of_weight: bool = True) -> tv.Trace:
    x.requires_grad_(of_input)
    for parameter in layer.parameters():
        parameter.requires_grad_(of_weight)
    return tv.trace(layer, x, backward=True)


X1, X2, X3 = (3, 8), (2, 3, 6, 6), (2, 3, 4, 4, 4)
WIDTH = 4
IGNORED: dict[str, tuple[Callable[[], tv.Trace], str, set[int]]] = {
    "layer norm": (lambda: _gradients(nn.LayerNorm(8), torch.rand(X1)), "native_layer_norm_backward", {5}),
    "layer norm, no input": (
        lambda: _gradients(nn.LayerNorm(8), torch.rand(X1), of_input=False), "native_layer_norm_backward", {4, 5}),
    "group norm, no input": (
        lambda: _gradients(nn.GroupNorm(3, 3), torch.rand(X2), of_input=False), "native_group_norm_backward", {4}),
    "batch norm": (lambda: _gradients(nn.BatchNorm2d(3), torch.rand(X2)), "native_batch_norm_backward", {3, 4}),
    "batch norm in eval": (
        lambda: _gradients(nn.BatchNorm2d(3).eval(), torch.rand(X2)), "native_batch_norm_backward", {5, 6}),
    "convolution, no input": (
        lambda: _gradients(nn.Conv2d(3, WIDTH, 3), torch.rand(X2), of_input=False), "convolution_backward", {2}),
    "convolution, no weight": (
        lambda: _gradients(nn.Conv2d(3, WIDTH, 3), torch.rand(X2), of_weight=False), "convolution_backward", {1}),
    "transposed, no input": (
        lambda: _gradients(nn.ConvTranspose2d(3, 2, 3), torch.rand(X2), of_input=False), "convolution_backward", {2}),
    "loss of classes": (
        lambda: tv.trace(lambda x: nn.functional.cross_entropy(x, torch.tensor([1, 0, 7])),
                         torch.rand(X1, requires_grad=True), backward=True), "nll_loss_backward", {1}),
    "loss of pixels": (
        lambda: tv.trace(lambda x: nn.functional.cross_entropy(x, torch.ones(2, 6, 6, dtype=torch.long)),
                         torch.rand(X2, requires_grad=True), backward=True), "nll_loss2d_backward", {1}),
    "bags, sum": (lambda: _bags("sum"), "_embedding_bag_backward", {4, 5}),
    "bags, mean": (lambda: _bags("mean"), "_embedding_bag_backward", {5}),
    "bags, max": (lambda: _bags("max"), "_embedding_bag_backward", {4}),
    "reflected": (lambda: _gradients(nn.ReflectionPad2d(2), torch.rand(X2)), "reflection_pad2d_backward", {1}),
    "replicated": (lambda: _gradients(nn.ReplicationPad3d(1), torch.rand(X3)), "replication_pad3d_backward", {1}),
    "fractional": (
        lambda: _gradients(nn.FractionalMaxPool2d(2, 3), torch.rand(X2)), "fractional_max_pool2d_backward", {1}),
}  # fmt: skip


def _bags(mode: str) -> tv.Trace:
    bags = nn.EmbeddingBag(6, 4, mode=mode)
    return tv.trace(bags, torch.tensor([1, 2, 2, 5]), torch.tensor([0, 2]), backward=True)


@pytest.mark.parametrize("how", IGNORED)
def test_an_argument_that_a_call_does_not_read_has_no_edge(how: str) -> None:
    """The weight of a layer whose input needs no gradient, statistics that training does not use, and others."""
    torch.manual_seed(0)
    make, op, unread = IGNORED[how]
    t = make()
    graph, node = t.graph, node_of(t.graph, op)
    rows = range(*graph.input_span(node))
    assert {int(graph.in_slot[row]) for row in rows if graph.in_kind[row] == Kind.SHAPE} == unread
    t.check()


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, g: torch.poisson(x, generator=g),
        lambda x, g: torch.binomial(x, x / 8, generator=g),
        lambda x, g: torch._standard_gamma(x, generator=g),
        lambda x, g: torch.bernoulli(x / 8, generator=g),
        lambda x, g: torch.ops.aten.rrelu_with_noise(-x, torch.empty_like(x), 0.1, 0.3, True, g),
    ],
    ids=["poisson", "binomial", "gamma", "bernoulli", "rrelu"],
)
def test_a_generator_of_the_users_is_found_wherever_an_operator_takes_it(draw: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    t = tv.trace(lambda x: draw(x, generator), torch.full((9,), 3.0))
    state = generator.get_state()
    t.check()
    assert torch.equal(generator.get_state(), state)


def test_lists_of_numbers_that_are_equal_and_of_another_type_are_other_calls() -> None:
    def add(x: Tensor) -> list[Tensor]:
        flags = [torch.tensor([True]), torch.tensor([False])]
        lists: list[list[Any]] = [[1, 2], [1, 2.0], [1, True], [True, True]]
        return [part for numbers in lists for part in torch._foreach_add(flags, numbers)]

    t = tv.trace(add, torch.ones(1))
    t.check()
    assert len({repr(node.call) for node in t.graph.find(op="_foreach_add")}) == 4
    assert t.output[3].dtype == torch.float32 and t.output[7].dtype == torch.bool


def test_a_tensor_without_plain_memory_that_the_graph_leaves_out_takes_no_others_place() -> None:
    small, large = torch.eye(2).to_sparse(), torch.eye(3).to_sparse()

    def f(x: Tensor) -> Tensor:
        with pytest.raises(RuntimeError):
            torch.add(small, large)
        return torch.mm(small, x)

    tv.trace(f, torch.ones(2, 2)).check()
