"""Try layouts of a training on many ranks that are not there: which fit, and which is the fastest.

The function that is named builds one rank's step of a mesh with the axes pp, dp and tp: `make(mesh)` gives the step,
and with a parameter `layers` few of them are traced. Nothing is allocated: all of it goes by shapes. The exit code is 1
if no layout fits.
"""

from __future__ import annotations

from typing import Any

from torch_vis.cli import import_path
from torch_vis.cli.model_spec import make_input, parse_input
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.script.job import axes_of
from torch_vis.errors import UsageError

EXAMPLES = (
    (
        "layouts of a training on 8 ranks of 80 GiB",
        "torch-vis fit parallel.py:make --input 8x64 --world 8 --memory 80GiB --tp 1,2",
    ),
    (
        "with checkpoints and without, the fastest first",
        "torch-vis fit parallel.py:make --input 8x64 --world 8 --memory H100 --tp 1 --checkpoint 'layers.*,' "
        "--hardware H100",
    ),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.add_argument(
        "target", metavar="FILE.py:MAKE", help="the function that builds a rank's step of a mesh"
    )
    parser.add_argument("--world", type=int, required=True, metavar="N", help="how many ranks there are")
    parser.add_argument(
        "--memory", required=True, metavar="80GiB", help="what a rank has, or the name of a device"
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE",
        help="what the step is called with, e.g. 1x8192:int64; several are given as a tuple",
    )
    parser.add_argument(
        "--tp", default="1", metavar="1,2,4", help="tensor parallel ranks to try (default: 1)"
    )
    parser.add_argument("--pp", default="1", metavar="1,4", help="pipeline stages to try (default: 1)")
    parser.add_argument(
        "--checkpoint",
        metavar="PATTERN",
        help="modules to compute again; several to try with commas, an empty one for none",
    )
    parser.add_argument("--layers", type=int, metavar="N", help="how many layers the model has")
    parser.add_argument("--hardware", metavar="NAME", help="predict times for this device")
    parser.add_argument(
        "--links", metavar="tp=450GB/s,dp=50GB/s", help="how fast axes are (default: as usual for the device)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="do not trace the best layout with all its layers"
    )
    parser.add_argument("--width", type=int, default=120, help="of the lines (default: 120)")


def run(options: Any, out: Output) -> int:
    """Build, trace, print."""
    import torch_vis as tv

    make = import_path.find(options.target, "function")
    inputs = [make_input(parse_input(text), "cpu", None) for text in options.input]
    batch = None if not inputs else inputs[0] if len(inputs) == 1 else tuple(inputs)
    patterns = None if options.checkpoint is None else [p or None for p in options.checkpoint.split(",")]
    with import_path.users_code(f"{options.target} failed"):
        report = tv.fit(
            make,
            batch,
            world=options.world,
            memory=options.memory,
            tp=_numbers("--tp", options.tp),
            pp=_numbers("--pp", options.pp),
            checkpoint=patterns,
            layers=options.layers,
            hardware=options.hardware,
            links=axes_of("--links", options.links, str) if options.links else None,
            whole=not options.quick,
        )
    out.give(report.to_dict(), report.table(width=options.width))
    return 0 if report.best is not None else 1


def _numbers(option: str, text: str) -> list[int]:
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise UsageError(f"{option} takes numbers of ranks, as in 1,2,4; {text!r} is none")
    return [int(part) for part in text.split(",")]
