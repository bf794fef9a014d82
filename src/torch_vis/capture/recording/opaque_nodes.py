"""Code that cannot be looked into, as nodes: what went in, what came out, and what a replay is to take as given."""

from __future__ import annotations

import torch

from torch_vis.capture.recording.op_plan import Plan
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


def begins(rec: Recorder, tensors: list[Tensor], writes: tuple[int, ...]) -> tuple[int, list[int]]:
    """Note the inputs of code that cannot be seen, before it runs; when it begins, and their numbers."""
    numbers = [rec.number_of(tensor) for tensor in tensors]
    if rec.keep:
        rec.save_originals(tensors, writes)
    return clock(), numbers


def ends(
    rec: Recorder,
    name: str,
    begun: tuple[int, list[int]],
    inputs: list[Tensor],
    writes: tuple[int, ...],
    outputs: list[Tensor],
    site: int,
) -> None:
    """Stand one node for code that cannot be seen; a replay takes what it gave as recorded."""
    ended = clock()
    started, numbers = begun
    plan = Plan(None)
    plan.name = name
    template, _ = encode(name, tuple(inputs), {}, rec.kept.objects)
    call = len(rec.calls)
    rec.calls.append(CallInfo(template, len(inputs), writes, frozenset(), frozenset(), plan))
    birth = rec.next_node()
    if rec.keep and writes:
        with torch._C._DisableTorchDispatch():
            rec.kept.opaque_outputs[birth] = [inputs[slot].detach().clone() for slot in writes]
    made = []
    for slot in writes:
        made.append(rec.note(inputs[slot], birth))
        rec.check_size(inputs[slot], birth)
    for tensor in outputs:
        if any(tensor is inputs[slot] for slot in writes):
            continue
        before = len(rec.storage_rows)
        number = rec.note(tensor, birth)
        made.append(number)
        if len(rec.storage_rows) > before:
            rec.hold(tensor, number)
    thread, node = get_ident(), current_autograd_node()
    backward = FORWARD if node is None else backward_number(node)
    rec.opaque_nodes.append(birth)
    scope = rec.current.get(thread, 0)
    row = (call, scope, site, sequence_number(), backward, thread, False, started, ended)
    rec.write(birth, *row, *numbers, *made)


def fill(rec: Recorder, tensor: Tensor, number: int) -> int:
    """Note that unseen code has put something into memory that was made without contents."""
    del rec.blank[number]
    address = rec.seen[id(tensor)].address
    if (
        address is None
        or rec.storages[address].number in rec.dirty
        or tensor.untyped_storage().device.type == "meta"
    ):
        return number
    if rec.fill_call < 0:
        plan = Plan(None)
        plan.name = "torch_vis::unseen_write"
        rec.fill_call = len(rec.calls)
        template, _ = encode(plan.name, (tensor,), {}, rec.kept.objects)
        rec.calls.append(CallInfo(template, 1, (0,), frozenset({0}), frozenset(), plan))
    node = rec.next_node()
    with torch._C._DisableTorchDispatch():
        rec.kept.opaque_outputs[node] = [tensor.detach().clone()]
    filled = rec.note(tensor, node)
    rec.check_size(tensor, node)
    thread, now = get_ident(), clock()
    rec.opaque_nodes.append(node)
    rec.unseen["filled"] = rec.unseen.get("filled", 0) + 1
    rec.write(
        node,
        rec.fill_call,
        rec.current.get(thread, 0),
        -1,
        sequence_number(),
        FORWARD,
        thread,
        False,
        now,
        now,
        number,
        filled,
    )
    return filled
