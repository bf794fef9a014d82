"""How many interrupts leave anything behind in torch, or are lost: real ones, and one injected at every line of ours.

python -m tools.interrupts --signals 10000      # real signals at random times, over all contexts
python -m tools.interrupts --lines              # one at each line of each context; some minutes
python -m tools.interrupts --lines --only trace record
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import warnings

from tests.kit.interrupts import Interrupter, injected, left_behind, points, process_state, repair
from tests.kit.scenes import SCENES, SLOW


def lines(names: list[str], every: int) -> int:
    """Inject at every line; how many left something or were swallowed."""
    total = failures = 0
    for name in names:
        if name in SLOW:
            continue
        chosen = points(SCENES[name], every=True)[::every]
        wrong = 0
        for point, what in injected(name, SCENES[name], chosen):
            wrong += 1
            print(f"  {name}: {point} {what}", flush=True)
        print(f"{name}: {len(chosen):,} points, {wrong:,} failed", flush=True)
        total += len(chosen)
        failures += wrong
    print(f"injected at {total:,} points: {failures:,} failed")
    return failures


def signals(names: list[str], count: int, seed: int) -> int:
    """Send real interrupts; how many left something or were lost."""
    rng = random.Random(seed)
    times = {}
    for name in names:
        if name in SLOW:
            times[name] = 1.0
            continue
        SCENES[name]()
        started = time.perf_counter()
        SCENES[name]()
        times[name] = time.perf_counter() - started
    before = process_state()
    left = lost = 0
    tally = dict.fromkeys(names, 0)
    interrupt = Interrupter()
    try:
        for turn in range(count):
            # the more often the shorter it is, so that all are interrupted about as long
            name = rng.choices(names, [1 / times[name] ** 0.5 for name in names])[0]
            delay = rng.random() * min(2 * times[name], 0.5)
            came = interrupt(SCENES[name], delay)
            tally[name] += 1
            if not came:
                lost += 1
                print(f"  {turn}: {name} went on", flush=True)
            if wrong := left_behind(before):
                left += 1
                print(f"  {turn}: {name} left {', '.join(wrong)}", flush=True)
                repair(before)
    finally:
        interrupt.close()
    print("  ".join(f"{name} {number}" for name, number in tally.items()))
    print(f"{count:,} interrupts: {left:,} left something behind, {lost:,} were lost")
    print(
        f"{interrupt.dropped:,} more were dropped by Python in callbacks of torch's own, outside of our blocks"
    )
    return left + lost


def main() -> int:
    """What is asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--signals", type=int, default=0, metavar="N")
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the lines only each Nth")
    parser.add_argument("--only", nargs="+", choices=SCENES, default=list(SCENES), metavar="CONTEXT")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    failures = lines(options.only, options.every) if options.lines else 0
    if options.signals:
        failures += signals(options.only, options.signals, options.seed)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
