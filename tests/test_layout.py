"""The shape of the repository: which stage may import which, what an import costs, and what no file may name."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "torch_vis"

# What each part may import of torch_vis beside itself. What is not named here sits on top and may import anything.
MAY_IMPORT = {
    "errors": set(),
    "graph": {"errors"},
    "held": {"errors", "graph"},  # the tensors that a capture keeps and a replay starts from
    "capture": {"errors", "graph", "held"},
    "run": {"errors", "graph", "held"},
    "analysis": {"errors", "graph"},
    "exporters": {"errors", "graph"},
    "views": {"errors", "graph"},
}
NUMPY_ONLY = {"errors", "graph"}
FOLDERS_ON_TOP = {"frontends", "reports", "cli"}
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


# Imports between stages


def imported_modules(source: Path, package: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports, by line and full name, whether at the top, in a function or for types only."""
    here = [package.name, *source.relative_to(package).parts[:-1]]
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"), str(source))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            # `from torch_vis import views` names a stage in its second half.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def forbidden_imports(package: Path) -> list[str]:
    """Each import that breaks the rule of the layout, as `file:line: what`."""
    found = []
    for source in sorted(package.rglob("*.py")):
        parts = source.relative_to(package).parts
        part = parts[0].removesuffix(".py")
        if len(parts) > 1 and part not in MAY_IMPORT.keys() | FOLDERS_ON_TOP:
            found.append(f"{'/'.join(parts)}:1: {part}/ is not a folder of the layout")
        for line, module in imported_modules(source, package):
            top, *rest = module.split(".")
            if top == package.name:
                wrong = part in MAY_IMPORT and (rest or [top])[0] not in {part, *MAY_IMPORT[part]}
            else:
                wrong = part in NUMPY_ONLY and top not in {*sys.stdlib_module_names, "numpy"}
            if wrong:
                found.append(f"{'/'.join(parts)}:{line}: {part} must not import {module}")
    return found


def test_stages_import_the_graph_and_never_each_other() -> None:
    assert any((PACKAGE / "graph").glob("*.py")), "nothing was looked at"
    assert forbidden_imports(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "text", "allowed"),
    [
        ("graph/a.py", "import numpy as np, json", True),
        ("graph/a.py", "from ..errors import GraphError", True),
        ("graph/a.py", "from torch_vis import errors", True),
        ("graph/a.py", "import torch", False),
        ("graph/a.py", "from networkx import DiGraph", False),
        ("graph/a.py", "from torch_vis.capture import eager", False),
        ("graph/a.py", "def late():\n    from ..run.replay import replay", False),
        ("graph/a.py", "if TYPE_CHECKING:\n    from torch import Tensor", False),
        ("graph/deep/a.py", "from ..builder import GraphBuilder", True),
        ("graph/deep/a.py", "from ...views import text", False),
        (
            "capture/a.py",
            "import torch\nfrom ..graph.graph import GraphBuilder\nfrom . import scopes",
            True,
        ),
        ("capture/__init__.py", "from .eager import record", True),
        ("capture/a.py", "from .. import run", False),
        ("views/a.py", "from torch_vis import analysis", False),
        ("views/a.py", "import importlib\nimportlib.import_module('torch_vis.graph.io.json')", False),
        ("views/a.py", "import torch_vis", False),
        ("exporters/a.py", "from torch_vis.trace import Trace", False),
        ("analysis/a.py", "from ..frontends import tracking", False),
        ("frontends/a.py", "from ..views import text\nfrom ..capture import eager", True),
        ("cli/a.py", "import torch_vis.graph.io.json", True),
        ("trace.py", "from .capture import eager\nfrom .run.replay import replay", True),
        ("held.py", "import torch\nfrom .graph import Graph", True),
        ("held.py", "from .run import replay", False),
        ("views/a.py", "from ..held import Held", False),
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


def test_graph_imports_where_torch_cannot() -> None:
    modules = [
        "torch_vis.graph",
        *(f"torch_vis.graph.{path.stem}" for path in (PACKAGE / "graph").glob("[!_]*.py")),
    ]
    run_python(f"""
        import importlib, sys
        sys.modules["torch"] = None  # any import of torch now raises
        for name in {modules}:
            importlib.import_module(name)
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
