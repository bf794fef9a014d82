"""What narrower numbers would do, on the user's own data."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.labels import written
from torch_vis.analysis.advice.rounding import FORMATS, sqnr
from torch_vis.errors import NoMatch, UsageError


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_int8_is_torchs_own():
    weight = torch.randn(6, 40)
    scale = weight.abs().amax(1) / 127
    wanted = torch.quantize_per_channel(
        weight, scale, torch.zeros(6, dtype=torch.long), 0, torch.qint8
    ).dequantize()
    assert torch.allclose(FORMATS["int8"].weight(weight), wanted, atol=1e-7)
    x = torch.randn(5, 7) + 0.5
    low, high = min(float(x.min()), 0), max(float(x.max()), 0)
    step = (high - low) / 255
    wanted = torch.fake_quantize_per_tensor_affine(x, step, round(-low / step), 0, 255)
    assert torch.allclose(FORMATS["int8"].activation(x), wanted, atol=1e-6)


def test_int4_takes_at_most_fifteen_steps_in_each_group():
    weight = torch.randn(3, 300)
    rounded = FORMATS["int4"].weight(weight)
    for row in range(3):
        for start in range(0, 300, 128):
            group, exact = rounded[row, start : start + 128], weight[row, start : start + 128]
            assert len(group.unique()) <= 15
            most = float(exact.abs().max())
            assert float((group - exact).abs().max()) <= most / 14 + most * 2**-11  # the scale is a float16


def test_the_scales_that_are_counted_are_those_that_the_error_is_of():
    torch.manual_seed(0)
    layer = nn.Linear(256, 8, bias=False)
    (row,) = tv.advise.quantization(layer, torch.randn(2, 256), formats="int4", effect=False).rows
    assert row.bytes_after == 8 * 256 // 2 + 2 * 8 * 2  # float16 scales, one for each 128
    groups = layer.weight.detach().reshape(-1, 128)
    scale = (groups.abs().amax(1, keepdim=True) / 7).half().float()
    rounded = (groups / scale).round().clamp(-7, 7) * scale
    assert row.weight_db == pytest.approx(sqnr(groups, rounded), abs=1e-4)
    wide = (groups / groups.abs().amax(1, keepdim=True) * 7).round() * groups.abs().amax(1, keepdim=True) / 7
    assert row.weight_db != pytest.approx(sqnr(groups, wide), abs=1e-6)


def test_fp8_has_four_bits_of_mantissa_at_most_off_by_half():
    weight = torch.rand(2, 1000) + 0.5
    assert float(((FORMATS["fp8"].weight(weight) - weight) / weight).abs().max()) <= 1 / 16 + 1e-6


@pytest.mark.parametrize("form", FORMATS)
def test_zeros_and_constants_stay(form):
    for tensor in (torch.zeros(4, 9), torch.full((4, 9), 3.0)):
        assert torch.allclose(FORMATS[form].weight(tensor), tensor, rtol=2**-11 if form == "int4" else 1e-5)


@pytest.mark.parametrize("form", FORMATS)
def test_the_effect_is_that_of_a_model_with_that_weight(form):
    model = network()
    found = tv.advise.quantization(model, X, formats=[form])
    for row in found.rows:
        rounded = copy.deepcopy(model)
        parameter = rounded.get_parameter(row.weight)
        hooks = []
        if FORMATS[form].activation is not None:
            layer = rounded.get_submodule(row.weight.rpartition(".")[0])
            hooks.append(
                layer.register_forward_pre_hook(lambda _, args: (FORMATS[form].activation(args[0]),))
            )
        with torch.no_grad():
            parameter.copy_(FORMATS[form].weight(parameter))
            assert row.output_db == pytest.approx(sqnr(model(X), rounded(X)), abs=1e-3)
            assert row.weight_db == pytest.approx(sqnr(model.get_parameter(row.weight), parameter), abs=1e-3)
    assert found.whole[0].output_db < min(row.output_db for row in found.rows) + 3


def test_more_bits_are_better_and_advice_follows_the_floor():
    found = tv.advise.quantization(network(), X, floor_db=25.0)
    by = {(row.weight, row.format): row for row in found.rows}
    for weight in ("0.weight", "3.weight"):
        assert by[weight, "int8"].output_db > by[weight, "int4"].output_db
        assert (
            by[weight, "int4"].bytes_after < by[weight, "int8"].bytes_after < by[weight, "int8"].bytes_before
        )
        above = [form for form in ("int4", "int8", "fp8") if by[weight, form].output_db >= 25]
        assert found.advice[weight] == above[0]
    assert set(tv.advise.quantization(network(), X, floor_db=1e9).advice.values()) == {None}


def test_recurrent_layers_tied_weights_and_embeddings():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.rnn = nn.Embedding(20, 16), nn.LSTM(16, 16, batch_first=True)
            self.head = nn.Linear(16, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.rnn(self.embedding(ids))[0])

    found = tv.advise.quantization(Tied(), torch.randint(0, 20, (2, 5)), formats=["int8"])
    assert {row.weight for row in found.rows} == {"embedding.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0"}
    assert all(math.isfinite(row.output_db) for row in found.rows)


def test_the_model_is_left_alone():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5), network()).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = tv.advise.quantization(model, X, effect=False)
    assert all(row.output_db is None for row in found.rows) and "effect=False" in str(found)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_draws_and_lists():
    found = tv.advise.quantization(network(), X)
    assert len(found.figure().data) == 4 and len(found.figure("matplotlib").axes) == 1
    assert len(found.to_pandas()) == 6 and found.to_dict()["text"]["int8"]


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6, 5))

    def forward(self, x):
        return torch.bmm(x, self.weight)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 2, 4))

    def forward(self, x):
        return torch.einsum("bi,ihd->bhd", x, self.weight)


class Left(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 6))

    def forward(self, x):
        return self.weight @ x


class StepsFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 6, 5)), nn.Parameter(torch.zeros(5))

    def forward(self, x):
        return torch.conv_tbc(x, self.weight, self.bias)


def conv1d_of_transformers():
    return pytest.importorskip("transformers.pytorch_utils").Conv1D(9, 6)


LAYERS = {  # the layer, the shape of its input, and the dimensions of its output that are channels
    "Linear": (lambda: nn.Linear(6, 9), (4, 6), (1,)),
    "Linear of one": (lambda: nn.Linear(6, 1), (4, 6), (1,)),
    "Linear of many": (lambda: nn.Linear(6, 9), (2, 3, 4, 6), (3,)),
    "no bias": (lambda: nn.Linear(6, 9, bias=False), (2, 4, 6), (2,)),
    "Conv1D": (conv1d_of_transformers, (2, 4, 6), (2,)),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 8), (1,)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3), (2, 4, 8, 8), (1,)),
    "Conv3d": (lambda: nn.Conv3d(4, 6, 2), (2, 4, 4, 4, 4), (1,)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 8, 8), (1,)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (2, 4, 8, 8), (1,)),
    "channels last": (lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), (2, 4, 8, 8), (1,)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3), (2, 4, 8), (1,)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3), (2, 4, 8, 8), (1,)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 6, 2), (2, 4, 3, 3, 3), (1,)),
    "grouped transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 8, 8), (1,)),
    "depthwise transposed": (lambda: nn.ConvTranspose2d(4, 8, 3, groups=4), (2, 4, 8, 8), (1,)),
    "a matrix for each": (Experts, (3, 2, 6), (0, 2)),
    "einsum": (Heads, (4, 6), (1, 2)),
    "from the left": (Left, (6, 4), (0,)),
    "conv_tbc": (StepsFirst, (7, 2, 6), (2,)),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", LAYERS)
def test_scales_are_those_of_output_channels(name, form):
    """A channel is what changes one channel of the output, as autograd has it; the products themselves say nothing."""
    make, shape, channels = LAYERS[name]
    torch.manual_seed(0)
    layer, x = make(), torch.rand(shape) + 0.5
    with torch.no_grad():  # channels of all sizes, so that it tells which share a scale
        layer.weight.copy_(layer.weight * torch.logspace(-2, 1, layer.weight.numel()).view_as(layer.weight))
    rest = [dim for dim in range(layer(x).dim()) if dim not in channels]
    totals = layer(x).sum(rest).flatten()
    exact = layer.weight.detach()
    rounded, seen = torch.full_like(exact, torch.nan), 0
    for total in totals:
        (slope,) = torch.autograd.grad(total, layer.weight, retain_graph=True)
        mine = slope != 0
        seen += int(mine.sum())
        rounded[mine] = FORMATS[form].weight(exact[mine][None])[0]
    assert seen == exact.numel()
    (row,) = tv.advise.quantization(layer, x, formats=form).rows
    assert row.weight_db == pytest.approx(sqnr(exact, rounded), abs=1e-3)
    scales = 4 * len(totals) if form != "int4" else 2 * len(totals)
    assert row.bytes_after == -(-exact.numel() * FORMATS[form].bits // 8) + scales


@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_weights_of_look_ups_and_fused_kernels_have_their_outputs_first(form):
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    fast = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    cases = [
        (nn.Embedding(20, 8), (torch.randint(0, 20, (2, 5)),)),
        (nn.LSTM(8, 6, batch_first=True), (x,)),
        (attention, (x, x, x)),
        (attention, (x, x + 1, x - 1)),
        (fast, (x,)),
    ]
    for model, args in cases:
        rows = tv.advise.quantization(model, *args, formats=form).rows
        assert {row.weight for row in rows} == {n for n, p in model.named_parameters() if p.dim() > 1}
        for row in rows:
            exact = model.get_parameter(row.weight).detach()
            assert row.weight_db == pytest.approx(sqnr(exact, FORMATS[form].weight(exact)), abs=1e-3), (
                row.weight
            )


def test_a_weight_that_is_read_both_ways_has_one_scale():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6) * torch.logspace(-2, 1, 6))

        def forward(self, x):
            return x @ self.weight @ self.weight.T

    model = Both()
    (row,) = tv.advise.quantization(model, torch.randn(2, 6), formats="int8").rows
    exact = model.weight.detach()
    assert row.weight_db == pytest.approx(
        sqnr(exact, FORMATS["int8"].weight(exact.reshape(1, -1)).view(6, 6))
    )
    assert row.bytes_after == 36 + 4


def test_nan_in_the_batch_is_left_out_and_said():
    model, spoilt = network(), X.clone()
    spoilt[1, 0, 3, 3] = math.nan
    found = tv.advise.quantization(model, spoilt)
    clean = tv.advise.quantization(model, X[[0, 2, 3]])
    assert found.left_out == {"input": 1, "the output": 10}
    assert "input (1), the output (10)" in found.facts()["warning"] and "warning" not in clean.facts()
    for row, other in zip(found.rows, clean.rows):
        assert row.output_db == pytest.approx(other.output_db, abs=3) and math.isfinite(row.output_db)
        if row.activation_db is not None and other.activation_db is not None:
            assert row.activation_db == pytest.approx(other.activation_db, abs=3)
    assert 0 <= found.whole[0].agreement <= 1 and "nan" not in str(found).replace("NaN", "")


def test_a_batch_of_nothing_but_nan_and_an_empty_one_are_refused_in_a_sentence():
    model = nn.Sequential(nn.Linear(8, 4))
    with pytest.raises(
        UsageError, match=r"all of the output is NaN .*starts with it, in input.*effect=False"
    ):
        tv.advise.quantization(model, torch.full((2, 8), math.nan))
    found = tv.advise.quantization(model, torch.full((2, 8), math.nan), effect=False)
    assert found.rows[0].activation_db is None and found.left_out == {"input": 16}
    assert "fused" not in str(found)
    for batch in (torch.ones(0, 8), torch.ones(3, 0, 8)):
        with pytest.raises(UsageError, match="the batch is empty"):
            tv.advise.quantization(model, batch)


def test_infinite_weights_are_counted_and_masks_are_not_warned_of():
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[2, 1] = math.inf
    found = tv.advise.quantization(model, torch.randn(3, 8), formats="int8")
    assert found.left_out == {"1.weight": 1, "the output": 3}
    assert all(math.isfinite(row.weight_db) and math.isfinite(row.output_db) for row in found.rows)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, -math.inf, 0.0]))

        def forward(self, x):
            return (self.inner(x) + self.mask).softmax(-1)

    assert not tv.advise.quantization(Masked(), torch.randn(3, 4)).left_out


def test_an_expert_that_no_sample_goes_to_is_no_empty_batch():
    class Routed(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.cat([self.one(x), self.two(x[:0])])

    found = tv.advise.quantization(Routed(), torch.randn(3, 4))
    assert {row.weight for row in found.rows} == {"one.weight", "two.weight"}


def test_an_output_without_decimals_is_not_blamed_on_an_option():
    model = nn.Linear(4, 4)
    found = tv.advise.quantization(lambda x: model(x).argmax(-1), torch.randn(3, 4))
    assert "no output has floating-point elements" in str(found) and "effect=False" not in str(found)


def test_one_format_can_be_named_by_itself():
    rows = tv.advise.quantization(network(), X, formats="fp8").rows
    assert rows == tv.advise.quantization(network(), X, formats=["fp8", "fp8"]).rows
    assert {row.format for row in rows} == {"fp8"}


def test_bad_input():
    with pytest.raises(UsageError, match="formats is empty: name one or more of 'int8', 'fp8', 'int4'"):
        tv.advise.quantization(network(), X, formats=())
    with pytest.raises(NoMatch, match="no format 'int9'; did you mean 'int8'"):
        tv.advise.quantization(network(), X, formats="int9")
    for floor in (math.nan, "30", None, True):
        with pytest.raises(UsageError, match=f"floor_db={floor!r}: .* number of decibels"):
            tv.advise.quantization(network(), X, floor_db=floor)
    with pytest.raises(NoMatch, match="int8"):
        tv.advise.quantization(network(), X, formats=["int9"])
    with pytest.raises(UsageError, match="nothing to quantize"):
        tv.advise.quantization(nn.ReLU(), X)
    with pytest.raises(UsageError, match="not a trace"):
        tv.advise.quantization(tv.trace(network(), X))
    with pytest.raises(RuntimeError, match="channels"):
        tv.advise.quantization(network(), torch.randn(2, 5, 8, 8))


def test_time_saved_on_hardware_that_is_named():
    model, x = nn.Sequential(nn.Linear(4096, 4096)), torch.randn(1, 4096)
    found = tv.advise.quantization(model, x, hardware="A100", effect=False)
    by = {row.format: row for row in found.rows}
    # one row of activations: the weights are what takes time, and int8 is a quarter of them
    least = 4096 * 4096 * 4 / 2039e9
    assert by["int8"].time_saved_ns > 0.75 * least * 1e9
    assert by["int4"].time_saved_ns > by["int8"].time_saved_ns
    assert "saved (predicted)" in found.facts()["int8"]
    with pytest.raises(NoMatch, match="A100"):
        tv.advise.quantization(model, x, hardware="A1000")


def test_time_saved_is_by_the_model_that_latency_has():
    """Where fp8 is computed as bfloat16, it saves what a bfloat16 model does; arithmetic is all that counts here."""
    wide, narrow = (nn.Linear(1024, 1024, bias=False) for _ in range(2))
    x = torch.randn(4096, 1024)
    with torch.no_grad():
        before = tv.trace(wide, x).latency(hardware="A100").prediction.device_ns.sum()
        after = tv.trace(narrow.bfloat16(), x.bfloat16()).latency(hardware="A100").prediction.device_ns.sum()
    found = tv.advise.quantization(wide, x, formats=["fp8"], hardware="A100", effect=False)
    assert found.rows[0].time_saved_ns == pytest.approx(before - after, rel=0.01)


def test_formats_that_the_hardware_has_no_units_for_are_named():
    def notes(hardware):
        return str(tv.advise.quantization(network(), X, hardware=hardware, effect=False))

    assert "A100 80GB SXM has no fp8: computed as bfloat16" in notes("A100")
    assert "has no int8" not in notes("A100") and "has no" not in notes("H100 SXM")
    assert "has no int8: computed as float16" in notes("V100")


def test_an_operation_with_several_weights_saves_its_time_once():
    layer, x = nn.LSTM(64, 256, batch_first=True), torch.randn(2, 50, 64)
    with torch.no_grad():
        taken = tv.trace(layer, x).latency(hardware="A100").prediction.device_ns.sum()
    whole = tv.advise.quantization(layer, x, formats=["int8"], hardware="A100", effect=False).whole[0]
    assert 0 < whole.time_saved_ns < taken


def test_an_embedding_saves_no_more_than_the_bytes_that_it_reads():
    layer, ids = nn.Embedding(50_000, 64), torch.randint(0, 50_000, (1, 8192))
    with torch.no_grad():
        taken = tv.trace(layer, ids).latency(hardware="A100").prediction.device_ns.sum()
    found = tv.advise.quantization(layer, ids, formats=["int8"], hardware="A100", effect=False)
    assert 0 < found.rows[0].time_saved_ns < taken / 2  # it still writes what it wrote


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_figures_name_the_parameters(renderer):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    figure = tv.advise.quantization(model, torch.randn(4, 8)).figure(renderer)
    assert written(figure, "y") == ["0.weight", "2.weight"]


def test_of_many_parameters_the_worst_are_named_and_all_shown_along_the_run():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(110)]
    found = tv.advise.quantization(nn.Sequential(*blocks), torch.randn(2, 4), formats=["int4"], effect=False)
    worst = written(found.figure(), "y")
    assert len(worst) == 40 and worst[0] == found.sensitive[0].weight
    assert "the 40 of 110" in found.figure().layout.title.text
    along = found.figure(chart="run")
    assert len(along.data[1].x) == 110 and written(along, "x")[:3] == ["0", "5", "10"]


def test_activations_that_cannot_be_seen_are_said_to_be_so():
    torch.manual_seed(0)

    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.lstm = nn.Linear(8, 8), nn.LSTM(8, 8)

        def forward(self, x):
            return self.lstm(self.first(x))[0]

    found = tv.advise.quantization(Reads().eval(), torch.randn(5, 2, 8), formats=("int8", "int4"))
    unseen = {row.weight for row in found.rows if row.format == "int8" and row.activation_db is None}
    assert unseen == {"lstm.weight_hh_l0"}
    (note,) = [note for note in found.notes() if "activation dB" in note]
    assert (
        "lstm.weight_hh_l0" in note and "first.weight" not in note and note in str(found).replace("\n  ", " ")
    )
    words = " ".join(found.notes())
    for word in ("asymmetric", "largest elements stay", "counted once", "output dB of int8:"):
        assert word in words
    plain = tv.advise.quantization(network(), X, formats=("int4",)).notes()
    assert not any("activation dB" in note or "output dB" in note for note in plain)


def test_tied_weights_are_counted_once():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    found = tv.advise.quantization(Tied().eval(), torch.randint(0, 20, (3, 4)), formats=("int8",))
    assert len(found.rows) == 1 and found.whole[0].bytes_before == 20 * 8 * 4


def test_a_training_step_is_refused_in_a_sentence():
    layer = nn.Linear(4, 4)
    with pytest.raises(UsageError, match="not a training step"):
        tv.advise.quantization(lambda x: layer(x).sum().backward(), torch.randn(2, 4))

    def broken(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        tv.advise.quantization(broken, torch.randn(2, 4))


def test_weights_that_lie_in_one_piece_of_memory_are_told_apart():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    apart = tv.advise.quantization(model, torch.randn(3, 4))
    memory = torch.cat([layer.weight.detach().view(-1) for layer in (model[0], model[2])])
    for layer, part in zip((model[0], model[2]), memory.split([24, 12])):
        layer.weight = nn.Parameter(part.view_as(layer.weight))
    torch.manual_seed(0)
    together = tv.advise.quantization(model, torch.randn(3, 4))
    assert sorted(together.advice) == ["0.weight", "2.weight"]
    assert [(row.weight, row.weight_db) for row in together.rows] == [
        (row.weight, row.weight_db) for row in apart.rows
    ]
