"""How many damaged graphs ``check()`` finds: each edge of 20 small graphs deleted, and random changes over the zoo.

python -m tools.mutations                       # both figures; some minutes
python -m tools.mutations --mutants 200 --only bert_train lstm
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable

from tests.kit.mutations import SMALL, UNPROVABLE, Verdict, deletions, judge, mutant, run_of
from tests.zoo import ZOO, close_process_group


class Tally:
    """Counts what became of mutants."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, verdict: Verdict) -> None:
        """Count one, and show it if it should have been found, or was found by a raw error."""
        fate = "raw" if verdict.raw else "found" if verdict.found else "passed"
        self.counts[fate if not verdict.equivalent else f"equivalent, {fate}"] += 1
        if verdict.raw or (fate == "passed" and not verdict.equivalent):
            print(f"  {name}: {verdict.what} → {verdict.error or 'passed'}", flush=True)

    def __str__(self) -> str:
        found, missed = self.counts["found"], self.counts["passed"] + self.counts["raw"]
        share = 100 * found / max(found + missed, 1)
        same = sum(count for fate, count in self.counts.items() if fate.startswith("equivalent"))
        raw = self.counts["raw"] + self.counts["equivalent, raw"]
        return (
            f"{found:,} of {found + missed:,} found ({share:.2f} %), {same:,} more are equivalent "
            f"({self.counts['equivalent, found']:,} of these found too); {raw} raw errors"
        )


def delete_edges(names: Iterable[str]) -> Tally:
    """Every single edge of small graphs, deleted in turn."""
    tally = Tally()
    for name in names:
        trace = run_of(name)
        for damaged in deletions(trace.graph):
            tally.add(name, judge(trace, damaged, shuffles=1))
    return tally


def mutate(names: list[str], count: int, seed: int) -> Tally:
    """Random changes, as many of each case."""
    tally = Tally()
    for number, name in enumerate(names):
        started, chance = time.time(), random.Random(f"{seed} {name}")
        share = count * (number + 1) // len(names) - count * number // len(names)
        trace = run_of(name)
        for _ in range(share if len(trace.graph) else 0):
            tally.add(name, judge(trace, mutant(trace.graph, chance)))
        if time.time() - started > 20:
            print(f"  {name}: {time.time() - started:.0f} s", flush=True)
    return tally


def main() -> int:
    """Print both figures; 1 if they are not what they should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=2000, help="how many random changes (default: 2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="these cases of the zoo alone, and no deletions")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if not options.only:
        print(f"every edge of {len(SMALL)} small graphs deleted: {delete_edges(SMALL)}", flush=True)
    names = options.only or [name for name, case in ZOO.items() if not case.tags & UNPROVABLE]
    tally = mutate(names, options.mutants, options.seed)
    print(f"{options.mutants:,} random changes over {len(names)} cases of the zoo: {tally}")
    close_process_group()
    return int(tally.counts["raw"] > 0)


if __name__ == "__main__":
    sys.exit(main())
