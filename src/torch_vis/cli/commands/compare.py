"""Say in what two traces or models differ: modules, operations, shapes, costs, and with --numbers what they compute.

Of two files of weights (.pt, .pth, .safetensors, .pt2, .onnx …): names, shapes, types and elements.

The exit code is 0 if both are the same, 1 if they differ, and 2 if they cannot be compared. What counts: operations,
their arguments, shapes and types, classes and order of the modules that both call, and what is given back; not names,
containers, modules that run nothing, costs and times. With --numbers, also what both were given and made of it; with
--only-numbers nothing but that, so that a model that was written in another way is the same if it gives the same.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from torch_vis.cli import model_spec, targets
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.cli.targets import trace_of
from torch_vis.errors import UsageError

if TYPE_CHECKING:
    from torch_vis.analysis.compare.comparison import Comparison
    from torch_vis.analysis.compare.numeric.report import DifferencesReport

CANNOT = 2
EXAMPLES = (
    ("two traces, or in the same way two files of weights", "torch-vis compare net.tvz wide.tvz"),
    (
        "two models on the same inputs, and where their numbers part",
        "torch-vis compare net.py:make_model net.py:make_wide --input 2x8 --numbers",
    ),
    (
        "a model and the same written otherwise: is what they give the same, but for rounding?",
        "torch-vis compare net.py:make_model net.py:make_rewritten --input 2x8 --only-numbers --tolerance 1e-5",
    ),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser, positional="FILE|MODEL", many=True)
    model_spec.add_trace_options(parser)
    targets.add_trust_option(parser)
    group = parser.add_argument_group("numbers")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--numbers",
        action="store_true",
        help="compare what two models compute as well, on the same inputs and random numbers: outputs, gradients, "
        "every operation of both, and where the first difference is",
    )
    which.add_argument("--only-numbers", action="store_true", help="that alone, and not how it is computed")
    group.add_argument(
        "--tolerance",
        type=_tolerance,
        metavar="R",
        help="relative differences up to this do not count (default: 0; 1e-5 leaves out rounding in float32)",
    )


def run(options: Any, out: Output) -> int:
    """Compare, and print what differs."""
    import torch_vis as tv

    if len(options.target) != 2:
        raise UsageError(f"compare takes two traces or models, not {len(options.target)}")
    with_numbers = options.numbers or options.only_numbers
    if with_numbers:
        _has_numbers(options)
    elif options.tolerance is not None:
        raise UsageError("--tolerance is for numbers: add --numbers or --only-numbers")
    if all(map(targets.is_weights, options.target)):
        return _weights(options, out)
    any_model = not all(map(targets.is_trace, options.target))
    before, after = (
        trace_of(options, "compare", keep=with_numbers, word=word, beside_model=any_model)
        for word in options.target
    )
    result = tv.compare(before, after)
    if with_numbers:
        return _numbers(result, options, out)
    out.give(result.to_dict(), str(result))
    if result.same and not options.fake and not any(map(targets.is_trace, options.target)):
        out.say("both do the same; --numbers tells whether they compute the same as well")
    return int(not result.same)


def _numbers(comparison: Comparison, options: Any, out: Output) -> int:
    """Print what differs, and where the numbers do."""
    numbers = comparison.differences(tolerance=options.tolerance or 0.0)
    text = {"same": numbers.same, **numbers.to_dict()}
    if options.only_numbers:
        out.give({"same": numbers.same, "numbers": text}, str(numbers))
        return _code(numbers, same=numbers.same)
    same = comparison.same and numbers.same
    plain = {**comparison.to_dict(), "same": same, "same_structure": comparison.same, "numbers": text}
    out.give(plain, f"{comparison}\n\n{numbers}")
    return _code(numbers, same=same) if comparison.same else 1


def _code(numbers: DifferencesReport, *, same: bool) -> int:
    """The exit code; 2 where there was nothing to compare, which is neither the same nor a difference."""
    return int(not same) if numbers.any_compared or numbers.input_differences else CANNOT


def _has_numbers(options: Any) -> None:
    """Refuse what numbers cannot be compared of, before the work."""
    option = "--numbers" if options.numbers else "--only-numbers"
    if options.fake:
        raise UsageError(f"--fake computes no numbers that {option} could compare")
    for word in options.target:
        if targets.is_weights(word):
            raise UsageError(
                f"{option} needs two models to run, and {word} {targets.contents(word)}; two files of weights are "
                f"compared by their elements without {option}"
            )
        if targets.is_trace(word):
            raise UsageError(
                f"{option} needs two models to run, and {word} is a file, which holds no tensors: name the models, as "
                f"in net.py:make_model"
            )


def _tolerance(text: str) -> float:
    """A relative difference, as it is written."""
    try:
        result = float(text)
    except ValueError:
        result = float("nan")
    if not result >= 0:
        raise ArgumentTypeError(f"a relative difference, 0 or more, not {text!r}")
    return result


def _weights(options: Any, out: Output) -> int:
    """Compare two files of weights."""
    before, after = (targets.opened(word, trust=options.trust) for word in options.target)
    before.title, after.title = options.target
    from torch_vis.interfaces.explorer.weight_files import compare_weights

    result = compare_weights(before, after)
    out.give(result.to_dict(), str(result))
    return int(not result.same)
