"""Writes the reference: a page for each part of the public surface, made from the tables that the package itself has.

Every page lists names; Sphinx fills in signatures and docstrings. ``entries()`` is what the pages have between them, so
that a test can hold it against the surface.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch_vis as tv
from torch_vis import interfaces
from torch_vis._reports import REPORTS, resolved
from torch_vis.analysis.report import Report
from torch_vis.cli.command_table import COMMANDS, PROGRAM
from torch_vis.cli.parser import parser_of
from torch_vis.cli.task_table import markdown
from torch_vis.formats import FORMATS, RENDERERS
from torch_vis.graph.schema import COLUMNS, TABLES

SOURCES = {
    "tracking": "Execution tracking",
    "tensor_ids": "Tensor ids",
    "backtrace": "DLBacktrace",
    "explorer": "Module explorer",
    "terminal": "Module explorer",
    "dynamo": "Dynamo extraction",
    "captures": "Captures side by side",
}


SHARDS = "torch_vis.analysis.activations.shards"
# What calls give, each on a page of its own.
CLASSES = (tv.Trace, tv.Comparison, tv.World, tv.Graph, tv.Metrics)


class Entry(NamedTuple):
    """A public name: how it is written, and what it is."""

    name: str
    target: Any


def public_names() -> Iterator[Entry]:
    """Every name of ``torch_vis`` and of the modules in it that are public."""
    for name in tv.__all__:
        target = getattr(tv, name)
        if inspect.ismodule(target):
            for inner in getattr(target, "__all__", ()):
                yield Entry(f"{name}.{inner}", getattr(target, inner))
        else:
            yield Entry(name, target)


def reports() -> list[type]:
    """The class of every report: those of a trace in the order of their table, then all others that a call gives."""
    for module in pkgutil.walk_packages(tv.__path__, "torch_vis."):
        if ".analysis" in module.name:
            import_module(module.name)
    classes = [resolved(row.target) for row in REPORTS.values()]
    waiting: list[type] = [Report]
    while waiting:
        below = waiting.pop(0).__subclasses__()
        waiting += below
        classes += [cls for cls in below if cls.__module__.startswith("torch_vis.")]
    return list(dict.fromkeys(classes))


def errors() -> list[type]:
    """Every class of error, as the tree of them has it."""
    return [
        value
        for value in vars(tv.errors).values()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == tv.errors.__name__
    ]


def attributes(cls: type) -> dict[str, str]:
    """The public attributes of a class of ours with what is said of each: of methods, properties and what is stored.

    A string below an assignment, in the body of the class or in ``__init__``, says what a stored one is. What nothing
    is said of has an empty text.
    """
    out: dict[str, str] = {}
    for kind in reversed(cls.__mro__):
        if not kind.__module__.startswith("torch_vis"):
            continue
        for name, item in vars(kind).items():
            out[name] = (inspect.getdoc(item) or "") if not isinstance(item, SCALARS) else out.get(name, "")
        for name, text in _stored(kind).items():
            out[name] = text or out.get(name, "")
    return {name: text for name, text in out.items() if not name.startswith("_")}


# Plain values of a class, whose own docstring is not about them.
SCALARS = (str, int, float, bool, tuple, dict, frozenset, type(None))


def _stored(cls: type) -> dict[str, str]:
    """What the body of a class and its ``__init__`` assign, with the string below each assignment."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    inits = [item.body for item in body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    out: dict[str, str] = {}
    for lines in (body, *inits):
        for line, below in zip(lines, [*lines[1:], None]):
            value = below.value if isinstance(below, ast.Expr) else None
            is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
            text = value.value if is_text else ""  # type: ignore[union-attr]
            for name in _assigned(line, lines is body):
                out[name] = text or out.get(name, "")
    return out


def _assigned(line: ast.stmt, in_class: bool) -> Iterator[str]:
    """The names of a class that a line assigns, or of its object if the line is one of a method."""
    if isinstance(line, ast.AnnAssign):
        targets = [line.target]
    elif isinstance(line, ast.Assign):
        targets = [*line.targets]
    else:
        return
    for target in targets:
        for item in target.elts if isinstance(target, ast.Tuple) else [target]:
            if in_class and isinstance(item, ast.Name):
                yield item.id
            elif isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and not in_class:
                yield item.attr


def entries() -> set[str]:
    """The names that have an entry of their own in the reference."""
    names = {entry.name for entry in public_names()} | set(interfaces.__all__)
    names |= {cls.__name__ for cls in (*reports(), *errors())} | {f"{PROGRAM} {name}" for name in COMMANDS}
    for cls in (*reports(), *CLASSES):
        names |= {f"{cls.__name__}.{name}" for name, text in attributes(cls).items() if text}
    names |= {f"Graph.{name}" for name in (*COLUMNS, *TABLES)}
    return names | {f"format {name}" for name in FORMATS} | {f"renderer {name}" for name in RENDERERS}


def rows(cls: type) -> list[type]:
    """What a report's rows are made of: the tuples with names of its module."""
    items = vars(import_module(cls.__module__)).values()
    return [
        item
        for item in items
        if inspect.isclass(item)
        and issubclass(item, tuple)
        and item.__module__ == cls.__module__
        and not item.__name__.startswith("_")
    ]


def path_of(target: Any) -> str:
    """What an entry is listed under: a reader's name for it, ``torch_vis.trace``, or else where it is defined."""
    # a report is found by the class, wherever it comes from
    is_report = inspect.isclass(target) and issubclass(target, Report)
    names = [] if is_report else [entry.name for entry in public_names() if entry.target is target]
    return f"torch_vis.{names[0]}" if names else f"{target.__module__}.{target.__qualname__}"


def directive(entry: Any, members: bool = True, inherited: bool = True) -> list[str]:
    """The lines that make Sphinx write an entry of a class or a function."""
    kind = "autoclass" if inspect.isclass(entry) else "autofunction" if callable(entry) else "autodata"
    lines = [f".. {kind}:: {path_of(entry)}"]
    if inspect.isclass(entry) and members:
        lines.append("   :members:")
        if inherited:
            lines.append("   :inherited-members: tuple, dict, list, str, Exception, BaseException, object")
    return ["```{eval-rst}", *lines, "```", ""]


def page(title: str, lead: str, items: Iterable[Any], end: str = "") -> str:
    lines = [f"# {title}", "", lead, ""]
    for item in items:
        lines += directive(item)
    return "\n".join([*lines, end])


def pages() -> dict[str, str]:
    """The text of every page of the reference, by file name."""
    shown = list(public_names())
    top = [entry.target for entry in shown if "." not in entry.name]
    functions = [target for target in top if target not in CLASSES]
    by_module: dict[str, list[Any]] = {}
    for entry in shown:
        if "." in entry.name and not entry.name.startswith(("types.", "errors.")):
            by_module.setdefault(entry.name.split(".")[0], []).append(entry.target)
    report_classes = [Report, *reports()]
    given = [e.target for e in shown if e.name.startswith("types.")]
    elsewhere = {*report_classes, *CLASSES, *top, *(row for cls in report_classes[1:] for row in rows(cls))}
    elsewhere |= {item for items in by_module.values() for item in items if inspect.isclass(item)}
    rest = [cls for cls in given if cls not in elsewhere]
    of_graph = [cls for cls in rest if cls.__module__.startswith("torch_vis.graph.")]
    out = {
        "functions": page("Functions", "Every call that begins with `tv.`.", functions),
        "trace": page("Trace", "What `tv.trace`, `tv.record` and `tv.load` give.", [tv.Trace]),
        "graph": page(
            "Graph and its rows",
            "What a trace is made of: `t.graph`, `t.metrics`, `t.limits`.",
            [tv.Graph, tv.Metrics, *of_graph],
            _columns(),
        ),
        "types": page(
            "What calls give",
            "Classes for annotations and `isinstance`, all of them in `tv.types`.",
            [cls for cls in rest if cls not in of_graph],
        ),
        "world": page("World", "What `tv.join` gives: all ranks of a job.", [tv.World]),
        "comparison": page("Comparison", "What `tv.compare` gives.", [tv.Comparison]),
        "reports": _reports(report_classes[1:]),
    }
    for name, items in by_module.items():
        lead = (inspect.getdoc(getattr(tv, name)) or "").split("\n\n")[0]
        out[name] = page(f"tv.{name}", lead, items)
    out["errors"] = page("Errors", _error_table(), errors())
    out["interfaces"] = _interfaces()
    out["commands"] = _commands()
    out["formats"] = _formats()
    return out


def _reports(classes: list[type]) -> str:
    lead = (
        "Those that a trace has are methods of it and `torch-vis report NAME`; the others come from `tv.advise`, "
        "`tv.measure`, `tv.compare(a, b).differences()`, `t.select()` and `t.sweep()`. All have what `Report` has."
    )
    lines = ["# Reports", "", lead, "", "## Report", "", *directive(Report)]
    by_class = {resolved(row.target): name for name, row in REPORTS.items()}
    shown: set[type] = set()
    for cls in classes:
        call = f": `t.{by_class[cls]}()`" if cls in by_class else ""
        lines += [f"## {cls.__name__}{call}", "", *directive(cls, inherited=False)]
        for row in rows(cls):
            if row not in shown:
                lines += directive(row, members=False)
                shown.add(row)
    return "\n".join(lines)


def _columns() -> str:
    """The columns of a graph, as its schema has them."""
    lines = ["## Columns", "", "Bulk data of `t.graph`, one numpy array each; `-1` stands for none.", ""]
    lines += ["| column | one row for each | type | its numbers are rows of |", "|---|---|---|---|"]
    for name, row in COLUMNS.items():
        dtype = getattr(row.dtype, "__name__", str(row.dtype))
        lines.append(f"| `{name}` | {row.along} | {dtype} | {row.refers or ''} |")
    names = ", ".join(f"`{name}`" for name in TABLES)
    lines += ["", f"What such numbers are rows of, where it is no column: {names}.", ""]
    return "\n".join(lines)


def _error_table() -> str:
    """What each error means, and the page that says more."""
    lines = [
        "Every error of ours is a `TorchVisError`; a model's own exceptions reach you as they were raised.",
        "",
    ]
    lines += ["| error | means | more |", "|---|---|---|"]
    for cls in errors():
        means = (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
        more = f"[page](../{cls.page}.md)" if cls.page else ""
        lines.append(f"| `{cls.__name__}` | {means} | {more} |")
    return "\n".join(lines)


def _interfaces() -> str:
    grouped: dict[str, list[Any]] = {}
    for name in interfaces.__all__:
        target = getattr(interfaces, name)
        room = next(
            (text for part, text in SOURCES.items() if part in interfaces.DOCUMENTED[name].split(".")),
            "Other",
        )
        grouped.setdefault(room, []).append(target)
    lines = ["# Names of the source documents", "", "Each can be used as `tv.NAME`.", ""]
    for room, items in grouped.items():
        lines += [f"## {room}", ""]
        for item in items:
            lines += directive(item)
    return "\n".join(lines)


def _commands() -> str:
    lines = ["# Commands", "", f"What `{PROGRAM} NAME --help` prints, for every command.", ""]
    for name, row in COMMANDS.items():
        lines += [
            f"## {PROGRAM} {name}",
            "",
            row.summary.capitalize() + ".",
            "",
            "```text",
            parser_of(name).format_help().rstrip(),
            "```",
            "",
        ]
    return "\n".join(lines)


def _formats() -> str:
    lines = [
        "# File formats and renderers",
        "",
        "`t.save(path)` chooses by the ending; `format=` names one.",
        "",
        "| format | endings | is | needs |",
        "|---|---|---|---|",
    ]
    for name, row in FORMATS.items():
        needs = f"`pip install 'torch-vis[{row.extra}]'`" if row.extra else ""
        first = (
            (inspect.getdoc(_written_by(row.target)) or "")
            .split("\n\n")[0]
            .replace("\n", " ")
            .replace("``", "`")
        )
        lines.append(f"| {name} | {', '.join(f'`{e}`' for e in row.endings)} | {first} | {needs} |")
    lines += [
        "",
        "A format of your own is `package.module:Class` with `save(path, run)`: `t.save(path, format=...)`.",
        "",
        "`t.figure(renderer=…)` draws with one of these, or with a `package.module:function` of yours:",
        "",
        "| renderer | drawn by |",
        "|---|---|",
    ]
    lines += [f"| {name} | `{target}` |" for name, target in RENDERERS.items()]
    rooms = {
        name: FORMATS[name].target
        for name in FORMATS
        if "\n\n" in (_written_by(FORMATS[name].target).__doc__ or "")
    }
    for name, target in {**rooms, "activations of a data set": SHARDS}.items():
        lines += ["", f"## {name}", "", "```{eval-rst}", f".. automodule:: {target}", "   :no-index:", "```"]
    return "\n".join([*lines, ""])


def _written_by(target: str) -> Any:
    """The module or the class that writes a format: its docstring says what is in the file."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


def write(folder: Path) -> None:
    """Write the pages, and an index of them; what has not changed is not touched, and so not read anew."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = pages()
    order = [
        "functions",
        "trace",
        "graph",
        "reports",
        "comparison",
        "world",
        *[n for n in texts if n in dir(tv)],
        "errors",
        "commands",
        "formats",
        "interfaces",
    ]
    names = list(dict.fromkeys(name for name in order if name in texts))
    texts["index"] = "\n".join(
        [
            "# Reference",
            "",
            "Every public name, made from the docstrings; {ref}`all of them by letter <genindex>`.",
            "",
            "```{toctree}",
            ":maxdepth: 2",
            *names,
            "```",
            "",
        ]
    )
    for name, text in texts.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def read_beside(app: Any, docname: str, source: list[str]) -> None:
    """Pages at the root of the repository are pages of the site: a link to the file leads to the page."""
    up = "../" * (docname.count("/") + 1)
    for name in ("CONTRIBUTING", "SECURITY"):
        source[0] = source[0].replace(f"]({up}{name}.md", f"]({up[3:]}{name.lower()}.md")


def hold_complete(app: Any, env: Any) -> None:
    """End the build if an entry that the tables promise was not written."""
    objects = env.domaindata["py"]["objects"]
    promised = {path_of(entry.target) for entry in public_names()}
    promised |= {path_of(cls) for cls in (*reports(), *errors())}
    listed = {Report, *reports()}
    for cls in reports():
        # what it has of another report has its entry there
        kinds = [kind for kind in cls.__mro__[:-1] if kind is cls or kind not in listed]
        above = [kind for kind in cls.__mro__ if kind is not cls and kind in listed]
        own = {name for kind in kinds for name in [*vars(kind), *_stored(kind)]}
        own -= {name for kind in above for name in attributes(kind)}
        promised |= {f"{cls.__module__}.{cls.__qualname__}.{name}" for name in attributes(cls) if name in own}
    missing = sorted(promised - {*objects})
    if missing:
        from sphinx.errors import ExtensionError

        raise ExtensionError("\n".join(["the reference has no entry for:", *missing]))


def fill_tasks(app: Any, docname: str, source: list[str]) -> None:
    """The table of tasks, in a page that asks for it."""
    if "@TASKS@" in source[0]:
        source[0] = source[0].replace("@TASKS@", markdown(root="../" * docname.count("/")))


def setup(app: Any) -> dict[str, Any]:
    app.connect("env-check-consistency", hold_complete)
    app.connect("config-inited", lambda app, config: write(Path(app.srcdir) / "reference"))
    app.connect("source-read", read_beside)
    app.connect("source-read", fill_tasks)
    return {"parallel_read_safe": True}
