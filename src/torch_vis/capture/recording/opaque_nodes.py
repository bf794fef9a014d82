"""Code that cannot be looked into, as nodes: its inputs, its outputs, and which of these a replay takes as recorded."""

from __future__ import annotations

import torch

from torch_vis.capture.recording.op_plan import OpPlan
from torch_vis.capture.recording.recorder import (
    FORWARD,
    CallInfo,
    Recorder,
    backward_number,
    clock,
    current_autograd_node,
    encode,
    get_ident,
    sequence_number,
)
from torch_vis.capture.recording.tensors import Tensor

FILL = "torch_vis::unseen_write"


class OpaqueCall:
    """A call of code that cannot be looked into: made before it runs, recorded as one node by ``finish``."""

    def __init__(self, rec: Recorder, inputs: list[Tensor], writes: tuple[int, ...]) -> None:
        self.rec, self.inputs, self.writes = rec, inputs, writes
        self.numbers = [rec.number_of(tensor) for tensor in inputs]
        if rec.keep:
            rec.copy_before_write(inputs, writes)
        self.started = clock()

    def finish(self, name: str, outputs: list[Tensor], site: int) -> None:
        """Record the node, now that the code has returned."""
        ended = clock()
        rec, inputs, writes = self.rec, self.inputs, self.writes
        call = _template(rec, name, inputs, writes, frozenset())
        node = rec.next_node()
        if rec.keep and writes:
            with torch._C._DisableTorchDispatch():
                rec.kept.opaque_outputs[node] = [inputs[slot].detach().clone() for slot in writes]
        values = []
        for slot in writes:
            values.append(rec.add(inputs[slot], node))
            rec.note_write(inputs[slot], node)
        for tensor in outputs:
            if any(tensor is inputs[slot] for slot in writes):
                continue
            before = len(rec.storage_rows)
            number = rec.add(tensor, node)
            values.append(number)
            if len(rec.storage_rows) > before:
                rec.keep_external(tensor, number)
        grad_node = current_autograd_node()
        backward = FORWARD if grad_node is None else backward_number(grad_node)
        _write(rec, node, call, site, backward, (self.started, ended), [*self.numbers, *values])


def record_fill(rec: Recorder, tensor: Tensor, number: int) -> int:
    """Record that unseen code has filled memory that was made without contents; the tensor's new number."""
    del rec.uninitialized[number]
    address = rec.seen[id(tensor)].address
    if (
        address is None
        or rec.storages[address].number in rec.written_storages
        or tensor.untyped_storage().device.type == "meta"
    ):
        return number
    if rec.fill_template < 0:
        rec.fill_template = _template(rec, FILL, [tensor], (0,), frozenset({0}))
    node = rec.next_node()
    with torch._C._DisableTorchDispatch():
        rec.kept.opaque_outputs[node] = [tensor.detach().clone()]
    filled = rec.add(tensor, node)
    rec.note_write(tensor, node)
    rec.uncaptured["filled"] += 1
    now = clock()
    _write(rec, node, rec.fill_template, -1, FORWARD, (now, now), [number, filled])
    return filled


def _template(
    rec: Recorder, name: str, inputs: list[Tensor], writes: tuple[int, ...], overwrites: frozenset[int]
) -> int:
    """Number a call template for code that is no operator."""
    plan = OpPlan(None)
    plan.name = name
    template, _ = encode(name, tuple(inputs), {}, rec.kept.objects)
    rec.calls.append(CallInfo(template, len(inputs), writes, overwrites, frozenset(), plan))
    return len(rec.calls) - 1


def _write(
    rec: Recorder,
    node: int,
    call: int,
    site: int,
    backward: int,
    times: tuple[int, int],
    values: list[int],
) -> None:
    thread = get_ident()
    rec.opaque_nodes.append(node)
    scope = rec.current.get(thread, 0)
    rec.write(node, call, scope, site, sequence_number(), backward, thread, False, *times, -1, *values)
