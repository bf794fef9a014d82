"""The documentation names what is there: paths, modules, links and public names."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import torch_vis as tv

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NEAR = (ROOT, ROOT / "src" / "torch_vis", ROOT / "tests")
PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md|ts|toml|json))?")
DOTTED = re.compile(r"torch_vis(?:\.[A-Za-z_]\w*)+")
PUBLIC = re.compile(r"\btv\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
# Paths of the reader's own, in examples.
EXAMPLES = frozenset({"path/to/file.py"})


def id_of(page: Path) -> str:
    return page.name


def in_backticks(page: Path) -> list[str]:
    """What stands in single backticks, fenced blocks left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", text)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def paths_in(words: list[str]) -> set[str]:
    """The words that are paths of the repository: with a slash, and a known ending or a slash at the end."""
    return {word for word in words if PATH.fullmatch(word) and word not in EXAMPLES}


def attribute(name: str) -> object:
    """What a dotted name stands for: the longest part that is a module, then its attributes."""
    parts = name.split(".")
    count = 1
    while count < len(parts) and find_spec(".".join(parts[: count + 1])) is not None:
        count += 1
        if not hasattr(import_module(".".join(parts[:count])), "__path__"):
            break
    return reduce(getattr, parts[count:], import_module(".".join(parts[:count])))


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_paths_exist(page: Path) -> None:
    missing = [
        path
        for path in paths_in(in_backticks(page))
        if not any(
            (folder / path).is_dir() if path.endswith("/") else (folder / path).is_file() for folder in NEAR
        )
    ]
    assert not missing


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"], ids=id_of)
def test_files_that_are_named_alone_exist(page: Path) -> None:
    names = {word for word in in_backticks(page) if re.fullmatch(r"\w+\.py", word)}
    assert names, "or the pattern is wrong"
    assert names <= {path.name for path in (ROOT / "src").rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [
        link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).is_file()
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_dotted_names_can_be_imported(page: Path) -> None:
    text = " ".join([*in_backticks(page), *blocks(page, "python")])
    for name in sorted(set(DOTTED.findall(text))):
        assert attribute(name) is not None, name


@pytest.mark.parametrize("page", PAGES, ids=id_of)
@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_public_names_are_the_ones_of_today(page: Path) -> None:
    text = " ".join([*in_backticks(page), *blocks(page, "python")])
    for name in sorted(set(PUBLIC.findall(text))):
        assert attribute(f"torch_vis.{name}") is not None, name


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_what_the_readme_asks_of_a_trace_is_there() -> None:
    text = "\n".join(blocks(ROOT / "README.md", "python"))
    names = set(re.findall(r"(?:^|[\s(;])t\.([a-z_]\w*)", text))
    assert {"check", "save", "limits"} <= names
    instance = tv.Trace.__annotations__ | tv.types.Run.__annotations__ | tv.Trace.__mro__[1].__annotations__
    missing = {name for name in names if not hasattr(tv.Trace, name) and name not in instance}
    assert not missing


def test_the_tree_of_folders_is_the_one_that_is_there() -> None:
    """Every package of the source stands in the tree of docs/architecture.md, and in it nothing else."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.partition("    src/torch_vis/\n")[2].partition("    viewer/")[0]
    named = set(re.findall(r"\b([a-z_]+)/(?=\s|$)", tree, re.M))
    package = ROOT / "src" / "torch_vis"
    top = {path.parent.name for path in package.glob("*/__init__.py")}
    below = {path.parent.name for path in package.glob("*/*/__init__.py")}
    assert top <= named, "folders that the tree does not have"
    assert named <= top | below | {"numeric"}, "folders of the tree that do not exist"


def test_a_name_that_is_gone_would_be_noticed() -> None:
    assert paths_in(["graph/gone.py", "graph/", "a/b", "x.py", "tests/kit/traced.py"]) == {
        "graph/gone.py",
        "graph/",
        "tests/kit/traced.py",
    }
    with pytest.raises(AttributeError):
        attribute("torch_vis.graph.gone")
    assert attribute("torch_vis.advise.pruning") is tv.advise.pruning
