"""Whose gradient a tensor is, also where the run itself lets go of it, as a training step that ends in zero_grad()."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torch_vis as tv
from torch_vis.graph.lifetimes import gradients


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


X = torch.linspace(-1, 1, 15).reshape(5, 3)


def zero_last(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def zeroed_in_place(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def accumulated(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(X).sum().backward()
    net(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def by_hand(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(X).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def assigned(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    found = torch.autograd.grad(net(X).sum(), list(net.parameters()))
    for parameter, gradient in zip(net.parameters(), found):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()


def clipped(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(X).sum().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def in_backward(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def step(parameter: torch.Tensor) -> None:
        _ = parameter.grad.add(1)  # looked at, not kept
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    hooks = [p.register_post_accumulate_grad_hook(step) for p in net.parameters()]
    net(X).sum().backward()
    for hook in hooks:
        hook.remove()


def expected(factor: float = 1.0, most: float = float("inf")) -> float:
    net = network()
    net(X).sum().backward()
    norm = factor * float(torch.cat([p.grad.flatten() for p in net.parameters()]).norm())
    return min(norm, most)


STEPS = {
    zero_last: expected(),
    zeroed_in_place: expected(),
    accumulated: expected(2),
    by_hand: expected(),
    assigned: expected(),
    clipped: expected(most=1.0),
    in_backward: expected(),
}


@pytest.mark.parametrize("fake", [False, True], ids=["numbers", "shapes"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_every_gradient_is_known_though_none_is_left(step: Callable[..., None], fake: bool) -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    t = tv.trace(lambda: step(net, optimizer), fake=fake)
    shapes = {name: t.graph.values[value].shape for name, value in gradients(t.graph).items()}
    assert shapes == {name: tuple(p.shape) for name, p in net.named_parameters()}
    if step is not in_backward:  # where one goes before the next comes
        held = sum(p.numel() * p.element_size() for p in net.parameters())
        assert t.memory().timeline["gradient"].max() == held
    if not fake:
        t.check()


@pytest.mark.parametrize(("step", "norm"), STEPS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_norms_are_those_of_the_gradients_before_they_went(step: Callable[..., None], norm: float) -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    flow = tv.trace(lambda: step(net, optimizer)).gradients()
    total = sum(layer.gradient_norm**2 for layer in flow.layers) ** 0.5
    assert total == pytest.approx(norm, rel=1e-4)
    assert [(layer.path, layer.elements, layer.verdict) for layer in flow.layers] == [
        ("0", 16, ""),
        ("2", 10, ""),
    ]
    assert sorted(flow.freed) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert "4 gradients were freed or zeroed" in str(flow)


def test_a_step_that_zeroes_first_says_nothing_of_gradients_let_go() -> None:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(X).sum().backward()
        optimizer.step()

    flow = tv.trace(step).gradients()
    assert flow.freed == [] and "freed" not in str(flow)


@pytest.mark.parametrize("fake", [False, True], ids=["numbers", "shapes"])
def test_gradients_left_by_the_step_before_are_gradients(fake: bool) -> None:
    net = network()
    net(X).sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    memory = tv.trace(lambda: (optimizer.step(), optimizer.zero_grad()), fake=fake).memory()
    assert memory.timeline["gradient"][0] == sum(p.numel() * 4 for p in net.parameters())


def test_gradients_of_tensors_that_are_no_parameters() -> None:
    x = X.clone().requires_grad_()

    def step(x: torch.Tensor) -> None:
        (x * 2).sum().backward()
        x.grad = None

    t = tv.trace(step, x)
    assert t.memory().timeline["gradient"].max() == 60
    assert list(gradients(t.graph)) == ["x"]


def test_without_backward_the_error_names_what_finds_nan_in_forward() -> None:
    trace = tv.trace(lambda x: (x - x) / (x - x), torch.ones(2))
    with pytest.raises(tv.errors.UsageError, match=r"backward=True or loss=….*t\.health\(\)"):
        trace.gradients()
    origin = trace.health().nan_origin
    assert origin is not None and origin.name.startswith("div")


def test_sparse_gradients_and_gradients_of_gradients() -> None:
    table = nn.Embedding(5, 3, sparse=True)

    def twice() -> None:
        for _ in range(2):
            table(torch.tensor([1, 2])).sum().backward()
        table.zero_grad()

    assert list(gradients(tv.trace(twice).graph)) == ["weight"]
    x = torch.ones(2, 3, requires_grad=True)

    def second() -> None:
        (x**3).sum().backward(create_graph=True)
        (x.grad**2).sum().backward()
        x.grad = None

    graph = tv.trace(second).graph
    (value,) = gradients(graph).values()
    assert graph.values[value].producer.name in ("add", "add_")


def test_where_no_gradient_was_given_the_norm_is_not_zero() -> None:
    net = network()
    flow = tv.trace(lambda: torch.autograd.grad(net(X).sum(), list(net.parameters()))).gradients()
    assert flow.facts()["gradient norm"] == "not known"
    assert "no parameter was given a gradient" in str(flow)


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_the_picture_shows_from_where_layers_vanish_and_which_do(renderer):
    torch.manual_seed(0)
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()) for _ in range(10)))
    flow = tv.trace(deep, torch.randn(4, 8), backward=True).gradients()
    bad = [place for place, row in enumerate(flow.layers) if row.verdict == "vanishing"]
    figure = flow.figure(renderer)
    if renderer == "plotly":
        drawn = {line.name: (list(line.x), list(line.y)) for line in figure.data}
    else:
        lines = figure.axes[0].get_lines()
        drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}
    assert bad and drawn["vanishing"][0] == bad
    bound = drawn["vanishing below"][1][0]
    sound = [row.rms for row in flow.layers if not row.verdict]
    assert max(drawn["vanishing"][1]) < bound < min(sound)
    assert "exploding" not in drawn and "exploding above" not in drawn


def test_the_picture_of_a_sound_run_is_not_flattened_by_bounds():
    flow = tv.trace(network(), X, backward=True).gradients()
    assert [line.name for line in flow.figure().data] == ["gradient"]


def deep(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Sigmoid()) for _ in range(count)))


def verdicts(model: nn.Module, *args: torch.Tensor, **options) -> dict[str, str]:
    torch.manual_seed(0)
    flow = tv.trace(model, *args, **(options or {"backward": True})).gradients()
    return {row.path: row.verdict for row in flow.layers}


class Block(nn.Module):
    """Attention whose softmax is all but even, as it is before training: query and key hardly matter."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        return self.norm(x + (1e-5 * scores).softmax(-1) @ self.value(x))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_equal_layers_are_not_said_to_vanish_for_being_small_at_every_depth(count: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(count)), nn.Linear(16, 3))
    flow = tv.trace(model, torch.randn(2, 5, 16), loss=lambda y: y.square().sum()).gradients()
    rows = {row.path: row for row in flow.layers}
    assert rows["0.query"].rms < rows["0.value"].rms / 1000  # or this would prove nothing
    assert not any(row.verdict for row in flow.layers)
    assert "no layer vanishes" in flow.facts()["verdict"]
    if count > 1:
        assert rows["0.query"].like == "*.query" and rows["0.query"].usual_rms < rows["0.value"].rms / 1000


def test_a_query_that_fades_with_depth_is_found_though_values_do_not() -> None:
    model = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 3))
    with torch.no_grad():
        model[0].key.weight.mul_(1e-5)
        model[0].key.bias.mul_(1e-5)
    found = verdicts(model, torch.randn(2, 5, 16), loss=lambda y: y.square().sum())
    assert [path for path, verdict in found.items() if verdict == "vanishing"] == ["0.query"]


def test_layers_whose_weights_another_module_reads_stand_where_they_are_read() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.between = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x) @ self.between.weight + self.between.bias)

    assert [*verdicts(Reads(), torch.randn(2, 4))] == ["first", "between", "last"]


class Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for letter in "abcdefghij":
            self.add_module(letter, nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x).sigmoid()
        return x


class Stem(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(10, 8), nn.LayerNorm(8)
        self.encoder, self.decoder = deep(3), deep(9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(self.norm(self.table(ids))))


def test_what_vanishes_is_found_whatever_it_is_called() -> None:
    x = torch.randn(4, 8)
    for model in (deep(10), Letters()):
        found = [*verdicts(model, x).values()]
        assert found[0] == "vanishing" and found[-1] == ""
        assert found.count("vanishing") == found.index("")  # from the first on, up to where it is enough
    torch.manual_seed(0)
    flow = tv.trace(Stem(), torch.randint(0, 10, (4,)), backward=True).gradients()
    found = {row.path: row.verdict for row in flow.layers}
    assert all(row.rms < row.usual_rms / 1000 for row in flow.layers if row.verdict == "vanishing")
    low = [path for path, verdict in found.items() if verdict == "vanishing"]
    assert low[:6] == ["table", "norm", "encoder.0.0", "encoder.1.0", "encoder.2.0", "decoder.0.0"]
    assert found["decoder.8.0"] == ""


def test_recurrent_layers_have_a_row_each_and_the_deep_ones_vanish() -> None:
    def loss(output: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return output[0].sum()

    torch.manual_seed(0)
    model = nn.LSTM(8, 8, 2, bidirectional=True)
    flow = tv.trace(model, torch.randn(3, 2, 8), loss=loss).gradients()
    rows = {row.path: row for row in flow.layers}
    assert set(rows) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        assert rows[name].gradient_norm == pytest.approx(float(parameter.grad.norm()), rel=1e-4)
        assert rows[name].elements == parameter.numel()
    assert "(root)" not in str(flow) and not any(row.verdict for row in rows.values())
    for model in (nn.LSTM(8, 8, 12), nn.Sequential(nn.GRU(8, 8, 16))):
        found = verdicts(model, torch.randn(3, 2, 8), loss=loss)
        prefix = "0." if isinstance(model, nn.Sequential) else ""
        last = (model if not prefix else model[0]).num_layers - 1
        assert found[f"{prefix}weight_ih_l0"] == "vanishing" and found[f"{prefix}weight_ih_l{last}"] == ""


def test_a_module_with_one_matrix_stays_one_row() -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(8, 8)), nn.PReLU(8), nn.Linear(8, 2))
    assert [*verdicts(model, torch.randn(4, 8))] == ["0", "1", "2"]


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_bounds_are_drawn_along_the_layers_that_they_hold_for(renderer: str) -> None:
    torch.manual_seed(0)
    flow = tv.trace(Stem(), torch.randint(0, 10, (4,)), backward=True).gradients()
    figure = flow.figure(renderer)
    lines = figure.data if renderer == "plotly" else figure.axes[0].get_lines()
    drawn = {
        line.name if renderer == "plotly" else line.get_label(): list(
            line.x if renderer == "plotly" else line.get_xdata()
        )
        for line in lines
    }
    bounds = {name: ends for name, ends in drawn.items() if "below" in name}
    places = [place for place, row in enumerate(flow.layers) if row.path.startswith("decoder")]
    assert bounds["vanishing below (decoder.*.*)"] == [places[0] - 0.4, places[-1] + 0.4]
