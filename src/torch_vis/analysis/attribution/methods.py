"""Attribution of an output to inputs or activations, by gradients and by occlusion, as Captum defines each method."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.analysis.report import Charts, MapReport
from torch_vis.capture.containers import named_tensors
from torch_vis.capture.modes import with_gradients, without_gradients
from torch_vis.errors import UsageError, no_match
from torch_vis.progress import progress
from torch_vis.replay.differentiable import DifferentiableReplay, ForwardPass, ValueChange, change_of
from torch_vis.replay.held_run import HeldRun
from torch_vis.replay.replay import node_text
from torch_vis.replay.slicing import ReplayTarget, full_index
from torch_vis.views.charts.chart import Axis, Chart, Series
from torch_vis.views.charts.maps import ColoredText, MapPicture, NumberGrid, Overlay
from torch_vis.views.text.table_layout import Field, Listing

Tensors = list[torch.Tensor]
MOST_BARS = 40
MOST_PANELS = 8


# ---------------------------------------------------------------- what is explained


def named_output(output: Any, name: str) -> torch.Tensor:
    """The tensor of a name among what a run gave, in whatever containers.

    >>> named_output({"logits": torch.ones(1), "pool": torch.zeros(1)}, "pool")
    tensor([0.])
    """
    named = dict(named_tensors(output))
    if name not in named:
        raise no_match("output", name, named)
    return named[name]


class Goal:
    """One number for each sample: the output at an index, or what a function of the output gives.

    ``target`` is an index into what an output has beside its samples: a number, a tuple of numbers, or one for each
    sample. Without it, the greatest of each row is taken. ``measure`` is a function of the whole output instead.
    """

    def __init__(
        self, target: Any = None, measure: Callable[[Any], Any] | None = None, output: int | str = 0
    ) -> None:
        if measure is not None and target is not None:
            raise UsageError("give target= or measure=, not both")
        if measure is not None and not callable(measure):
            raise UsageError("measure is a function of the output that gives a number")
        self.target, self.measure, self.output = target, measure, output
        self._index: Any = None

    def fix(self, given: ForwardPass) -> None:
        """Choose the index by a pass with nothing changed, where none was given."""
        if self.measure is not None:
            return
        tensor = self.chosen(given)
        if not tensor.is_floating_point():
            raise UsageError(f"output {self.output!r} is {tensor.dtype}; gradients need floating numbers")
        self._index = self._indices(tensor)

    def chosen(self, given: ForwardPass) -> torch.Tensor:
        """The output tensor that is meant."""
        if isinstance(self.output, str):
            return named_output(given.output, self.output)
        tensors = list(dict(named_tensors(given.output)).values()) or given.outputs
        if self.output == 0:  # the first with numbers that can be explained
            return next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0])
        if not -len(tensors) <= self.output < len(tensors):
            raise UsageError(f"the run gives {len(tensors)} tensors; there is no output {self.output}")
        return tensors[self.output]

    def _indices(self, tensor: torch.Tensor) -> Any:
        target = self.target
        if target is None:
            if tensor.dim() < 2:
                return None
            if tensor.dim() == 2:
                return tensor.detach().argmax(-1)
            raise UsageError(
                f"the output has shape {list(tensor.shape)}: say which number of it to explain with target=(…), an "
                f"index of its last {tensor.dim() - 1} dimensions, or with measure="
            )
        if isinstance(target, torch.Tensor):
            target = target.tolist()
        if isinstance(target, list):
            if tensor.dim() < 1 or len(target) != len(tensor):
                raise UsageError(
                    f"target has {len(target)} entries, and the output has {len(tensor) if tensor.dim() else 1} "
                    "samples; a position in one sample is a tuple"
                )
            rows = [self._checked(tensor, item) for item in target]
            return rows if tensor.dim() != 2 else torch.tensor([row[0] for row in rows])
        return self._checked(tensor, target)

    def _checked(self, tensor: torch.Tensor, target: Any) -> tuple[int, ...]:
        index = tuple(target) if isinstance(target, (tuple, list)) else (target,)
        sizes = tensor.shape[1:]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in index):
            raise UsageError(f"target is an index, a tuple of them or one for each sample, not {target!r}")
        if len(index) != len(sizes):
            raise UsageError(
                f"target {target!r} has {len(index)} numbers, and the output has {len(sizes)} dimensions beside its "
                f"samples: {list(tensor.shape)}"
            )
        for item, size in zip(index, sizes):
            if not -size <= item < size:
                raise UsageError(f"target {target!r} is outside the output's shape {list(tensor.shape)}")
        return index

    def of(self, given: ForwardPass) -> torch.Tensor:
        """The number of each sample; one number where the samples cannot be separated."""
        if self.measure is not None:
            with with_gradients():
                measured = self.measure(given.output)
            if not isinstance(measured, torch.Tensor):
                raise UsageError(
                    f"measure gave {type(measured).__name__}; gradients need a tensor with one number, or one for each "
                    "sample"
                )
            if measured.dim() > 1:
                raise UsageError(
                    f"measure gave a tensor of shape {list(measured.shape)}; it has to give one number"
                )
            return measured
        tensor = self.chosen(given)
        index = self._index
        if index is None:
            return tensor
        if isinstance(index, torch.Tensor):
            return tensor.gather(-1, index.to(tensor.device).unsqueeze(-1)).squeeze(-1)
        if isinstance(index, tuple):
            return tensor[(slice(None), *index)]
        return torch.stack([tensor[(sample, *element)] for sample, element in enumerate(index)])

    @property
    def text(self) -> str:
        """What is explained, in words."""
        if self.measure is not None:
            name = getattr(self.measure, "__name__", "measure")
            return "measure" if name == "<lambda>" else f"{name}(output)"
        which = f"output {self.output}" if self.output != 0 else "output"
        index = self._index
        if index is None:
            return which
        if isinstance(index, torch.Tensor):
            index = sorted(set(index.tolist()))
            shown = ", ".join(map(str, index[:6])) + (" …" if len(index) > 6 else "")
            return f"{which}[:, {shown}]"
        if isinstance(index, tuple):
            return f"{which}[:, {', '.join(map(str, index))}]"
        return f"{which} at one index for each sample"


def token_names(tokens: Sequence[str] | None, count: int) -> list[str]:
    """A name for each position: the tokens that were given, or numbers."""
    if tokens is None:
        return [str(number) for number in range(count)]
    if len(tokens) != count:
        raise UsageError(f"{len(tokens)} tokens are named, and there are {count} positions")
    return [str(token) for token in tokens]


# ---------------------------------------------------------------- methods and their settings


class MethodSettings(NamedTuple):
    """What the methods take beside the goal; None is a method's own default."""

    baseline: Any = None
    steps: int | None = None
    samples: int | None = None
    std: float | None = None
    seed: int | None = None
    window: Any = None
    stride: Any = None
    relu: bool | None = None


class Method(NamedTuple):
    """A way to attribute: what it runs, which settings it takes, and whether it needs a place inside the model."""

    run: Callable[[Explained, MethodSettings], Tensors]
    settings: tuple[str, ...] = ()
    inside: bool = False
    adds_up: bool = False
    """Whether the attributions add up to what the output differs from that of the baseline."""


# ---------------------------------------------------------------- where


class Explained:
    """The run, what is explained of it, and the tensors to which that is attributed: inputs, or activations."""

    def __init__(
        self,
        trace: HeldRun,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        goal: Goal,
        at: Any,
    ) -> None:
        self.trace, self.goal = trace, goal
        probe = DifferentiableReplay(trace, args, kwargs)
        self.given = (args, kwargs)
        self.inputs = {name: probe.input(name) for name in probe.values}
        self.at_inputs = at is None and any(t.is_floating_point() for t in self.inputs.values())
        if at == "input":
            at, self.at_inputs = None, True
        planner = probe.planner
        if self.at_inputs:
            self.names = [name for name, tensor in self.inputs.items() if tensor.is_floating_point()]
            if not self.names:
                places = _lookups(trace)
                raise UsageError(
                    "the inputs are indices, which have no gradient; attribute at the embeddings: at="
                    f"{' or '.join(map(repr, places)) or '…'}"
                )
            self.places: list[ReplayTarget] = []
        else:
            wanted = at if at is not None else _lookups(trace)[:1]
            if at is None and not wanted:
                raise UsageError(
                    "the inputs have no gradient and no embedding looks them up; name a place with at="
                )
            wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
            self.places = [target for item in wanted for target in planner.targets(item)]
            self.names = [target.name for target in self.places]
        self.forward = DifferentiableReplay(
            trace, args, kwargs, vary=self.names if self.at_inputs else (), places=self.places
        )
        if self.at_inputs:
            self.values = [self.inputs[name] for name in self.names]
        else:
            self.values = self.activations(self.inputs)
        for name, value in zip(self.names, self.values):
            if not value.is_floating_point():
                raise UsageError(
                    f"{name!r} is {value.dtype}, which has no gradient; name another place with at="
                )
        goal.fix(self.run(self.values))

    def activations(self, inputs: Mapping[str, torch.Tensor]) -> Tensors:
        """What the places have for some inputs."""
        fixed = {self.forward.values[name]: tensor for name, tensor in inputs.items()}
        whole = DifferentiableReplay(self.trace, places=self.places, fixed=fixed)
        return [
            self._part(target, tensor) for target, tensor in zip(self.places, whole.values_of(self.places))
        ]

    def alone(self) -> list[Explained]:
        """Each place by itself: put in together, a place would hide those before it. Inputs are one subject."""
        if len(self.places) < 2:
            return [self]
        parts = []
        for target, name, value in zip(self.places, self.names, self.values):
            part = copy.copy(self)
            part.places, part.names, part.values = [target], [name], [value]
            part.forward = DifferentiableReplay(self.trace, *self.given, places=[target])
            parts.append(part)
        return parts

    def _part(self, target: ReplayTarget, tensor: torch.Tensor) -> torch.Tensor:
        index = full_index(self.trace.graph, target)
        return tensor if index is None else tensor[index]

    def run(self, values: Sequence[torch.Tensor]) -> Any:
        """A pass with these tensors at the inputs or places."""
        if self.at_inputs:
            return self.forward.run(dict(zip(self.names, values)))
        return self.forward.run(changes=[self._change(t, v) for t, v in zip(self.places, values)])

    def _change(self, target: ReplayTarget, value: torch.Tensor) -> ValueChange:
        index = full_index(self.trace.graph, target)

        def put(tensor: torch.Tensor) -> torch.Tensor:
            if index is None:
                # a program may write to what it was handed
                return value.clone()
            whole = tensor.clone()
            whole[index] = value
            return whole

        return change_of(target, put)

    def measured(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """The numbers that are explained, without history."""
        with without_gradients():
            return self.goal.of(self.run(values)).detach()

    def gradients(self, values: Sequence[torch.Tensor]) -> tuple[Tensors, torch.Tensor]:
        """The gradients at these tensors, and the numbers that are explained."""
        leaves = [value.detach().clone().requires_grad_() for value in values]
        measured = self.goal.of(self.run(leaves))
        return self.forward.gradients(measured.sum(), leaves), measured.detach()

    def gradients_at_places(
        self, replay: DifferentiableReplay, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[Tensors, Tensors]:
        """For other inputs the gradients at the places, and what they have."""
        leaves: dict[int, torch.Tensor] = {}

        def put(number: int, tensor: torch.Tensor) -> torch.Tensor:
            leaf = leaves[number] = tensor.detach().clone().requires_grad_()
            return leaf.clone()

        changes = [change_of(target, partial(put, number)) for number, target in enumerate(self.places)]
        measured = self.goal.of(replay.run(inputs, changes))
        whole = [leaves[number] for number in range(len(self.places))]
        gradients = replay.gradients(measured.sum(), whole)
        parts = [[self._part(t, x.detach()) for t, x in zip(self.places, of)] for of in (gradients, whole)]
        return parts[0], parts[1]

    def baseline_inputs(self, baseline: Any) -> dict[str, torch.Tensor]:
        """A baseline for each of the inputs."""
        return self._by_input(baseline, list(self.inputs))

    def baselines(self, baseline: Any) -> Tensors:
        """The tensors that attributions are against: at the inputs, or what the places have for other inputs."""
        if self.at_inputs:
            given = self._by_input(baseline, self.names)
            return [given[name] for name in self.names]
        if (
            isinstance(baseline, torch.Tensor)
            and len(self.values) == 1
            and baseline.is_floating_point()
            and _fits(baseline, self.values[0])
            and not any(baseline.shape == tensor.shape for tensor in self.inputs.values())
        ):
            return [baseline.expand_as(self.values[0])]
        return self.activations(self._by_input(baseline, list(self.inputs)))

    def _by_input(self, baseline: Any, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """A baseline for each input: a number for all, a tensor, or several in order or by name."""
        baseline = 0.0 if baseline is None else baseline
        if isinstance(baseline, Mapping):
            wrong = [name for name in baseline if name not in self.inputs]
            if wrong:
                raise no_match("input", str(wrong[0]), self.inputs)
            rows = {name: baseline.get(name, self.inputs[name]) for name in names}
        elif isinstance(baseline, (tuple, list)):
            if len(baseline) != len(names):
                raise UsageError(
                    f"{len(baseline)} baselines were given for {len(names)} inputs: {', '.join(names)}"
                )
            rows = dict(zip(names, baseline))
        elif isinstance(baseline, torch.Tensor):
            rows = dict.fromkeys(names[:1], baseline)
            rows.update({name: self.inputs[name] for name in names[1:]})
        else:
            # a mask is no signal: of indices and numbers, the first input alone has a baseline if only it is a signal
            rows = dict.fromkeys(names, baseline)
            if not self.at_inputs and not any(t.is_floating_point() for t in self.inputs.values()):
                rows = {
                    name: baseline if number == 0 else self.inputs[name] for number, name in enumerate(names)
                }
        return {name: self._like(name, value) for name, value in rows.items()}

    def _like(self, name: str, value: Any) -> torch.Tensor:
        own = self.inputs[name]
        if isinstance(value, torch.Tensor):
            if not _fits(value, own):
                raise UsageError(
                    f"a baseline of shape {list(value.shape)} does not fit input {name!r} of {list(own.shape)}"
                )
            return value.to(own.dtype).expand_as(own)
        if isinstance(value, (int, float)):
            return torch.full_like(own, value)
        raise UsageError(f"a baseline is a number or a tensor, not {type(value).__name__}")


def _fits(value: torch.Tensor, own: torch.Tensor) -> bool:
    try:
        return torch.broadcast_shapes(value.shape, own.shape) == own.shape
    except RuntimeError:
        return False


def _lookups(trace: HeldRun) -> list[str]:
    """The modules in which an input is looked up in a table, the first of the run first."""
    graph = trace.graph
    inputs = {value.index for value in graph.inputs if value.role == "input"}
    names = []
    for node in graph.nodes:
        if node.name == "embedding" and node.phase == "forward":
            read = {value.index for value in node.inputs}
            if read & inputs or any(graph.value_producer[value] >= 0 for value in read):
                path = node.path
                is_table = node.scope is not None and node.scope.type == "Embedding"
                names.append(path if is_table and path else f"{path}/embedding#{node.index}")
    return list(dict.fromkeys(names))


# ---------------------------------------------------------------- the methods


def gradient(subject: Explained, settings: MethodSettings) -> Tensors:
    """The gradient as it is."""
    return subject.gradients(subject.values)[0]


def saliency(subject: Explained, settings: MethodSettings) -> Tensors:
    """The magnitude of the gradient."""
    return [g.abs() for g in gradient(subject, settings)]


def input_x_gradient(subject: Explained, settings: MethodSettings) -> Tensors:
    """The gradient times what is there."""
    return [g * v for g, v in zip(gradient(subject, settings), subject.values)]


def integrated_gradients(subject: Explained, settings: MethodSettings) -> Tensors:
    """The mean gradient on the straight way from a baseline, times the way; by Gauss-Legendre quadrature."""
    start = subject.baselines(settings.baseline)
    places, weights = np.polynomial.legendre.leggauss(settings.steps or 50)
    sums = [torch.zeros_like(value) for value in subject.values]
    pairs = list(zip(0.5 * (1 + places), 0.5 * weights))
    for share, weight in progress(pairs, "integrated gradients"):
        at = [base + float(share) * (value - base) for base, value in zip(start, subject.values)]
        for total, g in zip(sums, subject.gradients(at)[0]):
            total += g * float(weight)
    return [total * (value - base) for total, value, base in zip(sums, subject.values, start)]


def smoothgrad(subject: Explained, settings: MethodSettings) -> Tensors:
    """The mean magnitude of the gradient over copies with noise."""
    count, std = settings.samples or 50, settings.std
    generator = torch.Generator().manual_seed(settings.seed or 0)
    drawn = []
    for value in subject.values:
        # a share of the range of the values, as in the paper
        width = 0.15 * float(value.max() - value.min()) if std is None else std
        shape = (len(value), count, *value.shape[1:]) if value.dim() else (1, count)
        # sample by sample, as Captum draws it
        spread = torch.full(shape, width, dtype=value.dtype)
        drawn.append(torch.normal(0.0, spread, generator=generator).to(value.device))
    sums = [torch.zeros_like(value) for value in subject.values]
    for number in progress(range(count), "smoothgrad"):
        noisy = [v + noise[:, number].reshape(v.shape) for v, noise in zip(subject.values, drawn)]
        for total, g in zip(sums, subject.gradients(noisy)[0]):
            total += g.abs() / count
    return sums


def occlusion(subject: Explained, settings: MethodSettings) -> Tensors:
    """How much less the output is with a window of the values replaced by the baseline; overlaps are averaged."""
    if len(subject.values) != 1:
        raise UsageError(
            f"occlusion moves one window over one tensor, and here are {len(subject.values)}: choose with at="
        )
    (value,), (base,) = subject.values, subject.baselines(settings.baseline)
    windows = _windows(value, settings.window, settings.stride)
    whole = subject.measured([value])
    per_sample = whole.dim() == 1 and value.dim() and len(whole) == len(value)
    total, count = torch.zeros_like(value), torch.zeros_like(value)
    for window in progress(windows, "occlusion"):
        hidden = value.clone()
        hidden[window] = base[window]
        effect = whole - subject.measured([hidden])
        if per_sample:
            effect = effect.reshape(-1, *([1] * (value.dim() - 1)))
        else:
            effect = effect.sum()
        total[window] += effect
        count[window] += 1
    return [total / count.clamp_min(1)]


def _windows(value: torch.Tensor, window: Any, stride: Any) -> list[tuple[slice, ...]]:
    """The places of a window that moves over all dimensions but that of the samples."""
    sizes = value.shape[1:]
    if window is None:
        # whole vectors of a sequence; squares of images through all channels; single features else
        window = (1, sizes[-1]) if len(sizes) == 2 else (sizes[0], *(max(s // 8, 1) for s in sizes[1:]))
        window = (1,) if len(sizes) == 1 else window
    window = (window,) * len(sizes) if isinstance(window, int) else tuple(window)
    if len(window) != len(sizes) or any(not 1 <= w <= s for w, s in zip(window, sizes)):
        raise UsageError(
            f"window is a size for each of the dimensions {list(sizes)} beside the samples, not {window}"
        )
    stride = (
        window if stride is None else (stride,) * len(sizes) if isinstance(stride, int) else tuple(stride)
    )
    if len(stride) != len(sizes) or any(not 1 <= step <= w for step, w in zip(stride, window)):
        raise UsageError(
            f"stride is a step for each dimension, from 1 to that of the window {window}, not {stride}"
        )
    # the last window may reach beyond the end, and is then smaller
    counts = [math.ceil((size - w) / step) + 1 for size, w, step in zip(sizes, window, stride)]
    starts = [[number * step for number in range(count)] for count, step in zip(counts, stride)]
    return [
        (slice(None), *(slice(a, min(a + w, s)) for a, w, s in zip(start, window, sizes)))
        for start in itertools.product(*starts)
    ]


def grad_cam(subject: Explained, settings: MethodSettings) -> Tensors:
    """The channels of a layer weighted by their mean gradients and added up; what is below zero is cut off."""
    maps = []
    for name, value, g in zip(subject.names, subject.values, gradient(subject, settings)):
        if value.dim() < 3:
            raise UsageError(
                f"grad_cam needs a layer with channels and positions; {name!r} gives {list(value.shape)}"
            )
        weights = g.mean(tuple(range(2, g.dim())), keepdim=True)
        added = (weights * value).sum(1, keepdim=True)
        maps.append(torch.relu(added) if settings.relu in (None, True) else added)
    return maps


def conductance(subject: Explained, settings: MethodSettings) -> Tensors:
    """How much of the change of the output from a baseline of the inputs flows through each unit of a layer."""
    steps = settings.steps or 50
    signals = [name for name, tensor in subject.inputs.items() if tensor.is_floating_point()]
    if not signals:
        raise UsageError("conductance goes from a baseline of the inputs, and indices have no way between")
    start = subject.baseline_inputs(settings.baseline)
    shares = 0.5 * (1 + np.polynomial.legendre.leggauss(steps + 1)[0])
    sums = [torch.zeros_like(value) for value in subject.values]
    before: tuple[Tensors, Tensors] | None = None
    replay = DifferentiableReplay(subject.trace, *subject.given, vary=signals, places=subject.places)
    for share in progress([*shares], "conductance"):
        inputs = {name: start[name] + float(share) * (subject.inputs[name] - start[name]) for name in signals}
        gradients, values = subject.gradients_at_places(replay, inputs)
        if before is not None:
            for total, g, old, new in zip(sums, before[0], before[1], values):
                total += g * (new - old)
        before = gradients, values
    return sums


METHODS: dict[str, Method] = {
    "gradient": Method(gradient),
    "saliency": Method(saliency),
    "input_x_gradient": Method(input_x_gradient),
    "integrated_gradients": Method(integrated_gradients, ("baseline", "steps"), adds_up=True),
    "smoothgrad": Method(smoothgrad, ("samples", "std", "seed")),
    "occlusion": Method(occlusion, ("baseline", "window", "stride")),
    "grad_cam": Method(grad_cam, ("relu",), inside=True),
    "conductance": Method(conductance, ("baseline", "steps"), inside=True, adds_up=True),
}


# ---------------------------------------------------------------- the report


class AttributionRow(NamedTuple):
    """One element, or one position with all its features: where it is, and what is attributed to it."""

    place: str
    sample: int
    position: str
    attribution: float


class AttributedMaps(MapReport):
    """A number for each element of some tensors of a run: by place, as arrays, by position, and as pictures."""

    method: str
    """How it was attributed."""
    goal: str
    """What is explained."""
    names: list[str]
    """The inputs or places, in order."""
    maps: dict[str, torch.Tensor]
    """The attributions by place, each a tensor of its shape; of ``grad_cam`` one channel."""
    _inputs: Mapping[str, torch.Tensor]
    _tokens: Sequence[str] | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.maps:
            raise no_match("place", str(name), self.maps)
        return self.maps[name]

    def array(self, name: str | None = None) -> Any:
        """The attributions at a place as a numpy array; without a name, at the first."""
        return self[self.names[0] if name is None else name].detach().cpu().double().numpy()

    def by_position(self, name: str | None = None) -> Any:
        """Attributions of sequences, samples × positions: the features of each position added up."""
        array = self.array(name)
        return array.reshape(*array.shape[:2], -1).sum(-1) if array.ndim > 2 else array

    def listings(self) -> Sequence[Listing]:
        """The largest, of sequences by position, of images by pixel."""
        fields = (
            Field("place", "at"),
            Field("sample", "sample", str),
            Field("position", "position"),
            Field("attribution", "attribution", "{:+.5g}".format),
        )
        rows = [row for name in self.names for row in self._rows(name)]
        rows.sort(key=lambda row: -abs(row.attribution))
        return [Listing("largest", fields, rows[:200], most=20, heading="The largest attributions")]

    def _rows(self, name: str) -> list[AttributionRow]:
        array = self.array(name)
        if array.ndim == 4:
            # images: the channels of a pixel together
            array = array.sum(1)
        elif array.ndim == 3:
            array = self.by_position(name)
        if array.ndim < 2:
            array = array.reshape(1, -1)
        flat = np.abs(array).ravel()
        chosen = np.argsort(-flat, kind="stable")[:200]
        rows = []
        for number in chosen.tolist():
            sample, *index = np.unravel_index(number, array.shape)
            position = ", ".join(str(int(part)) for part in index)
            if self._tokens is not None and len(index) == 1:
                position += f" {self._tokens[int(index[0])]}"
            rows.append(AttributionRow(name, int(sample), position, float(array.ravel()[number])))
        return rows

    def charts(self) -> Mapping[str, Any]:
        """A picture for each place: over the image, or as text; ``bars`` has one for each token or feature."""
        charts = {name: partial(self._chart, name) for name in self.names}
        if self.maps[self.names[0]].dim() == 3:
            charts["bars"] = partial(self._bars, self.names[0])
        return Charts(**charts)

    def _chart(self, name: str) -> Any:
        array = self.array(name)
        title = f"{self.method} of {self.goal} at {name}"
        if array.ndim == 4:
            return MapPicture(title, self._overlays(array))
        if array.ndim == 3 or (array.ndim == 2 and self._tokens is not None):
            return MapPicture(title, self._texts(self.by_position(name)))
        return self._bars(name)

    def _bars(self, name: str) -> Chart:
        array = self.by_position(name)
        title = f"{self.method} of {self.goal} at {name}"
        names = (
            None
            if self._tokens is None or array.ndim != 2
            else [
                f"{number} {token}" for number, token in enumerate(token_names(self._tokens, array.shape[1]))
            ]
        )
        flat = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
        chosen = np.sort(np.argsort(-np.abs(flat).sum(0), kind="stable")[:MOST_BARS])
        samples = flat[:MOST_PANELS]
        series = [
            Series(
                f"sample {number}" if len(samples) > 1 else "attribution",
                [str(i) if names is None else names[i] for i in chosen],
                row[chosen].tolist(),
            )
            for number, row in enumerate(samples)
        ]
        return Chart(
            "bars" if len(series) == 1 else "dots", title, Axis("feature"), Axis("attribution"), series
        )

    def _overlays(self, array: Any) -> list[Overlay]:
        """The maps of images, over the image where one was an input."""
        signed = bool((array < 0).any())
        maps = array.sum(1)
        image = next((_pixels(t) for t in self._inputs.values() if t.dim() == 4), None)
        panels = []
        for number, values in enumerate(maps[:MOST_PANELS]):
            under = np.ones((*values.shape, 3)) if image is None or len(image) != len(maps) else image[number]
            panels.append(Overlay(f"sample {number}" if len(maps) > 1 else "", under, values, signed))
        return panels

    def _texts(self, array: Any) -> list[ColoredText | NumberGrid]:
        names = token_names(self._tokens, array.shape[1])
        return [
            ColoredText(f"sample {number}" if len(array) > 1 else "", names, row.tolist())
            for number, row in enumerate(array[:MOST_PANELS])
        ]


class AttributionReport(AttributedMaps):
    """What is attributed to inputs or activations; ``maps`` has it element by element, ``figure`` draws it."""

    title = "Attribution"

    def __init__(
        self,
        run: HeldRun,
        method: str = "integrated_gradients",
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        target: Any = None,
        measure: Callable[[Any], Any] | None = None,
        output: int | str = 0,
        at: Any = None,
        baseline: Any = None,
        steps: int | None = None,
        samples: int | None = None,
        std: float | None = None,
        seed: int | None = None,
        window: Any = None,
        stride: Any = None,
        relu: bool | None = None,
        tokens: Sequence[str] | None = None,
    ) -> None:
        if method not in METHODS:
            raise no_match("method", str(method), METHODS)
        settings = MethodSettings(baseline, steps, samples, std, seed, window, stride, relu)
        row = METHODS[method]
        for name, value in settings._asdict().items():
            if value is not None and name not in row.settings:
                users = [other for other, known in METHODS.items() if name in known.settings]
                raise UsageError(f"{name} is of {' and '.join(users)}, not of {method}")
        for name, number in (("steps", steps), ("samples", samples)):
            if number is not None and number < 1:
                raise UsageError(f"{name} is at least 1, not {number}")
        if row.inside and (at is None or at == "input"):
            raise UsageError(f'{method} is about a layer inside the model: name it, at="layer4"')
        goal = Goal(target, measure, output)
        subject = Explained(run, args, kwargs, goal, at)
        self.method = method
        self.names = list(subject.names)
        self.maps = {
            name: values
            for part in subject.alone()
            for name, values in zip(part.names, row.run(part, settings))
        }
        self.goal = goal.text
        self.measured = float(subject.measured(subject.values).double().sum())
        """The number that is explained, summed over the samples."""
        self.baseline_measured: float | None = None
        """The same for the baseline, where the method has one."""
        if row.adds_up and len(subject.alone()) == 1:
            self.baseline_measured = self._at_baseline(subject, settings)
        self._inputs = subject.inputs
        self._tokens = tokens
        self._left = subject.forward.left_at
        self._cut = (
            [] if method == "occlusion" else [node_text(run.graph, node) for node in subject.forward.cut]
        )
        if tokens is not None:
            for values in self.maps.values():
                if values.dim() > 1:
                    token_names(tokens, values.shape[1])

    def _at_baseline(self, subject: Explained, settings: MethodSettings) -> float:
        if METHODS[self.method].inside:
            replay = DifferentiableReplay(subject.trace, *subject.given, vary=list(subject.forward.values))
            with without_gradients():
                measured = subject.goal.of(replay.run(subject.baseline_inputs(settings.baseline)))
        else:
            measured = subject.measured(subject.baselines(settings.baseline))
        return float(measured.double().sum())

    @property
    def attributed(self) -> float:
        """The sum of all attributions."""
        return sum(float(values.double().sum()) for values in self.maps.values())

    @property
    def error(self) -> float | None:
        """By how much the sum misses the change from the baseline, where it should be that; None where not."""
        if self.baseline_measured is None:
            return None
        return self.attributed - (self.measured - self.baseline_measured)

    def facts(self) -> Mapping[str, str]:
        """What is explained, and whether it adds up."""
        facts = {"method": self.method, "explained": f"{self.goal} = {self.measured:.6g}"}
        if self.baseline_measured is not None and self.error is not None:
            change = self.measured - self.baseline_measured
            facts["baseline"] = f"{self.baseline_measured:.6g}, so that {change:+.6g} is attributed"
            facts["unaccounted for"] = f"{self.error:+.2g}"
        facts["at"] = ", ".join(f"{name} {list(values.shape)}" for name, values in self.maps.items())
        return facts

    def notes(self) -> Sequence[str]:
        """What is as recorded though it might be different on the way."""
        notes = []
        if self._left:
            notes.append(
                f"what was decided by a value that left for Python is as recorded, first at {self._left[0]}"
            )
        if self._cut:
            notes.append(
                f"{len(self._cut)} operations ran without gradients (torch.no_grad, a custom autograd.Function), and "
                f"none passes through them; the first is {self._cut[0]}"
            )
        return notes


def _pixels(image: torch.Tensor) -> Any:
    """Images of any range as samples × height × width × 3, from 0 to 1."""
    array = image.detach().cpu().double().numpy().transpose(0, 2, 3, 1)
    array = array[..., :3] if array.shape[-1] >= 3 else np.repeat(array[..., :1], 3, -1)
    low, high = array.min((1, 2, 3), keepdims=True), array.max((1, 2, 3), keepdims=True)
    return (array - low) / np.where(high > low, high - low, 1.0)
