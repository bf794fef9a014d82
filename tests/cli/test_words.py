"""The command line speaks of its own options: nothing that a command prints names an argument of Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_vis as tv
from tests.kit.forking import Server
from torch_vis.cli.output import _PATTERNS, in_flags

SOURCE = Path(tv.__file__).parent
# `name=…`, `t.name(`, `tv.name`, `name()` and `name(argument=`
PYTHON = re.compile(
    r"\b[a-z_]{2,}=(?=[\w'\"…\[{(]|\s|;|,|$)|\bt\.(?!py\b)[a-z_]+\b(?!\w*\.)|\btv\.[a-z_]|\b[a-z_]{3,}\((?:\)|[a-z_]+=)"
)
NOT_SAID = (
    # where sentences stand that no command prints: what only Python reaches, files that are written, the explorer
    "_deprecated.py analysis/activations/ analysis/advice/ analysis/full_report.py analysis/memory/measured.py "
    "analysis/relevance/ analysis/attribution/edges.py views/charts/maps.py "
    "analysis/fusion/compiled_kernels.py capture/compilers/inductor_kernels.py capture/recording/user_functions.py "
    "cli/completion.py cli/commands/doctor.py cli/commands/trace.py cli/import_path.py cli/model_spec.py cli/output.py "
    "cli/targets.py cli/task_table.py exporters/ interfaces/ capture/edits.py capture/live.py replay/rerun.py "
    "replay/slicing.py views/figure/ views/page/ views/terminal/ views/text/breaks.py"
).split()
FROM_PYTHON = re.compile(
    # and sentences about a wrong argument of a function, or an option, that commands never give
    r"(?:trace|load|record|compare|join|with_metrics|hardware\.register)\(\) takes|\(\) has no option|"
    r"tv\.join|tv\.simulate|ranks='all'|tv\.live|numbers: |check=|join\(t\)|dynamic|fullgraph|subgraphs are those|"
    r"calibration is what|each=|Call zero_grad|retain_graph|use_reentrant|foreach=True|model\.eval\(\)|"
    r"item\(\)|\.numpy\(\)|\.mean\(\)|charts: |check\(\) has to come|pass it to trace\(\)|no longer describes|"
    r"give target= or measure=|at the embeddings: at=7|own; trace\(\) the callable|"
    r"keep=7|keep=, replace=|until=|find\(\) gives|head=3 are|differentiable=True"
)


def sentences() -> Iterator[tuple[str, str]]:
    """What stands in strings of the library and is no docstring, with its place."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(tuple(NOT_SAID)):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                skipped.add(id(node.value))
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in ast.walk(node) if part is not node}
            if id(node) in skipped:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "7" for part in node.values]
                yield f"{name}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{name}:{node.lineno}", node.value


def test_no_sentence_names_an_argument_of_python() -> None:
    left = {
        place: in_flags(text)
        for place, text in sentences()
        if text.count(" ") >= 3
        and not FROM_PYTHON.search(text)
        and PYTHON.search(_flags_left_out(in_flags(text)))
    }
    assert left == {}, "say it in IN_FLAGS of cli/output.py as well"


def _flags_left_out(text: str) -> str:
    """Without what is meant to be Python: a line for the shell, and what is said to be in Python."""
    return re.sub(r"in Python, tv\.\S+|--assume \w+=\w+|python -c '[^']*'", "", text)


def test_every_row_is_of_a_sentence() -> None:
    said = [text for _, text in sentences()]
    idle = [pattern.pattern for pattern in _PATTERNS if not any(map(pattern.search, said))]
    assert idle == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "report gradients net.py:make_model -i 2x8",
            "this trace has no backward pass: add --backward or --loss; where NaN and infinity appear in forward, "
            "torch-vis report health says as it is",
        ),
        (
            "report time net.py:make_model -i 2x8 --fake",
            "torch-vis report latency --hardware … predicts its time",
        ),
        ("trace net.py:Breaking -i 2x8 --via fx", "--via export or --via dynamo can take control flow"),
        ("trace net.py:Breaking -i 2x8 --via export", "a plain run, without --via, takes any program"),
        ("trace net.py:Breaking -i 2x8 --fake", "or trace without --fake"),
        ("trace net.py:make_model -i 2x8 --fake --repeat 3", "leave out --fake and --via"),
        ("trace net.py:make_model -i 2x8 --loss net:not_scalar", "--loss must return a scalar tensor"),
        ("report partition net.tvz --max-flops 0", "--max-flops is a number above 0"),
    ],
)
def test_errors_name_flags(cli: Server, words: str, said: str) -> None:
    done = cli(*words.split())
    assert done.code == 2 and said in done.err, done.err


def test_printed_notes_name_flags(cli: Server) -> None:
    assert "--width 1" in cli("summary", "net.tvz", "--width", "60").out.replace("\n  ", " ")
    assert "--depth all shows all" in cli("summary", "net.tvz", "--depth", "1").out
    assert "--repeat 10" in cli("report", "time", "net.tvz").out.replace("\n  ", " ")
    assert "trace without --via for" in cli("trace", "net.py:make_model", "-i", "2x8", "--via", "dynamo").out
    for name in ("time", "memory", "fusion", "summary"):
        assert not PYTHON.search(_flags_left_out(cli("report", name, "net.tvz").out)), name


def test_what_the_users_code_says_is_left_alone(cli: Server) -> None:
    done = cli("trace", "net.py:asks_for_python")
    assert done.code == 2 and "set backward=True first" in done.err, done.err


def test_help_shows_calls_of_python_as_they_are(cli: Server) -> None:
    shown = cli("help", "memory").out
    assert 't.memory(); tv.advise.checkpointing(model, x, memory="8 GiB")' in shown, shown
    assert 'tv.advise.batch_size(model, x, memory="16 GiB", backward=True)' in shown, shown
