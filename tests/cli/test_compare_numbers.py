"""``torch-vis compare --numbers``: what two models compute, in the report and in the exit code."""

from __future__ import annotations

import json

import pytest

from tests.kit.forking import Server

INPUT = ("-i", "2x8")


def test_the_same_model_with_another_bias_differs_in_numbers_alone(cli: Server) -> None:
    models = ("net.py:make_model", "net.py:make_shifted")
    done = cli("compare", *models, *INPUT)  # nothing but numbers is another, and they were not looked at
    assert done.code == 0 and "--numbers tells whether they compute the same" in done.err
    done = cli("compare", *models, *INPUT, "--numbers")
    assert done.code == 1
    assert "5 operations in both, 0 of them changed" in done.out and "Numerical differences" in done.out
    assert "the runs start from different inputs or weights, most of all b.bias" in done.out
    assert cli("compare", *models, *INPUT, "--numbers", "--tolerance", "10").code == 0


def test_as_data_the_two_answers_are_apart(cli: Server) -> None:
    done = cli("compare", "net.py:make_model", "net.py:make_shifted", *INPUT, "--numbers", "--json")
    found = json.loads(done.out)
    assert (done.code, found["same"], found["same_structure"], found["numbers"]["same"]) == (
        1,
        False,
        True,
        False,
    )
    assert found["numbers"]["text"]["differ"] == "1 operation" and not found["changed"]
    done = cli("compare", "net.py:make_model", "net.py:make_model", *INPUT, "--numbers", "--json")
    found = json.loads(done.out)
    assert (done.code, found["same"], found["numbers"]["text"]["differ"]) == (0, True, "0 operations")


def test_what_is_written_otherwise_may_give_the_same(cli: Server) -> None:
    words = ("compare", "net.py:make_model", "net.py:make_rewritten", *INPUT, "--tolerance", "1e-5")
    assert cli(*words, "--numbers").code == 1  # it is not the same operations
    done = cli(*words, "--only-numbers", "--json")
    assert (done.code, [*json.loads(done.out)]) == (0, ["same", "numbers"])
    other = cli("compare", "net.py:make_rewritten", "net.py:make_shifted", *INPUT, "--only-numbers")
    assert other.code == 1 and "operations in both" not in other.out


@pytest.mark.parametrize("mode", ["--train", "--eval"])
def test_both_get_the_same_inputs_and_the_same_random_numbers(cli: Server, mode: str) -> None:
    """Also if one of them drew more numbers when it was made."""
    done = cli("compare", "net.py:Dropping", "net.py:DroppingWide", *INPUT, mode, "--backward", "--numbers")
    assert done.code == 0, done.out
    assert "no difference" in done.out


def test_an_output_that_is_no_tensor_counts(cli: Server) -> None:
    assert cli("compare", "net.py:Summing", "net.py:Summing", *INPUT, "--only-numbers").code == 0
    done = cli("compare", "net.py:Summing", "net.py:SummingTwice", *INPUT, "--only-numbers")
    assert done.code == 1 and "results differ by at most 1 relative" in " ".join(done.out.split())


@pytest.mark.parametrize("option", ["--numbers", "--only-numbers"])
def test_where_nothing_can_be_compared_the_exit_code_is_neither(cli: Server, option: str) -> None:
    done = cli("compare", "net.py:make_model", "net.py:make_model", "-i", "0x8", option)
    assert done.code == 2 and "nothing could be compared" in done.out


def test_the_help_says_what_the_exit_codes_mean(cli: Server) -> None:
    told = " ".join(cli("compare", "--help").out.split())
    assert (
        "The exit code is 0 if both are the same, 1 if they differ, and 2 if they cannot be compared" in told
    )
    assert "--only-numbers" in told and "--tolerance R" in told
