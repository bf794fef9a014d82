"""Measure this machine once, for rooflines and predictions: time probes and programs, fit models, keep the result."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from torch_vis._trace import Trace
from torch_vis.analysis.machine.calibration import (
    Calibration,
    RankLinks,
    cache_path,
    circumstances,
    device_to_calibrate,
    kept_calibration,
    starter,
    undisturbed,
)
from torch_vis.analysis.machine.features import Workload, workload
from torch_vis.analysis.machine.host_model import Equation, HostCosts, counts, fit
from torch_vis.analysis.machine.kernel_model import COPY, VIEW, Samples
from torch_vis.analysis.machine.latency import predict
from torch_vis.analysis.machine.probes import Probe, ProbeSampler, clocks
from torch_vis.analysis.machine.probes.clocks import Burst, KernelTime, copies, memory_bytes, peaks
from torch_vis.analysis.machine.probes.operations import all_probes
from torch_vis.analysis.machine.probes.programs import all_programs, runs
from torch_vis.api import record, trace
from torch_vis.capture.modes import kept_after_interrupt, with_gradients
from torch_vis.capture.state import RngStates
from torch_vis.errors import UsageError
from torch_vis.graph import Graph
from torch_vis.graph.io.atomic import PathLike
from torch_vis.ops.collectives import collective
from torch_vis.progress import time_progress

# How long a calibration takes at most, next to loading torch.
SECONDS = 55.0
# For the host's programs, of the time that is left when the libraries of kernels are loaded.
PROGRAM_SHARE = 0.28
# Tensors on the meta device of shape (7, number) tell probes apart in one recording.
MARK = 7
# Element types that operations are timed in, and those of which only the peak is measured.
DTYPES = ("float32", "bfloat16")
OTHER_DTYPES = ("float64", "float16")
# What disturbs a program for longer than one run is in all of its runs: the noise between runs counts this often.
TIMES_NOISE = 2.5
# How often all programs are timed, after the first time.
ROUNDS = 12
# How many operations are timed on a CPU at least, however little time there is.
LEAST_PROBES = 250
# The product that sweeps the caches, how often a step with such products is timed, and how many times longer it may be.
SWEEP_ROWS, SWEEP_WIDTH, SWEEP_ROUNDS, MOST_SWEPT = 16, 512, 20, 5.0
WARM_UP = frozenset({"deep words", "deep residual", "deep encoder"})


def calibrate(
    *, device: str | None = None, again: bool = False, seconds: float = SECONDS, path: PathLike | None = None
) -> Calibration:
    """Measure this machine, in under a minute, and keep the result for the next time.

    Times single operations over the sizes that models have, copies from small to large, and small programs whose
    time is the host's. ``device`` is ``"cuda"`` where there is one, or else ``"cpu"``. What was measured before with
    the same device, torch, threads and precision settings is taken as it is; ``again=True`` measures anew. The file is
    in the user's cache folder, or at ``path``. Nothing is written if it is interrupted. On a GPU, do it in a process of
    its own (``python -c "import torch_vis as tv; tv.measure.calibrate()"``): torch's profiler, once used, slows every
    launch that comes after it. What is measured is meant to be a quiet machine, one that has been up for a few minutes:
    of programs the times that something else disturbed are left out, and where everything was disturbed the printed
    calibration says so.

    Under ``torchrun``, after ``init_process_group``, every rank calls it: all measure at the same time, as they will
    compute side by side, and then how long collectives and messages among them take, how much of that computing hides,
    and what Python takes around them. ``tv.simulate(…, hardware=tv.hardware.load(path))`` then needs no ``links``.

    >>> import torch_vis as tv
    >>> machine = tv.measure.calibrate()  # doctest: +SKIP
    >>> print(machine)  # doctest: +SKIP
    NVIDIA H200: float32 51.7 TFLOP/s, …
    """
    chosen = device_to_calibrate(device)
    if not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise UsageError(f"seconds must be a number above 0, not {seconds!r}")
    ranks = job_size()
    key = circumstances(chosen) | ({"ranks": ranks} if ranks > 1 else {})
    target = Path(path) if path is not None else cache_path(key)
    kept = None if again else kept_calibration(target, key)
    if ranks > 1:
        return _measure_ranks(chosen, key, seconds, target, kept)
    if kept is not None:
        return kept
    calibration = _measure(chosen, key, seconds)
    target.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(target)
    return calibration


def _measure_ranks(
    device: str, key: dict[str, Any], seconds: float, target: Path, kept: Calibration | None
) -> Calibration:
    """Every rank measures at the same time, as they will compute, and then all of them how they talk to each other."""
    dist = torch.distributed
    has_kept: list[Any] = [None] * key["ranks"]
    dist.all_gather_object(has_kept, kept is not None)
    if kept is not None and all(has_kept):
        return kept
    calibration = _measure(device, key, seconds)
    with RngStates(), with_gradients():
        calibration = replace(calibration, links=measure_links(device, calibration))
    # the file is one, and so is what later steps are predicted by
    if int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0:
        target.parent.mkdir(parents=True, exist_ok=True)
        calibration.save(target)
    dist.barrier()
    return calibration


class TimedProgram(NamedTuple):
    """A program that was timed and traced; ``noise`` is how much the logarithm of its time varied from run to run."""

    graph: Graph
    work: Workload
    time_ns: float
    weight: float
    noise: float


def _measure(device: str, key: dict[str, Any], seconds: float) -> Calibration:
    on_gpu = device.startswith("cuda")
    with (
        kept_after_interrupt(),
        RngStates(),
        with_gradients(),
        time_progress(seconds, "calibrating") as tick,
    ):
        torch.manual_seed(0)
        end = time.perf_counter() + 0.97 * seconds
        _load(device, tick)
        now = time.perf_counter()
        programs, unit = _programs(device, now + PROGRAM_SHARE * (end - now), tick)
        roofs, rates = peaks(device, DTYPES, OTHER_DTYPES), copies(device)
        samples = _samples(device, roofs, end, unit, tick)
        floor = unit
        if not on_gpu:
            # The better of two times counts: what else runs on the host slows them down differently.
            second = peaks(device, DTYPES, OTHER_DTYPES)
            roofs = {dtype: max(peak, second.get(dtype, 0.0)) for dtype, peak in roofs.items()}
            rates = [(size, max(rate, old)) for (size, rate), (_, old) in zip(copies(device), rates)]
        elif len(samples.op):
            floor = float(np.percentile(samples.time_ns[samples.kernels <= 1], 2))
        gap = clocks.gap_ns(device, floor)
        swept = 1.0 if on_gpu else _swept_host()
    calibration = Calibration(
        device=key["device"],
        class_="gpu" if on_gpu else "cpu",
        circumstances=key,
        peaks=roofs,
        copies=rates,
        memory_bytes=memory_bytes(device),
        floor_ns=floor,
        gap_ns=gap,
        samples=samples,
        host=HostCosts(unit, {}, 0.5),
    )
    calibration = _with_host(calibration, programs, unit)
    return replace(calibration, host=calibration.host._replace(swept=swept))


# ---------------------------------------------------------------- the host, by programs


def _load(device: str, tick: Callable[[], None]) -> None:
    """Run one program of each sort, so that libraries are loaded: from a cold disk that takes longer than all else."""
    for number, program in enumerate(all_programs(DTYPES, deep=device.startswith("cuda"))):
        if program.name in WARM_UP:
            for dtype in program.dtypes:
                for run in runs(program, number, device, dtype).values():
                    run()
                    tick()


def _programs(device: str, until: float, tick: Callable[[], None]) -> tuple[list[TimedProgram], float]:
    """Every program with its median time while the host ran at its usual pace, and that pace: a small operation's time.

    On a GPU, where a program's time is the host's, it is scaled to just that pace, which changes on a machine that is
    shared. Rounds are spread out, since other work comes and goes. Each program that is begun is timed and traced,
    however little time there is.
    """
    start = time.perf_counter()
    ready: list[tuple[Any, float, list[Burst]]] = []
    on_gpu = device.startswith("cuda")
    for number, program in enumerate(all_programs(DTYPES, deep=on_gpu)):
        tick()
        for dtype in program.dtypes:
            for run in runs(program, number, device, dtype).values():
                run()
                ready.append((run, program.weight, [clocks.burst(run, device, 2)]))
        if time.perf_counter() - start > 0.65 * (until - start):
            break
    tracing = 3e-9 * sum(min(bursts[0].times) for *_, bursts in ready)
    for _ in range(ROUNDS):
        round_start = time.perf_counter()
        for run, _, bursts in ready:
            bursts.append(clocks.burst(run, device, 2))
        tick()
        if time.perf_counter() + 1.3 * (time.perf_counter() - round_start) + tracing > until:
            break
    paces = [burst.pace_ns for *_, bursts in ready for burst in bursts]
    best = min(paces)
    unit = float(np.median([pace for pace in paces if pace <= clocks.USUAL * best]))
    programs = []
    for run, weight, bursts in ready:
        tick()
        traced = trace(run, hold=False)
        work = workload(traced.graph, traced.metrics)
        times = [
            (burst.pace_ns, time_ns) for burst in clocks.undisturbed(bursts, best) for time_ns in burst.times
        ]
        median = float(np.median([time_ns * unit / pace if on_gpu else time_ns for pace, time_ns in times]))
        noise = float(np.std(np.log([time_ns for burst in bursts for time_ns in burst.times])))
        programs.append(TimedProgram(traced.graph, work, median, weight, noise))
    return programs, unit


def _with_host(calibration: Calibration, programs: Sequence[TimedProgram], unit: float) -> Calibration:
    """The calibration with the host's costs: what the programs took beyond what their kernels did."""
    on_gpu = calibration.class_ == "gpu"
    equations = []
    for graph, work, time_ns, weight, _ in programs:
        estimate = calibration.kernels(work)
        device_ns = float(calibration.device_ns(estimate)[work.group].sum())
        host_ns = time_ns if on_gpu else time_ns - device_ns
        whole = float(np.nan_to_num(estimate.host_ns)[work.group].sum())
        if whole > 0.2 * time_ns:
            # It is known already, and what is left would be the difference of two large numbers.
            continue
        host_ns -= whole
        if (on_gpu and device_ns > 0.7 * time_ns) or host_ns < 0.2 * time_ns:
            # The run waited for the device.
            continue
        equations.append(Equation(counts(graph, work, estimate), host_ns, weight))
    noise = float(np.median([program.noise for program in programs])) if programs else calibration.noise
    if on_gpu:
        costs = fit(equations, unit, noise=max(0.1, TIMES_NOISE * noise), on_gpu=True)
    else:
        costs = fit(equations, unit)
    return replace(calibration, host=costs, noise=noise)


class Sweep(nn.Module):
    """Products as a layer computes them, beside what it hands on: on a CPU they sweep the caches of what runs there."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on = True
        self.sides = torch.ones(SWEEP_ROWS, SWEEP_WIDTH), torch.ones(SWEEP_WIDTH, SWEEP_WIDTH)

    def compute(self, times: int) -> None:
        """As often as a layer does: once forward, twice backward."""
        if self.is_on:
            for _ in range(times):
                torch.mm(*self.sides)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hand on."""
        return cast("torch.Tensor", _Swept.apply(x, self))


class _Swept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sweep: Sweep) -> torch.Tensor:
        ctx.sweep = sweep
        sweep.compute(1)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.sweep.compute(2)
        return grad.view_as(grad), None


class SweptStep(NamedTuple):
    """A training step of a small model, and what sweeps the caches in it."""

    run: Callable[[], None]
    update: Callable[[], None]
    sweeps: list[Sweep]
    batches: int = 1

    def switch(self, is_on: bool) -> None:
        """Whether the step sweeps the caches."""
        for sweep in self.sweeps:
            sweep.is_on = is_on

    def sweep(self) -> None:
        """All that sweeps in one step, alone."""
        for sweep in self.sweeps:
            sweep.compute(3 * self.batches)


def _swept_host() -> float:
    """How many times longer a CPU takes to issue operations where layers of usual size are computed between them."""
    step = _swept_step(_blocks("cpu"), "cpu")
    rows = []
    for number in range(SWEEP_ROUNDS + 2):
        step.switch(False)
        row = [clocks.wall(step.run, "cpu", 1)[0]]
        step.switch(True)
        row += [clocks.wall(run, "cpu", 1)[0] for run in (step.run, step.sweep)]
        if number > 1:
            rows.append(row)
    alone, swept, sweeps = undisturbed(rows).tolist()
    return float(np.clip((swept - sweeps) / max(alone, 1.0), 1.0, MOST_SWEPT))


# ---------------------------------------------------------------- kernels, by probes


def _samples(
    device: str, roofs: dict[str, float], until: float, unit: float, tick: Callable[[], None]
) -> Samples:
    """Single operations, timed until the time is up and recorded in one go for what they are."""
    on_gpu = device.startswith("cuda")
    # seconds that one operation may take at the peak
    longest = 4e-3 if on_gpu else 5e-3
    flops = {dtype: roof * longest for dtype, roof in roofs.items()}
    probes = all_probes(ProbeSampler(device, flops, 1e8 if on_gpu else 4e6), DTYPES)
    return _on_gpu(probes, device, until, unit, tick) if on_gpu else _on_cpu(probes, until, tick)


def _on_gpu(
    probes: Sequence[Probe], device: str, until: float, unit: float, tick: Callable[[], None]
) -> Samples:
    """As many as there is time for; each is recorded in one of the runs that the profiler times."""
    host = clocks.host_times([probe.make if probe.many else None for probe in probes], device)
    results: list[KernelTime | None] = []
    with record(hold=False) as recorded:
        for first in range(0, len(probes), clocks.PART):
            tick()
            start = time.perf_counter()
            part = range(first, min(first + clocks.PART, len(probes)))
            results += clocks.kernel_times([(number, probes[number].make) for number in part], device, _mark)
            if time.perf_counter() + 1.3 * (time.perf_counter() - start) > until:
                break
    return _sampled(recorded, results, [None if units is None else units * unit for units in host])


def _on_cpu(probes: Sequence[Probe], until: float, tick: Callable[[], None]) -> Samples:
    """As many as there is time for; they run a second time to be recorded, since recording takes the host's time."""
    # timing and recording together, as a multiple of timing alone
    both = 1.7
    start = time.perf_counter()
    results: list[KernelTime | None] = []
    times = clocks.cpu_times(probe.make for probe in probes)
    for _ in probes:
        tick()
        results.append(next(times))
        if len(results) > LEAST_PROBES and start + (time.perf_counter() - start) * both > until:
            break
    with record(hold=False) as recorded:
        for number, result in enumerate(results):
            if result is not None:
                work = probes[number].make()
                _mark(2 * number)
                work()
                _mark(2 * number + 1)
                del work
    return _sampled(recorded, results, [None] * len(results))


def _sampled(recorded: Trace, results: Sequence[KernelTime | None], host: Sequence[float | None]) -> Samples:
    """The samples: what each probe's operation is, as a trace sees it, and how long it took."""
    work = workload(recorded.graph, recorded.metrics)
    measured = [
        (row, result, host[number])
        for row, number in _marked(recorded.graph, work)
        if (result := results[number]) is not None
    ]
    rows = [row for row, *_ in measured]
    return Samples(
        [work.op[row] for row in rows],
        work.kind[rows],
        work.dtype[rows],
        work.flops[rows],
        work.moved[rows],
        work.sizes[rows],
        np.array([result.time_ns for _, result, _ in measured], dtype=np.float64),
        np.array([result.kernels for _, result, _ in measured], dtype=np.float64),
        np.array([host_ns for *_, host_ns in measured], dtype=np.float64),
    )


def _mark(number: int) -> None:
    torch.empty((MARK, number + 1), device="meta")


def _marked(graph: Graph, work: Workload) -> list[tuple[int, int]]:
    """For each probe the class of its operation, the last one between its marks that runs a kernel, and its number.

    Before it there may be copies and fills, no more: a layer that this device runs in many operations says nothing of
    the last of them.
    """
    marked = []
    current, last, single = -1, -1, True
    for node, call in enumerate(graph.node_call.tolist()):
        template = graph.calls[call]
        sizes = template.args[0] if template.op.startswith("aten::empty") and template.args else ()
        if type(sizes) is tuple and len(sizes) == 2 and sizes[0] == MARK:
            number = int(sizes[1]) - 1
            if number % 2 == 0:
                current, last, single = number // 2, -1, True
            elif current == number // 2 and last >= 0 and single:
                marked.append((last, current))
            continue
        row = int(work.group[node])
        if work.kind[row] != VIEW:
            single &= last < 0 or work.kind[last] == COPY
            last = row
    return marked


# ---------------------------------------------------------------- ranks that talk: every one calls, at the same time

# bytes of whole messages
TALK_SIZES = (1 << 8, 1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
# how often everything is timed; rounds are spread out, since other work comes and goes
TALK_ROUNDS, SAID_ROUNDS, IN_A_ROW = 24, 12, 4
# of the programs with which Python's part is measured
BLOCKS, WIDTH, MICRO_BATCHES = 6, 32, 3
# bytes of the message beside which something is computed
BESIDE = 1 << 22


def job_size() -> int:
    """How many ranks this process is one of; 1 without a job."""
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def measure_links(device: str, machine: Calibration) -> RankLinks:
    """Time collectives and messages among all ranks of this job; ``machine`` is this rank's without them."""
    probes = {
        (kind, size): run
        for kind in TALK_KINDS
        for size in TALK_SIZES
        if (run := _probe(kind, size, device)) is not None
    }
    sweep = Sweep()
    rounds: list[list[list[float]]] = []
    for number in range(SAID_ROUNDS + 1):
        row = [_said(run, device, sweep) for run in probes.values()]
        # in the first, connections are made
        if number:
            rounds.append(row)
    # ranks leave a barrier one after another: the time of the last is that of the collective itself
    times = undisturbed(np.median(_over_ranks(rounds, torch.distributed.ReduceOp.MIN, device), axis=-1))
    table: dict[str, list[tuple[int, float]]] = {}
    for (kind, size), time_ns in zip(probes, times.tolist()):
        table.setdefault(kind, []).append((size, time_ns))
    table = {kind: rising(rows) for kind, rows in table.items()}
    links = RankLinks(job_size(), table, _hidden(device), {})
    return links._replace(issue_ns=_around(device, machine, links))


def rising(rows: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Times of messages from small to large, where more bytes never take less: what disturbs one only adds to it.

    >>> rising([(1, 5.0), (2, 90.0), (4, 6.0)])
    [(1, 5.0), (2, 6.0), (4, 6.0)]
    """
    sizes, times = zip(*rows)
    least = np.minimum.accumulate(np.array(times)[::-1])[::-1]
    return list(zip(sizes, least.tolist()))


def _said(run: Callable[[], Any], device: str, sweep: Sweep) -> list[float]:
    """The times of a few in a row, as a step has them: each varies, and layers are computed before it."""
    times = []
    for _ in range(IN_A_ROW):
        if not device.startswith("cuda"):
            sweep.compute(3)
        times.append(_timed(run, device))
    return times


def _timed(run: Callable[[], Any], device: str) -> float:
    torch.distributed.barrier()
    started = time.perf_counter_ns()
    factor = run() or 1.0
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return float(time.perf_counter_ns() - started) * factor


def _computed(run: Callable[[], Any], device: str) -> float:
    """What this thread computes: neither what it waits for others, nor what it gives way to them."""
    torch.distributed.barrier()
    started = time.thread_time_ns()
    run()
    return float(time.thread_time_ns() - started)


def _over_ranks(rows: Any, how: Any, device: str) -> Any:
    """The least or the most of all ranks, of each figure."""
    figures = torch.tensor(rows, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(figures, how)
    return figures.cpu().numpy()


TALK_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")


def _probe(kind: str, size: int, device: str) -> Callable[[], Any] | None:
    """What sends a whole message of so many bytes; None where the backend has no such thing."""
    import torch.distributed as dist

    ranks, rank = dist.get_world_size(), dist.get_rank()
    part = max(size // 4 // ranks, 1)
    whole, own = torch.ones(part * ranks, device=device), torch.ones(part, device=device)
    if kind == "send":
        return lambda: _there_and_back(whole, rank)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        # into new memory, as layers that are divided have it
        "all_gather": lambda: dist.all_gather_into_tensor(torch.empty_like(whole), own),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty_like(own), whole),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }
    try:
        calls[kind]()
    except (RuntimeError, NotImplementedError):
        # on every rank alike
        return None
    return calls[kind]


def _there_and_back(message: torch.Tensor, rank: int) -> float:
    """A message from the first rank to the second and back; one way takes half of it."""
    import torch.distributed as dist

    if rank == 0:
        dist.send(message, 1)
        dist.recv(message, 1)
    elif rank == 1:
        dist.recv(message, 0)
        dist.send(message, 0)
    # of ranks that have no part in it, no time counts
    return 0.5 if rank < 2 else 1e6


def _hidden(device: str) -> float:
    """The share of a collective's time that computing beside it does not feel, where all ranks do so."""
    import torch.distributed as dist

    message, matrix = torch.ones(BESIDE // 4, device=device), torch.ones(256, 256, device=device)

    def talk() -> None:
        for _ in range(4):
            dist.all_reduce(message)

    def compute(times: int) -> None:
        for _ in range(times):
            matrix @ matrix

    def both(times: int) -> None:
        for _ in range(4):
            work = dist.all_reduce(message, async_op=True)
            compute(times // 4)
            work.wait()

    # about as long as the collectives take, on every rank alike
    medians = undisturbed([[_timed(talk, device), _timed(lambda: compute(4), device)] for _ in range(8)])
    talked, computed = _over_ranks(medians, dist.ReduceOp.MAX, device).tolist()
    times = 4 * max(round(talked / max(computed, 1.0)), 1)
    rounds = [
        [
            _timed(talk, device),
            _timed(lambda: compute(times), device),
            _timed(lambda: both(times), device),
        ]
        for _ in range(TALK_ROUNDS)
    ]
    talked, computed, together = undisturbed(_over_ranks(rounds, dist.ReduceOp.MAX, device)).tolist()
    return float(np.clip((talked + computed - together) / max(min(talked, computed), 1.0), 0.0, 1.0))


# ---------------------------------------------------------------- what Python takes around collectives


def _around(device: str, machine: Calibration, links: RankLinks) -> dict[str, float]:
    """What dividing a small model takes beyond its operations and what ranks say to each other, by collective.

    That is what a step takes more than that of the whole model, while layers of usual size are computed beside both.
    Stages of a pipeline run as many layers for all micro-batches together.
    """
    whole = _swept_step(_blocks(device), device)
    steps = {
        "sharded": _sharded(device), "plain": _replicated(device), "functional": _parallel(device),
        "message": _piped(device),
    }  # fmt: skip
    on_gpu = device.startswith("cuda")
    rounds = [[_rest(step, device) for step in (whole, *steps.values())] for _ in range(TALK_ROUNDS + 3)][3:]
    first, *times = undisturbed(_over_ranks(rounds, torch.distributed.ReduceOp.MAX, device)).tolist()
    known, _ = _issued(whole, machine)
    around = {}
    for (name, step), time_ns in zip(steps.items(), times):
        torch.distributed.barrier()
        own_ns, ops = _issued(step, machine)
        rows = [row for op in ops if (row := collective(op)) is not None]
        said = sum(links.time_ns(row.kind, 0, links.ranks) for row in rows) if on_gpu else 0.0
        own = [op for op in ops if starter(op) == name]
        if own:
            around[name] = max((time_ns - first) - (own_ns - known) - said, 0.0) / len(own)
    # one figure for all ranks
    names = sorted(around)
    values = _over_ranks([around[name] for name in names], torch.distributed.ReduceOp.MAX, device)
    return dict(zip(names, values.tolist()))


def _rest(step: SweptStep, device: str) -> float:
    """What a step takes, what sweeps the caches left out.

    On a CPU all of it is what this thread computes, which other work on the machine hardly changes.
    """
    if device.startswith("cuda"):
        step.switch(False)
        return _timed(step.run, device)
    return _computed(step.run, device) - _computed(step.sweep, device)


def _issued(step: SweptStep, machine: Calibration) -> tuple[float, list[str]]:
    """What a step's operations take by prediction, without what sweeps the caches; and the collectives in it."""
    step.switch(False)
    traced = trace(step.run, hold=False)
    step.switch(True)
    graph = traced.graph
    latency = predict(graph, traced.metrics, machine)
    work = latency.device_ns.copy()
    work[[*graph.comm_node.tolist(), *graph.wait_node.tolist()]] = 0.0
    ops = [graph.calls[graph.node_call[node]].op for node in graph.comm_node.tolist()]
    # so small a model leaves the caches alone, and is timed where they are swept
    swept = 1.0 if machine.class_ == "gpu" else machine.host.swept
    return float(latency.host_ns.sum()) * swept + float(work.sum()), ops


def _blocks(device: str, count: int = BLOCKS) -> nn.Sequential:
    return nn.Sequential(
        *[
            nn.Sequential(nn.Linear(WIDTH, WIDTH), Sweep(), nn.ReLU(), nn.Linear(WIDTH, WIDTH), Sweep())
            for _ in range(count)
        ]
    ).to(device)


def _swept_step(model: nn.Module, device: str) -> SweptStep:
    optimizer, x = torch.optim.SGD(model.parameters(), lr=1e-3), torch.ones(4, WIDTH, device=device)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    def step() -> None:
        model(x).sum().backward()
        update()

    return SweptStep(step, update, [module for module in model.modules() if isinstance(module, Sweep)])


def _mesh(device: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.partition(":")[0], (job_size(),), mesh_dim_names=("ranks",))


def _sharded(device: str) -> SweptStep:
    from torch.distributed.fsdp import fully_shard

    mesh, model = _mesh(device), _blocks(device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _swept_step(model, device)


def _replicated(device: str) -> SweptStep:
    return _swept_step(nn.parallel.DistributedDataParallel(_blocks(device)), device)


def _parallel(device: str) -> SweptStep:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh, model = _mesh(device), _blocks(device)
    for block in model:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})
    return _swept_step(model, device)


def _piped(device: str) -> SweptStep:
    """A stage for each rank, as in training."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    ranks, rank = job_size(), torch.distributed.get_rank()
    model = _blocks(device, BLOCKS // MICRO_BATCHES)
    stage = PipelineStage(model, rank, ranks, torch.device(device))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=lambda out, target: (out - target).sum())
    x = torch.ones(4 * MICRO_BATCHES, WIDTH, device=device)
    step = _swept_step(model, device)
    given: dict[str, Any] = {"target": x} if rank == ranks - 1 else {}

    def run() -> None:
        schedule.step(*([x] if rank == 0 else []), **given)
        step.update()

    return step._replace(run=run, batches=MICRO_BATCHES)
