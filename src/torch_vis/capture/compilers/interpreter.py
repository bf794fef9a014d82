"""A captured program, run under a recorder: every node of an fx graph becomes a scope around the operations it runs.

Modules and source lines come from the nodes themselves (``nn_module_stack``, ``stack_trace``), so that the recorded
graph reads like that of the eager model.

Higher-order operators run in their own eager kernels, and each call of one of their subgraphs gets a scope: the branch
that ``cond`` takes, every turn of a ``while_loop``, every step of a ``scan``. A branch that was not taken did not run,
and the graph of a run cannot hold it: its operations have no time, no memory and no data to replay. It is known from
the program all the same: it is kept beside the graph as a ``Subgraph``, an empty scope names where it would have run,
and ``Trace.subgraph`` shows it as a graph of its own, made by running it on shapes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from torch_vis.capture.compilers.graph_breaks import DynamoLog
from torch_vis.capture.compilers.program import Subgraph
from torch_vis.capture.compilers.symbolic_sizes import symbol
from torch_vis.capture.recording.op_plan import eager_kernel
from torch_vis.capture.recording.recorder import get_ident
from torch_vis.capture.recording.source_lines import OURS, TORCH, resumed, shown_file
from torch_vis.capture.session import Capture
from torch_vis.graph.schema import Site
from torch_vis.ops.higher_order import INTERPRETED, TABLE
from torch_vis.ops.schemas import operator_name

LINE = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
CALL, SCOPE, SITE = 2, 3, 4  # positions in a row of the log
PASSIVE = frozenset({"placeholder", "get_attr", "output"})


class ProgramPart:
    """Stands for a module, node or subgraph of a captured program in the recorder's table, which goes by identity."""


class ProgramRun:
    """One run of a captured program under a recorder: what the interpreters of its graphs share."""

    def __init__(self, capture: Capture, *, on_shapes: bool = False) -> None:
        self.capture = capture
        self.recorder = capture.recorder
        self.on_shapes = on_shapes
        """Whether there are no numbers, so that no branch can be chosen."""
        self.owners: dict[Any, ProgramPart] = {}
        self.symbols: dict[int, tuple[str, ...]] = {}
        """By value: the names of its open sizes."""
        self.subgraphs: dict[Any, Subgraph] = {}
        """Those of higher-order operators, by graph, node and role."""
        self.located: set[int] = set()
        """Operations of subgraphs whose source lines are known."""
        self.log: DynamoLog | None = None
        """What Dynamo reported, where it is the one that captures."""

    def interpret(self, module: fx.GraphModule, *inputs: Any) -> Any:
        """Run a graph module on its flat inputs."""
        return FxInterpreter(module, self).interpret(*inputs)

    def owner_number(self, key: Any, path: str, type_: str, kind: str) -> int:
        """The recorder's number of what a scope is a call of."""
        return self.recorder.module_number(self.owners.setdefault(key, ProgramPart()), path, type_, kind)


class FxInterpreter(fx.Interpreter):
    """Runs a graph module node by node, with a scope for each."""

    def __init__(
        self, module: fx.GraphModule, run: ProgramRun, within: tuple[tuple[str, str], ...] | None = None
    ) -> None:
        super().__init__(module)
        self.extra_traceback = False  # a model's own exceptions stay as they are
        self.program_run = run
        self.recorder = run.recorder
        self.is_inner = within is not None
        self.within = within or ()
        """Modules that are open around a subgraph."""
        self.node: fx.Node | None = None
        """The node that runs."""
        self._open: list[tuple[tuple[str, str], int]] = []  # module scopes that are open, outermost first
        self._sites: dict[str, int] = {}

    def interpret(self, *inputs: Any) -> Any:
        """Run the program on its flat inputs."""
        try:
            return self.run(*inputs, enable_io_processing=False)
        finally:
            self._close(0)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node inside the scopes that it names."""
        rec = self.recorder
        if n.op in PASSIVE or rec.closed:
            result = super().run_node(n)
            if n.op == "placeholder" and not rec.closed:
                self._note_symbols(n, result)
            return result
        thread = get_ident()
        self._enter_modules(n, thread)
        begun = len(rec.log)
        scope = -1
        if n.op != "call_module":
            # The same name for nodes that are alike, so that they fold.
            name, target = re.sub(r"_\d+$", "", n.name), target_name(n)
            number = self.program_run.owner_number(("node", n.name, target), name, target, "function")
            scope = rec.enter(number, thread)
        self.node = n
        try:
            result = super().run_node(n)
        finally:
            if scope >= 0:
                rec.leave(scope, thread)
                self._drop_idle(scope, begun)
            self._locate(n, begun)
        self._note_symbols(n, result)
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what a node names; the subgraphs of a higher-order operator are interpreted as well."""
        if is_interpreted(target) and not self.recorder.closed:
            first = len(self.recorder.python_escapes)
            result = self._call_higher_order(target, args, kwargs)
            self._keep_decisions_inside(target._name, first)
            return result
        if self.program_run.on_shapes and target is operator.getitem and isinstance(args[0], torch.Tensor):
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            # A single index would be read as a number otherwise.
            if all(isinstance(index, torch.Tensor) for index in indices):
                return torch.ops.aten.index.Tensor(args[0], list(indices))
        return super().call_function(target, args, kwargs)

    def inner(self, module: fx.GraphModule) -> FxInterpreter:
        """An interpreter for a subgraph, inside the modules that are open now."""
        return FxInterpreter(module, self.program_run, (*self.within, *(key for key, _ in self._open)))

    # ---------------------------------------------------------------- higher-order operators

    def _call_higher_order(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a higher-order operator with its subgraphs in scopes."""
        name = target._name
        row = TABLE[name]
        if row.draws:
            return _run_drawing(target, args, kwargs)
        bodies = {}
        for position, role in row.bodies.items():
            if position < len(args) and isinstance(args[position], fx.GraphModule):
                bodies[position] = self._body(name, role, args[position])
        if row.slices:
            return self._call_on_slices(target, args, kwargs, bodies)
        arguments = [bodies.get(position, arg) for position, arg in enumerate(args)]
        if self.program_run.on_shapes and row.without_numbers:
            return _run_every_branch(name, *arguments)
        if name == "cond":
            return _run_cond(*arguments)
        return eager_kernel(target)(*arguments, **kwargs)

    def _call_on_slices(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bodies: dict[int, Body]
    ) -> Any:
        """Run an operator whose functions see slices only: they are scopes under their names, as they are called."""
        if len(args) > 4 and isinstance(args[4], tuple) and isinstance(args[4][-1], fx.GraphModule):
            bodies[-1] = self._body(target._name, "mask_mod", args[4][-1])
        for position, body in bodies.items():
            buffers = [*args[7:9], (), ()][0 if position >= 0 else 1]
            body.note_inputs((*_scalars(args[0], with_score=position >= 0), *buffers))
            body.subgraph.ran += 1
            # Where it is called, its own number is looked up; the module itself is none of the user's.
            self.recorder.module_numbers[id(body.module)] = body.number()
        return target(*args, **kwargs)

    def _body(self, operator: str, role: str, module: fx.GraphModule) -> Body:
        """A subgraph of the operator that runs, as something to call; the same ``Subgraph`` each time."""
        assert self.node is not None
        known = self.program_run.subgraphs
        key = (id(self.module), self.node.name, role)
        if key not in known:
            name = subgraph_name(operator, role, {row.name for row in known.values()})
            called = tuple(target_name(node) for node in module.graph.nodes if node.op.startswith("call_"))
            number = self._site(self.node.meta.get("stack_trace"))
            site = self.recorder.sites[number][0] if number >= 0 else None
            site = site if isinstance(site, Site) else None
            known[key] = Subgraph(name, operator, role, called, site, module)
        return Body(self, module, known[key])

    def _keep_decisions_inside(self, operator: str, first: int) -> None:
        """What an operator itself looked at to choose its branch did not leave the program."""
        escapes = self.recorder.python_escapes
        for index in range(first, len(escapes)):
            name, value, site, number = escapes[index]
            if number not in self.program_run.located and not name.startswith("higher_order::"):
                escapes[index] = (f"higher_order::{operator}", value, site, number)

    # ---------------------------------------------------------------- scopes

    def _enter_modules(self, node: fx.Node, thread: int) -> None:
        """Leave and enter module scopes until those of the node are open."""
        wanted = module_stack(node)
        if node.op == "call_module" and wanted and wanted[-1][0] == node.target:
            wanted.pop()  # the call itself opens that one
        wanted = wanted[_shared_prefix(wanted, self.within) :]
        shared = _shared_prefix(wanted, [key for key, _ in self._open])
        self._close(shared)
        for path, type_ in wanted[shared:]:
            number = self.program_run.owner_number(("module", path), path, type_, "module")
            self._open.append(((path, type_), self.recorder.enter(number, thread)))

    def _close(self, keep: int) -> None:
        thread = get_ident()
        while len(self._open) > keep:
            self.recorder.leave(self._open.pop()[1], thread)

    def _drop_idle(self, scope: int, begun: int) -> None:
        """Remove the scope of a node that ran nothing, or no more than a view, which pictures look through."""
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

    # ---------------------------------------------------------------- what nodes know

    def _note_symbols(self, node: fx.Node, result: Any) -> None:
        """Remember which sizes of a node's outputs are symbols in its program."""
        known = node.meta.get("val", node.meta.get("example_value"))
        pairs = [(known, result)] if isinstance(result, torch.Tensor) else []
        if isinstance(result, (tuple, list)) and isinstance(known, (tuple, list)):
            pairs = list(zip(known, result))
        for fake, tensor in pairs:
            if isinstance(fake, torch.Tensor) and isinstance(tensor, torch.Tensor):
                names = tuple(symbol(size) for size in fake.shape)
                if any(names):
                    self.program_run.symbols[self.recorder.number_of(tensor)] = names

    def _locate(self, node: fx.Node, begun: int) -> None:
        """Give the operations that a node ran the source line that the node knows."""
        site = self._site(node.meta.get("stack_trace"))
        if site < 0:
            return
        log, located = self.recorder.log, self.program_run.located
        first = log[begun + 1] if begun < len(log) else 0
        while begun < len(log):
            number = log[begun + 1]
            if number not in located:  # else a subgraph knew its line better
                log[begun + SITE] = site
                if self.is_inner:
                    located.add(number)
            begun += log[begun]
        escapes = self.recorder.python_escapes
        for index in range(len(escapes) - 1, -1, -1):
            name, value, _, number = escapes[index]
            if number < first:
                break
            if self.is_inner or number not in located:
                escapes[index] = (name, value, site, number)

    def _site(self, trace: str | None) -> int:
        """The recorder's number of the innermost line of a stack trace that is not torch's own, -1 for none."""
        if not trace:
            return -1
        number = self._sites.get(trace)
        if number is None:
            lines = LINE.findall(trace)
            lines = [row for row in lines if not row[0].startswith((TORCH, OURS, "<eval_with_key>"))]
            number = -1
            if lines:
                file, line, function = lines[-1]
                number = len(self.recorder.sites)
                self.recorder.sites.append((Site(shown_file(file), int(line), resumed(function)), -1))
            self._sites[trace] = number
        return number


class Body:
    """A subgraph as something to call: each call opens a scope and interprets the subgraph in it."""

    def __init__(self, interpreter: FxInterpreter, module: fx.GraphModule, subgraph: Subgraph) -> None:
        self.interpreter = interpreter
        self.module = module
        self.subgraph = subgraph

    def __call__(self, *args: Any) -> Any:
        self.subgraph.ran += 1
        self.note_inputs(args)
        with self._scope():
            outputs = self.interpreter.inner(self.module).interpret(*args)
        return tuple(outputs) if isinstance(outputs, list) else outputs

    def skip(self, *args: Any) -> None:
        """Leave an empty scope that names what would have run."""
        self.note_inputs(args)
        if not self.subgraph.ran:
            rec = self.interpreter.recorder
            rec.scopes.append((self.number(), rec.current.get(get_ident(), 0), 0, 0, 0, 0))

    def note_inputs(self, args: tuple[Any, ...]) -> None:
        """Remember the shapes of what it was, or would have been, called with."""
        if not self.subgraph.inputs:
            self.subgraph.inputs = tuple(_without_data(arg) for arg in args)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        rec, thread = self.interpreter.recorder, get_ident()
        scope = rec.enter(self.number(), thread)
        try:
            yield
        finally:
            rec.leave(scope, thread)

    def number(self) -> int:
        """The recorder's number of what its scopes are calls of."""
        name, label = self.subgraph.name, self.subgraph.label
        return self.interpreter.program_run.owner_number(("body", name, label), name, label, "function")


def is_interpreted(target: Any) -> bool:
    """Whether a node's target is a higher-order operator whose subgraphs are interpreted."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target._name in INTERPRETED


def _run_cond(condition: Any, if_true: Any, if_false: Any, operands: Any = ()) -> Any:
    """What ``torch.cond`` does; the other branch is named where it would have run."""
    taken, other = (if_true, if_false) if condition else (if_false, if_true)
    outputs = taken(*operands)
    if isinstance(other, Body):
        other.skip(*operands)
    return outputs


def _run_every_branch(operator: str, first: Any, second: Any, third: Any, operands: Any = ()) -> Any:
    """Both branches of a ``cond``, or one turn of a loop, where no number decides."""
    if operator == "while_loop":
        first(*third, *operands)
        return second(*third, *operands)
    outputs = second(*operands)
    third(*operands)
    return outputs


def _run_drawing(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run AOT's wrapper around a random operator (``run_and_save_rng_state``), so that the operator is recorded."""
    # A tensor of bytes is the state of a generator.
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.dtype is not torch.uint8]
    device = tensors[0].device.type if tensors else "cpu"
    kernel = target.py_kernels.get(getattr(torch._C.DispatchKey, device.upper(), None), target)
    return kernel(*args, **kwargs)


def _without_data(arg: Any) -> Any:
    if not isinstance(arg, torch.Tensor) or arg.layout is not torch.strided:
        return arg
    with torch._C._DisableTorchDispatch():
        return torch.empty_strided(tuple(arg.shape), arg.stride(), dtype=arg.dtype, device="meta")


def _scalars(query: torch.Tensor, *, with_score: bool) -> list[torch.Tensor]:
    """What a function of attention takes: a score where it changes one, then batch, head and the two positions."""
    indices = [torch.empty((), dtype=torch.int32, device="meta") for _ in range(4)]
    return [torch.empty((), dtype=query.dtype, device="meta"), *indices] if with_score else indices


def subgraph_name(operator: str, role: str, taken: set[str]) -> str:
    """A name for a subgraph that no other has.

    >>> subgraph_name("cond", "true", {"cond.true"})
    'cond_1.true'
    """
    name, number = f"{operator}.{role}", 0
    while name in taken:
        number += 1
        name = f"{operator}_{number}.{role}"
    return name


def _shared_prefix(a: Any, b: Any) -> int:
    """How many items at the beginning of two sequences are equal."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


# ---------------------------------------------------------------- names in fx graphs


def module_stack(node: fx.Node) -> list[tuple[str, str]]:
    """The modules a node was called in, as paths and classes, outermost first.

    Dynamo writes ``L['self'].encoder.layer.slice(None, 6, None)._modules['0']``, export ``encoder.layer.0``.
    """
    modules = []
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, kind in stack.values():
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        modules.append((plain_path(path), name.rpartition(".")[2]))
    return modules


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
    module = (getattr(target, "__module__", None) or "torch").removeprefix("_")
    module = module.replace("torch._C._nn", "torch.nn.functional").replace("torch._C", "torch")
    return f"{module}.{getattr(target, '__name__', target)}"


def op_name(node: fx.Node) -> str:
    """An operator's name without namespace and overload."""
    return operator_name(node.target)
