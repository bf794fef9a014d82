"""What can be found out from a trace: one method per report, each worked out when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch_vis.errors import UsageError

if TYPE_CHECKING:
    import os

    from torch_vis.analysis.fusion.report import FusionReport
    from torch_vis.analysis.gradients.report import GradientFlow
    from torch_vis.analysis.machine.latency import LatencyReport
    from torch_vis.analysis.machine.roofline import RooflineReport
    from torch_vis.analysis.memory.report import MemoryReport
    from torch_vis.analysis.partition.report import PartitionReport
    from torch_vis.analysis.summary import Summary
    from torch_vis.analysis.time.report import TimeReport
    from torch_vis.api import Trace
    from torch_vis.capture.kept_tensors import KeptTensors
    from torch_vis.graph.graph import Graph
    from torch_vis.graph.metrics import Metrics


class Reading:
    """The reports of a trace."""

    graph: Graph
    metrics: Metrics
    _held: KeptTensors | None

    def summary(self) -> Summary:
        """What ``print`` shows, as data: totals, the module tree, operators without a cost formula.

        >>> import torch, torch_vis as tv
        >>> s = tv.trace(torch.nn.Sequential(torch.nn.Linear(3, 2)), torch.ones(1, 3)).summary()
        >>> [(row.path, row.parameters, row.flops) for row in s.modules]
        [('', 8, 14), ('0', 8, 14)]
        """
        from torch_vis.analysis.summary import Summary

        return Summary(cast("Trace", self))

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
        from torch_vis.analysis.memory.report import MemoryReport

        return MemoryReport(self.graph, self.metrics, cast("Trace", self).meta)

    def time(self) -> TimeReport:
        """Where the time goes: by operator, module, call, source line and phase; of a repeated run, kernels and waits.

        >>> import torch, torch_vis as tv
        >>> report = tv.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), repeat=2).time()
        >>> report.operations_ns + report.host_ns == report.total_ns
        True
        >>> sorted(row.name for row in report.operators), report.runs
        (['addmm', 't'], 2)
        """
        from torch_vis.analysis.time.report import TimeReport

        trace = cast("Trace", self)
        trace._refuse_fake("time")
        return TimeReport(self.graph, self.metrics, trace.meta, trace.limits)

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
        from torch_vis.api import Trace
        from torch_vis.capture.compilers.subgraphs import run_on_shapes
        from torch_vis.errors import UsageError, no_match

        program = cast("Trace", self).program
        if program is None and cast("Trace", self).meta.get("program"):
            raise UsageError(
                "a file keeps no subgraphs, only what they are called (meta['program']['subgraphs']): trace again"
            )
        if program is None:
            raise UsageError(
                "subgraphs are those of a captured program: trace with via='export' or via='dynamo'"
            )
        known = {found.name: found for found in program.subgraphs if found.inputs}
        if name not in known:
            raise no_match("subgraph", name, known)
        graph, metrics, limits, meta, output = run_on_shapes(known[name])
        return Trace(graph, metrics, limits, meta, output=output)

    def gradients(self) -> GradientFlow:
        """How gradients flow: norms layer by layer, what vanishes or explodes, dead units, where NaN was born.

        The run is repeated from the tensors that the trace holds and looked at on the way. The figures stay beside
        the trace as columns (``norm``, ``nans``, ``infs``, ``units``, ``dead_units``, and ``grad_norm`` of each
        gradient), and the page that ``save`` then writes has a heat map of them.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
        >>> t = tv.trace(model, torch.ones(2, 3), loss=lambda y: (y - torch.log(y * 0 - 1)).sum())
        >>> t.gradients().born.name
        'log'
        """
        from torch_vis.analysis.gradients.report import GradientFlow

        self._refuse_fake("gradients")
        found = GradientFlow(self.graph, self._held, cast("Trace", self).meta.get("unused_parameters"))
        for column in found.columns.values():
            self.metrics = self.metrics.with_column(column)
        return found

    def fusion(self) -> FusionReport:
        """What a compiler could fuse: chains of operations that can run as one kernel, and the bytes each would save.

        Pointwise operations through views, before and after reductions, after matrix products, and side by side on one
        tensor; never across phases, devices or data that Python looks at. ``tv.compiled_kernels`` says what
        ``torch.compile`` in fact fuses.

        >>> import torch, torch_vis as tv
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
        >>> found = tv.trace(model, torch.ones(4, 8)).fusion()
        >>> [(chain.names, chain.saved_bytes) for chain in found.chains]
        [(('gelu', 'native_layer_norm'), 256)]
        """
        from torch_vis.analysis.fusion.report import FusionReport

        return FusionReport(self.graph, self.metrics)

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
        from torch_vis.analysis.parse_size import amount_bytes
        from torch_vis.analysis.partition import Budget
        from torch_vis.analysis.partition.report import PartitionReport

        most = None if max_bytes is None else amount_bytes(max_bytes, "max_bytes", hardware=False)
        budget = Budget(max_operations, max_flops, most)
        return PartitionReport(self.graph, self.metrics, by=by, depth=depth, budget=budget)

    def roofline(self, hardware: Any = None) -> RooflineReport:
        """How near operations come to what the machine can do, and if compute, memory or overhead holds them back.

        ``hardware`` is a name (see ``known_hardware``), a ``Hardware`` or a calibration; without it, this machine as
        ``calibrate`` measured it before. The columns ``bound`` (1 compute, 2 memory, 3 overhead, 0 a view) and
        ``peak_share`` stay beside the trace, so that files and the page that are saved afterwards have them.

        >>> import torch, torch_vis as tv
        >>> t = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64))
        >>> found = t.roofline(hardware="a100")
        >>> t.metrics["bound"][:]
        [0, 3]
        """
        self._refuse_fake("roofline")
        from torch_vis.analysis.machine.resolve import machine, profile
        from torch_vis.analysis.machine.roofline import RooflineReport

        chosen = machine(hardware, devices=cast("Trace", self).meta.get("devices", ()))
        found = RooflineReport(self.graph, self.metrics, profile(chosen))
        for column in found.columns():
            self.metrics = self.metrics.with_column(column)
        return found

    def latency(self, *, hardware: Any = None, calibration: Any = None) -> LatencyReport:
        """How long this run takes on a machine that may not be here, with a range: see ``predict_latency``.

        >>> import torch, torch_vis as tv
        >>> print(tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64)).latency(hardware="a100").found.machine)
        A100 80GB SXM
        """
        from torch_vis.analysis.machine.latency import predict_latency

        return predict_latency(cast("Trace", self), hardware=hardware, calibration=calibration)

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
        from torch_vis.analysis.full_report import write_report

        write_report(cast("Trace", self), path)

    def _refuse_fake(self, what: str) -> None:
        if cast("Trace", self).meta.get("fake"):
            raise UsageError(
                f"{what}() needs a run with numbers, and this one followed shapes alone (fake=True); "
                "latency(hardware=…) predicts its time, memory() its memory"
            )
