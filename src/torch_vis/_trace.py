"""The ``Trace``: a recorded run with everything that can be asked of it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch_vis._reports import (
    EDGES,
    EXPLANATIONS,
    EXPLORE,
    FULL_REPORT,
    HELP,
    PATCH_PATH,
    RECEPTIVE_FIELD,
    REPORTS,
    SELECT,
    SWEEP,
    resolved,
)
from torch_vis.errors import GraphError, UsageError, needs_torch, no_match
from torch_vis.formats import renderer_called, writer
from torch_vis.graph.io.atomic import PathLike
from torch_vis.graph.io.tables_json import check_rows
from torch_vis.graph.metrics import Column
from torch_vis.graph.run import Run, query_of, without_source
from torch_vis.graph.subset import calls_alone
from torch_vis.graph.text import inert, many, shortened
from torch_vis.replay.held_run import HeldRun

if TYPE_CHECKING:
    import networkx
    import pandas
    import torch

    from torch_vis.analysis.attribution.attention import AttentionReport
    from torch_vis.analysis.attribution.edges import EdgeReport
    from torch_vis.analysis.attribution.lens import LogitLensReport
    from torch_vis.analysis.attribution.methods import AttributionReport
    from torch_vis.analysis.control_flow import BranchesReport, LoopsReport
    from torch_vis.analysis.fusion.report import FusionReport
    from torch_vis.analysis.gradients.health import HealthReport
    from torch_vis.analysis.gradients.report import GradientsReport
    from torch_vis.analysis.machine.latency import LatencyReport
    from torch_vis.analysis.machine.roofline import RooflineReport
    from torch_vis.analysis.memory.report import MemoryReport
    from torch_vis.analysis.partition.report import PartitionReport
    from torch_vis.analysis.ranks.communication import CommunicationReport
    from torch_vis.analysis.receptive_field import ReceptiveField
    from torch_vis.analysis.relevance.on_graph import RelevanceReport
    from torch_vis.analysis.summary import SummaryReport
    from torch_vis.analysis.time import TimeReport
    from torch_vis.analysis.workbench import Selection, SweepReport
    from torch_vis.replay.check import CheckResult
    from torch_vis.replay.rerun import Rerun
    from torch_vis.views.terminal.source import ExplorerConfig
    from torch_vis.views.text.breaks import Breaks


class Trace(HeldRun):
    """One recorded run: its graph, its measurements, what was not captured, and what the model returned.

    >>> import torch, torch_vis as tv
    >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
    >>> t.graph
    <Graph: 13 operations, 16 values, 2 scopes>
    >>> t.output.shape, t.limits
    (torch.Size([1, 2]), ())
    """

    @classmethod
    def of(cls, run: Run, *, output: Any = None, error: BaseException | None = None) -> Trace:
        """A trace of a run without its tensors, as a file has it."""
        return cls(run.graph, run.metrics, run.limits, run.meta, output=output, error=error)

    @property
    def is_open(self) -> bool:
        """Whether the run is still being recorded."""
        return False

    # ---------------------------------------------------------------- prove it, run it again

    def check(self, *, inputs: bool = False, shuffles: int = 2, seed: int = 0) -> CheckResult:
        """Prove the graph: run it again and compare every output, gradient and changed state bit for bit.

        Every operation's edges must name the bytes that it reads, all of them and no others. The recording is
        replayed in order, with poison for what the edges do not name, then pruned to the operations that they say lead
        to the results, and in ``shuffles`` random orders that respect only the graph's own dependences. With
        ``inputs=True``, every input is perturbed as well: the outputs it is connected to must be able to change, the
        others must not.
        Raises ``CheckFailed`` with the first operation that differs, its line and its module.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True)
        >>> print(t.check())
        3 results equal bit for bit: 13 operations in order, pruned to 12, 2 random orders; 18 edges proved
        """
        if self.is_open:
            raise UsageError("the block is still recording; check after it has ended")
        kept = self.needs_tensors("check")
        from torch_vis.replay.check import check

        return check(
            self.graph,
            kept,
            inputs=inputs,
            shuffles=shuffles,
            seed=seed,
            approximate=any(limit.kind == "dataflow" for limit in self.limits),
        )

    def run(
        self,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        replace: Mapping[Any, Any] | None = None,
        keep: Any = None,
        to: PathLike | None = None,
        differentiable: bool = False,
    ) -> Rerun:
        """Run the recorded operations again, on new inputs or with something replaced on the way.

        ``args`` and ``kwargs`` are the inputs, as ``trace`` took them; without any, those of the recorded run. They
        have the recorded sizes, unless the trace went via export with sizes left open. ``replace`` names modules (by
        path or pattern), nodes or their numbers, and gives for each a tensor or a function of what it made; only what
        depends on it is computed anew, and gradients pass through a replacement as through an identity.
        ``keep="all"`` keeps what every operation made, ``keep=[...]`` what these modules, operators and nodes made,
        with the gradients that came to the modules; ``to="acts.safetensors"`` writes it to that file as it comes.
        ``differentiable=True`` gives the output and what is kept with a history: what a replacement is made of trains,
        and gradients come to inputs that require them.
        Parameters are as they are now, random operations draw what they drew, and nothing of the model is changed.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
        >>> t.run(replace={"0": lambda y: torch.full_like(y, 5.0)}).output
        tensor([[5., 5.]])
        >>> list(t.run(torch.zeros(1, 3), keep=["0", "relu"]).kept)
        ['0', '1/relu#2']
        """
        given = dict(kwargs or {})
        if differentiable:
            if to is not None:
                raise UsageError(
                    "differentiable=True keeps tensors with a history, which no file has: leave out to="
                )
            from torch_vis.replay.differentiable import run_with_gradients

            return run_with_gradients(self, args, given, replace or {}, keep)
        from torch_vis.replay.rerun import rerun

        return rerun(self, args, given, replace or {}, keep, to)

    def select(self, wanted: Any) -> Selection:
        """What a selector selects in this run: calls of modules and operations, as a table.

        The same text serves in ``run``, ``sweep``, ``graph.find``, ``trace(keep=…)`` and ``tv.live``.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.ones(1, 3))
        >>> str(t.select("0 | 1/relu:0")).splitlines()[0]
        '0 | 1/relu:0: 2 selected'
        """
        selection: Selection = _resolved(SELECT)(self, wanted)
        return selection

    def sweep(
        self,
        wanted: Any,
        edit: Any,
        *args: Any,
        measure: Callable[[Any], Any],
        kwargs: Mapping[str, Any] | None = None,
        positions: Sequence[int] | None = None,
        heads: bool = False,
        dim: int = 1,
    ) -> SweepReport:
        """Make one change at every place that a selector selects, one at a time, and measure the output each time.

        ``edit`` is what ``replace`` of ``run`` takes, ``measure`` a function of the output that gives a number.
        ``positions`` makes the change at each of these positions of dimension ``dim`` by itself, ``heads=True`` at each
        attention head. ``args`` and ``kwargs`` are other inputs than the recorded ones. The result is a table, and
        ``figure()`` a grid of places by positions or heads. Each try runs only what follows its change.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
        >>> t = tv.trace(model, torch.ones(1, 3))
        >>> sweep = t.sweep("class:Linear", tv.edit.zero(), measure=lambda y: y.abs().sum())
        >>> sweep.places, sweep.rows[1].value
        (['0', '1'], 0.0)
        """
        options = {"measure": measure, "kwargs": kwargs, "positions": positions, "heads": heads, "dim": dim}
        report: SweepReport = _resolved(SWEEP)(self, wanted, edit, args=args, **options)
        return report

    def receptive_field(self, wanted: Any, *, input: str | None = None) -> ReceptiveField:
        """Which part of an input a value depends on, as a box that is proved by running with other numbers.

        ``wanted`` is a selector, most often with a slice (``"layer4[0, :, 3, 3]"``, ``"output[0, -1]"``); ``input`` is
        the name of the input, by default the first.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Conv2d(1, 1, 3, dilation=2), torch.randn(1, 1, 9, 9))
        >>> field = t.receptive_field("output[0, 0, 1, 3]")
        >>> field.box, field.sides[3].read, field.proved
        (((0, 1), (0, 1), (1, 6), (3, 8)), (3, 5, 7), True)
        """
        report: ReceptiveField = _resolved(RECEPTIVE_FIELD)(self, wanted, input=input)
        return report

    # ---------------------------------------------------------------- explain it

    def attribute(
        self,
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
    ) -> AttributionReport:
        """What the output is due to, at the inputs or at any place of the run.

        ``method`` is ``"saliency"``, ``"gradient"``, ``"input_x_gradient"``, ``"integrated_gradients"`` (``baseline``,
        ``steps``), ``"smoothgrad"`` (``samples``, ``std``, ``seed``), ``"occlusion"`` (``baseline``, ``window``,
        ``stride``), ``"grad_cam"`` (``relu``) or ``"conductance"`` (``baseline``, ``steps``), each as Captum has it.
        ``target`` is the index in the output that is explained, for each sample (by default its greatest), ``measure``
        a function of the output instead, ``output`` which of several outputs. ``at`` selects modules or operations to
        attribute to instead of the inputs; where these are indices, it is the embedding. ``args`` and ``kwargs`` are
        other inputs than the recorded ones, ``baseline`` is a number or inputs, ``tokens`` names positions.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> report = t.attribute("integrated_gradients", target=1)
        >>> report["input"].shape, abs(report.error) < 1e-6
        (torch.Size([1, 3]), True)
        """
        options = {
            "kwargs": kwargs, "target": target, "measure": measure, "output": output, "at": at, "baseline": baseline,
            "steps": steps, "samples": samples, "std": std, "seed": seed, "window": window, "stride": stride,
            "relu": relu, "tokens": tokens,
        }  # fmt: skip
        report: AttributionReport = self._explained("attribute", method, *args, **options)
        return report

    def attention(
        self,
        at: Any = None,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        tokens: Sequence[str] | None = None,
    ) -> AttentionReport:
        """The attention weights of the run, samples × heads × queries × keys for each module.

        Where the program computed them they are read; where a fused kernel did all at once, they are worked out again
        from its queries, keys and mask. ``at`` selects modules, by default all; ``tokens`` names the positions.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), torch.randn(1, 5, 8))
        >>> report = t.attention()
        >>> {name: tuple(weights.shape) for name, weights in report.weights.items()}
        {'self_attn': (1, 2, 5, 5)}
        """
        report: AttentionReport = self._explained("attention", at, *args, kwargs=kwargs, tokens=tokens)
        return report

    def logit_lens(
        self,
        at: Any = None,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        output: int | str = 0,
        top: int = 5,
        tokens: Sequence[str] | None = None,
        decode: Callable[[int], str] | None = None,
    ) -> LogitLensReport:
        """What the model would say after each layer, if that were the last: the logit lens.

        What a layer gives is put in the place of what the last one gave, and the operations after it (the final
        normalisation, the unembedding) run as recorded. ``at`` selects the layers in order, by default those of the
        longest row of modules that hand on tensors of one shape. ``top`` is how many guesses are kept, ``decode`` makes
        a word of an index, ``tokens`` names the positions of the input.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 50))
        >>> lens = tv.trace(model, torch.randn(1, 4, 8)).logit_lens(at="0 | 1")
        >>> lens.names, lens["1"].shape
        (['0', '1'], torch.Size([1, 4, 50]))
        """
        options = {"kwargs": kwargs, "output": output, "top": top, "tokens": tokens, "decode": decode}
        report: LogitLensReport = self._explained("logit_lens", at, *args, **options)
        return report

    def relevance(
        self,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        target: Any = None,
        mode: str = "default",
        against: Any = None,
        output: int | str = 0,
        relevance: torch.Tensor | None = None,
        at: Any = None,
        tokens: Sequence[str] | None = None,
    ) -> RelevanceReport:
        """Trace relevance from an output back to the inputs: what each operation has part in it, and nothing is lost.

        What no input has part in (dead units, a factor of zero) stays at the bias, and is listed in ``absorbed``.

        The start is 1 at the index ``target`` of the output's last dimension in every row, by default its greatest, or
        ``relevance``, a tensor like the output. In mode ``"contrastive"`` evidence for and against is followed apart;
        ``against`` names an index from which counter-evidence starts. ``output`` is a number or a name where there are
        several. ``at`` selects places whose relevance is kept element by element, as that of the inputs is. ``args``
        and ``kwargs`` are other inputs than the recorded ones.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
        >>> report = tv.trace(model, torch.ones(1, 3)).relevance(target=0, at="1")
        >>> round(report.at_inputs, 5), report["1"].shape, report.error < 1e-6
        (1.0, torch.Size([1, 4]), True)
        """
        options = {
            "kwargs": kwargs, "target": target, "mode": mode, "against": against, "output": output,
            "relevance": relevance, "at": at, "tokens": tokens,
        }  # fmt: skip
        report: RelevanceReport = self._explained("relevance", *args, **options)
        return report

    def attribute_edges(
        self,
        measure: Callable[[Any], Any],
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        between: Any = None,
        top: int = 10,
    ) -> EdgeReport:
        """Rank edges by what patching them from a run on other inputs does to a measure.

        ``args`` and ``kwargs`` are the other inputs, ``measure`` a function of the output that gives a number. Without
        ``between``, an edge is what one operation reads of another; with it, a selector of modules, edges are those
        between the modules, and to the output, through all that lies outside of them. Every edge has an estimate, the
        gradient times the difference of the two runs; the ``top`` edges are patched in fact.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
        >>> report = tv.trace(model, torch.ones(1, 3)).attribute_edges(lambda y: y.sum(), torch.zeros(1, 3))
        >>> sorted(row.edge for row in report.rows)
        ['0/addmm#1 -> 1/addmm#3', 'input -> 0/addmm#1']
        >>> abs(report.rows[0].exact - (report.other_measured - report.measured)) < 1e-6
        True
        """
        options = {"kwargs": kwargs, "between": between, "top": top}
        report: EdgeReport = _resolved(EDGES)(self, measure, *args, **options)
        return report

    def patch_path(
        self,
        path: Sequence[Any],
        edit: Any,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        frozen: Any = None,
    ) -> Rerun:
        """Run with a change that acts through one path alone: path patching.

        ``path`` are places in order, the last perhaps ``"output"``; ``edit`` is made at the first. Each next place is
        given what the change makes of its input, and everything else sees what it saw before, until the last place:
        what follows that one runs on. Between two places the change passes through sums, copies and normalisations
        only; with ``frozen``, a selector, through all that is not selected.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
        >>> t = tv.trace(model, torch.ones(1, 3))
        >>> patched = t.patch_path(["0", "1"], tv.edit.zero())
        >>> torch.equal(patched.output[0], model[1].bias)
        True
        """
        rerun: Rerun = _resolved(PATCH_PATH)(self, path, edit, args, kwargs, frozen)
        return rerun

    def _explained(self, name: str, *args: Any, **options: Any) -> Any:
        if self.meta.get("fake"):
            raise UsageError(
                f"{name}() needs a run with numbers, and this one followed shapes alone (fake=True)"
            )
        return _resolved(EXPLANATIONS[name].target, f"{name}()")(self, *args, **options)

    def release(self) -> None:
        """Let go of the output and of the tensors held for ``check``; the graph and the metrics stay.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.ReLU(), torch.ones(2))
        >>> t.release()
        >>> t.output is None
        True
        """
        self.kept = None
        self._planner = None
        self.output = None

    def subgraph(self, name: str) -> Trace:
        """A graph inside a captured program, by itself: a branch of ``torch.cond``, taken or not, or a loop's body.

        ``t.program.subgraphs`` lists them. It is worked out on shapes, so that it can be shown and saved like any
        other trace; there is nothing in it to check or to run.

        >>> import torch, torch_vis as tv
        >>> def f(x):
        ...     return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.sin().cos(), (x,))
        >>> t = tv.trace(f, torch.ones(2), via="export")
        >>> [(sub.name, sub.ran) for sub in t.program.subgraphs]
        [('cond.true', 1), ('cond.false', 0)]
        >>> [node.name for node in t.subgraph("cond.false").graph.nodes]
        ['sin', 'cos']
        """
        from torch_vis.capture.fake import run_subgraph

        program = self.program
        if program is None and self.meta.get("program"):
            raise UsageError(
                "a file keeps no subgraphs, only what they are called (meta['program']['subgraphs']): trace again"
            )
        if program is None:
            raise UsageError(
                "subgraphs are those of a captured program: trace with via='export' or via='dynamo'"
            )
        known = {subgraph.name: subgraph for subgraph in program.subgraphs if subgraph.inputs}
        if name not in known:
            raise no_match("subgraph", name, known)
        captured = run_subgraph(known[name])
        return Trace.of(captured.run, output=captured.output)

    @property
    def breaks(self) -> Breaks:
        """The graph breaks that Dynamo met: why, where, and what torch advises; ``print`` shows them as a table.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(lambda x: x + 1 if x.sum() > 0 else x, torch.ones(2), via="dynamo")
        >>> [(graph_break.reason, graph_break.id) for graph_break in t.breaks]
        [('Data-dependent branching', 'GB0170')]
        """
        from torch_vis.views.text.breaks import Breaks

        return Breaks(self.meta.get("program"))

    def part(self, path: Any) -> Trace:
        """The calls of one module with all that ran in them, forward and backward, as a trace of its own.

        ``path`` is the module's path, or a selector of several: ``t.part("h.5 | h.6").figure()`` draws these two.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
        >>> t = tv.trace(model, torch.ones(1, 3))
        >>> [node.name for node in t.part("1").graph.nodes], len(t.part("class:Linear").graph)
        (['relu'], 4)
        """
        calls = [scope.index for scope in self.graph.scopes if scope.path == path and scope.kind == "module"]
        return Trace.of(calls_alone(self, calls or query_of(self).calls(path)), error=self.error)

    def with_metrics(self, *added: Any) -> Trace:
        """The same trace with more columns: those of a report (``gradients``, ``roofline``) or columns of your own.

        What is saved from the result, the page and its heat maps included, has them.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64))
        >>> "bound" in t.metrics, "bound" in t.with_metrics(t.roofline(hardware="a100")).metrics
        (False, True)
        """
        metrics = self.metrics
        for item in added:
            columns = item if isinstance(item, Column) else getattr(item, "columns", None)
            columns = columns() if callable(columns) else columns
            if isinstance(columns, Mapping):
                columns = columns.values()
            if isinstance(columns, Column):
                columns = (columns,)
            if columns is None or not all(isinstance(column, Column) for column in columns):
                raise UsageError(
                    f"with_metrics() takes reports that have columns, or columns, not {type(item).__name__}"
                )
            for column in columns:
                try:
                    check_rows(self.graph, column.name, column)
                except GraphError as error:
                    raise UsageError(f"with_metrics() takes columns that fit this run: {error}") from None
                metrics = metrics.with_column(column)
        trace = copy.copy(self)
        trace.metrics = metrics
        return trace

    # ---------------------------------------------------------------- ask it

    def summary(self) -> SummaryReport:
        """What ``print`` shows, as data: totals, the module tree, operators without a cost formula.

        >>> import torch, torch_vis as tv
        >>> s = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.ones(1, 3)).summary()
        >>> [(row.path, row.parameters, row.flops) for row in s.modules]
        [('', 8, 14), ('0', 8, 14)]
        """
        return self._report("summary")

    def loops(self) -> LoopsReport:
        """The loops of the run: what repeats and how often, the turn of every operation, and what turns hand on.

        ``t.with_metrics(t.loops())`` has the columns ``loop`` and ``turn``, also as heat maps of the page.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.RNNCell(3, 2), torch.ones(1, 3))
        >>> t.loops().rows
        []
        """
        return self._report("loops")

    def branches(self) -> BranchesReport:
        """The lines that looked at a number of a tensor: what each saw, and whether it took ``then`` or ``else``.

        Which way it took is None where neither the operations that ran nor the source, which may not be at hand, tell.

        >>> import torch, torch_vis as tv
        >>> report = tv.trace(lambda x: x if x.sum() > 0 else -x, torch.ones(2)).branches()
        >>> [row.saw for row in report.rows]
        [True]
        """
        return self._report("branches")

    def memory(self) -> MemoryReport:
        """Where the memory goes: the timeline by use, the peak and its tensors, checkpointing, what allocators add.

        Of a trace with ``fake=True`` this is the prediction of a run that never was. An optimizer makes its state in
        its first step, so the usual memory of a training is that of two: ``tv.trace(two_steps, fake=True).memory()``.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU())
        >>> report = tv.trace(model, torch.ones(256, 64), backward=True, fake=True).memory()
        >>> [(share.name, share.size_bytes) for share in report.by_use][:2]
        [('saved for backward', 65540), ('temporary', 65540)]
        """
        return self._report("memory")

    def time(self) -> TimeReport:
        """Where time goes: by function, operator, module, call, line and phase; of a repeated run, kernels and waits.

        >>> import torch, torch_vis as tv
        >>> report = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), repeat=2).time()
        >>> report.operations_ns + report.host_ns == report.total_ns
        True
        >>> sorted(row.name for row in report.operators), report.runs
        (['addmm', 't'], 2)
        """
        return self._report("time")

    def gradients(self) -> GradientsReport:
        """How gradients flow: norms layer by layer, what vanishes or explodes, dead units, where NaN was born.

        The run is repeated from the tensors that the trace holds and looked at on the way. ``columns`` of the report
        has the figures (``norm``, ``nans``, ``infs``, ``units``, ``dead_units``, and ``grad_norm`` of each gradient);
        the page that is saved from ``t.with_metrics(report)`` has a heat map of them.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        >>> t = tv.trace(model, torch.ones(2, 3), loss=lambda y: (y - torch.log(y * 0 - 1)).sum())
        >>> t.gradients().nan_origin.name
        'log'
        """
        return self._report("gradients")

    def health(self) -> HealthReport:
        """Whether the numbers are sound: ranges, NaN and infinity with where each was born, dead and saturated units.

        Of runs forward alone as well as of training steps, by operation and by module. The run is repeated from the
        tensors that the trace holds and looked at on the way. ``columns`` of the report has the figures; what is saved
        from ``t.with_metrics(report)`` has heat maps of them, and a file can then be asked again.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(lambda x: (x - 1).log().relu(), torch.tensor([[0.5, 1.0, 2.0]]))
        >>> report = t.health()
        >>> report.nan_origin.name, report.infinity_origin.name, report.nans, report.infs
        ('log', 'log', 2, 1)
        """
        return self._report("health")

    def fusion(self) -> FusionReport:
        """What a compiler could fuse: chains of operations that can run as one kernel, and the bytes each would save.

        Pointwise operations through views, before and after reductions, after matrix products, and side by side on one
        tensor; never across phases, devices or data that Python looks at. ``tv.measure.kernels`` says what
        ``torch.compile`` in fact fuses.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
        >>> report = tv.trace(model, torch.ones(4, 8)).fusion()
        >>> [(chain.names, chain.saved_bytes) for chain in report.chains]
        [(('gelu', 'native_layer_norm'), 256)]
        """
        return self._report("fusion")

    def partition(
        self,
        *,
        by: str = "fusion",
        depth: int | None = None,
        max_operations: int | None = None,
        max_flops: float | None = None,
        max_bytes: float | str | None = None,
    ) -> PartitionReport:
        """Cut the run into parts that can run one after another: what each comes to, and why each cut is where it is.

        ``by="fusion"`` makes a part of every chain that could be fused and of every operation that could not;
        ``by="module"`` of every call of a module at ``depth`` (1 by default). A ``depth`` keeps fused chains inside
        modules as well. With a budget, neighbours are joined until one more would be over it: operations (views are
        free), FLOPs, or the bytes of all tensors that a part touches. One that is over it alone raises ``UsageError``.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> t = tv.trace(model, torch.ones(4, 8))
        >>> [part.modules for part in t.partition(by="module").parts]
        [('0',), ('1',), ('2',)]
        >>> [(part.names, part.reason) for part in t.partition(max_operations=2).parts]
        [(('addmm', 'relu'), 'start of the run'), (('addmm',), 'budget of operations')]
        """
        return self._report(
            "partition",
            by=by,
            depth=depth,
            max_operations=max_operations,
            max_flops=max_flops,
            max_bytes=max_bytes,
        )

    def roofline(self, hardware: Any = None) -> RooflineReport:
        """How near operations come to what the machine can do, and if compute, memory or overhead holds them back.

        ``hardware`` is a name (see ``tv.hardware.known``), a ``Hardware`` or a calibration; without it, this machine as
        ``calibrate`` measured it before. The columns ``bound`` (1 compute, 2 memory, 3 overhead, 0 a view) and
        ``peak_share`` go into a file or page that is saved from ``t.with_metrics(report)``.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64))
        >>> t.with_metrics(t.roofline(hardware="a100")).metrics["bound"][:]
        [0, 3]
        """
        return self._report("roofline", hardware=hardware)

    def latency(self, *, hardware: Any = None, calibration: Any = None) -> LatencyReport:
        """How long this run takes on a machine that may not be here, with a range.

        ``hardware`` is a name (see ``tv.hardware.known``) or a ``Hardware``: a device of which the datasheet is known.
        ``calibration`` is what ``tv.measure.calibrate`` measured, here or elsewhere (``tv.hardware.load``): far closer.
        Without either it is this machine, as it was calibrated before.

        >>> import torch, torch_vis as tv
        >>> print(tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64)).latency(hardware="a100").prediction.machine)
        A100 80GB SXM
        """
        return self._report("latency", hardware=hardware, calibration=calibration)

    def communication(self) -> CommunicationReport:
        """What this rank of a job says to others: calls, bytes, waits by mesh axis, operation, phase, module and line.

        Of real ranks (torchrun) as of one of torch's fake process group, with ``fake=True`` or without.

        >>> import torch, torch.distributed as dist, torch_vis as tv
        >>> from torch.testing._internal.distributed.fake_pg import FakeStore
        >>> dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        >>> report = tv.trace(lambda x: dist.all_reduce(x) or x, torch.ones(100)).communication()
        >>> dist.destroy_process_group()
        >>> [(row.name, row.calls) for row in report.by_operation], report.bytes, report.sent_bytes
        ([('all_reduce on world', 1)], 400, 600)
        """
        return self._report("communication")

    def _report(self, name: str, **options: Any) -> Any:
        if REPORTS[name].needs_numbers and self.meta.get("fake"):
            raise UsageError(
                f"{name}() needs a run with numbers, and this one followed shapes alone (fake=True); "
                "latency(hardware=…) predicts its time, memory() its memory"
            )
        try:
            return _resolved(REPORTS[name].target, f"{name}()")(self, **options)
        except ModuleNotFoundError as error:
            # while it is made
            if error.name != "torch":
                raise
            raise needs_torch(f"{name}()") from error

    def help(self, about: str | None = None) -> tuple[Any, ...]:
        """What can be done, and the call for it: all tasks, or those that have the words of ``about``.

        >>> import torch, torch_vis as tv
        >>> tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).help("slow")
        t is a trace: t = tv.trace(model, x)
        <BLANKLINE>
        why my step is slow
            tv.trace(step, batch, repeat=10).time()
            $ torch-vis report time run.tvz
            docs/guides/slow_step
        """
        result: tuple[Any, ...] = resolved(HELP)(about)
        return result

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write all that can be found out to one file: Markdown to read (``.md``), or data to go on with (``.json``).

        The tables of ``print``, ``memory``, ``time``, ``fusion``, ``partition``, and as far as the trace has the data
        ``roofline``, ``gradients`` and ``latency`` (where this machine was calibrated). What is missing is
        listed with the reason.

        >>> import os, tempfile, torch, torch_vis as tv
        >>> path = os.path.join(tempfile.mkdtemp(), "run.md")
        >>> tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), backward=True).report(path)
        >>> [line for line in open(path).read().splitlines() if line.startswith("## ")][:4]
        ['## Modules', '## Costliest operations', '## Picture', '## Memory']
        """
        resolved(FULL_REPORT)(self, path)

    # ---------------------------------------------------------------- look at it, hand it on

    def save(self, path: PathLike, *, format: Any = None, source: bool = True) -> None:
        """Write the trace; the ending chooses the format, or ``format`` names it. Tensors are not written.

        ``.html`` is a web page: one file, no network. ``.tvz`` and ``.json`` can be loaded again. The others are for
        other tools: ``.onnx`` (Netron), ``.perfetto.json``, ``.explorer.json`` (Model Explorer), ``.graphml``,
        ``.csv``, ``.md``, and pictures: ``.svg``, ``.png``, ``.pdf``, ``.dot``. ``format="package.module:Class"`` is
        your own: the class, made without arguments, needs ``save(path, run)``, where
        ``run`` has ``graph``, ``metrics``, ``limits`` and ``meta``. ``source=False`` leaves out what tells of the
        machine that it ran on, for files that are to be sent: lines of the program, folders, and the machine's facts.

        >>> import os, tempfile, torch, torch_vis as tv
        >>> path = os.path.join(tempfile.mkdtemp(), "run.tvz")
        >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).save(path)
        >>> tv.load(path).graph
        <Graph: 1 operation, 2 values, 2 scopes>
        """
        writer(path, format).save(path, self if source else without_source(self))

    def table(self, *, depth: int | Literal["auto"] | None = "auto", width: int | None = None) -> str:
        """The module tree with shapes, parameters, operations, time and memory, as ``print`` shows it.

        >>> import torch, torch_vis as tv
        >>> print(tv.trace(torch.nn.ReLU(), torch.ones(2)).table().splitlines()[0].split()[0])
        ReLU
        """
        from torch_vis.views.text.module_tree import table

        return table(self, depth=depth, width=width)

    def figure(
        self,
        renderer: str = "plotly",
        *,
        depth: int | Literal["auto"] | None = "auto",
        color: str = "type",
        phase: str | None = None,
        direction: Literal["TB", "LR"] = "TB",
        labels: Mapping[Any, str] | None = None,
        colors: Mapping[Any, str] | None = None,
        hide: Any = (),
        only: Any = (),
        collapse: Any = (),
        highlight: Any = (),
        title: str | None = None,
        legend: bool = True,
        shapes: bool = True,
    ) -> Any:
        """Draw the run as a graph: layered, grouped by module, repeated blocks folded into one (``× 12``).

        ``renderer`` is ``"plotly"``, ``"matplotlib"``, ``"graphviz"`` or ``"svg"``; what comes back is that library's
        figure. ``"package.module:Object"`` names your own, a callable of ``(run, look)``.
        ``depth`` is how many levels of modules are opened (None: down to every operation; by default as many as can be
        read). ``color`` is ``"type"``, ``"time"``, ``"memory"``, ``"flops"``, ``"bytes"``, ``"none"`` or a column of
        ``t.metrics``, your own included, and ``phase`` one of ``"forward"``, ``"backward"``, ``"optimizer"`` to draw
        only that. ``direction="LR"`` draws from left to right.

        What is drawn is chosen by a path (``"encoder.*"``: ``*`` is one part of it, ``**`` any), a class or operator
        (``"Dropout"``, ``"relu"``), a class itself, or a function of path and class; each of these options takes one or
        several. ``only`` draws these alone, ``hide`` leaves them out and joins what they join, ``collapse`` keeps them
        closed, ``highlight`` gives them a strong rim; ``labels`` and ``colors`` are dictionaries from such a choice to
        a name, or to a colour. ``title`` stands above (``""`` for none), ``legend=False`` leaves the key out and
        ``shapes=False`` the shapes.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(), torch.nn.ReLU())
        >>> t = tv.trace(model, torch.ones(2, 2))
        >>> figure = t.figure("svg", color="time")
        >>> str(figure)[:4]
        '<svg'
        >>> text = str(t.figure("svg", direction="LR", hide="Dropout", labels={"0": "projection"}, title=""))
        >>> "projection" in text, "Dropout" in text
        (True, False)
        """
        from torch_vis.views.figure.options import FigureOptions

        look = FigureOptions(
            depth,
            color,
            phase,
            direction,
            labels or {},
            colors or {},
            hide,
            only,
            collapse,
            highlight,
            title,
            legend,
            shapes,
        )
        return renderer_called(renderer, self, look)

    def show(self) -> str:
        """Open the run as a web page: in the notebook that this is called from, or else in the browser.

        The page is one file without a network, written to a temporary folder; its path is returned. ``save`` with the
        ending ``.html`` writes the same page to a place of your own. Where no browser can be started, a warning says
        where the page is.

        >>> import torch, torch_vis as tv
        >>> path = tv.trace(torch.nn.ReLU(), torch.ones(2)).show()  # doctest: +SKIP
        """
        from torch_vis.views.page.show import show

        return show(self)

    def explore(
        self,
        *,
        model: torch.nn.Module | None = None,
        against: Any = None,
        config: ExplorerConfig | None = None,
    ) -> None:
        """Open the run in the terminal explorer, until it is quit.

        With the ``model`` that was traced, modules that did not run are shown too, and their arguments and weights.
        ``against`` is a second trace, model or file to compare with.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3))
        >>> try:
        ...     t.explore()  # here, where there is no terminal
        ... except tv.errors.UsageError as error:
        ...     print(str(error).partition(";")[0])
        the explorer needs a terminal
        """
        subject = self if model is None else model
        resolved(EXPLORE)(subject, trace=self, against=against, config=config)

    def to_networkx(self) -> networkx.MultiDiGraph[Any]:
        """The graph as a networkx ``MultiDiGraph``.

        >>> import torch, torch_vis as tv
        >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).to_networkx().nodes[0]["name"]
        'relu'
        """
        from torch_vis.exporters.operations import to_networkx

        return to_networkx(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per operation, with every metric, as a pandas ``DataFrame``.

        >>> import torch, torch_vis as tv
        >>> tv.trace(torch.nn.ReLU(), torch.ones(2)).to_pandas()["name"].tolist()
        ['relu']
        """
        from torch_vis.exporters.operations import to_pandas

        return to_pandas(self)

    def _repr_html_(self) -> str:
        from torch_vis.views.page.show import notebook_html

        return notebook_html(self)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        name = self.meta.get("model") or "run"
        return f"<Trace of {inert(shortened(str(name)))}: {many(len(self.graph), 'operation')}>"


def _resolved(target: str, what: str = "this") -> Any:
    """What a row of the tables of reports names; where torch is not there, an error says that ``what`` needs it."""
    try:
        return resolved(target)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise needs_torch(what) from error
