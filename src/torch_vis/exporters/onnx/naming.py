"""Names that ONNX can hold: valid text, and never the same twice."""

from __future__ import annotations

from collections.abc import Iterable

from torch_vis.exporters.onnx.boxes import Box, Boxes, Part
from torch_vis.graph import Graph
from torch_vis.graph.rows import Module
from torch_vis.graph.schema import Role
from torch_vis.graph.template import short_name

LONGEST = 500
SUFFIXES = {Part.BACKWARD: " backward", Part.RECOMPUTE: " recompute"}


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

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {"", *taken}
        self._next: dict[str, int] = {}

    def new(self, wanted: str) -> str:
        """The name wanted, or the next one like it."""
        name = wanted = clean(wanted)
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


def module_of(boxes: Boxes, box: Box) -> Module:
    """What a box is a call of."""
    graph = boxes.graph
    return graph.modules[int(graph.scope_module[box.scope])]


def box_title(boxes: Boxes, box: Box) -> str:
    """The words on a box: the class and the part of the run."""
    return clean((module_of(boxes, box).type or "module") + SUFFIXES.get(box.part, ""))


def box_name(boxes: Boxes, box: Box) -> str:
    """A box's name: the module's path, and what tells its boxes apart."""
    module = module_of(boxes, box)
    return (
        (module.path or module.type or "module") + _call(boxes, box) + SUFFIXES.get(box.part, "") + _run(box)
    )


def body_name(boxes: Boxes, box: Box) -> str:
    """The name of a box's body: the module's path from the box around it on.

    Netron shows what follows the last dot, so the steps of the path are parted by slashes.
    """
    module, above = module_of(boxes, box), module_of(boxes, boxes[box.parent])
    path = module.path
    if above.path and path.startswith(f"{above.path}."):
        path = path[len(above.path) + 1 :]
    return clean((path or module.type or "module").replace(".", "/") + _call(boxes, box) + _run(box))


def _call(boxes: Boxes, box: Box) -> str:
    call = int(boxes.graph.scope_call[box.scope])
    return f" call {call + 1}" if call else ""


def _run(box: Box) -> str:
    return f" part {box.run + 1}" if box.run else ""
