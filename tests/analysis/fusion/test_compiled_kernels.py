"""What torch.compile fused on this machine, read from Inductor, beside what was expected; and nothing left behind."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.zoo import ZOO
from torch_vis.errors import CaptureFailed, NotTraceable, UsageError

pytestmark = [
    pytest.mark.skipif("compile_inductor_backend" not in ZOO, reason="no C++ compiler here for inductor"),
    pytest.mark.usefixtures("fresh_compiler"),
]


class Block(nn.Module):
    """A linear layer, an activation with a residual and a normalisation; a convolution with its batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.convolution, self.batch = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(nn.functional.gelu(self.linear(x)) + x)
        return y, torch.relu(self.batch(self.convolution(image)))


INPUTS = (torch.linspace(-1, 1, 32).view(4, 8), torch.linspace(-1, 1, 64).view(1, 1, 8, 8))


def names(found: Any) -> set[tuple[str, ...]]:
    return {kernel.names for kernel in found.kernels if kernel.names}


def test_kernels_are_told_by_the_operations_of_the_run() -> None:
    found = tv.measure.kernels(Block().eval(), *INPUTS)
    assert names(found) == {
        ("addmm",), ("gelu", "add", "native_layer_norm"), ("convolution",), ("native_batch_norm", "relu")
    }  # fmt: skip
    assert {kernel.names for kernel in found.kernels if kernel.extern} == {("addmm",), ("convolution",)}
    fused = next(kernel for kernel in found.kernels if "gelu" in kernel.names)
    assert fused.modules == ("", "norm")
    assert fused.predicted == "yes"
    assert found.unmatched == 0


def test_agreement_counts_pairs() -> None:
    found = tv.measure.kernels(Block().eval(), *INPUTS)
    assert found.agreement == (3, 0, 0, 0)  # gelu-add, add-norm, batch norm-relu
    assert (found.agreement.precision, found.agreement.recall) == (1.0, 1.0)
    with_products = found.agreement_of(products=True)
    assert (
        with_products.only_predicted == 1
    )  # the batch norm could follow the convolution; Inductor calls a library
    # gelu and the sum are never written: two tensors of 4 × 8; and the batch norm's of 2 × 6 × 6: each written and read
    assert found.saved_bytes == 2 * (2 * 32 + 72) * 4
    assert found.predicted_bytes == found.saved_bytes + 2 * 72 * 4  # the convolution's own result


def test_a_graph_break_separates_kernels() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin().cos()
        torch._dynamo.graph_break()
        return y.exp().neg()

    found = tv.measure.kernels(program, torch.ones(16))
    assert names(found) == {("sin", "cos"), ("exp", "neg")}
    assert found.agreement.only_predicted == 1  # across the break


def test_what_could_be_saved_is_what_is_and_what_is_missing() -> None:
    """Of parts that are fused, nothing is missing: the rows below add up to what the header says."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.norm, self.linear = nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.words(ids) + self.words(ids + 1))
            torch._dynamo.graph_break()
            return nn.functional.gelu(self.linear(x.sin().cos().exp()))

    found = tv.measure.kernels(Parts().eval(), torch.arange(8).view(2, 4))
    assert {chain.fused for chain in found.chains} >= {"no"}
    assert found.predicted_bytes == sum(chain.could_save for chain in found.chains)
    inside = sum(chain.saved_bytes for chain in found.chains)
    assert all(0 <= chain.saved_bytes <= chain.could_save for chain in found.chains)
    assert all(chain.missing_bytes == 0 for chain in found.chains if chain.fused == "yes")
    rows = found.to_dict()["Chains expected, not wholly fused"]
    assert sum(row["missing_bytes"] for row in rows) == found.predicted_bytes - inside > 0
    assert found.saved_bytes >= inside
    saved, missing = found.charts()["chains"].series
    assert sum(saved.y) == found.saved_bytes and sum(missing.y) == found.predicted_bytes - inside
    assert any("addmm → gelu" in str(label) and "not fused" in str(label) for label in missing.x)


class Recurrent(nn.Module):
    """A layer that Dynamo does not take, between two that it could."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(4, 8), nn.LSTM(8, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.layer(self.first(x).relu())[0])
        return made


@pytest.mark.parametrize("model", [nn.LSTM(4, 6), Recurrent()], ids=["alone", "between others"])
def test_operations_in_no_kernel_are_told_with_the_reason(model: nn.Module) -> None:
    found = tv.measure.kernels(model, torch.ones(5, 2, 4))
    assert found.unmatched == sum(len(row.operations) for row in found.outside) > 0
    (row,) = (row for row in found.outside if "mkldnn_rnn_layer" in row.names)
    assert "graph break" in row.reason and "LSTM" in row.reason and "allow_rnn" in row.reason
    placed = {node for kernel in found.kernels for node in kernel.operations}
    assert not placed & {node for row in found.outside for node in row.operations}
    assert "allow_rnn" in str(found) and "Operations in no kernel" in found.to_dict()


def test_as_a_table_and_as_data() -> None:
    found = tv.measure.kernels(lambda x: (x + 1).relu() @ x, torch.ones(4, 4))
    text = str(found)
    assert "add → relu" in text and "100% (1 of 1)" in text
    assert found.to_dict()["Kernels"][0]["made_by"] == "Inductor"
    assert len(found.figure().data) == 1


# The two models that figures are given of


def test_a_small_bert_agrees() -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100
    )
    found = tv.measure.kernels(BertModel(config).eval(), torch.arange(32).view(2, 16))
    assert found.agreement.precision is not None and found.agreement.precision > 0.8
    assert found.agreement.recall is not None and found.agreement.recall > 0.8


# Nothing is left behind


def settings() -> dict[str, Any]:
    import torch._dynamo.config
    import torch._inductor.config

    inductor = torch._inductor.config.shallow_copy_dict()
    return {**inductor, **{f"dynamo.{k}": v for k, v in torch._dynamo.config.shallow_copy_dict().items()}}


@pytest.mark.parametrize("fails", [False, True], ids=["as it should be", "after an exception"])
def test_settings_buffers_random_state_and_compiled_code_are_as_they_were(fails: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.batch = nn.BatchNorm1d(4)
            self.fails = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.dropout(self.batch(x), 0.5)
            torch._dynamo.graph_break()
            if self.fails:
                raise RuntimeError("the model's own")
            return y.relu() + 1

    compilations: list[Any] = []

    def counter(module: torch.fx.GraphModule, inputs: Any) -> Any:
        compilations.append(module)
        return module.forward

    x = torch.randn(8, 4)
    model = Model().train()
    theirs = torch.compile(model, backend=counter)
    with torch.no_grad():
        theirs(x)
    before = settings()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random, environment = torch.get_rng_state(), dict(os.environ)
    compiled = len(compilations)
    model.fails = fails
    if fails:
        with pytest.raises(RuntimeError, match="the model's own"):
            tv.measure.kernels(model, x)
    else:
        assert tv.measure.kernels(model, x).kernels
    model.fails = False
    assert settings() == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert dict(os.environ) == environment
    with torch.no_grad():
        theirs(x)
    assert len(compilations) == compiled, "the user's model was compiled again"


def test_a_pass_of_the_users_own_is_run_as_well() -> None:
    import torch._inductor.config as config

    seen: list[int] = []

    def own(scheduled: list[Any]) -> list[Any]:
        seen.append(len(scheduled))
        return scheduled

    with config.patch(_post_fusion_custom_pass=own):
        assert tv.measure.kernels(lambda x: x.sin() + 1, torch.ones(8)).kernels
        assert config._post_fusion_custom_pass is own
    assert seen == [1]


# What cannot be


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._inductor.config as config

    with (
        config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(CaptureFailed, match=r"C\+\+ compiler"),
    ):
        tv.measure.kernels(lambda x: x.sin() * 3, torch.ones(8))


def test_inputs_that_the_model_itself_cannot_take_are_its_own_error(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as raised:
        tv.measure.kernels(model, torch.ones(2, 5))
    if sys.version_info >= (3, 11):
        assert any("the model itself failed with these inputs" in note for note in raised.value.__notes__)
    assert "Traceback" not in capfd.readouterr().err  # what torch logs of it


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(NotTraceable, match="compiled_kernels"):
        tv.measure.kernels(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no operations"):
        tv.measure.kernels(lambda x: x, torch.ones(2))
