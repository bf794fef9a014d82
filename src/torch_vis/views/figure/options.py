"""What a figure shows and how it looks, as a person asks for it: one set of options for every renderer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch_vis.errors import UsageError, no_match
from torch_vis.graph import Graph
from torch_vis.graph.query.selector import glob_expression, operator_names
from torch_vis.graph.schema import Phase, Role
from torch_vis.ops.display_names import op_label

Depth = int | Literal["auto"] | None
# A path, class, operator or input by its name, in which * stands for a part of a path and ** for any; a class; or a
# function of a module's path and class.
Pattern = str | type | Callable[[str, str], bool]
Patterns = Pattern | Iterable[Pattern]

PHASES = {phase.name.lower(): phase for phase in Phase}
DIRECTIONS = ("TB", "LR")
HEX = re.compile(r"#(?:[0-9a-fA-F]{3}){1,2}")
NAMED_COLORS = {
    "black": "#000000",
    "blue": "#4c8fd6",
    "brown": "#b08968",
    "cyan": "#7fd1da",
    "gray": "#b8bec7",
    "green": "#8fce8a",
    "grey": "#b8bec7",
    "orange": "#f5b266",
    "pink": "#f4b6d2",
    "purple": "#bfa3e0",
    "red": "#ee8b84",
    "teal": "#6cc0b2",
    "white": "#ffffff",
    "yellow": "#f6dd7c",
}


@dataclass(frozen=True, slots=True)
class FigureOptions:
    """What a figure shows and how it is coloured; the same for every renderer."""

    depth: Depth = "auto"
    color: str = "type"
    phase: str | None = None
    direction: str = "TB"
    labels: Mapping[Pattern, str] = field(default_factory=dict)
    colors: Mapping[Pattern, str] = field(default_factory=dict)
    hide: Patterns = ()
    only: Patterns = ()
    collapse: Patterns = ()
    highlight: Patterns = ()
    title: str | None = None
    legend: bool = True
    shapes: bool = True

    def __post_init__(self) -> None:
        if self.depth is not None and self.depth != "auto" and not _is_depth(self.depth):
            raise UsageError(
                f"depth is a number from 0 on, None for everything or 'auto', not {self.depth!r}"
            )
        if self.phase is not None and self.phase not in PHASES:
            raise no_match("phase", str(self.phase), PHASES)
        if self.direction not in DIRECTIONS:
            raise no_match("direction", str(self.direction), DIRECTIONS)
        for name in ("labels", "colors"):
            if not isinstance(getattr(self, name), Mapping):
                raise UsageError(
                    f"{name} is a dictionary by module, class or operator, such as {EXAMPLES[name]}"
                )
        for color in self.colors.values():
            color_of(color)
        for pattern, text in self.labels.items():
            if not isinstance(text, str):
                raise UsageError(f"the label of {pattern!r} is a text, not {text!r}")
        if not isinstance(self.color, str):
            raise UsageError(f"color is 'type', 'none', or a measure such as 'time', not {self.color!r}")
        if self.title is not None and not isinstance(self.title, str):
            raise UsageError(
                f"title is a text, '' for none, or None for the run's own name, not {self.title!r}"
            )
        for name in ("legend", "shapes"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is True or False, not {getattr(self, name)!r}")

    @property
    def is_sideways(self) -> bool:
        """Whether the picture is read from left to right."""
        return self.direction == "LR"


EXAMPLES = {
    "labels": "{'encoder': 'Encoder'}",
    "colors": "{'Linear': '#9fcbe8'}",
}


def color_of(color: str) -> str:
    """A colour as #rrggbb, given so, as #rgb, or by a common name.

    >>> color_of("#fa0"), color_of("teal")
    ('#ffaa00', '#6cc0b2')
    """
    if isinstance(color, str) and color in NAMED_COLORS:
        return NAMED_COLORS[color]
    if not isinstance(color, str) or not HEX.fullmatch(color):
        raise UsageError(f"{color!r} is no colour; write '#9fcbe8', or one of {', '.join(NAMED_COLORS)}")
    return color.lower() if len(color) == 7 else "#" + "".join(2 * letter for letter in color[1:]).lower()


def _is_depth(depth: object) -> bool:
    return isinstance(depth, int) and not isinstance(depth, bool) and depth >= 0


class ItemNames:
    """What is known by which names in a graph: answers which of the patterns of a figure an item matches."""

    def __init__(self, graph: Graph, options: FigureOptions) -> None:
        self.graph = graph
        self.options = options
        self._known: dict[str, re.Pattern[str]] = {}
        for name in ("labels", "colors", "hide", "only", "collapse", "highlight"):
            for pattern in patterns(getattr(options, name)):
                self._check(pattern)

    def matches(self, chosen: Patterns, kind: str, label: str, type: str, elements: Sequence[int]) -> bool:
        """Whether one of the patterns names an item: its module, its class, its operator, or what it is called."""
        return any(self.is_named(pattern, kind, label, type, elements) for pattern in patterns(chosen))

    def is_named(self, pattern: Pattern, kind: str, label: str, type: str, elements: Sequence[int]) -> bool:
        """Whether a pattern names an item."""
        if not isinstance(pattern, str):
            wanted = _by_class(pattern)
            return kind == "module" and any(wanted(path, type) for path in self.paths(elements))
        expression = self._expression(pattern)
        names = {label, type, *self.paths(elements)}
        if any(expression.fullmatch(name) for name in names if name):
            return True
        return kind == "operation" and any(map(expression.fullmatch, self._operators(elements)))

    def is_around(self, chosen: Patterns, elements: Sequence[int]) -> bool:
        """Whether something inside of these modules is named by one of the patterns."""
        if not chosen:
            return False
        graph = self.graph
        scopes = [~element for element in elements if element < 0][:1]
        if not scopes:
            return False
        enter, leave = (int(column[scopes[0]]) for column in (graph.tree.enter, graph.tree.leave))
        inside = (graph.tree.enter > enter) & (graph.tree.enter < leave)
        for scope in inside.nonzero()[0].tolist():
            _, type, kind = graph.modules[graph.scope_module[scope]]
            if kind == "module" and self.matches(chosen, "module", "", type, [~scope]):
                return True
        return False

    def paths(self, elements: Sequence[int]) -> list[str]:
        """The paths of the modules among elements."""
        return [self.graph.scope_paths[~element] for element in elements if element < 0]

    def _operators(self, elements: Sequence[int]) -> Iterator[str]:
        for element in elements[:1]:
            yield from operator_names(self.graph.calls[self.graph.node_call[element]].op)

    def _expression(self, pattern: str) -> re.Pattern[str]:
        if pattern not in self._known:
            self._known[pattern] = re.compile(glob_expression(pattern, part="[^.]"), re.DOTALL)
        return self._known[pattern]

    def _check(self, pattern: Pattern) -> None:
        """Refuse a pattern that names nothing of the run."""
        graph = self.graph
        if isinstance(pattern, str):
            expression = self._expression(pattern)
            names = list(self._names())
            if not any(expression.fullmatch(name) for name in names):
                raise no_match("module, class or operator", pattern, sorted(set(names)))
            return
        wanted = _by_class(pattern)
        if not isinstance(pattern, type):
            _try(pattern, graph.modules[0])
        if isinstance(pattern, type) and not any(wanted(row.path, row.type) for row in graph.modules):
            raise no_match("class", pattern.__name__, sorted({row.type for row in graph.modules}))

    def _names(self) -> Iterator[str]:
        graph = self.graph
        for row in graph.modules:
            yield from filter(None, (row.path, row.type, row.path.rpartition(".")[2]))
        for call in graph.calls:
            yield from (op_label(call.op), *operator_names(call.op))
        for value in (graph.value_role == Role.INPUT).nonzero()[0].tolist():
            if graph.value_name[value] >= 0:
                yield graph.names[graph.value_name[value]]
        yield from (row.name for row in graph.results)


def patterns(chosen: Any) -> list[Pattern]:
    """One pattern or several as a list."""
    if isinstance(chosen, (str, type)) or callable(chosen):
        return [chosen]
    try:
        result = list(chosen)
    except TypeError:
        result = [chosen]
    for pattern in result:
        if not isinstance(pattern, (str, type)) and not callable(pattern):
            raise UsageError(
                f"modules are chosen by path, class or operator ('encoder.*', 'Linear', 'relu'), by a class, or by a "
                f"function of path and class, not by {type(pattern).__name__}"
            )
    return result


def _try(pattern: Any, row: Any) -> None:
    """Refuse a function that does not take a path and a class."""
    try:
        inspect.signature(pattern).bind(row.path, row.type)
    except TypeError:
        raise UsageError(
            "a function that chooses modules takes two arguments, the path and the name of the class: "
            "lambda path, cls: cls == 'Block'"
        ) from None
    except ValueError:
        # A function of another language does not say what it takes.
        return


def _by_class(pattern: Any) -> Callable[[str, str], bool]:
    if isinstance(pattern, type):
        return lambda _path, type: type == pattern.__name__

    def chosen(path: str, type: str) -> bool:
        try:
            return bool(pattern(path, type))
        except Exception as error:
            raise UsageError(
                f"the function that chooses modules raised {error.__class__.__name__}: {error}, for the path {path!r} "
                f"and the class {type!r}"
            ) from error

    return chosen
