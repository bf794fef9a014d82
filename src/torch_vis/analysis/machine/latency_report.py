"""Predicted time of a traced run on a machine that may not be here, with the range in which it is expected to lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_vis.analysis.machine.calibration import BUSY, Calibration
from torch_vis.analysis.machine.latency import SETTLE_NS, predict
from torch_vis.analysis.machine.lower_bound import least, summed
from torch_vis.analysis.machine.resolve import machine
from torch_vis.analysis.report import Report
from torch_vis.errors import UsageError
from torch_vis.graph.call import short_name
from torch_vis.graph.record import Run
from torch_vis.graph.schema import Phase
from torch_vis.graph.text import count, duration, many, size
from torch_vis.ops.families import KINDS, kinds, lists_tensors
from torch_vis.views.charts.chart import INK, PALE, Axis, Chart, Series
from torch_vis.views.charts.stages import stages_of
from torch_vis.views.text.table import Field, Listing

if TYPE_CHECKING:
    from torch_vis.analysis.machine.hardware import Hardware

SLOWEST = 200
BARS = 20
POINTS = 1000  # of the timeline


def predict_latency(trace: Run, *, hardware: Any = None, calibration: Any = None) -> LatencyReport:
    """Predict how long a traced run takes, on a device that need not be here.

    ``hardware`` is a name (``"H100 SXM"``, see ``known_hardware``) or a ``Hardware``: a device of which the datasheet
    is known, with a wide range. ``calibration`` is what ``calibrate`` measured on a machine, here or elsewhere
    (``load_calibration``): far closer. Without either it is this machine, as it was calibrated before.

    >>> import torch, torch_vis as tv
    >>> found = tv.predict_latency(tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64)), hardware="A100")
    >>> found.low_ns < found.total_ns < found.high_ns
    True
    """
    return LatencyReport(trace, hardware=hardware, calibration=calibration)


class LatencyReport(Report):
    """A prediction: ``total_ns`` with ``low_ns`` and ``high_ns``, phases, kinds, modules and operations.

    Where the work of some operations is not known (``unknown_operations``: compiled code, operators without a cost
    formula), ``total_ns`` and all other times are lower bounds, and ``high_ns`` is None.

    >>> import torch, torch_vis as tv
    >>> found = tv.trace(torch.nn.Linear(64, 64), torch.ones(8, 64)).latency(hardware="A100")
    >>> [row[0] for row in found.kinds]
    ['matmul', 'view']
    """

    title = "Predicted latency"

    def __init__(self, run: Run, *, hardware: Any = None, calibration: Any = None) -> None:
        graph, metrics = run.graph, run.metrics
        if not len(graph):
            raise UsageError("this trace has no operations, so there is no time to predict")
        self.graph = graph
        self.machine = machine(hardware, calibration, devices=run.meta.get("devices", ()))
        self.found = predict(graph, metrics, self.machine)
        live = metrics.get("live_bytes")
        self.held = None if live is None else int(live.values.max())

    @property
    def total_ns(self) -> float:
        """What is expected; at least this where there are ``unknown_operations``."""
        return self.found.total_ns

    @property
    def low_ns(self) -> float:
        """Less than this is expected one time in twenty."""
        return self.found.low_ns

    @property
    def high_ns(self) -> float | None:
        """More than this is expected one time in twenty; None where the work of some operations is not known."""
        return self.found.high_ns

    @property
    def unknown_operations(self) -> int:
        """How many operations have work that is not known."""
        return int(self.found.missing.sum())

    @property
    def phases(self) -> dict[str, float]:
        """Nanoseconds that pass in each phase."""
        return self.found.phases

    @cached_property
    def kinds(self) -> list[tuple[Any, ...]]:
        """One row per kind of operation: how many, device time, host time, how many of unknown work."""
        return self._rows(kinds(self.graph).astype(np.int64), KINDS)

    @cached_property
    def modules(self) -> list[tuple[Any, ...]]:
        """One row per module for the operations that ran in it, not those of modules inside."""
        graph = self.graph
        names = [module.path or f"({module.type})" for module in graph.modules]
        return self._rows(graph.scope_module[graph.node_scope].astype(np.int64), names)

    @cached_property
    def operations(self) -> list[tuple[Any, ...]]:
        """The operations of the most device time: name, module, phase, device time, host time, number."""
        found, graph = self.found, self.graph
        rows = []
        for node in np.argsort(-found.device_ns, kind="stable")[:SLOWEST].tolist():
            missing = bool(found.missing[node])
            device = None if missing else int(found.device_ns[node])
            op = short_name(graph.calls[int(graph.node_call[node])].op)
            path = graph.scope_paths[int(graph.node_scope[node])]
            phase = Phase(graph.node_phase[node]).name.lower()
            rows.append((op, path, phase, device, summed(found.host_ns[node], missing), node))
        return rows

    def facts(self) -> Mapping[str, str]:
        """The total with its range, the two streams, the phases."""
        found = self.found
        device, host = duration(int(found.device_ns.sum())), duration(int(found.host_ns.sum()))
        how = "side by side" if found.overlaps else "in turns"
        basis = "from its datasheet"
        if isinstance(self.machine, Calibration):
            basis = f"as calibrated, at {duration(int(self.machine.host.unit_ns))} per small operation"
        both = f"{self._least}{device} and {host}, {how}"
        return {
            "machine": f"{found.machine}, {basis}",
            "time": self._time(),
            "device and host": both
            if found.waits_for is None
            else f"{both}; the run waits for the {found.waits_for}",
            "phases": ", ".join(
                f"{name} {self._least}{duration(int(took))}" for name, took in found.phases.items()
            ),
        }

    @property
    def _least(self) -> str:
        return "at least " if self.unknown_operations else ""

    def _time(self) -> str:
        total, low, high = self.total_ns, self.low_ns, self.high_ns
        if high is None:
            missing = f"{self.unknown_operations:,} of {len(self.graph):,} operations"
            return (
                f"at least {duration(int(total))} (low end {duration(int(low))}), no upper end: the time of {missing} "
                "is not known"
            )
        return f"{duration(int(total))}, nine times out of ten between {duration(int(low))} and {duration(int(high))}"

    def listings(self) -> Sequence[Listing]:
        """Kinds, modules, operations."""
        shown = least(duration)
        times = (Field("device_ns", "device", shown), Field("host_ns", "host", shown))
        unknown_work = Field("unknown", "of unknown work", count, rare=True)
        grouped = (Field("operations", "operations", count), *times, unknown_work)
        slow = (
            Field("operation", "operation"),
            Field("module", "module"),
            Field("phase", "phase"),
            *times,
            Field("node", "node", str),
        )
        unknown = (Field("operator", "operator"), Field("calls", "calls", count))
        return (
            Listing(
                "kinds",
                (Field("kind", "kind"), *grouped),
                self.kinds,
                heading="Predicted by kind of operation",
            ),
            Listing(
                "modules",
                (Field("module", "module"), *grouped),
                self.modules,
                heading="Predicted by module, without the modules inside it",
            ),
            Listing(
                "operations",
                slow,
                self.operations,
                heading="The operations of the most predicted device time",
            ),
            Listing("unknown", unknown, self.found.unknown, heading="Operators whose time is not known"),
        )

    def charts(self) -> Mapping[str, Chart]:
        """Kinds of operation by device and host time; both streams over the run."""
        rows = self.kinds[:BARS]
        known = [row for row in rows if row[2] is not None]
        times = [
            Series("device", [row[0] for row in known], [row[2] for row in known]),
            Series("host", [row[0] for row in rows], [row[3] for row in rows]),
        ]
        missing = self.unknown_operations
        left_out = f": at least, without the work of {missing:,} of {len(self.graph):,} operations"
        on = f"redicted on {self.found.machine}{left_out if missing else ''}"
        kinds = f"Device and host time by kind of operation, p{on}"
        return {
            # beside one another: device and host work at the same time, and the two add up to nothing
            "kinds": Chart("dots", kinds, Axis("kind"), Axis("time", "ns"), times),
            "timeline": self._timeline(f"P{on}"),
        }

    def _timeline(self, on: str) -> Chart:
        """The time that passes, as what the device does with it: what reaches the top is what the run waits for."""
        found = self.found
        worked, passed = np.cumsum(found.device_ns), found.end_ns
        idle = np.maximum(passed - worked, 0.0)
        places = np.unique(np.linspace(0, len(passed) - 1, min(len(passed), POINTS)).astype(np.int64))
        x = places.tolist()
        names = [f"{number:,} {self.graph.nodes[number].name}" for number in x]
        busy = worked[-1] / passed[-1] if passed[-1] > 0 else 0.0
        if found.overlaps:
            works, waits = "device at work", "device idle, waiting for the host"
            told = f": the run waits for the {found.waits_for}; device busy {busy:.0%}"
        else:
            works, waits = "kernels", "Python and dispatch, in turns with them"
            told = f": kernels {busy:.0%}, Python and dispatch {1 - busy:.0%}"
        bands = [
            Series(works, x, worked[places].tolist(), names),
            Series(waits, x, idle[places].tolist(), names, color=PALE),
        ]
        host = Series("host at work, added up", x, np.cumsum(found.host_ns)[places].tolist(), color=INK)
        return Chart(
            "areas", on + (told if found.waits_for else ""), Axis("operation, in the order of the run", "count"),
            Axis("time from the start", "ns"), bands, [host] if found.overlaps else [],
            stages=stages_of(self.graph),
        )  # fmt: skip

    def notes(self) -> Sequence[str]:
        """What the prediction rests on and leaves out."""
        notes = []
        unlike, without = int(self.found.unlike.sum()), int(self.found.without.sum())
        missing = self.unknown_operations - unlike - without
        if missing:
            notes.append(
                f"no cost formula says what {many(missing, 'operation')} did (compiled code, an operator of one's "
                "own): the time of that is not known, and sums count each as the smallest operation there is"
            )
        if unlike:
            notes.append(
                f"the calibration timed nothing of the kind of {many(unlike, 'operation')}: the time of that is "
                "not known, and sums count each as what memory and arithmetic allow at best"
            )
        notes += self._of_element_types(without)
        if isinstance(self.machine, Calibration):
            if self.machine.is_disturbed:
                notes.append(f"the machine was busy with something else while it was measured: {BUSY}")
        else:
            notes += self._of_a_datasheet(self.machine)
        if self.found.overlaps:
            notes.append(
                f"the time ends when the host has noticed that the device is done, {duration(int(SETTLE_NS))} after it"
            )
            if self._is_one_by_one():
                notes.append(
                    "the optimizer goes tensor by tensor, as it does on a CPU; on a GPU torch takes them together, "
                    "which a trace with foreach=True predicts"
                )
        if self.found.overlaps and self.found.waits_for == "host":
            notes.append(
                "Python between operations counts as in plain torch modules; libraries may take more"
            )
        return notes

    def _of_element_types(self, without: int) -> Iterator[str]:
        """What was counted as another element type, or has no figure."""
        taken_for = self.found.taken_for
        if without:
            names, there = (
                " and ".join(name for name, other in taken_for.items() if other is None),
                ", ".join(self.machine.peaks),
            )
            yield (
                f"{self.found.machine} has no figure for {names} (it has {there}): the time of "
                f"{many(without, 'operation')} is not known, and counts as at the lowest of its peaks; trace a run in "
                "a type that it has"
            )
        for name, other in taken_for.items():
            if other is None:
                continue
            if isinstance(self.machine, Calibration):
                how = (
                    "a single product"
                    if other == name
                    else f"nothing, and it counts as {other}, the slowest type that was timed"
                )
                yield f"in {name} the calibration timed {how}: the range is wider for that"
            else:
                yield f"{self.found.machine} has no figure for {name}: it counts as {other}"

    def _is_one_by_one(self) -> bool:
        """Whether a run on a CPU has an optimizer that would run in another form on a GPU."""
        graph = self.graph
        stepping = graph.node_phase == Phase.OPTIMIZER
        on_gpu = any(device.startswith("cuda") for device in graph.devices)
        if on_gpu or not stepping.any():
            return False
        return not any(
            lists_tensors(graph.calls[call]) for call in np.unique(graph.node_call[stepping]).tolist()
        )

    def _of_a_datasheet(self, hardware: Hardware) -> Iterator[str]:
        """What a device's datasheet says against the prediction, or does not say."""
        if hardware.class_ == "accelerator":
            yield "what its host takes, and what share of its peak is reached, are those of a usual GPU"
        if self.held is not None and self.held > hardware.memory_bytes:
            yield (
                f"this run holds {size(self.held)} at its peak and {hardware.name} has {size(hardware.memory_bytes)}: "
                "it does not fit"
            )

    def to_plain(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        names = ("total_ns", "low_ns", "high_ns", "unknown_operations", "phases")
        totals = {name: getattr(self, name) for name in names}
        return {**totals, **super().to_plain()}

    def _rows(self, key: np.ndarray[Any, Any], names: Sequence[str]) -> list[tuple[Any, ...]]:
        found, size = self.found, len(names)
        number = np.bincount(key, minlength=size)
        device = np.bincount(key, weights=found.device_ns, minlength=size)
        host = np.bincount(key, weights=found.host_ns, minlength=size)
        unknown = np.bincount(key[found.missing], minlength=size).tolist()
        some = np.bincount(key[(found.device_ns > 0) & ~found.missing], minlength=size) > 0
        order = [place for place in np.lexsort((-host, -device)).tolist() if number[place]]
        return [
            (
                names[place],
                int(number[place]),
                summed(device[place] if some[place] or not unknown[place] else None, unknown[place]),
                summed(host[place], unknown[place]),
                unknown[place],
            )
            for place in order
        ]
