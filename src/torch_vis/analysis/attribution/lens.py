"""The logit lens: what a model would say after each of its layers, if that were the last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_vis.analysis.attribution.methods import Goal, token_names
from torch_vis.analysis.report import Charts, MapReport
from torch_vis.capture.modes import without_gradients
from torch_vis.errors import UsageError, no_match
from torch_vis.graph.text import split_number
from torch_vis.replay.differentiable import DifferentiableReplay, change_of
from torch_vis.replay.held_run import HeldRun
from torch_vis.replay.rerun import RunPlanner, planner_of
from torch_vis.replay.slicing import ReplayTarget
from torch_vis.views.charts.maps import MapPicture, NumberGrid
from torch_vis.views.text.table_layout import Field, Listing


class LensRow(NamedTuple):
    """The first guess after one layer at one position, and where the model's own last guess stood there."""

    layer: str
    sample: int
    position: str
    guess: str
    probability: float
    final: str
    rank: int


class LogitLensReport(MapReport):
    """The guesses after each layer: ``report["h.5"]`` has the logits, ``rows`` the first guesses, ``figure`` a grid."""

    title = "Logit lens"

    def __init__(
        self,
        run: HeldRun,
        at: Any = None,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        output: int | str = 0,
        top: int = 5,
        tokens: Sequence[str] | None = None,
        decode: Callable[[int], str] | None = None,
    ) -> None:
        if not isinstance(top, int) or top < 1:
            raise UsageError(f"top is how many guesses to keep, at least 1, not {top!r}")
        planner = planner_of(run, run.needs_tensors("run"))
        layers = _repeated(planner) if at is None else planner.targets(at)
        shapes = {planner.graph.values[target.values[0]].shape for target in layers}
        if len(shapes) > 1:
            raise UsageError(
                f"the layers give tensors of {len(shapes)} shapes, and only one can stand for another: "
                f"{', '.join(str(list(shape)) for shape in sorted(shapes))}"
            )
        self.names = [target.name for target in layers]
        """The layers, in order."""
        goal = Goal(output=output)
        last = layers[-1]
        values = DifferentiableReplay(run, args, kwargs).values_of(layers)
        forward = DifferentiableReplay(run, args, kwargs, places=[last])
        self._limits = forward.limits
        self.logits: dict[str, torch.Tensor] = {}
        """The logits after each layer, each as the output is."""
        with without_gradients():
            for target, value in zip(layers, values):
                change = change_of(last, lambda _, value=value: value.clone())  # type: ignore[misc]
                self.logits[target.name] = goal.chosen(forward.run(changes=[change])).detach().clone()
        self.top = min(top, self.logits[last.name].shape[-1])
        """How many guesses are kept of each position."""
        self._tokens, self._decode = tokens, decode or str
        if tokens is not None and self.logits[last.name].dim() == 3:
            token_names(tokens, self.logits[last.name].shape[1])

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.logits:
            raise no_match("layer", str(name), self.logits)
        return self.logits[name]

    def guesses(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The best guesses after a layer: their indices and their probabilities, along the last dimension."""
        best = torch.softmax(self[name].float(), -1).topk(self.top, -1)
        return best.indices, best.values

    def rank(self, index: int) -> torch.Tensor:
        """The rank of one index after each layer, layers × samples (× positions); 0 is the first guess."""
        rows = [self._ranks(logits, torch.full(logits.shape[:-1], index)) for logits in self.logits.values()]
        return torch.stack(rows)

    def _ranks(self, logits: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        own = logits.gather(-1, index.to(logits.device).unsqueeze(-1))
        return (logits > own).sum(-1)

    @property
    def rows(self) -> list[LensRow]:
        """One row for each layer, sample and position."""
        final = self.logits[self.names[-1]].argmax(-1)
        rows = []
        for name, logits in self.logits.items():
            indices, chances = self.guesses(name)
            ranks = self._ranks(logits, final)
            for entry in (
                torch.cartesian_prod(*map(torch.arange, final.shape)).reshape(-1, final.dim()).tolist()
            ):
                at = tuple(entry)
                position = ", ".join(map(str, at[1:])) if self._tokens is None or len(at) != 2 else (
                    f"{at[1]} {self._tokens[at[1]]}"
                )  # fmt: skip
                rows.append(
                    LensRow(
                        name,
                        at[0],
                        position,
                        self._decode(int(indices[at][0])),
                        float(chances[at][0]),
                        self._decode(int(final[at])),
                        int(ranks[at]),
                    )
                )
        return rows

    def facts(self) -> Mapping[str, str]:
        """From which layer on the last guess stands, on the average."""
        final = self.logits[self.names[-1]].argmax(-1)
        agree = [float((logits.argmax(-1) == final).float().mean()) for logits in self.logits.values()]
        shown = ", ".join(f"{name} {share:.0%}" for name, share in list(zip(self.names, agree))[:-1])
        return {"layers": f"{len(self.names)}", "guess as the last one does": shown}

    def notes(self) -> Sequence[str]:
        """What is as recorded and might be different with other inputs."""
        return self._limits

    def listings(self) -> Sequence[Listing]:
        """The first guesses at the last position."""
        number = "{:.3f}".format
        fields = (
            Field("layer", "after"),
            Field("sample", "sample", str),
            Field("position", "position"),
            Field("guess", "guess"),
            Field("probability", "probability", number),
            Field("final", "last guess"),
            Field("rank", "its rank", str),
        )
        rows = self.rows
        ends = {row.position for row in rows[-1:]}
        chosen = [row for row in rows if row.position in ends]
        title = "last position" if len(ends) < len({r.position for r in rows}) else "guesses"
        return [Listing(title, fields, chosen, heading=title.capitalize())]

    def charts(self) -> Mapping[str, Any]:
        """Layers × positions, each cell with its first guess and coloured by its probability."""
        return Charts(guesses=self._grid)

    def _grid(self) -> MapPicture:
        numbers, texts = [], []
        for name in self.names:
            indices, chances = self.guesses(name)
            indices, chances = indices[0, ..., 0].reshape(-1), chances[0, ..., 0].reshape(-1)
            numbers.append(chances.tolist())
            texts.append([self._decode(int(index)) for index in indices])
        columns = token_names(self._tokens if len(numbers[0]) > 1 else None, len(numbers[0]))
        grid = NumberGrid("", numbers[::-1], self.names[::-1], columns, "after", "position", texts[::-1])
        return MapPicture("Logit lens: first guess, coloured by its probability", [grid])


def _repeated(planner: RunPlanner) -> list[ReplayTarget]:
    """The longest row of numbered modules side by side that give tensors of one shape."""
    graph = planner.graph
    rows: dict[tuple[str, tuple[int, ...]], list[ReplayTarget]] = {}
    for path in dict.fromkeys(module.path for module in graph.modules if module.kind == "module"):
        row, number = split_number(path)
        if number is None:
            continue
        try:
            targets = planner.targets(path)
        except UsageError:
            continue
        if len(targets) == 1 and targets[0].values:
            shape = graph.values[targets[0].values[0]].shape
            if len(shape) >= 2:
                rows.setdefault((row.removesuffix("."), shape), []).append(targets[0])
    # of rows inside of others, those of the outer ones
    best = max(rows.items(), key=lambda item: (len(item[1]), -item[0][0].count(".")), default=None)
    if best is None or len(best[1]) < 2:
        raise UsageError('no row of layers is found in this run; name them in order, at="h.*"')
    return best[1]
