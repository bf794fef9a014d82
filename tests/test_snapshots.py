"""Everything that traces print, return and write is as it was when ``make snapshots`` was last run."""

from __future__ import annotations

from difflib import unified_diff
from inspect import getsource

import pytest

import torch_vis as tv
from tests.kit import snapshots
from tests.kit.snapshots import FOLDER, NAMES, kinds, snapshot
from torch_vis._reports import EXPLANATIONS
from torch_vis._reports import REPORTS as REPORT_TABLE

LINES = 40
KINDS = [(name, kind) for name in NAMES for kind in kinds(name)]


@pytest.mark.parametrize(("name", "kind"), KINDS, ids=["-".join(pair) for pair in KINDS])
def test_snapshot(name: str, kind: str) -> None:
    files = snapshot(name, kind)
    changes = [line for file, text in files.items() for line in differences(f"{name}/{file}", text)]
    if changes:
        pytest.fail(message(changes), pytrace=False)


def test_every_file_is_a_snapshot() -> None:
    expected = {f"{name}/{file}" for name, kind in KINDS for file in snapshot(name, kind)}
    stored = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert stored == expected, "make snapshots removes files that nothing writes any more"


def test_every_report_has_a_snapshot() -> None:
    """Each question in the tables of reports, and each that ranks can be asked, is printed in some snapshot."""
    source = getsource(snapshots)
    of_ranks = [name for name, item in vars(tv.World).items() if "Report" in str(_result(item))]
    asked = {
        *REPORT_TABLE,
        *EXPLANATIONS,
        *of_ranks,
        *tv.advise.__all__,
        "fit",
        "sweep",
        "select",
        "receptive_field",
    }
    assert {"step_time", "pruning", "logit_lens"} <= asked
    assert {name for name in asked if f".{name}(" not in source} == set()


def _result(function: object) -> object:
    return getattr(function, "__annotations__", {}).get("return")


def differences(file: str, text: str) -> list[str]:
    """The lines in which a stored snapshot differs from what it is now."""
    path = FOLDER / file
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return list(unified_diff(before, text.splitlines(), f"{file} (stored)", f"{file} (now)", lineterm=""))


def message(changes: list[str]) -> str:
    """The first of the differences, and what to do about them."""
    rest = len(changes) - LINES
    more = [f"… {rest} more lines"] if rest > 0 else []
    advice = "If this is meant, make snapshots rewrites the files, and git diff shows them."
    return "\n".join([*changes[:LINES], *more, advice])
