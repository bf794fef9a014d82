"""Everything public, called once: each name of the package, each method, report, chart, view, file and command.

As a program it reads packages and names of calls, a line of JSON each. For each it forks, hides the packages as if they
were not installed, makes the calls, and answers with a line: what every call ended in.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.fx.passes.shape_prop import ShapeProp

import torch_vis as tv
from tests.kit.forking import environment
from tests.kit.scripts import PARALLEL
from torch_vis import interfaces
from torch_vis._reports import EXPLANATIONS, REPORTS
from torch_vis.analysis.report import Report
from torch_vis.cli.main import main
from torch_vis.errors import MissingExtra, UsageError
from torch_vis.formats import FORMATS, RENDERERS

WORKS = "works"
FILES = {
    "parallel.py": PARALLEL,
    "net.py": "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())\n",
    "train.py": (
        "import torch\nmodel = torch.nn.Linear(8, 4)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for _ in range(2):\n    model(torch.ones(2, 8)).sum().backward()\n    optimizer.step()\n"
    ),
}
MODEL = ("net.py:make", "--input", "2x8")
COMMAND_LINES: dict[str, tuple[tuple[str, ...], ...]] = {
    # the name of a command: what it is called with
    "run": (("-o", "step.tvz", "train.py"),),
    "trace": ((*MODEL, "--backward", "-o", "a.tvz"), ("--torchvision", "resnet18", "--fake"),
              ("--timm", "resnet18", "--fake"), ("--hf", "bert", "--fake")),
    "summary": (MODEL, ("net.tvz",), ("net.pth",), ("net.safetensors",), ("net.onnx",), ("net.py:make",)),
    "report": tuple(
        (name, *MODEL, "--backward", *(("--hardware", "H100 SXM") if "hardware" in row.options else ()))
        for name, row in REPORTS.items()
    )
    + tuple((name, *MODEL) for name in EXPLANATIONS if name in ("attribute", "relevance")),
    "explore": (("net.tvz",), ("net.pth",), MODEL, ("net.pth", "--json")),
    "show": (("net.tvz", "--no-browser"),),
    "compare": (("net.tvz", "other.tvz"), ("net.pth", "net.pth"), ("net.py:make", *MODEL, "--numbers")),
    "check": (("net.tvz",), MODEL),
    "join": (("step.r0.tvz", "-o", "step.tvz"),),
    "fit": (("parallel.py:make", "--input", "8x64", "--world", "4", "--memory", "1GiB"),),
    "extract": ((*MODEL, "--keep", "0", "--to", "acts_of_cli"),),
    "export": tuple(("net.tvz", "-o", f"b{row.endings[0]}") for row in FORMATS.values()),
    "breaks": (MODEL,),
    "captures": ((*MODEL, "--capture", "fx"), (*MODEL, "--capture", "onnx"), (*MODEL, "--capture", "stablehlo")),
    "doctor": ((),),
    "demo": (("--no-browser",),),
    "completion": (("bash",), ("zsh",), ("fish",)),
}  # fmt: skip


class Things:
    """A model, inputs, traces and files, which everything is called with."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()
        self.x = torch.ones(2, 8)
        self.trace = tv.trace(self.model, self.x, backward=True)
        self.other = tv.trace(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.GELU()), self.x)
        program = torch.fx.symbolic_trace(self.model)
        ShapeProp(program).propagate(self.x)
        self.fx = program.graph
        for name, text in FILES.items():
            (folder / name).write_text(text)
        torch.save(self.model.state_dict(), folder / "net.pth")
        # version 8, a graph named g that has one node
        node = b"\x0a\x01x\x12\x01y\x22\x04Relu"
        graph = b"\x0a" + bytes([len(node)]) + node + b"\x12\x01g"
        (folder / "net.onnx").write_bytes(b"\x08\x08\x3a" + bytes([len(graph)]) + graph)
        self.trace.save(folder / "net.tvz")
        self.other.save(folder / "other.tvz")
        _rank_of_one(self)[0].save(folder / "step.r0.tvz")
        header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (folder / "net.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))

    def path(self, name: str) -> str:
        """Where a file of that name goes."""
        return str(self.folder / name)

    def fresh(self) -> tv.Trace:
        """A trace to use up."""
        return tv.trace(self.model, self.x)


def recorded(things: Things) -> Any:
    with tv.record(things.model) as trace:
        things.model(things.x)
    return trace


def sequence(things: Things) -> Any:
    with tv.trace_tensor_ids(things.x) as tracer:
        things.model(things.x)
    return tracer


def stats(things: Things) -> Any:
    with tv.record_torch_module_forward_stats(things.model) as result:
        things.model(things.x)
    return result


def tracked(things: Things) -> Any:
    with tv.ComputationalGraphTracker(things.model) as tracker:
        things.model(things.x)
    return tracker


def live(things: Things, **options: Any) -> Any:
    with tv.live(things.model, keep="0", **options) as run:
        things.model(things.x)
    return run


def edited(name: str, *arguments: Any) -> Callable[[Things], Any]:
    """The verb of that name, done to what a layer gives."""
    return lambda things: live(things, replace={"0": getattr(tv.edit, name)(*arguments)})


def _attention() -> Any:
    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    return str(tv.trace(layer, torch.ones(1, 3, 8)).attention())


def relevance(things: Things) -> Any:
    explained = tv.DLBacktrace(things.model, (things.x,))
    return explained.evaluation(explained.predict(things.x))


def extracted(things: Things) -> Any:
    return tv.extract(things.model, [things.x], keep="0", to=things.path("acts"))


def statistic(name: str) -> Callable[[Things], Any]:
    """A function of ``tv.stats``, or one of its classes."""
    sides = 2 if name.lower() == "cka" else 1

    def call(things: Things) -> Any:
        given = [things.x] * sides
        return (
            getattr(tv.stats, name)().over(*given) if name[0].isupper() else getattr(tv.stats, name)(*given)
        )

    return call


CALLS: dict[str, Callable[[Things], Any]] = {
    "ComputationalGraphTracker": tracked,
    "DLBacktrace": lambda it: tv.DLBacktrace(it.model, (it.x,)),
    "DynamoGraphExtractor": lambda it: tv.trace_model_with_dynamo(it.model, it.x),
    "ExplorerConfig": lambda it: tv.ExplorerConfig(color_scheme="nord"),
    "ModuleInfo": lambda it: tv.ModuleInfo.of(it.model),
    "TensorTracer": sequence,
    "advise.batch_size": lambda it: tv.advise.batch_size(it.model, it.x, memory="1 MiB", measured=False),
    "advise.checkpointing": lambda it: tv.advise.checkpointing(it.model, it.x),
    "advise.pruning": lambda it: tv.advise.pruning(it.model, it.x),
    "advise.quantization": lambda it: tv.advise.quantization(it.model, it.x),
    "analyze_computational_graph_execution": lambda it: tv.analyze_computational_graph_execution(
        it.model, it.x
    ),
    "analyze_memory_timeline": lambda it: tv.analyze_memory_timeline(it.fx),
    "analyze_memory_usage": lambda it: tv.analyze_memory_usage(it.model),
    "compare": lambda it: tv.compare(it.trace, it.other),
    "doctor": lambda it: tv.doctor(),
    "compare_captures": lambda it: tv.compare_captures(
        it.model, it.x, captures=("eager", "fx", "onnx", "stablehlo")
    ),
    "create_onnx_visualization": lambda it: tv.create_onnx_visualization(
        tv.get_operation_sequence(sequence(it)), it.path("sequence.onnx")
    ),
    "edit.Edit": edited("zero"),  # what every verb gives
    "edit.add": edited("add", 1.0),
    "edit.clamp": edited("clamp", 0.0, 1.0),
    "edit.mean": edited("mean"),
    "edit.noise": edited("noise", 0.1),
    "edit.patch_from": lambda it: live(it, replace={"0": tv.edit.patch_from(live(it))}),
    "edit.project": edited("project", torch.ones(4)),
    "edit.scale": edited("scale", 0.5),
    "edit.swap": edited("swap", [1, 0]),
    "edit.zero": edited("zero"),
    "extract": extracted,
    "open_activations": lambda it: extracted(it) and tv.open_activations(it.path("acts")),
    **{f"stats.{name}": statistic(name) for name in tv.stats.__all__},
    "explore_model": lambda it: tv.explore_model(it.model),
    "explore_torch_module": lambda it: tv.explore_torch_module(it.model),
    "export_computational_graph": lambda it: [
        tv.export_computational_graph(it.model, it.x, it.path("graph.json")),
        tv.export_computational_graph(it.model, it.x, it.path("graph.csv"), format="csv"),
    ],
    "export_model_summary": lambda it: [
        tv.export_model_summary(it.model, format=name) for name in ("text", "json", "html")
    ],
    "format_param_count": lambda it: tv.format_param_count(1000),
    "format_shape": lambda it: tv.format_shape((2, 3)),
    "format_time": lambda it: tv.format_time(0.1),
    "get_forward_stats": lambda it: tv.get_forward_stats(it.model),
    "get_operation_sequence": lambda it: tv.get_operation_sequence(it.trace),
    "get_parameter_statistics": lambda it: tv.get_parameter_statistics(it.model),
    "get_tensor_size": lambda it: tv.get_tensor_size(it.x),
    "hardware.known": lambda it: tv.hardware.known(),
    "hardware.register": lambda it: tv.hardware.register(
        tv.hardware.Hardware("mine", "gpu", {"float32": 1e12}, 1e11, 2**30, "measured")
    ),
    "is_last_use": lambda it: tv.is_last_use(next(iter(it.fx.nodes)), it.fx, [*it.fx.nodes][1]),
    "join": lambda it: tv.join(_rank_of_one(it)),
    "simulate": lambda it: tv.simulate(_sharded, it.x, mesh={"dp": 2}),
    "fit": lambda it: tv.fit(_sharded, it.x, world=2, memory="1 GiB", whole=False),
    "live": live,
    "load": lambda it: tv.load(it.path("net.tvz")),
    "measure.calibrate": lambda it: tv.measure.calibrate(seconds=0.5, path=it.path("machine.json")),
    "measure.kernels": lambda it: tv.measure.kernels(it.model, it.x),
    "measure.memory": lambda it: tv.measure.memory(it.model, it.x),
    "record": recorded,
    "record_torch_module_forward_stats": stats,
    "register_cost": lambda it: tv.register_cost("mine::op")(lambda call: 0),
    "save_graph_to_file": lambda it: tv.save_graph_to_file(it.trace, it.path("extracted.py")),
    "trace": lambda it: it.fresh(),
    "trace_model_with_dynamo": lambda it: tv.trace_model_with_dynamo(it.model, it.x),
    "trace_tensor_ids": sequence,
    "track_computational_graph_execution": lambda it: tv.track_computational_graph_execution(it.model, it.x),
    "visualize_computational_graph": lambda it: tv.visualize_computational_graph(it.model, it.x, "svg"),
}


def _sharded(mesh: Any, layers: int = 4) -> Callable[[Any], Any]:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
    for layer in model:
        fully_shard(layer, mesh=mesh["dp"])
    return lambda x: model(x).sum().backward()


def _ranks_of_two(things: Things) -> list[tv.Trace]:
    ranks = [*_rank_of_one(things), *_rank_of_one(things)]
    for rank, trace in enumerate(ranks):
        trace.meta |= {"rank": rank, "world_size": 2}
    return ranks


def _rank_of_one(things: Things) -> list[tv.Trace]:
    trace = things.fresh()
    trace.meta |= {"rank": 0, "world_size": 1, "began_ns": 0, "host": "here"}
    return [trace]


def _subgraph(things: Things) -> Any:
    trace = tv.trace(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), things.x, via="dynamo")
    return trace.subgraph("cond.true")


# What a method is called with, where it wants arguments or leaves its object unfit for the next one.
METHODS: dict[str, Callable[[Any, Things], Any]] = {
    "Comparison.differences": lambda me, it: me.differences(),
    "Comparison.save": lambda me, it: me.save(it.path("compare.html")),
    "Comparison.to_pandas": lambda me, it: me.to_pandas(),
    "ComputationalGraphTracker.start_tracking": lambda me, it: None,  # `tracked` has, and has stopped
    "ComputationalGraphTracker.stop_tracking": lambda me, it: None,
    "DLBacktrace.evaluation": lambda me, it: me.evaluation(me.predict(it.x)),
    "DLBacktrace.predict": lambda me, it: me.predict(it.x),
    "Graph.ancestors": lambda me, it: me.ancestors([(0, 1)]),
    "Graph.input_span": lambda me, it: me.input_span(0),
    "Graph.output_span": lambda me, it: me.output_span(0),
    "Graph.producers": lambda me, it: me.producers(0),
    "Graph.users": lambda me, it: me.users(0),
    "Graph.value_users": lambda me, it: me.value_users(0),
    "Metrics.get": lambda me, it: me.get("flops"),
    "Metrics.with_column": lambda me, it: me.with_column(me["flops"]),
    "Metrics.with_later": lambda me, it: me.with_later(["mine"], dict),
    "World.compare": lambda me, it: tv.join(_ranks_of_two(it)).compare(0, 1),
    "World.with_traces": lambda me, it: me.with_traces({0: me[0]}),
    "World.ranks_like": lambda me, it: me.ranks_like(0),
    "World.check": lambda me, it: None,  # of ranks that run
    "World.load": lambda me, it: None,  # `load` does that
    "World.save": lambda me, it: me.save(it.path("world.tvz")),
    "Trace.attention": lambda me, it: _attention(),
    "Trace.attribute": lambda me, it: me.attribute("saliency"),
    "Trace.attribute_edges": lambda me, it: str(me.attribute_edges(lambda output: output.sum(), it.x + 1)),
    "Trace.logit_lens": lambda me, it: str(me.logit_lens("0 | 1")),
    "Trace.patch_path": lambda me, it: me.patch_path(["0", "1"], tv.edit.zero()),
    "Trace.figure": lambda me, it: [me.figure(name) for name in RENDERERS],
    "Trace.latency": lambda me, it: me.latency(hardware="H100 SXM"),
    "Trace.needs_tensors": lambda me, it: me.needs_tensors("a test"),
    "Trace.of": lambda me, it: tv.Trace.of(me),
    "Trace.part": lambda me, it: me.part("0"),
    "Trace.receptive_field": lambda me, it: me.receptive_field("output[0, 0]"),
    "Trace.release": lambda me, it: it.fresh().release(),
    "Trace.report": lambda me, it: me.report(it.path("report.md")),
    "Trace.roofline": lambda me, it: me.roofline("H100 SXM"),
    "Trace.run": lambda me, it: me.run(it.x),
    "Trace.save": lambda me, it: None,  # each format by itself, below
    "Trace.select": lambda me, it: str(me.select("0 | 1")),
    "Trace.sweep": lambda me, it: str(me.sweep("0 | 1", tv.edit.zero(), measure=lambda output: output.sum())),
    "Trace.subgraph": lambda me, it: _subgraph(it),
}
# Calls that give an object of which every method is called.
OBJECTS = frozenset(
    """
    ComputationalGraphTracker DLBacktrace DynamoGraphExtractor ModuleInfo TensorTracer compare compare_captures join
    """.split()
)
# Compile, or time this machine: called only where that was asked for.
SLOW = frozenset({"measure.kernels", "measure.calibrate", "compare_captures"})


def public_names() -> set[str]:
    """Every name that can be called as ``tv.name`` or ``tv.module.name``."""
    classes = {
        "Comparison",
        "Graph",
        "Metrics",
        "Trace",
        "World",
    }  # what calls give, of which every method is called
    rows = {"GraphEdge", "GraphNode", "OperationType", "SubgraphDescriptor", "TensorDescriptor"}
    modules = {name for name in tv.__all__ if inspect.ismodule(getattr(tv, name))}
    inner = {f"{name}.{item}" for name in modules - {"errors", "types"} for item in getattr(tv, name).__all__}
    inner -= {"hardware.Calibration", "hardware.Hardware", "hardware.load"}
    return {*tv.__all__, *interfaces.__all__} - modules - classes - rows | inner


def calls(things: Things) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every call, with a name."""
    for name, call in CALLS.items():
        yield name, lambda call=call: call(things)
    yield from _methods("Trace", things.trace, things)
    yield from _methods("Graph", things.trace.graph, things)
    yield from _methods("Metrics", things.trace.metrics, things)
    for name, row in FORMATS.items():
        yield (
            f"Trace.save {name}",
            lambda name=name, row=row: things.trace.save(things.path(f"saved{row.endings[0]}"), format=name),
        )
    for name in RENDERERS:
        yield f"Trace.figure {name}", lambda name=name: things.trace.figure(name)
    for name, lines in COMMAND_LINES.items():
        for words in lines:
            yield f"torch-vis {name} {' '.join(words)}", lambda name=name, words=words: command(name, *words)


def _methods(label: str, item: Any, things: Things) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every public method and property of an object, and of the report that a method gives."""
    for name in dir(type(item)):
        if name.startswith("_") and not name.startswith("_repr_"):
            continue
        key = f"{label}.{name}"
        if name in vars(Mapping) or name in vars(Sequence):
            continue
        if key in METHODS:
            yield key, lambda key=key: METHODS[key](item, things)
        elif not callable(inspect.getattr_static(type(item), name)):
            yield key, lambda name=name: getattr(item, name)
        else:
            yield key, getattr(item, name)


def _of_result(label: str, result: Any, things: Things) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What else can be asked of what a call gave."""
    if isinstance(result, Report):
        yield f"{label}()", lambda: (str(result), repr(result), result.to_dict())
        for chart in result.charts():
            for renderer in ("plotly", "matplotlib"):
                yield (
                    f"{label}().figure {chart} {renderer}",
                    lambda c=chart, r=renderer: result.figure(r, chart=c),
                )
        if result.listings():
            yield f"{label}().to_pandas", result.to_pandas
    elif label in OBJECTS:
        yield from _methods(type(result).__name__, result, things)


def command(name: str, *words: str) -> str:
    """Run a command in this process; what it says on failing is raised."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([name, *words])
    text = said.getvalue()
    if code == 2 or "Traceback" in text:
        raise (MissingExtra if "pip install" in text else UsageError)(text.strip())
    return text


def outcomes(folder: Path, only: set[str] | None) -> dict[str, str]:
    """What calls ended in: "works", or the error with its class. ``only`` names some; else all that are not slow."""
    things = Things(folder)
    os.chdir(folder)
    result: dict[str, str] = {}
    waiting = [*calls(things)][::-1]
    while waiting:
        name, call = waiting.pop()
        if name in result or not _is_wanted(name, only):
            continue
        try:
            value = call()
        except (Exception, SystemExit) as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            result[name] = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        else:
            result[name] = WORKS
            waiting += [*_of_result(name, value, things)][::-1]
    return result


def _is_wanted(name: str, only: set[str] | None) -> bool:
    """Whether a call is one of those, or gives what one of those is a method of."""
    if only is None:
        return name not in SLOW
    return name in only or name in OBJECTS - SLOW or any(other.startswith(f"{name}()") for other in only)


def hide(packages: list[str]) -> None:
    """Make the packages absent from this process."""
    for package in packages:
        sys.modules[package] = None  # type: ignore[assignment]


def asked(*blocks: tuple[list[str], list[str] | None]) -> list[dict[str, str]]:
    """The outcomes with each list of packages hidden, of the calls named, from a process that has none of them."""
    lines = "".join(f"{json.dumps(block)}\n" for block in blocks)
    command = [sys.executable, "-m", "tests.kit.surface"]
    done = subprocess.run(
        command, check=True, input=lines, stdout=subprocess.PIPE, text=True, env=environment(), timeout=1200
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def serve() -> None:
    """Answer a line for each line."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        packages, only = json.loads(line)
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as answer:
            child = os.fork()
            if not child:
                try:
                    os.dup2(2, 1)
                    hide(packages)
                    answer.write(json.dumps(outcomes(Path(folder), None if only is None else {*only})))
                    answer.flush()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            answer.seek(0)
            print(answer.read() or "{}", flush=True)


if __name__ == "__main__":
    serve()
