"""A live model as the explorer sees it: its modules as rows, its tensors as columns, what each tells of itself."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torch_vis._trace import Trace
from torch_vis.analysis.advice.rounding import Channels
from torch_vis.capture.modules_only import TensorFact
from torch_vis.capture.tensor_contents import contents_of, histogram_of, norm_of, readable, unseen
from torch_vis.capture.undo import collector_paused
from torch_vis.graph.text import count, many, size
from torch_vis.interfaces.explorer.archives import FileModule
from torch_vis.interfaces.explorer.stats import ForwardStats, add_columns
from torch_vis.interfaces.explorer.trace_source import (
    NO_TENSORS,
    Maps,
    calls_of,
    gradient_column,
    gradients_of,
    no_gradients,
    norms_together,
    unknown_costs,
)
from torch_vis.views.terminal.forest import Forest, Sharing, measure, rows_by_path, share
from torch_vis.views.terminal.source import (
    Advice,
    Bars,
    CallRow,
    Details,
    Gradient,
    Picture,
    Source,
    SourceCode,
    TensorRow,
    sizes,
)

PLAIN_TENSORS = frozenset({torch.nn.Parameter, torch.Tensor})
STRIDED = torch.strided


def walk(model: torch.nn.Module) -> tuple[list[torch.nn.Module], dict[int, int], Forest]:
    """Every place in the tree: its module; where a module recurs, the row of its first place; the forest."""
    names: list[str] = []
    types: list[str] = []
    parents: list[int] = []
    paths: list[str] = []
    modules: list[torch.nn.Module] = []
    shared: dict[int, int] = {}
    first: dict[int, int] = {}
    scripts = isinstance(model, (torch.jit.ScriptModule, FileModule))
    stack: list[tuple[str, str, torch.nn.Module, int]] = [(class_of(model), "", model, -1)]
    while stack:
        name, path, module, parent = stack.pop()
        row = len(names)
        names.append(name)
        types.append(class_of(module) if scripts else type(module).__name__)
        parents.append(parent)
        paths.append(path)
        modules.append(module)
        seen = first.setdefault(id(module), row)
        if seen != row:
            shared[row] = seen
            continue
        inside = module.__dict__.get("_modules") or module._modules
        if inside:
            prefix = path + "." if path else ""
            for key, part in reversed(list(inside.items())):
                if part is not None:
                    stack.append((key, prefix + key, part, row))
    kinds = None
    if shared:
        kinds = ["shared" if row in shared else "module" for row in range(len(names))]
    return modules, shared, Forest(names, types, parents, paths=paths, kinds=kinds)


def class_of(module: torch.nn.Module) -> str:
    """The name of a module's class; of one that was scripted, of the class that it was before."""
    return str(getattr(module, "original_name", None) or type(module).__name__)


def count_tensors(
    forest: Forest, modules: list[torch.nn.Module], shared: dict[int, int]
) -> list[torch.Tensor]:
    """Parameters and buffers as columns, each once however many names it has; gives the parameters."""
    parameters: list[torch.Tensor] = []
    for role, table in (("parameter", "_parameters"), ("buffer", "_buffers")):
        rows: list[int] = []
        held: list[torch.Tensor] = []
        for row, module in enumerate(modules):
            inside = module.__dict__.get(table)
            if inside is None:
                inside = own_tensors(module, table)
            if inside:
                for tensor in inside.values():
                    if tensor is not None:
                        rows.append(row)
                        held.append(tensor)
        # all that is inside counts here too, for the rows above
        for row in shared:
            more = [
                inner
                for part in modules[row].modules()
                if part is not modules[row]
                for inner in own_tensors(part, table).values()
            ]
            held += (present := [tensor for tensor in more if tensor is not None])
            rows += [row] * len(present)
        if shared:
            order = sorted(range(len(rows)), key=rows.__getitem__)
            rows, held = [rows[at] for at in order], [held[at] for at in order]
        known: dict[Any, int] = {}
        items = [known.setdefault(identity(tensor), len(known)) for tensor in held]
        first: list[torch.Tensor] = []
        for item, tensor in zip(items, held):
            if item == len(first):
                first.append(tensor)
        _tensor_columns(forest, role, rows, items, first)
        if role == "parameter":
            parameters = first
    return parameters


def _tensor_columns(
    forest: Forest, role: str, rows: list[int], items: list[int], tensors: list[torch.Tensor]
) -> None:
    numel = np.array([_numel(tensor) for tensor in tensors], dtype=np.int64)
    dtypes = [tensor.dtype for tensor in tensors]
    widths = {dtype: dtype.itemsize for dtype in set(dtypes)}
    nbytes = numel * np.array([widths[dtype] for dtype in dtypes], dtype=np.int64)
    holding = Sharing(forest, rows, items, numel)
    numbers = forest.numbers
    if role == "buffer":
        numbers["buffer_bytes"] = holding.inclusive(nbytes).astype(np.float64)
        return
    forest.sharing = holding
    wants = np.array([tensor.requires_grad for tensor in tensors], dtype=bool)
    numbers["params"] = holding.inclusive(numel).astype(np.float64)
    numbers["own_params"] = holding.own(numel).astype(np.float64)
    numbers["trainable"] = holding.inclusive(np.where(wants, numel, 0)).astype(np.float64)
    numbers["bytes"] = holding.inclusive(nbytes).astype(np.float64)
    numbers["own_bytes"] = holding.own(nbytes).astype(np.float64)
    numbers["modules"] = (forest.end - np.arange(len(forest))).astype(np.float64)
    share(forest, "params")
    share(forest, "bytes")


def identity(tensor: torch.Tensor) -> Any:
    """What two names of the same memory have in common."""
    if type(tensor) in PLAIN_TENSORS and tensor.layout is STRIDED:
        address = tensor.data_ptr()
        if address:
            return address, tensor.numel()
    return id(tensor)


def _numel(tensor: torch.Tensor) -> int:
    if type(tensor) in PLAIN_TENSORS:
        return tensor.numel()
    return 0 if isinstance(tensor, UninitializedTensorMixin) else int(tensor.numel())


def own_tensors(module: torch.nn.Module, name: str) -> Mapping[str, torch.Tensor | None]:
    """A module's own parameters or buffers; those of TorchScript are not where others have them."""
    tensors = module.__dict__.get(name)
    return dict(getattr(module, name).items()) if tensors is None else tensors


def class_source(kind: type) -> SourceCode | None:
    """The text of a class, pointing at its ``forward``; None where there is no text (made at run time, compiled)."""
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind) or ""
    except (OSError, TypeError):
        return _function_source(getattr(kind, "forward", None))
    marks = []
    forward: Any = kind.__dict__.get("forward")
    try:
        start = inspect.getsourcelines(forward)[1] if forward is not None else 0
    except (OSError, TypeError):
        start = 0
    if first <= start < first + len(lines):
        marks.append(start)
    return SourceCode(file, max(first, 1), "".join(lines), tuple(marks), kind.__qualname__)


def _function_source(function: Any) -> SourceCode | None:
    try:
        lines, first = inspect.getsourcelines(function)
        return SourceCode(
            inspect.getsourcefile(function) or "", first, "".join(lines), (first,), function.__qualname__
        )
    except (OSError, TypeError, AttributeError):
        return None


MOST_ELEMENTS = 50_000_000  # looked at for advice, per tensor


def advise(module: torch.nn.Module) -> list[Advice]:
    """Suggestions for a module's own weights."""
    advice: list[Advice] = []
    for name, weight in module._parameters.items():
        if (
            weight is None
            or weight.dim() < 2
            or weight.numel() > MOST_ELEMENTS
            or weight.layout != torch.strided
        ):
            continue
        with unseen():
            plain = readable(weight)
            if plain is None or not plain.numel() or not bool(torch.isfinite(plain).all()):
                continue
            rows = _output_channels(module).rows(plain)
            advice.append(Advice(f"int8 {name}", _quantized(rows, weight.element_size())))
            advice.append(Advice(f"prune {name}", _pruned(rows)))
    return advice


def _output_channels(module: torch.nn.Module) -> Channels:
    """Where a module has its output channels: first, but for the few whose weights begin with what comes in."""
    if isinstance(module, torch.nn.modules.conv._ConvTransposeNd):
        return Channels((1,), module.groups)
    # of transformers
    if type(module).__name__ == "Conv1D" and not isinstance(module, torch.nn.Conv1d):
        return Channels((1,))
    return Channels()


def _quantized(rows: torch.Tensor, width: int) -> str:
    """What eight bits per weight, with one scale per output channel, would lose."""
    scale = rows.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
    error = (rows / scale).round().clamp(-127, 127) * scale - rows
    signal, noise = float(rows.square().sum()), float(error.square().sum())
    saved = rows.numel() * (width - 1)
    ratio = (
        f"{10 * torch.log10(torch.tensor(signal / noise)).item():.0f} dB above its rounding"
        if noise
        else "exact"
    )
    return f"saves {size(max(0, saved))}; the weights are {ratio}"


def _pruned(rows: torch.Tensor) -> str:
    """How many weights, and how many whole output channels, are next to nothing."""
    small = float((rows.abs() < 0.01 * rows.abs().max()).double().mean())
    norms = rows.norm(dim=1)
    dead = int((norms < 0.05 * norms.max()).sum())
    weak = f", {dead:,} of {len(norms):,} output channels are below 5 % of the strongest" if dead else ""
    return f"{small:.1%} of the weights are below 1 % of the largest{weak}"


def batch_advice(model: torch.nn.Module, trace: Trace) -> list[Advice] | None:
    """How large a batch fits this machine's memory, from shapes alone; None where inputs cannot be made up."""
    from torch_vis.analysis.advice.batch_size import batch_size
    from torch_vis.graph.schema import Phase

    entry = trace.entry
    if entry is None or not entry.given or any("." in name for name in entry.given):
        return None
    inputs = {
        name: torch.zeros(tuple(map(int, shape)), dtype=dtype, device=device)
        for name, (dtype, shape, device) in entry.given.items()
    }
    device = next(iter(inputs.values())).device
    backward = bool((trace.graph.node_phase == Phase.BACKWARD).any())
    report = batch_size(
        model, kwargs=inputs, memory=_device_memory(device), backward=backward, measured=False
    )
    what = "forward and backward" if backward else "forward"
    rows = [Advice(name, text) for name, text in report.facts().items()]
    return [
        *rows,
        Advice("how", f"predicted from shapes, {what}; tv.advise.batch_size also runs and times it"),
    ]


def _device_memory(device: torch.device) -> int:
    """All of a device's memory."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


SHORT = 60
UNREADABLE = (RuntimeError, NotImplementedError, TypeError, ValueError)


class ModuleSource(Source):
    """A model that is in memory; nothing of it has to have run."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        trace: Trace | None = None,
        stats: ForwardStats | None = None,
        title: str | None = None,
        classes: Mapping[str, str] | None = None,
    ) -> None:
        """``classes`` names the classes of a model that was exported, by path; such a model has no mode of its own."""
        with collector_paused():
            self.modules, self.shared, forest = walk(model)
            self.parameters = count_tensors(forest, self.modules, self.shared)
        if classes is not None:
            forest.types[:] = [classes.get(path, "module") for path in forest.paths]
            forest.names[0] = forest.types[0]
        super().__init__(title or forest.types[0], forest)
        self.has_mode = classes is None
        self.model = model
        self.trace = trace
        self.stats = stats
        self._gradients: list[Gradient] | None = None
        self._maps: Maps | None = None
        forest.later["gradient"] = self._gradient_column
        _words(forest, self.modules)
        forest.describe = lambda row: _alike(self.modules[row])
        self._opening_facts(model)
        if trace is not None:
            self.graph, self.metrics = trace.graph, trace.metrics
            self.row_of_scope = rows_by_path(forest, trace.graph)
            measure(forest, trace.graph, trace.metrics, self.row_of_scope)
            self.notes += [*trace.limits, *unknown_costs(trace)]
        elif stats:
            add_columns(forest, stats)
            self.notes += stats.notes

    def _opening_facts(self, model: torch.nn.Module) -> None:
        numbers = self.forest.numbers
        params, trainable = int(numbers["params"][0]), int(numbers["trainable"][0])
        frozen = f" ({count(trainable)} trainable)" if trainable != params else ""
        self.facts.append(f"{count(params)} parameters{frozen}")
        self.facts.append(size(int(numbers["bytes"][0])))
        self.facts.append(many(len(self.forest), "module"))
        if self.has_mode:
            self.facts.append("training" if model.training else "eval")

    # panels

    def details(self, row: int) -> Details:
        """Inheritance, arguments, hyperparameters and own tensors of a module."""
        module = self.modules[row]
        numbers = self.forest.numbers
        facts = [("path", self.forest.paths[row] or "(the model)")]
        if row in self.shared:
            facts.append(
                ("shared", f"the same module as {self.forest.paths[self.shared[row]] or 'the model'}")
            )
        params, own = int(numbers["params"][row]), int(numbers["own_params"][row])
        facts.append(("parameters", f"{params:,}" + (f", {own:,} of its own" if own != params else "")))
        facts.append(("memory", f"{size(int(numbers['bytes'][row]))} of parameters"))
        if numbers["buffer_bytes"][row]:
            facts.append(("buffers", size(int(numbers["buffer_bytes"][row]))))
        if self.has_mode:
            facts.append(("mode", "training" if module.training else "eval"))
        hooks = sum(
            len(getattr(module, name, None) or ()) for name in vars(module) if name.endswith("_hooks")
        )
        if hooks:
            facts.append(("hooks", f"{hooks} registered on it"))
        line = [f"{c.__module__}.{c.__qualname__}" for c in type(module).__mro__ if c is not object]
        doc = (
            (type(module).__doc__ or "").strip().partition("\n\n")[0]
            if type(module).__module__ != "builtins"
            else ""
        )
        return Details(facts, line, _arguments(module), _hyperparameters(module), list(_tensors(module)), doc)

    def figures(self, row: int) -> Sequence[TensorRow]:
        """The module's own tensors, looked into."""
        rows = []
        for tensor_row, tensor in zip(_tensors(self.modules[row]), _own(self.modules[row])):
            try:
                inside = contents_of(tensor[1])
            except UNREADABLE as error:
                rows.append(tensor_row._replace(note=f"{tensor_row.note} cannot be read: {error}".strip()))
                continue
            rows.append(tensor_row._replace(figures=inside))
        return rows

    def histograms(self, row: int) -> Sequence[Bars] | None:
        """How the module's own tensors are spread."""
        spread = []
        for name, tensor, _ in _own(self.modules[row]):
            bars = histogram_of(tensor)
            if bars is not None:
                spread.append(Bars(name, *bars))
        return spread

    def calls(self, row: int) -> Sequence[CallRow] | None:
        """The calls that a recording of statistics followed, or else those of the trace."""
        if self.stats:
            recorded = self.stats.get(self.forest.paths[row])
            if recorded is None:
                return []
            return [
                CallRow(
                    call.start_ns,
                    call.time_ns if call.device_ns is None else call.device_ns,
                    call.self_ns if call.device_self_ns is None else call.device_self_ns,
                    [_border(fact, "input") for fact in call.inputs],
                    [_border(fact, "output") for fact in call.outputs],
                    "raised" if call.raised else "",
                )
                for call in recorded.calls
            ]
        if self.trace is None or self.row_of_scope is None:
            return None
        return calls_of(self.trace, self.row_of_scope, row)

    def source_code(self, row: int) -> SourceCode | None:
        """The class of the module, pointing at its forward; a file does not say it."""
        if isinstance(self.modules[row], FileModule):
            return None
        return class_source(type(self.modules[row]))

    def gradients(self) -> Sequence[Gradient] | None:
        """What lies in ``.grad`` now; where that is nothing or zero, the gradients of the trace, if there is one."""
        if self._gradients is None:
            self._gradients = list(self._find_gradients())
            if self.trace is not None and not any(gradient.norm for gradient in self._gradients):
                self._gradients = gradients_of(self.trace, self.forest) or self._gradients
        return self._gradients if any(gradient.norm is not None for gradient in self._gradients) else None

    @property
    def no_gradients(self) -> str:
        """What would have to be done for gradients to be here."""
        return (no_gradients(self.trace) if self.trace is not None else "") or super().no_gradients

    def _gradient_column(self) -> Any:
        """The norms of the gradients, those of tied parameters once."""
        norms = [_norm(tensor.grad) if tensor.requires_grad else 0.0 for tensor in self.parameters]
        assert self.forest.sharing is not None
        if self.trace is not None and all(not norm for norm in norms):
            return gradient_column(self.forest, self.gradients())
        return norms_together(self.forest.sharing, norms)

    def _find_gradients(self) -> Iterator[Gradient]:
        for row, module in enumerate(self.modules):
            if row in self.shared:
                continue
            for name, tensor, role in _own(module):
                if role == "parameter" and tensor.requires_grad:
                    path = ".".join(filter(None, [self.forest.paths[row], name]))
                    yield Gradient(row, path, _norm(tensor.grad), _norm(tensor))

    def pictures(self, row: int) -> Sequence[Picture] | None:
        """The activation maps that a recording kept, newest call first; or those of a repetition of the trace."""
        pictures = []
        if self.stats and (record := self.stats.get(self.forest.paths[row])) is not None:
            for call in reversed(record.calls):
                if call.maps:
                    shape = call.outputs[0].shape if call.outputs else None
                    pictures.append(Picture(f"output of call {call.number} {sizes(shape)}", call.maps))
        if not pictures and self.trace is not None and self.trace.kept is not None:
            if self._maps is None:
                self._maps = Maps(self.trace, self.row_of_scope)
            return self._maps.of(row)
        return pictures or None

    @property
    def no_pictures(self) -> str:
        """What would have to be done for pictures to be here."""
        return NO_TENSORS if self.trace is not None else super().no_pictures

    def advice(self, row: int) -> Sequence[Advice]:
        """What quantizing or pruning this module's own weights would bring, from the weights themselves."""
        return advise(self.modules[row])

    def batch_sizes(self) -> Sequence[Advice] | None:
        """How large a batch fits this machine's memory."""
        return None if self.trace is None else batch_advice(self.model, self.trace)


def _words(forest: Forest, modules: list[torch.nn.Module]) -> None:
    forest.texts["args"] = lambda row: _arguments(modules[row])
    forest.texts["shapes"] = lambda row: " ".join(
        sizes(_shape(tensor)) for _, tensor, role in _own(modules[row]) if role == "parameter"
    )
    forest.texts["dtype"] = lambda row: _each(
        str(t.dtype).removeprefix("torch.") for _, t, _ in _own(modules[row])
    )
    forest.texts["device"] = lambda row: _each(str(t.device) for _, t, _ in _own(modules[row]))


def _each(words: Iterator[str]) -> str:
    return " ".join(dict.fromkeys(words))


def _own(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, str]]:
    for table, role in (("_parameters", "parameter"), ("_buffers", "buffer")):
        for name, tensor in own_tensors(module, table).items():
            if tensor is not None:
                yield name, tensor, role


def _tensors(module: torch.nn.Module) -> Iterator[TensorRow]:
    for name, tensor, role in _own(module):
        note = "" if tensor.requires_grad or role == "buffer" else "frozen"
        if role == "buffer" and name in getattr(module, "_non_persistent_buffers_set", ()):
            note = "not saved"
        yield _row(name, role, tensor, note)


def _row(name: str, role: str, tensor: torch.Tensor, note: str) -> TensorRow:
    if isinstance(tensor, UninitializedTensorMixin):
        return TensorRow(name, role, None, _dtype(tensor), str(tensor.device), None, "not initialised yet")
    nbytes = tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else None
    return TensorRow(name, role, _shape(tensor), _dtype(tensor), str(tensor.device), nbytes, note)


def _border(fact: TensorFact, role: str) -> TensorRow:
    return TensorRow(fact.name, role, fact.shape, fact.dtype, fact.device, fact.nbytes, "", fact.contents)


def _shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    if isinstance(tensor, UninitializedTensorMixin):
        return None
    return tuple(int(length) for length in tensor.shape)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _arguments(module: torch.nn.Module) -> str:
    """The arguments in a module's repr, on one line; a scripted module has none."""
    if isinstance(module, torch.jit.ScriptModule):
        return ""
    try:
        return " ".join(module.extra_repr().split())
    except Exception as error:  # a repr of the user's may rest on what is not there yet
        return f"(its repr raises {type(error).__name__})"


def _alike(module: torch.nn.Module) -> Any:
    shapes = tuple((name, _shape(tensor), tensor.dtype) for name, tensor, _ in _own(module))
    return shapes, _arguments(module)


def _hyperparameters(module: torch.nn.Module) -> list[tuple[str, str]]:
    """The module's plain attributes: numbers, words and small tuples of them, and callables by name."""
    pairs = []
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training":
            continue
        if isinstance(value, (bool, int, float, str, torch.dtype, torch.device, type(None))) or (
            isinstance(value, (tuple, list, set, frozenset, dict)) and len(value) <= 16
        ):
            text = repr(value)
        elif callable(value):
            text = getattr(value, "__qualname__", type(value).__qualname__)
        else:
            text = f"{type(value).__qualname__} object"
        pairs.append((name, text if len(text) <= SHORT else text[: SHORT - 1] + "…"))
    return pairs


def _norm(tensor: torch.Tensor | None) -> float | None:
    try:
        return None if tensor is None else norm_of(tensor)
    except UNREADABLE:
        # a wrapped tensor without that operation: not known
        return None
