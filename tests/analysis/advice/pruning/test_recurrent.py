"""Recurrent layers made smaller: hidden units over all gates, layers and directions, however torch runs them."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_vis as tv
from torch_vis.analysis.advice.pruning.dependency import Dependencies

IDS = torch.tensor([[3, 1], [4, 1], [5, 9], [2, 6], [5, 3]])
READ = ("output", "hidden", "cell", "packed")
OPTIONS = {
    "one layer": {},
    "two layers": {"num_layers": 2},
    "both directions": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
    "projected": {"proj_size": 3},
    "projected, both directions": {"num_layers": 2, "bidirectional": True, "proj_size": 3, "bias": False},
}
CASES = [
    (kind, name, read)
    for kind in ("LSTM", "GRU", "RNN")
    for name in OPTIONS
    for read in READ
    if kind == "LSTM" or (read != "cell" and "projected" not in name)
]


class Reader(nn.Module):
    """An embedding, a recurrent layer, and a matrix that reads its output or what is left of its states."""

    def __init__(self, kind="LSTM", read="output", **options):
        super().__init__()
        self.words, self.read = nn.Embedding(20, 8), read
        self.layer = getattr(nn, kind)(8, 10, **options)
        width = options.get("proj_size") or 10
        self.head = nn.Linear(
            {"hidden": width, "cell": 10}.get(read, width * (1 + self.layer.bidirectional)), 3
        )

    def forward(self, ids):
        x = self.words(ids)
        if self.read == "packed":
            first = self.layer.batch_first
            lengths = torch.tensor([5, 3] if not first else [2] * 5)
            out, _ = self.layer(pack_padded_sequence(x, lengths, batch_first=first))
            return self.head(pad_packed_sequence(out)[0])
        out, states = self.layer(x)
        hidden, cell = states if isinstance(states, tuple) else (states, None)
        return self.head(
            {"output": out, "hidden": hidden[-1], "cell": cell if cell is None else cell[-1]}[self.read]
        )


def made(kind, name, read):
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="LSTM with projections")
    return Reader(kind, read, **OPTIONS[name]).eval()


def groups(model, ids=IDS, mode=torch.no_grad):
    """Where units live and whether they may be cut, and the names of the recurrent operations that ran."""
    with mode():
        graph = tv.trace(model, ids, hold=False).graph
    found = {
        (group.places, len(group.units), group.exact, not group.locked)
        for group in Dependencies(graph).groups
    }
    names = {node.name for node in graph.nodes}
    return found, {name for name in names if any(part in name for part in ("lstm", "gru", "rnn"))}


@pytest.mark.parametrize(("kind", "name", "read"), CASES)
def test_units_of_a_recurrent_layer_are_cut(kind, name, read):
    model = made(kind, name, read)
    found = tv.advise.pruning(model, IDS, ratio=0.4)
    assert len(found.groups) == (3 if "projected" in name else 2)
    assert not any(cut.problem for cut in found.groups)
    assert all(cut.error is not None and cut.error < 1e-5 for cut in found.groups)
    layer, whole = found.model.layer, OPTIONS[name]
    assert (layer.input_size, layer.hidden_size) == (5, 6) and found.model.words.embedding_dim == 5
    assert layer.proj_size == (2 if "proj_size" in whole else 0)
    assert sum(p.numel() for p in layer.parameters()) == sum(
        p.numel()
        for p in type(layer)(5, 6, **{**whole, **({"proj_size": 2} if layer.proj_size else {})}).parameters()
    )


def test_what_is_left_is_the_model_with_the_units_at_zero():
    model = made("LSTM", "both directions", "output")
    found = tv.advise.pruning(model, IDS, ratio=0.4)
    (cut,) = (cut for cut in found.groups if cut.name.startswith("layer."))
    assert len({place for place in cut.places if place[0].startswith("layer.")}) == 4 * 5 + 2
    zero = copy.deepcopy(model)
    left = set(found.model.layer.bias_ih_l0[:6].tolist())
    biases = model.layer.bias_ih_l0[:10].tolist()
    gone = torch.tensor([number for number, bias in enumerate(biases) if bias not in left])
    gone_words = ~torch.isin(model.words.weight[0], found.model.words.weight[0])
    with torch.no_grad():
        for name, parameter in zero.layer.named_parameters():
            if "weight_hh" in name:
                parameter[:, gone] = 0
            elif "weight_ih_l1" in name:
                parameter[:, torch.cat([gone, gone + 10])] = 0
            elif "weight_ih" in name:
                parameter[:, gone_words] = 0
        zero.head.weight[:, torch.cat([gone, gone + 10])] = 0
        assert torch.allclose(zero(IDS), found.model.eval()(IDS), atol=1e-6)
        assert not torch.allclose(zero(IDS), model(IDS), atol=1e-3)
    assert len(gone) == 4


@pytest.mark.parametrize(("kind", "name", "read"), CASES)
def test_a_whole_layer_in_one_operation_gives_the_groups_of_its_parts(kind, name, read):
    """Inference mode shows ``aten::lstm``, otherwise torch shows a library's layers or the steps one by one."""
    model = made(kind, name, read)
    parts, whole = groups(model), groups(model, mode=torch.inference_mode)
    assert whole[1] and parts[1] != whole[1] and parts[0] == whole[0]


class Library(Reader):
    """By the kernels of a GPU, which give shapes without one."""

    def forward(self, ids):
        x, layer = self.words(ids), self.layer
        count = layer.num_layers * (1 + layer.bidirectional)
        sizes = layer.proj_size or layer.hidden_size, layer.hidden_size
        hidden, cell = (x.new_zeros(count, x.shape[1], size) for size in sizes)
        weights, mode = layer._flat_weights, {"LSTM": 2, "GRU": 3, "RNN_TANH": 1}[layer.mode]
        out = torch.ops.aten._cudnn_rnn(
            *(
                x,
                weights,
                len(weights) // count,
                None,
                hidden,
                cell if mode == 2 else None,
                mode,
                *sizes[::-1],
            ),
            *(layer.num_layers, False, 0.0, False, layer.bidirectional, [], None),
        )
        return self.head(out[0])


class Stepwise(Reader):
    """One step, by a GPU's kernel for the gates; that of a GRU gives no shapes."""

    def forward(self, ids):
        x, layer = self.words(ids)[0], self.layer
        state = x.new_zeros(len(x), layer.hidden_size)
        gates = x @ layer.weight_ih_l0.t(), state @ layer.weight_hh_l0.t()
        kernel = torch.ops.aten._thnn_fused_lstm_cell
        return self.head(kernel(*gates, state, layer.bias_ih_l0, layer.bias_hh_l0)[0])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, name, read in CASES
        if read == "output" and name in ("one layer", "both directions")
    ]
    + [("LSTM", "projected, both directions")],
)
def test_the_kernels_of_a_gpu_give_the_same_groups(kind, name):
    torch.manual_seed(0)
    model = Library(kind, **OPTIONS[name]).eval().to("meta")
    found, names = groups(model, IDS.to("meta"))
    assert names == {"_cudnn_rnn"} and found == groups(made(kind, name, "output"))[0]


def test_cells_whose_gates_are_there_give_the_same_groups():
    found, names = groups(Stepwise().eval().to("meta"), IDS.to("meta"))
    assert names == {"_thnn_fused_lstm_cell"} and found == groups(made("LSTM", "one layer", "output"))[0]


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
def test_cells_alone(kind):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.cell, self.head = nn.Linear(4, 8), getattr(nn, kind)(8, 10), nn.Linear(10, 3)

        def forward(self, x):
            state = None
            for step in self.first(x):
                state = self.cell(step, state)
            return self.head(state[0] if isinstance(state, tuple) else state)

    torch.manual_seed(0)
    model, x = Steps(), torch.randn(3, 2, 4)
    found = tv.advise.pruning(model, x, ratio=0.4)
    assert [cut.error is not None and not cut.problem for cut in found.groups] == [True, True]
    assert (found.model.cell.input_size, found.model.cell.hidden_size) == (5, 6)
    assert groups(model.eval(), x)[0] == groups(model.eval(), x, torch.inference_mode)[0]


def test_the_smaller_layer_trains_and_is_copied():
    found = tv.advise.pruning(made("LSTM", "two layers", "output").train(), IDS, ratio=0.4)
    copied = copy.deepcopy(found.model)
    assert torch.equal(copied.eval()(IDS), found.model.eval()(IDS))
    found.model.train()(IDS).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in found.model.parameters())
    again = nn.LSTM(5, 6, num_layers=2)
    again.load_state_dict(found.model.layer.state_dict())


def test_states_that_are_given_keep_a_layer_whole():
    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layer, self.head = nn.Embedding(20, 8), nn.LSTM(8, 10), nn.Linear(10, 3)

        def forward(self, ids, hidden, cell):
            return self.head(self.layer(self.words(ids), (hidden, cell))[0])

    found = tv.advise.pruning(Given(), IDS, torch.zeros(1, 2, 10), torch.zeros(1, 2, 10))
    assert [cut.name for cut in found.groups] == ["words.weight"] and found.model.layer.hidden_size == 10
    assert any("joins it with an input" in group.locked for group in found.locked)


def test_a_projection_that_would_not_be_smaller_is_told():
    model = made("LSTM", "projected", "output")
    found = tv.advise.pruning(model, IDS, ratio=0.7)  # three units left, and a projection to three features
    problems = {cut.name: cut.problem for cut in found.groups}
    assert "3 hidden units and a projection to 3, which has to be smaller" in problems["layer.weight_hh_l0"]
    assert not problems["words.weight"] and not problems["layer.weight_hr_l0"]
    assert (found.model.layer.hidden_size, found.model.layer.proj_size) == (10, 1)


@pytest.mark.parametrize("dim", [-1, 1])
def test_halves_of_a_gate_go_together(dim):
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Linear(6, 16), nn.GLU(), nn.Linear(8, 3))
        if dim == -1
        else nn.Sequential(nn.Conv1d(6, 16, 3), nn.GLU(1), nn.Conv1d(8, 3, 1))
    )
    found = tv.advise.pruning(model, torch.randn(2, 6) if dim == -1 else torch.randn(2, 6, 5), ratio=0.5)
    (cut,) = found.groups
    assert (cut.units, cut.cut, cut.problem) == (8, 4, "") and cut.error < 1e-6
    assert found.model[0].weight.shape[0] == 8 and found.model[2].weight.shape[1] == 4
