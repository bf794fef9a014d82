"""The module explorer's document, snippet by snippet, under the names and signatures that it gives."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis
from torch_vis import (
    ExplorerConfig,
    ModuleInfo,
    analyze_memory_usage,
    explore_model,
    explore_torch_module,
    export_model_summary,
    format_param_count,
    format_shape,
    format_time,
    get_forward_stats,
    get_parameter_statistics,
    record_torch_module_forward_stats,
)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A terminal that is not there: the program is run for a moment, headless, and kept."""
    from torch_vis.views.terminal.app import Explorer

    programs: list[Any] = []

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        async def moment() -> None:
            async with self.run_test(size=(140, 40)) as pilot:
                await pilot.pause()
                await pilot.press("q")

        asyncio.run(moment())
        programs.append(self)

    monkeypatch.setattr(Explorer, "run", run)
    for name in ("__stdin__", "__stdout__"):
        monkeypatch.setattr(f"sys.{name}", type("Terminal", (), {"isatty": lambda self: True})())
    return programs


class CustomNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(64, 128, 3, padding=1)
        self.fc = torch.nn.Linear(128 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv1(x))
        x = torch.relu(self.conv2(x))
        x = x.view(x.size(0), -1)
        return self.fc(x)


def test_the_usual_way(opened: list[Any]) -> None:
    model, input_data = CustomNet(), torch.randn(1, 3, 8, 8)
    with record_torch_module_forward_stats(model):
        output = model(input_data)
    assert output.shape == (1, 10)
    explore_torch_module(model)
    timing_data = get_forward_stats(model)
    assert timing_data["conv1"].timing()["total"] > 0
    assert "time" in opened[0].source.forest.numbers


def test_any_model_and_a_real_one(opened: list[Any]) -> None:
    from tests.zoo import declare_torchvision_ops

    declare_torchvision_ops()
    from torchvision import models

    explore_model(models.resnet50(weights=None))
    explore_model(CustomNet())
    assert [program.source.title for program in opened] == ["ResNet", "CustomNet"]


def test_a_trace_explores(opened: list[Any]) -> None:
    model = CustomNet()
    t = torch_vis.trace(model, torch.randn(1, 3, 8, 8), backward=True)
    t.explore()
    t.explore(model=model, against=t, config=ExplorerConfig(color_scheme="light"))
    assert opened[1].source.other is not None and "backward" in opened[1].source.forest.numbers


def test_a_file_that_torch_saved(opened: list[Any], tmp_path: Path) -> None:
    torch.save(CustomNet().state_dict(), tmp_path / "model.pth")
    explore_model(tmp_path / "model.pth")
    explore_model(torch.load(tmp_path / "model.pth"))
    assert all(program.source.forest.row("conv1.weight") is not None for program in opened)


def test_the_helpers_as_they_are_written_down() -> None:
    assert format_shape((3, 224, 224)) == "3×224×224"
    assert [format_param_count(one) for one in (999, 1_700, 1_700_000, 5_400_000_000)] == [
        "999",
        "1.7K",
        "1.7M",
        "5.4B",
    ]
    assert [format_time(one) for one in (5e-7, 5e-4, 0.5, 5, 50, 300, 7200)] == [
        "500.0ns",
        "500.00μs",
        "500.00ms",
        "5.0000s",
        "50.00s",
        "5.0min",
        "2.0h",
    ]


def test_memory_and_parameters() -> None:
    model = CustomNet()
    assert analyze_memory_usage(model) == {name: p.numel() * 4 for name, p in model.named_parameters()}
    total = sum(p.numel() for p in model.parameters())
    assert get_parameter_statistics(model) == {
        "total_params": total,
        "trainable_params": total,
        "non_trainable_params": 0,
        "memory_usage": total * 4,
    }


@pytest.mark.parametrize("format", ["text", "json", "html"])
def test_summaries_can_be_saved(tmp_path: Path, format: str) -> None:
    summary = export_model_summary(CustomNet(), format=format)
    (tmp_path / "model_analysis.txt").write_text(summary)
    assert "conv1" in summary and "Conv2d" in summary


def test_the_records() -> None:
    fields = [field.name for field in dataclasses.fields(ModuleInfo)]
    assert fields == ["name", "module_type", "parameter_count", "shapes", "timing_stats", "memory_usage"]
    assert ModuleInfo("fc", "Linear", 8, {}).timing_stats is None
    config = ExplorerConfig()
    assert dataclasses.asdict(config) == {
        "show_parameter_counts": True,
        "show_shapes": True,
        "show_timing": True,
        "show_memory": True,
        "compact_view": False,
        "color_scheme": "dark",
        "max_depth": None,
    }
