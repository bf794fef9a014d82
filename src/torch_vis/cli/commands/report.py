"""Print one report of a saved trace, or of a model that is traced for it: memory, time, gradients, roofline and so on.

The reports are those of a trace in Python: `torch-vis report memory net.tvz` prints what `print(t.memory())` does.
"""

from __future__ import annotations

from typing import Any

from torch_vis._reports import EXPLANATIONS, REPORTS
from torch_vis.cli import model_spec, targets
from torch_vis.cli.command_table import PROGRAM
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.targets import trace_of
from torch_vis.errors import UsageError, no_match

EXAMPLES = (
    ("where the memory of a saved run goes", "torch-vis report memory net.tvz"),
    (
        "gradients of a model, as data for another program",
        "torch-vis report gradients net.py:make_model --input 2x8 --backward --json",
    ),
    (
        "what the greatest output is due to",
        "torch-vis report attribute net.py:make_model --input 2x8 --method saliency",
    ),
)
ALL = {**REPORTS, **EXPLANATIONS}
NEED_TENSORS = frozenset({"gradients", "health", *EXPLANATIONS})
# of files of several ranks
OF_RANKS = ("memory", "communication", "stragglers", "critical_path", "schedule", "step_time")
TEXTS = frozenset({"by", "hardware", "method", "at", "mode"})


def add_options(parser: Parser) -> None:
    """Its options: the report, what it is about, and the options of all reports."""
    parser.add_argument(
        "report", metavar="REPORT", help=f"one of {', '.join(dict.fromkeys([*ALL, *OF_RANKS]))}"
    )
    model_spec.add_model_options(parser, positional="FILE|MODEL")
    model_spec.add_trace_options(parser)
    group = parser.add_argument_group("options of a report, as its method in Python has them")
    for option, reports in _options().items():
        flag = f"--{option.replace('_', '-')}"
        group.add_argument(flag, dest=f"of_{option}", metavar="X", help=f"of {' and '.join(reports)}")
    parser.add_argument("--width", type=int, default=120, help="of the lines (default: 120)")


def run(options: Any, out: Output) -> int:
    """Load or trace, ask, print."""
    if options.report not in ALL and options.report not in OF_RANKS:
        raise no_match("report", options.report, [*ALL, *OF_RANKS])
    chosen = _chosen(options)
    world = _world(options)
    if world is not None:
        report = getattr(world, options.report)()
        out.give(report.to_dict(), report.table(width=options.width))
        return 1 if options.report == "communication" and world.problems else 0
    if options.report not in ALL:
        raise UsageError(
            f"{options.report} is about several ranks: name a file of them, as {PROGRAM} join writes it"
        )
    if options.report in NEED_TENSORS - {"health"} and targets.is_trace(options.target):
        raise UsageError(
            f"{options.report} looks at tensors, and a file holds none: name the model, with --input and --backward"
        )
    trace = trace_of(options, "report", keep=options.report in NEED_TENSORS)
    report = getattr(trace, options.report)(**chosen)
    out.give(
        report.to_dict() if options.json else None, "" if options.json else report.table(width=options.width)
    )
    return 0


def _world(options: Any) -> Any:
    """The ranks of a file of several, where the report is one about all of them."""
    if (
        options.report not in OF_RANKS
        or not targets.is_trace(options.target)
        or targets.is_weights(options.target)
    ):
        return None
    import torch_vis as tv

    loaded = targets.load_any(options.target)
    return loaded if isinstance(loaded, tv.World) else None


def _options() -> dict[str, list[str]]:
    """The options that reports take, and which reports take each."""
    options: dict[str, list[str]] = {}
    for name, question in ALL.items():
        for option in question.options:
            options.setdefault(option, []).append(name)
    return options


def _chosen(options: Any) -> dict[str, Any]:
    """The options that were given, refused where the report has none of that name."""
    chosen = {}
    for option, reports in _options().items():
        text = getattr(options, f"of_{option}")
        if text is None:
            continue
        if options.report not in reports:
            raise UsageError(
                f"--{option.replace('_', '-')} is an option of {' and '.join(reports)}, not of {options.report}"
            )
        chosen[option] = _value(option, text)
    return chosen


def _value(option: str, text: str) -> Any:
    """An option's value as the method takes it."""
    if option == "calibration":
        from torch_vis import hardware

        return hardware.load(text)
    if option == "target":
        return _index(text)
    if option in TEXTS or not text.replace(".", "", 1).isdigit():
        return text
    return float(text) if "." in text else int(text)


def _index(text: str) -> Any:
    """An index of an output: a number, or several with commas between."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--target is an index such as 3, or 0,3 of an output with more dimensions, not {text!r}"
        ) from None
    return numbers[0] if len(numbers) == 1 else numbers
