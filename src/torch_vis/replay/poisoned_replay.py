"""A replay in which an operation sees only what its own edges name; everything else is poison.

The proof of edges (``edge_proof``) has shown that the edges name every byte that an operation reads by its definition.
What they do not name, an argument of which only the shape counts or that is overwritten, is poison here, and in code
that is not torch's own also what lies around the arguments in their memory. Each such operation runs on two different
poisons and on the real bytes: it must give the same bits three times, and change nothing that it does not write.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_vis.capture.kept_tensors import KeptTensors
from torch_vis.errors import CheckFailed, TorchVisError
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import RECORDED, Flag, Kind
from torch_vis.ops.collectives import NAMESPACES
from torch_vis.replay.edge_proof import area_of, effects
from torch_vis.replay.replay import Replay, ReplayPlan, flat, node_text, poisoned, same_bits

# the bytes of a poison: NaN and -1 or true, and large numbers or false
POISONS = ((0xFF, 1), (0x55, 0))
# operators of these are torch's own kernels, which read no memory beyond their arguments and declare what they write
TORCH = frozenset({"aten", "prims", "quantized"})
# private memory begins where the real one could: as far into a line of the cache
ALIGNMENT = 64
RANDOM, SHAPE = int(Flag.RANDOM), int(Kind.SHAPE)


class PoisonedReplay(Replay):
    """A replay in order that tries each operation on poison first."""

    def __init__(self, graph: Graph, held: KeptTensors, plan: ReplayPlan) -> None:
        super().__init__(graph, held, plan)
        self._effects = [effects(call, graph.groups) for call in graph.calls]
        self._foreign = [
            call.op.partition("::")[0] not in TORCH | NAMESPACES | {"torch_vis"} for call in graph.calls
        ]
        self._unnamed_nodes = set(graph.in_node[(graph.in_kind == SHAPE) & (graph.in_slot >= 0)].tolist())

    def run_node(self, node: int, states: dict[int, Any] | None) -> None:
        """Execute one node; before that, on poison, if there is anything that its edges do not name."""
        unnamed = self._unnamed(node)
        if not unnamed and not self._is_foreign(node):
            super().run_node(node, states)
            return
        trials = [self._trial(node, unnamed, poison, states) for poison in POISONS]
        super().run_node(node, states)
        for value, *given in zip(self._made(node), *trials, strict=True):
            truth = self.tensor(value)
            if not all(same_bits(tensor, truth) for tensor in given):
                raise CheckFailed(self._reads_more(node, unnamed))

    def _unnamed(self, node: int) -> frozenset[int]:
        """The slots whose contents no edge names."""
        if node not in self._unnamed_nodes or not self._can_be_tried(node):
            return frozenset()
        arguments, types = self.plan.arguments(node), self.graph.types
        rows = {slot: types[self.graph.value_type[value]] for slot, value in enumerate(arguments)}
        unread = self._effects[self.graph.node_call[node]].unread
        return frozenset(
            s for s, row in rows.items() if s in unread and row.layout == "strided" and row.numel
        )

    def _is_foreign(self, node: int) -> bool:
        return self._foreign[self.graph.node_call[node]] and self._can_be_tried(node)

    def _can_be_tried(self, node: int) -> bool:
        """Not code that could not be looked into, nor what gives memory as it comes, nor tensors without contents."""
        if self.plan.flags[node] & RECORDED or self._effects[self.graph.node_call[node]].undefined:
            return False
        storages = self.graph.value_storage[self.plan.arguments(node)].tolist()
        blocks = [self.memory[storage] for storage in storages if storage in self.memory]
        return all(block.device.type != "meta" for block in blocks)

    def _made(self, node: int) -> list[int]:
        values: list[int] = self.graph.out_value[slice(*self.graph.output_span(node))].tolist()
        return values

    def _trial(
        self, node: int, unnamed: frozenset[int], poison: tuple[int, int], states: dict[int, Any] | None
    ) -> list[torch.Tensor]:
        """What a node makes, in the order of its outputs, where all that its edges do not name is poison."""
        graph, arguments = self.graph, self.plan.arguments(node)
        foreign = self._is_foreign(node)
        writes = self._effects[graph.node_call[node]].writes or frozenset()
        apart = set(range(len(arguments))) if foreign else set(unnamed | writes)
        try:
            tensors = self._private(node, arguments, unnamed, apart, poison)
            if self.plan.flags[node] & RANDOM and states is not None:
                self._seed(node, states)
            result = list(flat(self.call(node, tensors)))
            slots = graph.out_slot[slice(*graph.output_span(node))].tolist()
            written = [tensors[-1 - slot] for slot in slots if slot < 0]
            fresh = [tensor for tensor in result if not any(tensor is other for other in written)]
            made = [tensors[-1 - slot] if slot < 0 else fresh[slot] for slot in slots]
        except TorchVisError:
            raise
        except Exception as error:
            raise CheckFailed(
                f"{self._reads_more(node, unnamed)}: {type(error).__name__}: {error}"
            ) from error
        if foreign:
            for slot, value in enumerate(arguments):
                if slot not in writes | unnamed and not same_bits(tensors[slot], self.tensor(value)):
                    raise CheckFailed(
                        f"{node_text(graph, node)} writes to %{value}, and the graph does not say so"
                    )
        return made

    def _private(
        self,
        node: int,
        arguments: list[int],
        unnamed: frozenset[int],
        apart: set[int],
        poison: tuple[int, int],
    ) -> list[torch.Tensor]:
        """A node's arguments, those in ``apart`` and what shares their memory on poisoned memory of their own."""
        graph = self.graph
        storages = {
            int(graph.value_storage[arguments[slot]])
            for slot in apart
            if graph.types[graph.value_type[arguments[slot]]].layout == "strided"
        }
        blocks = {storage: self._poisoned_block(storage, arguments, poison) for storage in storages}
        tensors: dict[int, torch.Tensor] = {}
        for slot, value in enumerate(arguments):
            storage = int(graph.value_storage[value])
            if storage not in blocks:
                tensors.setdefault(value, self.tensor(value))
                if slot in apart:  # without plain memory, and perhaps written
                    tensors[value] = tensors[value].clone()
                continue
            block, shift = blocks[storage]
            if value not in tensors:
                tensors[value] = self.on_block(value, block, shift)
            if slot not in unnamed:
                _fill(tensors[value], self.tensor(value))
        return [tensors[value] for value in arguments]

    def _poisoned_block(
        self, storage: int, arguments: list[int], poison: tuple[int, int]
    ) -> tuple[torch.UntypedStorage, int]:
        """Memory for all arguments that lie in one block, and at which of its bytes it begins."""
        graph = self.graph
        rows = [(value, graph.types[graph.value_type[value]]) for value in arguments]
        on_it = [(value, row) for value, row in rows if graph.value_storage[value] == storage]
        spans = [area_of(row, int(graph.value_offset[value])).span for value, row in on_it]
        start = min((span.start for span in spans if span), default=0) // ALIGNMENT * ALIGNMENT
        stop = max((span.stop for span in spans if span), default=start)
        holds_flags = all(row.dtype == "bool" for _, row in on_it)
        device = graph.devices[graph.storage_device[storage]]
        block = poisoned(stop - start, device, poison[1] if holds_flags else poison[0])
        return block, start

    def _reads_more(self, node: int, unnamed: frozenset[int]) -> str:
        text = node_text(self.graph, node)
        if not unnamed:
            return f"{text} gives other bits where the memory around its arguments is other memory"
        names = ", ".join(f"%{self.plan.arguments(node)[slot]}" for slot in sorted(unnamed))
        return f"{text} reads {names}, of which no edge names the contents"


def _fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor's contents to another of the same geometry, which may lie several times in its memory."""
    for dim, step in enumerate(target.stride()):
        if step == 0 and target.shape[dim] > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)
