"""Names that a shell can complete: models of libraries and what a file has, read from their text without running it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from importlib.util import find_spec

KINDS = ("timm", "torchvision", "hf", "target")
REGISTERED = re.compile(r"@register_model\b[^\n]*\n(?:@[^\n]*\n)*def (\w+)")


def names(kind: str, begun: str) -> list[str]:
    """The names of a kind that begin so."""
    if kind == "target":
        found = _in_file(begun)
    elif kind == "hf":
        found = _folders("transformers")
    else:
        found = _registered(kind)
    return sorted(name for name in set(found) if name.startswith(begun))


def _registered(library: str) -> Iterator[str]:
    """The functions that a library of models has registered."""
    for folder, _, files in os.walk(_models(library)):
        for name in files:
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8", errors="ignore") as file:
                    yield from REGISTERED.findall(file.read())


def _folders(library: str) -> Iterator[str]:
    """The kinds of models that a library has a folder for."""
    folder = _models(library)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if os.path.isfile(os.path.join(folder, name, f"configuration_{name}.py")):
            yield name.replace("_", "-") if name.startswith("xlm") else name


def _models(library: str) -> str:
    spec = find_spec(library)  # which looks for it and does not import it
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return os.path.join(places[0], "models") if places else ""


def _in_file(begun: str) -> Iterator[str]:
    """``net.py:`` and the functions, classes and models that stand at the outermost level of it."""
    path, colon, _ = begun.rpartition(":")
    if not colon or not path.endswith(".py") or not os.path.isfile(path):
        return
    with open(path, encoding="utf-8", errors="ignore") as file:
        try:
            parsed = ast.parse(file.read())
        except SyntaxError:
            return
    for node in parsed.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield f"{path}:{node.name}"
