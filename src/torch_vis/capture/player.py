"""A captured program, run under a recorder: every node of an fx graph becomes a scope around the operations it runs.

The nodes' own knowledge of where they come from (``nn_module_stack``, ``stack_trace``) gives the modules and the source
lines, so that the recorded graph reads like that of the eager model.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import fx

from torch_vis.capture.recorder import Recorder, get_ident
from torch_vis.capture.sites import OURS, TORCH
from torch_vis.graph.rows import Site

LINE = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
SITE = 4  # where a row of the log names its source line
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
    ) -> None:
        super().__init__(module)
        self.recorder = recorder
        self.origins = origins
        self.symbols = symbols  # by value: the names of its open sizes
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
            scope = rec.enter(self._number(("node", n.name), name, target_name(n), "function"), thread)
        try:
            made = super().run_node(n)
        finally:
            if scope >= 0:
                rec.leave(scope, thread)
            self._place(n, begun)
        self._note_symbols(n, made)
        return made

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
        shared = 0
        while shared < min(len(wanted), len(self._open)) and self._open[shared][0] == wanted[shared]:
            shared += 1
        self._close(shared)
        for path, type_ in wanted[shared:]:
            number = self._number(("module", path), path, type_, "module")
            self._open.append(((path, type_), self.recorder.enter(number, thread)))

    def _close(self, keep: int) -> None:
        thread = get_ident()
        while len(self._open) > keep:
            self.recorder.leave(self._open.pop()[1], thread)

    def _number(self, key: Any, path: str, type_: str, kind: str) -> int:
        owner = self.origins.setdefault(key, Origin())
        return self.recorder.module_number(owner, path, type_, kind)

    def _place(self, node: fx.Node, begun: int) -> None:
        """Give the operations that a node ran the source line that the node knows."""
        site = self._site(node.meta.get("stack_trace"))
        if site < 0:
            return
        log = self.recorder.log
        while begun < len(log):
            log[begun + SITE] = site
            begun += log[begun]

    def _site(self, trace: str | None) -> int:
        if not trace:
            return -1
        number = self._sites.get(trace)
        if number is None:
            found = LINE.findall(
                trace
            )  # innermost last; as in an eager run, torch's own lines are passed over
            found = [row for row in found if not row[0].startswith((TORCH, OURS))] or found
            number = -1
            if found:
                file, line, function = found[-1]
                number = len(self.recorder.sites)
                self.recorder.sites.append((Site(file, int(line), function), -1))
            self._sites[trace] = number
        return number


def symbol(size: Any) -> str:
    """The name of a size that is open; "" for one that is fixed, or that belongs to a nested tensor."""
    return "" if isinstance(size, int) or size.node.is_nested_int() else str(size)


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
