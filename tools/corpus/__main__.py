"""The command: choose cases, run them with progress on one line, report."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tools.corpus.child import GROUPS, load_group
from tools.corpus.pool import Limits, Running, run_all
from tools.corpus.reasons import reason_for
from tools.corpus.report import print_report, write_json
from tools.corpus.subject import Result


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.corpus", description=__doc__)
    parser.add_argument(
        "--only", choices=GROUPS, action="append", help="a group; may be given more than once"
    )
    parser.add_argument("--filter", type=re.compile, metavar="REGEX", help="cases whose group/name matches")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N cases of each group")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="seconds for one case (120)"
    )
    parser.add_argument("--memory", type=float, default=8.0, metavar="GIB", help="GiB for one case (8)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="cases at once (2)")
    parser.add_argument("--eager", action="store_true", help="only build and run the cases, without tracing")
    parser.add_argument(
        "--no-check", action="store_true", help="trace the cases without checking: for their operators only"
    )
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write every result to this file")
    parser.add_argument(
        "--verbose", action="store_true", help="print each failure as it comes, with its cause"
    )
    return parser.parse_args(argv)


def choose(options: argparse.Namespace) -> list[tuple[str, str]]:
    """The cases that the options ask for."""
    chosen: list[tuple[str, str]] = []
    for group in options.only or GROUPS:
        module = load_group(group)
        module.prepare()
        named = [(group, name) for name in module.names()]
        if options.filter:
            named = [case for case in named if options.filter.search("/".join(case))]
        chosen += named[: options.limit]
    return chosen


def main(argv: list[str] | None = None) -> int:
    """Run the corpus; the exit status is 1 when a case that should pass failed, 130 after Ctrl-C."""
    options = parse(argv)
    console = Console()
    cases = choose(options)
    if options.list or not cases:
        console.print("\n".join("/".join(case) for case in cases) or "no case matches")
        return 0 if cases else 2
    limits = Limits(
        jobs=options.jobs,
        timeout_s=options.timeout,
        memory_bytes=int(options.memory * 2**30),
        eager_only=options.eager,
        check=not options.no_check,
    )
    results: list[Result] = []
    interrupted = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as cleanly as on Ctrl-C
    try:
        follow(console, cases, limits, results, verbose=options.verbose)
    except KeyboardInterrupt:
        interrupted = True
        console.print("stopped; what follows is only what was done so far")
    print_report(console, results, eager_only=options.eager)
    if options.json:
        write_json(options.json, results)
    if interrupted:
        return 130
    unexpected = [one for one in results if one.status == "failed" and not reason_for(one.group, one.name)]
    return int(bool(unexpected))


def follow(
    console: Console, cases: list[tuple[str, str]], limits: Limits, results: list[Result], *, verbose: bool
) -> None:
    """Run the cases and keep one line of progress up to date, or print a line now and then to a file."""
    columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    # Without a refresh thread: the cases are forked from this process.
    progress = Progress(*columns, console=console, transient=True, auto_refresh=False)
    names: dict[str, None] = {}
    counts: Counter[str] = Counter()
    with progress, closing(run_all(cases, limits)) as events:
        task = progress.add_task("", total=len(cases))
        for event in events:
            if isinstance(event, Running):
                names[f"{event.group}/{event.name}"] = None
            else:
                names.pop(f"{event.group}/{event.name}", None)
                results.append(event)
                counts[event.status] += 1
                if verbose and event.status != "passed":
                    console.print(f"{event.status}: {event.group}/{event.name}: {event.cause}", markup=False)
                if not console.is_terminal and len(results) % 50 == 0:
                    console.print(f"{len(results)} of {len(cases)}: {_summary(counts)}")
            progress.update(
                task, completed=len(results), description=f"{_summary(counts)}  {' '.join(names)}"
            )
            progress.refresh()


def _summary(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
