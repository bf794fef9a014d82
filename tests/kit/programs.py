"""Random tensor programs as data: a list of instructions, run on tensors and, to know the truth, on a shadow of them.

The shadow holds, for every element of every block of memory, the number of the write that put it there. A write
depends on the writes that made the elements it read, all of them, because one operation is one node of the graph.
That gives, by plain bookkeeping on single elements, what `Graph.ancestors` has to find out from regions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

import torch_vis as tv


class Step(NamedTuple):
    """One instruction; the numbers are taken modulo what is possible, so that every step can run."""

    kind: str
    a: int
    b: int
    i: int
    j: int
    k: int


VIEWS = (
    "select slice narrow transpose flatten unbind split expand as_strided diagonal detach unsqueeze movedim unfold"
).split()
FRESH = "clone add flip cat sum reshape contiguous index_select rand_like dropout var_mean where tanh".split()
WRITES = "add_ mul_ copy_ zero_ fill_ index_put_ masked_fill_ out normal_ foreach_add_ index_copy_ addcmul_".split()
WRITES.append("swap")
OTHER = "drop branch".split()
SMOOTH_WRITES = "add_ scale_ copy_ zero_ fill_ masked_fill_".split()
SMOOTH_FRESH = "clone add flip cat sum reshape contiguous index_select dropout tanh where".split()


def programs(kinds: list[str], *, most: int = 14) -> st.SearchStrategy[list[Step]]:
    """Lists of instructions of the given kinds."""
    small = st.integers(0, 7)
    step = st.builds(Step, st.sampled_from(kinds), small, small, small, small, small)
    return st.lists(step, min_size=1, max_size=most)


class Shadow:
    """Who wrote each element, and what each write rested on."""

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[Any, Tensor]] = {}
        self.rests_on: list[frozenset[str]] = []

    def event(self, names: frozenset[str]) -> int:
        self.rests_on.append(names)
        return len(self.rests_on) - 1

    def cells(self, tensor: Tensor) -> Tensor:
        """The shadow of a tensor's elements, as a view into the shadow of its memory."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.blocks:
            count = storage.nbytes() // tensor.element_size()
            self.blocks[storage._cdata] = (storage, torch.full((max(count, 1),), -1))
        block = self.blocks[storage._cdata][1]
        return block.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def rests(self, *tensors: Tensor) -> frozenset[str]:
        """The names of the inputs that these tensors' elements come from."""
        events = {event for tensor in tensors for event in self.cells(tensor).reshape(-1).tolist()}
        return frozenset().union(*(self.rests_on[event] for event in events if event >= 0))

    def source(self, name: str, tensor: Tensor) -> None:
        self.cells(tensor).fill_(self.event(frozenset([name])))

    def wrote(self, written: list[Tensor], read: list[Tensor]) -> None:
        event = self.event(self.rests(*read))
        for tensor in written:
            self.cells(tensor).fill_(event)


class Machine:
    """Runs a program on registers; with a shadow, keeps the books."""

    def __init__(self, registers: list[Tensor], tags: list[Tensor], shadow: Shadow | None = None) -> None:
        self.registers = list(registers)
        self.tags = tags
        self.shadow = shadow

    def run(self, program: list[Step]) -> None:
        for place, step in enumerate(program):
            getattr(self, step.kind)(step, self.tags[place])

    def pick(self, number: int) -> Tensor:
        return self.registers[number % len(self.registers)]

    def views(self, *tensors: Tensor) -> None:
        self.registers.extend(tensor for tensor in tensors if tensor.numel())
        del self.registers[:-12]

    def made(self, tensors: list[Tensor], read: list[Tensor]) -> None:
        """New memory, or a view if the operation found that it needed none."""
        if self.shadow is not None:
            known = self.shadow.blocks
            if all(tensor.untyped_storage()._cdata not in known for tensor in tensors):
                self.shadow.wrote(tensors, read)
        self.views(*tensors)

    def wrote(self, written: list[Tensor], read: list[Tensor]) -> None:
        if self.shadow is not None:
            self.shadow.wrote(written, read)

    def target(self, number: int) -> Tensor | None:
        """A register that can be written: no two of its elements share memory."""
        tensor = self.pick(number)
        return None if overlaps(tensor) else tensor

    # ------------------------------------------------------------ views

    def select(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            dim = s.i % x.dim()
            self.views(x.select(dim, s.j % x.shape[dim]))

    def slice(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            dim = s.i % x.dim()
            index: list[Any] = [slice(None)] * x.dim()
            index[dim] = slice(s.j % x.shape[dim], None, 1 + s.k % 3)
            self.views(x[tuple(index)])

    def narrow(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            dim = s.i % x.dim()
            start = s.j % x.shape[dim]
            self.views(x.narrow(dim, start, 1 + s.k % (x.shape[dim] - start)))

    def transpose(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            self.views(x.transpose(s.i % x.dim(), s.j % x.dim()))

    def movedim(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            self.views(x.movedim(s.i % x.dim(), s.j % x.dim()))

    def flatten(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.is_contiguous():
            self.views(x.view(-1))

    def unbind(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            self.views(*x.unbind(s.i % x.dim())[:3])

    def split(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            self.views(*x.split(1 + s.j % 3, s.i % x.dim())[:3])

    def expand(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim() < 3:
            self.views(x.unsqueeze(0).expand(2, *x.shape))

    def unsqueeze(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim() < 3:
            self.views(x.unsqueeze(s.i % (x.dim() + 1)))

    def diagonal(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim() > 1:
            self.views(x.diagonal(s.j % 3 - 1, 0, 1))

    def unfold(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if 0 < x.dim() < 3:
            dim = s.i % x.dim()
            self.views(x.unfold(dim, 1 + s.j % x.shape[dim], 1 + s.k % 2))

    def as_strided(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        room = x.untyped_storage().nbytes() // x.element_size()
        start = s.i % room
        step = 1 + s.j % 4
        rows = 1 + s.k % 3
        columns = 1 + s.b % 3
        if start + (rows - 1) * step + (columns - 1) * 2 < room:
            self.views(x.as_strided((rows, columns), (step, 2), start))

    def detach(self, s: Step, tag: Tensor) -> None:
        self.views(self.pick(s.a).detach())

    # ------------------------------------------------------------ new tensors

    def clone(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        self.made([x.clone()], [x])

    def add(self, s: Step, tag: Tensor) -> None:
        x, y = self.pick(s.a), self.pick(s.b)
        if broadcasts(x, y) is None:
            y = tag
        self.made([x + y], [x, y])

    def tanh(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        self.made([x.tanh()], [x])

    def flip(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            self.made([x.flip(s.i % x.dim())], [x])

    def cat(self, s: Step, tag: Tensor) -> None:
        x, y = self.pick(s.a), self.pick(s.b)
        if x.dim() and x.shape == y.shape and x.numel() < 40:
            self.made([torch.cat([x, y], s.i % x.dim())], [x, y])

    def sum(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            self.made([x.sum(s.i % x.dim())], [x])

    def reshape(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        self.made([x.reshape(-1)], [x])

    def contiguous(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        self.made([x.contiguous()], [x])

    def index_select(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            dim = s.i % x.dim()
            self.made([x.index_select(dim, torch.tensor([s.j % x.shape[dim], 0]))], [x])

    def where(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        mask = (torch.arange(x.numel()) % 2 == 0).view(x.shape)
        self.made([torch.where(mask, x, tag)], [x, tag])

    def rand_like(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        self.made([torch.rand_like(x)], [])  # takes the shape of x and none of its bytes

    def dropout(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        self.made([torch.nn.functional.dropout(x, 0.5)], [x])

    def var_mean(self, s: Step, tag: Tensor) -> None:
        x = self.pick(s.a)
        if x.dim():
            self.made(list(torch.var_mean(x, s.i % x.dim(), correction=0)), [x])

    # ------------------------------------------------------------ writes

    def add_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            self.wrote([x.add_(tag)], [x, tag])

    def mul_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            self.wrote([x.mul_(tag)], [x, tag])

    def scale_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            self.wrote([x.mul_(0.75)], [x])

    def copy_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            y = self.pick(s.b)
            if broadcasts(x, y) != x.shape or y.untyped_storage()._cdata == x.untyped_storage()._cdata:
                y = tag
            self.wrote([x.copy_(y)], [y])

    def zero_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            self.wrote([x.zero_()], [])

    def fill_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            self.wrote([x.fill_(tag)], [tag])

    def normal_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            self.wrote([x.normal_()], [])

    def index_put_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None and x.dim():
            where = torch.tensor([s.i % x.shape[0]])
            self.wrote([x.index_put_((where,), tag, accumulate=bool(s.j % 2))], [x, tag])

    def index_copy_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None and x.dim():
            row = tag.expand(x[:1].shape)
            self.wrote([x.index_copy_(0, torch.tensor([s.i % x.shape[0]]), row)], [x, tag])

    def masked_fill_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            mask = (torch.arange(x.numel()) % 2 == 0).view(x.shape)
            self.wrote([x.masked_fill_(mask, tag)], [x, tag])

    def addcmul_(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            self.wrote([x.addcmul_(tag, tag, value=0.5)], [x, tag])

    def out(self, s: Step, tag: Tensor) -> None:
        if (x := self.target(s.a)) is not None:
            y = self.pick(s.b)
            if y.shape != x.shape or y.untyped_storage()._cdata == x.untyped_storage()._cdata:
                y = tag.expand(x.shape)
            torch.add(y, tag, out=x)
            self.wrote([x], [y, tag])

    def foreach_add_(self, s: Step, tag: Tensor) -> None:
        x, y = self.target(s.a), self.target(s.b)
        if x is None or y is None or x.untyped_storage()._cdata == y.untyped_storage()._cdata:
            return
        torch._foreach_add_(
            [x, y], [tag.expand(x.shape), tag.expand(y.shape)]
        )  # a lone number goes by item()
        self.wrote([x, y], [x, y, tag])

    def swap(self, s: Step, tag: Tensor) -> None:
        """Rows exchanged through a copy, as in-place sorts do."""
        if (x := self.target(s.a)) is not None and x.dim() and x.shape[0] > 1:
            kept = x[0].clone()
            if self.shadow is not None:
                self.shadow.wrote([kept], [x[0]])
            self.wrote([x[0].copy_(x[-1])], [x[-1]])
            self.wrote([x[-1].copy_(kept)], [kept])

    # ------------------------------------------------------------ the rest

    def drop(self, s: Step, tag: Tensor) -> None:
        if len(self.registers) > 1:
            del self.registers[s.a % len(self.registers)]

    def branch(self, s: Step, tag: Tensor) -> None:
        """A path chosen by a value that went to Python."""
        x = self.pick(s.a)
        if x.sum().item() > 0:
            self.made([x + tag], [x, tag])
        else:
            self.made([x - tag], [x, tag])


def overlaps(tensor: Tensor) -> bool:
    """Whether two elements of a tensor share memory, found by looking at every one."""
    places = [0]
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = [place + index * step for place in places for index in range(size)]
    return len(set(places)) != len(places)


def broadcasts(x: Tensor, y: Tensor) -> torch.Size | None:
    """The shape of two tensors together, None where they do not fit."""
    try:
        return torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        return None


def make_inputs(shapes: list[tuple[int, ...]], steps: int, seed: int) -> tuple[list[Tensor], list[Tensor]]:
    """Input tensors, and one number for every step so that its trace can be told from all others."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.rand(shape, generator=generator) + 0.5 for shape in shapes]
    tags = [torch.rand((), generator=generator) + 0.5 for _ in range(steps)]
    return inputs, tags


def run(program: list[Step], inputs: list[Tensor], tags: list[Tensor]) -> list[Tensor]:
    machine = Machine(inputs, tags)
    machine.run(program)
    return machine.registers[-4:]


def trace(program: list[Step], shapes: list[tuple[int, ...]], **options: Any) -> tv.Trace:
    inputs, tags = make_inputs(shapes, len(program), seed=0)
    return tv.trace(lambda inputs, tags: run(program, inputs, tags), inputs, tags, **options)


def truth(program: list[Step], shapes: list[tuple[int, ...]]) -> dict[str, frozenset[str]]:
    """For every output and every input at the end, the inputs that its elements come from, by bookkeeping."""
    inputs, tags = make_inputs(shapes, len(program), seed=0)
    torch.manual_seed(0)
    shadow = Shadow()
    for kind, group in (("inputs", inputs), ("tags", tags)):
        for place, tensor in enumerate(group):
            shadow.source(f"{kind}.{place}", tensor)
    machine = Machine(inputs, tags, shadow)
    machine.run(program)
    found = {f"output.{place}": shadow.rests(tensor) for place, tensor in enumerate(machine.registers[-4:])}
    found |= {f"inputs.{place}": shadow.rests(tensor) for place, tensor in enumerate(inputs)}
    return found


def connected(t: tv.Trace) -> dict[str, frozenset[str]]:
    """The same from the graph's edges."""
    graph = t.graph
    found = {}
    for result in graph.outcomes:
        _, values = graph.ancestors(result.sources())
        rows = [value for value in graph.inputs if values[value.index] and value.role == "input"]
        found[result.name] = frozenset(str(value.name) for value in rows)
    return found
