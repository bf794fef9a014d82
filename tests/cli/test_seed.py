"""``--seed``: every seed that torch takes, and one line about one that it does not."""

from __future__ import annotations

import pytest

from tests.kit.forking import Server


@pytest.mark.parametrize("seed", [2**64 - 1, 2**64 - 2, -1, -(2**63)])
def test_the_last_seeds_are_seeds(cli: Server, seed: int) -> None:
    words = ("net.py:make_model", "net.py:make_model", "-i", "2x8", "--numbers")
    done = cli("compare", *words, "--seed", str(seed))
    assert done.code == 0 and "no difference" in done.out, done


@pytest.mark.parametrize("seed", [str(2**64), str(-(2**63) - 1), "x"])
def test_what_is_no_seed_is_told_in_one_line(cli: Server, seed: str) -> None:
    done = cli("summary", "net.py:make_model", "-i", "2x8", "--seed", seed)
    assert done.code == 2 and "--seed" in done.err and "Traceback" not in done.err
