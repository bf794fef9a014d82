"""What could be cut out of a model: units that belong together, how little they weigh, and the smaller model, run."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from torch_vis.analysis.coupling import Coupling, Group
from torch_vis.analysis.hardware import find_hardware
from torch_vis.capture.progress import progress
from torch_vis.errors import UsageError
from torch_vis.reports.report import Report
from torch_vis.run.differences import Gap, gap_of
from torch_vis.tracing import trace
from torch_vis.views.charts import Axis, Chart, Series
from torch_vis.views.tables import Field, Listing
from torch_vis.views.units import count, duration

RUNS = 5
# Numbers that torch's own modules keep of their sizes, by the parameter and dimension that they go by.
SIZES: dict[tuple[str, int], tuple[str, ...]] = {
    ("weight", 0): ("out_features", "out_channels", "num_features", "num_channels", "nf"),
    ("weight", 1): ("in_features", "in_channels", "embedding_dim", "nx"),
}
TURNED = (torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d)


class Cut(NamedTuple):
    """One group of units: where they live, how many there are, how many would go, and what came of trying.

    ``name`` is the parameter whose rows make the units. ``share`` is how much of the group's weight, as squared norm,
    the units have that would go. ``output`` is how far the output moves with this group alone cut, and ``problem`` is
    why it cannot be.
    """

    name: str
    places: tuple[tuple[str, int], ...]
    units: int
    cut: int
    share: float
    parameters: int
    output: Gap | None
    problem: str


class Pruning(Report):
    """Groups that may be cut, those that may not, and the model with all cuts made."""

    title = "Pruning"

    def __init__(
        self,
        groups: list[Cut],
        locked: list[Group],
        model: torch.nn.Module,
        before: Mapping[str, int],
        after: Mapping[str, int],
        output: Gap | None,
    ) -> None:
        self.groups, self.locked, self.model = groups, locked, model
        self.before, self.after, self.output = dict(before), dict(after), output

    def facts(self) -> dict[str, str]:
        cut = [group for group in self.groups if not group.problem]
        found = {
            "groups": f"{len(cut):,} can be cut, {len(self.groups) - len(cut):,} turned out not to run, "
            f"{len({group.locked for group in self.locked}):,} reasons lock others",
            "units": f"{sum(group.cut for group in cut):,} of {sum(group.units for group in cut):,} cut",
        }
        shown = {"parameters": count, "flops": count, "time_ns": duration, "predicted_ns": duration}
        for name, show in shown.items():
            if name not in self.before or name not in self.after:
                continue
            one, two = self.before[name], self.after[name]
            title = {"flops": "FLOPs", "time_ns": "time, measured", "predicted_ns": "time, predicted"}.get(
                name, name
            )
            found[title] = f"{show(one)} → {show(two)} ({two / one - 1:+.0%})" if one else show(two)
        if self.output is not None:
            found["output"] = f"moves by {self.output.relative:.3g} of its norm, without training again"
        return found

    def listings(self) -> list[Listing]:
        fields = (
            Field("name", "units of"),
            Field("places", "tensors", str),
            Field("units", "units", "{:,}".format),
            Field("cut", "cut", "{:,}".format),
            Field("share", "weight cut", "{:.1%}".format),
            Field("parameters", "parameters", count),
            Field("output", "output moves", "{:.3g}".format),
            Field("problem", "problem"),
        )
        rows = [
            (
                group.name,
                len({name for name, _ in group.places}),
                group.units,
                group.cut,
                group.share,
                group.parameters,
                None if group.output is None else group.output.relative,
                group.problem,
            )
            for group in self.groups
        ]
        why: dict[str, list[Group]] = {}
        for group in self.locked:
            why.setdefault(group.locked, []).append(group)
        locked = (
            Field("why", "why not"),
            Field("groups", "groups", "{:,}".format),
            Field("first", "for example"),
        )
        reasons = [(reason, len(found), found[0].places[0][0]) for reason, found in why.items()]
        return [
            Listing("Groups that belong together", fields, rows, most=30),
            Listing("Not to be cut", locked, sorted(reasons, key=lambda row: -row[1])),
        ]

    def notes(self) -> list[str]:
        return [
            "units are cut by weight alone, the lightest first; the model in .model runs and wants training again",
        ]

    def charts(self) -> dict[str, Chart]:
        rows = [group for group in self.groups if not group.problem and group.output is not None]
        if not rows:  # cut without trying each alone
            cut = [group for group in self.groups if not group.problem]
            sizes = Series("parameters", [group.name for group in cut], [group.parameters for group in cut])
            bars = Chart(
                "bars", "What cutting each group saves", Axis(""), Axis("parameters", "count"), [sizes]
            )
            return {"groups": bars} if cut else {}
        moved = [group.output.relative if group.output else 0.0 for group in rows]
        series = Series("group", [group.parameters for group in rows], moved, [group.name for group in rows])
        axes = Axis("parameters that go", "count"), Axis("how far the output moves")
        return {"groups": Chart("points", "What cutting each group saves and does", *axes, [series])}


def analyze_pruning(
    model: torch.nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    ratio: float = 0.3,
    each: bool = True,
    hardware: str | None = None,
) -> Pruning:
    """Find the units (channels, features) that belong together, cut the lightest, and run what is left.

    ``args`` and ``kwargs`` are a real batch, from which the coupling is found and on which the smaller model is tried.
    ``ratio`` is the share of each group that goes, by weight. With ``each``, every group is first cut alone: one
    whose model does not run any more is left whole, with the reason. ``hardware`` names a device for which the time is
    predicted as well. The model itself is not changed; the smaller one
    is in ``model`` of what comes back.

    >>> import torch, torch_vis as tv
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    >>> found = tv.analyze_pruning(model, torch.ones(2, 8), ratio=0.5)
    >>> found.model, found.after["parameters"]
    (Sequential(
      (0): Linear(in_features=8, out_features=8, bias=True)
      (1): ReLU()
      (2): Linear(in_features=8, out_features=4, bias=True)
    ), 108)
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"analyze_pruning() takes a module, not {type(model).__name__}")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
        raise UsageError(f"ratio is the share of each group that goes, between 0 and 1, not {ratio!r}")
    named = dict(kwargs or {})
    with torch.random.fork_rng():
        bench = _Bench(model, args, named, hardware)
        cuts, chosen = [], []
        free = [group for group in bench.coupling.groups if not group.locked and len(group.units) > 1]
        if not free:
            raise UsageError("nothing in this model can be cut: " + _reasons(bench.coupling.groups))
        for group in progress(free, "cutting"):
            units = bench.lightest(group, ratio)
            cut = bench.tried(group, units, try_it=each)
            cuts.append(cut)
            if not cut.problem:
                chosen.append(units)
        smaller, output, problem = bench.cut(
            np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)
        )
        if smaller is None:
            raise UsageError(
                f"the model does not run with all groups cut: {problem}; try each=True or a lower ratio"
            )
        after = bench.figures(smaller)
    locked = [group for group in bench.coupling.groups if group.locked]
    return Pruning(cuts, locked, smaller, bench.figures(bench.model), after, output)


def _reasons(groups: Sequence[Group]) -> str:
    return "; ".join(sorted({group.locked for group in groups if group.locked})) or "it has no parameters"


class _Bench:
    """A copy of a model in eval mode, its coupling, and its output to compare with."""

    def __init__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], hardware: str | None
    ) -> None:
        self.hardware = None if hardware is None else find_hardware(hardware)
        self.model = copy.deepcopy(model).eval()
        self.training = {name: module.training for name, module in model.named_modules()}
        self.args, self.kwargs = args, kwargs
        fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # a fused layer does not show what belongs together
        try:
            with torch.no_grad():
                found = trace(self.model, *args, kwargs=kwargs, keep=False)
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
        self.coupling = Coupling(found.graph)
        self.tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        self.output = _floating(self.run(self.model))

    def run(self, model: torch.nn.Module) -> Any:
        """The model's output for the batch."""
        with torch.no_grad():
            return model(*self.args, **self.kwargs)

    def named(self, group: Group) -> str:
        """The first parameter whose rows are the units: a filter's or a matrix's rather than a bias or a norm."""
        rows = [name for name, number in group.places if number == 0] or [group.places[0][0]]
        return max(rows, key=lambda name: self.tensors[name].dim() > 1)

    def lightest(self, group: Group, ratio: float) -> Any:
        """The units of a group with the least weight; one at least stays."""
        weights = self.weights(group)
        number = min(len(group.units) - 1, max(1, round(len(group.units) * ratio)))
        return group.units[np.argsort(weights, kind="stable")[:number]]

    def weights(self, group: Group) -> Any:
        """The squared norm of everything that each unit has in parameters."""
        total = np.zeros(len(self.coupling.unit))
        for name, number in group.places:
            tensor = self.tensors.get(name)
            if isinstance(tensor, torch.nn.Parameter):
                others = [n for n in range(tensor.dim()) if n != number]
                squared = tensor.detach().double().square()
                along = (squared.sum(dim=others) if others else squared).cpu().numpy()
                np.add.at(total, self.coupling.unit[self.coupling.ids[name][number]], along)
        return total[group.units]

    def tried(self, group: Group, units: Any, *, try_it: bool) -> Cut:
        """What cutting these units alone would do."""
        weights = self.weights(group)
        share = float(weights[np.isin(group.units, units)].sum() / weights.sum()) if weights.sum() else 0.0
        kept = self.coupling.kept(units)
        gone = sum(
            self.tensors[name].numel() - int(np.prod([mask.sum() for mask in kept[name]]))
            for name in {name for name, _ in group.places}
            if isinstance(self.tensors.get(name), torch.nn.Parameter)
        )
        output, problem = None, ""
        if try_it:
            _, output, problem = self.cut(units)
        return Cut(
            self.named(group), group.places, len(group.units), len(units), share, gone, output, problem
        )

    def cut(self, units: Any) -> tuple[torch.nn.Module | None, Gap | None, str]:
        """A model without these units, how far its output is from the whole one's, or why it does not run."""
        smaller = without(self.model, self.coupling.kept(units))
        try:
            made = _floating(self.run(smaller))
        except Exception as error:  # whatever the user's forward raises: it takes the old size for granted
            return None, None, " ".join(f"{type(error).__name__}: {error}".split())[:160]
        if [tensor.shape for tensor in made] != [tensor.shape for tensor in self.output]:
            return None, None, "the output has another shape"
        for name, module in smaller.named_modules():
            module.training = self.training.get(name, False)
        return smaller, gap_of(self.output, made), ""

    def figures(self, model: torch.nn.Module) -> dict[str, int]:
        """Parameters, FLOPs of a forward run, its median time, and where hardware is named the time predicted there."""
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        with torch.no_grad():
            found = trace(model, *self.args, kwargs=self.kwargs, keep=False)
        spent = []
        for _ in range(RUNS):
            begun = time.perf_counter_ns()
            self.run(model)
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            spent.append(time.perf_counter_ns() - begun)
        for module, mode in modes:
            module.training = mode
        flops = found.metrics["flops"].total()  # None where no operation has a formula
        predicted = {}
        if self.hardware is not None:
            predicted["predicted_ns"] = round(found.latency(hardware=self.hardware).total_ns)
        return {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            **({} if flops is None else {"flops": int(flops)}),
            "time_ns": round(statistics.median(spent)),
            **predicted,
        }


def without(model: torch.nn.Module, kept: Mapping[str, Sequence[Any]]) -> torch.nn.Module:
    """A copy of a model with parts of its parameters and buffers gone, and the sizes that its modules keep adjusted."""
    smaller = copy.deepcopy(model)
    done: dict[int, torch.Tensor] = {}
    for path, module in smaller.named_modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                masks = kept.get(f"{path}.{name}" if path else name)
                if id(tensor) not in done:
                    if masks is None or all(mask.all() for mask in masks):
                        continue
                    done[id(tensor)] = _cut_tensor(tensor, masks)
                new = done[id(tensor)]
                _resize(module, name, tuple(tensor.shape), tuple(new.shape))
                table[name] = new
    return smaller


def _cut_tensor(tensor: torch.Tensor, masks: Sequence[Any]) -> torch.Tensor:
    made = tensor.detach()
    for number, mask in enumerate(masks):
        if not mask.all():
            made = made.index_select(number, torch.as_tensor(np.flatnonzero(mask), device=made.device))
    made = made.clone()
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def _resize(module: torch.nn.Module, name: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Adjust the numbers in which a module keeps a size of this parameter."""
    for number, (old, new) in enumerate(zip(before, after)):
        if old == new:
            continue
        place = (name, 1 - number) if isinstance(module, TURNED) and number < 2 else (name, number)
        for attribute in SIZES.get(place, ()):
            if getattr(module, attribute, None) == old:
                setattr(module, attribute, new)
        groups = getattr(module, "groups", 1)
        if groups == old and number == 0 and name == "weight" and groups > 1:
            module.groups, module.in_channels = new, new  # type: ignore[assignment]
        if getattr(module, "normalized_shape", None) == (old,):
            module.normalized_shape = (new,)  # type: ignore[assignment]


def _floating(output: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(output if not hasattr(output, "to_tuple") else output.to_tuple())
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
