"""What came in where two runs differ: the tensors that both really read, and whether they are the same ones."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from torch_vis.analysis.compare.numeric.report import DifferencesReport


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


class Skip(nn.Module):
    """A sum with what came in, or with what the first layer made of it."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.a, self.b, self.late = layer(), layer(), late

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return self.b(y) + (y if self.late else x)


class Normed(nn.Module):
    """A block that is normalised before it, or after it."""

    def __init__(self, post: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.post = post

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            return self.norm(x + self.down(torch.tanh(self.up(x))))
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def ordered(names: str) -> nn.Module:
    layers = {name: layer() for name in "abcd"}
    return nn.Sequential(OrderedDict((name, layers[name]) for name in names))


REWIRED = {
    "skip": (lambda: Skip(False), lambda: Skip(True)),
    "norm": (
        lambda: nn.Sequential(Normed(False), Normed(False)),
        lambda: nn.Sequential(Normed(True), Normed(True)),
    ),
    "swap": (lambda: ordered("abcd"), lambda: ordered("acbd")),
}


def differing(one: nn.Module, two: nn.Module, x: Tensor, **options) -> DifferencesReport:
    return tv.compare(tv.trace(one, x, **options), tv.trace(two, x, **options)).differences()


def rewired(name: str) -> DifferencesReport:
    nets = []
    for make in REWIRED[name]:
        torch.manual_seed(0)
        nets.append(make())
    torch.manual_seed(1)
    return differing(*nets, torch.randn(4, 8), loss=lambda y: y.square().sum())


@pytest.mark.parametrize("name", REWIRED)
def test_what_reads_another_tensor_did_not_make_the_difference(name: str) -> None:
    found = rewired(name)
    assert found.rows and found.origins == []
    assert not any(row.input_error == 0 for row in found.rows)
    assert found.first in found.rewired


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("skip", "tanh in a.1 instead of x"),
        ("norm", "add in 0 instead of input"),
        ("swap", "tanh in c.1 instead of tanh in a.1"),
    ],
)
def test_the_first_sentence_names_both_tensors(name: str, reads: str) -> None:
    found = rewired(name)
    assert found.first.reads == f"another tensor: {reads}"
    assert found.facts()["in short"].endswith(f"which reads another tensor: {reads}")
    assert next(iter(found.facts())) == "in short"
    assert set(found.to_pandas("rewired").columns) >= {"reads_a", "reads_b"}


def test_what_came_in_is_how_far_apart_the_two_that_are_read_are() -> None:
    torch.manual_seed(0)
    one = Skip(False)
    two = copy.deepcopy(one)
    two.late = True
    x = torch.randn(4, 8)
    row = differing(one, two, x).first
    assert row.a.name == "add"
    with torch.no_grad():
        y = one.a(x)
    assert row.input_error == pytest.approx(float((x - y).norm() / x.norm()), rel=1e-5)


def test_what_is_read_in_place_is_compared_as_it_was_before() -> None:
    def early(x: Tensor) -> Tensor:
        y, z = x.sin(), x.cos()
        y.mul_(3.0)
        return y + z

    def late(x: Tensor) -> Tensor:
        y, z = x.sin(), x.cos()
        z.mul_(3.0)
        return z + y

    x = torch.rand(4, 8)
    [first, *_] = tv.compare(tv.trace(early, x), tv.trace(late, x)).differences().rows
    assert first.a.name == "mul_"
    assert first.input_error == pytest.approx(float((x.sin() - x.cos()).norm() / x.sin().norm()), rel=1e-5)


def test_tensors_in_other_places_of_a_call_are_the_same_tensors() -> None:
    x = torch.rand(4, 8)
    one = tv.trace(lambda x: torch.sub(x.sin(), x.cos()), x)
    two = tv.trace(lambda x: torch.sub(x.cos(), x.sin()), x)
    [row] = tv.compare(one, two).differences().origins
    assert (
        row.a.name == "sub" and row.input_error == 0 and row.reads == ""
    )  # that it is the other way round is its own


def test_another_part_of_one_tensor_is_named() -> None:
    x = torch.randn(4, 8)
    one, two = (tv.trace(lambda x, at=at: x.sin()[:, at : at + 4].exp(), x) for at in (0, 4))
    found = tv.compare(one, two).differences()
    [row] = found.rewired
    assert row.reads == "another part of sin" and found.origins == []


class Active(nn.Module):
    """An activation of some kind, of what a layer made or of a copy of it."""

    def __init__(self, kind: str, copied: bool) -> None:
        super().__init__()
        self.inner, self.act, self.copied = nn.Linear(8, 8), nn.GELU(kind), copied

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return self.act(y.clone() if self.copied else y)


def test_a_copy_that_holds_the_same_numbers_is_not_another_tensor() -> None:
    torch.manual_seed(0)
    one, two = Active("none", False), Active("tanh", True)
    two.load_state_dict(one.state_dict())
    found = differing(one, two, torch.randn(4, 8))
    [row] = found.origins
    assert row.a.name == "gelu" and row.input_error == 0 and row.reads == ""
    assert found.facts()["in short"].endswith("it is called differently, approximate: 'none' → 'tanh'")


def test_a_part_of_what_differs_may_differ_by_more_than_all_of_it() -> None:
    x = torch.randn(4, 8)
    two = x.clone()
    two[:, 0] *= 1.5
    run = [tv.trace(lambda x: x.sin()[:, :1].exp(), one) for one in (x, two)]
    found = tv.compare(*run).differences()
    assert found.origins == [] and found.rewired == []


def test_inputs_that_are_exchanged_are_not_taken_for_inputs_that_changed() -> None:
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    one = tv.trace(lambda x, y: x.sin() + y, x, y)
    two = tv.trace(lambda x, y: y.sin() + x, x, y)
    found = tv.compare(one, two).differences()
    assert found.input_differences == [] and found.first.reads == "another tensor: y instead of x"


def test_masks_and_indices_count_as_what_came_in() -> None:
    table, ids = torch.randn(10, 4), torch.tensor([1, 2, 3])
    one, two = (tv.trace(lambda table, ids: table[ids], table, index) for index in (ids, ids + 1))
    found = tv.compare(one, two).differences()
    assert found.origins == [] and [row.name for row in found.input_differences] == ["ids"]


def trained(*layers: nn.Module) -> DifferencesReport:
    torch.manual_seed(0)
    net = nn.Sequential(*layers)
    other = copy.deepcopy(net).eval()
    return differing(net, other, torch.randn(4, 8))


def test_a_normalisation_in_training_and_not_is_compared_by_what_both_make() -> None:
    found = trained(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    assert found.first.a.name == "native_batch_norm" and found.first.relative > 0.1
    assert found.first.input_error == 0 and found.origins == [found.first]
    assert found.facts()["in short"].endswith("it is called differently, training: True → False")


def test_dropout_in_training_and_not_is_where_the_runs_part() -> None:
    found = trained(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8))
    assert found.facts()["in short"] == (
        "2 Dropout(training=True) → Dropout(training=False); "
        "the runs part at addmm in 3, which reads another tensor: relu in 1 instead of mul in 2 (only in A)"
    )


def test_other_random_numbers_are_told_as_such() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8)
    found = differing(net, net, x)
    assert found.facts()["in short"].startswith("bernoulli_ in 1 drew other random numbers")


def test_what_was_given_heads_the_report_if_all_else_follows() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8)
    found = tv.compare(tv.trace(net, x), tv.trace(net, 2 * x)).differences()
    assert found.facts()["in short"].startswith(
        "the runs start from different inputs or weights, most of all input"
    )


def test_what_neither_run_changes_is_named_before_what_earlier_steps_changed() -> None:
    """A buffer differs, and by the second step so does the optimizer's state, by more."""

    class Positions(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("pos", scale * torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x + self.pos)

    def second_step(scale: float) -> tv.Trace:
        torch.manual_seed(0)
        net, x = Positions(scale), torch.randn(4, 8)
        optimizer = torch.optim.Adam(net.parameters(), 0.1)

        def step() -> None:
            optimizer.zero_grad()
            net(x).pow(2).mean().backward()
            optimizer.step()

        step()
        return tv.trace(step)

    told = tv.compare(second_step(1.0), second_step(1.01)).differences().facts()["in short"]
    assert (
        "inputs or weights, among them pos (0.01 relative), which neither run changes, and most of all"
        in told
    )


def test_no_difference_is_said_first() -> None:
    net, x = layer(), torch.randn(4, 8)
    assert differing(net, net, x).facts()["in short"].startswith("no difference")


def test_what_is_not_a_number_in_one_run_stands_at_the_edge_of_the_chart() -> None:
    x = torch.rand(4, 8) + 1
    found = tv.compare(
        tv.trace(lambda x: (x * 1.5).log().sum(), x), tv.trace(lambda x: (x * -1.5).log().sum(), x)
    ).differences()
    parts = {part.name: part for part in found.figure().data}
    [infinite] = [part for name, part in parts.items() if name.startswith("infinite")]
    others = [y for part in parts.values() if part is not infinite for y in part.y]
    assert len(infinite.x) == 2 and min(infinite.y) >= max(others)


def spread(net: nn.Module, factor: float, x: Tensor) -> DifferencesReport:
    """A model against the same with its first parameter scaled: all that differs follows from that."""
    other = copy.deepcopy(net)
    with torch.no_grad():
        next(other.parameters()).mul_(factor)
    return differing(net, other, x, loss=lambda y: y.square().sum())


class Halves(nn.Module):
    """Reads parts of a tensor through views, and writes over one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.inner(x).split(8, dim=-1)
        return self.outer(left) * right


class Masked(nn.Module):
    """Scores of which some are moved far away, as a mask does."""

    def __init__(self, far: float) -> None:
        super().__init__()
        self.inner, self.far = nn.Linear(8, 8), far

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(3 * self.inner(x) + self.far * (torch.arange(8) > 4), dim=-1)


@pytest.mark.parametrize(
    "net",
    [
        Halves,
        lambda: nn.LSTMCell(8, 8),
        lambda: Masked(-1e9),
        lambda: Masked(torch.finfo(torch.float32).min),
        lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)),
    ],
    ids=["views", "gates", "mask", "lowest", "norm"],
)
def test_what_follows_from_a_weight_is_no_news(net) -> None:
    torch.manual_seed(0)
    model, x = net(), torch.randn(4, 8)
    if isinstance(model, nn.LSTMCell):
        model = Cells(model)
    found = spread(model, 1.01, x)
    assert len(found.rows) > 3 and found.origins == [] and found.rewired == []
    assert found.facts()["in short"].startswith("the runs start from different inputs or weights")


class Cells(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x)
        return self.cell(x, state)[0]


def test_rows_that_are_looked_up_may_differ_by_more_than_the_table() -> None:
    table, ids = torch.randn(1000, 4), torch.tensor([1, 2])
    other = table.clone()
    other[1] *= 1.5
    runs = [tv.trace(torch.embedding, one, ids) for one in (table, other)]
    found = tv.compare(*runs).differences()
    [row] = found.rows
    assert row.relative > 10 * row.input_error > 0 and found.origins == []


def test_where_one_run_first_has_no_numbers_is_told_too() -> None:
    x = torch.rand(4, 8) + 1
    runs = [tv.trace(lambda x, by=by: (x * by).add(0.5).log().sum(), x) for by in (1.5, -1.5)]
    found = tv.compare(*runs).differences()
    assert found.facts()["in short"].endswith("; log is the first to give NaN or infinity in one run alone")
    assert found.facts()["output"] == "NaN or infinity in one run alone, in output"
