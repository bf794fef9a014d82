"""``python -m bench [name ...] [--quick] [--json PATH]``: run the figures and print one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib.metadata import version

from bench import FIGURES, child
from bench.row import Row, table
from torch_vis.analysis.machine.calibration import processor_name


def main() -> int:
    """Run what was asked for; the exit status is 1 if a target is missed."""
    listing = "\n".join(f"  {name:10} {what}" for name, what in FIGURES.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=f"The speed and memory figures, each beside its peer.\n\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help="figures to run; all of them when none is named"
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes and fewer rounds, for a first look"
    )
    parser.add_argument("--json", metavar="PATH", help="write the rows there as well")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]!r}; there are {', '.join(FIGURES)}")
    rows: list[Row] = []
    for name in options.names or FIGURES:
        started = time.perf_counter()
        print(f"{name}: {FIGURES[name]} …", end=" ", file=sys.stderr, flush=True)
        # a process each: what one figure wraps, loads or leaves allocated must not touch the next
        rows.extend(Row(*row) for row in child.call(f"bench.{name}:run", quick=options.quick))
        print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    print(f"{table(rows)}\n\n{circumstances()}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([row._asdict() for row in rows], file, indent=1)
    return int(any(row.met is False for row in rows))


def circumstances() -> str:
    """When and on what the figures were measured; a figure that is quoted is quoted with it."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    machine = f"{os.cpu_count()} cores of {processor_name()}, {platform.system()}"
    return (
        f"measured {time.strftime('%Y-%m-%d')} on {machine}; Python {platform.python_version()}, {libraries}"
    )


if __name__ == "__main__":
    sys.exit(main())
