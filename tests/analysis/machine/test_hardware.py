"""The profiles of machines: found however they are spelled, extended by users, and free of contradictions."""

from __future__ import annotations

import json

import pytest
import torch

import torch_vis as tv
from torch_vis.analysis.machine.hardware import (
    GENERATIONS,
    TABLE,
    Hardware,
    cpu,
    find_hardware,
    known,
    read_table,
)
from torch_vis.errors import NoMatch, UsageError


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("a100", "A100 80GB SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("rtx 4090", "RTX 4090"),
        ("TPU_v5p", "TPU v5p"),
        ("m2-max", "Apple M2 Max"),
        ("AMD MI300X", "MI300X"),
        ("epyc-genoa", "EPYC 9654"),
    ],
)
def test_a_profile_is_found_however_it_is_spelled(spelled: str, name: str) -> None:
    assert find_hardware(spelled).name == name


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(NoMatch, match="did you mean 'H200'"):
        find_hardware("H2O0")
    with pytest.raises(NoMatch, match="there are"):
        find_hardware("qqqqqqqqqqqqqqq")
    with pytest.raises(UsageError, match="not int"):
        find_hardware(7)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", known())
def test_no_profile_contradicts_itself(name: str) -> None:
    profile = find_hardware(name)
    assert profile.source and profile.class_ in ("gpu", "cpu", "accelerator")
    peaks = [profile.peak(dtype) for dtype in ("float64", "float32", "bfloat16", "int8")]
    narrower = peaks[1:] if "float64" not in profile.peaks else peaks
    assert narrower == sorted(narrower), "narrower types are never slower"
    assert 1e9 < profile.bandwidth < 2e13 and 4e9 <= profile.memory_bytes < 2e12
    assert 0.1 < max(profile.peaks.values()) / profile.bandwidth < 2000, "a unit is off by a thousand"


def test_a_type_without_a_figure_computes_like_the_next_wider_one() -> None:
    card = find_hardware("v100")
    assert card.peak("bfloat16") == card.peaks["float32"] and card.peak("float8") == card.peaks["float16"]


def test_processors_follow_cores_and_clock() -> None:
    small, large = (cpu("Sapphire Rapids", cores=cores, ghz=2.0) for cores in (8, 32))
    assert large.peak("float32") == 4 * small.peak("float32")
    with pytest.raises(NoMatch, match="sapphire rapids"):
        cpu("saphire rapids", cores=8, ghz=2.0)
    assert {"skylake", "genoa"} <= set(GENERATIONS)


def test_a_device_is_given_by_its_name_or_as_it_is() -> None:
    mine = Hardware("Test board 2", "gpu", {"float32": 1e12}, 1e11, 1_000_000, "measured")
    model, x = torch.nn.Linear(8, 4), torch.ones(2, 8)
    found = tv.advise.batch_size(model, x, memory=mine, measured=False)
    assert found.largest == tv.advise.batch_size(model, x, memory=1_000_000, measured=False).largest
    assert tv.advise.checkpointing(model, x, memory=mine).budget_bytes == 1_000_000
    assert "Test board 2" in str(tv.trace(model, x).latency(hardware=mine))
    with pytest.raises(UsageError, match="max_bytes is a number of bytes or a text"):
        tv.trace(model, x).partition(by="modules", max_bytes=mine)


def test_users_add_their_own_once() -> None:
    mine = Hardware("Test board 1", "gpu", {"float32": 1e12}, 1e11, 10**10, "measured", aliases=("tb-one",))
    tv.hardware.register(mine)
    assert find_hardware("tb one") is mine
    with pytest.raises(UsageError, match="already"):
        tv.hardware.register(mine)
    with pytest.raises(NoMatch, match="float32"):
        Hardware("x", "gpu", {"floats32": 1e12}, 1e11, 10**10, "")
    for bandwidth in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="above 0"):
            Hardware("x", "gpu", {"float32": 1e12}, bandwidth, 10**10, "")
    with pytest.raises(NoMatch, match="class of hardware 'fpga'"):
        Hardware("x", "fpga", {"float32": 1e12}, 1e11, 10**10, "")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100-PCIE-80GB", "A100 80GB PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("a100 80gb", "A100 80GB SXM"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A800-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A30 PCIe", "A30"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM2e", "H100 PCIe"),
        ("NVIDIA H100 SXM5 80GB", "H100 SXM"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA GH200 120GB", "GH200 96GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe 32GB"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe 32GB"),
        ("AMD Instinct MI250X/MI250", "MI250X"),
    ],
)
def test_a_drivers_name_is_recognised(device: str, name: str) -> None:
    assert find_hardware(device).name == name


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "H100 NVL 64GB",
        "A100 64GB",
        "orin",
        "T4 PCIe 32GB",
        "NVIDIA A100 80GB PCIe MIG 1g.10gb",
    ],
)
def test_another_part_is_not_taken_for_a_like_one(device: str) -> None:
    with pytest.raises(NoMatch, match=device):
        find_hardware(device)


def test_of_a_size_that_is_not_known_the_known_ones_are_named() -> None:
    with pytest.raises(NoMatch, match="did you mean 'A100 40GB' or 'A100 80GB PCIe' or 'A100 80GB SXM'"):
        find_hardware("NVIDIA A100-SXM-64GB")


@pytest.mark.parametrize("word", ["cpu", "GPU", "nvidia"])
def test_a_word_that_names_no_device_is_answered_with_what_there_is(word: str) -> None:
    with pytest.raises(NoMatch, match="there are: '"):
        find_hardware(word)


def test_hardware_without_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a name"):
        Hardware(" ", "gpu", {"float32": 1e12}, 1e11, 10**9, "a guess")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tflops": {"floats32": 1}}, "'X1' .* is wrong: .*float32"),
        ({"gb": 0}, "'X1' .* above 0"),
        ({"watts": 300}, "'X1' .*'watts'"),
        ({"aliases": ["x2"]}, "have the name or alias 'x2'"),
    ],
)
def test_a_wrong_row_of_the_table_is_refused(change: dict[str, object], message: str) -> None:
    row = {"aliases": [], "tflops": {"float32": 1}, "gb_per_s": 9, "gb": 8, "source": "a guess"}
    rows = [{"name": "X1", **row, **change}, {"name": "X2", **row}]
    with pytest.raises(ValueError, match=message):
        read_table({"gpu": rows, "accelerator": [], "cpu": [], "cpu_generation": []})


def test_every_device_of_the_table_can_be_looked_up_by_each_of_its_names() -> None:
    content = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = [row for class_ in ("gpu", "accelerator", "cpu") for row in content[class_]]
    assert len(rows) > 60
    for row in rows:
        assert {find_hardware(name).name for name in (row["name"], *row["aliases"])} == {row["name"]}
