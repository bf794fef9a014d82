"""Which layouts of a training fit on so many ranks: each traced with few layers and extended, the best one whole.

What a layout takes is linear in the number of its layers from some number on. It is extended only where that is proved:
at every place of the program (the first, the last and the inner layers, each operation, each phase) what is alive grows
by the same amount from one layer to the next, twice, and so do FLOPs and bytes sent. Else all layers are traced.
"""

from __future__ import annotations

import fnmatch
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from torch_vis._trace import Trace
from torch_vis.analysis.machine.calibration import Calibration, machine
from torch_vis.analysis.machine.hardware import Hardware, amount_bytes
from torch_vis.analysis.ranks.places import Mesh
from torch_vis.analysis.ranks.simulate import Simulation, predicted
from torch_vis.analysis.ranks.step_time import links_of
from torch_vis.analysis.ranks.world import World
from torch_vis.analysis.report import Charts, Report
from torch_vis.capture.fake import NoStep
from torch_vis.capture.recording.user_functions import held_variables
from torch_vis.capture.state import older_objects_aside
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.text import count as count_text
from torch_vis.graph.text import duration, many, size
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.text.table_layout import Field, Listing

# so many layers are traced at first, of a stage each: the first, the last and one between them
FEWEST = 3
# points that have to lie on one line, and how many are tried
POINTS, MOST_POINTS = 3, 5
# how far predicted times may be off a line: what overlaps is not linear
TIME_ERROR = 0.02
NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
AXES = ("pp", "dp", "tp")
# arguments of make that fit passes on from its own
OWN = ("layers", "checkpoint")


class Layout(NamedTuple):
    """One way to lay a training out on ranks, and what it takes of the fullest of them."""

    pp: int
    dp: int
    tp: int
    checkpoint: str
    """The modules whose activations are computed again, "" for none."""
    peak_bytes: int
    fits: bool
    sent_bytes: int
    """What one rank sends in a step."""
    flops: int
    """What one rank computes in a step."""
    time_ns: int | None
    """The predicted step; None without hardware."""
    rate: float | None
    """Batches of all ranks together, per second."""
    traced: str
    """How it is known: all layers traced, or some and extended."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Further arguments of ``make``."""

    @property
    def mesh(self) -> dict[str, int]:
        """Its mesh, as ``tv.simulate`` takes it."""
        return {"pp": self.pp, "dp": self.dp, "tp": self.tp}


class LayoutFigures(NamedTuple):
    """What the ranks of a layout that were traced come to, with so many layers."""

    layers: int
    places: dict[Any, int]
    """By rank and place of the program, the most that is alive there."""
    sent: dict[int, int]
    flops: dict[int, int]
    time_ns: float | None

    @property
    def peak_bytes(self) -> int:
        return max(self.places.values(), default=0)


def fit(
    make: Callable[..., Callable[..., Any]],
    batch: Any = None,
    *,
    world: int,
    memory: Any,
    tp: int | Iterable[int] = 1,
    pp: int | Iterable[int] = 1,
    checkpoint: str | Iterable[str | None] | None = None,
    options: Mapping[str, Iterable[Any]] | None = None,
    layers: int | None = None,
    hardware: Any = None,
    links: Mapping[str, Any] | None = None,
    assume: Mapping[str, str] | None = None,
    whole: bool = True,
) -> FitReport:
    """Try layouts of a training on ``world`` ranks with so much ``memory`` each: which fit, and which is fastest.

    ``make(mesh)`` is that of ``tv.simulate``; the mesh has the axes pp, dp and tp, of which dp takes what the choices
    of the others leave. ``checkpoint`` are choices of modules whose activations are computed again, by a pattern of
    their paths, or None: ``make`` is told if it has a parameter of that name, else it is done to what it built.
    ``options`` are choices of other parameters of ``make``, ``{"shard_loss": (False, True)}``. Every combination is a
    layout, but those for which ``make`` gives None. If
    ``make`` has a parameter ``layers``, few layers are traced and the rest is extended where that is proved; its
    default, or ``layers`` here, is how many the model has. The best layout is then traced with all of them, unless
    ``whole=False``. With ``hardware`` the best is the one that gets through most batches per second, else the one that
    computes and sends least.

    >>> import torch, torch_vis as tv
    >>> from torch.distributed.fsdp import fully_shard
    >>> def make(mesh, layers=12):
    ...     parts = [fully_shard(torch.nn.Linear(64, 64), mesh=mesh["dp"]) for _ in range(layers)]
    ...     model = torch.nn.Sequential(*parts)
    ...     fully_shard(model, mesh=mesh["dp"])
    ...     return lambda x: model(x).sum().backward()
    >>> report = tv.fit(make, torch.ones(8, 64), world=4, memory="1 MiB", whole=False)
    >>> [(row.dp, row.fits, row.traced) for row in report.layouts]
    [(4, True, '3, 4, 5 of 12 layers')]
    """
    if type(world) is not int or world < 1:
        raise UsageError(f"world is a number of ranks, at least 1, not {world!r}")
    limit = amount_bytes(memory, "memory")
    device = None if hardware is None else machine(hardware)
    choices = {"pp": _counts(pp, "pp"), "tp": _counts(tp, "tp")}
    patterns = [checkpoint] if checkpoint is None or isinstance(checkpoint, str) else list(checkpoint)
    meshes = meshes_of(world, choices)
    if not meshes:
        raise UsageError(
            f"no choice of pp and tp divides {world} ranks: pp is one of {choices['pp']}, tp of {choices['tp']}"
        )
    maker = Maker(make, layers, options)
    with older_objects_aside():
        trials = []
        for mesh, pattern, chosen in itertools.product(meshes, patterns, maker.choices):
            with suppress(NoStep):
                trials.append(LayoutTrial(maker, batch, mesh, pattern, device, links, assume, chosen))
        if not trials:
            raise UsageError("make gave no step for any of the layouts")
        rows = sorted((trial.layout(limit) for trial in trials), key=_order)
        order = {trial.key: trial for trial in trials}
        best = order[_key(rows[0])]
        if whole and rows[0].fits:
            rows[0] = best.trace_whole().layout(limit)
    return FitReport(rows, limit, best.world, device)


def option_text(options: Mapping[str, Any]) -> str:
    """The arguments of make, as they are written.

    >>> option_text({"shard_loss": True, "batch": 8})
    'shard_loss=True, batch=8'
    """
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _counts(given: int | Iterable[int], axis: str) -> list[int]:
    counts = [given] if isinstance(given, int) else list(given)
    for count in counts:
        if type(count) is not int or count < 1:
            raise UsageError(f"{axis} is a number of ranks, or several to try, not {count!r}")
    return counts


def meshes_of(world: int, choices: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Every mesh of so many ranks; dp takes what is left.

    >>> meshes_of(8, {"pp": [1], "tp": [1, 2, 3]})
    [{'pp': 1, 'dp': 8, 'tp': 1}, {'pp': 1, 'dp': 4, 'tp': 2}]
    """
    meshes = []
    for counts in itertools.product(*choices.values()):
        if world % math.prod(counts) == 0:
            chosen = {**dict(zip(choices, counts)), "dp": world // math.prod(counts)}
            meshes.append({axis: chosen[axis] for axis in AXES})
    return meshes


def _order(row: Layout) -> tuple[Any, ...]:
    """What fits first, then what gets through most, or computes and sends least for a batch."""
    cost = row.flops * row.pp * row.tp, row.sent_bytes * row.pp * row.tp
    return (not row.fits, *((-row.rate,) if row.rate is not None else ()), *cost, row.peak_bytes)


def _key(row: Layout) -> tuple[Any, ...]:
    return row.pp, row.dp, row.tp, row.checkpoint, *row.options.values()


class Maker:
    """A program that can be built with fewer layers and other checkpoints, as far as it says so."""

    def __init__(
        self, make: Callable[..., Any], layers: int | None, options: Mapping[str, Iterable[Any]] | None = None
    ) -> None:
        if not callable(make):
            raise UsageError(f"make is a function of the mesh that gives the step, not {type(make).__name__}")
        self.make = make
        try:
            parameters = inspect.signature(make).parameters
        except (TypeError, ValueError):
            parameters = {}  # type: ignore[assignment]
        self.takes = {name for name in ("layers", "checkpoint") if name in parameters}
        if layers is not None and "layers" not in self.takes:
            raise UsageError("layers= is passed on to make, which has no parameter of that name")
        default = parameters["layers"].default if "layers" in self.takes else None
        self.layers = layers if layers is not None else default if type(default) is int else None
        if "layers" in self.takes and (type(self.layers) is not int or self.layers < 1):
            raise UsageError("say how many layers the model has: fit(…, layers=32), or a default in make")

        self.choices = self._choices(options or {}, parameters)
        """Every combination of its other parameters."""

    @staticmethod
    def _choices(options: Any, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        if not isinstance(options, Mapping):
            raise UsageError(
                f"options is a dictionary such as {{'shard_loss': (False, True)}}, not {options!r}"
            )
        takes_any = any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())
        for name, values in options.items():
            if name in OWN:
                raise UsageError(f"options: {name} has an argument of its own, {name}=")
            if name not in parameters and not takes_any:
                raise no_match("parameter of make", str(name), [*parameters])
            if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
                raise UsageError(f"options: {name} is several values to try, not {values!r}")
        values = [list(values) for values in options.values()]
        return [dict(zip(options, chosen)) for chosen in itertools.product(*values)]

    def of(
        self, layers: int | None, checkpoint: str | None, chosen: Mapping[str, Any]
    ) -> Callable[[Any], Any]:
        """What builds it with so many layers."""
        options: dict[str, Any] = dict(chosen)
        if "checkpoint" in self.takes:
            options["checkpoint"] = checkpoint
        if layers is not None and "layers" in self.takes:
            options["layers"] = layers
        return lambda mesh: self.make(mesh, **options)

    def prepare(self, checkpoint: str | None) -> Callable[[Any], None] | None:
        """What is done to the step that it builds."""
        if checkpoint is None or "checkpoint" in self.takes:
            return None
        return lambda step: recompute(step, checkpoint)


def recompute(step: Any, pattern: str) -> None:
    """Have the modules of a step whose paths match a pattern compute their activations again in backward."""
    from torch.utils.checkpoint import checkpoint

    modules = {
        id(module): module
        for root in held_roots(step)
        for path, module in root.named_modules()
        if path and fnmatch.fnmatchcase(path, pattern) and path.count(".") == pattern.count(".")
    }
    if not modules:
        raise UsageError(f"checkpoint={pattern!r}: no module of the step has such a path")
    for module in modules.values():
        forward = module.forward
        module.forward = lambda *args, _own=forward, **kwargs: checkpoint(
            _own, *args, use_reentrant=False, **kwargs
        )


def held_roots(step: Any) -> list[Any]:
    """The modules that a step holds: itself, what its function refers to, and those of stages of a pipeline."""
    import torch

    if isinstance(step, torch.nn.Module):
        return [step]
    roots = []
    for _, value in held_variables(step):
        stages = [getattr(value, "_stage", None), *(getattr(value, "_stages", None) or ())]
        for item in (value, *(getattr(stage, "submod", None) for stage in stages)):
            if isinstance(item, torch.nn.Module):
                roots.append(item)
    return roots


class LayoutTrial:
    """One layout, traced with as few layers as prove what it takes."""

    def __init__(
        self,
        maker: Maker,
        batch: Any,
        mesh: dict[str, int],
        checkpoint: str | None,
        device: Calibration | Hardware | None,
        links: Mapping[str, Any] | None,
        assume: Mapping[str, str] | None,
        options: dict[str, Any],
    ) -> None:
        self.maker, self.batch, self.mesh, self.checkpoint = maker, batch, mesh, checkpoint
        self.options = options
        self.device, self.assume = device, assume
        self.links = None if device is None else links_of(tuple(mesh.items()), device, links)
        self.key = (mesh["pp"], mesh["dp"], mesh["tp"], checkpoint or "", *options.values())
        self.world: World | None = None
        self._figures, self._words = self._extended()

    def layout(self, limit: int) -> Layout:
        """What it comes to."""
        figures = self._figures
        time = None if figures.time_ns is None else round(figures.time_ns)
        peak = figures.peak_bytes
        return Layout(
            self.mesh["pp"], self.mesh["dp"], self.mesh["tp"], self.checkpoint or "", peak, peak <= limit,
            max(figures.sent.values(), default=0), max(figures.flops.values(), default=0),
            time, self.mesh["dp"] / time * 1e9 if time else None, self._words, self.options,
        )  # fmt: skip

    def trace_whole(self) -> LayoutTrial:
        """The same with all layers traced."""
        if self._words != "whole":
            self._figures, self._words = self._traced(self.maker.layers), "whole"
        return self

    def _extended(self) -> tuple[LayoutFigures, str]:
        whole, stages = self.maker.layers, self.mesh["pp"]
        # layers are added to each stage alike
        if whole is None or whole % stages or whole // stages <= FEWEST + POINTS:
            return self._traced(whole), "whole"
        points: list[LayoutFigures] = []
        for own in range(FEWEST, FEWEST + MOST_POINTS):
            points.append(self._traced(own * stages))
            if len(points) >= POINTS and _on_a_line(points[-POINTS:]):
                numbers = ", ".join(str(point.layers) for point in points[-POINTS:])
                return _extended(points[-2:], whole), f"{numbers} of {whole} layers"
            if own + 1 >= whole // stages:
                break
        return self._traced(whole), "whole"

    def _traced(self, layers: int | None) -> LayoutFigures:
        """What it takes with so many layers: of one rank, and of a pipeline the first, second and last stage."""
        mesh = Mesh(tuple(self.mesh.items()))
        simulation = Simulation(
            self.maker.of(layers, self.checkpoint, self.options), self.batch, mesh,
            assume=self.assume, prepare=self.maker.prepare(self.checkpoint),
        )  # fmt: skip
        stages = self.mesh["pp"]
        ranks = sorted({mesh.size // stages * stage for stage in (0, min(1, stages - 1), stages - 1)})
        traces = {rank: simulation.trace(rank) for rank in ranks}
        self.world = World(traces)
        places: dict[Any, int] = {}
        for rank, trace in traces.items():
            places |= {(rank, *place): most for place, most in memory_by_place(trace).items()}
        reports = {rank: trace.communication() for rank, trace in traces.items()}
        return LayoutFigures(
            layers or 0,
            places,
            {rank: report.sent_bytes or 0 for rank, report in reports.items()},
            {rank: int(trace.metrics["flops"].total() or 0) for rank, trace in traces.items()},
            self._time(traces),
        )

    def _time(self, traces: Mapping[int, Trace]) -> float | None:
        """The predicted step: the slowest rank by itself, and in a pipeline the time to fill and drain it."""
        if self.device is None or self.links is None:
            return None
        alone = [predicted(World({rank: trace}), self.device, self.links) for rank, trace in traces.items()]
        slowest = max(float(world.step_time().total_ns) for world in alone)
        batches = max(micro_batches(trace) for trace in traces.values())
        return slowest * (batches + self.mesh["pp"] - 1) / batches


def micro_batches(trace: Trace) -> int:
    """How many micro-batches a stage of a pipeline runs; 1 without one."""
    paths = {module.path for module in trace.graph.modules if module.kind == "microbatch"}
    return max(len(paths), 1)


def memory_by_place(trace: Trace) -> dict[tuple[str, str, str], int]:
    """The most that is alive at each place of a program: phase, module and operator; layers by first, last, inner."""
    graph, lifetimes = trace.graph, trace.lifetimes
    if lifetimes is None or not len(graph):
        return {}
    paths = [scope.path for scope in graph.scopes]
    counts: dict[str, int] = {}
    for path in paths:
        for match in NUMBER.finditer(path):
            start = path[: match.start(1)]
            counts[start] = max(counts.get(start, 0), int(match[1]) + 1)
    shown = [_place(path, counts) for path in paths]
    live, scopes = lifetimes.live, graph.node_scope.tolist()
    phases, ops = graph.node_phase.tolist(), [call.op for call in graph.calls]
    most: dict[tuple[str, str, str], int] = {}
    for node, call in enumerate(graph.node_call.tolist()):
        key = (str(phases[node]), shown[scopes[node]], ops[call])
        most[key] = max(most.get(key, 0), int(live[node]))
    return most


def _place(path: str, counts: Mapping[str, int]) -> str:
    """A path with first, last and inner in place of numbers.

    >>> _place("layers.2.norm", {"layers.": 4}), _place("layers.3", {"layers.": 4})
    ('layers.inner.norm', 'layers.last')
    """

    def words(match: re.Match[str]) -> str:
        number, last = int(match[1]), counts.get(path[: match.start(1)], 0) - 1
        word = "first" if number == 0 else "last" if number == last else "inner"
        return match[0].replace(match[1], word)

    return NUMBER.sub(words, path)


def _on_a_line(points: Sequence[LayoutFigures]) -> bool:
    """Whether all that was found grows by the same from each point to the next."""
    first, second, third = points
    for name in ("places", "sent", "flops"):
        rows = [getattr(point, name) for point in (first, second, third)]
        if not rows[0].keys() == rows[1].keys() == rows[2].keys():
            return False
        if any(rows[2][key] - rows[1][key] != rows[1][key] - rows[0][key] for key in rows[0]):
            return False
    if first.time_ns is None or second.time_ns is None or third.time_ns is None:
        return True
    bend = abs(third.time_ns - 2 * second.time_ns + first.time_ns)
    return bend <= TIME_ERROR * abs(third.time_ns - second.time_ns) + TIME_ERROR * third.time_ns


def _extended(points: Sequence[LayoutFigures], layers: int) -> LayoutFigures:
    """Two points on a line, at so many layers."""
    first, second = points
    steps = (layers - second.layers) / (second.layers - first.layers)

    def at(low: float, high: float) -> int:
        return round(high + (high - low) * steps)

    time = None
    if first.time_ns is not None and second.time_ns is not None:
        time = float(at(first.time_ns, second.time_ns))
    return LayoutFigures(
        layers,
        {key: at(first.places[key], most) for key, most in second.places.items()},
        {key: at(first.sent[key], sent) for key, sent in second.sent.items()},
        {key: at(first.flops[key], flops) for key, flops in second.flops.items()},
        time,
    )


class FitReport(Report):
    """Layouts of a training, the best first: what the fullest rank holds, what a rank sends and computes, the time.

    ``layouts[0].mesh`` is what ``tv.simulate`` takes; ``world`` has the ranks of the best one that were traced.
    """

    title = "What fits"

    def __init__(
        self,
        layouts: Sequence[Layout],
        memory_bytes: int,
        world: World | None,
        device: Calibration | Hardware | None,
    ) -> None:
        self.layouts = list(layouts)
        """Every layout, those that fit first."""
        self.memory_bytes = memory_bytes
        """What a rank has."""
        self.world = world
        """The traced ranks of the best layout."""
        self._device = device

    @property
    def best(self) -> Layout | None:
        """The first layout, if it fits."""
        return self.layouts[0] if self.layouts and self.layouts[0].fits else None

    def facts(self) -> Mapping[str, str]:
        """How many fit, and the best."""
        fitting = sum(row.fits for row in self.layouts)
        facts = {
            "fit": f"{fitting} of {many(len(self.layouts), 'layout')} in {size(self.memory_bytes)} a rank"
        }
        if self.best is not None:
            row = self.best
            mesh = " × ".join(f"{axis} {count}" for axis, count in row.mesh.items())
            again = f", {row.checkpoint} computed again" if row.checkpoint else ""
            again += f", {option_text(row.options)}" if row.options else ""
            facts["best"] = f"{mesh}{again}: {size(row.peak_bytes)} at the peak, {row.traced}"
        return facts

    def listings(self) -> Sequence[Listing]:
        """Every layout."""
        fields = (
            Field("pp", "pp", str), Field("dp", "dp", str), Field("tp", "tp", str),
            Field("checkpoint", "computed again"),
            Field("peak_bytes", "peak", size),
            Field("fits", "fits", lambda fits: "yes" if fits else "no"),
            Field("sent_bytes", "sent", size), Field("flops", "FLOPs", count_text),
            Field("time_ns", "predicted", duration), Field("rate", "batches/s", "{:.3g}".format),
            Field("traced", "traced"), Field("options", "options", option_text),
        )  # fmt: skip
        return [Listing("Layouts", fields, self.layouts, most=64)]

    def charts(self) -> Mapping[str, Chart]:
        """The peaks of all layouts."""
        return Charts(layouts=self._chart)

    def _chart(self) -> Chart:
        rows = self.layouts[:64]
        names = [
            " ".join(
                filter(
                    None,
                    (f"pp {row.pp} dp {row.dp} tp {row.tp}", row.checkpoint, option_text(row.options)),
                )
            )
            for row in rows
        ]
        series = Series("peak", names, [row.peak_bytes for row in rows])
        return Chart("bars", "Peak by layout", Axis("layout"), Axis("memory", "bytes"), [series])

    def notes(self) -> Sequence[str]:
        """What the figures are."""
        notes = [
            "peak is what tensors hold on the fullest rank in a step from the middle of a training; an allocator and "
            "the buffers of communication take more"
        ]
        if any(row.traced != "whole" for row in self.layouts):
            notes.append(
                "of layouts with some layers traced, the rest is extended: every place of the program grew by the same "
                "amount with each layer, twice"
            )
        if self._device is not None and any(row.pp > 1 for row in self.layouts):
            notes.append(
                "the time of a pipeline is that of its slowest stage with the time to fill and drain it; "
                "tv.simulate of its mesh follows every message"
            )
        return notes
