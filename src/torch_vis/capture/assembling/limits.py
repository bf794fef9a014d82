"""What a recording could not capture, in sentences; ``graph.run.LIMIT_KINDS`` lists their kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from torch_vis.capture.assembling.api_calls import HAS_POSITIONS
from torch_vis.capture.assembling.edges import GuessedReads
from torch_vis.capture.recording.recorder import Recorder
from torch_vis.capture.recording.source_lines import resolve
from torch_vis.graph.call import short_name
from torch_vis.graph.graph import Graph
from torch_vis.graph.run import Limit
from torch_vis.graph.schema import Phase, Site

# The calls under which users know operators
CALLS = {"_local_scalar_dense": "item()"}
# Methods that give an array on the tensor's own memory
ARRAYS = ("numpy", "__array__", "__dlpack__", "to_dlpack")
# What is counted during a run: the kind of limit, and the sentence that follows "3 × "
COUNTED: dict[str, tuple[str, str]] = {
    "compiled calls": (
        "opaque",
        "calls of compiled code, shown as one node each (torch_vis::compiled) since what runs inside cannot be seen; "
        "a replay takes their outputs as recorded",
    ),
    "compiled": ("missing", "operations inside compiled code that were left out"),
    "appeared": (
        "opaque",
        "tensors that appeared during backward from code that cannot be seen; a replay takes them as recorded",
    ),
    "filled": (
        "opaque",
        "tensors that were read before any operation wrote to them (torch_vis::unseen_write): filled by C++ code, "
        "or never initialised; a replay takes them as recorded",
    ),
    "unseen waits": (
        "time",
        "waits for other ranks by C++ code (DistributedDataParallel waits at the end of backward), which cannot be "
        "seen: each stands where what was received is first read, and how long it took is not known",
    ),
    "outputs": (
        "opaque",
        "outputs that no recorded operation made: another thread's, or code's that cannot be seen; a replay takes them "
        "as recorded",
    ),
    "fast paths": (
        "altered",
        "fast paths of MultiheadAttention that were not taken because a torch function mode was there to name calls; "
        "results may differ in the last bits",
    ),
    "compiled under names": (
        "altered",
        "functions compiled while calls were being named, with Dynamo loaded by the block itself; they are compiled "
        "again after it",
    ),
    "threads": ("missing", "module calls on other threads that were not recorded"),
    "reassigned": (
        "missing",
        "tensors that were given other memory without an operation (.data = …), which is not in the graph",
    ),
}


class PackedWeights(NamedTuple):
    """Weights packed into objects of C++ classes: how many objects, what they hold, and how many do not say."""

    objects: int
    size_bytes: int
    elements: int
    unknown: int


def describe_limits(
    rec: Recorder, graph: Graph, guesses: list[GuessedReads], packed: PackedWeights
) -> tuple[Limit, ...]:
    """One sentence for each kind of thing that is not in the graph, with the source lines it happened at."""
    limits = _escapes(rec, graph)
    compiled = len(rec.opaque_nodes) - rec.uncaptured["filled"]
    counts = {**rec.uncaptured, "compiled calls": compiled}
    for name, (kind, sentence) in COUNTED.items():
        if counts.get(name):
            limits.append(Limit(f"{counts[name]:,} × {sentence}", kind=kind))
    limits += _talk_limits(rec)
    layouts = {row.layout for row, opaque in zip(rec.type_rows, rec.type_opaque, strict=True) if opaque}
    if layouts:
        names = ", ".join(sorted(layouts))
        text = f"the memory of {names} tensors is not counted, and views into them are not followed"
        limits.append(Limit(text, kind="memory"))
    limits += _guess_limits(graph, guesses)
    limits += _packed_limits(packed)
    if not HAS_POSITIONS and rec.function_mode is None:
        text = "functions that ran operations have no name: Python says which one a line calls from 3.11 on"
        limits.append(Limit(text, kind="other"))
    if any(device.startswith("cuda") for device in graph.devices):
        text = "times of CUDA operations are those of the host: they do not include the kernels' own run time"
        limits.append(Limit(text, kind="time"))
    return tuple(limits)


def _escapes(rec: Recorder, graph: Graph) -> list[Limit]:
    """The limits about values that left for Python, and about branches that the data of the run decided."""
    limits = []
    rows = Counter((name, *_where(rec, graph, site, node)) for name, _, site, node in rec.python_escapes)
    for (name, where, site), times in rows.items():
        short = short_name(name)
        often = f", {times:,} times" if times > 1 else ""
        if name.startswith("higher_order::"):
            text = f"{short} at {where} went the way that the data of this run decided{often}"
            limits.append(Limit(text, kind="branch", site=site))
            continue
        call = CALLS.get(short, f"{short}()")
        text = f"{call} took a value to Python at {where}{often}; what was done with it there is not in the graph"
        limits.append(Limit(text, kind="python", site=site))
        if short in ARRAYS:
            text = f"the array made by {call} at {where} shares the tensor's memory; writes through it cannot be seen"
            limits.append(Limit(text, kind="missing", site=site))
    return limits


def _where(rec: Recorder, graph: Graph, number: int, node: int) -> tuple[str, str | None]:
    """The user's line that a value left at, as words and as ``file:line``; of an optimizer's, the line of its step."""
    site: Site | None = resolve(*rec.sites[number]) if number >= 0 else None
    words = "an unknown line" if site is None else str(site)
    if node >= 0 and graph.node_phase[node] == Phase.OPTIMIZER:
        words = f"{words}, by {graph.nodes[node].scope.type} itself"
    return words, None if site is None else f"{site.file}:{site.line}"


def _talk_limits(rec: Recorder) -> list[Limit]:
    """The limits about collectives on threads that the run has not started: one for each line that issued some."""
    limits = []
    for number, times in Counter(rec.talked_elsewhere).items():
        site = resolve(*rec.sites[number]) if number >= 0 else None
        text = (
            f"{times:,} × collectives or messages at {site or 'an unknown line'}, on a thread that was there before "
            "the run, which were not recorded; those of threads that the run itself starts are"
        )
        limits.append(Limit(text, kind="missing", site=f"{site.file}:{site.line}" if site else None))
    return limits


def _guess_limits(graph: Graph, guesses: list[GuessedReads]) -> list[Limit]:
    """The limits about reads with edges too many: one for all blocks that the same lines made and read."""
    count = len(graph)
    groups: dict[tuple[str, Site | None], list[GuessedReads]] = {}
    for guess in guesses:
        reader = guess.nodes[0]
        site = graph.nodes[reader].site if reader < count else None
        groups.setdefault((_block(graph, guess.base), site), []).append(guess)
    limits = []
    for (block, site), group in groups.items():
        readers = sorted({node for guess in group for node in guess.nodes})
        size_bytes = max(int(graph.storage_bytes[graph.values[guess.base].storage]) for guess in group)
        blocks = f"{len(group):,} blocks of up to" if len(group) > 1 else "a block of"
        first = f", first at {site}," if site else ""
        text = (
            f"{len(readers):,} × reads of {blocks} {size_bytes:,} bytes ({block}) through irregular views{first} are "
            "taken to depend on every write to it since it was last written whole, so edges from some of these writes "
            "may be too many: to follow them all exactly would take more than linear time"
        )
        limits.append(
            Limit(
                text,
                kind="dataflow",
                site=f"{site.file}:{site.line}" if site else None,
                nodes=[node for node in readers if node < count],
                results=[graph.results[node - count].name for node in readers if node >= count],
            )
        )
    return limits


def _block(graph: Graph, base: int) -> str:
    """A block of memory in words: its name, or the operation and the line that made it."""
    value = graph.values[base]
    if value.producer is None:
        return str(value.name or "from before the run")
    producer = value.producer
    return f"of {short_name(producer.op)}" + (f" at {producer.site}" if producer.site else "")


def _packed_limits(packed: PackedWeights) -> list[Limit]:
    opaque, texts = "× packed weights, which are opaque to torch", []
    if packed.objects:
        texts.append(
            f"{packed.objects:,} {opaque}: the about {packed.size_bytes:,} bytes ({packed.elements:,} elements) that "
            "they hold are neither in the figures of memory nor among the parameters"
        )
    if packed.unknown:
        texts.append(f"{packed.unknown:,} {opaque}: what they hold is not known and not counted")
    return [Limit(text, kind="memory") for text in texts]


def packed_weights(objects: Iterable[Any]) -> PackedWeights:
    """The weights in objects that operations got as arguments; an object that is there twice counts once.

    The tensors are those that ``torch.save`` would write, which are copies of what was packed: about as large.

    >>> layer = torch.ao.nn.quantized.dynamic.Linear(8, 4)
    >>> packed_weights([layer._packed_params._packed_params])
    PackedWeights(objects=1, size_bytes=48, elements=36, unknown=0)
    """
    unique = {hash(item): item for item in objects if isinstance(item, torch.ScriptObject)}
    count = size_bytes = elements = unknown = 0
    for item in unique.values():
        tensors = _tensors(item)
        if tensors is None:
            # others, a process group say, are no weights
            unknown += "Params" in str(item._type())
        elif tensors:
            count += 1
            size_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            elements += sum(tensor.numel() for tensor in tensors)
    return PackedWeights(count, size_bytes, elements, unknown)


def _tensors(item: Any) -> list[torch.Tensor] | None:
    """The tensors inside an object and the objects inside it, each once; None where its class has no state."""
    tensors: dict[int, torch.Tensor] = {}
    stack = [item]
    try:
        while stack:
            part = stack.pop()
            if isinstance(part, torch.Tensor):
                # others are sizes and strides
                if part.is_quantized or part.is_floating_point():
                    tensors[part.data_ptr()] = part
            elif isinstance(part, torch.ScriptObject):
                stack.append(part.__getstate__())
            elif isinstance(part, (list, tuple)):
                stack += part
    # NotImplementedError is a RuntimeError
    except (RuntimeError, AttributeError):
        return None
    return list(tensors.values())
