"""Which box an operation is drawn in, and what the box is called.

A *box* becomes one node with a body. It holds the operations that one part of the run (forward, backward, …) did in one
call of a module. Autograd may come back to a module after others have used what it made; where that would close a
cycle, the module goes on in a further box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_vis.exporters.facts import clean
from torch_vis.exporters.nesting import RunPart, Stretches, main_scope, node_parts, node_reads
from torch_vis.graph import Graph
from torch_vis.graph.schema import Module
from torch_vis.graph.types import Ints

Step = tuple[int, int]  # down into a box: its scope, and the number of a stretch of that or -1
BOX_DEPTH = 24  # of boxes in boxes: protobuf reads no deeper than 100 messages, and each box takes three


@dataclass(slots=True)
class OnnxBox:
    """A call of a module, or as much of it as one part of the run did in one go; box 0 is the run."""

    number: int
    scope: int
    part: RunPart
    path: tuple[int, ...]  # the boxes around it from box 0 on, itself included
    level: int = 0  # above the level of everything beside it that it depends on
    first: int = 0  # its earliest operation
    last: int = 0  # its latest operation
    run: int = 0  # how many boxes this call had in the same place and part before
    stretch: int = -1  # the number among the stretches of its scope, where it is one of those
    used: bool = False  # something beside it depends on it
    tangled: bool = False  # its items depend on items that began later
    items: list[int] = field(default_factory=list)  # operations, and boxes as ~number, as they begin
    open: dict[tuple[Step, RunPart], int] = field(default_factory=dict)

    @property
    def parent(self) -> int:
        """The box around it."""
        return self.path[-2]


class Boxes:
    """Every box of a graph, and for each operation the innermost one that it is in.

    ``node_level`` orders the operations of a box, as ``Box.level`` does the boxes in it: what depends on something
    beside it has the higher level, so no cycle is possible.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.root = main_scope(graph)
        self.boxes = [OnnxBox(0, self.root, RunPart.FORWARD, (0,))]
        self.home: list[int] = []
        self.node_level: list[int] = []
        self._chains: dict[tuple[int, RunPart], tuple[Step, ...]] = {}
        self._scope_parent: list[int] = graph.scope_parent.tolist()
        self._place_all(node_parts(graph))

    def __getitem__(self, number: int) -> OnnxBox:
        return self.boxes[number]

    def __len__(self) -> int:
        return len(self.boxes)

    def ordered(self, box: OnnxBox) -> list[int]:
        """The items of a box so that each comes after what it depends on, else as they ran."""
        if not box.tangled:
            return box.items
        return sorted(
            box.items, key=lambda item: self.boxes[~item].level if item < 0 else self.node_level[item]
        )

    def _place_all(self, parts: Ints) -> None:
        self._stretches = Stretches(self.graph, parts, self.root)
        scopes = self.graph.node_scope.tolist()
        for node, (scope, code, sources) in enumerate(zip(scopes, parts.tolist(), _node_sources(self.graph))):
            part = RunPart(code)
            chain = (*self._chain(scope, part), *self._stretch(scope, part))
            self._place(node, chain[:BOX_DEPTH], part, sources)

    def _place(self, node: int, chain: Sequence[Step], part: RunPart, sources: list[int]) -> None:
        """Walk from the run down to the operation's box, opening a box where the one at hand would close a cycle."""
        box = self.boxes[0]
        for step in chain:
            at_hand = box.open.get((step, part), -1)
            inside, outside = self._divide(box, sources, at_hand)
            level, latest = self._above(box, outside)
            if at_hand < 0 or (level > self.boxes[at_hand].level and self.boxes[at_hand].used):
                if at_hand >= 0:
                    self.boxes[at_hand].used = True
                    level = max(level, self.boxes[at_hand].level + 1)
                at_hand, inside = self._open(box, step, part, node, level, at_hand), []
            inner = self.boxes[at_hand]
            inner.last = node
            inner.level = max(inner.level, level)
            box.tangled |= latest > inner.first
            box, sources = inner, inside
        level, _ = self._above(box, sources)
        box.items.append(node)
        self.home.append(box.number)
        self.node_level.append(level)

    def _open(self, box: OnnxBox, step: Step, part: RunPart, node: int, level: int, before: int) -> int:
        number = len(self.boxes)
        path = (*box.path, number)
        run = self.boxes[before].run + 1 if before >= 0 else 0
        self.boxes.append(OnnxBox(number, step[0], part, path, level, node, run=run, stretch=step[1]))
        box.open[step, part] = number
        box.items.append(~number)
        return number

    def _divide(self, box: OnnxBox, sources: list[int], at_hand: int) -> tuple[list[int], list[int]]:
        """The sources inside a box of this box, and the others in this box."""
        inside: list[int] = []
        outside: list[int] = []
        depth = len(box.path)
        for source in sources:
            path = self.boxes[self.home[source]].path
            (inside if len(path) > depth and path[depth] == at_hand else outside).append(source)
        return inside, outside

    def _above(self, box: OnnxBox, sources: list[int]) -> tuple[int, int]:
        """The lowest level above all of the sources, and when the last of them began; marks the boxes as used."""
        level, latest, depth = 0, -1, len(box.path)
        for source in sources:
            path = self.boxes[self.home[source]].path
            if len(path) > depth:
                beside = self.boxes[path[depth]]
                beside.used = True
                level, latest = max(level, beside.level + 1), max(latest, beside.first)
            else:
                level, latest = max(level, self.node_level[source] + 1), max(latest, source)
        return level, latest

    def _chain(self, scope: int, part: RunPart) -> tuple[Step, ...]:
        """The steps from the main graph down to a scope."""
        above = []
        while self._stretches.inside(scope) and (scope, part) not in self._chains:
            above.append(scope)
            scope = self._scope_parent[scope]
        chain = self._chains.get((scope, part), ())
        for inner in reversed(above):
            between = self._stretch(self._scope_parent[inner], part)
            chain = self._chains[inner, part] = (*chain, *between, (inner, -1))[:BOX_DEPTH]
        return chain

    def _stretch(self, scope: int, part: RunPart) -> tuple[Step, ...]:
        """The step into the stretch of the next thing that is directly in a scope; none where it has no stretches."""
        number = self._stretches.next(scope, part)
        return () if number < 0 else ((self._stretches.inside(scope) or self.root, number),)


def common_sites(boxes: Boxes) -> list[int]:
    """For each box that did not run in forward, the one source line of all its operations; -1 where there is none.

    All of backward was called from one line as a rule. Said once, it does not drown the lines of the model.
    """
    unseen, mixed = -2, -1
    sites = [unseen] * len(boxes)
    for site, home in zip(boxes.graph.node_site.tolist(), boxes.home):
        sites[home] = site if sites[home] in (unseen, site) else mixed
    for number in range(len(boxes) - 1, 0, -1):
        parent = boxes[number].parent
        sites[parent] = sites[number] if sites[parent] in (unseen, sites[number]) else mixed
    return [mixed if boxes[n].part == RunPart.FORWARD else site for n, site in enumerate(sites)]


def _node_sources(graph: Graph) -> list[list[int]]:
    """For each operation the earlier ones that it depends on, each once."""
    producers = graph.value_producer.tolist()
    return [
        list(dict.fromkeys(producers[value] for _, value in reads if producers[value] >= 0))
        for reads in node_reads(graph)
    ]


SUFFIXES = {RunPart.BACKWARD: " backward", RunPart.RECOMPUTE: " recompute"}


def module_of(boxes: Boxes, box: OnnxBox) -> Module:
    """What a box is a call of."""
    graph = boxes.graph
    return graph.modules[int(graph.scope_module[box.scope])]


def box_title(boxes: Boxes, box: OnnxBox) -> str:
    """The words on a box: the class and the part of the run."""
    if box.stretch >= 0:
        return f"operations{SUFFIXES.get(box.part, '')}"
    return clean((module_of(boxes, box).type or "module") + SUFFIXES.get(box.part, ""))


def box_name(boxes: Boxes, box: OnnxBox) -> str:
    """A box's name: the module's path, and what tells its boxes apart."""
    module = module_of(boxes, box)
    what = (module.path or module.type or "module") + _call(boxes, box) + SUFFIXES.get(box.part, "")
    return what + (f" {_range(box)}" if box.stretch >= 0 else _run(box))


def body_name(boxes: Boxes, box: OnnxBox) -> str:
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


def _call(boxes: Boxes, box: OnnxBox) -> str:
    call = int(boxes.graph.scope_call[box.scope])
    return f" call {call + 1}" if call else ""


def _run(box: OnnxBox) -> str:
    return f" part {box.run + 1}" if box.run else ""


def _range(box: OnnxBox) -> str:
    """The operations of a stretch, by their numbers."""
    return f"{box.first}–{box.last}"
