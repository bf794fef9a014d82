"""Run a model over many samples and write the activations that are selected, as safetensors files with an index.

Interrupted, even by kill -9, the same command goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch_vis.cli import import_path, model_spec
from torch_vis.cli.import_path import users_code
from torch_vis.cli.output import Output
from torch_vis.cli.parser import Parser
from torch_vis.errors import UsageError

EXAMPLES = (
    (
        "what a layer gives for 100 random samples, 32 at a time",
        "torch-vis extract net.py:make_model --input 100x8 --keep a --to acts",
    ),
    (
        "for the batches of a loader of yours",
        "torch-vis extract net.py:make_model --loader net.py:make_loader --keep a --keep b.input --to acts2",
    ),
)


def add_options(parser: Parser) -> None:
    """Its options."""
    model_spec.add_model_options(parser)
    parser.add_argument(
        "--keep", action="append", required=True, metavar="SELECTOR",
        help="what to write: a module, an operation, a slice … (several --keep are allowed)",
    )  # fmt: skip
    parser.add_argument(
        "--to", required=True, metavar="FOLDER", help="where to write; it may hold a part already"
    )
    parser.add_argument(
        "--loader",
        metavar="NAME",
        help="package.module:name or file.py:name: batches, or what makes them without arguments",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="of inputs that --input gives (default: 32)",
    )


def run(options: Any, out: Output) -> int:
    """Extract, and say what was written."""
    import torch_vis as tv

    if options.batch_size < 1:
        raise UsageError(f"--batch-size is 1 or more, not {options.batch_size}")
    if options.loader and options.input:
        raise UsageError("one of --loader and --input says what the model is run on, not both")
    subject = model_spec.subject(options, needs_inputs=not options.loader)
    import torch

    if not isinstance(subject.model, torch.nn.Module):
        raise UsageError(f"extract takes a model; {subject.label} is {type(subject.model).__name__}")
    loader = _loader(options.loader) if options.loader else _batches(subject, options.batch_size)
    keep = options.keep if len(options.keep) > 1 else options.keep[0]
    with users_code(f"{subject.label} cannot be extracted from"):
        acts = tv.extract(subject.model, loader, keep=keep, to=options.to)
    out.say(f"wrote {options.to}: {acts.samples:,} samples")
    arrays = {name: {"dtype": str(array.dtype), "shape": list(array.shape)} for name, array in acts.items()}
    document = {"folder": options.to, "samples": acts.samples, "complete": acts.complete, "arrays": arrays}
    out.give(document, "" if options.quiet else str(acts))
    return 0


def _loader(target: str) -> Any:
    """The batches that a name stands for."""
    source = import_path.find(target, "loader")
    if isinstance(source, Iterable):
        return source
    if not callable(source):
        raise UsageError(
            f"{target} is {type(source).__name__}; a loader gives batches, or is a function that makes one"
        )
    with users_code(f"{target} cannot be called"):
        loader = source()
    if not isinstance(loader, Iterable):
        raise UsageError(f"{target} gave {type(loader).__name__}, which gives no batches")
    return loader


def _batches(subject: model_spec.Subject, count: int) -> list[Any]:
    """What the model is given, so many samples at a time; what has fewer dimensions than samples is given each time."""
    import torch

    tensors = [item for item in (*subject.args, *subject.kwargs.values()) if isinstance(item, torch.Tensor)]
    sizes = {tensor.shape[0] for tensor in tensors if tensor.dim()}
    if not sizes:
        raise UsageError("the model is given no tensor whose first dimension would be the samples")
    samples = max(sizes)

    def part(item: Any, start: int) -> Any:
        along = isinstance(item, torch.Tensor) and item.dim() and item.shape[0] == samples
        return item[start : start + count] if along else item

    starts = range(0, samples, count)
    if not subject.kwargs:
        return [tuple(part(item, start) for item in subject.args) for start in starts]
    from torch_vis.capture.containers import argument_names

    names = dict(zip(argument_names(subject.model), subject.args)) | subject.kwargs
    return [{name: part(item, start) for name, item in names.items()} for start in starts]
