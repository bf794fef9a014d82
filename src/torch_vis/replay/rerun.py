"""``Trace.run``: new inputs matched to the recorded ones, the graph executed, the output in its containers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from torch_vis.capture.containers import named_tensors
from torch_vis.errors import UsageError
from torch_vis.ops.higher_order import BRANCHES
from torch_vis.replay.inputs import refused_sizes
from torch_vis.replay.intervene import Basis, Diverged, Request, Rerun, execute

if TYPE_CHECKING:
    from torch_vis.capture.kept_tensors import KeptTensors
    from torch_vis.replay.live_run import LiveRun


def rerun(
    trace: LiveRun,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    replace: Mapping[Any, Any],
    keep: Any,
    to: Any,
) -> Rerun:
    """Run a trace's graph again."""
    held, entry = trace.needs_tensors("run"), trace.entry
    if to is not None and keep is None:
        raise UsageError('to= is where kept tensors go; say which with keep="all" or keep=[...]')
    if not isinstance(replace, Mapping):
        raise UsageError(
            f"replace is a dictionary of modules or nodes and their replacements, not {type(replace).__name__}"
        )
    inputs: dict[str, torch.Tensor] = {}
    if args or kwargs:
        if entry is None:
            raise UsageError(
                "a recorded block has no inputs of its own; run() takes none, or trace() the callable"
            )
        inputs = entry.named(args, kwargs)
        other = entry.reshaped(inputs)
        if other:
            return _other_sizes(trace, other, inputs, args, kwargs, bool(replace) or keep is not None)
    try:
        return _run(trace, held, Request(inputs, replace, keep, to), None)
    except Diverged as found:
        exported = None if trace.program is None else trace.program.exported
        if exported is None or replace or keep is not None or not (args or kwargs):
            raise _another_way(trace, found) from None
        limits = (
            f"{_place(trace, found)} went the other way: the captured program ran, not the recorded operations",
        )
        return Rerun(output=_called(exported, args, kwargs), ran=len(trace.graph), limits=limits)


def _place(trace: LiveRun, found: Diverged) -> str:
    """The operator or line that decided."""
    site = trace.graph.nodes[found.node].site
    what = _operator(trace, found) or "a branch on a tensor"
    return f"{what} at {site}" if site is not None else what


def _operator(trace: LiveRun, found: Diverged) -> str | None:
    """The higher-order operator that looked at a value, if one did."""
    scope = trace.graph.nodes[found.node].scope
    while scope is not None:
        name = scope.type.partition(",")[0]  # what follows is the branch that was not taken
        if scope.kind in ("operator", "function") and name in BRANCHES:
            return name
        scope = scope.parent
    return None


def _another_way(trace: LiveRun, found: Diverged) -> UsageError:
    exporting = trace.program is None or trace.program.exported is None
    advice = ""
    if exporting and _operator(trace, found):
        advice = ", or via='export', whose program has both ways"
    return UsageError(
        f"{_place(trace, found)} saw {found.was} in the recorded run and sees {found.now} now, so other operations "
        f"would run than those that were recorded; trace again with these inputs{advice}"
    )


def _called(exported: Any, args: Any, kwargs: Any) -> Any:
    """What an exported program gives; state that it would change is that of a copy."""
    module = exported.module()
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        return torch.func.functional_call(module, buffers, args, kwargs)


def _run(trace: LiveRun, held: KeptTensors, request: Request, basis: Basis | None) -> Rerun:
    for key, by in request.replace.items():
        if not callable(by) and not isinstance(by, torch.Tensor):
            raise UsageError(
                f"the replacement for {key!r} is a tensor or a function of one, not {type(by).__name__}"
            )
    found, results = execute(trace.graph, held, request, basis)
    found.output = _rebuilt(trace, results)
    whole = found.basis
    if whole is not None:
        found._again = lambda replace, keep: _again(
            trace, held, Request(whole.inputs, replace, keep, None), whole
        )
    return found


def _again(trace: LiveRun, held: KeptTensors, request: Request, basis: Basis) -> Rerun:
    try:
        return _run(trace, held, request, basis)
    except Diverged as found:
        raise _another_way(trace, found) from None


def _other_sizes(
    trace: LiveRun, other: list[str], inputs: Mapping[str, torch.Tensor], args: Any, kwargs: Any, more: bool
) -> Rerun:
    """Inputs of other sizes: only a program whose sizes are open can take them."""
    program = trace.program
    exported = None if program is None else program.exported
    told = f"input {'; input '.join(other)}"
    if program is None or exported is None or not program.bounds:
        raise UsageError(
            f"{told}; the recorded operations have their sizes fixed: trace again with this input, or with "
            "via='export' and dynamic_shapes"
        )
    if more:
        raise UsageError(f"{told}; replace and keep need inputs of the recorded sizes")
    ranges = ", ".join(program.ranges.values())
    wrong = refused_sizes(trace.graph, inputs, program.bounds)
    if wrong:
        raise UsageError(f"{told}; the program leaves open {ranges}, and {wrong}")
    try:
        output = _called(exported, args, kwargs)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UsageError(f"{told}; the program leaves open {ranges}: {str(error).splitlines()[0]}") from error
    return Rerun(
        output=output, ran=len(trace.graph), limits=("the captured program ran with sizes of its own",)
    )


def _rebuilt(trace: LiveRun, results: Mapping[int, torch.Tensor]) -> Any:
    """The output with each tensor replaced by that of the new run."""
    if trace.error is not None:
        return None
    numbers = [r for r, row in enumerate(trace.graph.results) if row.kind == "output"]
    tensors = [tensor for _, tensor in named_tensors(trace.output)]
    if not tensors:  # a block: what it left behind, by name
        return (
            trace.output
            if trace.output is not None
            else {trace.graph.results[r].name: results[r] for r in numbers}
        )
    new = {id(tensor): results[number] for tensor, number in zip(tensors, numbers)}
    return pytree.tree_map(lambda leaf: _leaf(leaf, new), trace.output)


def _leaf(leaf: Any, new: Mapping[int, torch.Tensor]) -> Any:
    if id(leaf) in new:
        return new[id(leaf)]
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        made = copy.copy(leaf)
        for part in dataclasses.fields(leaf):
            inner = getattr(leaf, part.name, None)
            object.__setattr__(made, part.name, pytree.tree_map(lambda item: _leaf(item, new), inner))
        return made
    return leaf
