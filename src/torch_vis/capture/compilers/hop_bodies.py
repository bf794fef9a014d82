"""Higher-order operators of a captured program: each of their subgraphs is played in a scope of its own.

The operators run in their own eager kernels, one call of a subgraph at a time: the branch that ``cond`` takes, every
turn of a ``while_loop``, every step of a ``scan``. So all that ran is in the graph, replayable like anything else.

A branch that was not taken did not run, and the graph of a run has no place for it: its operations have no time, no
memory and no data to replay, and every sum over the graph would have to leave them out. It is known from the program
all the same. It is kept beside the graph as a ``Subgraph``, is named by an empty scope where it would have run, and can
be looked at as a graph of its own, made by running it on shapes (``Trace.subgraph``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from torch_vis.capture.recording.op_plan import eager_kernel
from torch_vis.capture.recording.recorder import get_ident
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import COLUMNS, TABLES, Module, Site
from torch_vis.ops.higher_order import INTERPRETED, TABLE

if TYPE_CHECKING:
    from torch_vis.capture.compilers.interpreter import Player

NOT_TAKEN = "not taken"
SHOWN = 4  # names of operations in the label of a branch that was not taken


@dataclass
class Subgraph:
    """A graph inside a captured program: the branch of a ``cond``, the body of a loop, a function of attention."""

    name: str  # "cond.true"; a second cond of the program is "cond_1.true"
    operator: str
    role: str
    operations: tuple[str, ...]  # what its nodes call, in order
    site: Site | None  # the line of the operator that it belongs to
    module: fx.GraphModule | None = None
    ran: int = 0  # how often; 0 for a branch that was not taken
    inputs: tuple[Any, ...] = field(default=(), repr=False)  # without data, to work its shapes out

    def to_plain(self) -> dict[str, Any]:
        """What is kept of it when a trace is saved."""
        site = None if self.site is None else list(self.site)
        plain = {"name": self.name, "operator": self.operator, "role": self.role, "ran": self.ran}
        return {**plain, "operations": list(self.operations), "site": site}

    @property
    def label(self) -> str:
        """What it is in the place of a class: ``true branch``, or what did not run."""
        if self.ran or self.operator != "cond":
            return f"{self.role} branch" if self.operator == "cond" else self.role
        names = list(dict.fromkeys(short_target(name) for name in self.operations))
        told = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        return f"{NOT_TAKEN}: {told}" if told else NOT_TAKEN


def with_untaken(graph: Graph) -> Graph:
    """The graph with each ``cond`` saying which branch it did not take, for views that leave out empty scopes."""
    modules = list(graph.modules)
    places = graph.scope_module.copy()
    numbers = {module: number for number, module in enumerate(modules)}
    for module, parent in zip(graph.scope_module.tolist(), graph.scope_parent.tolist()):
        label = graph.modules[module].type
        if label.startswith(NOT_TAKEN) and parent >= 0:
            # Every cond of a program is a call of the same row, so each gets one that says what is its own.
            branch = graph.modules[module].path.rpartition(".")[2]
            told = modules[int(graph.scope_module[parent])]._replace(type=f"cond, {branch} branch {label}")
            if told not in numbers:
                numbers[told] = len(modules)
                modules.append(told)
            places[parent] = numbers[told]
    columns = {name: getattr(graph, name) for name in COLUMNS}
    tables = {name: getattr(graph, name) for name in TABLES}
    return Graph({**columns, "scope_module": places}, {**tables, "modules": modules})


def short_target(name: str) -> str:
    """What a node calls, in a word.

    >>> short_target("aten.linear.default"), short_target("torch.nn.functional.relu")
    ('linear', 'relu')
    """
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]


def with_modules(graph: Graph, modules: list[Module]) -> Graph:
    """The same graph with other words for what its scopes are calls of."""
    columns = {name: getattr(graph, name) for name in COLUMNS}
    return Graph(columns, {**{name: getattr(graph, name) for name in TABLES}, "modules": modules})


def is_played(target: Any) -> bool:
    """Whether a node's target is a higher-order operator whose subgraphs are played."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target._name in INTERPRETED


def play_bodies(player: Player, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a higher-order operator with its subgraphs in scopes."""
    name = target._name
    row = TABLE[name]
    if row.draws:
        return _random(target, args, kwargs)
    bodies = {}
    for place, role in row.bodies.items():
        if place < len(args) and isinstance(args[place], fx.GraphModule):
            bodies[place] = Body(player, args[place], player.subgraph(name, role, args[place]))
    if row.slices:
        return _named_only(player, target, args, kwargs, bodies)
    given = [bodies.get(place, arg) for place, arg in enumerate(args)]
    if player.on_shapes and row.without_numbers:
        return _every_way(name, *given)
    if name == "cond":
        return _cond(*given)
    return eager_kernel(target)(*given, **kwargs)


class Body:
    """A subgraph as something to call: each call opens a scope and plays the subgraph in it."""

    def __init__(self, player: Player, module: fx.GraphModule, subgraph: Subgraph) -> None:
        self.player = player
        self.module = module
        self.subgraph = subgraph

    def __call__(self, *args: Any) -> Any:
        self.subgraph.ran += 1
        self.note(args)
        with self._scope():
            made = self.player.inner(self.module).play(*args)
        return tuple(made) if isinstance(made, list) else made

    def pass_over(self, *args: Any) -> None:
        """Leave an empty scope that says what would have run."""
        self.note(args)
        if not self.subgraph.ran:
            rec = self.player.recorder
            rec.scopes.append((self.number(), rec.current.get(get_ident(), 0), 0, 0, 0, 0))

    def note(self, args: tuple[Any, ...]) -> None:
        """Remember the shapes of what it was, or would have been, called with."""
        if not self.subgraph.inputs:
            self.subgraph.inputs = tuple(_without_data(arg) for arg in args)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        rec, thread = self.player.recorder, get_ident()
        scope = rec.enter(self.number(), thread)
        try:
            yield
        finally:
            rec.leave(scope, thread)

    def number(self) -> int:
        """The number of its scopes' module."""
        name, label = self.subgraph.name, self.subgraph.label
        return self.player.number(("body", name, label), name, label, "function")


def _without_data(arg: Any) -> Any:
    if not isinstance(arg, torch.Tensor) or arg.layout is not torch.strided:
        return arg
    with torch._C._DisableTorchDispatch():
        return torch.empty_strided(tuple(arg.shape), arg.stride(), dtype=arg.dtype, device="meta")


def _cond(condition: Any, if_true: Any, if_false: Any, operands: Any = ()) -> Any:
    """What ``torch.cond`` does; the other branch is named where it would have run."""
    first, second = (if_true, if_false) if condition else (if_false, if_true)
    made = first(*operands)
    if isinstance(second, Body):
        second.pass_over(*operands)
    return made


def _every_way(operator: str, first: Any, second: Any, third: Any, operands: Any = ()) -> Any:
    """Both branches of a ``cond``, or one turn of a loop, where no number says which way to go."""
    if operator == "while_loop":
        first(*third, *operands)
        return second(*third, *operands)
    made = second(*operands)
    third(*operands)
    return made


def _random(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator that draws random numbers as AOT has it for checkpointing, so that it is seen."""
    device = next(
        (arg.device.type for arg in args if isinstance(arg, torch.Tensor) and not _is_state(arg)), "cpu"
    )
    kernel = target.py_kernels.get(getattr(torch._C.DispatchKey, device.upper(), None), target)
    return kernel(*args, **kwargs)


def _is_state(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.uint8


def _named_only(
    player: Player, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bodies: dict[int, Body]
) -> Any:
    """Run an operator whose functions see slices only: they are scopes under their names, as they are called."""
    if len(args) > 4 and isinstance(args[4], tuple) and isinstance(args[4][-1], fx.GraphModule):
        mask = args[4][-1]
        bodies[-1] = Body(player, mask, player.subgraph(target._name, "mask_mod", mask))
    rec = player.recorder
    for place, body in bodies.items():
        buffers = [*args[7:9], (), ()][0 if place >= 0 else 1]
        body.note((*_scalars(args[0], with_score=place >= 0), *buffers))
        body.subgraph.ran += 1
        # Where it is called, its own number is looked up; the module itself is none of the user's.
        rec.module_numbers[id(body.module)] = body.number()
    return target(*args, **kwargs)


def _scalars(query: torch.Tensor, *, with_score: bool) -> list[torch.Tensor]:
    """What a function of attention takes: a score where it changes one, then batch, head and the two positions."""
    indices = [torch.empty((), dtype=torch.int32, device="meta") for _ in range(4)]
    return [torch.empty((), dtype=query.dtype, device="meta"), *indices] if with_score else indices
