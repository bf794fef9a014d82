"""A live model as the explorer sees it: its modules as rows, and what each can tell about itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torch_vis._trace import Trace
from torch_vis.capture.modules_only.stats import TensorFact
from torch_vis.capture.modules_only.tensor_stats import contents_of, histogram_of
from torch_vis.graph.text import count, many, size
from torch_vis.interfaces.collector import collector_paused
from torch_vis.interfaces.explorer.archives import FileModule
from torch_vis.interfaces.explorer.maps import Maps
from torch_vis.interfaces.explorer.source_code import class_source
from torch_vis.interfaces.explorer.stats import ForwardStats, add_columns
from torch_vis.interfaces.explorer.trace_source import (
    NO_TENSORS,
    calls_of,
    gradient_column,
    gradients_of,
    no_gradients,
    norms_together,
    unknown_costs,
)
from torch_vis.interfaces.explorer.walk import count_tensors, own_tensors, walk
from torch_vis.views.terminal.forest import Forest
from torch_vis.views.terminal.measures import measure, rows_by_path
from torch_vis.views.terminal.source import (
    Advice,
    Bars,
    CallRow,
    Details,
    Figures,
    Gradient,
    Picture,
    Source,
    Subject,
    TensorRow,
)

SHORT = 60
UNREADABLE = (RuntimeError, NotImplementedError, TypeError, ValueError)


class ModuleSubject(Subject):
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
        found = []
        for one, tensor in zip(_tensors(self.modules[row]), _own(self.modules[row])):
            try:
                inside = contents_of(tensor[1])
            except UNREADABLE as error:
                found.append(one._replace(note=f"{one.note} cannot be read: {error}".strip()))
                continue
            found.append(one._replace(figures=None if inside is None else Figures(*inside)))
        return found

    def histograms(self, row: int) -> Sequence[Bars] | None:
        """How the module's own tensors are spread."""
        found = []
        for name, tensor, _ in _own(self.modules[row]):
            bars = histogram_of(tensor)
            if bars is not None:
                found.append(Bars(name, *bars))
        return found

    def calls(self, row: int) -> Sequence[CallRow] | None:
        """The calls that a recording of statistics followed, or else those of the trace."""
        if self.stats:
            found = self.stats.get(self.forest.paths[row])
            if found is None:
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
                for call in found.calls
            ]
        if self.trace is None or self.row_of_scope is None:
            return None
        return calls_of(self.trace, self.row_of_scope, row)

    def source(self, row: int) -> Source | None:
        """The class of the module, pointing at its forward; a file does not say it."""
        if isinstance(self.modules[row], FileModule):
            return None
        return class_source(type(self.modules[row]))

    def gradients(self) -> Sequence[Gradient] | None:
        """What lies in ``.grad`` now; where that is nothing or zero, the gradients of the trace, if there is one."""
        if self._gradients is None:
            self._gradients = list(self._find_gradients())
            if self.trace is not None and not any(one.norm for one in self._gradients):
                self._gradients = gradients_of(self.trace, self.forest) or self._gradients
        return self._gradients if any(one.norm is not None for one in self._gradients) else None

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
        found = []
        if self.stats and (record := self.stats.get(self.forest.paths[row])) is not None:
            for call in reversed(record.calls):
                if call.maps:
                    shape = call.outputs[0].shape if call.outputs else None
                    found.append(Picture(f"output of call {call.number} {_sizes(shape)}", call.maps))
        if not found and self.trace is not None and self.trace.kept is not None:
            if self._maps is None:
                self._maps = Maps(self.trace, self.row_of_scope)
            return self._maps.of(row)
        return found or None

    @property
    def no_pictures(self) -> str:
        """What would have to be done for pictures to be here."""
        return NO_TENSORS if self.trace is not None else super().no_pictures

    def advice(self, row: int) -> Sequence[Advice]:
        """What quantizing or pruning this module's own weights would bring, from the weights themselves."""
        from torch_vis.interfaces.explorer.advice import advise

        return advise(self.modules[row])

    def batch_sizes(self) -> Sequence[Advice] | None:
        """How large a batch fits this machine's memory."""
        from torch_vis.interfaces.explorer.advice import batch_advice

        return None if self.trace is None else batch_advice(self.model, self.trace)


def _words(forest: Forest, modules: list[torch.nn.Module]) -> None:
    forest.texts["args"] = lambda row: _arguments(modules[row])
    forest.texts["shapes"] = lambda row: " ".join(
        _sizes(_shape(tensor)) for _, tensor, role in _own(modules[row]) if role == "parameter"
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
    figures = None if fact.contents is None else Figures(*fact.contents)
    return TensorRow(fact.name, role, fact.shape, fact.dtype, fact.device, fact.nbytes, "", figures)


def _shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    if isinstance(tensor, UninitializedTensorMixin):
        return None
    return tuple(int(one) for one in tensor.shape)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _sizes(shape: Sequence[int] | None) -> str:
    return "?" if shape is None else "×".join(map(str, shape)) if len(shape) else "scalar"


def _arguments(module: torch.nn.Module) -> str:
    """What the module's repr says it was made with, on one line; one that was scripted does not know it any more."""
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
    found = []
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
        found.append((name, text if len(text) <= SHORT else text[: SHORT - 1] + "…"))
    return found


def _norm(tensor: torch.Tensor | None) -> float | None:
    if tensor is None or tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        return None
    try:
        with torch.no_grad():
            dense = tensor.detach()
            dense = dense.coalesce().values() if dense.layout == torch.sparse_coo else dense
            return float(torch.linalg.vector_norm(dense.float() if not dense.is_complex() else dense))
    except UNREADABLE:
        return None  # a quantized or wrapped tensor without that operation: not known
