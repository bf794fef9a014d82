"""Scenes: every public block and call of ours that touches torch or a model, small enough to run thousands of times."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torch_vis as tv
from torch_vis.cli.main import INTERRUPTED, main
from torch_vis.interfaces.explorer.file_source import open_file

Scene = Callable[[], Any]


class Net(nn.Module):
    """A model with parameters, a buffer, dropout and two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One batch."""
        return self.last(nn.functional.dropout(self.norm(self.first(x)).relu(), training=self.training))


class Attending(nn.Module):
    """A model with heads."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One batch of sequences."""
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.out(attended)


MODEL = Net()
INPUT = torch.ones(3, 4)
ATTENDING = Attending().eval()
SEQUENCE = torch.ones(1, 3, 4)
KEPT: dict[str, Any] = {}


def kept(name: str, make: Scene) -> Any:
    """Something that is made once, outside of what is interrupted."""
    if name not in KEPT:
        KEPT[name] = make()
    return KEPT[name]


def _recorded(**options: Any) -> None:
    with tv.record(MODEL, **options):
        MODEL(INPUT).sum().backward()


def _trained() -> None:
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.0)
    with tv.record(MODEL):
        MODEL(INPUT).sum().backward()
        optimizer.step()


def _started() -> None:
    tracker = tv.ComputationalGraphTracker(MODEL)
    tracker.start_tracking()
    try:
        MODEL(INPUT)
    finally:
        if tracker.is_tracking:
            tracker.stop_tracking()


def _tracked(**options: Any) -> None:
    with tv.ComputationalGraphTracker(MODEL, **options):
        MODEL(INPUT)


def _with_ids() -> None:
    with tv.trace_tensor_ids(input_tensors={"x": INPUT}):
        MODEL(INPUT)


def _with_stats() -> None:
    with tv.record_torch_module_forward_stats(MODEL, contents=True):
        MODEL(INPUT)


def _kept_trace() -> tv.Trace:
    trace: tv.Trace = kept("trace", lambda: tv.trace(Net(), INPUT, backward=True))
    return trace


def _forward_trace() -> tv.Trace:
    trace: tv.Trace = kept("forward", lambda: tv.trace(Net().eval(), INPUT))
    return trace


def _attention_trace() -> tv.Trace:
    trace: tv.Trace = kept("attention", lambda: tv.trace(ATTENDING, SEQUENCE))
    return trace


# ---------------------------------------------------------------- live


def _live() -> None:
    with tv.live(MODEL, keep=["first", "norm.input", "last.grad"], replace={"first[:, 0]": tv.edit.zero()}):
        MODEL(INPUT).sum().backward()


def _live_operations() -> None:
    with tv.live(MODEL, keep="norm/native_batch_norm", replace={"relu": tv.edit.scale(2.0)}):
        MODEL(INPUT)


def _live_edges() -> None:
    with tv.live(MODEL, replace={"first -> norm": tv.edit.zero()}):
        MODEL(INPUT)


def _live_heads() -> None:
    with tv.live(ATTENDING, keep="attention[head=1]"):
        ATTENDING(SEQUENCE)


def _live_until() -> None:
    with tv.live(MODEL, keep="first", until=True):
        MODEL(INPUT)


def _live_compiled() -> None:
    import torch._dynamo  # noqa: F401  # from here on there may be compiled code

    with tv.live(MODEL, keep="first"), tv.live(MODEL, keep="norm", until="norm"):
        MODEL(INPUT)


def _live_and_record() -> None:
    with tv.record(MODEL), tv.live(MODEL, keep="norm/native_batch_norm"):
        MODEL(INPUT)


def _steered() -> None:
    vector = kept("vector", lambda: nn.Parameter(torch.zeros(4)))
    vector.grad = None
    with tv.live(MODEL, replace={"first": lambda x: x + vector}, differentiable=True):
        MODEL(INPUT).sum().backward()


# ---------------------------------------------------------------- threads


def _recorded_with_a_thread() -> None:
    with tv.record(MODEL):
        thread = threading.Thread(target=MODEL, args=(INPUT,))
        thread.start()
        thread.join()


# ---------------------------------------------------------------- data


def _extracted() -> None:
    folder = tempfile.mkdtemp()
    try:
        tv.extract(MODEL, [INPUT, INPUT], keep="first", to=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _with_statistics() -> None:
    tv.extract(MODEL, [INPUT, INPUT], stats={"first": [tv.stats.Mean(), tv.stats.Covariance()]})


# ---------------------------------------------------------------- ranks


def _sharded(mesh: Any, layers: int = 2) -> Callable[[Any], Any]:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(fully_shard(nn.Linear(8, 8), mesh=mesh["dp"]) for _ in range(layers)))
    fully_shard(model, mesh=mesh["dp"])
    return lambda x: model(x).sum().backward()


def _simulated() -> None:
    tv.simulate(_sharded, torch.ones(2, 8), mesh={"dp": 2})


def _replicated(mesh: Any) -> Callable[[Any], Any]:
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8), process_group=mesh.get_group("dp"))
    optimizer = torch.optim.SGD(model.parameters())

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    return step


def _staged(mesh: Any) -> Callable[[Any], Any]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    number, count = mesh.get_local_rank("pp"), mesh["pp"].size()
    stage = PipelineStage(nn.Linear(8, 8), number, count, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 2, loss_fn=lambda output, target: (output - target).sum())

    def step(batch: torch.Tensor) -> None:
        if number == 0:
            schedule.step(batch)
        else:
            schedule.step(target=batch, losses=[])

    return step


def _simulated_replicas() -> None:
    tv.simulate(_replicated, torch.ones(2, 8), mesh={"dp": 2})


def _simulated_stages() -> None:
    tv.simulate(_staged, torch.ones(4, 8), mesh={"pp": 2})


def _fitted() -> None:
    tv.fit(_sharded, torch.ones(2, 8), world=2, memory="1 MiB", whole=False)


def _condition(x: torch.Tensor) -> torch.Tensor:
    branched: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
    return branched


def _other_branch() -> None:
    trace = kept("condition", lambda: tv.trace(_condition, INPUT, via="export"))
    trace.subgraph(next(row["name"] for row in trace.meta["program"]["subgraphs"] if not row["ran"]))


# ---------------------------------------------------------------- reports that run something


def _first(output: Any) -> torch.Tensor:
    tensor: torch.Tensor = output[0, 0]
    return tensor


def _pruned_heads() -> None:
    tv.advise.pruning(ATTENDING, SEQUENCE, ratio=0.5)


def _pruned_without_an_output() -> None:
    """What it gives shows nothing of its units, so that its modules are compared."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        model[2].weight.zero_()
        model[2].bias.zero_()
    tv.advise.pruning(model, INPUT, ratio=0.5)


def _steps_first() -> None:
    model = kept("steps first", lambda: nn.LSTM(4, 4))
    tv.advise.batch_size(model, torch.ones(2, 3, 4), memory="1 MiB", largest=4)


def _kernels() -> None:
    tv.measure.kernels(MODEL, INPUT)


# ---------------------------------------------------------------- files and the command line


def _explored_file() -> None:
    folder = tempfile.mkdtemp()
    try:
        program = kept("program", lambda: torch.export.export(nn.Linear(4, 2), (INPUT,)))
        torch.export.save(program, f"{folder}/net.pt2")
        open_file(f"{folder}/net.pt2", trust=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        if main(["summary", f"{__file__}:Net", "--input", "3x4", "--fake"]) == INTERRUPTED:
            raise KeyboardInterrupt


def _swept() -> None:
    _forward_trace().sweep("first | norm", tv.edit.zero(), measure=_first)


def _attributed(method: str, **options: Any) -> Scene:
    return lambda: _forward_trace().attribute(method, measure=_first, **options)


def _compared() -> None:
    tv.compare(_forward_trace(), kept("other", lambda: tv.trace(Net().eval(), INPUT)))


def _compared_numbers() -> None:
    other = kept("other step", lambda: tv.trace(Net(), INPUT, backward=True))
    str(tv.compare(_kept_trace(), other).differences())


def _calibrated() -> None:
    folder = tempfile.mkdtemp()
    try:
        tv.measure.calibrate(device="cpu", again=True, seconds=0.05, path=f"{folder}/c.json")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _health() -> None:
    tv.trace(MODEL, INPUT, backward=True).health()


SCENES: dict[str, Scene] = {
    "trace": lambda: tv.trace(MODEL, INPUT),
    "trace backward": lambda: tv.trace(MODEL, INPUT, backward=True),
    "trace functions": lambda: tv.trace(MODEL, INPUT, functions=True),
    "trace replace": lambda: tv.trace(MODEL, INPUT, keep="first", replace={"norm": tv.edit.zero()}),
    "record": _recorded,
    "record functions": lambda: _recorded(functions=True),
    "record a step": _trained,
    "track": _tracked,
    "track modules": lambda: _tracked(track_tensor_ops=False),
    "track from start to stop": _started,
    "track once": lambda: tv.track_computational_graph_execution(MODEL, INPUT),
    "tensor ids": _with_ids,
    "module stats": _with_stats,
    "check": lambda: _kept_trace().check(),
    "check inputs": lambda: _kept_trace().check(inputs=True),
    "run again": lambda: _kept_trace().run(INPUT),
    "run replace": lambda: _forward_trace().run(INPUT, replace={"norm": tv.edit.zero()}, keep="all"),
    "fake": lambda: tv.trace(MODEL, INPUT, fake=True, backward=True),
    "subgraph": _other_branch,
    "fx": lambda: tv.trace(MODEL, INPUT, via="fx"),
    "export": lambda: tv.trace(MODEL, INPUT, via="export"),
    "repeat": lambda: tv.trace(MODEL, INPUT, backward=True, repeat=1),
    "dynamo": lambda: tv.trace(MODEL, INPUT, via="dynamo"),
    "aot": lambda: tv.trace(MODEL, INPUT, backward=True, via="aot"),
    "live": _live,
    "live operations": _live_operations,
    "live edges": _live_edges,
    "live heads": _live_heads,
    "live with gradients": _steered,
    "record a thread": _recorded_with_a_thread,
    "live until": _live_until,
    "live compiled": _live_compiled,
    "live and record": _live_and_record,
    "extract": _extracted,
    "extract statistics": _with_statistics,
    "simulate": _simulated,
    "simulate replicas": _simulated_replicas,
    "simulate stages": _simulated_stages,
    "fit": _fitted,
    "sweep": _swept,
    "integrated gradients": _attributed("integrated_gradients", steps=2),
    "occlusion": _attributed("occlusion"),
    "relevance": lambda: _forward_trace().relevance(),
    "attribute edges": lambda: _forward_trace().attribute_edges(_first, INPUT * 2, top=2),
    "patch path": lambda: _forward_trace().patch_path(["first", "norm"], tv.edit.zero()),
    "attention": lambda: _attention_trace().attention(),
    "logit lens": lambda: _attention_trace().logit_lens(at="attention | out"),
    "receptive field": lambda: _forward_trace().receptive_field("last"),
    "health": _health,
    "gradients": lambda: str(_kept_trace().gradients()),
    "pruning": lambda: tv.advise.pruning(MODEL, INPUT, ratio=0.5),
    "prune heads": _pruned_heads,
    "prune behind zeros": _pruned_without_an_output,
    "quantization": lambda: tv.advise.quantization(MODEL, INPUT),
    "batch size": lambda: tv.advise.batch_size(MODEL, INPUT, memory="1 MiB", largest=8),
    "steps before samples": _steps_first,
    "checkpointing": lambda: tv.advise.checkpointing(MODEL, INPUT),
    "measure memory": lambda: tv.measure.memory(MODEL, INPUT),
    "measure kernels": _kernels,
    "calibrate": _calibrated,
    "explore a file": _explored_file,
    "command line": _command,
    "compare": _compared,
    "compare numbers": _compared_numbers,
    "backtrace": lambda: tv.DLBacktrace(ATTENDING, (SEQUENCE,)).predict(SEQUENCE),
    "dynamo extractor": lambda: tv.trace_model_with_dynamo(MODEL, INPUT),
    "compare captures": lambda: tv.compare_captures(ATTENDING, SEQUENCE),
}
# blocks of ours that no scene opens, and why
ELSEWHERE = {
    "analysis.machine.probes.clocks._profiler": "it needs a GPU",
    "capture.timing.profiler_events.device_profiler": "it needs a GPU",
    "capture.recording.rank_calls._adopted": "it needs ranks that run on threads",
    "analysis.fusion.compiled_kernels._inductors_variables_removed": "measure kernels, which is slow",
    "capture.compilers.inductor_kernels._listening": "measure kernels, which is slow",
    "analysis.advice.pruning.surgery._with_attribute": "it needs a model with a configuration",
    "cli.model_spec._offline": "it needs transformers",
    "cli.model_spec._registered_as_fake.<locals>.registered": "the process of a command",
    "cli.script.simulated.ScriptRank._begin": "the process of a script",
    "capture.undo.Context._begin": "it is what subclasses have",
}
# minutes without an interrupt, which therefore comes at random times only
SLOW = ("calibrate", "measure kernels")
