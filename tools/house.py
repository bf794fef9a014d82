"""Print the figures of the house: files, lines, folders, imports, and names that stand for two things.

    .venv/bin/python tools/house.py [--list]

`--list` names each file that only one other imports. `tests/test_layout.py` holds the figures.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "torch_vis"
FORMULAS = "ops/cost"  # one file per family of operators, and as many as there are families
SHORT = 60  # lines


class Import(NamedTuple):
    """One name that a file imports: where, and if it is for annotations alone."""

    line: int
    module: str
    name: str
    for_types: bool


def imports_of(source: Path, package: Path) -> list[Import]:
    """Everything a file imports, at the top, in a function or for types only; relative names made absolute."""
    around = [package.name, *source.relative_to(package).parts[:-1]]
    found: list[Import] = []

    def visit(node: ast.AST, for_types: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for_types = True
        if isinstance(node, ast.Import):
            found.extend(Import(node.lineno, alias.name, "", for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = around[: len(around) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            found.extend(Import(node.lineno, module, alias.name, for_types) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.append(Import(node.lineno, argument.value, "", for_types))
        for child in ast.iter_child_nodes(node):
            visit(child, for_types)

    visit(ast.parse(source.read_text(encoding="utf-8"), str(source)), False)
    return found


def module_files(package: Path) -> dict[str, Path]:
    """Every module of a package and its file."""
    modules = {}
    for source in package.rglob("*.py"):
        parts = source.relative_to(package.parent).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = source
    return modules


def import_graph(package: Path) -> dict[str, set[str]]:
    """For every module the modules of the package that it imports, wherever in the file."""
    modules = module_files(package)
    graph = {}
    for module, source in modules.items():
        targets = set()
        for row in imports_of(source, package):
            full = f"{row.module}.{row.name}"
            if full in modules or row.module in modules:
                targets.add(full if full in modules else row.module)
        graph[module] = targets - {module, package.name}
    del graph[package.name]
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import one another, directly or around a corner."""
    ahead = {module: set(targets) & graph.keys() for module, targets in graph.items()}
    while True:  # what imports nothing that is left is in no cycle, and neither is what nothing imports
        imported = set().union(*ahead.values()) if ahead else set()
        ends = {module for module, targets in ahead.items() if not targets} | (ahead.keys() - imported)
        if not ends:
            break
        ahead = {module: targets - ends for module, targets in ahead.items() if module not in ends}
    groups: list[list[str]] = []
    while ahead:
        reached, front = set(), [next(iter(sorted(ahead)))]
        start = front[0]
        while front:
            for target in ahead[front.pop()] - reached:
                reached.add(target)
                front.append(target)
        back = {m for m in reached | {start} if _reaches(ahead, m, start)}
        groups.append(sorted(back or {start}))
        ahead = {m: t - set(groups[-1]) for m, t in ahead.items() if m not in groups[-1]}
    return [group for group in groups if len(group) > 1]


def _reaches(graph: dict[str, set[str]], start: str, target: str) -> bool:
    seen, front = {start}, [start]
    while front:
        for module in graph[front.pop()] - seen:
            seen.add(module)
            front.append(module)
    return target in seen and (start != target or any(target in graph[m] for m in seen))


class Figures:
    """What can be counted of a package, as a reader meets it."""

    def __init__(self, package: Path) -> None:
        self.package = package
        self.imports = import_graph(package)

    @cached_property
    def files(self) -> dict[str, Path]:
        """Every module and its file."""
        return module_files(self.package)

    @cached_property
    def lines(self) -> dict[str, int]:
        """How many lines each module has."""
        return {
            module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in self.files.items()
        }

    @property
    def folders(self) -> dict[str, int]:
        """How many modules lie in each folder, that of the formulas aside, the fullest first."""
        modules = [path for path in self.files.values() if path.name != "__init__.py"]
        folders = Counter(path.parent.relative_to(self.package.parent).as_posix() for path in modules)
        return {name: count for name, count in folders.most_common() if not name.endswith(FORMULAS)}

    @property
    def single_importers(self) -> dict[str, str]:
        """The modules that exactly one other imports, and that one."""
        importers: dict[str, set[str]] = defaultdict(set)
        for module, targets in self.imports.items():
            for target in targets:
                importers[target].add(module)
        return {
            module: next(iter(importers[module]))
            for module, path in sorted(self.files.items())
            if len(importers[module]) == 1 and path.name != "__init__.py"
        }

    @property
    def mutual_pairs(self) -> list[tuple[str, str]]:
        """Modules that import each other."""
        graph = self.imports
        return [(a, b) for a in graph for b in graph[a] if a < b and a in graph.get(b, ())]

    @property
    def twin_classes(self) -> dict[str, list[str]]:
        """Class names that stand for two things, and the modules that have them."""
        owners: dict[str, list[str]] = defaultdict(list)
        for module, path in sorted(self.files.items()):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    owners[node.name].append(module)
        return {name: modules for name, modules in owners.items() if len(modules) > 1}


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the files that only one other imports")
    options = parser.parse_args()
    figures = Figures(PACKAGE)
    single = figures.single_importers
    folder, modules = next(iter(figures.folders.items()))
    rows = [
        ("source files", len(figures.files)),
        ("lines of source", sum(figures.lines.values())),
        (f"modules in the largest folder, {folder}", modules),
        ("files that only one other imports", len(single)),
        (f"of these under {SHORT} lines", sum(figures.lines[module] < SHORT for module in single)),
        ("import cycles", len(cycles(figures.imports))),
        ("mutual pairs", len(figures.mutual_pairs)),
        ("class names for two things", len(figures.twin_classes)),
    ]
    for name, figure in rows:
        print(f"{figure:>7,}  {name}")
    if options.list:
        for module, importer in single.items():
            print(f"{figures.lines[module]:>7}  {module}  <-  {importer}")


if __name__ == "__main__":
    main()
