"""Names for other tools: valid text, never the same twice, and the way back to the graph."""

from __future__ import annotations

from collections.abc import Iterable

from torch_vis.graph import Graph
from torch_vis.graph.call import short_name
from torch_vis.graph.schema import Role

LONGEST = 2000


def clean(text: str, longest: int = LONGEST) -> str:
    """Text that can be written as UTF-8, cut in the middle where it is very long.

    >>> clean("caf\\udce9"), clean("0123456789", 5)
    ('caf?', '01…89')
    """
    if len(text) > longest:
        text = f"{text[: longest // 2]}…{text[-(longest // 2) :]}"
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Names:
    """Hands out names; one that is taken gets a number."""

    def __init__(self, taken: Iterable[str] = (), *, longest: int = LONGEST) -> None:
        self._taken = {"", *taken}
        self._next: dict[str, int] = {}
        self._longest = longest

    def new(self, wanted: str) -> str:
        """The name wanted, or the next one like it."""
        name = wanted = clean(wanted, self._longest)
        while name in self._taken:
            number = self._next[wanted] = self._next.get(wanted, 1) + 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


def outside_name(graph: Graph, value: int) -> str:
    """The name of a value that came from outside, or what it is."""
    name = int(graph.value_name[value])
    role = Role(graph.value_role[value]).name.lower()
    return graph.names[name] if name >= 0 and graph.names[name] else f"{role}_{value}"


def node_names(graph: Graph) -> list[str]:
    """A name for each operation that also finds it in the graph: ``addmm_31`` is ``graph.nodes[31]``."""
    short = [clean(short_name(call.op)) or "operation" for call in graph.calls]
    return [f"{short[call]}_{node}" for node, call in enumerate(graph.node_call.tolist())]
