"""What can be written and drawn, by name: one table of file formats, one of renderers.

A row holds the import path of the thing, so that nothing is loaded before it is used. Wherever a name of these tables
is asked for, ``package.module:Object`` names one's own.
"""

from __future__ import annotations

import inspect
import os
import warnings
from importlib import import_module
from typing import Any, NamedTuple

from torch_vis.errors import NoMatch, UsageError, no_match
from torch_vis.graph.run import Run


class Format(NamedTuple):
    """A file format: its writer, its endings, the usual one first, and the extra that it needs."""

    target: str
    endings: tuple[str, ...]
    extra: str | None = None


FORMATS: dict[str, Format] = {
    "tvz": Format("torch_vis.graph.io.tvz", (".tvz",)),
    "json": Format("torch_vis.graph.io.json", (".json",)),
    "html": Format("torch_vis.views.page", (".html", ".htm")),
    "onnx": Format("torch_vis.exporters.onnx", (".onnx",), "onnx"),
    "graphml": Format("torch_vis.exporters.graphml", (".graphml",)),
    "model-explorer": Format("torch_vis.exporters.model_explorer", (".explorer.json",)),
    "perfetto": Format("torch_vis.exporters.perfetto", (".perfetto.json", ".trace.json")),
    "csv": Format("torch_vis.exporters.csv", (".csv",)),
    "markdown": Format("torch_vis.analysis.full_report", (".md",)),
    "dot": Format("torch_vis.views.figure.dot", (".dot", ".gv")),
    "svg": Format("torch_vis.views.figure.svg", (".svg",)),
    "png": Format("torch_vis.views.figure.matplotlib:Png", (".png",), "matplotlib"),
    "pdf": Format("torch_vis.views.figure.matplotlib:Pdf", (".pdf",), "matplotlib"),
}
READABLE = ("tvz", "json")

RENDERERS: dict[str, str] = {
    "plotly": "torch_vis.views.figure.plotly:draw",
    "matplotlib": "torch_vis.views.figure.matplotlib:draw",
    "graphviz": "torch_vis.views.figure.dot:draw",
    "svg": "torch_vis.views.figure.svg:draw",
}


def writer(path: str | os.PathLike[str], format: Any = None) -> Any:
    """What writes a file, chosen by name or else by the file's ending; it has a ``save``.

    >>> writer("run.perfetto.json").__name__
    'torch_vis.exporters.perfetto'
    """
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"a path is a string or a Path, not {type(path).__name__} {path!r}")
    if format is not None and not isinstance(format, str):
        # the exporter itself
        result = format
    elif format is not None:
        result = _own(format, "file format") if ":" in format else _load(_row(format).target)
    else:
        result = _load(FORMATS[by_ending(path)].target)
    if inspect.isclass(result):
        result = result()
    if not callable(getattr(result, "save", None)):
        raise UsageError(f"{format!r} cannot write files: it has no save(path, run)")
    return _LegacyExporter(result) if _is_spread(result.save, 5) else result


class _LegacyExporter:
    """An exporter from before runs were one record: its ``save`` takes graph, metrics, limits and meta apart."""

    def __init__(self, exporter: Any) -> None:
        self.exporter = exporter

    def save(self, path: Any, run: Run) -> None:
        self.exporter.save(path, run.graph, run.metrics, run.limits, run.meta)


def _is_spread(function: Any, count: int) -> bool:
    """Whether a user's function needs the parts of a run one by one, which is deprecated."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [row for row in parameters if row.kind in positional and row.default is inspect.Parameter.empty]
    if len(needed) != count:
        return False
    warnings.warn(
        f"{getattr(function, '__qualname__', function)} takes graph, metrics, limits and meta one by one; take one run "
        "in their place, which has all four",
        DeprecationWarning,
        stacklevel=4,
    )
    return True


def renderer_called(name: str, run: Run, look: Any) -> Any:
    """The figure of a run by the renderer of a name."""
    draw = drawer(name)
    if _is_spread(draw, 5):
        return draw(run.graph, run.metrics, run.limits, run.meta, look)
    return draw(run, look)


def drawer(name: str) -> Any:
    """What draws figures under a name: a callable of a run and the look of the figure."""
    if not isinstance(name, str):
        raise UsageError(f"a renderer is named by a string, not {type(name).__name__}")
    if ":" in name:
        result = _own(name, "renderer")
    elif name in RENDERERS:
        result = _load(RENDERERS[name])
    else:
        raise no_match("renderer", name, RENDERERS)
    if inspect.isclass(result):
        result = result()
    if not callable(result):
        raise UsageError(f"{name!r} cannot draw: it is not a callable of (run, look)")
    return result


def by_ending(path: str | os.PathLike[str]) -> str:
    """The name of the format whose ending a path has, the longest first."""
    name = os.path.basename(os.fspath(path)).lower()
    endings = {ending: row for row, format in FORMATS.items() for ending in format.endings}
    for ending in sorted(endings, key=len, reverse=True):
        if name.endswith(ending):
            return endings[ending]
    raise no_match("file format", os.path.splitext(name)[1] or name, endings)


def _row(name: str) -> Format:
    """A format by its name or by one of its endings, however written."""
    plain = name.lower().lstrip(".")
    for known, format in FORMATS.items():
        if plain == known or f".{plain}" in format.endings:
            return format
    raise no_match("file format", name, FORMATS)


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    result = import_module(module)
    return getattr(result, attribute) if attribute else result


def _own(target: str, kind: str) -> Any:
    """What a user's ``package.module:Object`` names."""
    try:
        return _load(target)
    except ModuleNotFoundError as error:
        if not target.partition(":")[0].startswith(error.name or "?"):
            # it is there, and something that it imports is not
            raise
        raise NoMatch(f"no {kind} {target!r}: there is no module {error.name!r}") from error
    except AttributeError as error:
        raise NoMatch(f"no {kind} {target!r}: {error}") from error
