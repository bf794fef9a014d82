"""Without an optional package everything public works, or says in one sentence which line installs it."""

from __future__ import annotations

import os
import re

import pytest

from tests.kit import surface
from torch_vis.cli.command_table import COMMANDS
from torch_vis.cli.commands.doctor import EXTRAS

# torch itself needs networkx, for Dynamo and AOT
PACKAGES = sorted(
    {"torchvision", *(package for packages, _ in EXTRAS.values() for package in packages)} - {"networkx"}
)
PIP = re.compile(r"(\S+) is not installed; run: pip install ('torch-vis\[([a-z-]+)\]'|torchvision)")


def unfit(outcome: str, hidden: list[str]) -> bool:
    """Whether a call neither worked nor named the line that installs what was hidden."""
    if outcome == surface.WORKS or "the explorer needs a terminal" in outcome:
        return False
    found = PIP.search(outcome)
    if found is None or not outcome.startswith("MissingExtra"):
        return True
    package, _, extra = found.groups()
    of_textual = package == "textual" and "rich" in hidden
    return not (
        (package in hidden or of_textual)
        and (package == "torchvision" or package in EXTRAS[extra][0])
        and (package != "torchvision" or extra is None)
    )


def test_every_name_is_called() -> None:
    assert surface.public_names() <= {*surface.CALLS}, "tests/kit/surface.py calls every public name"
    assert {*surface.COMMAND_LINES} == {*COMMANDS}


@pytest.fixture(scope="module")
def without_extras() -> dict[str, str]:
    """What every call ends in where no extra is installed."""
    return surface.asked((PACKAGES, None))[0]


def test_with_no_extra_at_all(without_extras: dict[str, str]) -> None:
    assert surface.public_names() - surface.SLOW <= {*without_extras}
    assert {name: text for name, text in without_extras.items() if unfit(text, PACKAGES)} == {}
    assert sum(text == surface.WORKS for text in without_extras.values()) > 180


@pytest.mark.parametrize("package", ["rich", "matplotlib", "onnx"])
def test_with_one_package_missing(package: str, without_extras: dict[str, str]) -> None:
    """What needs some package, with one of those missing that most depends on."""
    in_need = [name for name, text in without_extras.items() if text != surface.WORKS]
    blocks = [[package]]
    single = surface.asked(*((block, in_need) for block in blocks))
    bad = {}
    for packages, outcomes in zip(blocks, single, strict=True):
        assert len(outcomes) >= len(in_need), packages
        for name, text in outcomes.items():
            torchs_own = packages == ["networkx"] and f"{os.sep}torch{os.sep}" in text
            if unfit(text, packages) and not torchs_own:
                bad[packages[0], name] = text
    assert bad == {}
