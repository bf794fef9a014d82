"""What a box is called: its title, its name and that of its body."""

from __future__ import annotations

from torch_vis.exporters.names import Names, clean
from torch_vis.exporters.onnx.boxes import Box, Boxes
from torch_vis.exporters.reading import Part
from torch_vis.graph.schema import Module

__all__ = ["Names", "body_name", "box_name", "box_title", "clean", "module_of"]

SUFFIXES = {Part.BACKWARD: " backward", Part.RECOMPUTE: " recompute"}


def module_of(boxes: Boxes, box: Box) -> Module:
    """What a box is a call of."""
    graph = boxes.graph
    return graph.modules[int(graph.scope_module[box.scope])]


def box_title(boxes: Boxes, box: Box) -> str:
    """The words on a box: the class and the part of the run."""
    if box.stretch >= 0:
        return f"operations{SUFFIXES.get(box.part, '')}"
    return clean((module_of(boxes, box).type or "module") + SUFFIXES.get(box.part, ""))


def box_name(boxes: Boxes, box: Box) -> str:
    """A box's name: the module's path, and what tells its boxes apart."""
    module = module_of(boxes, box)
    what = (module.path or module.type or "module") + _call(boxes, box) + SUFFIXES.get(box.part, "")
    return what + (f" {_range(box)}" if box.stretch >= 0 else _run(box))


def body_name(boxes: Boxes, box: Box) -> str:
    """The name of a box's body: the module's path from the box around it on.

    Netron shows what follows the last dot, so the steps of the path are parted by slashes.
    """
    if box.stretch >= 0:
        return _range(box)
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


def _range(box: Box) -> str:
    """The operations of a stretch, by their numbers."""
    return f"{box.first}–{box.last}"
