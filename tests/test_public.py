"""The public surface: names, signatures, and a docstring with a working example for each."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_vis as tv
from tools.distribution import TYPED, not_known
from tools.house import module_files
from torch_vis._deprecated import CLASSES, OPTIONS
from torch_vis._deprecated import NAMES as NAMES_BEFORE

tv.trace

NAMES = """
Comparison Graph Metrics Trace World __version__ advise compare doctor edit errors extract fit hardware join live
load measure open_activations record register_cost simulate stats trace types
""".split()
DOCUMENTED = """
ComputationalGraphTracker DLBacktrace DynamoGraphExtractor ExplorerConfig GraphEdge GraphNode ModuleInfo OperationType
SubgraphDescriptor TensorDescriptor TensorTracer analyze_computational_graph_execution analyze_memory_timeline
analyze_memory_usage compare_captures create_onnx_visualization explore_model explore_torch_module
export_computational_graph export_model_summary format_param_count format_shape format_time get_forward_stats
get_operation_sequence get_parameter_statistics get_tensor_size is_last_use record_torch_module_forward_stats
save_graph_to_file trace_model_with_dynamo trace_tensor_ids track_computational_graph_execution
visualize_computational_graph
""".split()
SIGNATURES = {
    "trace": "(model, *args, kwargs=None, backward=False, loss=None, keep=None, replace=None, "
    "until=None, hold=True, partial=False, functions=False, "
    "via='eager', dynamic=None, dynamic_shapes=None, fullgraph=False, "
    "fake=False, assume=None, repeat=0)",
    "record": "(*modules, hold=True, functions=False, keep=None, **named)",
    "live": "(model, *, keep=None, replace=None, until=None, differentiable=False)",
    "extract": "(model, loader, *, keep=None, to=None, stats=None, call=None, until=None, dim=0, "
    "shard_bytes=67108864)",
    "open_activations": "(folder)",
    "doctor": "()",
    "stats.mean": "(source, *, dim=-1)",
    "stats.covariance": "(source, *, dim=-1, correction=1)",
    "stats.pca": "(source, count=None, *, dim=-1)",
    "stats.quantiles": "(source, shares=(0.01, 0.25, 0.5, 0.75, 0.99))",
    "stats.histogram": "(source, bins=100, *, range=None)",
    "stats.cka": "(a, b, *, dim=-1)",
    "load": "(path)",
    "join": "(ranks, *, partial=False, check=None)",
    "simulate": "(make, batch=None, *, mesh, hardware=None, links=None, ranks=None, assume=None)",
    "fit": "(make, batch=None, *, world, memory, tp=1, pp=1, checkpoint=None, options=None, layers=None, "
    "hardware=None, links=None, assume=None, whole=True)",
    "measure.memory": "(function, *args, kwargs=None, warmup=1)",
    "Trace.check": "(self, *, inputs=False, shuffles=2, seed=0)",
    "Trace.save": "(self, path, *, format=None, source=True)",
    "Trace.figure": "(self, renderer='plotly', *, depth='auto', color='type', phase=None, direction='TB', labels=None, "
    "colors=None, hide=(), only=(), collapse=(), highlight=(), title=None, legend=True, shapes=True)",
    "Trace.release": "(self)",
    "Trace.run": "(self, *args, kwargs=None, replace=None, keep=None, to=None, differentiable=False)",
    "Trace.attention": "(self, at=None, *args, kwargs=None, tokens=None)",
    "Trace.attribute": (
        "(self, method='integrated_gradients', *args, kwargs=None, target=None, measure=None, output=0, at=None, "
        "baseline=None, steps=None, samples=None, std=None, seed=None, window=None, stride=None, relu=None, "
        "tokens=None)"
    ),
    "Trace.attribute_edges": "(self, measure, *args, kwargs=None, between=None, top=10)",
    "Trace.logit_lens": ("(self, at=None, *args, kwargs=None, output=0, top=5, tokens=None, decode=None)"),
    "Trace.patch_path": "(self, path, edit, *args, kwargs=None, frozen=None)",
    "Trace.relevance": (
        "(self, *args, kwargs=None, target=None, mode='default', against=None, output=0, relevance=None, at=None, "
        "tokens=None)"
    ),
    "Trace.select": "(self, wanted)",
    "Trace.show": "(self)",
    "Trace.sweep": ("(self, wanted, edit, *args, measure, kwargs=None, positions=None, heads=False, dim=1)"),
    "Trace.table": "(self, *, depth='auto', width=None)",
    "Trace.to_networkx": "(self)",
    "Trace.to_pandas": "(self)",
    "Graph.find": "(self, path=None, *, op=None, phase=None, dtype=None, flag=None)",
    "Graph.check": "(self)",
    "Graph.ancestors": "(self, values)",
    "Graph.edges": "(self, *, shape=True)",
    "Metrics.with_column": "(self, column)",
    "analyze_memory_timeline": "(graph)",
    "trace_model_with_dynamo": "(model, example_input, *, fullgraph=False, dynamic=None, analyze_memory=True)",
    "save_graph_to_file": "(extractor, path)",
    "DynamoGraphExtractor": "(*, analyze_memory=True)",
    "DynamoGraphExtractor.descriptors": "(self, by='node')",
    "trace_tensor_ids": "(input_tensors=None, *, functions=(), keep=True)",
    "get_operation_sequence": "(traced, *, level='leaf')",
    "TensorTracer.get_operation_sequence": "(self, *, level='leaf')",
    "create_onnx_visualization": "(operations, path=None)",
    "DLBacktrace": "(model, input_for_graph, device=None, dynamic_shapes=None)",
    "DLBacktrace.predict": "(self, *inputs, kwargs=None, keep='all')",
    "DLBacktrace.evaluation": "(self, node_io, *, mode='default', target=None, against=None, output=0, "
    "relevance=None, multiplier=1.0, tensors=False)",
    "Trace.branches": "(self)",
    "Trace.communication": "(self)",
    "Trace.fusion": "(self)",
    "Trace.gradients": "(self)",
    "Trace.health": "(self)",
    "Trace.help": "(self, about=None)",
    "Trace.loops": "(self)",
    "Trace.receptive_field": "(self, wanted, *, input=None)",
    "Trace.report": "(self, path)",
    "Trace.subgraph": "(self, name)",
    "Trace.summary": "(self)",
    "compare": "(a, b, *, names=None)",
    "get_tensor_size": "(tensor)",
    "is_last_use": "(node, graph, user)",
    "advise.batch_size": (
        "(model, *args, kwargs=None, memory=None, backward=False, loss=None, measured=True, largest=1048576, "
        "dim=None)"
    ),
    "advise.quantization": (
        "(model, *args, kwargs=None, formats=('int8', 'fp8', 'int4'), effect=True, floor_db=30.0, hardware=None)"
    ),
    "advise.pruning": "(model, *args, kwargs=None, ratio=0.3, each=True, hardware=None)",
    "Trace.time": "(self)",
    "Trace.partition": "(self, *, by='fusion', depth=None, max_operations=None, max_flops=None, max_bytes=None)",
    "measure.kernels": "(model, *args, kwargs=None)",
    "Trace.explore": "(self, *, model=None, against=None, config=None)",
    "explore_model": "(model, *, trace=None, against=None, config=None, trust=False)",
    "explore_torch_module": "(module, *, config=None)",
    "record_torch_module_forward_stats": "(model, *, contents=False, maps=False)",
    "get_forward_stats": "(model)",
    "analyze_memory_usage": "(model)",
    "get_parameter_statistics": "(model)",
    "export_model_summary": "(model, format='text', *, trace=None, config=None)",
    "format_shape": "(shape)",
    "format_param_count": "(count)",
    "format_time": "(seconds)",
    "measure.calibrate": "(*, device=None, again=False, seconds=55.0, path=None)",
    "hardware.load": "(path)",
    "advise.checkpointing": "(model, *args, kwargs=None, loss=None, memory=None)",
    "register_cost": "(*ops, any_layout=False, family='other')",
    "Trace.part": "(self, path)",
    "Trace.with_metrics": "(self, *added)",
    "hardware.register": "(profile)",
    "hardware.known": "()",
    "Trace.roofline": "(self, hardware=None)",
    "Trace.latency": "(self, *, hardware=None, calibration=None)",
}
TRACE = """
activations attention attribute attribute_edges branches breaks check communication entry error explore figure fusion
gradients graph health help is_open kept latency lifetimes limits logit_lens loops memory meta metrics name
needs_tensors of output part partition patch_path program receptive_field release relevance report roofline run save
select show subgraph summary sweep table time to_networkx to_pandas with_metrics
""".split()


def find(name: str) -> Any:
    item: Any = tv
    for part in name.split("."):
        item = getattr(item, part)
    return item


def plain_signature(item: Any) -> str:
    signature = inspect.signature(item)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
    ]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def modules() -> list[str]:
    found = pkgutil.walk_packages(tv.__path__, "torch_vis.")
    return ["torch_vis", *(info.name for info in found)]


def test_names() -> None:
    assert dir(tv) == sorted(NAMES)
    assert sorted([*tv.__all__, "__version__"]) == sorted(NAMES)
    for name in NAMES:
        assert getattr(tv, name) is not None
    with pytest.raises(AttributeError, match="tracee"):
        tv.tracee


def test_names_of_the_source_documents_work_without_crowding() -> None:
    from torch_vis import interfaces

    assert dir(interfaces) == sorted(DOCUMENTED)
    for name in DOCUMENTED:
        assert getattr(tv, name) is getattr(interfaces, name)
    assert not set(DOCUMENTED) & set(dir(tv))


@pytest.mark.parametrize("name", NAMES_BEFORE)
def test_old_names_work_and_say_the_new_one(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"is now torch_vis.{NAMES_BEFORE[name]}") as caught:
        old = getattr(tv, name)
    assert caught[0].filename == __file__, "the warning points at the user's line"
    assert old is find(NAMES_BEFORE[name]) and name not in dir(tv)


def test_old_classes_and_options_work_and_say_the_new_ones() -> None:
    for old, new in CLASSES.items():
        with pytest.warns(DeprecationWarning, match=f"types.{old} is now torch_vis.types.{new}") as caught:
            assert getattr(tv.types, old) is getattr(tv.types, new) and old not in dir(tv.types)
        assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="types' has no attribute 'Kernels'"):
        tv.types.Kernels
    model, x = torch.nn.Linear(4, 2), torch.ones(1, 4)
    calls: dict[str, Any] = {
        "batch_size": lambda **old: tv.advise.batch_size(model, x, memory="1 MiB", **old),
        "record": lambda **old: tv.record(model, **old),
        "trace": lambda **old: tv.trace(model, x, **old),
    }
    assert calls.keys() == OPTIONS.keys()
    for function, options in OPTIONS.items():
        for old, new in options.items():
            said = re.escape(f"{old}= of {function}() is now called {new}=")
            with pytest.warns(DeprecationWarning, match=said) as caught:
                calls[function](**{old: False})
            assert caught[0].filename == __file__, "the warning points at the user's line"


def public_functions() -> Iterator[tuple[str, Any]]:
    """Every public function and method of a public class, by name."""
    for name in tv.__all__:
        item = getattr(tv, name)
        if inspect.ismodule(item) or inspect.isclass(item):
            inside = getattr(item, "__all__", ()) if inspect.ismodule(item) else vars(item)
            yield from ((f"{name}.{part}", getattr(item, part)) for part in inside if part[0] != "_")
        else:
            yield name, item


def test_an_option_that_is_a_switch_is_one_everywhere() -> None:
    """What True and False mean in one function is no callable, selector or number in another, under the same name."""
    switches: dict[str, set[str]] = {}
    others: dict[str, set[str]] = {}
    for name, function in public_functions():
        if not inspect.isfunction(inspect.unwrap(function)):
            continue
        for option in inspect.signature(function).parameters.values():
            old = option.name in OPTIONS.get(function.__name__, {})
            if option.kind is option.KEYWORD_ONLY and not old:
                is_switch = str(option.annotation).startswith("bool")
                (switches if is_switch else others).setdefault(option.name, set()).add(name)
    assert len(switches) > 10 and len(others) > 40, "few options were looked at"
    assert {option: (switches[option], others[option]) for option in switches.keys() & others.keys()} == {}


def test_the_stub_has_every_name() -> None:
    stub = Path(tv.__file__).with_suffix(".pyi").read_text()
    names = {first or second for first, second in re.findall(r" as (\w+)|^(\w+): ", stub, re.M)}
    assert names == {*NAMES, *DOCUMENTED, *NAMES_BEFORE, "interfaces"}


def test_the_tables_lead_somewhere() -> None:
    from torch_vis._reports import EXPLORE, FULL_REPORT, HELP, REPORTS, resolved
    from torch_vis.cli.command_table import COMMANDS
    from torch_vis.formats import FORMATS, RENDERERS

    for target in (
        *(row.target for row in REPORTS.values()),
        EXPLORE,
        FULL_REPORT,
        HELP,
        *RENDERERS.values(),
    ):
        assert callable(resolved(target)), target
    for target in (*(row.target for row in FORMATS.values()), *(row.module for row in COMMANDS.values())):
        importlib.import_module(target.partition(":")[0])
    for name, question in REPORTS.items():
        taken = tuple(inspect.signature(getattr(tv.Trace, name)).parameters)[1:]
        assert taken == question.options, "a report has a method of its name, with its options"


@pytest.mark.parametrize("first", ["tv.load", "tv.Trace", "tv.record", "tv.errors", "tv.advise"])
def test_names_mean_the_same_whatever_was_used_first(first: str) -> None:
    """A submodule must not take the place of the function that has its name."""
    code = (
        f"import torch_vis as tv\n{first}\nassert callable(tv.trace), tv.trace\nfrom torch_vis import trace\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    assert plain_signature(find(name)) == SIGNATURES[name]


def test_what_a_trace_offers() -> None:
    annotated = {name for kind in tv.Trace.__mro__ for name in vars(kind).get("__annotations__", ())}
    public = {name for name in (*dir(tv.Trace), *annotated) if not name.startswith("_")}
    assert sorted(public) == sorted(TRACE)


@pytest.mark.parametrize(
    "name", [n for n in SIGNATURES if "with_column" not in n] + ["Graph", "Metrics", "Trace"]
)
def test_every_public_name_has_a_docstring_with_an_example(name: str) -> None:
    text = inspect.getdoc(find(name)) or ""
    first = text.partition("\n")[0]
    assert first.endswith((".", ":")) or text.partition("\n\n")[0].rstrip().endswith("."), name
    assert ">>> " in text, f"{name} has no example"


def test_what_calls_give_can_be_imported_for_annotations() -> None:
    """Every class of ours that something public says it returns is in ``tv.types``, or in ``torch_vis`` itself."""
    ours = {
        node.name: module
        for module, path in module_files(Path(tv.__file__).parent).items()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    doors = [vars(module).get(name) for module in (tv, tv.advise, tv.measure) for name in module.__all__]
    doors += [item for cls in (tv.Trace, tv.Comparison, tv.World, tv.Graph) for item in vars(cls).values()]
    returned = set()
    for door in doors:
        function = getattr(door, "fget", None) or getattr(door, "func", door)
        if inspect.isfunction(function) and not function.__name__.startswith("_"):
            annotation = ast.parse(function.__annotations__["return"], mode="eval")
            returned |= {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    assert "MemoryReport" in returned and "CheckResult" in returned
    assert returned & ours.keys() - set(tv.types.__all__) - set(tv.__all__) == set()


def test_every_error_has_a_docstring() -> None:
    for name, item in vars(tv.errors).items():
        if isinstance(item, type) and issubclass(item, tv.errors.TorchVisError):
            assert item.__dict__.get("__doc__"), name


@pytest.mark.parametrize("name", modules())
def test_every_module_says_its_subject(name: str) -> None:  # its examples are run by pytest itself
    module = importlib.import_module(name)
    assert module.__doc__ and len(module.__doc__.split()) > 3, f"{name} does not say what it is"


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        installed = version("torch-vis")
    except PackageNotFoundError:
        pytest.skip("torch-vis is on the path and not installed")
    assert tv.__version__ == installed


def test_importing_is_light() -> None:
    """`import torch_vis` brings in neither torch nor any optional library, and no stage of its own."""
    code = (
        "import sys; before = set(sys.modules); import torch_vis; "
        "print(sorted(m.partition('.')[0] for m in set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("'torch'", "networkx", "pandas", "rich", "numpy"):
        assert heavy not in out, f"import torch_vis imports {heavy}"


def test_a_type_checker_knows_what_a_user_is_given(tmp_path: Path) -> None:
    """The program that a release is tried with, as strictly as mypy can."""
    (tmp_path / "user.py").write_text(TYPED)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        os.devnull,
        "--cache-dir",
        os.devnull,
    ]
    path = {"MYPYPATH": str(Path(tv.__file__).parent.parent)}
    done = subprocess.run(
        [*command, "user.py"],
        cwd=tmp_path,
        env=os.environ | path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Revealed type") == TYPED.count("reveal_type") and not not_known(done.stdout)
    assert not_known(f'{done.stdout}\nuser.py:1: note: Revealed type is "Any"') and not_known("")
