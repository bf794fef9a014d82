"""What a recording of module calls found, by module: the interface behind ``record_torch_module_forward_stats``."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import torch

from torch_vis.capture.modules_only import CallRecorder, CallStats
from torch_vis.capture.undo import Context, Undo
from torch_vis.errors import NotTraceable
from torch_vis.views.terminal.forest import Forest, share
from torch_vis.views.terminal.source import sizes

_recorded: dict[int, tuple[weakref.ref[torch.nn.Module], ForwardStats]] = {}


class ModuleStats:
    """Every call of one module, and what they come to.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Linear(3, 2)
    >>> with tv.record_torch_module_forward_stats(model) as stats:
    ...     _ = model(torch.ones(1, 3))
    >>> stats[""].count, stats[""].calls[0].outputs[0].shape
    (1, (1, 2))
    """

    def __init__(self, path: str, calls: Sequence[CallStats]) -> None:
        self.path = path
        self.calls = list(calls)

    @property
    def count(self) -> int:
        """How often the module was called."""
        return len(self.calls)

    @property
    def on_device(self) -> bool:
        """Whether the times are those of a GPU."""
        return all(call.device_ns is not None for call in self.calls)

    @property
    def times_ns(self) -> list[int]:
        """The time of each call, with the modules it called; on a GPU, the time there."""
        if self.on_device:
            return [call.device_ns or 0 for call in self.calls]
        return [call.time_ns for call in self.calls]

    @property
    def total_ns(self) -> int:
        """The time of all calls; one that ran inside another of the same module is not counted twice."""
        return sum(took for call, took in zip(self.calls, self.times_ns) if call.outermost)

    @property
    def self_ns(self) -> int:
        """The time of all calls without the modules that they called."""
        if self.on_device:
            return sum(call.device_self_ns or 0 for call in self.calls)
        return sum(call.self_ns for call in self.calls)

    def timing(self) -> dict[str, float]:
        """The figures in seconds, as ``ModuleInfo.timing_stats`` has them."""
        seconds = [took / 1e9 for took in self.times_ns]
        return {
            "calls": float(self.count),
            "total": self.total_ns / 1e9,
            "self": self.self_ns / 1e9,
            "mean": fmean(seconds),
            "min": min(seconds),
            "max": max(seconds),
            "std": pstdev(seconds),
        }

    def __repr__(self) -> str:
        return f"<{self.path or 'the model'}: {self.count} calls, {self.total_ns / 1e6:.3f} ms>"


class ForwardStats(Context["ForwardStats"], Mapping[str, ModuleStats]):
    """The calls of a model's modules, by the module's path; ``""`` is the model itself.

    It is also the block: calls are followed from entering until leaving, and there is nothing to read before that.
    """

    def __init__(self, model: torch.nn.Module, *, contents: bool = False, maps: bool = False) -> None:
        self._recorder: CallRecorder | None = CallRecorder(model, contents=contents, maps=maps)
        self._modules: dict[str, ModuleStats] = {}
        self.notes: list[str] = []
        """What could not be noted, in sentences."""

    def _begin(self, undo: Undo) -> ForwardStats:
        assert self._recorder is not None, "a recording is entered once"
        undo.enter(self._recorder)
        return self

    def _ended(self, error: BaseException | None) -> None:
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        by_path: dict[str, list[CallStats]] = {}
        for call in recorder.calls():
            by_path.setdefault(call.path, []).append(call)
        self._modules = {path: ModuleStats(path, calls) for path, calls in by_path.items()}
        failures = recorder.facts.failures.items()
        self.notes = [f"{number} × a tensor could not be looked at: {text}" for text, number in failures]
        _remember(recorder.model, self)

    def __getitem__(self, path: str) -> ModuleStats:
        return self._modules[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)

    def __repr__(self) -> str:
        return f"<statistics of {len(self)} modules, {sum(module.count for module in self.values())} calls>"


def record_torch_module_forward_stats(
    model: torch.nn.Module, *, contents: bool = False, maps: bool = False
) -> ForwardStats:
    """Follow every call of every module of a model for the length of a ``with`` block.

    Time (self time is without the modules that were called), and shape, dtype, device and bytes of every tensor in and
    out, however nested. ``contents=True`` adds minimum, maximum, mean and standard deviation, ``maps=True`` small
    pictures of what came out; both cost time. Nothing of the run is changed, a model's exceptions pass through, and
    what an argument refuses to tell is counted in ``notes``. On a GPU the times are those of its own clock. A new
    block takes the place of the model's last one.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> with tv.record_torch_module_forward_stats(model, contents=True):
    ...     _ = model(torch.ones(4, 3))
    >>> stats = tv.get_forward_stats(model)
    >>> sorted(stats), stats["1"].calls[0].outputs[0].contents.min >= 0
    (['', '0', '1'], True)
    """
    if not isinstance(model, torch.nn.Module):
        raise NotTraceable(f"record_torch_module_forward_stats() takes a module, not {type(model).__name__}")
    return ForwardStats(model, contents=contents, maps=maps)


def get_forward_stats(model: torch.nn.Module) -> ForwardStats | dict[str, ModuleStats]:
    """What the last recording of a model found, by the path of the module; empty where there was none.

    >>> import torch, torch_vis as tv
    >>> tv.get_forward_stats(torch.nn.ReLU())
    {}
    """
    if not isinstance(model, torch.nn.Module):
        raise NotTraceable(f"get_forward_stats() takes a module, not {type(model).__name__}")
    known = _recorded.get(id(model))
    return known[1] if known is not None and known[0]() is model else {}


def _remember(model: torch.nn.Module, stats: ForwardStats) -> None:
    """Keep a recording for as long as its model lives."""
    # forgotten by a function in C: an interrupt inside one in Python would be lost
    forget: Any = partial(_recorded.pop, id(model))
    _recorded[id(model)] = (weakref.ref(model, forget), stats)


def add_columns(forest: Forest, stats: ForwardStats) -> None:
    """Calls, times and what crossed the border, as columns along the rows of a forest."""
    names = ("calls", "time", "self", "mean", "in_bytes", "out_bytes")
    columns = {name: np.full(len(forest), np.nan) for name in names}
    columns["calls"][:] = 0
    first: dict[int, CallStats] = {}
    for path, module in stats.items():
        row = forest.row(path)
        if row is None:
            continue
        first[row] = module.calls[0]
        columns["calls"][row], columns["time"][row] = module.count, module.total_ns
        columns["self"][row], columns["mean"][row] = module.self_ns, module.total_ns / module.count
        for name, facts in (("in_bytes", module.calls[0].inputs), ("out_bytes", module.calls[0].outputs)):
            if all(fact.nbytes is not None for fact in facts):
                columns[name][row] = sum(fact.nbytes or 0 for fact in facts)
    forest.numbers.update(columns)
    share(forest, "time")

    def shapes(side: str, row: int) -> str:
        facts = getattr(first[row], side) if row in first else ()
        return " ".join(sizes(fact.shape) for fact in facts)

    forest.texts["in"] = lambda row: shapes("inputs", row)
    forest.texts["out"] = lambda row: shapes("outputs", row)
