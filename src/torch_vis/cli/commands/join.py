"""Join the files that ranks of one job have left into one, and say whether the ranks agree.

Prints the ranks and where they do not agree: which never came to which collective, or ran another, of another size or
type, with the line. The exit code is 1 then. `torch-vis show`, `explore` and `report communication` and the other
reports about ranks take the file that is written; `step.tvz#3` is one rank of it.
"""

from __future__ import annotations

from typing import Any

from torch_vis.cli import targets
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.errors import UsageError

EXAMPLES: tuple[tuple[str, str], ...] = (
    ("the ranks of a step in one file", "torch-vis join step.r0.tvz step.r1.tvz -o step.tvz"),
    ("a page of all of them", "torch-vis join step.r0.tvz step.r1.tvz -o step.html"),
    (
        "a time line of all of them, for Perfetto",
        "torch-vis join step.r0.tvz step.r1.tvz -o step.perfetto.json",
    ),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="the files of the ranks, or one of several ranks"
    )
    parser.add_argument(
        "--partial", action="store_true", help="join those that are there, where ranks are missing"
    )
    parser.add_argument("--width", type=int, default=120, help="of the lines (default: 120)")
    targets.add_output_option(parser)


def run(options: Any, out: Output) -> int:
    """Load, match, write, print."""
    import torch_vis as tv

    targets.can_write(options.output, options.format)
    try:
        world = tv.join([targets.load_any(path) for path in options.files], partial=options.partial)
    except UsageError as error:
        # in the words of the command line
        raise UsageError(str(error).replace("partial=True", "--partial")) from None
    assert world is not None
    for path in options.output:
        world.save(path, format=options.format)
        out.say(f"wrote {path}")
    document = {
        "ranks": world.ranks,
        "mesh": world.mesh,
        "collectives": len(world.meetings),
        "problems": [problem._asdict() for problem in world.problems],
        "files": list(options.output),
    }
    out.give(document, world.table(width=options.width))
    return 1 if world.problems else 0
