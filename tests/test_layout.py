"""The shape of the repository: which package may import which, what an import costs, and what no file may name."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tools.house import SHORT, Figures, cycles, import_graph, imports_of, module_files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "torch_vis"

# The packages in their order: each imports those before it, and nothing that comes after it. Those of one row do not
# import each other.
ORDER: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "_deprecated",
        "errors progress _reports",
        "graph",
        "ops",
        "capture",
        "replay",
        "views exporters",
        "formats",
        "_trace",
        "api",
        "analysis",
        "advise edit hardware measure stats types",
        "interfaces",
        "cli",
        "__main__",
    )
)
RANK = {name: rank for rank, row in enumerate(ORDER) for name in row}
# The one look upwards: what a trace's methods return, for annotations alone; at run time its table of reports says it.
ANNOTATED = {"_trace": "analysis"}
NUMPY_ONLY = {"errors", "graph"}
HEAVY = {
    "matplotlib",
    "networkx",
    "pandas",
    "plotly",
    "rich",
    "textual",
    "timm",
    "torchvision",
    "transformers",
}


# Imports between packages and modules


def forbidden_imports(package: Path) -> list[str]:
    """Each import that breaks the order of the packages, as `file:line: what`."""
    wrong = []
    for source in sorted(package.rglob("*.py")):
        parts = source.relative_to(package).parts
        part = parts[0].removesuffix(".py")
        where = "/".join(parts)
        if part == "__init__":
            continue  # the public names, resolved when they are used
        if part not in RANK:
            wrong.append(f"{where}:1: {part} has no place in the order of the packages")
            continue
        for line, module, name, for_types in imports_of(source, package):
            top, *rest = [*module.split("."), *([name] if name else [])]
            if top != package.name:
                if part in NUMPY_ONLY and top not in {*sys.stdlib_module_names, "numpy"}:
                    wrong.append(f"{where}:{line}: {part} must not import {module}")
                continue
            target = (rest or ["__init__"])[0]
            allowed = target == part or RANK.get(target, len(ORDER)) < RANK[part]
            if target not in RANK:  # the package itself: its public names lie on top of everything
                allowed = RANK[part] >= RANK["interfaces"]
            if for_types and ANNOTATED.get(part) == target:
                allowed = True
            if not allowed:
                wrong.append(f"{where}:{line}: {part} must not import {module} {name}".rstrip())
            if name.startswith("_") and not name.startswith("__") and f"{package.name}.{name}" != module:
                if not (package / name).with_suffix(".py").exists():
                    wrong.append(f"{where}:{line}: {name} of {module} is its own affair")
    return wrong


def test_packages_import_downwards_only() -> None:
    assert any((PACKAGE / "graph").glob("*.py")), "nothing was looked at"
    assert forbidden_imports(PACKAGE) == []


def test_no_modules_import_one_another() -> None:
    assert cycles(import_graph(PACKAGE)) == []


def test_modules_that_are_named_in_texts_are_there() -> None:
    """A path in a table, a docstring or the code of another process is no import, so that a move could forget it."""
    modules = module_files(PACKAGE)
    names = {module.split(".")[1] for module in modules if "." in module}
    gone = []
    for path in modules.values():
        text = path.read_text(encoding="utf-8")
        whole = re.findall(r"\bfrom (torch_vis[\w.]*) import\b", text)
        gone += [f"{path.relative_to(PACKAGE)}: {named}" for named in whole if named not in modules]
        for named in re.findall(r"\btorch_vis(?:\.[a-z_]\w*)+", text):
            parts = named.split(".")
            around = ".".join(parts[:-1])
            if parts[1] in names and named not in modules and around not in modules:
                gone.append(f"{path.relative_to(PACKAGE)}: {named}")
    assert gone == []


def test_what_tests_share_is_in_the_kit() -> None:
    """A test that moves or goes takes nothing with it that others need."""
    tests = ROOT / "tests"
    borrowed = [
        f"{source.relative_to(ROOT).as_posix()}:{row.line}: {row.module}"
        for source in sorted(tests.rglob("*.py"))
        for row in imports_of(source, tests)
        if row.module.rpartition(".")[2].startswith("test_")
    ]
    assert borrowed == []


def test_tests_lie_where_their_source_lies() -> None:
    """Who changes a folder finds what holds it under the same name; what is about all of it lies at the top."""
    tests = ROOT / "tests"
    folders = {source.parent.relative_to(tests) for source in tests.rglob("test_*.py")}
    assert Path("ops/cost") in folders, "nothing was looked at"
    assert [folder for folder in folders if not (PACKAGE / folder).is_dir() and folder != Path("tools")] == []


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"g"}, "g": {"e", "a"}}
    assert cycles(graph) == [["b", "c"], ["e", "f", "g"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_the_package_stays_small_enough_to_walk_through() -> None:
    figures = Figures(PACKAGE)
    assert len(figures.files) <= 347
    assert {folder: count for folder, count in figures.folders.items() if count > 16} == {}
    assert len(figures.single_importers) <= 70
    short = [module for module in figures.single_importers if figures.lines[module] < SHORT]
    assert short == ["torch_vis.hardware"]  # a door of the public surface
    assert figures.twin_classes == {}


def test_the_figures_are_those_of_the_files(tmp_path: Path) -> None:
    package = tmp_path / "torch_vis"
    (package / "graph" / "io").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "graph" / "__init__.py").touch()
    (package / "graph" / "a.py").write_text("from .io import b\n\n\nclass Row:\n    pass\n")
    (package / "graph" / "io" / "b.py").write_text("class Row:\n    class Inner:\n        pass\n")
    (package / "graph" / "io" / "c.py").write_text(
        "from torch_vis.graph import a\nfrom torch_vis.graph.a import Row\n"
    )
    figures = Figures(package)
    assert len(figures.files) == 5 and sum(figures.lines.values()) == 10
    assert figures.folders == {"torch_vis/graph": 1, "torch_vis/graph/io": 2}
    assert figures.single_importers == {
        "torch_vis.graph.io.b": "torch_vis.graph.a",
        "torch_vis.graph.a": "torch_vis.graph.io.c",
    }
    assert figures.twin_classes == {"Row": ["torch_vis.graph.a", "torch_vis.graph.io.b"]}


@pytest.mark.parametrize(
    ("file", "text", "allowed"),
    [
        ("graph/a.py", "import numpy as np, json", True),
        ("graph/a.py", "from ..errors import GraphError", True),
        ("graph/a.py", "from torch_vis import errors", True),
        ("graph/a.py", "import torch", False),
        ("graph/a.py", "from networkx import DiGraph", False),
        ("graph/a.py", "from torch_vis.capture import session", False),
        ("graph/a.py", "def late():\n    from ..replay.replay import replay", False),
        ("graph/a.py", "if TYPE_CHECKING:\n    from torch import Tensor", False),
        ("graph/deep/a.py", "from ..builder import GraphBuilder", True),
        ("graph/deep/a.py", "from ...views import text", False),
        ("capture/a.py", "import torch\nfrom ..graph.graph import GraphBuilder\nfrom . import state", True),
        ("capture/a.py", "from .. import replay", False),
        ("capture/a.py", "from torch_vis.graph.graph import _private", False),
        ("replay/a.py", "from ..capture.state import snapshot", True),
        ("views/a.py", "from torch_vis import analysis", False),
        ("views/a.py", "import importlib\nimportlib.import_module('torch_vis.exporters.csv')", False),
        ("views/a.py", "import torch_vis", False),
        ("exporters/a.py", "from torch_vis._trace import Trace", False),
        ("_trace.py", "from .views import text\nfrom .replay.replay import replay", True),
        ("_trace.py", "if TYPE_CHECKING:\n    from torch_vis.analysis.memory import MemoryReport", True),
        ("_trace.py", "def late():\n    from torch_vis.analysis.memory import MemoryReport", False),
        ("analysis/a.py", "from ..interfaces import tracking", False),
        ("analysis/a.py", "from torch_vis._trace import Trace", True),
        (
            "interfaces/a.py",
            "from ..views import text\nfrom ..capture import session\nimport torch_vis",
            True,
        ),
        ("cli/a.py", "import torch_vis.exporters.csv", True),
        ("errors.py", "import difflib", True),
        ("errors.py", "from .graph import Graph", False),
        ("errors.py", "import torch", False),
        ("helpers/a.py", "import json", False),
    ],
)
def test_the_import_rule_tells_right_from_wrong(tmp_path: Path, file: str, text: str, allowed: bool) -> None:
    source = tmp_path / "torch_vis" / file
    source.parent.mkdir(parents=True)
    source.write_text(text)
    if "_trace" in text:
        (tmp_path / "torch_vis" / "_trace.py").touch()
    assert (forbidden_imports(tmp_path / "torch_vis") == []) is allowed


# What an import brings along


def run_python(code: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("use", ["", "torch_vis.trace"], ids=["import", "trace"])
def test_importing_torch_vis_brings_no_heavy_library(use: str) -> None:
    loaded = run_python(f"import sys, torch_vis\n{use}\nprint(*{HEAVY} & set(sys.modules))")
    assert loaded == ""


@pytest.mark.parametrize("first", ["Trace", "load", "record"])
def test_trace_is_a_function_whichever_name_is_used_first(first: str) -> None:
    run_python(f"import torch_vis\ntorch_vis.{first}\nassert callable(torch_vis.trace), torch_vis.trace")


@pytest.mark.parametrize("package", ["graph", "ops"])
def test_graph_and_ops_import_where_torch_cannot(package: str) -> None:
    sources = (PACKAGE / package).rglob("[!_]*.py")
    modules = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in sources]
    assert len(modules) > 10
    run_python(f"""
        import importlib, sys
        sys.modules["torch"] = None  # any import of torch now raises
        for name in {modules}:
            importlib.import_module(name)
    """)


def test_a_file_is_read_shown_and_written_where_torch_cannot(tmp_path: Path) -> None:
    """Whatever Python and torch there are, a `.tvz` opens; what needs torch says so."""
    run_python(f"""
        import os, sys
        import torch, torch_vis as tv
        os.chdir({str(tmp_path)!r})
        tv.trace(torch.nn.Linear(2, 2), torch.ones(1, 2), backward=True).save("a.tvz")
    """)
    run_python(f"""
        import os, sys
        sys.modules["torch"] = None
        import torch_vis as tv
        os.chdir({str(tmp_path)!r})
        t = tv.load("a.tvz")
        assert "Linear" in str(t) and t.memory().peak_bytes > 0 and t.latency(hardware="A100").total_ns
        for name in ("b.tvz", "b.json", "b.html", "b.svg", "b.csv", "b.md", "b.dot", "b.graphml", "b.perfetto.json"):
            t.save(name)
        try:
            t.gradients()
        except tv.errors.MissingExtra as error:
            assert "gradients() needs torch" in str(error)
        else:
            raise AssertionError("gradients() needs torch")
        assert "no torch here" in open("b.md").read()
        # two files are compared as they are where torch is, and what cannot be done is said
        change = tv.compare(t, tv.load("b.json"))
        assert change.same and "No change" in str(change)
        change.save("diff.html")
        for call, named in (
            (lambda: t.select("0"), "this needs torch"),
            (lambda: tv.edit.zero(), "torch_vis.edit needs torch"),
            (lambda: tv.DLBacktrace(t, ()), "torch_vis.DLBacktrace needs torch"),
        ):
            try:
                call()
            except tv.errors.MissingExtra as error:
                assert named in str(error) and "pip install torch" in str(error)
            else:
                raise AssertionError(named)
        try:
            t.check()
        except tv.errors.TensorsMissing:
            pass
        from torch_vis.cli.main import main
        assert main(["compare", "a.tvz", "b.json"]) == 0
        assert main(["trace", "net.py:make", "--input", "1x2"]) == 2
    """)


# What the packaging promises


def test_every_dependency_is_pinned() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain(line.partition("==")[0].strip()) for line in pins if "==" in line}
    try:
        required = importlib.metadata.requires("torch-vis") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("torch-vis is on the path and not installed")
    names = {plain(match[0]) for match in map(re.compile(r"[\w.-]+").match, required) if match}
    assert {"torch", "numpy", "pytest"} <= names
    assert names - pinned == {"torch-vis"}  # its extras name one another


# What no file may name

REGISTRY = re.compile(
    r"pypi[.]org|pythonhosted[.]org|download[.]pytorch[.]org|anaconda[.]org"
    r"|registry[.]npmjs|registry[.]yarnpkg|npmmirror[.]com|\"resolved\"\s*:"
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|farm|root|home|Users|tmp/bash_jobs)[.\w]*/")


def repository_files() -> list[Path]:
    """The files git tracks or would track; in an unpacked source archive, all of them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        generated = {".git", ".venv", "node_modules", "__pycache__", "out"}
        return [p for p in ROOT.rglob("*") if p.is_file() and not generated & set(p.relative_to(ROOT).parts)]
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


def named_places(text: str) -> list[str]:
    return [match[0] for pattern in (REGISTRY, MACHINE_PATH) for match in pattern.finditer(text)]


def test_no_file_names_a_registry_or_a_machine_path() -> None:
    files = repository_files()
    assert ROOT / "pyproject.toml" in files
    found = {}
    for path in files:
        content = path.read_bytes()
        if b"\0" not in content and (places := named_places(content.decode("utf-8", "replace"))):
            found[str(path.relative_to(ROOT))] = places
    assert found == {}


@pytest.mark.parametrize(
    ("parts", "clean"),
    [
        (("https://py", "pi.org/simple"), False),
        (("https://registry.", "npmjs.org/d3"), False),
        (('"resolv', 'ed": "x"'), False),
        (("--find-links /ro", "ot/wheels"), False),
        (('open("/wo', 'rk/x")'), False),
        (("/ho", "me/someone/model.py"), False),
        (("see src/work", "/notes and docs/home", "/index"), True),
        (("the path /usr/bin/env",), True),
    ],
)
def test_the_search_tells_right_from_wrong(parts: tuple[str, ...], clean: bool) -> None:
    assert (named_places("".join(parts)) == []) is clean
