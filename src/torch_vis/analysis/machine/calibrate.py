"""Measuring this machine once, for rooflines and predictions: run probes and programs, trace them, fit, keep it."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from torch_vis.analysis.machine.calibration import Calibration, load_calibration
from torch_vis.errors import FileError, UsageError, no_match
from torch_vis.graph.io.atomic import PathLike

if TYPE_CHECKING:
    from torch_vis._trace import Trace
    from torch_vis.analysis.machine.features import Workload
    from torch_vis.analysis.machine.host_model import HostCosts
    from torch_vis.analysis.machine.kernel_model import Samples
    from torch_vis.analysis.machine.probes.clocks import Burst, Timed
    from torch_vis.analysis.machine.probes.sizes import Probe
    from torch_vis.graph.graph import Graph

SECONDS = 55.0  # that it takes at most, next to loading torch
PROGRAM_SHARE = 0.28  # for the host, of what is left when the libraries of kernels are loaded
MARK = 7  # tensors of no memory, 7 by a number, tell probes apart in one recording
DTYPES = ("float32", "bfloat16")  # that operations are timed in
OTHER_DTYPES = ("float64", "float16")  # of which the peak is measured
TIMES_NOISE = 2.5  # what disturbs one run of a program for longer than that is in all of its runs
ROUNDS = 12  # of all programs, after the first
LEAST = 250  # operations that are timed, however little time there is


def calibrate(
    *, device: str | None = None, again: bool = False, seconds: float = SECONDS, path: PathLike | None = None
) -> Calibration:
    """Measure this machine, in under a minute, and keep the result for the next time.

    Times single operations over the sizes that models have, copies from small to large, and small programs whose
    time is the host's. ``device`` is ``"cuda"`` where there is one, or else ``"cpu"``. What was measured before with
    the same device, torch, threads and precision settings is taken as it is; ``again=True`` measures anew. The file is
    in the user's cache folder, or at ``path``. Nothing is written if it is interrupted. On a GPU, do it in a process of
    its own (``python -c "import torch_vis; torch_vis.calibrate()"``): torch's profiler, once used, slows every launch
    that comes after it. What is measured is meant to be a quiet machine, one that has been up for a few minutes: of
    programs the times that something else disturbed are left out, and where everything was disturbed the printed
    calibration says so.

    >>> import torch_vis as tv
    >>> machine = tv.calibrate()  # doctest: +SKIP
    >>> print(machine)  # doctest: +SKIP
    NVIDIA H200: float32 51.7 TFLOP/s, …
    """
    chosen = _device(device)
    if not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise UsageError(f"seconds must be a number above 0, not {seconds!r}")
    key = circumstances(chosen)
    target = Path(path) if path is not None else cache_path(key)
    if not again:
        found = _kept(target, key)
        if found is not None:
            return found
    made = _measure(chosen, key, seconds)
    target.parent.mkdir(parents=True, exist_ok=True)
    made.save(target)
    return made


def cached(device: str | None = None) -> Calibration | None:
    """The calibration that is kept for this machine, or None; nothing is run."""
    key = circumstances(_device(device))
    return _kept(cache_path(key), key)


def cache_path(key: dict[str, Any]) -> Path:
    """Where the calibration for some circumstances is kept: in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(repr(sorted(key.items())).encode()).hexdigest()[:16]
    return Path(base) / "torch_vis" / f"calibration-{name}.json"


def circumstances(device: str) -> dict[str, Any]:
    """What a calibration holds for: the device, the host, versions, threads, precision settings."""
    import torch

    key: dict[str, Any] = {
        "device": device_name(device),
        "host": processor_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    if device.startswith("cuda"):
        key["matmul_precision"] = torch.get_float32_matmul_precision()
        key["cudnn_tf32"] = bool(torch.backends.cudnn.allow_tf32)
        key["cudnn_benchmark"] = bool(torch.backends.cudnn.benchmark)
    return key


def device_name(device: str) -> str:
    """The name of a device as its driver gives it."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else processor_name()


def processor_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _device(device: str | None) -> str:
    import torch

    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise no_match("device to calibrate", str(device), ["cpu", "cuda"])
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "there is no CUDA device here; calibrate on a machine that has one and load its file"
        )
    return str(device)


def _kept(path: Path, key: dict[str, Any]) -> Calibration | None:
    """The calibration in a file if it is there, whole, and of the same circumstances."""
    if not path.exists():
        return None
    try:
        found = load_calibration(path)
    except FileError:
        return None  # damaged or of another version: measured anew
    return found if found.circumstances == key else None


# ---------------------------------------------------------------- measuring


class Program(NamedTuple):
    """A program that was timed and traced; ``noise`` is how much the logarithm of its time varied from run to run."""

    graph: Graph
    work: Workload
    time_ns: float
    weight: float
    noise: float


def _measure(device: str, key: dict[str, Any], seconds: float) -> Calibration:
    import torch

    from torch_vis.analysis.machine.probes.clocks import gap_ns
    from torch_vis.analysis.machine.probes.peaks import copies, memory_bytes, peaks
    from torch_vis.progress import time_progress

    state = torch.random.get_rng_state()
    on_device = torch.cuda.get_rng_state(device) if device.startswith("cuda") else None
    try:
        with torch.enable_grad(), time_progress(seconds, "calibrating") as look:
            torch.manual_seed(0)
            end = time.perf_counter() + 0.97 * seconds
            _load(device, look)
            now = time.perf_counter()
            programs, unit = _programs(device, now + PROGRAM_SHARE * (end - now), look)
            roofs, rates = peaks(device, DTYPES, OTHER_DTYPES), copies(device)
            samples = _samples(device, roofs, end, unit, look)
            if not device.startswith(
                "cuda"
            ):  # once more at another time: what else runs here takes from both
                again = peaks(device, DTYPES, OTHER_DTYPES)
                roofs = {dtype: max(peak, again.get(dtype, 0.0)) for dtype, peak in roofs.items()}
                rates = [(size, max(rate, old)) for (size, rate), (_, old) in zip(copies(device), rates)]
            floor = unit
            if device.startswith("cuda") and len(samples.op):
                floor = float(np.percentile(samples.time_ns[samples.kernels <= 1], 2))
            gap = gap_ns(device, floor)
    finally:
        torch.random.set_rng_state(state)
        if on_device is not None:
            torch.cuda.set_rng_state(on_device, device)
    class_ = "gpu" if device.startswith("cuda") else "cpu"
    from torch_vis.analysis.machine.host_model import HostCosts

    made = Calibration(
        key["device"],
        class_,
        key,
        roofs,
        rates,
        memory_bytes(device),
        floor,
        gap,
        samples,
        HostCosts(unit, {}, 0.5),
    )
    return _with_host(made, programs, unit)


def _load(device: str, look: Callable[[], None]) -> None:
    """Run one program of each sort, so that libraries are loaded: from a cold disk that takes longer than all else."""
    from torch_vis.analysis.machine.probes.programs import all_programs, runs

    wanted = {"deep words", "deep residual", "deep encoder"}
    for number, program in enumerate(all_programs(DTYPES, deep=device.startswith("cuda"))):
        if program.name in wanted:
            for dtype in program.dtypes:
                for run in runs(program, number, device, dtype).values():
                    run()
                    look()


def _programs(device: str, until: float, look: Callable[[], None]) -> tuple[list[Program], float]:
    """Every program with its median time while the host ran at its usual pace, and that pace: a small operation's time.

    On a GPU, where that time is the host's, it is what it would be at just that pace: on a machine that is shared it
    changes. Rounds are spread out, since others come and go. Whatever time there is,
    each program that is begun is timed and traced.
    """
    from torch_vis.analysis.machine.features import workload
    from torch_vis.analysis.machine.probes.clocks import USUAL, burst, undisturbed
    from torch_vis.analysis.machine.probes.programs import all_programs, runs
    from torch_vis.api import trace

    begun = time.perf_counter()
    ready: list[tuple[Any, float, list[Burst]]] = []
    on_gpu = device.startswith("cuda")
    for number, program in enumerate(all_programs(DTYPES, deep=on_gpu)):
        look()
        for dtype in program.dtypes:
            for run in runs(program, number, device, dtype).values():
                run()
                ready.append((run, program.weight, [burst(run, device, 2)]))
        if time.perf_counter() - begun > 0.65 * (until - begun):
            break
    tracing = 3e-9 * sum(min(bursts[0].times) for *_, bursts in ready)
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for run, _, bursts in ready:
            bursts.append(burst(run, device, 2))
        look()
        if time.perf_counter() + 1.3 * (time.perf_counter() - started) + tracing > until:
            break
    all_bursts = [one for *_, bursts in ready for one in bursts]
    best = min(one.pace_ns for one in all_bursts)
    unit = float(np.median([one.pace_ns for one in all_bursts if one.pace_ns <= USUAL * best]))
    found = []
    for run, weight, bursts in ready:
        look()
        traced = trace(run, keep=False)
        work = workload(traced.graph, traced.metrics)
        times = [(one.pace_ns, time_ns) for one in undisturbed(bursts, best) for time_ns in one.times]
        took = float(np.median([time_ns * unit / pace if on_gpu else time_ns for pace, time_ns in times]))
        noise = float(np.std(np.log([time_ns for one in bursts for time_ns in one.times])))
        found.append(Program(traced.graph, work, took, weight, noise))
    return found, unit


def _with_host(made: Calibration, programs: Sequence[Program], unit: float) -> Calibration:
    """The calibration with the host's costs: what the programs took beyond what their kernels did."""
    from dataclasses import replace

    from torch_vis.analysis.machine.host_model import Equation, counts, fit

    equations = []
    for graph, work, took, weight, _ in programs:
        estimate = made.kernels(work)
        device_ns = float(made.device_ns(estimate)[work.group].sum())
        host_ns = took if made.class_ == "gpu" else took - device_ns
        whole = float(np.nan_to_num(estimate.host_ns)[work.group].sum())
        if whole > 0.2 * took:
            continue  # known already, and what is left would be the difference of two large numbers
        host_ns -= whole
        if (made.class_ == "gpu" and device_ns > 0.7 * took) or host_ns < 0.2 * took:
            continue  # the device was what it waited for
        equations.append(Equation(counts(graph, work, estimate), host_ns, weight))
    noise = float(np.median([program.noise for program in programs])) if programs else made.noise
    if made.class_ == "gpu":
        costs: HostCosts = fit(equations, unit, noise=max(0.1, TIMES_NOISE * noise), on_gpu=True)
    else:
        costs = fit(equations, unit)
    return replace(made, host=costs, noise=noise)


def _samples(
    device: str, roofs: dict[str, float], until: float, unit: float, look: Callable[[], None]
) -> Samples:
    """Single operations, timed until the time is up and recorded in one go for what they are."""
    from torch_vis.analysis.machine.probes.operations import all_probes
    from torch_vis.analysis.machine.probes.sizes import Bench

    on_gpu = device.startswith("cuda")
    longest = 4e-3 if on_gpu else 5e-3  # seconds that one operation may take at the peak
    flops = {dtype: roof * longest for dtype, roof in roofs.items()}
    bench = Bench(device, flops, 1e8 if on_gpu else 4e6)
    probes = all_probes(bench, DTYPES)
    return _on_gpu(probes, device, until, unit, look) if on_gpu else _on_cpu(probes, until, look)


def _on_gpu(
    probes: Sequence[Probe], device: str, until: float, unit: float, look: Callable[[], None]
) -> Samples:
    """As many as there is time for; each is recorded in one of the runs that the profiler times."""
    from torch_vis.analysis.machine.probes.clocks import PART, host_times, kernel_times
    from torch_vis.api import record

    host = host_times([probe.make if probe.many else None for probe in probes], device)
    parts = [range(start, min(start + PART, len(probes))) for start in range(0, len(probes), PART)]
    results: list[Timed | None] = []
    with record(keep=False) as trace:
        for part in parts:
            look()
            begun = time.perf_counter()
            results += kernel_times([(number, probes[number].make) for number in part], device, _mark)
            if time.perf_counter() + 1.3 * (time.perf_counter() - begun) > until:
                break
    return _sampled(trace, results, [None if took is None else took * unit for took in host])


def _on_cpu(probes: Sequence[Probe], until: float, look: Callable[[], None]) -> Samples:
    """As many as there is time for; they are run once more to be recorded, since recording takes the host's time."""
    from torch_vis.analysis.machine.probes.clocks import cpu_times
    from torch_vis.api import record

    begun, recording = time.perf_counter(), 1.7
    results: list[Timed | None] = []
    times = cpu_times(probe.make for probe in probes)
    for _ in probes:
        look()
        results.append(next(times))
        if len(results) > LEAST and begun + (time.perf_counter() - begun) * recording > until:
            break
    with record(keep=False) as trace:
        for number, result in enumerate(results):
            if result is not None:
                work = probes[number].make()
                _mark(2 * number)
                work()
                _mark(2 * number + 1)
                del work
    return _sampled(trace, results, [None] * len(results))


def _sampled(trace: Trace, results: Sequence[Timed | None], host: Sequence[float | None]) -> Samples:
    """The samples: what each probe's operation is, as a trace sees it, and how long it took."""
    from torch_vis.analysis.machine.features import workload
    from torch_vis.analysis.machine.kernel_model import Samples

    work_done = workload(trace.graph, trace.metrics)
    found = [
        (row, place) for row, place in zip(*_marked(trace.graph, work_done)) if results[place] is not None
    ]
    rows = [row for row, _ in found]
    times = [result for _, place in found if (result := results[place]) is not None]
    return Samples(
        [work_done.op[row] for row in rows],
        work_done.kind[rows],
        work_done.dtype[rows],
        work_done.flops[rows],
        work_done.moved[rows],
        work_done.sizes[rows],
        np.array([result.time_ns for result in times], dtype=np.float64),
        np.array([result.kernels for result in times], dtype=np.float64),
        np.array([host[place] for _, place in found], dtype=np.float64),
    )


def _mark(number: int) -> None:
    import torch

    torch.empty((MARK, number + 1), device="meta")


def _marked(graph: Graph, work: Workload) -> tuple[list[int], list[int]]:
    """For each probe the class of its operation, the last one between its marks that runs a kernel, and its number.

    Before it there may be copies and fills, no more: a layer that this device runs in many operations says nothing of
    the last of them.
    """
    from torch_vis.analysis.machine.kernel_model import COPY, VIEW

    rows, places = [], []
    current, last, single = -1, -1, True
    for node, call in enumerate(graph.node_call.tolist()):
        template = graph.calls[call]
        sizes = template.args[0] if template.op.startswith("aten::empty") and template.args else ()
        if type(sizes) is tuple and len(sizes) == 2 and sizes[0] == MARK:
            number = int(sizes[1]) - 1
            if number % 2 == 0:
                current, last, single = number // 2, -1, True
            elif current == number // 2 and last >= 0 and single:
                rows.append(last)
                places.append(current)
            continue
        row = int(work.group[node])
        if work.kind[row] != VIEW:
            single &= last < 0 or work.kind[last] == COPY
            last = row
    return rows, places
