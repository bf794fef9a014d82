"""``Trace.run``: the recorded operations run again on new inputs, with values replaced, keeping activations."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_vis.capture.containers import named_tensors
from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.errors import CheckFailed, TensorsMissing, UsageError
from torch_vis.graph.graph import Graph
from torch_vis.graph.io.atomic import replacing
from torch_vis.graph.schema import Flag
from torch_vis.graph.text import many
from torch_vis.ops.higher_order import BRANCHES
from torch_vis.replay.live_run import input_values, refused_sizes
from torch_vis.replay.replay import Replay, ReplayPlan, plain_bytes, where
from torch_vis.replay.slicing import (
    ReplayTarget,
    all_nodes,
    descendants,
    forward_names,
    gradient_names,
    needed_nodes,
    only_touched,
    targets,
    value_names,
)

if TYPE_CHECKING:
    from torch_vis.capture.kept_tensors import KeptTensors
    from torch_vis.replay.live_run import LiveRun


DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
}  # fmt: skip


class InMemory:
    """Keeps tensors in a dictionary."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def put(self, name: str, tensor: torch.Tensor, *, copy: bool) -> None:
        """Keep a tensor; a copy of it where its memory is written to later."""
        self.kept[name] = tensor.clone() if copy else tensor


class OnDisk:
    """Writes tensors to their places in a safetensors file as they come; sizes are known before the run."""

    def __init__(self, file: BinaryIO, graph: Graph, values: Mapping[str, int]) -> None:
        self.kept: dict[str, torch.Tensor] = {}
        self.refused: list[str] = []
        self._file = file
        self._places: dict[str, int] = {}
        header: dict[str, Any] = {"__metadata__": {"written by": "torch_vis"}}
        end = 0
        for name, value in values.items():
            row = graph.types[graph.value_type[value]]
            if row.dtype not in DTYPES or row.nbytes is None:
                self.refused.append(name)
                continue
            header[name] = {
                "dtype": DTYPES[row.dtype], "shape": list(row.shape), "data_offsets": [end, end + row.nbytes]
            }  # fmt: skip
            self._places[name] = end
            end += row.nbytes
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._start = 8 + len(text)
        self._file.truncate(self._start + end)

    def put(self, name: str, tensor: torch.Tensor, *, copy: bool) -> None:
        """Write a tensor to its place."""
        if name in self._places:
            self._file.seek(self._start + self._places[name])
            self._file.write(plain_bytes(tensor).cpu().numpy().tobytes())


@contextmanager
def keeper(
    graph: Graph, values: Mapping[str, int], path: str | os.PathLike[str] | None
) -> Iterator[InMemory | OnDisk]:
    """A place for the named values of a run: memory, or the file at ``path``."""
    if path is None:
        yield InMemory()
        return
    if os.path.splitext(os.fspath(path))[1] != ".safetensors":
        raise UsageError(f"activations are written to a .safetensors file, not {os.fspath(path)!r}")
    with replacing(path) as file:
        yield OnDisk(file, graph, values)


Replacement = torch.Tensor | Callable[[Any], Any]


@dataclass(repr=False)
class Rerun:
    """What a run of the recorded graph gave.

    >>> import torch, torch_vis as tv
    >>> again = tv.trace(torch.nn.ReLU(), torch.ones(2)).run(torch.tensor([-1.0, 2.0]))
    >>> again.output, again.ran
    (tensor([0., 2.]), 1)
    """

    output: Any = None
    """The output, in the containers in which the model returned it."""
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    """The gradients by the name of what they belong to, where the trace has a backward pass."""
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    """State that the run changes (running statistics, caches), as it would be; the model's own is not touched."""
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    """The tensors that ``keep`` asked for; empty where they went to a file."""
    ran: int = 0
    """How many operations ran."""
    limits: tuple[str, ...] = ()
    """What is as it was recorded and might be different now, in sentences."""
    basis: Basis | None = field(default=None, repr=False)
    """The memory of the whole run, where ``keep="all"`` kept it, and what ``again`` starts from."""
    _again: Callable[..., Rerun] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        parts = [f"{many(self.ran, 'operation')} ran"]
        parts += [
            f"{len(of):,} {what}" for what, of in (("gradients", self.gradients), ("kept", self.kept)) if of
        ]
        return f"<Rerun: {', '.join(parts)}; output {_told(self.output)}>"

    def again(self, *, replace: Mapping[Any, Replacement], keep: Any = None) -> Rerun:
        """Intervene in this run, which kept everything: only the operations that depend on the replacement run.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2), torch.nn.ReLU())
        >>> run = tv.trace(model, torch.ones(1, 3)).run(keep="all")
        >>> changed = run.again(replace={"1": torch.zeros_like})
        >>> changed.output, changed.ran, run.ran
        (tensor([[0., 0.]]), 2, 5)
        """
        if self._again is None:
            raise UsageError(
                'again() starts from a run that kept everything: t.run(..., keep="all"), in memory'
            )
        return self._again(replace, keep)


class Diverged(Exception):
    """These inputs take another way through the program than the one that was recorded."""

    def __init__(self, node: int, was: bool, now: bool) -> None:
        super().__init__(node, was, now)
        self.node, self.was, self.now = node, was, now


def _told(output: Any) -> str:
    """What an output is, without its numbers."""
    if isinstance(output, torch.Tensor):
        return f"{str(output.dtype).removeprefix('torch.')} {tuple(output.shape)}"
    return type(output).__name__


class Basis(NamedTuple):
    """Every block of memory of a run as the run left it, the random states that it drew from, and its inputs."""

    memory: dict[int, torch.UntypedStorage]
    objects: dict[int, torch.Tensor]
    states: dict[int, Any]
    inputs: Mapping[str, torch.Tensor]
    results: dict[int, torch.Tensor]


@dataclass
class Request:
    """What a run is asked for."""

    inputs: Mapping[str, torch.Tensor]
    replace: Mapping[Any, Replacement]
    keep: Any
    to: str | os.PathLike[str] | None


def execute(
    graph: Graph, held: KeptTensors, request: Request, basis: Basis | None = None
) -> tuple[Rerun, dict[int, torch.Tensor]]:
    """Run what the request touches; gives the tensors of all results by number as well."""
    if any(t.device.type == "meta" or type(t).__name__ == "FakeTensor" for t in held.results.values()):
        raise TensorsMissing(
            "the run used meta or fake tensors, which hold no data; trace with real tensors to run it"
        )
    plan = ReplayPlan(graph, held)
    patches = [(t, by) for key, by in request.replace.items() for t in _patched(graph, key)]
    kept = _kept(graph, request.keep)
    given = input_values(graph, list(request.inputs))
    changed = {value for target, _ in patches for value in target.values}
    start = changed if basis is not None else changed | set(given.values())
    touched = descendants(graph, start)
    goals = [r for r in range(len(graph.results)) if not start or _rests_on(graph, r, touched)]
    deciding = _deciding(graph, held, touched)
    replaced = [target for target, _ in patches]
    needed = needed_nodes(graph, goals, kept, replaced, deciding)
    if basis is not None:
        needed = only_touched(graph, plan, needed, touched, kept, replaced, deciding)
    names = {name: value for target in kept for name, value in value_names(graph, target)}
    rerun = Rerun(ran=len(needed))
    whole = request.keep == "all" and request.to is None and not patches
    states: dict[int, Any] = {} if basis is None else dict(basis.states)
    with keeper(graph, names, request.to) as sink:
        run = _Execution(graph, held, plan, sink, kept, patches)
        run.deciding = frozenset(deciding)
        run.give({value: request.inputs[name] for name, value in given.items()})
        if basis is not None:
            run.start_from(basis, needed)
        try:
            run.run(needed, states=states, release=not whole)
        except CheckFailed as error:
            raise UsageError(
                f"the recorded operations do not fit: {error}; what depends on the data (sizes, branches) is as "
                "recorded, so trace again with these inputs"
            ) from error
        rerun.kept = sink.kept
        refused = getattr(sink, "refused", ())
    rerun.limits = _limits(graph, held, touched, run.otherwise)
    if refused:
        rerun.limits += (f"not written, safetensors has no form for them: {', '.join(refused)}",)
    again, before = set(goals), held.results if basis is None else basis.results
    results = {r: run.result(r) if r in again else before[r] for r in range(len(graph.results))}
    _sort(graph, results, rerun)
    if whole:
        rerun.basis = Basis(run.memory, run.objects, states, request.inputs, results)
    return rerun, results


def _sort(graph: Graph, results: Mapping[int, torch.Tensor], rerun: Rerun) -> None:
    for number, tensor in results.items():
        row = graph.results[number]
        if row.kind == "gradient":
            rerun.gradients[row.name.removesuffix(".grad")] = tensor
        elif row.kind == "state":
            rerun.state[row.name] = tensor


class _Execution(Replay):
    """A replay in which values can be replaced for all who read them afterwards.

    A replaced value gets a block of its own, and with it the views of it and the writes to it that follow. The
    operations that it came from still see the old one in their backward, as they do where a hook
    replaces an output.
    """

    def __init__(
        self,
        graph: Graph,
        held: KeptTensors,
        plan: ReplayPlan,
        sink: Any,
        kept: Sequence[ReplayTarget],
        patches: Sequence[tuple[ReplayTarget, Replacement]],
    ) -> None:
        super().__init__(graph, held, plan)
        self.sink = sink
        self.at = -1
        self.deciding: frozenset[int] = frozenset()
        self.otherwise: dict[int, Any] = {}  # what left for Python and is not what it was
        self.moved: dict[int, int] = {}  # value → its block of its own
        self.origin: dict[int, frozenset[int]] = {}  # value → the operations that see the old one
        self.actions: dict[int, list[Callable[[], None]]] = {}
        for target, by in patches:
            self._when(target.after, partial(self.patch, target, by))
        for target in kept:
            self._when(target.after, partial(self.store, target))
            for name, value in gradient_names(graph, target):
                self._when(int(graph.value_producer[value]), partial(self.put, name, value))

    def _when(self, node: int, action: Callable[[], None]) -> None:
        self.actions.setdefault(node, []).append(action)

    def block(self, value: int) -> int:
        """The block of a value: one of its own once it was replaced."""
        if value in self.moved and self.at not in self.origin[value]:
            return self.moved[value]
        return super().block(value)

    def run_node(self, node: int, states: dict[int, Any] | None) -> None:
        """Execute one node, as ``run`` does."""
        self.at = node
        if self.moved:
            self._follow(node)
        super().run_node(node, states)
        if node in self.deciding:
            self._compare(node)
        self.at = -1
        for action in self.actions.get(node, ()):
            action()

    def _compare(self, node: int) -> None:
        """See whether what left for Python is what it was; another truth value is another way through the program."""
        prepared = self.plan.prepared(node)
        args, kwargs = prepared.arguments([self.tensor(value) for value in self.plan.arguments(node)])
        was, now = self.held.python_values[node], prepared.run(*args, **kwargs)
        if was == now or (was != was and now != now):
            return
        if isinstance(was, bool):
            raise Diverged(node, was, now)
        self.otherwise[node] = now

    def _follow(self, node: int) -> None:
        """Views of and writes to a replaced value lie in its block."""
        graph = self.graph
        for read in self.plan.arguments(node):
            if read in self.moved and node not in self.origin[read]:
                for value in graph.out_value[slice(*graph.output_span(node))].tolist():
                    if graph.value_storage[value] == graph.value_storage[read]:
                        self.moved[value], self.origin[value] = self.moved[read], self.origin[read]

    def start_from(self, basis: Basis, nodes: Sequence[int]) -> None:
        """Take the memory of a run that is done, but for what these operations write anew."""
        graph = self.graph
        anew = {
            int(graph.value_storage[value])
            for node in nodes
            for value in graph.out_value[slice(*graph.output_span(node))].tolist()
            if self.plan.written[graph.value_storage[value]]
            or graph.storage_birth[graph.value_storage[value]] == node
        }
        self.memory.update((storage, block) for storage, block in basis.memory.items() if storage not in anew)
        self.objects.update((storage, item) for storage, item in basis.objects.items() if storage not in anew)

    def give(self, inputs: Mapping[int, torch.Tensor]) -> None:
        """Put new inputs in the place of the recorded ones."""
        graph = self.graph
        for value, tensor in inputs.items():
            storage = int(graph.value_storage[value])
            if value in self.held.opaque_tensors:
                self.objects[storage] = tensor.detach()
                continue
            if self.memory[storage]._cdata == self.held.storages[storage]._cdata:
                self.memory[storage] = copy_of(self.held.storages[storage])
            with torch.no_grad():
                self.tensor(value).copy_(tensor)

    def patch(self, target: ReplayTarget, by: Replacement) -> None:
        """Replace what a module or operation gave."""
        before = [self.tensor(value).clone() for value in target.values]
        replacement = (
            by if isinstance(by, torch.Tensor) else by(before[0] if len(before) == 1 else tuple(before))
        )
        after = list(replacement) if isinstance(replacement, (tuple, list)) else [replacement]
        if len(after) != len(before):
            raise UsageError(
                f"{target.name!r} gives {len(before)} tensors; the replacement gave {len(after)}"
            )
        blocks: dict[int, int] = {}
        for value, old, new in zip(target.values, before, after):
            _same_form(target.name, old, new)
            storage = super().block(value) if value not in self.moved else self.moved[value]
            if storage not in blocks:
                blocks[storage] = -1 - len(self.moved) - len(blocks)
                while blocks[storage] in self.memory or blocks[storage] in self.objects:
                    blocks[storage] -= 1
                if storage in self.memory:
                    self.memory[blocks[storage]] = copy_of(self.memory[storage])
            self.moved[value], self.origin[value] = blocks[storage], target.inside
            if storage in self.memory:
                self.tensor(value).copy_(new)
            else:
                self.objects[blocks[storage]] = new

    def store(self, target: ReplayTarget) -> None:
        """Keep what a module or operation gave."""
        for name, value in forward_names(target):
            self.put(name, value)

    def put(self, name: str, value: int) -> None:
        """Keep one value."""
        written = self.plan.written[int(self.graph.value_storage[value])] or value in self.moved
        self.sink.put(name, self.tensor(value), copy=bool(written))

    def result(self, number: int) -> torch.Tensor:
        """One of the run's results."""
        return self.tensor(self.graph.outcomes[number].value.index)


def _same_form(name: str, old: torch.Tensor, new: Any) -> None:
    if not isinstance(new, torch.Tensor):
        raise UsageError(f"the replacement for {name!r} gave {type(new).__name__}, not a tensor")
    for what in ("shape", "dtype", "device"):
        if getattr(old, what) != getattr(new, what):
            raise UsageError(
                f"{name!r} has {what} {getattr(old, what)}; the replacement has {getattr(new, what)}"
            )


# ---------------------------------------------------------------- names


def _rests_on(graph: Graph, result: int, touched: Any) -> bool:
    return any(touched[value] for value, _ in graph.outcomes[result].sources())


def _left(graph: Graph, touched: Any) -> list[int]:
    """The operations through which a value that may be another now left for Python, or for code that cannot be run."""
    nodes = []
    for node in np.flatnonzero(graph.node_flags & (Flag.ESCAPE | Flag.OPAQUE)).tolist():
        if touched[graph.in_value[slice(*graph.input_span(node))]].any():
            if graph.node_flags[node] & Flag.OPAQUE:
                raise UsageError(
                    f"{where(graph, node)} could not be looked into when it was recorded, and cannot be run"
                )
            nodes.append(node)
    return nodes


def _deciding(graph: Graph, held: KeptTensors, touched: Any) -> list[int]:
    """Those of which it is known what the recorded run saw: they run again, and the two are compared."""
    return [node for node in _left(graph, touched) if node in held.python_values]


def _limits(graph: Graph, held: KeptTensors, touched: Any, otherwise: Mapping[int, Any]) -> tuple[str, ...]:
    """Where the rest of the run is as recorded though what it rested on is not."""
    sentences = []
    for node in _left(graph, touched):
        if node in otherwise:
            values = f" ({held.python_values[node]!r}, and {otherwise[node]!r} now)"
        elif node in held.python_values:
            continue
        else:
            values = ""
        sentences.append(
            f"a value left for Python at {where(graph, node)}{values}: what was decided by it is as recorded"
        )
    return tuple(sentences)


def _patched(graph: Graph, key: Any) -> list[ReplayTarget]:
    replaced = targets(graph, key)
    for target in replaced:
        if not target.values:
            raise UsageError(f"{target.name!r} makes no tensor that could be replaced")
    return replaced


def _kept(graph: Graph, keep: Any) -> list[ReplayTarget]:
    if keep is None:
        return []
    if isinstance(keep, str) and keep == "all":
        return all_nodes(graph)
    wanted = keep if isinstance(keep, (list, tuple, set)) else [keep]
    by_name = {target.name: target for item in wanted for target in targets(graph, item)}
    return list(by_name.values())


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
    except Diverged as divergence:
        exported = None if trace.program is None else trace.program.exported
        if exported is None or replace or keep is not None or not (args or kwargs):
            raise _another_way(trace, divergence) from None
        limits = (
            f"{_place(trace, divergence)} went the other way: the captured program ran, not the recorded operations",
        )
        return Rerun(output=_called(exported, args, kwargs), ran=len(trace.graph), limits=limits)


def _place(trace: LiveRun, divergence: Diverged) -> str:
    """The operator or line that decided."""
    site = trace.graph.nodes[divergence.node].site
    what = _operator(trace, divergence) or "a branch on a tensor"
    return f"{what} at {site}" if site is not None else what


def _operator(trace: LiveRun, divergence: Diverged) -> str | None:
    """The higher-order operator that looked at a value, if one did."""
    scope = trace.graph.nodes[divergence.node].scope
    while scope is not None:
        name = scope.type.partition(",")[0]  # what follows is the branch that was not taken
        if scope.kind in ("operator", "function") and name in BRANCHES:
            return name
        scope = scope.parent
    return None


def _another_way(trace: LiveRun, divergence: Diverged) -> UsageError:
    exporting = trace.program is None or trace.program.exported is None
    advice = ""
    if exporting and _operator(trace, divergence):
        advice = ", or via='export', whose program has both ways"
    return UsageError(
        f"{_place(trace, divergence)} saw {divergence.was} in the recorded run and sees {divergence.now} now, "
        f"so other operations would run than those that were recorded; trace again with these inputs{advice}"
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
    run, results = execute(trace.graph, held, request, basis)
    run.output = _rebuilt(trace, results)
    whole = run.basis
    if whole is not None:
        run._again = lambda replace, keep: _again(
            trace, held, Request(whole.inputs, replace, keep, None), whole
        )
    return run


def _again(trace: LiveRun, held: KeptTensors, request: Request, basis: Basis) -> Rerun:
    try:
        return _run(trace, held, request, basis)
    except Diverged as divergence:
        raise _another_way(trace, divergence) from None


def _other_sizes(
    trace: LiveRun, resized: list[str], inputs: Mapping[str, torch.Tensor], args: Any, kwargs: Any, more: bool
) -> Rerun:
    """Inputs of other sizes: only a program whose sizes are open can take them."""
    program = trace.program
    exported = None if program is None else program.exported
    difference = f"input {'; input '.join(resized)}"
    if program is None or exported is None or not program.bounds:
        raise UsageError(
            f"{difference}; the recorded operations have their sizes fixed: trace again with this input, or with "
            "via='export' and dynamic_shapes"
        )
    if more:
        raise UsageError(f"{difference}; replace and keep need inputs of the recorded sizes")
    ranges = ", ".join(program.ranges.values())
    wrong = refused_sizes(trace.graph, inputs, program.bounds)
    if wrong:
        raise UsageError(f"{difference}; the program leaves open {ranges}, and {wrong}")
    try:
        output = _called(exported, args, kwargs)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UsageError(
            f"{difference}; the program leaves open {ranges}: {str(error).splitlines()[0]}"
        ) from error
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
        rebuilt = copy.copy(leaf)
        for part in dataclasses.fields(leaf):
            inner = getattr(leaf, part.name, None)
            object.__setattr__(rebuilt, part.name, pytree.tree_map(lambda item: _leaf(item, new), inner))
        return rebuilt
    return leaf
