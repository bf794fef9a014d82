"""How much of what models run has a FLOPs figure: by the time of the operators, and by their names.

Every case of the zoo, forward and backward; and of the corpus every case (more than an hour), or with ``--quick`` a
sample that is drawn with a fixed seed, traced without being checked. A name counts as covered when all of its calls
have a figure; beside it stands of how many names some have. Only operators of ``aten`` have a target: users' own
operators and compiled code, of which nothing but the name can be seen, are listed apart.

``python -m bench.coverage FILE ...`` prints the same table of what ``python -m tools.corpus --json FILE`` wrote.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping

from bench.row import Row, at_least, for_information, table
from tools.corpus.operators import Tally, added, tallies
from tools.corpus.subject import Result
from torch_vis import Trace

BY_TIME, BY_NAME = 1.0, 0.95
SEED = 5
SAMPLE = {"modules": 30, "ops": 80, "timm": 12, "hf": 16}  # cases of each group


def run(quick: bool) -> list[Row]:
    """Zoo and corpus."""
    corpus, what = _corpus(quick)  # before anything starts threads, as it forks
    return [*rows("zoo", added(tallies(trace) for trace in _zoo())), *rows(f"corpus: {what}", corpus)]


def rows(title: str, found: Mapping[str, Tally]) -> list[Row]:
    """The figures of some operators by name, and each operator without a figure, the longest first."""
    aten = {name: tally for name, tally in found.items() if name.startswith("aten::")}
    others = {name: tally for name, tally in found.items() if name not in aten}
    whole = sum(tally.unknown == 0 for tally in aten.values())
    partly = sum(tally.unknown < tally.calls for tally in aten.values())
    calls = sum(tally.calls for tally in aten.values())
    made = [
        at_least(
            f"aten by time, {title}",
            _percent(_share(aten)),
            f"{calls:,} calls, {_milliseconds(sum(t.time_ns for t in aten.values()))}",
            _share(aten),
            BY_TIME,
        ),
        at_least(
            "  by name",
            f"{whole} of {len(aten)}",
            f"{partly} in some of their calls",
            whole / max(1, len(aten)),
            BY_NAME,
        ),
        for_information(
            at_least("  all by time", _percent(_share(found)), _namespaces(others), _share(found), BY_TIME)
        ),
    ]
    open_ = {name: tally for name, tally in found.items() if tally.unknown}
    spent = max(1, sum(tally.time_ns for tally in found.values()))
    for name, tally in sorted(open_.items(), key=lambda item: -item[1].unknown_ns):
        calls_of = f"{tally.unknown} of {tally.calls} calls, {_milliseconds(tally.unknown_ns)}"
        made.append(Row(f"    no figure: {name}", calls_of, "", tally.unknown_ns / spent, "", None))
    return made


def _share(found: Mapping[str, Tally]) -> float:
    spent = sum(tally.time_ns for tally in found.values())
    return (spent - sum(tally.unknown_ns for tally in found.values())) / max(1, spent)


def _namespaces(others: Mapping[str, Tally]) -> str:
    names = [name.partition("::")[0] for name in others]
    return ", ".join(f"{space} {names.count(space)}" for space in sorted(set(names))) or "no other namespace"


def _percent(share: float) -> str:
    shown = f"{100 * share:.3f} %"
    return f"{100 * share:.7f} %" if share < 1 and shown == "100.000 %" else shown


def _milliseconds(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.1f} ms"


def _zoo() -> list[Trace]:
    from tests.kit.traced import NAMES, traced

    return [traced(name) for name in NAMES]


def _corpus(quick: bool) -> tuple[dict[str, Tally], str]:
    """The operators of the cases, and in words which cases those are."""
    from tools.corpus.child import GROUPS, load_group
    from tools.corpus.pool import Limits, run_all

    chosen: list[tuple[str, str]] = []
    for group in GROUPS:
        load_group(group).prepare()
        names = sorted(load_group(group).names())
        if quick:
            names = random.Random(SEED).sample(names, min(SAMPLE[group], len(names)))
        chosen += [(group, name) for name in names]
    limits = Limits(jobs=1, timeout_s=60 if quick else 240, check=False)
    results = [event for event in run_all(chosen, limits) if isinstance(event, Result)]
    which = f"{len(chosen)} cases" + (f" drawn with seed {SEED}" if quick else "")
    return added(result.operators for result in results), f"{which}, {_outcomes(results)}"


def _outcomes(results: list[Result]) -> str:
    ended = [result.status for result in results]
    return ", ".join(f"{ended.count(status)} {status}" for status in sorted(set(ended), reverse=True))


def main(paths: list[str]) -> int:
    """The table of files that the corpus runner wrote, all together."""
    results = []
    for path in paths:
        with open(path) as file:
            results += json.load(file)["results"]
    found = rows(f"{len(results)} cases", added(result["operators"] for result in results))
    print(table(found))
    return int(any(row.met is False for row in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
