"""A captured program, run under a recorder: every node of an fx graph becomes a scope around the operations it runs.

The nodes' own knowledge of where they come from (``nn_module_stack``, ``stack_trace``) gives the modules and the source
lines, so that the recorded graph reads like that of the eager model.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import fx

from torch_vis.capture.compilers.hop_bodies import Subgraph, is_played, play_bodies
from torch_vis.capture.compilers.symbolic_sizes import symbol
from torch_vis.capture.recording.recorder import Recorder, get_ident
from torch_vis.capture.recording.source_lines import OURS, TORCH, resumed
from torch_vis.graph.schema import Site

LINE = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
CALL, SCOPE, SITE = 2, 3, 4  # where a row of the log names its call, its scope and its source line
PASSIVE = frozenset({"placeholder", "get_attr", "output"})


class Origin:
    """Stands for a module or node of a captured program in the recorder's table, which goes by identity."""


class Player(fx.Interpreter):
    """Runs a graph module node by node, with a scope for each."""

    def __init__(
        self,
        module: fx.GraphModule,
        recorder: Recorder,
        origins: dict[Any, Origin],
        symbols: dict[int, tuple[str, ...]],
        subgraphs: dict[Any, Subgraph],
        within: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(module)
        self.extra_traceback = False  # a model's own exceptions are to stay as they are
        self.recorder = recorder
        self.origins = origins
        self.symbols = symbols  # by value: the names of its open sizes
        self.subgraphs = subgraphs  # those of higher-order operators, by operator and role
        self.within = within  # modules that are open around a subgraph
        self.at: fx.Node | None = None  # the node that runs
        self.is_inner = False
        self.on_shapes = False  # there are no numbers, so that no way can be chosen
        self.placed: set[int] = set()  # operations of subgraphs whose lines are known
        self._open: list[tuple[tuple[str, str], int]] = []  # module scopes that are open, outermost first
        self._sites: dict[str, int] = {}

    def play(self, *args: Any) -> Any:
        """Run the program on its flat inputs."""
        try:
            return self.run(*args, enable_io_processing=False)
        finally:
            self._close(0)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node inside the scopes that it names."""
        rec = self.recorder
        if n.op in PASSIVE or rec.closed:
            made = super().run_node(n)
            if n.op == "placeholder" and not rec.closed:
                self._note_symbols(n, made)
            return made
        thread = get_ident()
        self._enter_modules(n, thread)
        begun = len(rec.log)
        scope = -1
        if n.op != "call_module":
            name = re.sub(r"_\d+$", "", n.name)  # the same for nodes that are alike, so that they fold
            target = target_name(n)
            scope = rec.enter(self.number(("node", n.name, target), name, target, "function"), thread)
        self.at = n
        try:
            made = super().run_node(n)
        finally:
            if scope >= 0:
                rec.leave(scope, thread)
                self._drop_idle(scope, begun)
            self._place(n, begun)
        self._note_symbols(n, made)
        return made

    def _drop_idle(self, scope: int, begun: int) -> None:
        """Take back the scope of a node that ran nothing, or no more than a view, which pictures look through."""
        rec = self.recorder
        log = rec.log
        if len(rec.scopes) != scope + 1:
            return
        if begun < len(log):
            if begun + log[begun] != len(log) or not rec.calls[log[begun + CALL]].plan.is_view:
                return
            if log[begun + SCOPE] != scope:
                return
            log[begun + SCOPE] = rec.scopes[scope][1]
        rec.scopes.pop()

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what a node names; the subgraphs of a higher-order operator are played as well."""
        if is_played(target) and not self.recorder.closed:
            first = len(self.recorder.python_escapes)
            made = play_bodies(self, target, args, kwargs)
            self._decided(target._name, first)
            return made
        if self.on_shapes and target is operator.getitem and isinstance(args[0], torch.Tensor):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(place, torch.Tensor) for place in places):  # else a lone number is looked at
                return torch.ops.aten.index.Tensor(args[0], list(places))
        return super().call_function(target, args, kwargs)

    def _decided(self, operator: str, first: int) -> None:
        """What an operator itself looked at to choose its way did not leave the program."""
        escapes = self.recorder.python_escapes
        for place in range(first, len(escapes)):
            name, value, site, number = escapes[place]
            if number not in self.placed and not name.startswith("higher_order::"):
                escapes[place] = (f"higher_order::{operator}", value, site, number)

    def inner(self, module: fx.GraphModule) -> Player:
        """A player for a subgraph, inside the modules that are open here."""
        within = (*self.within, *(key for key, _ in self._open))
        player = Player(module, self.recorder, self.origins, self.symbols, self.subgraphs, within)
        player.is_inner, player.placed, player.on_shapes = True, self.placed, self.on_shapes
        return player

    def subgraph(self, operator: str, role: str, module: fx.GraphModule) -> Subgraph:
        """What is known of a subgraph of the operator that runs; the same one each time."""
        assert self.at is not None
        key = (id(self.module), self.at.name, role)
        found = self.subgraphs.get(key)
        if found is None:
            name = numbered(operator, role, {row.name for row in self.subgraphs.values()})
            called = tuple(target_name(node) for node in module.graph.nodes if node.op.startswith("call_"))
            number = self._site(self.at.meta.get("stack_trace"))
            site = self.recorder.sites[number][0] if number >= 0 else None
            found = Subgraph(name, operator, role, called, site if isinstance(site, Site) else None, module)
            self.subgraphs[key] = found
        return found

    def _note_symbols(self, node: fx.Node, made: Any) -> None:
        """Remember which sizes of what a node made are symbols in its program."""
        known = node.meta.get("val", node.meta.get("example_value"))
        pairs = [(known, made)] if isinstance(made, torch.Tensor) else []
        if isinstance(made, (tuple, list)) and isinstance(known, (tuple, list)):
            pairs = list(zip(known, made))
        for fake, tensor in pairs:
            if isinstance(fake, torch.Tensor) and isinstance(tensor, torch.Tensor):
                names = tuple(symbol(size) for size in fake.shape)
                if any(names):
                    self.symbols[self.recorder.number_of(tensor)] = names

    def _enter_modules(self, node: fx.Node, thread: int) -> None:
        """Leave and enter module scopes until those of the node are open."""
        wanted = module_stack(node)
        if node.op == "call_module" and wanted and wanted[-1][0] == node.target:
            wanted.pop()  # the call itself opens that one
        around = 0
        while around < min(len(wanted), len(self.within)) and self.within[around] == wanted[around]:
            around += 1
        wanted = wanted[around:]
        shared = 0
        while shared < min(len(wanted), len(self._open)) and self._open[shared][0] == wanted[shared]:
            shared += 1
        self._close(shared)
        for path, type_ in wanted[shared:]:
            number = self.number(("module", path), path, type_, "module")
            self._open.append(((path, type_), self.recorder.enter(number, thread)))

    def _close(self, keep: int) -> None:
        thread = get_ident()
        while len(self._open) > keep:
            self.recorder.leave(self._open.pop()[1], thread)

    def number(self, key: Any, path: str, type_: str, kind: str) -> int:
        """The number of what a scope is a call of."""
        owner = self.origins.setdefault(key, Origin())
        return self.recorder.module_number(owner, path, type_, kind)

    def _place(self, node: fx.Node, begun: int) -> None:
        """Give the operations that a node ran the source line that the node knows."""
        site = self._site(node.meta.get("stack_trace"))
        if site < 0:
            return
        log = self.recorder.log
        first = log[begun + 1] if begun < len(log) else 0
        while begun < len(log):
            number = log[begun + 1]
            if number not in self.placed:  # else a subgraph knew its line better
                log[begun + SITE] = site
                if self.is_inner:
                    self.placed.add(number)
            begun += log[begun]
        self._place_escapes(first, site)

    def _place_escapes(self, first: int, site: int) -> None:
        escapes = self.recorder.python_escapes
        for place in range(len(escapes) - 1, -1, -1):
            name, value, _, number = escapes[place]
            if number < first:
                break
            if self.is_inner or number not in self.placed:
                escapes[place] = (name, value, site, number)

    def _site(self, trace: str | None) -> int:
        if not trace:
            return -1
        number = self._sites.get(trace)
        if number is None:
            found = LINE.findall(
                trace
            )  # innermost last; as in an eager run, torch's own lines are passed over
            found = [row for row in found if not row[0].startswith((TORCH, OURS, "<eval_with_key>"))]
            number = -1
            if found:
                file, line, function = found[-1]
                function = resumed(function)
                number = len(self.recorder.sites)
                self.recorder.sites.append((Site(file, int(line), function), -1))
            self._sites[trace] = number
        return number


def numbered(operator: str, role: str, taken: set[str]) -> str:
    """A name for a subgraph that no other has.

    >>> numbered("cond", "true", {"cond.true"})
    'cond_1.true'
    """
    name, number = f"{operator}.{role}", 0
    while name in taken:
        number += 1
        name = f"{operator}_{number}.{role}"
    return name


def module_stack(node: fx.Node) -> list[tuple[str, str]]:
    """The modules a node was called in, as paths and classes, outermost first.

    Dynamo writes ``L['self'].encoder.layer.slice(None, 6, None)._modules['0']``, export ``encoder.layer.0``.
    """
    found = []
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, kind in stack.values():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        found.append((plain_path(path), name.rpartition(".")[2]))
    return found


def plain_path(path: str) -> str:
    """A module's path as ``named_modules`` has it.

    >>> plain_path("L['self'].layers._modules['0'].attn"), plain_path("L['self']"), plain_path("a.b.0")
    ('layers.0.attn', '', 'a.b.0')
    """
    path = re.sub(r"^L\['\w+'\]\.?", "", path)
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", path)
    path = re.sub(r"\[(\d+)\]", r".\1", path).replace("_modules.", "")
    return path.lstrip(".")


def target_name(node: fx.Node) -> str:
    """What a node calls, as its graph prints it: ``aten.linear.default``, ``torch.relu``, ``Tensor.sum``."""
    target = node.target
    if node.op == "call_method":
        return f"Tensor.{target}"
    if isinstance(target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        return str(target)
    module = getattr(target, "__module__", None) or "torch"
    module = (
        module.removeprefix("_").replace("torch._C._nn", "torch.nn.functional").replace("torch._C", "torch")
    )
    return f"{module}.{getattr(target, '__name__', target)}"
