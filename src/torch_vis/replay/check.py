"""``Trace.check``: prove that edges name just the bytes that are read, and that replays give every result's bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_vis.capture.kept_tensors import KeptTensors, copy_of
from torch_vis.capture.undo import hears_interrupts
from torch_vis.errors import CheckFailed, TensorsMissing, TorchVisError
from torch_vis.graph.graph import Graph
from torch_vis.graph.schema import RECORDED, Flag, Kind, Role
from torch_vis.graph.text import and_more, many
from torch_vis.ops.collectives import NAMESPACES
from torch_vis.replay.edge_proof import area_of, effects, prove_edges
from torch_vis.replay.perturb import EXTREMES, PERTURBATIONS, Change, scramble
from torch_vis.replay.replay import Replay, ReplayPlan, flat, node_text, poisoned, replay_context, same_bits

Progress = Callable[[str], None]
# how many outputs get a pruned replay each of their own
SINGLE_RESULTS = 4
# the bytes of a poison: NaN and -1 or true, and large numbers or false
POISONS = ((0xFF, 1), (0x55, 0))
# operators of these are torch's own kernels, which read no memory beyond their arguments and declare what they write
TORCH = frozenset({"aten", "prims", "quantized"})
# private memory begins where the real one could: as far into a line of the cache
ALIGNMENT = 64
RANDOM, SHAPE = int(Flag.RANDOM), int(Kind.SHAPE)


class CheckResult(NamedTuple):
    """What a successful check did."""

    operations: int
    """How many operations the run has."""
    results: int
    """How many outputs, gradients and changed state were compared."""
    pruned: int
    """How many operations were left, and replayed, when pruned to what leads to the results."""
    shuffles: int
    """How many random orders were replayed."""
    inputs: int | None
    """How many pairs of an input and an output were proved; None where inputs were not perturbed."""
    edges: int = 0
    """How many edges were proved: each names bytes that are read, and together they name all of them."""

    def __str__(self) -> str:
        if not self.results:
            replayed = many(self.operations, "operation")
            return f"nothing to compare: the run returned no tensor; {replayed} replayed in order"
        inputs = "" if self.inputs is None else f"; {many(self.inputs, 'input-output pair')} proved"
        return (
            f"{many(self.results, 'result')} equal bit for bit: {many(self.operations, 'operation')} in order, "
            f"pruned to {self.pruned:,}, {many(self.shuffles, 'random order')}; "
            f"{many(self.edges, 'edge')} proved{inputs}"
        )


@hears_interrupts
def check(
    graph: Graph,
    held: KeptTensors,
    *,
    inputs: bool = False,
    shuffles: int = 2,
    seed: int = 0,
    approximate: bool = False,
    progress: Progress | None = None,
) -> CheckResult:
    """Prove the edges; replay in order, pruned and shuffled, and compare. Raises ``CheckFailed`` at the first fault.

    ``approximate`` allows edges that are there only because they could not be ruled out.
    """
    changed = held.changed()
    if changed:
        raise TensorsMissing(
            f"changed since the trace: {and_more(changed)}; check() has to come before they are written to again"
        )
    if not held.results and graph.results:
        raise TensorsMissing(
            "this trace holds no tensors (loaded from a file, or traced with hold=False); trace again to check it"
        )
    if not held.holds_numbers:
        raise TensorsMissing(
            "the run used meta or fake tensors, which hold no data to replay; trace with real tensors to check"
        )
    graph.check()
    edges = prove_edges(graph, approximate=approximate)
    oracle = _Oracle(graph, held, progress or (lambda _: None))
    oracle.in_order()
    pruned = oracle.pruned()
    for turn in range(shuffles):
        oracle.shuffled(random.Random(seed + turn))
    pairs = oracle.inputs() if inputs else None
    return CheckResult(len(graph), len(graph.results), pruned, shuffles, pairs, edges)


class _Oracle:
    """Replays one trace in different ways; a result is known by its number in ``graph.results``."""

    def __init__(self, graph: Graph, held: KeptTensors, progress: Progress) -> None:
        self.graph = graph
        self.held = held
        self.progress = progress
        self.plan = ReplayPlan(graph, held)
        # the random state before each random node, as the first replay leaves it
        self.states: dict[int, Any] = {}
        # all results
        self.everything = list(range(len(graph.results)))

    def in_order(self) -> None:
        """Replay every operation in order, each on what its edges name: this proves the call templates."""
        self.progress("replay in order")
        replay = PoisonedReplay(self.graph, self.held, self.plan)
        replay.run(range(len(self.graph)), states=self.states)
        wrong = self._differing(replay, self.everything)
        if wrong:
            self._explain_in_order(wrong)

    def pruned(self) -> int:
        """Replay only what the edges say leads to some results; gives how many operations lead to all of them."""
        outputs = [r for r in self.everything if self.graph.results[r].kind == "output"]
        groups = {tuple(group) for group in (outputs, *([r] for r in outputs[:SINGLE_RESULTS]))} - {()}
        leading = len(self.graph)
        for group in (self.everything, *map(list, sorted(groups))):
            self.progress("replay pruned to what the edges say matters")
            needed, taken = self._ancestors(group)
            nodes = np.flatnonzero(needed).tolist()
            self._run_and_compare(nodes, group, "pruned to what its edges say leads to the result", taken)
            leading = len(nodes) if group is self.everything else leading
        return leading

    def shuffled(self, rng: random.Random) -> None:
        """Replay every operation in a random order that the edges allow."""
        self.progress("replay in a random order")
        self._run_and_compare(
            random_order(len(self.graph), self.plan, rng),
            self.everything,
            "in a random order that its edges allow",
        )

    def inputs(self) -> int:
        """Perturb every input and see that exactly the connected outputs can change."""
        graph = self.graph
        outputs = [r for r in self.everything if graph.results[r].kind == "output"]
        taken = {r: self._ancestors([r])[1] for r in outputs}
        plain = self._replay_all(None)
        base = {r: self._result(plain, r).clone() for r in outputs}
        pairs = 0
        for value in self._input_values():
            self.progress(f"perturb {graph.values[value].name or value}")
            same_memory = np.flatnonzero(
                (graph.value_storage == graph.value_storage[value]) & (graph.value_producer < 0)
            )
            connected = {r for r in outputs if taken[r][same_memory].any()}
            unproved = set(connected)
            for change in PERTURBATIONS:
                try:
                    replay = self._replay_all((value, change))
                # this perturbation leads outside what an operation accepts
                except CheckFailed:
                    continue
                moved = {r for r in outputs if not same_bits(self._result(replay, r), base[r])}
                stray = moved - connected
                if stray:
                    raise CheckFailed(
                        self._pair(value, min(stray))
                        + " are not connected in the graph, yet the one changes the other"
                    )
                unproved -= moved
                if not unproved:
                    break
            if unproved:
                replay = Replay(graph, self.held, self.plan)
                unproved -= passes(replay, value, sorted(unproved), PERTURBATIONS, self.states)
            if unproved:
                pair = self._pair(value, min(unproved))
                raise CheckFailed(
                    f"{pair} are connected in the graph, yet no operation on the way passes a change on"
                )
            pairs += len(outputs)
        return pairs

    # ---------------------------------------------------------------- parts

    def _run_and_compare(self, nodes: list[int], results: list[int], how: str, taken: Any = None) -> None:
        """Replay some nodes and compare some results; ``taken`` marks the values that the edges say are needed."""
        replay = self._start(taken)
        try:
            replay.run(nodes, states=self.states)
        except CheckFailed as error:
            raise CheckFailed(f"{error} (replayed {how})") from error
        wrong = self._differing(replay, results)
        if not wrong:
            return
        truth = Replay(self.graph, self.held, self.plan)
        truth.run(range(len(self.graph)), states=self.states, digests=True)
        repeated = self._start(taken)
        repeated.run(nodes, states=self.states, digests=True)
        assert truth.digests is not None and repeated.digests is not None
        first = next((n for n in sorted(nodes) if truth.digests[n] != repeated.digests[n]), None)
        names = self._names(wrong)
        if first is None:
            raise CheckFailed(
                f"replayed {how}, {names} differ, though every operation gave the same: the result's edges are wrong"
            )
        raise CheckFailed(
            f"replayed {how}, {names} differ; the first operation that differs is {node_text(self.graph, first)}"
        )

    def _start(self, taken: Any) -> Replay:
        """A fresh replay; memory from outside that the edges say is not needed holds nonsense."""
        replay = Replay(self.graph, self.held, self.plan)
        if taken is not None:
            needed = set(self.graph.value_storage[taken].tolist())
            # allocated again, and poisoned, if something asks for it
            for storage in [s for s in replay.memory if s not in needed]:
                del replay.memory[storage]
        return replay

    def _explain_in_order(self, wrong: list[int]) -> None:
        """Raise for results that differ in order: an operation is not deterministic, or the recording is wrong."""
        runs = []
        for _ in range(2):
            replay = Replay(self.graph, self.held, self.plan)
            replay.run(range(len(self.graph)), states=self.states, digests=True)
            assert replay.digests is not None
            runs.append(replay.digests)
        calls = self.graph.calls
        unstable = next(
            (
                n
                for n in runs[0]
                if runs[0][n] != runs[1][n] and "empty" not in calls[self.graph.node_call[n]].op
            ),
            None,
        )
        names = self._names(wrong)
        if unstable is not None:
            raise CheckFailed(
                f"{names} differ, because an operation gives other bits each time: {node_text(self.graph, unstable)}"
            )
        producers = [self.graph.outcomes[r].value.producer for r in wrong]
        nodes = sorted(producer.index for producer in producers if producer is not None)
        culprit = (
            f"; the first operation whose result is known to differ is {node_text(self.graph, nodes[0])}"
            if nodes
            else ""
        )
        raise CheckFailed(
            f"replayed in order, {names} differ from what the run gave{culprit} "
            "(or a tensor was written after the run, through .data or numpy)"
        )

    def _differing(self, replay: Replay, results: list[int]) -> list[int]:
        return [r for r in results if not same_bits(self._result(replay, r), self.held.results[r])]

    def _result(self, replay: Replay, result: int) -> torch.Tensor:
        value = self.graph.outcomes[result].value.index
        replay.must_be_there(value)
        return replay.tensor(value)

    def _ancestors(self, results: list[int]) -> tuple[Any, Any]:
        """Which nodes lead to some results, and which values are taken on the way."""
        sources = [pair for r in results for pair in self.graph.outcomes[r].sources()]
        return self.graph.ancestors(sources)

    def _names(self, results: list[int]) -> str:
        return and_more([self.graph.results[r].name for r in results], 3)

    def _pair(self, value: int, result: int) -> str:
        return f"input {self.graph.values[value].name!r} and {self.graph.results[result].name!r}"

    def _input_values(self) -> list[int]:
        graph = self.graph
        rows = np.flatnonzero((graph.value_role == Role.INPUT) & (graph.value_producer < 0))
        return [
            int(v)
            for v in rows
            if graph.types[graph.value_type[v]].layout == "strided" and graph.types[graph.value_type[v]].numel
        ]

    def _replay_all(self, change: tuple[int, Change] | None) -> Replay:
        """A replay of every operation, with the value of an input changed where one is given."""
        replay = Replay(self.graph, self.held, self.plan)
        if change is not None:
            value, perturb = change
            storage = int(self.graph.value_storage[value])
            source = self.held.originals.get(storage, self.held.storages[storage])
            replay.memory[storage] = copy_of(source)
            tensor = replay.tensor(value)
            changed = perturb(tensor)
            if same_bits(changed, tensor):
                raise CheckFailed("the perturbation changes nothing")
            tensor.copy_(changed)
        replay.run(range(len(self.graph)), states=self.states)
        return replay


def random_order(count: int, plan: ReplayPlan, rng: random.Random) -> list[int]:
    """An order of all nodes, chosen at random among those that respect the plan's orderings."""
    before, after = plan.orderings()
    waiting = np.bincount(after, minlength=count).tolist()
    order = np.argsort(before, kind="stable")
    targets = after[order].tolist()
    starts = np.concatenate([[0], np.cumsum(np.bincount(before, minlength=count))]).tolist()
    ready = [node for node in range(count) if not waiting[node]]
    result: list[int] = []
    while ready:
        pick = rng.randrange(len(ready))
        ready[pick], ready[-1] = ready[-1], ready[pick]
        node = ready.pop()
        result.append(node)
        for target in targets[starts[node] : starts[node + 1]]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(result) != count:
        raise CheckFailed("the graph's dependences form a cycle")
    return result


# Does a change pass from an input to a result, one operation at a time? A whole run can hide a true connection: a value
# is added and subtracted again, or stacked and not selected. So each operation on the way is asked alone whether a
# change of what it reads changes what it makes, first as it ran and then, since a mask or a comparison may happen to
# block it, with its other inputs scrambled too.


def passes(
    replay: Replay, start: int, goals: Sequence[int], changes: Sequence[Change], states: dict[int, Any]
) -> set[int]:
    """Which of the results ``goals`` a change of the value ``start`` reaches, operation by operation."""
    graph = replay.graph
    reached = np.zeros(len(graph.value_type), dtype=bool)
    reached[(graph.value_storage == graph.value_storage[start]) & (graph.value_producer < 0)] = True
    wanted, _ = graph.ancestors([pair for goal in goals for pair in graph.outcomes[goal].sources()])
    for node in range(len(graph)):
        if wanted[node]:
            reads = _reached_reads(graph, node, reached)
            if reads and (graph.node_flags[node] & RECORDED or _moves(replay, node, reads, changes, states)):
                reached[graph.out_value[slice(*graph.output_span(node))]] = True
        replay.run([node], states=states, release=False)
    return {goal for goal in goals if _holds(graph, _own_sources(graph, goal), reached)}


def _own_sources(graph: Graph, goal: int) -> list[tuple[int, int]]:
    """What a result rests on, as far as it lies in the result's own memory: it cannot rest on anything else."""
    sources = graph.outcomes[goal].sources()
    own_storage = graph.value_storage[sources[0][0]]
    return [pair for pair in sources if graph.value_storage[pair[0]] == own_storage]


def _reached_reads(graph: Graph, node: int, reached: Any) -> list[tuple[int, int]]:
    span = range(*graph.input_span(node))
    pairs = [(int(graph.in_value[row]), int(graph.in_kind[row])) for row in span]
    return [pair for pair in pairs if _holds(graph, [pair], reached)]


def _holds(graph: Graph, pairs: Sequence[tuple[int, int]], reached: Any) -> bool:
    """Whether one of these ``(value, kind)`` reads takes bytes of a value that a change has reached."""
    for value, kind in pairs:
        if kind == Kind.SHAPE:
            continue
        while value >= 0:
            if reached[value]:
                return True
            value = int(graph.value_carries[value]) if kind == Kind.WHOLE else -1
    return False


def _moves(
    replay: Replay,
    node: int,
    reads: Sequence[tuple[int, int]],
    changes: Sequence[Change],
    states: dict[int, Any],
) -> bool:
    """Whether a change of what a node reads can change what it makes."""
    plain = _results(replay, node, states, seed=None, changed=())
    for change in (*changes, *EXTREMES):
        if plain is not None and _differ(
            plain, _results(replay, node, states, seed=None, changed=reads, change=change)
        ):
            return True
        for seed in range(2):
            base = _results(replay, node, states, seed=seed, changed=())
            moved = _results(replay, node, states, seed=seed, changed=reads, change=change)
            if base is not None and _differ(base, moved):
                return True
    return False


def _results(
    replay: Replay,
    node: int,
    states: dict[int, Any],
    *,
    seed: int | None,
    changed: Sequence[tuple[int, int]],
    change: Change | None = None,
) -> list[torch.Tensor] | None:
    """What a node gives for changed inputs, on copies, with the others scrambled by a seed; None if it refuses them."""
    graph, plan = replay.graph, replay.plan
    arguments = plan.arguments(node)
    kept = {int(graph.value_storage[value]) for value, _ in changed}
    kept |= {int(graph.value_storage[value]) for value in arguments}
    saved = {storage: copy_of(replay.memory[storage]) for storage in kept if storage in replay.memory}
    try:
        with replay_context(plan.generators):
            if seed is not None:
                generator = torch.Generator().manual_seed(seed)
                for value in arguments:
                    scramble(replay.tensor(value), generator)
            for value, _ in changed:
                if change is not None:
                    tensor = replay.tensor(value)
                    tensor.copy_(change(tensor.clone()))
            copies = {value: replay.tensor(value).clone() for value in arguments}
            tensors = [copies[value] for value in arguments]
            args, kwargs = plan.prepared(node).arguments(tensors)
            drawn_from = plan.generator(node) if graph.node_flags[node] & Flag.RANDOM else None
            if drawn_from is not None and node in states:
                drawn_from.set_state(states[node])
            returned = list(flat(plan.prepared(node).run(*args, **kwargs)))
            rows = range(*graph.output_span(node))
            written = [tensors[-1 - graph.out_slot[row]] for row in rows if graph.out_slot[row] < 0]
            return [tensor.clone() for tensor in [*returned, *written]]
    # outside what the operation accepts: another change may do
    except (RuntimeError, IndexError, ValueError):
        return None
    finally:
        for storage, block in saved.items():
            replay.memory[storage].copy_(block)


def _differ(left: list[torch.Tensor], right: list[torch.Tensor] | None) -> bool:
    return right is not None and (
        len(left) != len(right) or any(not same_bits(a, b) for a, b in zip(left, right, strict=True))
    )


# ---------------------------------------------------------------- on poison


class PoisonedReplay(Replay):
    """A replay in order in which an operation sees only what its own edges name; everything else is poison.

    The proof of edges (``edge_proof``) has shown that the edges name every byte that an operation reads by its
    definition. What they do not name, an argument of which only the shape counts or that is overwritten, is poison
    here, and in code that is not torch's own also what lies around the arguments in their memory. Each such operation
    runs on two different poisons and on the real bytes: it must give the same bits three times, and change nothing that
    it does not write.
    """

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
        """A node's arguments; those in ``apart``, and what shares their memory, lie in poisoned memory of their own."""
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
                # without plain memory, and perhaps written
                if slot in apart:
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
