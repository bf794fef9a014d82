"""Collectives and messages between ranks, as nodes: one for each call, one for each ``wait()`` for what it receives.

A collective writes its outputs, but what is in them counts only once somebody has waited: the wait is the node that
makes the received values, and readers hang on it. A wait is a method of ``Work``, which is wrapped while a recorder is
active. Where C++ code waits (the reducer of DistributedDataParallel does), nothing is seen of it: the node then stands
before the first operation that reads what was received.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any, NamedTuple

import torch

from torch_vis.capture.containers import named_tensors
from torch_vis.capture.recording.op_plan import OpPlan
from torch_vis.capture.recording.opaque_nodes import record_fill
from torch_vis.capture.recording.recorder import (
    FORWARD,
    SEED,
    CallInfo,
    Recorder,
    backward_number,
    clock,
    current_autograd_node,
    encode,
    flat_tensors,
    get_ident,
    sequence_number,
)
from torch_vis.capture.recording.tensors import Tensor
from torch_vis.graph.call import Special
from torch_vis.graph.schema import RankGroup
from torch_vis.ops.collectives import WAIT, Collective, Effects, effects, root_of

C10D = "torch.distributed.distributed_c10d"
REPLICAS = "torch.nn.parallel.distributed"
# how a group of a mesh is described, and the one of all ranks
MESH, WORLD = "mesh_", "default_pg"
# what functions of torch.distributed call the options of the call that they make
OPTIONS = ("all_reduce_opts", "reduce_opts", "opts")
# those that have the reduction itself, under the name that they take it by
REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"})
# names of reductions
_reductions: dict[Any, str] = {}
# types of arguments that a template shows as they are
PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


class Pending:
    """A collective that nobody has waited for yet: the tensors that it fills, and the handle to wait by."""

    __slots__ = ("backward", "comm", "has_future", "receives", "scope", "tensors", "work", "work_ref")

    def __init__(self, comm: int, tensors: list[Tensor], work: Any, scope: int, backward: int) -> None:
        self.comm = comm
        # whether it is a message, of which only the wait may tell who sent it
        self.receives, self.has_future = False, True
        self.tensors = tensors
        # held until it is done, so that it can be asked
        self.work = work
        self.work_ref = None if work is None else weakref.ref(work)
        self.scope, self.backward = scope, backward

    def is_done(self) -> bool:
        """Whether what it receives has arrived, as far as is known without waiting."""
        if self.work is None:
            return self.work_ref is not None
        # one of a fake group talks to nobody, and never says that it is done
        if type(self.work).__name__ == "FakeWork" or self.work.is_completed() or self._has_arrived():
            self.work = None
            return True
        return False

    def _has_arrived(self) -> bool:
        """Whether the future of the handle is done: a backend lets those go on who wait for it, and then says so."""
        if self.has_future:
            try:
                return bool(self.work.get_future().done())
            except RuntimeError:
                # messages between two ranks have none
                self.has_future = False
        return False


class CallPlace(NamedTuple):
    """Where something is called: the user's line, the scope and the backward node."""

    site: int
    scope: int
    backward: int


def place_of(rec: Recorder, frame: Any) -> CallPlace:
    """Where a frame was called from."""
    site, in_engine, _ = rec.called_from(frame)
    return CallPlace(site, rec.current.get(get_ident(), 0), _backward(in_engine))


# ---------------------------------------------------------------- collectives


def run_collective(rec: Recorder, plan: OpPlan, args: Any, kwargs: Any, place: tuple[int, bool, Any]) -> Any:
    """Run an operator that talks to other ranks, exactly as it would have, and record it.

    ``place`` is the source line, whether it is in a backward pass, and the frame that called.
    """
    row = plan.collective
    assert row is not None
    site, in_engine, frame = place
    group = _group(rec, row, args)
    tensors: list[Tensor] = []
    form = _forms(args, tensors)
    if kwargs:
        tensors += _tensors(kwargs.values())
    numbers = [rec.number_of(tensor) for tensor in tensors]
    reduction = ""
    if row.op is not None and row.op < len(args) and type(args[row.op]) is torch.ScriptObject:
        reduction = reduction_named(frame)
    known = None if kwargs else rec.comm_calls.get((plan.name, group, reduction, form))
    call = _call(rec, plan, row, group, reduction, args, kwargs, form) if known is None else known
    info = rec.calls[call]
    if rec.pending:
        taken = [t for slot, t in enumerate(tensors) if slot not in info.overwrites | info.shape_only]
        if land_read(rec, taken):
            numbers = [rec.number_of(tensor) for tensor in tensors]
    if rec.keep:
        if rec.uninitialized:
            # memory that no operation wrote to is given as it is
            for slot, number in enumerate(numbers):
                if number in rec.uninitialized and slot not in info.overwrites | info.shape_only:
                    numbers[slot] = record_fill(rec, tensors[slot], number)
        rec.copy_before_write(tensors, info.writes)
    started = clock()
    out = plan.run(*args, **kwargs)
    ended = clock()
    node = rec.next_node()
    filled = [tensors[slot] for slot in info.writes]
    if rec.uninitialized:
        for slot in info.writes:
            rec.uninitialized.pop(numbers[slot], None)
    values = []
    for tensor in filled:
        values.append(rec.add(tensor, node))
        rec.note_write(tensor, node)
    if row.filled is None:
        for tensor in _made(out, tensors):
            values.append(rec.add(tensor, node))
            filled.append(tensor)
    thread = get_ident()
    backward = _backward(in_engine)
    scope = rec.current.get(thread, 0)
    rec.log += (
        12 + len(numbers) + len(values), node, call, scope, site, sequence_number(), backward, thread,
        torch.is_grad_enabled(), started, ended, -1, *numbers, *values,
    )  # fmt: skip
    rec.collective_nodes.append(node)
    _add_row(rec, row, node, group, args)
    if row.waits:
        if rec.keep:
            _keep(rec, node, filled)
    else:
        pending = Pending(len(rec.comms) - 1, filled, _work(out), scope, backward)
        pending.receives = row.kind == "recv"
        # those that are done need not be held on to; the new one is not known to the program yet
        for other in rec.pending:
            other.is_done()
        rec.pending.append(pending)
    return out


def _tensors(items: Any) -> list[Tensor]:
    """The tensors among arguments, in order; most are in lists."""
    tensors: list[Tensor] = []
    for item in items:
        if isinstance(item, Tensor):
            tensors.append(item)
        elif type(item) is list:
            for part in item:
                if isinstance(part, Tensor):
                    tensors.append(part)
                else:
                    tensors += flat_tensors((part,))
        elif isinstance(item, (list, tuple, dict)):
            tensors += flat_tensors((item,))
    return tensors


def _made(out: Any, given: list[Tensor]) -> list[Tensor]:
    """The tensors that an operator returned in memory of their own."""
    if type(out) is torch.ScriptObject:
        return []
    made = _tensors(out if type(out) is tuple else (out,))
    if len(made) == len(given) and all(map(operator.is_, made, given)):
        return []
    memory = {_address(tensor) for tensor in given}
    return [tensor for tensor in made if _address(tensor) not in memory]


def _add_row(rec: Recorder, row: Collective, node: int, group: int, args: Any) -> None:
    root = root_of(row, args)
    ranks = rec.groups[group].ranks if group >= 0 else ()
    peer = ranks[root] if root is not None and root < len(ranks) else -1
    tag = args[row.tag] if row.tag is not None and row.tag < len(args) else 0
    tag = tag if type(tag) is int else 0
    # messages are counted by who sends them to whom; of a receive from anybody that is known once it is there
    key = (group, row.kind, peer, tag) if row.kind in ("send", "recv") else (group,)
    number = rec.comm_counts[key]
    rec.comm_counts[key] = number + 1
    rec.comms.append((node, group, number, peer, tag))


def _address(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _backward(in_engine: bool) -> int:
    node = current_autograd_node()
    if node is not None:
        return backward_number(node)
    return SEED if in_engine else FORWARD


def _call(
    rec: Recorder,
    plan: OpPlan,
    row: Collective,
    group: int,
    reduction: str,
    args: Any,
    kwargs: Any,
    form: tuple[Any, ...],
) -> int:
    """The number of the template of a call, in which groups and reductions have names.

    Calls of one ``form`` have one template.
    """
    shown = list(args)
    if row.group is not None and row.group < len(shown):
        shown[row.group] = Special("group", rec.groups[group].name if group >= 0 else "?")
    if reduction and row.op is not None:
        shown[row.op] = Special("reduce_op", reduction)
    position = rec.groups[group].position if group >= 0 else None
    what = effects(row, position, root_of(row, args))
    template, slots_of = encode(plan.name, tuple(shown), kwargs, rec.kept.objects)
    key = (template, what.writes)
    known = rec.comm_calls.get(key)
    if known is None:
        known = rec.comm_calls[key] = _new_call(rec, plan, template, slots_of, what)
    if not kwargs:
        rec.comm_calls[plan.name, group, reduction, form] = known
    return known


def _forms(args: Any, tensors: list[Tensor]) -> tuple[Any, ...]:
    """What arguments are in a template, and at the end of ``tensors`` the tensors among them, in order.

    Equal arguments are shown alike, and any object that has no name is unlike others. Groups and reductions are
    handles, made anew for each call: they are named apart.
    """
    forms: list[Any] = []
    for arg in args:
        kind = type(arg)
        if kind is torch.ScriptObject:
            forms.append(kind)
        elif kind in PLAIN:
            forms += (kind, arg)
        elif kind is list or kind is tuple:
            forms += (kind, len(arg), *_forms(arg, tensors))
        elif isinstance(arg, Tensor):
            tensors.append(arg)
            forms.append(Tensor)
        else:
            tensors += flat_tensors((arg,))
            forms.append(object())
    return tuple(forms)


def _new_call(rec: Recorder, plan: OpPlan, template: Any, slots_of: Any, what: Effects) -> int:
    def slots(arguments: Any) -> tuple[int, ...]:
        return tuple(slot for argument in arguments for slot in slots_of.get(argument, ()))

    rec.calls.append(
        CallInfo(
            template,
            sum(1 for _ in template.slots()),
            slots(what.writes),
            frozenset(slots(what.overwrites)),
            frozenset(slots(what.unread)),
            plan,
        )
    )
    return len(rec.calls) - 1


def reduction_named(frame: Any) -> str:
    """The reduction, by the arguments of the torch.distributed function around the call; "?" if there is none."""
    deepest = frame
    while frame is not None and frame.f_globals.get("__name__") != C10D:
        frame = frame.f_back
    if frame is None:
        # C++ code calls by itself: the reducer of DistributedDataParallel, which divides and adds up
        return "sum" if current_autograd_node() is not None or _in_reducer(deepest) else "?"
    names = frame.f_locals
    if frame.f_code.co_name in REDUCING:
        return _reduction_text(names.get("op"))
    # what the manager of coalesced collectives calls its own "op" is another thing
    op = None
    for name in OPTIONS:
        if name in names:
            op = getattr(names[name], "reduceOp", None)
            break
    return _reduction_text(op or names.get("op"))


def _reduction_text(op: Any) -> str:
    """The name of a reduction: of its kind, or of one that a kind was made into."""
    op = getattr(op, "op", op)
    # asking one for its name takes longer than all of this
    text = _reductions.get(op)
    if text is None:
        text = str(getattr(op, "name", None) or "?").lower()
        if text != "?":
            _reductions[op] = text
    return text


def _in_reducer(frame: Any) -> bool:
    """Whether backward runs, or the module that stands in for the backward of ranks that have no more input."""
    while frame is not None and frame.f_code.co_name != "_engine_run_backward":
        if frame.f_globals.get("__name__") == REPLICAS:
            return True
        frame = frame.f_back
    return frame is not None


# ---------------------------------------------------------------- groups


def _group(rec: Recorder, row: Collective, args: Any) -> int:
    """The number of the group that a call is about, -1 where it is not known."""
    if row.group is None or row.group >= len(args):
        return -1
    item = args[row.group]
    group = group_named(item) if type(item) is torch.ScriptObject else None
    # asking a group for its name takes longer than this: the groups of a run are known by themselves as well
    known = rec.group_numbers.get(group or item) if group is not None or isinstance(item, str) else None
    if known is not None:
        return known
    group = group_named(item) if group is None else group
    if group is None:
        return -1
    known = rec.group_numbers.get(group.group_name)
    if known is None:
        known = rec.group_numbers[group.group_name] = len(rec.groups)
        rec.groups.append(describe_group(group, {group.name for group in rec.groups}))
    rec.group_numbers[group] = known
    return known


def group_named(item: Any) -> Any:
    """The process group that an argument of an operator stands for; None where it stands for none."""
    group_kind: Any = torch._C._distributed_c10d.ProcessGroup
    if isinstance(item, torch.ScriptObject):
        return group_kind.unbox(item)
    elif isinstance(item, str):
        item = torch._C._distributed_c10d._resolve_process_group(item)  # type: ignore[arg-type]
    return item if isinstance(item, group_kind) else None


def describe_group(group: Any, taken: set[str]) -> RankGroup:
    """A process group as plain data, under a name that no other has."""
    import torch.distributed as dist

    about = str(group.group_desc or "")
    axis = about.removeprefix(MESH) if about.startswith(MESH) else ""
    name = axis or ("world" if about == WORLD else about if about not in ("", "undefined") else "group")
    unique, number = name, 1
    while unique in taken:
        unique, number = f"{name} {number}", number + 1
    ranks = tuple(dist.get_process_group_ranks(group))
    return RankGroup(unique, ranks, int(group.rank()), axis, str(dist.get_backend(group)))


def _work(out: Any) -> Any:
    """The handle to wait by that an operator returned, None where it returned none."""
    last = out[-1] if isinstance(out, (tuple, list)) and out else out
    if not isinstance(last, torch.ScriptObject):
        return None
    return torch._C._distributed_c10d.Work.unbox(last)


# ---------------------------------------------------------------- waits


def land(
    rec: Recorder, pending: Pending, times: tuple[int, int], site: int, scope: int, backward: int
) -> None:
    """Record that a collective is complete: the node of its wait, which writes new versions of its outputs."""
    if pending.receives:
        _keep_source(rec, pending)
    rec.pending.remove(pending)
    tensors = pending.tensors
    numbers = [rec.number_of(tensor) for tensor in tensors]
    call = rec.comm_calls.get((WAIT, len(tensors)))
    if call is None:
        plan = OpPlan(None)
        plan.name = WAIT
        template, _ = encode(WAIT, tuple(tensors), {}, rec.kept.objects)
        every = tuple(range(len(tensors)))
        rec.calls.append(CallInfo(template, len(tensors), every, frozenset(), frozenset(), plan))
        call = rec.comm_calls[WAIT, len(tensors)] = len(rec.calls) - 1
    _write_wait(rec, pending, call, numbers, times, site, scope, backward)


def _write_wait(
    rec: Recorder,
    pending: Pending,
    call: int,
    numbers: list[int],
    times: tuple[int, int],
    site: int,
    scope: int,
    backward: int,
) -> None:
    node = rec.next_node()
    if rec.keep:
        _keep(rec, node, pending.tensors)
    values = []
    for tensor in pending.tensors:
        values.append(rec.add(tensor, node))
        rec.note_write(tensor, node)
    rec.log += (
        12 + len(numbers) + len(values), node, call, scope, site, sequence_number(), backward, get_ident(),
        torch.is_grad_enabled(), *times, -1, *numbers, *values,
    )  # fmt: skip
    rec.collective_nodes.append(node)
    rec.waits.append((node, pending.comm))


def _keep(rec: Recorder, node: int, tensors: list[Tensor]) -> None:
    """Keep what was received, which a replay takes as recorded."""
    if tensors:
        with torch._C._DisableTorchDispatch():
            rec.kept.opaque_outputs[node] = [tensor.detach().clone() for tensor in tensors]


def _keep_source(rec: Recorder, pending: Pending) -> None:
    """Note who sent what was received from anybody."""
    if pending.work_ref is None:
        return
    node, group, number, peer, tag = rec.comms[pending.comm]
    work = pending.work_ref()
    if peer < 0 and work is not None and group >= 0:
        source, ranks = int(work._source_rank()), rec.groups[group].ranks
        if 0 <= source < len(ranks):
            rec.comms[pending.comm] = (node, group, number, ranks[source], tag)


def land_read(rec: Recorder, tensors: list[Tensor]) -> bool:
    """Before tensors are read: record the waits, unseen so far, for collectives that have filled them."""
    addresses = {_address(tensor) for tensor in tensors}
    landed = False
    with rec.landing:
        for pending in list(rec.pending):
            if any(_address(tensor) in addresses for tensor in pending.tensors) and pending.is_done():
                _land_unseen(rec, pending)
                landed = True
    return landed


def wait_for_results(rec: Recorder, output: Any) -> None:
    """At the end of a program: wait for what it returns of functional collectives, as its first reader would.

    Such a tensor has no numbers until somebody has waited for it, and so would be no result of the run.
    """
    pending = {_address(tensor) for row in rec.pending if row.work_ref is None for tensor in row.tensors}
    if not pending:
        return
    for _, tensor in named_tensors(output):
        address = _address(tensor)
        if address in pending:
            pending.discard(address)
            torch.ops._c10d_functional.wait_tensor(tensor)


def land_rest(rec: Recorder) -> None:
    """At the end of a run: record the waits, unseen so far, for all collectives that are done."""
    with rec.landing:
        for pending in list(rec.pending):
            if pending.tensors and pending.is_done():
                _land_unseen(rec, pending)
        rec.pending.clear()


def _land_unseen(rec: Recorder, pending: Pending) -> None:
    rec.uncaptured["unseen waits"] += 1
    now = clock()
    land(rec, pending, (now, now), -1, pending.scope, pending.backward)


def run_wait_tensor(rec: Recorder, plan: OpPlan, args: Any, kwargs: Any, place: tuple[int, bool, Any]) -> Any:
    """Run the operator that waits for a functional collective, and record it as the wait for that."""
    tensor = args[0] if args else kwargs["tensor"]
    pending = next((p for p in rec.pending if any(t is tensor for t in p.tensors)), None)
    if pending is None:
        address = _address(tensor)
        pending = next((p for p in rec.pending if any(_address(t) == address for t in p.tensors)), None)
    started = clock()
    out = plan.run(*args, **kwargs)
    ended = clock()
    # one that was waited for before, or that is none
    if pending is None:
        return out
    site, in_engine, _ = place
    template = plan.calls.get("wait")
    if template is None:
        call, _ = encode(plan.name, (tensor,), {}, rec.kept.objects)
        rec.calls.append(CallInfo(call, 1, (0,), frozenset(), frozenset(), plan))
        template = plan.calls["wait"] = len(rec.calls) - 1
    # of several tensors each is waited for by itself
    own = [t for t in pending.tensors if t is tensor] or [tensor]
    rest = [t for t in pending.tensors if t is not tensor] if len(pending.tensors) > 1 else []
    alone = Pending(pending.comm, own, None, pending.scope, pending.backward)
    rec.pending.remove(pending)
    if rest:
        pending.tensors = rest
        rec.pending.append(pending)
    scope = rec.current.get(get_ident(), 0)
    numbers = [rec.number_of(t) for t in own]
    _write_wait(rec, alone, template, numbers, (started, ended), site, scope, _backward(in_engine))
    return out


def wait_ended(rec: Recorder, work: Any, times: tuple[int, int], frame: Any) -> None:
    """Record the wait for a handle that has just returned."""
    with rec.landing:
        for pending in rec.pending:
            if pending.work_ref is not None and pending.work_ref() is work:
                site, in_engine, _ = rec.called_from(frame)
                land(rec, pending, times, site, rec.current.get(get_ident(), 0), _backward(in_engine))
                return
