"""The helpers of the explorer's document, and the figures of models with tied weights, buffers and odd parameters."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_vis as tv
from tests.zoo import cases, close_process_group
from torch_vis.interfaces.explorer.explorer import source_of


class Tied(torch.nn.Module):
    """An embedding whose weight is the head's, a module used under two names, a buffer, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.again = self.block
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.alias = torch.nn.Parameter(self.embed.weight.data)  # another object, the same memory
        self.block[0].bias.requires_grad_(False)


def test_parameters_are_counted_once_and_buffers_not_at_all() -> None:
    model = Tied()
    stats = tv.get_parameter_statistics(model)
    linear, norm, embedding = 4 * 4 + 4, 4 + 4, 10 * 4
    assert stats["total_params"] == linear + norm + embedding
    assert stats["non_trainable_params"] == 4
    assert stats["memory_usage"] == 4 * stats["total_params"]
    forest = source_of(model).forest
    figures = {path: int(forest.numbers["params"][row]) for row, path in enumerate(forest.paths)}
    assert figures[""] == stats["total_params"]
    assert figures["head"] == figures["embed"] == 40
    assert figures["again"] == figures["block"] == linear + norm
    assert forest.kind(forest.row("again") or 0) == "shared"
    assert forest.numbers["buffer_bytes"][forest.row("block")] == (4 + 4) * 4 + 8
    assert set(tv.analyze_memory_usage(model)) == {
        "alias",
        "block.0.weight",
        "block.0.bias",
        "block.1.weight",
        "block.1.bias",
    } or "embed.weight" in tv.analyze_memory_usage(model)
    assert sum(tv.analyze_memory_usage(model).values()) == stats["memory_usage"]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore")
def test_every_module_of_the_zoo_has_a_tree_without_any_input(case: tv.Trace) -> None:
    model, _, _ = case.make()  # type: ignore[attr-defined]
    try:
        if not isinstance(model, torch.nn.Module):
            pytest.skip("not a module")
        text = tv.export_model_summary(model)
        assert len(text.splitlines()) == len(source_of(model).forest)
        whole = json.loads(tv.export_model_summary(model, format="json"))
        lazy = any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in model.parameters())
        if not lazy:
            assert whole["modules"][0]["parameters"] == whole["total_params"]
            assert whole["total_params"] <= sum(p.numel() for p in model.parameters())
    finally:
        close_process_group()


def test_meta_and_fake_models() -> None:
    with torch.device("meta"):
        big = torch.nn.Linear(100_000, 100_000, bias=False)
    assert tv.get_parameter_statistics(big)["total_params"] == 10**10
    assert "10.0B params" in tv.export_model_summary(big)
    with FakeTensorMode():
        fake = torch.nn.Linear(3, 2)
    assert tv.export_model_summary(fake) == "Linear: 8 params, 32 B"
    assert source_of(fake).figures(0)[0].figures is None


def test_lazy_modules_and_modules_whose_repr_raises() -> None:
    class Shy(torch.nn.Module):
        def extra_repr(self) -> str:
            raise RuntimeError("not now")

    text = tv.export_model_summary(torch.nn.Sequential(torch.nn.LazyLinear(3), Shy()))
    assert "LazyLinear" in text and "its repr raises RuntimeError" in text


def test_the_tree_of_the_document() -> None:
    from tests.zoo import declare_torchvision_ops

    declare_torchvision_ops()
    import torchvision

    lines = tv.export_model_summary(torchvision.models.resnet18(weights=None)).splitlines()
    assert lines[0] == "ResNet: 11.7M params, 44.6 MiB"
    assert lines[1].startswith("├── conv1: Conv2d(3, 64, kernel_size=(7, 7)") and lines[1].endswith(
        "[9.4K params]"
    )
    assert "│   ├── 0: BasicBlock [74.0K params]" in lines
    assert lines[-1].startswith("└── fc: Linear(") and lines[-1].endswith("[513.0K params]")


def test_a_summary_as_a_page_nests_and_closes_what_it_opens() -> None:
    class Reader(HTMLParser):
        depth = deepest = 0

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.depth += tag == "details"
            self.deepest = max(self.deepest, self.depth)

        def handle_endtag(self, tag: str) -> None:
            self.depth -= tag == "details"

    reader = Reader()
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.ReLU())
    page = tv.export_model_summary(model, format="html")
    reader.feed(page)
    assert (reader.depth, reader.deepest) == (0, 2)
    assert "<b>1</b> <i>ReLU()</i>" in page


def test_summaries_have_the_times_of_what_was_recorded() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with tv.record_torch_module_forward_stats(model):
        model(torch.ones(3, 2))
    text = tv.export_model_summary(model)
    assert "→ 3×2" in text and "self" in text
    quiet = tv.ExplorerConfig(
        show_timing=False, show_shapes=False, show_memory=False, show_parameter_counts=False
    )
    assert "[" not in tv.export_model_summary(model, config=quiet)
    assert len(tv.export_model_summary(model, config=tv.ExplorerConfig(max_depth=0)).splitlines()) == 1
    info = tv.ModuleInfo.of(model, "0")
    assert info.timing_stats is not None and info.timing_stats["calls"] == 1
    assert info.shapes == {"weight": (2, 2), "bias": (2,)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tv.export_model_summary(torch.nn.ReLU(), "yaml"), "no summary format 'yaml'"),
        (lambda: tv.export_model_summary(torch.nn.ReLU(), None), "no summary format 'None'"),
        (lambda: tv.export_model_summary({}), "takes a module, not dict"),
        (lambda: tv.ExplorerConfig(color_scheme="puce"), "no color scheme 'puce'"),
        (lambda: tv.get_parameter_statistics(3), "takes a module, not int"),
        (lambda: tv.ExplorerConfig(max_depth=-1), "max_depth is a number of levels"),
        (lambda: tv.ExplorerConfig(color_scheme=3), "color_scheme is"),
    ],
)
def test_wrong_arguments_are_named(call: object, message: str) -> None:
    with pytest.raises(tv.errors.UsageError, match=message):
        call()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0ns"),
        (9.99e-7, "999.0ns"),
        (1e-6, "1.00μs"),
        (0.5, "500.00ms"),
        (0.9999999, "1.0000s"),
        (9.99999999e-4, "1.00ms"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (9.99999, "10.0000s"),
        (59.994, "59.99s"),
        (3599, "60.0min"),
        (86400, "24.0h"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert tv.format_time(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0K"), (999_999, "1.0M"), (1_500_000, "1.5M"), (999_999_999, "1.0B")],
)
def test_counts(count: int, text: str) -> None:
    assert tv.format_param_count(count) == text


def test_shapes() -> None:
    assert tv.format_shape(torch.Size([2, 3])) == "2×3"
    assert tv.format_shape([]) == ""
    assert tv.format_shape((1, "s77")) == "1×s77"  # a size that was left open


def test_advice_scales_by_output_channels() -> None:
    """Channels of one size each lose nothing, wherever a weight has its outputs; five of the six are weak."""
    from torch_vis.interfaces.explorer.model_source import advise

    plain, transposed = torch.nn.Conv2d(4, 6, 3), torch.nn.ConvTranspose2d(4, 6, 3, groups=2)
    sizes = torch.tensor([2.0**-12, 2.0**-10, 2.0**-9, 2.0**-8, 2.0**-7, 127.0])
    with torch.no_grad():
        plain.weight.copy_(sizes.view(6, 1, 1, 1).expand_as(plain.weight))
        by_group = sizes.view(2, 1, 3, 1, 1).expand(
            2, 2, 3, 3, 3
        )  # input channels lie first, group after group
        transposed.weight.copy_(by_group.reshape(4, 3, 3, 3))
    for module in (plain, transposed):
        told = {advice.kind: advice.text for advice in advise(module)}
        assert "exact" in told["int8 weight"]
        assert "5 of 6 output channels" in told["prune weight"]
